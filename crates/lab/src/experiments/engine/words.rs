//! The fixed texts of `engine` in the report: question, method and limits, the same for all figures.

/// The question that `engine` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "How fast is the engine, beside the raw device and beside LMDB and redb?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "gets by 64 tasks beyond memory, engine ÷ raw device";

/// How `engine` measures, as the report explains it.
pub(super) const METHOD: &str = "Each work is measured for the engine and, in the same round, for the raw device: a ring or pread pool on the engine's own \
     file or on one beside it. LMDB, and the other databases that were compiled in, do the same work with the same entries. Keys have 16 bytes and do not \
     compress, nor do values; every answer is checked whole while it is timed. Out of core, process and page cache together have the memory of one \
     cgroup, and the engine's cache lies within it; inner pages are in memory before the clock starts, and before gets by \
     many threads or zipfian ones each database has answered as many of them as its memory holds twice. Every trial is a separate process, and \
     one database at a time lies on the disk: trials that only read share it, one that writes begins with a fresh one. Durable commits and batches \
     are on the disk when they return; the mixes commit deferred. Where the files of a random load, or of data mostly deleted, are \
     measured, the engine is told to make them short, which it does by itself ten seconds after the last commit. A ratio is the engine's median over the other's of the same run.";

/// Conditions under which the answer of `engine` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "A larger cache, or data that fits: then the processor decides, and no longer the device.",
    "A faster device: the share of the software in each read grows.",
    "Skewed keys: uniform ones, as here, make the cache as useless as it can be.",
    "Other threads: gets in memory are measured with one and two, tasks on one executor thread.",
    "More CPUs: the executor, the database's own threads and the kernel's share them.",
];
