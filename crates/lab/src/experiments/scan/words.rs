//! The fixed texts of `scan` in the report: question, method and limits, the same for all figures.

/// The question that `scan` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "How fast can a file be scanned, from one device and from several?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "scan rate, mmap ÷ explicit I/O, file";

/// How `scan` measures, as the report explains it.
pub(super) const METHOD: &str = "The data is read from front to back, again from the front until the time is over: maps and read calls by several threads, \
     each on its own part (128 MiB, as the paper's benchmark does), the ring and fio by one thread with large blocks and \
     many in flight. The ring, fio and the engine's pool run with buffers in huge pages and in 4 KiB pages, as scattered pages split large \
     requests; with a map, whose pages are small, only the latter are compared, with as many requests in flight as the map has threads. \
     Striped: consecutive stripes lie on consecutive files or devices. A word of each page is checked; fio checks nothing.";

/// Conditions under which the answer of `scan` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "More devices: explicit I/O can use them, mmap is bounded by page faults and by the one thread that evicts.",
    "Read-ahead: it decides how much mmap reads at a time.",
    "Buffers in small pages: large direct reads into scattered pages can be limited by the device's segment count.",
];
