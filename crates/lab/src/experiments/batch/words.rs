//! The fixed texts of `batch` in the report: question, method and limits, the same for all figures.

/// The question that `batch` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "How long does one request for many random pages take?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "rate of the largest cold request, fastest map ÷ fastest other";

/// How `batch` measures, as the report explains it.
pub(super) const METHOD: &str = "One thread answers one request after another; a request names 64, 512 or 4096 random pages of 4 KiB, and is done when a word of each \
     page has been checked. Cold: from data many times larger than memory, which is full when the clock starts, other pages in each request. Warm: from data \
     that fills a quarter of memory, read before, each page of a map in its page table and each page of the pool in the pool. The map is told RANDOM. WILLNEED and \
     POPULATE_READ are one call for each page, process_madvise one for each 1024; then the pages are touched in the order of the request. Threads \
     that share a request exist before it and wait at a barrier; waking them is part of the time. The ring has all pages of the request in flight, submitted \
     32 at a time; past the page cache it reads the device warm or cold. get_many is one call.";

/// Conditions under which the answer of `batch` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Other work for the thread: a ring and tasks leave it free while they wait, a touch does not.",
    "Many requests at a time: then the device is busy without batches, and threads cost more than they bring.",
    "A faster device: asking for pages one by one then costs more than reading them.",
    "Pages in order, or near each other: one hint or one read covers many.",
];
