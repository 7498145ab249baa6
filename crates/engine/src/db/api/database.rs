//! The calls on a whole database.

use std::sync::Arc;

use super::batch::Batch;
use super::completions::Completions;
use super::retry::{TransactOptions, transact};
use super::snapshot::Snapshot;
use super::stats::Stats;
use super::table::Table;
use super::transaction_handle::Transaction;
use super::{completions, retry, schema, stats, table};
use crate::btree::Tree;
use crate::buffer_pool::ReaderInfo;
use crate::codec::Compression;
use crate::db::calls::catalog::TableList;
use crate::db::calls::tables::in_catalog;
use crate::db::calls::transaction;
use crate::db::open::handle::Db;
use crate::error::{Error, ErrorKind, Result};
use crate::pages::{Durability, Store as _};
use crate::transaction::Op;

impl Db {
    /// Creates an empty table, with the compression of
    /// [`Settings::compression`](crate::settings::Settings::compression). Durable when it returns.
    ///
    /// # Errors
    /// `AlreadyExists`, once that table is durable; `InvalidCall` when the name is empty or longer than a key may be;
    /// otherwise as [`Db::write`].
    pub async fn create_table(&self, name: &str) -> Result<Table> {
        schema::create_table(self, name, self.compression).await
    }

    /// Sets the compression of a table. Durable when it returns. Pages written from now on are compressed that
    /// way; those in the file are read as before and stay as they are until they change, or until [`Db::compact`]
    /// rewrites them; the pages of values longer than 64 KiB stay as they are.
    ///
    /// # Errors
    /// `NotFound` when there is no such table; otherwise as [`Db::write`].
    pub async fn set_compression(&self, name: &str, compression: Compression) -> Result<()> {
        schema::set(self, name, compression).await
    }

    /// Returns the compression of a table.
    ///
    /// # Errors
    /// `NotFound` when there is no such table; `Corrupt` or `Io` when the catalog cannot be read.
    pub async fn compression(&self, name: &str) -> Result<Compression> {
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        self.core.catalog.compression(tree, name.as_bytes()).await
    }

    /// Removes a table and all of its entries. Durable when it returns. A thread of the database frees the pages
    /// afterwards, a few at a time (without background threads this call does so before it returns); after an
    /// interruption this continues when the database is opened. Snapshots from before still read the table; other calls
    /// on its handles fail with `NotFound`. Open transactions conflict.
    ///
    /// # Errors
    /// `NotFound` when there is no such table; `Corrupt` when its root is damaged: then the table stays; otherwise as
    /// [`Db::write`]. A failure to free pages is not an error of this call: damaged pages are left out
    /// ([`Stats::dropped_pages_unreadable`]), and after any other failure the next `drop_table` or `open` tries again.
    pub async fn drop_table(&self, name: &str) -> Result<()> {
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        let op = Op::DropTable { tree, name: name.as_bytes().to_vec() };
        let is_of_table = |error: &Error| error.page() == Some(tree.root);
        let dropped = self.core.committer.commit_op(op).await;
        dropped.map_err(|error| if is_of_table(&error) { error } else { in_catalog(error) })?;
        self.core.store.writer().codecs().forget(tree.table);
        self.owner.free_dropped();
        Ok(())
    }

    /// Opens a table by its name.
    ///
    /// # Errors
    /// `NotFound`: create it.
    pub async fn table(&self, name: &str) -> Result<Table> {
        self.owner.check_open()?;
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        Ok(Table { db: self.clone(), tree, name: name.into() })
    }

