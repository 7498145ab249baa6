//! The fixed texts of `stalls` in the report: question, method and limits, the same for all figures.

/// The question that `stalls` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "Can one work around the stalls of a mapping?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "rate in an order known ahead, best map ÷ reads in flight";

/// How `stalls` measures, as the report explains it.
pub(super) const METHOD: &str = "One thread accesses pages and times each access with the work-around's own calls. Timed apart are waits of a \
     thread that has no other work left, and work done once beforehand. Ahead: random 4 KiB pages of data larger than \
     memory, in an order that is known as many pages ahead as the depth says; hints, calls and helper threads use \
     that knowledge, and a ring has as many reads in flight and hands the pages over in order. With mincore and \
     RWF_NOWAIT the thread first checks whether a page is in memory, and gives absent pages to helpers. Fits: a \
     quarter of the memory is touched at random while a second thread reads the rest of the file through the page \
     cache. Leaf scan: the engine scans its tree from a cold pool, with and without prefetching the next leaves; the same tree \
     over a mapped file is scanned with no hint, told RANDOM, and told RANDOM with the leaves to come asked for (WILLNEED, as many as the depth says). In \
     both files the leaves lie in the order of their keys, which read-ahead of the kernel likes best. But for the scan without a hint, each \
     map is advised that access is random.";

/// Conditions under which the answer of `stalls` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "An order that is not known ahead: then hints and helpers are of no use, and only probing or reads in flight are left.",
    "More CPUs than helper threads: here they may compete with the thread they should help.",
    "Data that fits and no background load: then mlock, or nothing at all, is enough.",
    "Leaves that lie scattered, as random inserts leave them: then read-ahead of the kernel brings pages that the scan does not need, and only asking for the \
     leaves to come is left.",
    "A device with longer waits: hints that only start a read gain more, calls that wait lose more.",
];
