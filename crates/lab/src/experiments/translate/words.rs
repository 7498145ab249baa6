//! The fixed texts of `translate` in the report: question, method and limits, the same for all figures.

/// The question that `translate` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "Can a buffer pool match a map when everything is in memory?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "time of a lookup in memory, buffer pool ÷ mmap";

/// How `translate` measures, as the report explains it.
pub(super) const METHOD: &str = "Pages of 4 KiB that are all in memory, found in several ways: an array indexed by page id over frames in small and in huge pages, a hash \
     table (half full), pointers swizzled into the parent, a mapped file in memory with small and with huge pages; as a control \
     the hash table behind 64 locks with a pin on each page in use. A pool stands beside the map with pages of the same size. All but the map check whether the page is resident. `access` \
     follows a random cycle through all pages, one cache line of each; `lookup` looks up random keys in a B+tree, the next one \
     known only when the last value is. Nothing is evicted, so no pool pays for its replacement strategy. Each tag that is read is checked.";

/// Conditions under which the answer of `translate` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Page ids that are not dense: an array needs room for each, and a hash table or swizzled pointers gain.",
    "Huge pages: the fewer misses of the TLB, the more of the time is the tree's own.",
    "Eviction: a pool must then also know which pages are in use; the method with locks and pins shows the most expensive way.",
    "More threads: pins of the root are writes that all threads share.",
];
