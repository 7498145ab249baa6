//! A database that is nothing until it is finished, with blocking calls.

use std::path::Path;
use std::sync::Arc;

use nofault_io::disk::Directory;

use super::Db;
use crate::db;
use crate::driver::block_on;
use crate::error::Result;
use crate::settings::Settings;

/// A new database that is nothing until it is finished. See [`db::UnfinishedDb`]. Dropping it waits until its files are removed.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// use nofault::blocking::{Db, UnfinishedDb};
///
/// let path = folder.path().join("shop");
/// let new = UnfinishedDb::create(&path, &settings)?;
/// new.db().create_table("stock")?.put("apples", "12")?;
/// new.finish()?;
/// assert_eq!(Db::open(&path, &settings)?.table("stock")?.get("apples")?, Some(b"12".to_vec()));
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug)]
pub struct UnfinishedDb {
    db: Db,
    new: db::UnfinishedDb,
}

impl UnfinishedDb {
    fn new(new: db::UnfinishedDb) -> Self {
        let new = new.with_waiting_drop(true);
        Self { db: Db::new(new.db().clone()), new }
    }

    /// Creates a database to be filled. See [`db::UnfinishedDb::create`].
    ///
    /// # Errors
    /// As [`db::UnfinishedDb::create`].
    pub fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        block_on(db::UnfinishedDb::create(folder, settings)).map(Self::new)
    }

    /// As [`UnfinishedDb::create`], on disks of the caller's choice. See [`db::UnfinishedDb::create_in`].
    ///
    /// # Errors
    /// As [`db::UnfinishedDb::create_in`].
    pub fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        db::UnfinishedDb::create_in(directory, settings).map(Self::new)
    }

    /// Returns the database.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Makes everything durable, closes the database and makes it one. See [`db::UnfinishedDb::finish`].
    ///
    /// # Errors
    /// As [`db::UnfinishedDb::finish`].
    pub fn finish(self) -> Result<()> {
        let Self { db, new } = self;
        drop(db);
        block_on(new.finish())
    }
}
