//! The fixed texts of `safety` in the report: question, method and limits, the same for all figures.

/// The question that `safety` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "What does it cost to make a mapped file safe?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "durable commits, engine ÷ fastest safe mapping";

/// How `safety` measures, as the report explains it.
pub(super) const METHOD: &str = "Write-back of uncommitted pages (steal): 64 pages are stored into a mapping that is locked in memory, and never \
     committed. Another process syncs the file, or the lab waits until the kernel has written them by itself \
     (cachestat says when); then the file is read around the page cache. In longer presets a transaction also changes four times the pages that memory \
     holds: those that have left memory are read. Commits: the engine's B+tree over each way \
     to keep half-done changes out of a mapped file, and over the engine's own pool. The stores that keep them out as MMAPv1, SQLite or LMDB \
     do are this project's own, not those databases (`engines` has LMDB and SQLite themselves); node format, log and durability \
     are the same. Writers commit two keys at a time, far apart, each to its own pairs; one reader reads random keys \
     and checks every value. All data fits in memory. Then a separate process keeps committing, reports each \
     acknowledged commit, and is killed by SIGKILL while it commits. Its files are evicted from the page cache and \
     opened again; every pair is read and compared with the acknowledged commits. This is the end of a process, not a \
     power cut: the kernel still has the data of completed system calls. Written bytes are those that the store hands \
     to its files; the file system's journal comes on top.";

/// Conditions under which the answer of `safety` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "A device without a write cache that survives power loss: a sync takes milliseconds, and the number of commits that share one decides. \
     Stores with a log share; shadow paging syncs twice a commit.",
    "Larger commits: shadow paging copies the path to each changed page once a commit, so its cost for each key falls.",
    "Data larger than memory: every mapped store then stalls in page faults under its locks.",
    "Long readers: they keep shadow paging's pages and the log of user copy-on-write from being used again.",
];
