//! The methods that only `translate` has.

use crate::methods::{Family, Method};

/// The methods that only `translate` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("array", "page-table array", Family::Pool).toned("t3").huge(),
    Method::new("hash", "hash table", Family::Pool).toned("t4").huge(),
    Method::new("swizzled", "swizzled pointers", Family::Pool).huge(),
    Method::new("mapped", "mapped file", Family::Mapped).ready(),
    Method::new("mapped-huge", "mapped file, huge pages", Family::Mapped).toned("t1").huge().ready(),
    Method::new("array-small", "page-table array, small pages", Family::Pool).toned("t5"),
    Method::new("hash-pinned", "hash table, locks and pins", Family::Pool).toned("t2").huge(),
];
