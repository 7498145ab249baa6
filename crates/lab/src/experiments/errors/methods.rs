//! The methods that only `errors` has.

use crate::methods::{Family, Method};

/// The methods that only `errors` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("mmap-guarded", "mmap, guarded", Family::Mapped),
    Method::new("mmap-guarded-checked", "mmap, guarded, checked at every access", Family::Mapped),
    Method::new("pread-direct-checked", "pread O_DIRECT, checked at load", Family::Direct),
    Method::new("shadow-checked", "shadow paging, checked", Family::Mapped).shadow(),
    Method::new("mmap-readonly", "mmap, read-only", Family::Mapped),
    Method::new("engine-dirty", "engine, changed page", Family::Ring),
    Method::new("no-check", "mmap, no check", Family::Mapped).ready(),
    Method::new("check-every-access", "mmap, checked at every access", Family::Mapped).ready(),
    Method::new("check-every-load", "own memory, checked at load", Family::Direct).ready(),
];
