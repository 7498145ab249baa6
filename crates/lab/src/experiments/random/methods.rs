//! The methods that only `random` has.

use crate::methods::{Family, Method};

/// The methods that only `random` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("fio-psync", "fio psync", Family::Baseline).baseline_of(Family::Direct),
    Method::new("pool-get-many", "nofault pool, get_many", Family::Pool).by_depth().batched(),
];
