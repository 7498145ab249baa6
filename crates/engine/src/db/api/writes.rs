//! The writes of bytes: of a [`Table`] at once, of a [`Batch`] together, and of a [`Transaction`].
//!
//! Calls on a table that read and write it run again for as long as other commits change what they read, as [`Db::transact`] does. They are
//! loops and no closures of `transact`: the caller's closure is changed by each run, and a future that borrows it from run to run would not
//! be `Send`.

use std::ops::RangeBounds;
use std::time::SystemTime;

use super::batch::Batch;
use super::load;
use super::retry::Retries;
use super::table::Table;
use super::transaction_handle::Transaction;
use crate::btree::{Direction, KeyRange};
use crate::db::calls::bounds::range_of;
use crate::db::calls::scan::Entry;
use crate::db::calls::thread;
use crate::error::Result;
use crate::format::Moment;
use crate::pages::Durability;
use crate::transaction::Op;

impl Table {
    /// Sets the value of a key. Durable when it returns; concurrent calls share one write of the log. When the future is
    /// dropped before, the key may be set or not (see [Dropped futures](crate::Db#dropped-futures)).
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref().to_vec(), value.as_ref().to_vec());
        self.db.core.committer.commit_op(Op::Put { tree: self.tree, key, value, expiry: Moment::NEVER }).await
    }

    /// Sets the value of a key until `expiry`: from then on the key is absent for every read that begins, by the clock of
    /// [`Settings::clock`](crate::settings::Settings::clock), and some time later the database removes it. Durable when it
    /// returns. A snapshot or transaction that began before continues to see it.
    ///
    /// The time is kept in milliseconds, rounded up. A `put` of the same key, also one of the same value, makes the entry
    /// last; [`Table::update`] leaves the time as it is. The key may have 16 bytes fewer than others.
    ///
    /// The first call in the life of a database costs a checkpoint: from then on builds that do not know entries that expire
    /// refuse the database. Each call writes a row of some 40 bytes and the key to an index next to the table, by which the
    /// entry is found when it has expired: at the latest when an eighth of the time for which it was put has passed once
    /// more. With [`CompactionMode::Manual`](crate::settings::CompactionMode::Manual) [`Db::remove_expired`](crate::Db::remove_expired) removes it.
    ///
    /// Until then it takes space, and ranges come across it. The first that meets a leaf of which all entries have expired
    /// looks at each of them; later ones pass that leaf in some ten nanoseconds, as long as it stays in memory, and read it
    /// where it does not. Removal takes a tenth of the time of a thread in a database in use, and up to half of it while more
    /// expires than is removed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// # let sessions = db.create_table("sessions").await?;
    /// use std::time::Duration;
    ///
    /// sessions.put_with_expiry("ann", "token", db.now() + Duration::from_secs(1800)).await?;
    /// assert!(sessions.contains_key("ann").await?);
    /// assert!(sessions.expiry("ann").await?.is_some_and(|expiry| expiry > db.now()));
    ///
    /// sessions.put("ann", "token").await?;
    /// assert_eq!(sessions.expiry("ann").await?, None, "it lasts now");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub async fn put_with_expiry(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> Result<()> {
        let mut batch = Batch::new();
        batch.put_with_expiry(self, key, value, expiry);
        self.db.write(batch, Durability::Sync).await
    }

    /// Removes a key; nothing happens if it is not there. Durable when it returns.
    ///
    /// # Errors
    /// As [`Db::write`](crate::Db::write).
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.db.core.committer.commit_op(Op::Delete { tree: self.tree, key: key.as_ref().to_vec() }).await
    }

    /// Removes the entry with the first key and returns it. Durable when it returns. Runs as a transaction, so of
    /// several callers each gets another entry.
    ///
    /// # Errors
    /// As [`Db::transact`](crate::Db::transact).
    pub async fn pop_first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        pop_first(self).await
    }

    /// Replaces the value of a key by the result of `change`, which gets the value that the key has, or `None`, and
    /// returns the new value, or `None` to remove the key. Returns that result. The new value expires when the one before
    /// would have. Durable when it returns. Runs as a
    /// transaction, so no update is lost: `change` is called again when another commit changes the key.
    ///
    /// # Errors
    /// As [`Db::transact`](crate::Db::transact).
    pub async fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        update(self, key.as_ref(), |value| Ok(change(value))).await
    }

    /// Returns the value of a key; where it has none, sets it to the result of `make` first. Durable when it returns. Of
    /// several callers all get the value set by one of them.
    ///
    /// # Errors
    /// As [`Db::transact`](crate::Db::transact).
    pub async fn get_or_insert_with(&self, key: impl AsRef<[u8]>, make: impl FnOnce() -> Vec<u8>) -> Result<Vec<u8>> {
        let (mut make, mut made) = (Some(make), Vec::new());
        let value = self.update(key, |value| {
            if let Some(value) = value {
                return Some(value.to_vec());
            }
            if let Some(make) = make.take() {
                made = make();
            }
            Some(made.clone())
        });
        Ok(value.await?.unwrap_or_default())
    }

    /// Removes all entries in `range`, in one commit, and returns their number. Durable when it returns. Reads the leaves
    /// of the range, and no values outside of them. Keeps the keys in memory until it ends, some 100 bytes each in
    /// addition to their length, up to an eighth of the cache. Where there are more, the table is rewritten without
    /// them: other commits wait until all other entries are written, as for [`Table::bulk_load`] into a table with
    /// entries. There are none when the range is the whole table, so that is fast.
    ///
    /// # Errors
    /// As [`Db::transact`](crate::Db::transact).
    pub async fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let range = range_of(&range);
        delete_range(self, &range).await
    }

    /// Removes all entries, as [`Table::delete_range`] does, and returns their number.
    ///
    /// # Errors
    /// As [`Table::delete_range`].
    pub async fn clear(&self) -> Result<u64> {
        self.delete_range::<&[u8]>(..).await
    }
}

