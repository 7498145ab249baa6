//! The fixed texts of `replay` in the report: question, method and limits, the same for all figures.

/// The question that `replay` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "Would the recorded program gain from a map?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "p99 (or rate) of the recorded accesses, mmap ÷ O_DIRECT, file";

/// How `replay` measures, as the report explains it.
pub(super) const METHOD: &str = "The accesses of the trace on the lab's own data of the recorded size, by as many threads as the program had; a ring has \
     as many requests in flight on one thread. Each trial begins with a cold cache. Recorded: each access is due at its recorded time, and its latency \
     counts from then on. Fast: a thread makes its next access when the last has ended, from the start again at the end. A map loads the first word of \
     each page and stores the bytes, under a latch of the page, and a sync is msync; calls move the recorded bytes, and a sync is fdatasync; O_DIRECT \
     and the ring move whole blocks of 4 KiB around them. Not equal: without a sync in the trace, writes of a map and of buffered calls are still in \
     memory when they have ended, writes by O_DIRECT are at the device; and O_DIRECT has no cache, where a program would have \
     its own. Every trial makes the same accesses: a cache below this machine serves the later ones faster, and interleaved repeats spread that over \
     all methods.";

/// Conditions under which the answer of `replay` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "The recording: under strace each call takes longer, so the recorded pace is slower than the program's own.",
    "A recording of page faults (record --faults) has the misses of the program's map alone, each as a read: accesses to pages that were mapped are not in it.",
    "Memory (--memory): with all data in memory, the page cache answers.",
    "A program that is rebuilt around a ring would have more requests in flight than it had threads: `random` measures its reads so, as a curve.",
    "A buffer pool: the methods past the page cache read a block again each time; `random` measures the reads through the engine's pool.",
];
