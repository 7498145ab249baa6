//! The fixed texts of `claims` in the report: question, method and limits, the same for all figures.

/// The question that `claims` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "Which of the claims for and against mmap hold on this machine?";

/// How `claims` measures, as the report explains it.
pub(super) const METHOD: &str = "Small trials for claims that no other experiment decides; each claim names the trials that decide it. Cached reads: one thread reads a file \
     that is in the page cache in units of one size, and adds up a word of each cache line, in the map, or in a buffer that it copied \
     or read into. Calls: threads map a part of 1 MiB of a cached file, touch it and unmap it, or read it. Private map: pages spread over it are \
     changed, then it is mapped anew, which is timed. Commits: whole pages of a file are changed and made durable. Long reader: \
     durable commits of 500 updates each, with and without a reader that stays from the first to the last; growth counts file and memory.";

/// Conditions under which the answer of `claims` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Another kernel: faults, mapping calls and uncached buffered reads change from release to release.",
    "Virtualization: a page fault in a nested guest costs several times the bare machine's, a system call hardly more.",
    "Larger folios in the page cache: one fault then maps many pages, which favours maps of cached data.",
];
