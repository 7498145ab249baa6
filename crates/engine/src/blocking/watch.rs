//! Watching with blocking calls, for threads.

use super::{Db, Table};
use crate::db::{self, WatchEvent};
use crate::driver::block_on;
use crate::error::Result;
use crate::format::{CommitSeq, TableId};

impl Db {
    /// Watches all tables. See [`db::Db::watch`].
    ///
    /// # Errors
    /// As [`db::Db::watch`].
    pub fn watch(&self) -> Result<Watch> {
        block_on(self.0.watch()).map(Watch)
    }
}

impl Table {
    /// Watches the keys beginning with `prefix`. See [`db::Table::watch`].
    ///
    /// # Errors
    /// As [`db::Table::watch`].
    pub fn watch(&self, prefix: impl AsRef<[u8]>) -> Result<Watch> {
        block_on(AsRef::<db::Table>::as_ref(self).watch(prefix)).map(Watch)
    }

    /// The number of the table. See [`db::Table::id`].
    pub fn id(&self) -> TableId {
        AsRef::<db::Table>::as_ref(self).id()
    }
}

/// The changes of commits from now on, in the order of the commits: an iterator whose `next` waits. After a failure of the log it
/// returns the error and ends. See [`db::Watch`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// use nofault::db::{Change, WatchEvent};
///
/// let mut watch = stock.watch("app")?.bytes_max(1 << 20);
/// let writer = std::thread::spawn(move || {
///     stock.put("pears", "3")?;
///     stock.put("apples", "12")?;
///     Ok::<_, nofault::Error>(stock)
/// });
/// let Some(WatchEvent::Commit { commit, changes }) = watch.next().transpose()? else { panic!("a commit") };
/// let stock = writer.join().unwrap()?;
/// assert!(commit > watch.since());
/// let (key, value) = (b"apples".to_vec(), b"12".to_vec());
/// assert_eq!(changes, [Change::Put { table: stock.id(), key, value, expiry: None }]);
/// assert!(watch.try_next()?.is_none());
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug)]
pub struct Watch(db::Watch);

impl Watch {
    /// Limits the memory of commits waiting to be read. See [`db::Watch::bytes_max`].
    #[must_use]
    pub fn bytes_max(self, bytes: usize) -> Self {
        Self(self.0.bytes_max(bytes))
    }

    /// The last commit that is not reported. See [`db::Watch::since`].
    pub fn since(&self) -> CommitSeq {
        self.0.since()
    }

    /// Returns the next event if it has happened already. See [`db::Watch::try_next`].
    ///
    /// # Errors
    /// As [`db::Watch::try_next`].
    pub fn try_next(&mut self) -> Result<Option<WatchEvent>> {
        self.0.try_next()
    }
}

impl Iterator for Watch {
    type Item = Result<WatchEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next()).transpose()
    }
}
