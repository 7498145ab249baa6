//! The methods that only `stalls` has.

use crate::methods::{Family, Method};

/// The methods that only `stalls` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("mmap-willneed", "mmap, MADV_WILLNEED", Family::Mapped),
    Method::new("mmap-readahead", "mmap, read-ahead calls", Family::Mapped),
    Method::new("mmap-populate-ahead", "mmap, MADV_POPULATE_READ", Family::Mapped),
    Method::new("mmap-helpers", "mmap, helper threads", Family::Mapped),
    Method::new("mmap-populate", "mmap, populated first", Family::Mapped),
    Method::new("mmap-mlock", "mmap, mlock", Family::Mapped),
    Method::new("mmap-mincore", "mmap, mincore and helpers", Family::Mapped),
    Method::new("mmap-nowait", "mmap, RWF_NOWAIT and helpers", Family::Mapped),
    Method::new("pool-frames", "its own memory", Family::Pool),
    Method::new("engine-scan", "engine, leaf scan", Family::Ring),
    Method::new("engine-scan-noprefetch", "engine, leaf scan without prefetch", Family::Ring),
    Method::new("mmap-scan-normal", "mapped tree, NORMAL", Family::Mapped),
    Method::new("mmap-scan-random", "mapped tree, RANDOM", Family::Mapped),
    Method::new("mmap-scan-willneed", "mapped tree, WILLNEED ahead", Family::Mapped),
];
