//! The changes of a table since a commit, with blocking calls, for threads.

use super::{Snapshot, Table};
use crate::db::{self, Change};
use crate::driver::block_on;
use crate::error::Result;
use crate::format::CommitSeq;

/// The changes of a table since a commit: an iterator that returns an error once, and then `None`. See
/// [`db::Snapshot::changes_since`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// let stock = db.create_table("stock")?;
/// let before = db.snapshot().commit();
/// stock.put("pears", "3")?;
/// // The removal of a range, and the entries that it has now.
/// assert_eq!(db.snapshot().changes_since(&stock, before)?.count(), 2);
/// # Ok::<(), nofault::Error>(())
/// ```
#[derive(Debug)]
pub struct ChangesSince(db::ChangesSince);

impl Snapshot {
    /// Returns the changes of a table since a commit. See [`db::Snapshot::changes_since`].
    ///
    /// # Errors
    /// As [`db::Snapshot::changes_since`].
    pub fn changes_since(&self, table: &Table, since: CommitSeq) -> Result<ChangesSince> {
        self.0.changes_since(table.as_ref(), since).map(ChangesSince)
    }
}

impl Iterator for ChangesSince {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Result<Change>> {
        block_on(self.0.next()).transpose()
    }
}
