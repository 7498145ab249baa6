//! The changes of a table since a commit, found by the commits that stand in the headers of its pages (`btree::changes`).

use super::owner::OwnerHandle;
use super::scan::Scan;
use super::{Change, Snapshot, Table};
use crate::btree::{Direction, KeyRange};
use crate::buffer_pool::BufferPool;
use crate::error::Result;
use crate::format::{CommitSeq, TableId};

/// The changes of a table since a commit: see [`Snapshot::changes_since`]. Keeps the database open.
pub struct ChangesSince {
    scan: Scan<BufferPool>,
    table: TableId,
    _owner: OwnerHandle,
}

impl std::fmt::Debug for ChangesSince {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChangesSince").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Returns changes that make the content of a table as it was after commit `since` into its content in this snapshot, as an
    /// incremental backup needs them. It need not be possible to read the older state any more.
    ///
    /// The changes come in the order of the keys. They are found by pages: of each leaf written after `since`, a
    /// [`Change::DeleteRange`] of its keys and then a [`Change::Put`] of each of its entries, also of those that are as they were; of other
    /// leaves a put for each value in a page with one that was overwritten in place. Also the database's own upkeep writes
    /// pages, which makes the changes more and never fewer. Applied once more, in order, they leave the content as it is.
    ///
    /// Reads all leaves of the table, the pages of values of those that were written after `since`, and of the others only pages that several
    /// values share, as a bulk load leaves them. Memory does not grow with the table. Entries that had expired by the moment of
    /// the snapshot are left out.
    ///
    /// `since` must be a commit of this database that was durable: a power cut may take a deferred one away, and another gets its
    /// number. For a table created after it, every entry is a change; a table that this snapshot does not have has none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// use nofault::db::Change;
    ///
    /// let stock = db.create_table("stock").await?;
    /// stock.put("apples", "12").await?;
    /// let before = db.snapshot().commit();
    /// assert_eq!(db.snapshot().changes_since(&stock, before)?.next().await?, None);
    ///
    /// stock.put("pears", "3").await?;
    /// stock.delete("apples").await?;
    /// let mut changes = db.snapshot().changes_since(&stock, before)?;
    /// let table = stock.id();
    /// assert_eq!(changes.next().await?, Some(Change::DeleteRange { table, start: Vec::new(), end: None }));
    /// let (key, value) = (b"pears".to_vec(), b"3".to_vec());
    /// assert_eq!(changes.next().await?, Some(Change::Put { table, key, value, expiry: None }));
    /// assert_eq!(changes.next().await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` for a table of another database.
    pub fn changes_since(&self, table: &Table, since: CommitSeq) -> Result<ChangesSince> {
        let (tree, all) = (self.db.tree_of(table)?, KeyRange { start: Vec::new(), end: None });
        let mut scan = Scan::new(self.db.core.reader.clone(), self.pages.clone(), tree, all, Direction::Forward);
        scan.set_since(since);
        Ok(ChangesSince { scan, table: tree.table, _owner: self.db.owner.clone() })
    }
}

impl ChangesSince {
    /// Returns the next change; `None` at the end. Dropping the future loses no change.
    ///
    /// # Errors
    /// As [`Range::next`](super::Range::next): an error once, and then `None`.
    pub async fn next(&mut self) -> Result<Option<Change>> {
        self.scan.make_ready().await?;
        let table = self.table;
        if let Some(KeyRange { start, end }) = self.scan.take_replaced() {
            return Ok(Some(Change::DeleteRange { table, start, end }));
        }
        let Some((key, value)) = self.scan.take() else { return Ok(None) };
        Ok(Some(Change::Put { table, key, value, expiry: self.scan.expiry().to_expiry() }))
    }
}
