//! The methods that only `engine` has.

use super::works::{
    BEFORE_TASK, BF_TREE, DEVICE, DEVICE_BATCHES, DEVICE_OVERWRITE, FJALL, IDLE, LMDB_READ_AHEAD, NO_READER, POLLER,
    ROCKSDB, ROCKSDB_DIRECT,
};
use crate::methods::{Family, Method};

/// The methods that only `engine` has, each with its id and title. A device has nothing to warm.
pub(super) static METHODS: &[Method] = &[
    Method::new(POLLER, "nofault, executor's poller", Family::Pool).toned("t2").database(),
    Method::new(BEFORE_TASK, "nofault, before a task", Family::Pool).toned("t2").database(),
    Method::new(NO_READER, "nofault, no reader", Family::Pool).toned("t2").database(),
    Method::new(DEVICE, "device", Family::Ring).huge().ready(),
    Method::new(DEVICE_BATCHES, "device, batches", Family::Ring).toned("t3").huge().ready(),
    Method::new(DEVICE_OVERWRITE, "device, overwrites", Family::Ring).huge().ready(),
    Method::new(LMDB_READ_AHEAD, "LMDB, read-ahead", Family::Mapped).shadow().database(),
    Method::new(FJALL, "fjall", Family::Buffered).database(),
    Method::new(ROCKSDB, "RocksDB", Family::Buffered).database(),
    Method::new(ROCKSDB_DIRECT, "RocksDB, O_DIRECT", Family::Direct).database(),
    Method::new(BF_TREE, "Bf-Tree", Family::Buffered).database(),
    Method::new(IDLE, "idle executor", Family::Baseline),
];
