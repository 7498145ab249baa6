//! The methods that only `access` has.

use crate::methods::{Family, Method};

/// The methods that only `access` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("pwrite-buffered", "pwrite buffered", Family::Buffered),
    Method::new("pwrite-direct", "pwrite O_DIRECT", Family::Direct),
    Method::new("pwrite-dsync", "pwrite O_DIRECT, RWF_DSYNC", Family::Direct).durable(),
    Method::new("uring-dsync", "io_uring O_DIRECT, RWF_DSYNC", Family::Ring).durable().by_depth().batched(),
    Method::new("msync", "mmap, msync", Family::Mapped),
    Method::new("fdatasync", "pwrite buffered, fdatasync", Family::Buffered),
    Method::new("dsync-direct", "O_DIRECT, RWF_DSYNC", Family::Direct).durable(),
    Method::new("dsync-buffered", "buffered, RWF_DSYNC", Family::Buffered).durable(),
    Method::new("fdatasync-clean", "fdatasync, nothing dirty", Family::Buffered),
];
