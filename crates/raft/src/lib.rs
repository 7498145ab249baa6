//! Consensus on one nofault database: the log store and the state machine of [openraft](https://docs.rs/openraft) 0.9 with its
//! feature `storage-v2`. openraft decides on the entries; the application brings its network, its requests and their effects.
//!
//! Log, vote and state of a node, or of many groups on one node, lie in one [`nofault::Db`], so their commits have one
//! order, and a power cut leaves a prefix of it:
//!
//! | openraft asks for | here |
//! |---|---|
//! | entries that are durable when the callback is called | one deferred commit; a task awaits the group of the log, which appends in flight share |
//! | a durable vote | the same, awaited |
//! | truncate, purge | deletes of the range, deferred: later writes are behind them in the order |
//! | apply | one deferred commit for the changes and the last applied log id |
//! | a snapshot | a file with the rows of the state's tables as of one moment, written while entries are applied |
//! | install a snapshot | the rows go into new tables; one durable commit makes them the state |
//!
//! # Why snapshots are rows and not a backup
//! [`Db::backup`](nofault::Db::backup) copies all of a database: with the log and the vote, which must not travel, and as a folder of files.
//! openraft moves a stream in which it can seek, and the receiver has a database with other groups in it
//! to go on with. So a snapshot has the rows of the state's tables only, read from a snapshot of the database, in frames with checksums: as dense as
//! the rows, and for any page size and compression at the receiver.
//!
//! # Example
//! A node of one. With more, `raft.add_learner` and `raft.change_membership` follow, and `Network` sends: `examples/cluster` is a
//! whole key-value service of several processes.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//!
//! use nofault::{Db, Transaction, settings::Settings};
//! use nofault_raft::{Application, SnapshotFile, StateTables};
//! use openraft::{BasicNode, Config, Raft};
//! # use openraft::error::{InstallSnapshotError, RPCError, RaftError};
//! # use openraft::network::RPCOption;
//! # use openraft::raft::*;
//!
//! openraft::declare_raft_types!(
//!     pub Types: D = (String, String), R = Option<Vec<u8>>, SnapshotData = SnapshotFile,
//! );
//!
//! struct Swap;
//!
//! impl Application<Types> for Swap {
//!     async fn apply(
//!         &self,
//!         tables: &StateTables,
//!         change: &Transaction,
//!         (key, value): &(String, String),
//!     ) -> nofault_raft::Result<Option<Vec<u8>>> {
//!         let table = tables.table("values")?;
//!         let before = change.get(table, key).await?;
//!         change.put(table, key, value)?;
//!         Ok(before)
//!     }
//!
//!     fn no_answer(&self) -> Option<Vec<u8>> {
//!         None
//!     }
//! }
//! # #[derive(Clone)]
//! # struct Network;
//! # impl openraft::RaftNetworkFactory<Types> for Network {
//! #     type Network = Self;
//! #     async fn new_client(&mut self, _: u64, _: &BasicNode) -> Self { Self }
//! # }
//! # type RpcFailure<E = openraft::error::Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;
//! # impl openraft::RaftNetwork<Types> for Network {
//! #     async fn append_entries(&mut self, _: AppendEntriesRequest<Types>, _: RPCOption) -> Result<AppendEntriesResponse<u64>, RpcFailure> { unreachable!() }
//! #     async fn vote(&mut self, _: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, RpcFailure> { unreachable!() }
//! #     async fn install_snapshot(&mut self, _: InstallSnapshotRequest<Types>, _: RPCOption) -> Result<InstallSnapshotResponse<u64>, RpcFailure<InstallSnapshotError>> { unreachable!() }
//! # }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # let settings = Settings { cache_bytes: 16 << 20, log_bytes: 4 << 20, ..Settings::default() };
//! let db = Db::open_or_create(folder.join("db"), &settings).await?;
//! let (log, state) = nofault_raft::open(&db, "shop", &["values"], folder.join("snapshots"), Swap).await?;
//! let reader = state.reader();
//! let raft = Raft::new(1, Arc::new(Config::default().validate()?), Network, log, state).await?;
//! raft.initialize(BTreeMap::from([(1, BasicNode::new("127.0.0.1:4000"))])).await?;
//! raft.wait(None).current_leader(1, "a leader").await?;
//!
//! raft.client_write(("apples".into(), "12".into())).await?; // durable on a majority of the nodes
//! raft.ensure_linearizable().await?;
//! assert_eq!(reader.view().get("values", "apples").await?, Some(b"12".to_vec()));
//! raft.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Promises
//! - Everything acknowledged by a callback or a vote survives a power cut, and log, vote and state are then as of one moment
//!   (`tests/power_cuts.rs` cuts the power at each step).
//! - A leader that restarts leads again only after an election: its state may lack entries whose clients have received an answer.
//! - The end of a core, by an error of the storage or a panic, is known: see [`ended`]. The group can then be opened again in the same process.
//! - No call blocks the executor. `append` returns when readers see the entries, without the disk.
//! - A snapshot that is damaged, that the database does not name, or that the log does not follow, is never offered; a damaged one, or one of another
//!   group than the state's [id](StateTables::name_group), is never installed.
//!
//! Types of requests, nodes and ids are written by [postcard](https://docs.rs/postcard): their fields may not be skipped, flattened or
//! untagged, and a change of a type is a change of the format. The futures of snapshots need a tokio runtime.
//!
//! A node that has lost acknowledged entries, because its folder was emptied or copied back from a backup, or its disk lied about durable writes, may not come
//! back: it is to be removed from the members, and added again with an emptied folder. A network that lets nodes greet each other, as [`Peers`] says,
//! refuses such a node wherever others have seen the lost entries. Not promised: that every such node is found out, and a network that does not do so finds none.

