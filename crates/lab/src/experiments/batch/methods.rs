//! The methods of `batch`. All answer as many pages at a time as a request has. Each is ready when a warm trial starts: the
//! pages of a map are in its page table, the pool's pages in the pool, and calls need nothing in the process.

use super::PAGES;
use crate::methods::{Family, Method};

const fn method(id: &'static str, title: &'static str, family: Family) -> Method {
    Method::new(id, title, family).batched().ready().in_flight_of(PAGES)
}

/// The methods that only `batch` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    method("batch-touch", "mmap, touch", Family::Mapped),
    method("batch-willneed", "mmap, WILLNEED then touch", Family::Mapped).toned("t1"),
    method("batch-process-madvise", "mmap, process_madvise then touch", Family::Mapped).toned("t1"),
    method("batch-populate", "mmap, POPULATE_READ", Family::Mapped).toned("t2"),
    method("batch-touch-threads", "mmap, touch by threads", Family::Mapped).toned("t2"),
    method("batch-pread", "pread loop", Family::Buffered),
    method("batch-pread-threads", "pread by threads", Family::Buffered),
    method("batch-ring", "io_uring O_DIRECT", Family::Ring),
    method("batch-ring-buffered", "io_uring, page cache", Family::Buffered).toned("t4"),
    method("batch-get-many", "nofault get_many", Family::Pool),
];
