//! The calls of a database that keep its files in order: closing, checkpoints, compaction, verification, backups. Each
//! does its work on a dedicated thread, so that the executor's thread does not wait.

use std::path::Path;
use std::time::SystemTime;

use super::compact::{Compaction, Pace};
use super::verify::Verification;
use super::{backup, compact, verify};
use crate::db::calls::thread;
use crate::db::open::handle;
use crate::db::open::handle::Db;
use crate::error::Result;

impl Db {
    /// Closes the database for all of its handles: makes everything durable, makes a checkpoint, so that opening has
    /// nothing to replay and reads little, ends the threads and lets other processes open the folder. Dropping the last
    /// handle does the same on the dropping thread, if there are background threads, but reports no error; without them it
    /// does nothing.
    ///
    /// Other handles, and tables, snapshots, ranges, transactions, watches and tails, need not be dropped before. From then
    /// on their calls fail with `Closed`; dropping them does nothing but give back the memory of the cache, which the last
    /// of them keeps. A range first returns the entries that it has read already, and a watch the commits.
    ///
    /// Calls in progress end as usual or fail with `Closed`. A commit whose call succeeds is durable, and so is one whose
    /// future is polled to its end only after this; when it fails it may have happened, as after a dropped future. This waits for
    /// commits and checkpoints in progress, and for nothing that a caller may delay: a transaction's closure gets `Closed` from
    /// its next call, a bulk load with its next entry, backups, verifications and compactions with their next step.
    ///
    /// # Errors
    /// `Closed` when another handle has closed the database; if it is about to, this waits for it. `InvalidCall` in a waker
    /// that a thread of the database calls. `NoSpace`, `Io`: the database is closed and all commits are durable, but the
    /// next opening has to replay the log. `Poisoned` after a failure of the log: it is closed as well.
    pub async fn close(self) -> Result<()> {
        thread::run("nofault-close", move || handle::close(&self)).await?
    }

