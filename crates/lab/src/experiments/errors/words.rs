//! The fixed texts of `errors` in the report: question, method and limits, the same for all figures.

/// The question that `errors` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "What happens when I/O fails, and what does it cost to notice?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "end of a process with a plain map when a read fails";

/// How `errors` measures, as the report explains it.
pub(super) const METHOD: &str = "Each fault is made for real and happens in a separate process: a file cut under an open store, a file system \
     of the lab's own (FUSE) that fails one page and later delivers it again, a bit flipped on disk, a bit flipped in \
     memory through a stray pointer. The process reads half of 256 pages; the fault is made, and the process reads \
     all pages; then the fault is repaired, and it reads all pages again. After a stray write the process syncs, and \
     another process reads the pages from disk. The lab judges which pages are right; only the store's own errors and \
     signals count as detection. Plain mappings are used as they are; guarded ones turn SIGBUS into an error; checked \
     ones also verify a page's checksum at every access. Checksum-cost: one thread loads a word of random pages, all \
     in memory.";

/// Conditions under which the answer of `errors` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Pages that are read whole anyway: the checksum's bytes are then in the CPU's caches, and its cost falls to the arithmetic.",
    "Data that does not fit in memory: where every access is a load, both ways check equally often.",
    "A file system with its own checksums (btrfs, ZFS): it detects flipped bits on disk, and a mapping gets SIGBUS.",
    "A read-only mapping: a stray write ends the process instead of the data.",
];
