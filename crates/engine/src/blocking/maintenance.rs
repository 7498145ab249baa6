//! The calls of a database that keep its files in order: closing, checkpoints, compaction, verification, backups.

use std::path::Path;
use std::time::SystemTime;

use super::Db;
use crate::db::{self, Compaction, Pace, Verification};
use crate::driver::block_on;
use crate::error::Result;
use crate::settings::Settings;

impl Db {
    /// Closes the database, so that opening has little to do. See [`db::Db::close`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// stock.put("apples", "12")?;
    /// db.close()?;
    /// assert!(stock.get("apples").is_err(), "its handles have ended");
    /// let db = nofault::blocking::Db::open(folder.path().join("shop"), &settings)?;
    /// assert_eq!(db.stats().log.live_bytes, 4096, "nothing to replay");
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::close`].
    pub fn close(self) -> Result<()> {
        block_on(self.0.close())
    }

    /// Waits until every commit made before this call is durable. See [`db::Db::await_durable`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// let mut batch = nofault::Batch::new();
    /// batch.put(&stock, "apples", "12");
    /// db.write(batch, nofault::Durability::Deferred)?;
    /// db.await_durable()?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::await_durable`].
    pub fn await_durable(&self) -> Result<()> {
        block_on(self.0.await_durable())
    }

    /// Writes all changed pages to the data file. See [`db::Db::checkpoint`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// db.checkpoint()?;
    /// assert!(db.stats().checkpoints > 0);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::checkpoint`].
    pub fn checkpoint(&self) -> Result<()> {
        block_on(self.0.checkpoint())
    }

    /// Returns the time by which entries expire. See [`db::Db::now`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// use std::time::Duration;
    ///
    /// let tomorrow = db.now() + Duration::from_secs(86_400);
    /// assert!(db.now() < tomorrow);
    /// # Ok::<(), nofault::Error>(())
    /// ```
    pub fn now(&self) -> SystemTime {
        self.0.now()
    }

    /// Removes the entries that have expired, and returns their number. See [`db::Db::remove_expired`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let offers = db.create_table("offers")?;
    /// use std::time::Duration;
    ///
    /// let tomorrow = db.now() + Duration::from_secs(86_400);
    /// offers.put_with_expiry("pears", "2", tomorrow)?;
    /// assert_eq!(db.remove_expired()?, 0);
    /// # Ok::<(), nofault::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::remove_expired`].
    pub fn remove_expired(&self) -> Result<u64> {
        block_on(self.0.remove_expired())
    }

    /// Moves pages that random writes have scattered next to each other again; `go_on` gets the progress and may end
    /// the compaction. See [`db::Db::compact`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// use nofault::db::Pace;
    ///
    /// let done = db.compact(Pace::Full, |so_far| {
    ///     println!("{} of {} pages moved", so_far.pages_moved, so_far.pages);
    ///     true
    /// })?;
    /// assert_eq!(done.pages_without_free_blocks, 0);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::compact`].
    pub fn compact(&self, pace: Pace, mut go_on: impl FnMut(&Compaction) -> bool) -> Result<Compaction> {
        db::compact(&self.0, pace, &mut go_on)
    }

    /// Makes the data file as short as its content allows. See [`db::Db::shrink`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// use nofault::db::Pace;
    ///
    /// let done = db.shrink(Pace::Full, |_| true)?;
    /// assert_eq!(done.bytes_given_back, 0, "a small file is as short as it can be");
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::shrink`].
    pub fn shrink(&self, pace: Pace, mut go_on: impl FnMut(&Compaction) -> bool) -> Result<Compaction> {
        db::shrink(&self.0, pace, &mut go_on)
    }

    /// Reads every block, walks every table, and reports all damage. See [`db::Db::verify`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// let found = db.verify()?;
    /// for problem in &found.problems {
    ///     println!("table {:?}: {}", problem.table, problem.error);
    /// }
    /// assert!(found.is_clean());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::verify`].
    pub fn verify(&self) -> Result<Verification> {
        block_on(self.0.verify())
    }

    /// Checks a whole database without writing a byte in its folders. See [`db::Db::check`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// db.backup(folder.path().join("copy"))?;
    /// let found = nofault::blocking::Db::check(folder.path().join("copy"), &settings)?;
    /// assert!(found.is_clean() && found.repairs.is_empty());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::check`].
    pub fn check(folder: impl AsRef<Path>, settings: &Settings) -> Result<Verification> {
        block_on(db::Db::check(folder, settings))
    }

    /// Writes a copy of the database as a new database in `folder`. See [`db::Db::backup`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// # stock.put("apples", "12")?;
    /// # stock.put("pears", "3")?;
    /// db.backup(folder.path().join("copy"))?;
    /// let copy = nofault::blocking::Db::open(folder.path().join("copy"), &settings)?;
    /// assert_eq!(copy.table("stock")?.get("apples")?, Some(b"12".to_vec()));
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::backup`].
    pub fn backup(&self, folder: impl AsRef<Path>) -> Result<()> {
        block_on(self.0.backup(folder))
    }
}
