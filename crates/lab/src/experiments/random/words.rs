//! The fixed texts of `random` in the report: question, method and limits, the same for all figures.

/// The question that `random` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "What do random 4 KiB reads cost when the data is larger than memory?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "rate of random reads, mmap ÷ explicit I/O, file";

/// How `random` measures, as the report explains it.
pub(super) const METHOD: &str = "Threads read blocks at seeded random offsets, other blocks in each trial because the layers below this machine may cache them, from data larger \
     than the memory they may use, from a cold start on; rates are taken after memory was full, latencies over the whole \
     trial. A trial of a map or of buffered reads goes on, for at most as long again, until memory was full for half of its time. The map loads one word of each page, as the paper's \
     benchmark loads one byte; read calls and the ring fetch the whole block. A word of each page is checked against the expected \
     content, while timed; fio checks nothing. The ring keeps its depth filled from one thread, with registered buffers. \
     Buffers, and the frames of the engine's pool, lie in small pages, like a map.";

/// Conditions under which the answer of `random` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "A faster device: when the device is the limit, all methods reach it, and only the CPU cost tells them apart.",
    "Data that fits into memory: then nothing is evicted and mmap needs no system call.",
    "Read-ahead: MADV_NORMAL and buffered reads depend on read_ahead_kb more than on anything else here.",
    "More CPUs: each shootdown interrupts every CPU that has used the mapping.",
    "Reclaim by kswapd (a ballast, as in the paper) instead of the faulting thread (a cgroup), or the other way round.",
];
