//! The methods of `scan`, where they differ from the shared ones: the buffers of a ring, of fio and of the pool lie in huge
//! pages, unless a trial's parameters say otherwise.

use crate::methods::{Family, Method};

/// The methods of `scan`, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("uring-direct", "io_uring O_DIRECT", Family::Ring).by_depth().huge(),
    Method::new("fio-uring", "fio io_uring", Family::Baseline).baseline_of(Family::Ring).by_depth().huge(),
    Method::new("pool", "nofault pool", Family::Pool).huge(),
];