/// Replaces the value of a key by the result of `change`, and returns that. The time at which the key expires stays. When
/// `change` fails, nothing is changed.
///
/// # Errors
/// The error of `change`; as [`Table::update`].
pub(in crate::db) async fn update(
    table: &Table,
    key: &[u8],
    mut change: impl FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>>,
) -> Result<Option<Vec<u8>>> {
    let mut retries = Retries::new(Durability::Sync.into())?;
    loop {
        let run = retries.begin(&table.db).await?;
        let before = run.0.get(table, key).await?;
        let expiry = match &before {
            Some(_) if table.db.core.expiries.are_used() => run.0.inner.expiry(table.tree, key).await?,
            _ => None,
        };
        let after = change(before.as_deref())?;
        match &after {
            _ if after == before => {}
            Some(value) => run.0.put_until(table, key, value, expiry.unwrap_or(Moment::NEVER))?,
            None => run.0.delete(table, key)?,
        }
        if retries.commit(run).await? {
            return Ok(after);
        }
    }
}

/// Removes the entry with the first key, and returns it.
///
/// # Errors
/// As [`Table::pop_first`].
async fn pop_first(table: &Table) -> Result<Option<Entry>> {
    let mut retries = Retries::new(Durability::Sync.into())?;
    loop {
        let run = retries.begin(&table.db).await?;
        let first = run.0.range::<&[u8]>(table, ..)?.read_ahead_max(0).next().await?;
        if let Some((key, _)) = &first {
            run.0.delete(table, key)?;
        }
        if retries.commit(run).await? {
            return Ok(first);
        }
    }
}

/// Memory for each key that a transaction removes, in addition to the bytes of the key.
const REMOVED_KEY_BYTES: usize = 100;

/// Removes all entries in a range, and returns their number. The table is rewritten without them where their keys
/// take more memory than the read set of a transaction may.
///
/// # Errors
/// As [`Table::delete_range`].
async fn delete_range(table: &Table, range: &KeyRange) -> Result<u64> {
    let mut retries = Retries::new(Durability::Sync.into())?;
    loop {
        let run = retries.begin(&table.db).await?;
        let mut scan = run.0.inner.scan(table.tree, range.clone(), Direction::Forward)?;
        scan.set_keys_only();
        let (mut count, mut bytes) = (0, 0);
        while let Some((key, _)) = scan.next().await? {
            bytes += key.len() + REMOVED_KEY_BYTES;
            if bytes > table.db.core.read_set_bytes_max {
                let (table, range) = (table.clone(), range.clone());
                return thread::run("nofault-load", move || load::write_without(&table, &range)).await?;
            }
            run.0.delete(table, key)?;
            count += 1;
        }
        if retries.commit(run).await? {
            return Ok(count);
        }
    }
}

impl Transaction {
    /// Sets the value of a key, for this transaction only until it commits.
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database, and when the transaction was committed.
    pub fn put(&self, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_until(table, key.as_ref(), value.as_ref(), Moment::NEVER)
    }

    /// Sets the value of a key, for this transaction only until it commits, and the time from which it is absent. The
    /// transaction itself sees it unless it had expired when the transaction began. See [`Table::put_with_expiry`].
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put_with_expiry(
        &self,
        table: &Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> Result<()> {
        self.put_until(table, key.as_ref(), value.as_ref(), Moment::at_or_after(expiry))
    }

    /// Sets the value of a key, and the moment at which it expires, if it ever does.
    pub(in crate::db) fn put_until(&self, table: &Table, key: &[u8], value: &[u8], expiry: Moment) -> Result<()> {
        self.inner.set_until(self.db.tree_of(table)?, key, Some(value), expiry)
    }

    /// Removes a key, for this transaction only until it commits.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<()> {
        self.inner.set(self.db.tree_of(table)?, key.as_ref(), None)
    }
}
