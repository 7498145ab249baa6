//! The methods that only `engines` has.

use crate::methods::{Family, Method};

/// The methods that only `engines` has, each with its id and title.
pub(super) static METHODS: &[Method] = &[
    Method::new("lmdb-readahead", "LMDB, read-ahead", Family::Mapped).shadow().database(),
    Method::new("sqlite-mmap", "SQLite, mmap", Family::Mapped).database(),
    Method::new("fjall", "fjall", Family::Buffered).database(),
    Method::new("bf-tree", "Bf-Tree", Family::Buffered).database(),
    Method::new("rocksdb", "RocksDB", Family::Buffered).database(),
    Method::new("rocksdb-mmap", "RocksDB, mmap", Family::Mapped).database(),
    Method::new("rocksdb-direct", "RocksDB, O_DIRECT", Family::Direct).database(),
];
