//! The fixed texts of `async` in the report: question, method and limits, the same for all figures.

/// The question that `async` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "Does `await` help when the file is mapped?";

/// How `async` measures, as the report explains it.
pub(super) const METHOD: &str = "Eight files (or as many as set), a fixed amount of work: tasks on one single-threaded executor, a thread a file, or one \
     thread after another; over a map, with read calls (the executor hands them to its thread pool), or with direct reads \
     on a ring that the executor polls. A trial is one run; a dot each. `random-touch` makes seeded 4 KiB touches, the same in every file; \
     `sequential`, the source's, sums every 512th byte. A kernel timer of 1 ms on the executor's thread counts how late it is \
     served; a tick that never got its turn counts as late as it was. Sums are checked.";

/// Conditions under which the answer of `async` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Read-ahead that is larger than what a task reads at a time hides the wait in the sequential variant; random touches show it.",
    "Warm caches: without a page fault that waits, a mapping blocks nobody.",
    "A multi-threaded executor moves the problem: it has as many tasks at a time as threads.",
    "Another platform, the source's first open question: the lab runs on Linux alone; what the source found on macOS stands above.",
];
