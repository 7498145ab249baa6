//! The index of expiry: a table that no name leads to, by which entries that have expired are found.
//!
//! Each commit that puts an entry that expires puts a row into it as well (`expiry_rows`). The removal looks at the rows of
//! each table in the order of their moments (`expiry_removal`). A row whose entry is gone, lasts, or was put again does no
//! harm. So the commit path, the log and its replay know nothing of the index: its rows are entries of a table as any other.
//!
//! A bulk load makes no such commit. It leaves a note in the catalog, as a part of its commit, and the removal puts the rows
//! afterwards, a few at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::catalog::Catalog;
use super::commit::Committer;
use super::expiry_rows::ROW_HEADER_BYTES;
use super::thread;
use super::write_set::WriteSet;
use crate::btree::Tree;
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::format::TableId;
use crate::format::catalog::EXPIRY_INDEX_KEY;
use crate::format::node::key_bytes_max;
use crate::pages::{CommitLog, Store};
use crate::transaction::Op;

/// Makes the superblock name the feature of entries that expire. Blocks.
type Allow = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// The index of expiry of a database.
pub(crate) struct Expiries<S: Store, L: CommitLog> {
    catalog: Catalog<S>,
    committer: Arc<Committer<S, L>>,
    /// The index, once there is one.
    index: OnceLock<Tree>,
    allow: Arc<OnceLock<Allow>>,
    /// Whether the catalog may have notes of loads with entries without rows yet.
    has_loads_without_rows: AtomicBool,
}

impl<S: Store, L: CommitLog> Expiries<S, L> {
    pub(in crate::db) fn new(catalog: Catalog<S>, committer: Arc<Committer<S, L>>) -> Self {
        let has_loads_without_rows = AtomicBool::new(false);
        Self { catalog, committer, index: OnceLock::new(), allow: Arc::default(), has_loads_without_rows }
    }

    /// Sets what makes the superblock name the feature. Called once, when the database is opened.
    pub(in crate::db) fn allow_by(&self, allow: Allow) {
        let set = self.allow.set(allow);
        debug_assert!(set.is_ok(), "set once, when the database is opened");
    }

    /// Notes the index that the catalog names.
    pub(in crate::db) fn learn(&self, index: Tree) {
        let _ = self.index.set(index);
    }

    /// Notes that the catalog has the note of a load with entries without rows yet.
    pub(in crate::db) fn set_without_rows(&self) {
        self.has_loads_without_rows.store(true, Ordering::Release);
    }

    /// Returns whether the catalog may have such a note. Until the next such note, or [`Expiries::set_without_rows`], the answer
    /// is no.
    pub(in crate::db) fn take_without_rows(&self) -> bool {
        self.has_loads_without_rows.swap(false, Ordering::AcqRel)
    }

    /// Returns the index, if there is one.
    pub(in crate::db) fn known(&self) -> Option<Tree> {
        self.index.get().copied()
    }

    /// Returns whether entries expire, or once did.
    pub(in crate::db) fn are_used(&self) -> bool {
        self.index.get().is_some()
    }

    /// Returns whether this table is the index, which is no table of the caller's.
    pub(in crate::db) fn is_index(&self, table: TableId) -> bool {
        self.index.get().is_some_and(|index| index.table == table)
    }

    /// Returns the index; makes it, durably, where there is none.
    ///
    /// # Errors
    /// The errors of a checkpoint and of a commit.
    pub(in crate::db) async fn index(&self) -> Result<Tree> {
        if let Some(index) = self.index.get() {
            return Ok(*index);
        }
        let allow = self.allow.clone();
        thread::run("nofault-ckpt", move || allow.get().map_or(Ok(()), |allow| allow())).await??;
        loop {
            match self.catalog.table(EXPIRY_INDEX_KEY).await {
                Ok(index) => return Ok(*self.index.get_or_init(|| index)),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let op = Op::CreateTable { name: EXPIRY_INDEX_KEY.to_vec(), compression: Compression::None };
            match self.committer.commit_op(op).await {
                // Another call has made it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
    }

    /// Completes a write set before its commit: adds the rows for the entries that expire.
    ///
    /// # Errors
    /// `InvalidCall` when the key of such an entry is too long; as [`Expiries::index`].
    pub(in crate::db) async fn complete(&self, mut writes: WriteSet) -> Result<WriteSet> {
        let Some(longest) = writes.expiring_key_bytes() else { return Ok(writes) };
        let index = self.index().await?;
        self.refuse_too_long(longest)?;
        writes.add_rows(index);
        Ok(writes)
    }

    /// Fails for the length of a key too long for an entry that expires.
    ///
    /// # Errors
    /// `InvalidCall` for such a length.
    pub(in crate::db) fn refuse_too_long(&self, key_bytes: usize) -> Result<()> {
        let max = key_bytes_max(self.catalog.page_bytes()) - ROW_HEADER_BYTES;
        if key_bytes <= max {
            return Ok(());
        }
        let what = format!("a key of {key_bytes} bytes; {max} is the most at this page size for an entry that expires");
        Err(Error::new(ErrorKind::InvalidCall, what))
    }
}