    /// Makes every commit so far durable, the deferred ones included, and records in the log that they are. From then
    /// on opening reports damage to any of them as an error and never takes it for the end of the log. Without `sync`
    /// the next commit writes that record, or a thread of the database when there is no commit for a while.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub async fn sync(&self) -> Result<()> {
        self.owner.refuse_read_only()?;
        self.core.waits.stated(self.core.commits.last().position).await?;
        self.core.commits.check_poison()
    }

    /// Waits until every commit made before this call is durable, the deferred ones included, as a commit that is
    /// [`Durability::Sync`](crate::Durability::Sync) is when it returns. Several waits share one write of the log. Where
    /// [`Db::sync`] also writes the record of what is durable, this does not: it takes one write where `sync` takes two.
    /// Commits that follow are visible at once, where they would wait for a commit that is `Sync`: so a program may have
    /// several deferred commits in flight and acknowledge each of them when it is durable.
    ///
    /// The moment is the call's, not the first poll's. Dropping the future changes nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let stock = db.create_table("stock").await?;
    /// use nofault::{Batch, Durability};
    ///
    /// let mut written = Vec::new();
    /// for fruit in ["apples", "pears", "plums"] {
    ///     let mut batch = Batch::new();
    ///     batch.put(&stock, fruit, "1");
    ///     db.write(batch, Durability::Deferred).await?; // visible
    ///     written.push(db.await_durable());
    /// }
    /// for durable in written {
    ///     durable.await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub fn await_durable(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let db = self.clone();
        // The position is behind a lock, which a forked process must not take.
        let position = self.owner.check_open().map(|()| self.core.commits.last().position);
        async move { db.core.waits.durable(position?).await }
    }

    /// Writes all changed pages to the data file. The log before the checkpoint can then be reused, and opening has
    /// less to replay. Commits continue while it runs. The database makes a checkpoint by itself when half of the log is
    /// full.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: the database stays as it was. After a failed sync it is `Poisoned`.
    pub async fn checkpoint(&self) -> Result<()> {
        self.owner.check_open()?;
        let db = self.clone();
        thread::run("nofault-ckpt", move || db.owner.checkpoint()).await?
    }

    /// Returns the time by which entries expire, by [`Settings::clock`](crate::settings::Settings::clock), which does not
    /// go back while the database is open. See [`Table::put_with_expiry`](crate::db::Table::put_with_expiry).
    pub fn now(&self) -> SystemTime {
        self.core.store.clock().now().to_time()
    }

    /// Removes the entries that have expired, and returns their number. A thread of the database does so by itself, once a
    /// second, unless the settings ask for [`CompactionMode::Manual`](crate::settings::CompactionMode::Manual) or no
    /// background threads. Takes some 128 entries at a time; commits of others neither wait for all of it nor conflict with
    /// it. An entry of which the time was rounded up is removed when that has passed: see
    /// [`Table::put_with_expiry`](crate::db::Table::put_with_expiry).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// use nofault::settings::{CompactionMode, Settings};
    ///
    /// let settings = Settings { cache_bytes: 16 << 20, compaction: CompactionMode::Manual, ..Settings::default() };
    /// let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// let offers = db.create_table("offers").await?;
    /// offers.put_with_expiry("pears", "2", db.now()).await?;
    /// assert!(offers.is_empty().await?);
    /// assert_eq!(db.remove_expired().await?, 1);
    /// assert_eq!(db.stats().expired_removed, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Db::write`].
    pub async fn remove_expired(&self) -> Result<u64> {
        self.owner.check_open()?;
        let db = self.clone();
        thread::run("nofault-expire", move || db.owner.upkeep.expiry.remove_all()).await?
    }

    /// Merges leaves that deletes and random inserts have left sparse, moves pages that random writes have scattered in
    /// the data file next to each other again, table by table in key order, so that scans read large pieces, and gives
    /// the free end of the file back. Content does not change: when it is interrupted at any moment, a part of the work
    /// is done. Pages of long values are not put in order.
    ///
    /// After each megabyte `go_on` gets the progress so far, on the thread that does the work; `false` ends the
    /// compaction there, and so does dropping the future. Checkpoints are made on the way, to reuse the blocks that
    /// pages have left. The file grows to no more than nine eighths of its used blocks plus 4,096 blocks; pages for
    /// which that leaves no room stay where they are, and are counted. So are leaves that a full disk has no room to merge.
    ///
    /// # Errors
    /// `Corrupt` when a page is damaged (the error names it); `Io`, `NoSpace` from the disk. Pages moved before the
    /// error stay moved. That the disk is full is no error by itself.
    pub async fn compact(
        &self,
        pace: Pace,
        go_on: impl FnMut(&Compaction) -> bool + Send + 'static,
    ) -> Result<Compaction> {
        compact::on_a_thread(self.clone(), compact::compact, pace, go_on).await
    }

    /// Makes the data file as short as its content allows, as [`Db::compact`] does at its end: merges sparse leaves,
    /// moves the pages at the end of the file to free blocks before it, and cuts the file. The order of the pages stays
    /// as it is. With automatic compaction ([`Settings::compaction`](crate::settings::Settings::compaction)) the
    /// database does the same by itself. Old page versions that a snapshot or a backup keeps at the end of the file
    /// keep its length: see [`Stats::compaction`](crate::db::Stats::compaction).
    ///
    /// # Errors
    /// As [`Db::compact`].
    pub async fn shrink(
        &self,
        pace: Pace,
        go_on: impl FnMut(&Compaction) -> bool + Send + 'static,
    ) -> Result<Compaction> {
        compact::on_a_thread(self.clone(), compact::shrink, pace, go_on).await
    }

    /// Reads every block of the data file and walks every table, and reports all damage instead of stopping at the
    /// first. Commits may continue at the same time: old versions of the pages that they change are kept for the verification,
    /// without a limit. Takes one bit of memory for each page, in addition to the cache.
    ///
    /// # Errors
    /// Only an error that prevents the verification from continuing; damage is in the report.
    pub async fn verify(&self) -> Result<Verification> {
        self.owner.check_open()?;
        let db = self.clone();
        thread::run("nofault-verify", move || verify::verify(&db)).await?
    }

    /// Copies a snapshot of the database into a new database in `folder`, while this one stays in use. The copy is
    /// written table by table in key order, so it is compact; it shows the moment of the call. Takes 16 MiB of memory
    /// in addition to the cache. Old versions of the pages that change in that time are kept for it, without a limit. When it is
    /// interrupted at any moment, `folder` holds the complete copy, or nothing that `open` would take for a database.
    ///
    /// # Errors
    /// `AlreadyExists` when `folder` holds a database, `InvalidCall` when it lies in the folder of one, also through links; the
    /// errors of reading this database and of writing the copy.
    pub async fn backup(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.owner.check_open()?;
        let (db, folder) = (self.clone(), folder.as_ref().to_path_buf());
        thread::run("nofault-backup", move || backup::backup(&db, &folder)).await?
    }
}
