//! The handle of a database, [`Db`]: what it holds, and how it ends.

use std::sync::Arc;

use super::close::closed;
use super::owner::OwnerHandle;
use super::view::View;
use crate::buffer_pool::BufferPool;
use crate::codec::Compression;
use crate::db::calls::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::pages::Store as _;
use crate::sync::background;
use crate::wal::Log;

/// The core of a database on disks.
pub(in crate::db) type TheCore = Core<BufferPool, Log>;

/// A database. Cloning gives another handle to the same database; it is closed when the last handle, and everything
/// obtained from it, is gone, and the large commits that outlive their dropped futures have ended.
///
/// End with [`Db::close`], which reports whether closing worked. When the last handle is dropped instead, that thread
/// waits for one write of the log at most, so that commits that were [`Durability::Deferred`](crate::Durability::Deferred) are durable; a dedicated
/// thread then makes the checkpoint and closes the files. If the process ends before, the next opening replays the log.
/// Opening the folder again in this process waits until it is closed. (A handle of [`crate::blocking`] waits for
/// all of this when it is dropped as the last, except in a waker that the database has called.)
///
/// # Dropped futures
/// The future of any call may be dropped. A commit ([`Db::write`], [`Table::put`](crate::Table::put), [`Table::delete`](crate::Table::delete),
/// [`Transaction::commit`](crate::Transaction::commit), [`Db::transact`], and the calls that create, change or drop tables) then happens completely
/// or has no effect, and its caller does not learn which: a later read tells. A commit dropped before its first poll
/// does not happen. A large commit (of some hundred keys or more) that has entered the log is completed by a thread of
/// the database.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// use nofault::{Batch, Db, Durability, db::Pace, settings::Settings};
///
/// let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
/// let db = Db::create(folder.path().join("shop"), &settings).await?;
/// let (stock, orders) = (db.create_table("stock").await?, db.create_table("orders").await?);
/// assert_eq!(db.table_names().await?, ["orders", "stock"]);
///
/// // All of it or nothing, and on the disk when this returns.
/// let mut batch = Batch::new();
/// batch.put(&stock, "apples", "12").put(&orders, "1", "apples");
/// db.write(batch, Durability::Sync).await?;
///
/// // No other commit comes between the read and the write.
/// db.transact(Durability::Deferred, async |change| {
///     let apples = change.get(&stock, "apples").await?;
///     change.put(&stock, "pears", apples.unwrap_or_default())
/// })
/// .await?;
/// db.sync().await?;
///
/// // A snapshot keeps showing the state at its beginning.
/// let before = db.snapshot();
/// db.drop_table("orders").await?;
/// assert!(db.table("orders").await.is_err());
/// assert_eq!(before.get(&orders, "1").await?, Some(b"apples".to_vec()));
/// drop((before, orders));
///
/// db.checkpoint().await?;
/// db.compact(Pace::Full, |so_far| so_far.pages < 1_000).await?;
/// assert!(db.verify().await?.is_clean());
/// db.backup(folder.path().join("copy")).await?;
///
/// drop((stock, db));
/// let db = Db::open(folder.path().join("copy"), &settings).await?;
/// assert_eq!(db.table("stock").await?.get("pears").await?, Some(b"12".to_vec()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Db {
    pub(in crate::db) core: Arc<TheCore>,
    pub(in crate::db) owner: OwnerHandle,
    /// The compression of new tables.
    pub(in crate::db) compression: Compression,
    /// The files that a database that is only read was opened from.
    pub(in crate::db) view: Option<Arc<View>>,
}

impl Db {
    /// Sets whether dropping this handle, and handles made from it, may wait until the database is closed.
    pub(crate) fn with_waiting_drop(mut self, may_wait: bool) -> Self {
        self.owner.set_may_wait(may_wait);
        self
    }
}

/// Closes a database, as [`Db::close`] documents. Blocks.
pub(in crate::db) fn close(db: &Db) -> Result<()> {
    if background::is_here() {
        let what = "a database cannot be closed by its own thread, in a waker that it has called: do it elsewhere";
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    let Db { core, owner, view, .. } = db;
    owner.check_process()?;
    let _call = owner.closing().begin()?;
    let why = closed();
    core.commits.end(&why);
    core.commits.await_vacant(|| core.committer.loads.are_under_way());
    let saved = owner.close(&why);
    // Calls that still wait for permits go on, and meet the end of the pool.
    core.reader.loader.end();
    core.reservations.end();
    if let Some(view) = view {
        view.end();
    }
    saved
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Db(commit {})", self.core.store.visible())
    }
}
