//! The database as an application uses it: [`Db`], its [`Table`]s, [`Snapshot`]s, [`Transaction`]s and [`Batch`]es.
//!
//! Everything here is async and independent of the runtime: futures are plain, `Send`, and may be dropped at any point.
//! A call whose data is in memory completes in its first poll. [`crate::blocking`] has the same calls, under the same
//! names, without `await`.
//!
//! A database belongs to the process that opened it. In a process forked from that one every call fails with
//! [`Closed`](crate::error::ErrorKind::Closed), and dropping the inherited handles does nothing; it may open databases itself. A range gives the
//! entries that it had read before the fork, then fails.
//!
//! Four rooms, each of which uses only those after it: `api` has what an application calls, `open` makes and closes databases, `upkeep` is
//! the work that a database does by itself, `calls` carries calls out.

pub(crate) mod api;
pub(crate) mod calls;
pub(crate) mod open;
mod upkeep;

#[cfg(test)]
pub(crate) mod tests;

pub use self::api::backup::database_around;
pub use self::api::batch::Batch;
pub use self::api::change_applier::ChangeApplier;
pub use self::api::compact::{Compaction, Pace};
pub(crate) use self::api::compact::{compact, shrink};
pub use self::api::completions::Completions;
pub use self::api::indexed_table::IndexedTable;
pub use self::api::prometheus::write_prometheus;
pub use self::api::retry::TransactOptions;
pub(crate) use self::api::retry::transact;
pub use self::api::schema::{CompressionEstimate, TableTypes};
pub use self::api::snapshot::{Range, Snapshot};
pub use self::api::stats::{
    CompactionStats, Histograms, OrderStats, PackingStats, ShrinkEnding, Stats, TransactionStats,
};
#[cfg(feature = "stream")]
pub use self::api::stream::ItemStream;
pub use self::api::table::Table;
pub use self::api::tail::{ChangesSince, Position, Tail, TailEvent};
pub use self::api::transaction_handle::{Savepoint, Transaction, TransactionRange};
pub(crate) use self::api::typed_entries::{Entries, entries};
pub use self::api::typed_entries::{TypedEntries, TypedRange, TypedTransactionRange};
pub(crate) use self::api::typed_table::{In, View};
pub use self::api::typed_table::{TypedBatch, TypedSnapshot, TypedTable, TypedTransaction, TypedView};
pub use self::api::verify::{Problem, Verification};
pub use self::api::watch::{Change, Watch, WatchEvent};
pub use self::calls::bulk::BulkEntry;
pub use self::calls::catalog::TableList;
pub use self::open::handle::Db;
pub use self::open::stripes::data_bytes;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::open::stripes::parse as parse_stripes;
pub use self::open::unfinished::UnfinishedDb;
pub use crate::buffer_pool::{PoolStats, ReaderInfo};
pub use crate::histogram::{Bucket, Histogram};
pub use crate::wal::LogStats;
