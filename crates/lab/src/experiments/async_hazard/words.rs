//! The fixed texts of `async` in the report: question, method and limits, the same for all figures.

/// The question that `async` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "Does `await` help when the file is mapped?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "time of async tasks on cold data, mmap ÷ awaited reads";

/// How `async` measures, as the report explains it.
pub(super) const METHOD: &str = "Eight files (or as many as set), a fixed amount of work: tasks on one single-threaded executor, a thread a file, or one \
     thread after another; over a map, with read calls (the executor hands them to its thread pool), or with direct reads \
     on a ring that the executor polls. A warm map is mapped anew, as in the source, and also touched before the clock starts, which is as \
     warm as the pool that it stands beside. A trial is one run; a dot each. `random-touch` makes seeded 4 KiB touches, the same in every file; \
     `sequential`, the source's, sums every 512th byte. The lateness of a 1 ms kernel timer on the executor's thread is \
     recorded; a tick that the executor never ran counts with its full lateness. Sums are checked.";

/// Conditions under which the answer of `async` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Read-ahead that is larger than a task's single read hides the wait in the sequential variant; random touches show it.",
    "Warm caches: without a page fault that waits, a mapping blocks no task.",
    "A multi-threaded executor moves the problem: it has as many tasks at a time as threads.",
    "Another platform, the source's first open question: the lab runs only on Linux; the source's figures for macOS stand above.",
];
