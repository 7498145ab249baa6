//! Opening a database for reading only, and moving on to its newest state.

use std::path::Path;

use super::Db;
use crate::db;
use crate::driver::block_on;
use crate::error::Result;
use crate::settings::Settings;

impl Db {
    /// Opens a database for reading only, also while another process writes to it. See [`db::Db::open_read_only`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// # let stock = db.create_table("stock")?;
    /// let reader = nofault::blocking::Db::open_read_only(folder.path().join("shop"), &settings)?;
    /// assert_eq!(reader.table_names()?, ["stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::open_read_only`].
    pub fn open_read_only(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        block_on(db::Db::open_read_only(folder, settings)).map(Self::new)
    }

    /// Moves this handle of a database that is only read to the newest state. See [`db::Db::refresh`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// let mut reader = nofault::blocking::Db::open_read_only(folder.path().join("shop"), &settings)?;
    /// db.create_table("stock")?;
    /// assert!(reader.refresh()?);
    /// assert_eq!(reader.table_names()?, ["stock"]);
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`db::Db::refresh`].
    pub fn refresh(&mut self) -> Result<bool> {
        let is_newer = block_on(self.0.refresh())?;
        self.0 = self.0.clone().with_waiting_drop(true);
        Ok(is_newer)
    }

    /// Returns whether this database was opened for reading only. See [`db::Db::open_read_only`].
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
    /// assert!(!db.is_read_only());
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    pub fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }
}
