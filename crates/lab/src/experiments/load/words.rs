//! The fixed texts of `load` in the report: question, method and limits, the same for all figures.

/// The question that `load` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "How does a large file come into memory fastest, and what if it does not fit?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "time to load a cold file, fastest map ÷ fastest other";

/// How `load` measures, as the report explains it.
pub(super) const METHOD: &str = "One thread loads a file of one piece, as the weights of a model, and checks a word of each page. Once, cold and warm: the time from the \
     first call to the last checked page, mapping and allocating included; the file fits in memory. WILLNEED and POPULATE_READ (as the flag MAP_POPULATE) are one call for the \
     whole file. Read calls and direct reads are of 1 MiB, the latter eight at a time on a ring; the memory behind them is the process's own, in pages of \
     4 KiB, for direct reads also in huge pages. Direct reads take the data from the device in both. Cyclic: the file is read from front to back over and over, within a memory limit, after one pass before the clock; a word of each cache line is used. WILLNEED asks \
     for eight blocks of 1 MiB ahead, and the ring has eight in flight. The method that keeps a part has as much of the file in its own memory as half of the limit \
     allows, and reads the rest past the page cache.";

/// Conditions under which the answer of `load` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Several processes that load the same file: a map and the page cache hold it once for all of them.",
    "A faster device, or a striped one: then one thread that copies or faults is the limit.",
    "Large folios: a fault then maps many pages, and a touched map is as fast as a populated one.",
    "Only a part of the file is used: a map reads that part.",
];
