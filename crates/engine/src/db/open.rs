//! Creates, opens and closes databases: the handle, its owner with its threads and locks, and the files.

pub(in crate::db) mod close;
pub(in crate::db) mod closing;
pub(in crate::db) mod disk_access;
pub(in crate::db) mod handle;
pub(in crate::db) mod opening;
pub(in crate::db) mod owner;
pub(crate) mod read_only;
pub(in crate::db) mod replay;
pub(in crate::db) mod stats_socket;
pub(in crate::db) mod stripes;
pub(in crate::db) mod unfinished;
pub(in crate::db) mod view;
pub(in crate::db) mod watched_directory;
