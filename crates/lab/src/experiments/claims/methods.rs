//! The methods that only `claims` has.

use crate::methods::{Family, Method};

/// The methods that only `claims` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("mmap-in-place", "mmap, in place", Family::Mapped).ready(),
    Method::new("mmap-copy", "mmap, copied out", Family::Mapped).ready(),
    Method::new("mmap-call", "mmap, touch, munmap", Family::Mapped),
    Method::new("mmap-call-one-page", "mmap, touch one page, munmap", Family::Mapped),
    Method::new("one-map", "one map of the file", Family::Mapped),
    Method::new("thousand-maps", "a thousand maps", Family::Mapped),
    Method::new("grow-mapped", "mapped file, growing", Family::Mapped),
    Method::new("mmap-private", "private map, mapped anew", Family::Mapped),
    Method::new("mmap-commit", "writable map, msync", Family::Mapped),
    Method::new("pwrite-fdatasync", "pwrite, fdatasync", Family::Buffered),
    Method::new("pread-dontcache", "pread RWF_DONTCACHE", Family::Buffered),
];
