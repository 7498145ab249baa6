//! The methods that only `safety` has.

use crate::methods::{Family, Method};

/// The methods that only `safety` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("mmap-shared", "mmap, shared", Family::Mapped),
    Method::new("map-private", "mmap, private", Family::Mapped),
];
