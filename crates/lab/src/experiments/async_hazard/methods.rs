//! The methods that only `async` has.

use crate::methods::{Family, Method};

/// The parameter with the number of files, each of which is read by a task.
const FILES: &str = "files";

/// The methods that only `async` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("async-mmap", "async mmap", Family::Mapped).in_flight_of(FILES),
    Method::new("async-mmap-yield", "async mmap, yielding", Family::Mapped).in_flight_of(FILES),
    Method::new("async-mmap-touched", "async mmap, touched before", Family::Mapped).in_flight_of(FILES).ready(),
    Method::new("async-read", "async read", Family::Buffered).in_flight_of(FILES),
    Method::new("async-uring", "async io_uring", Family::Ring).in_flight_of(FILES),
    Method::new("async-pool", "async nofault pool", Family::Pool).in_flight_of(FILES),
    Method::new("threads-mmap", "threads, mmap", Family::Mapped),
    Method::new("threads-read", "threads, read", Family::Buffered),
    Method::new("single-mmap", "one thread, mmap", Family::Mapped),
    Method::new("single-read", "one thread, read", Family::Buffered),
];
