//! The methods of `load`. Each has the same blocks before it: the whole file when it is loaded once, the next ones in a
//! cycle. A map on one thread cannot read them at the same time by itself; with a hint the kernel does.

use super::BLOCKS;
use crate::methods::{Family, Method};

const fn method(id: &'static str, title: &'static str, family: Family) -> Method {
    Method::new(id, title, family).batched().in_flight_of(BLOCKS)
}

/// Touches each page of a map.
pub(super) const TOUCH: &str = "load-touch";
/// Asks for pages of a map by MADV_WILLNEED, then touches them.
pub(super) const WILLNEED: &str = "load-willneed";
/// Maps all pages by one call of MADV_POPULATE_READ, then touches them.
pub(super) const POPULATE: &str = "load-populate";
/// Reads through the page cache into memory of the process.
pub(super) const READ: &str = "load-read";
/// Reads past the page cache into memory of the process.
pub(super) const DIRECT: &str = "load-direct";
/// Keeps as much of the file in memory of the process as half of the limit allows, and reads the rest past the page cache.
pub(super) const KEPT: &str = "load-kept";

/// The methods that load the file once, each with the pages of its memory where these are a choice.
pub(super) const ONCE: [(&str, &str); 6] =
    [(TOUCH, ""), (WILLNEED, ""), (POPULATE, ""), (READ, ""), (DIRECT, "small"), (DIRECT, "huge")];
/// The methods that read the file again and again.
pub(super) const CYCLIC: [(&str, &str); 5] =
    [(TOUCH, ""), (WILLNEED, ""), (READ, ""), (DIRECT, "small"), (KEPT, "small")];

/// Whether a method reads past the page cache.
pub(super) fn is_direct(method: &str) -> bool {
    [DIRECT, KEPT].contains(&method)
}

/// The methods that only `load` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    method(TOUCH, "mmap, touch", Family::Mapped),
    method(WILLNEED, "mmap, WILLNEED then touch", Family::Mapped).toned("t1"),
    method(POPULATE, "mmap, POPULATE_READ", Family::Mapped).toned("t2"),
    method(READ, "read calls", Family::Buffered),
    method(DIRECT, "io_uring O_DIRECT", Family::Ring),
    method(KEPT, "io_uring O_DIRECT, a part kept", Family::Pool),
];
