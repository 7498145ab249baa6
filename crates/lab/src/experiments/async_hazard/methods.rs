//! The methods that only `async` has.

use crate::methods::{Family, Method};

/// The methods that only `async` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("async-mmap", "async mmap", Family::Mapped),
    Method::new("async-mmap-yield", "async mmap, yielding", Family::Mapped),
    Method::new("async-read", "async read", Family::Buffered),
    Method::new("async-uring", "async io_uring", Family::Ring),
    Method::new("async-pool", "async nofault pool", Family::Pool),
    Method::new("threads-mmap", "threads, mmap", Family::Mapped),
    Method::new("threads-read", "threads, read", Family::Buffered),
    Method::new("single-mmap", "one thread, mmap", Family::Mapped),
    Method::new("single-read", "one thread, read", Family::Buffered),
];
