//! The methods that only `engine` has.

use super::works::{DEVICE, DEVICE_BATCHES, DEVICE_OVERWRITE, IDLE, NO_READER, POLLER};
use crate::methods::{Family, Method};

/// The methods that only `engine` has, each with its id and title. A device has nothing to warm.
pub(super) static METHODS: &[Method] = &[
    Method::new(POLLER, "nofault, executor's poller", Family::Pool).toned("t2").database(),
    Method::new(NO_READER, "nofault, no reader", Family::Pool).toned("t2").database(),
    Method::new(DEVICE, "device", Family::Ring).huge().ready(),
    Method::new(DEVICE_BATCHES, "device, batches", Family::Ring).toned("t3").huge().ready(),
    Method::new(DEVICE_OVERWRITE, "device, overwrites", Family::Ring).huge().ready(),
    Method::new(IDLE, "idle executor", Family::Baseline),
];
