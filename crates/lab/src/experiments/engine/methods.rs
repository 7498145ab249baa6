//! The methods that only `engine` has.

use super::works::{DEVICE, DEVICE_BATCHES, DEVICE_OVERWRITE, IDLE, NO_READER, POLLER};
use crate::methods::{Family, Method};

/// The methods that only `engine` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new(POLLER, "nofault, executor's poller", Family::Pool).toned("t2"),
    Method::new(NO_READER, "nofault, no reader", Family::Pool).toned("t2"),
    Method::new(DEVICE, "device", Family::Ring),
    Method::new(DEVICE_BATCHES, "device, batches", Family::Ring).toned("t3"),
    Method::new(DEVICE_OVERWRITE, "device, overwrites", Family::Ring),
    Method::new(IDLE, "idle executor", Family::Baseline),
];
