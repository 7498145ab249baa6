//! The fixed texts of `rss` in the report: question, method and limits, the same for all figures.

/// The question that `rss` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str =
    "How much memory does each way of reading show, and which process is killed when memory runs out?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "resident memory with the largest data, mmap ÷ O_DIRECT";

/// How `rss` measures, as the report explains it.
pub(super) const METHOD: &str = "Threads read random pages of 4 KiB of the same data under the same limit: through a map, by read calls through the page cache, past it, \
     and through the engine's pool, whose size follows the limit. Memory settles first by each method's own reads. Every tenth of a second the kernel's counts of the process are read, RSS and \
     PSS, and its cgroup's, all that is charged and the part that is not inactive page cache (the working set of Kubernetes); the largest reading counts. RSS and PSS \
     contain some twenty megabytes of the measuring program. Pressure: in a cgroup of the lab's own one process reads in the same way while a neighbour allocates \
     memory and writes to it, until the kernel kills one of the two.";

/// Conditions under which the answer of `rss` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Several processes that map the same file: RSS counts its pages for each of them, PSS divides them.",
    "Another oom_score_adj: the kernel's choice between processes follows it before it follows their size.",
    "A pool that is small beside the limit, or that gives memory back under pressure: the engine's keeps what it was given.",
    "A map with huge pages, or one that is locked: its pages cannot be taken back one by one, or at all.",
];