#![warn(missing_debug_implementations)]

mod codec;
mod error;
mod identity;
mod log_store;
mod peers;
mod running;
mod snapshot_file;
mod snapshot_format;
mod snapshots;
mod state;
mod state_machine;

use std::path::Path;

use nofault::Db;
use openraft::{Entry, RaftTypeConfig};

pub use crate::error::{Error, Result};
pub use crate::identity::GroupId;
pub use crate::log_store::LogStore;
pub use crate::peers::{Greeting, Peers};
pub use crate::running::{elect_later, end_of, ended, while_running};
pub use crate::snapshot_file::SnapshotFile;
pub use crate::state::{StateReader, StateTables, StateView};
pub use crate::state_machine::{Application, SnapshotBuilder, StateMachine};

/// Opens the log store and the state machine of a node in one group, for `Raft::new`. Missing parts are created: the tables of the database, whose
/// names begin with `group` and a slash, and `snapshots`, a folder of this group alone for files of snapshots. `tables` are the tables of the
/// replicated state, the same on every node; with a table more, a node starts with that table empty.
///
/// Reads all of the complete snapshot, to be sure of it. The folder of the snapshots is locked until the log store, the state machine and its builders are
/// dropped. Opening a group at the same time with another folder is not noticed, and damages it.
///
/// # Errors
/// `Busy` while the group is open, for a moment after `Raft::shutdown` as well. `Foreign` when the folder has a snapshot of another group: nothing is
/// removed from it. `InvalidCall` for a group or a table without a name, or with a slash in it. `Damaged` when the database holds other rows under these names. `File`
/// when the folder cannot be used. Otherwise as [`Db::open_or_create_table`].
pub async fn open<C, A>(
    db: &Db,
    group: &str,
    tables: &[&str],
    snapshots: impl AsRef<Path>,
    application: A,
) -> Result<(LogStore<C>, StateMachine<C, A>)>
where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFile>,
    A: Application<C>,
{
    for name in tables.iter().chain([&group]) {
        if name.is_empty() || name.contains('/') {
            let what = format!("{name:?} cannot name a group or a table of its state: it is empty or has a slash");
            return Err(Error::InvalidCall(what));
        }
    }
    let log = db.open_or_create_table(&format!("{group}/log")).await?;
    let meta = db.open_or_create_table(&format!("{group}/meta")).await?;
    let names = tables.iter().map(|name| (*name).to_owned()).collect();
    let folder = snapshots.as_ref().to_path_buf();
    let state = StateMachine::open(group, names, meta.clone(), folder, application).await?;
    let log = LogStore::open(log, meta, state.last_applied(), state.snapshots().lock(), state.membership()).await?;
    state.snapshots().remove_before(log.purged().await?.as_ref()).await?;
    Ok((log, state))
}
