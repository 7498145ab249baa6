//! The methods that only `eviction` has.

use crate::methods::{Family, Method};

/// The methods that only `eviction` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("mmap-one-map", "fault, one map", Family::Mapped),
    Method::new("mmap-own", "fault, a map a thread", Family::Mapped),
    Method::new("pread-cached", "pread, cached", Family::Buffered),
    Method::new("mmap-unmap-page", "map and unmap a page", Family::Mapped),
    Method::new("mmap-unmap-batch", "map and unmap 64 pages", Family::Mapped),
];
