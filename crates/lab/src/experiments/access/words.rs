//! The fixed texts of `access` in the report: question, method and limits, the same for all figures.

/// The question that `access` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "What does one thread get from each way to read, overwrite and sync?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "reads of one thread, one at a time, mmap ÷ O_DIRECT, file";

/// How `access` measures, as the report explains it.
pub(super) const METHOD: &str = "One thread, random 4 KiB blocks, data larger than memory. Reads: a map and buffered calls, both advised that access is random, \
     direct calls, and a ring that submits a batch and waits for it. Overwrites: whole blocks, with their present content, and a sync \
     every so many writes (the settings below), or each write durable by itself. Sync-cost: one block made durable each time. \
     Open-loop: each method first finds its closed-loop rate in the trial's first quarter, then reads at a share of that rate, timed from \
     the moment when each read was due.";

/// Conditions under which the answer of `access` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "A device with a write cache that survives power loss: syncs become cheap, and overwrites are judged by their rate alone.",
    "Data in memory: then the page cache answers, and O_DIRECT is the slow one.",
    "A higher fixed rate: close to saturation, open-loop latency grows without bound while the closed loop looks the same.",
];
