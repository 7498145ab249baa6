//! The fixed texts of `eviction` in the report: question, method and limits, the same for all figures.

/// The question that `eviction` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "Which of the three bottlenecks holds up the eviction of mapped pages?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "what holds mapped reads up under a cgroup limit, file";

/// How `eviction` measures, as the report explains it.
pub(super) const METHOD: &str = "`faults` and `shootdowns` each measure one mechanism, over a file in memory: the CPU time of a fault of a cached page by threads, in one \
     map for all, in a map for each, and as a read call; and the time to fault a page in and take it out of the map again, alone and while \
     other CPUs run threads of the same process. The others start with memory full: a cgroup makes the faulting threads evict, a \
     ballast makes kswapd do it. `random` reads 4 KiB blocks, `scan` reads front to back; through a map, through the page cache without \
     one (evicted, but never shot down), and direct (never evicted). A control pins all threads to one CPU. Which bottleneck binds is an \
     estimate from these costs; its rule stands with it.";

/// Conditions under which the answer of `eviction` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "More CPUs: each shootdown then interrupts more of them, and more threads meet in one page table.",
    "Several NUMA nodes: each has its own kswapd.",
    "A faster device: the cost of reclaim is hidden while threads wait for reads.",
    "Large folios: where read-ahead fills the cache with them, one eviction and one interrupt serve many pages.",
];
