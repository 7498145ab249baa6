//! What an application calls. Uses the rooms below: `open`, `upkeep`, `calls`.

pub(in crate::db) mod backup;
pub(in crate::db) mod batch;
pub(in crate::db) mod change_applier;
pub(in crate::db) mod compact;
pub(in crate::db) mod completions;
pub(in crate::db) mod database;
pub(in crate::db) mod indexed_table;
pub(crate) mod load;
pub(in crate::db) mod maintenance;
pub(in crate::db) mod prometheus;
pub(in crate::db) mod reads;
pub(in crate::db) mod retry;
pub(in crate::db) mod schema;
pub(in crate::db) mod snapshot;
pub(in crate::db) mod stats;
#[cfg(feature = "stream")]
pub(in crate::db) mod stream;
pub(in crate::db) mod table;
pub(in crate::db) mod tail;
#[cfg(feature = "tokio")]
pub(in crate::db) mod tokio;
pub(in crate::db) mod transaction_handle;
pub(in crate::db) mod typed_entries;
pub(in crate::db) mod typed_table;
pub(crate) mod verify;
pub(in crate::db) mod watch;
pub(in crate::db) mod writes;