    /// Opens a table by its name, or creates it as [`Db::create_table`] does. Of several calls at the same time all get
    /// the same table.
    ///
    /// # Errors
    /// As [`Db::table`], but for `NotFound`, and as [`Db::create_table`], but for `AlreadyExists`.
    pub async fn open_or_create_table(&self, name: &str) -> Result<Table> {
        loop {
            match self.table(name).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                opened => return opened,
            }
            match self.create_table(name).await {
                // Another call has created it, visibly, or has dropped it again: each round follows a commit of another.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }

    /// Returns the names of all tables, sorted.
    ///
    /// # Errors
    /// `Corrupt` or `Io` when a page of the catalog cannot be read: [`Db::list_tables`] returns the names in the
    /// others.
    pub async fn table_names(&self) -> Result<Vec<String>> {
        self.snapshot().table_names().await
    }

    /// The names of the tables in the readable part of the catalog (the table of tables), and the damage in the rest.
    /// The listed tables can be opened by their names.
    ///
    /// # Errors
    /// `Closed` and other errors that are not damage; damage is in the list.
    pub async fn list_tables(&self) -> Result<TableList> {
        self.core.catalog.list(&self.core.store.snapshot()).await
    }

    /// Applies a batch: all of it or nothing, also when the future is dropped (see [Dropped futures](Db#dropped-futures)).
    ///
    /// # Errors
    /// `InvalidCall` when a key or value is too long, or a table is another database's. `NoSpace` when the disk is
    /// full: nothing of the batch was done, and commits go on by themselves once there is free space. Deletes and
    /// dropped tables have a reserve ([`PoolStats::blocks_reserve`](crate::db::PoolStats::blocks_reserve)), so they can free space. `Poisoned` after an
    /// earlier failure of the log.
    pub async fn write(&self, batch: Batch, durability: Durability) -> Result<()> {
        if batch.db.iter().any(|db| !Arc::ptr_eq(&db.core, &self.core)) {
            return Err(table::foreign_table());
        }
        let writes = self.core.expiries.complete(batch.writes).await?;
        Ok(self.core.committer.commit_writes(writes, None, durability, None).await?)
    }

    /// Takes a snapshot of the newest visible commit. It lasts as long as the returned value lives. No I/O.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { db: self.clone(), pages: Arc::new(self.core.store.snapshot()) }
    }

    /// Begins a serializable transaction. No I/O. Dropping it undoes everything.
    pub fn begin(&self) -> Transaction {
        Transaction::new(self, transaction::TransactionState::begin(&self.core))
    }

    /// Runs `work` in a transaction and commits it when `work` returns `Ok`; runs it again, from the beginning, for as
    /// long as other commits change the keys and ranges that it read. When `work` returns `Err`, nothing is committed,
    /// and the call returns that error: so the application's own errors abort a transaction.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let stock = db.create_table("stock").await?;
    /// # stock.put("pears", "3").await?;
    /// use nofault::Durability;
    ///
    /// #[derive(Debug)]
    /// enum Refusal {
    ///     SoldOut,
    ///     Failed(nofault::Error),
    /// }
    ///
    /// impl From<nofault::Error> for Refusal {
    ///     fn from(error: nofault::Error) -> Self {
    ///         Self::Failed(error)
    ///     }
    /// }
    ///
    /// // The closure borrows `stock`, and the future is `Send`: any executor may run it on another thread.
    /// let sold = tokio::spawn(async move {
    ///     db.transact(Durability::Sync, async |change| {
    ///         let pears = change.get(&stock, "pears").await?.ok_or(Refusal::SoldOut)?;
    ///         change.delete(&stock, "pears")?;
    ///         change.get(&stock, "plums").await?.ok_or(Refusal::SoldOut)?;
    ///         Ok(pears)
    ///     })
    ///     .await
    ///     .map_err(|refusal| (refusal, stock))
    /// });
    /// let (refusal, stock) = sold.await.unwrap().unwrap_err();
    /// assert!(matches!(refusal, Refusal::SoldOut));
    /// assert!(stock.contains_key("pears").await?, "the delete was not committed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `work` is called once for each run, so an `async` closure may borrow what it uses, but cannot change it: a counter
    /// that it keeps must be a `Cell`, an atomic or behind a lock. In a handler of axum:
    ///
    /// ```
    /// use axum::{Router, extract::State, http::StatusCode, routing::post};
    /// use nofault::{Db, Durability, Table};
    ///
    /// async fn visit(State((db, visits)): State<(Db, Table)>) -> Result<String, StatusCode> {
    ///     let count = db
    ///         .transact(Durability::Sync, async |change| {
    ///             let count = change.get(&visits, "all").await?.map_or(0, |count| count.len());
    ///             change.put(&visits, "all", vec![b'x'; count + 1])?;
    ///             Ok::<_, nofault::Error>(count + 1)
    ///         })
    ///         .await;
    ///     count.map(|count| count.to_string()).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
    /// }
    ///
    /// fn service(db: Db, visits: Table) -> Router {
    ///     Router::new().route("/visits", post(visit)).with_state((db, visits))
    /// }
    /// ```
    ///
    /// A transaction that has lost three runs takes precedence over later ones, in the order in which they ask for it.
    /// Commits of others that would change the keys or ranges that its last run read wait until it has committed. After
    /// six lost runs all commits wait. So each of many tasks that want the same keys commits in turn. Precedence ends
    /// with the transaction, when the future is dropped, and at the latest after a second, or after four times the time
    /// of its longest run, up to a minute, where that is longer. So a closure that waits for ever stops no other commit
    /// for ever. A commit from inside `work`, outside the transaction, of a key that `work` has read waits that long,
    /// too.
    ///
    /// # Errors
    /// The error of `work` (then nothing is committed); or, converted into that type, the error of the commit unless it
    /// is `Conflict`, and `RetriesExhausted` when `options` limit the runs or the time.
    pub async fn transact<T, E: From<Error>, F: Future<Output = std::result::Result<T, E>>>(
        &self,
        options: impl Into<TransactOptions>,
        work: impl FnMut(Transaction) -> F,
    ) -> std::result::Result<T, E> {
        transact(self, options.into(), work).await
    }

    /// Waits until the commit to which a transaction has lost is visible, so that the next run does not lose to it
    /// again: for callers that begin and commit by hand. Without this wait a loop spins until the disk has written that
    /// commit. Such a loop has no precedence, however often it loses; [`Db::transact`] has.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let stock = db.create_table("stock").await?;
    /// loop {
    ///     let change = db.begin();
    ///     let count = change.get(&stock, "pears").await?.map_or(0, |count| count.len());
    ///     change.put(&stock, "pears", vec![b'x'; count + 1])?;
    ///     match change.commit(nofault::Durability::Sync).await {
    ///         Ok(()) => break,
    ///         Err(error) => db.after_conflict(error).await?,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `error` itself, unless it is the `Conflict` of a commit. `Poisoned` after a failure of the log.
    pub async fn after_conflict(&self, error: Error) -> Result<()> {
        retry::after_conflict(self, error).await
    }

    /// Returns counters and sizes of the database.
    pub fn stats(&self) -> Stats {
        stats::stats(self)
    }

    /// The live snapshots, oldest first, with their age and the memory that they keep in use.
    pub fn readers(&self) -> Vec<ReaderInfo> {
        self.core.store.readers()
    }

    /// Returns a handle with which the caller's own poller takes the completions of reads instead of a thread of the
    /// database; `None` where the disk has no descriptor to poll. With tokio, use `complete_on_tokio`.
    pub fn completions(&self) -> Option<Completions> {
        completions::completions(self)
    }

    /// Size of a page of this database, in bytes.
    pub fn page_bytes(&self) -> usize {
        self.core.store.page_bytes()
    }

    /// Length of the longest key that a table takes, in bytes.
    pub fn key_bytes_max(&self) -> usize {
        crate::format::node::key_bytes_max(self.page_bytes())
    }

    pub(in crate::db) fn tree_of(&self, table: &Table) -> Result<Tree> {
        self.core.commits.check_open()?;
        if Arc::ptr_eq(&self.core, &table.db.core) { Ok(table.tree) } else { Err(table::foreign_table()) }
    }
}
