//! The fixed texts of `folios` in the report: question, method and limits, the same for all figures.

/// The question that `folios` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "What does a page fault cost by the size of the folio that holds the page?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "time to fault in a cached page, largest folios ÷ smallest";

/// How `folios` measures, as the report explains it.
pub(super) const METHOD: &str = "A file without a name is written in calls of 4 KiB to 2 MiB, so that a file system with large folios caches each call as one folio, and \
     synced. The real folio of every page is read from /proc/kpageflags: a size is not measured unless nine tenths of the pages \
     have it, and the record then says which sizes they have. Then one thread maps the file, loads and checks the first word of each page, and maps it \
     anew; only the loads are timed. Faults are counted by the kernel for the process. `pread, cached` is the control: a call for each page.";

/// Conditions under which the answer of `folios` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Another file system: folios are as large as it allows, and with 4 KiB only there is nothing to gain.",
    "How the data came into the cache: random reads with that advice bring folios of 4 KiB, folios of sequential reads grow with the read-ahead.",
    "Sparse touches: the further pages that a fault maps are of use only where they are touched too.",
    "Memory that is full: a large folio is evicted as a whole, and `eviction` measures the cost of that.",
];
