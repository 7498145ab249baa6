//! The fixed texts of `errors` in the report: question, method and limits, the same for all figures.

/// The question that `errors` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "What happens when I/O fails, and what does it cost to notice?";

/// How `errors` measures, as the report explains it.
pub(super) const METHOD: &str = "Each fault is made for real and met by a process of its own: a file cut under an open store, a file system of the lab's own (FUSE) \
     that fails one page and later delivers it again, a bit flipped on disk, a bit flipped in memory through a pointer that points \
     where it should not. The process reads half of 256 pages, the fault comes, it reads all; then the repair, and all once more; \
     after a stray write it syncs, and another process reads what is on disk. What is right is judged by the lab, what was noticed by the \
     store alone. Plain mappings are used as they are; guarded ones turn SIGBUS into an error; checked ones also verify a page's \
     checksum at every access. Checksum-cost: one thread loads a word of random pages, all in memory.";

/// Conditions under which the answer of `errors` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "Pages that are read whole anyway: the checksum's bytes are then in the CPU's caches, and its price falls to the arithmetic.",
    "Data that does not fit in memory: where every access is a load, both ways check equally often.",
    "A file system with checksums of its own (btrfs, ZFS): it finds what flips on disk, and tells a mapping by SIGBUS.",
    "A read-only mapping: a stray write ends the process instead of the data.",
];
