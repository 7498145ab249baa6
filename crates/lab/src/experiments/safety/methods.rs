//! The methods that only `safety` has.

use crate::methods::{Family, Method};

/// The methods by their ids.
pub(super) static METHODS: &[Method] = &[
    Method::new("mmap-shared", "mmap, shared", Family::Mapped),
    Method::new("map-private", "mmap, private", Family::Mapped),
];
