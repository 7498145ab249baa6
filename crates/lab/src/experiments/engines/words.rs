//! The fixed texts of `engines` in the report: question, method and limits, the same for all figures.

/// The question that `engines` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "What do whole databases make of it, with a map and without?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "reads of SQLite (YCSB C) beyond memory, mmap ÷ read calls";

/// How `engines` measures, as the report explains it.
pub(super) const METHOD: &str = "Each store is loaded with the same sorted entries (16-byte keys, values that do not compress), then runs YCSB's mixes in YCSB's \
     order A B C F D E, a scan, and durable commits of one entry each. Process and page cache together have the memory of one cgroup; \
     how much of it is the store's own cache follows its authors' advice and stands in the table of settings. Mixes: zipfian but for D, \
     each operation a separate request that sees the newest commit; the first third of a trial warms up, unmeasured. Durability: mixes commit \
     deferred (visible at once, a power cut may lose the last commits), loads and commits are on the disk when they return. Every answer \
     is checked whole: its key, its bytes, and that no read shows a value that was overwritten before the read began. Where all data is in memory every \
     entry is read once before the clock starts. Every repeat loads anew.";

/// Conditions under which the answer of `engines` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "More memory, or a slower disk: the choice of cached pages decides, and a store without its own cache leaves it to the kernel.",
    "Batches: stores that can load many keys at once (nofault's get_many, RocksDB's MultiGet) are asked one key at a time here.",
    "Longer runs: trees that merge in the background (RocksDB, fjall) push a part of the cost of writing behind the measured time.",
    "Larger commits: stores with one writer and two syncs a commit lose most with single entries.",
    "Threads: with one thread no store can have more than one read at the disk; sixteen, as here, hide a part of each wait.",
];
