//! The methods that only `folios` has.

use crate::methods::{Family, Method};

/// The method that touches page after page through a new map.
pub(super) const IN_ORDER: &str = "mmap-in-order";
/// The method that touches pages in random order through a new map.
pub(super) const AT_RANDOM: &str = "mmap-at-random";
/// The method that uses read calls, without a map.
pub(super) const CALLS: &str = "pread-cached";

/// The methods that only `folios` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new(IN_ORDER, "mmap, in order", Family::Mapped),
    Method::new(AT_RANDOM, "mmap, at random", Family::Mapped).toned("t1"),
    Method::new(CALLS, "pread, cached", Family::Buffered),
];
