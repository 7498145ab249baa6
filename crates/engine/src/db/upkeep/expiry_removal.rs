//! Removes entries that have expired.
//!
//! Reads leave an expired entry out by the moment that its leaf has with the value, whether it was removed or not. So
//! removal changes nothing that a reader can see, and gives back space only. Its work is bounded by the number of puts: it
//! looks at the rows of the index of expiry (`expiry`), in the order of table and moment, and no farther than the present.
//!
//! Kept true by:
//! 1. An entry that expires has a row with a moment that is not before the one at which it expires: both are put by one
//!    commit, and a removal that deletes the row has read it and the entry, so it conflicts with a put that comes between.
//! 2. No commit of another conflicts over a removal. Removed keys are not noted in the window of recent commits: a
//!    transaction that saw the entry began before it expired, and comes before the removal in the history. For one that did
//!    not see it the removal changes nothing.
//! 3. A snapshot without a removed entry has a moment at which the entry had expired (`pages::Snapshot::moment`).
//! 4. Entries loaded past the log have no rows at first, and their load has left a note in the catalog. The note is
//!    deleted together with, or after, the last of their rows. After a power cut between, some get rows twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::btree::{Direction, FoundValue, KeyRange, Tree};
use crate::buffer_pool::BufferPool;
use crate::db::calls::core::Core;
use crate::db::calls::expiry_rows::parts_of;
use crate::db::calls::scan::Scan;
use crate::db::calls::tables::is_damage;
use crate::db::calls::write_set::WriteSet;
use crate::error::{ErrorKind, Result};
use crate::format::catalog::{bounds_without_rows, is_name};
use crate::format::{Moment, TableId};
use crate::pages::{Durability, Snapshot as _, Store};
use crate::sync::driver::block_on;
use crate::transaction::reads::ReadSet;
use crate::transaction::{CATALOG, Commit, SMALL_OPS_MAX, table_of};
use crate::wal::Log;

/// Most rows that one commit of the removal is about: with two deletes each, it is no larger than other commits holding the
/// section once.
const ROWS_AT_ONCE: usize = SMALL_OPS_MAX / 2;
/// Frames that a commit may take for each row: as many as two deletes take.
const FRAMES_A_ROW: usize = 6;
/// Most rows that one commit puts for a table that was loaded …
const ROWS_PUT_AT_ONCE: usize = 256;
/// … and most keys that it looks at for them.
const KEYS_AT_ONCE: usize = 4096;
/// Most tables that one step of the removal looks at.
const TABLES_AT_ONCE: usize = 256;

type PoolSnapshot = <BufferPool as Store>::Snapshot;

/// The progress of the removal.
#[derive(Debug, Default)]
struct Progress {
    /// The row at which the next step begins.
    from: Vec<u8>,
    /// The tables that were looked up; `None` for one that was dropped.
    tables: FxHashMap<TableId, Option<Tree>>,
    /// Whether the last commit has lost to another: then the next one is about a single row.
    has_lost: bool,
    /// The first note of a load that this pass looks at: those before it lead to damage.
    notes_from: Vec<u8>,
    /// The note of the load whose entries get rows at present, and the key from which the next step continues.
    loaded: Option<(Vec<u8>, Vec<u8>)>,
}

/// The outcome of a step of the removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) struct RemovalStep {
    /// Number of entries that were removed.
    pub(in crate::db) removed: u64,
    /// Whether the step has reached the end of what there was to do.
    pub(in crate::db) is_last: bool,
}

/// A row that is due, and the table of its entry, if there still is one.
struct DueRow {
    row: Vec<u8>,
    tree: Option<Tree>,
}

/// Removes entries that have expired.
pub(in crate::db) struct ExpiryRemover {
    core: Arc<Core<BufferPool, Log>>,
    /// Locked for a step: there is one at a time.
    progress: Mutex<Progress>,
    removed: AtomicU64,
}

impl ExpiryRemover {
    pub(in crate::db) fn new(core: Arc<Core<BufferPool, Log>>) -> Self {
        Self { core, progress: Mutex::default(), removed: AtomicU64::new(0) }
    }

    /// Returns the number of entries removed since the database was opened.
    pub(in crate::db) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// Removes all entries that have expired, and returns their number. Blocks.
    ///
    /// # Errors
    /// As [`ExpiryRemover::step`].
    pub(in crate::db) fn remove_all(&self) -> Result<u64> {
        self.lock().from.clear();
        let mut removed = 0;
        loop {
            let step = self.step()?;
            removed += step.removed;
            if step.is_last {
                return Ok(removed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes some entries that have expired, by one commit. Blocks.
    ///
    /// # Errors
    /// `NoSpace`; the errors of reading and of the log.
    pub(in crate::db) fn step(&self) -> Result<RemovalStep> {
        let mut progress = self.lock();
        if self.put_rows(&mut progress)? {
            return Ok(RemovalStep { removed: 0, is_last: false });
        }
        let Some(index) = self.core.expiries.known() else {
            progress.notes_from.clear();
            return Ok(RemovalStep { removed: 0, is_last: true });
        };
        // Before the snapshot is taken.
        let _open = self.core.commits.open_transaction();
        let snapshot = Arc::new(self.core.store.snapshot());
        let found = block_on(self.find(index, &snapshot, &mut progress));
        let (due, is_last) = found.inspect_err(|_| progress.from.clear())?;
        if is_last {
            progress.notes_from.clear();
        }
        let Some(first) = due.first() else { return Ok(RemovalStep { removed: 0, is_last }) };
        // Once the rows are gone, the next step begins at the same place.
        progress.from.clone_from(&first.row);
        let has_lost = std::mem::replace(&mut progress.has_lost, false);
        let removed = match block_on(self.remove(index, &snapshot, &due)) {
            Ok(removed) => removed,
            // A table was dropped after it was looked up: the next step sees that.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                progress.tables.clear();
                0
            }
            // Another commit has changed one of the entries, or one of them cannot be read. They are tried one by one, and an
            // entry that fails again is left to a later pass.
            Err(error) if error.kind() == ErrorKind::Conflict || is_damage(&error) => {
                if has_lost {
                    progress.from.push(0);
                } else {
                    progress.has_lost = true;
                }
                0
            }
            Err(error) => return Err(error),
        };
        Ok(RemovalStep { removed, is_last: false })
    }

    /// Puts some rows for entries loaded past the log. False when there is nothing to put, or when all that is left
    /// cannot be read.
    ///
    /// # Errors
    /// As [`ExpiryRemover::step`].
    fn put_rows(&self, progress: &mut Progress) -> Result<bool> {
        // Taken before the look: a load that ends after this sets it again.
        if !self.core.expiries.take_without_rows() {
            return Ok(false);
        }
        let put = block_on(self.put_next_rows(progress));
        if !matches!(put, Ok(false)) || !progress.notes_from.is_empty() {
            self.core.expiries.set_without_rows();
        }
        match put {
            // The table was dropped after it was looked up: the next step sees that.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                progress.tables.clear();
                Ok(true)
            }
            Err(error) if is_damage(&error) => match progress.loaded.as_ref() {
                // Entries of other tables are not kept from being removed.
                Some((note, _)) => {
                    progress.notes_from = [note, &[0][..]].concat();
                    Ok(true)
                }
                None => Err(error),
            },
            other => other,
        }
    }

    /// Puts rows for some entries of the table to which the first note leads, and deletes the note with the last of them.
    async fn put_next_rows(&self, progress: &mut Progress) -> Result<bool> {
        let core = &*self.core;
        // Entries that expire before their row is put get one, too: they are still there.
        let (snapshot, now) = (Arc::new(core.store.snapshot().with_expired()), core.store.clock().now());
        let scan_of =
            |tree, range| Scan::new(core.reader.clone(), Arc::clone(&snapshot), tree, range, Direction::Forward);
        let [first, end] = bounds_without_rows();
        let notes = KeyRange { start: first.max(progress.notes_from.clone()), end: Some(end) };
        let Some((note, value)) = scan_of(CATALOG, notes).next().await? else { return Ok(false) };
        let from = match progress.loaded.take() {
            Some((of, from)) if of == note => from,
            _ => Vec::new(),
        };
        progress.loaded = Some((note.clone(), from.clone()));
        let table = table_of(&note, &FoundValue::Inline(value))?.table;
        let tree = self.look_up(table, &snapshot, &mut progress.tables).await?;
        let (mut writes, mut next) = (WriteSet::default(), None);
        if let Some(tree) = tree {
            let mut scan = scan_of(tree, KeyRange { start: from, end: None });
            scan.set_keys_only();
            let mut looked = 0;
            while let Some((key, _)) = scan.next().await? {
                if looked == KEYS_AT_ONCE || writes.row_count() == ROWS_PUT_AT_ONCE {
                    next = Some(key);
                    break;
                }
                looked += 1;
                if scan.expiry() != Moment::NEVER {
                    writes.add_row(tree, &key, scan.expiry(), now);
                }
            }
        }
        if next.is_none() {
            writes.set(CATALOG, note.clone(), None);
        }
        let writes = core.expiries.complete(writes).await?;
        core.committer.commit_writes(writes, None, Durability::Deferred, None).await?;
        progress.loaded = next.map(|from| (note, from));
        Ok(true)
    }

    /// Removes the entries of rows that are due, and the rows. Returns the number of entries.
    async fn remove(&self, index: Tree, snapshot: &PoolSnapshot, due: &[DueRow]) -> Result<u64> {
        let core = &*self.core;
        let (mut writes, mut reads) = (WriteSet::default(), ReadSet::new(core.read_set_bytes_max));
        let mut removed = 0;
        for DueRow { row, tree } in due {
            reads.add_key(index.table, row)?;
            writes.set(index, row.clone(), None);
            let (Some(tree), Some((_, _, key))) = (tree, parts_of(row)) else { continue };
            reads.add_key(tree.table, key)?;
            let expiry = core.reader.expiry_at(snapshot, *tree, key).await?;
            if expiry.is_some_and(|expiry| expiry <= snapshot.moment()) {
                writes.set(*tree, key.to_vec(), None);
                removed += 1;
            }
        }
        let ops = writes.into_ops().collect();
        let reads = Some((snapshot.seq(), reads));
        let commit = Commit { reads, is_unseen: true, ..Commit::blind(ops, Durability::Deferred) };
        core.committer.commit(commit).await?;
        self.removed.fetch_add(removed, Ordering::Relaxed);
        Ok(removed)
    }

    /// Looks up a table by its number; `None` if it was dropped. Keeps what the catalog says of others in `known`.
    async fn look_up(
        &self,
        table: TableId,
        snapshot: &PoolSnapshot,
        known: &mut FxHashMap<TableId, Option<Tree>>,
    ) -> Result<Option<Tree>> {
        let found = self.core.catalog.read(snapshot).await?;
        // A table that is hidden by damage is not known to be gone.
        found.damage.into_iter().next().map_or(Ok(()), Err)?;
        let named = found.tables.into_iter().filter(|(key, _)| is_name(key));
        // It may have been dropped since it was noted.
        known.remove(&table);
        known.extend(named.map(|(_, tree)| (tree.table, Some(tree))));
        Ok(*known.entry(table).or_insert(None))
    }

    /// Finds rows that are due, from where the last step has ended. Returns them, and whether there are no more.
    async fn find(
        &self,
        index: Tree,
        snapshot: &Arc<PoolSnapshot>,
        progress: &mut Progress,
    ) -> Result<(Vec<DueRow>, bool)> {
        let fit = self.core.store.copy_frames_max() / FRAMES_A_ROW / 2;
        let rows_max = if progress.has_lost { 1 } else { fit.clamp(1, ROWS_AT_ONCE) };
        let mut due = Vec::new();
        for _ in 0..TABLES_AT_ONCE {
            let range = KeyRange { start: progress.from.clone(), end: None };
            let mut scan = Scan::new(self.core.reader.clone(), Arc::clone(snapshot), index, range, Direction::Forward);
            scan.set_read_ahead_max(1);
            let next_table = loop {
                let Some((row, _)) = scan.next().await? else {
                    // The end of the index. Rows that are due may have come before the place where the pass began.
                    progress.from.clear();
                    return Ok((due, true));
                };
                let Some((table, look, _)) = parts_of(&row) else {
                    due.push(DueRow { row, tree: None });
                    continue;
                };
                let tree = match progress.tables.get(&table) {
                    Some(tree) => *tree,
                    None => self.look_up(table, snapshot, &mut progress.tables).await?,
                };
                if tree.is_some() && look > snapshot.moment() {
                    break table.0.checked_add(1);
                }
                due.push(DueRow { row, tree });
                if due.len() >= rows_max {
                    return Ok((due, false));
                }
            };
            let Some(next_table) = next_table else {
                progress.from.clear();
                return Ok((due, true));
            };
            progress.from = next_table.to_be_bytes().to_vec();
            if !due.is_empty() {
                return Ok((due, false));
            }
        }
        Ok((due, false))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use nofault_sim::{SimOptions, SimWorld};

    use super::*;
    use crate::clock::ManualClock;
    use crate::db::open::handle::Db;
    use crate::settings::Settings;

    #[test]
    fn a_removal_loses_to_a_put_that_comes_between_its_look_and_its_commit() {
        let clock = ManualClock::at(UNIX_EPOCH + Duration::from_secs(1000));
        let directory = SimWorld::new(1, SimOptions::calm()).directory();
        let settings = Settings { clock: clock.clone().into(), ..Settings::tiny(1) };
        let db = Db::create_in(&directory, &settings).unwrap();
        let table = block_on(db.create_table("t")).unwrap();
        let expired = db.now();
        block_on(table.put_with_expiry("k", "old", expired)).unwrap();
        let (remover, index) = (&db.owner.upkeep.expiry, db.core.expiries.known().unwrap());
        let look = || {
            let snapshot = Arc::new(db.core.store.snapshot());
            let (due, _) = block_on(remover.find(index, &snapshot, &mut Progress::default())).unwrap();
            (snapshot, due)
        };
        // Put again with the same moment, so that it has the same row, and then without one.
        for expiry in [Some(expired), None] {
            let (snapshot, due) = look();
            assert_eq!(due.len(), 1);
            match expiry {
                Some(expiry) => block_on(table.put_with_expiry("k", "new", expiry)).unwrap(),
                None => block_on(table.put("k", "new")).unwrap(),
            }
            let error = block_on(remover.remove(index, &snapshot, &due)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
        }
        assert_eq!(block_on(table.get("k")).unwrap(), Some(b"new".to_vec()));
        let (snapshot, due) = look();
        assert_eq!(block_on(remover.remove(index, &snapshot, &due)).unwrap(), 0, "a row without its entry");
        assert!(look().1.is_empty());
    }

    /// Regression: the removal knew the table that it had begun with, and met its pages, which were free, for ever.
    #[test]
    fn a_table_that_is_dropped_between_two_steps_keeps_no_other_from_losing_its_expired_entries() {
        let clock = ManualClock::at(UNIX_EPOCH + Duration::from_secs(1000));
        let directory = SimWorld::new(1, SimOptions::calm()).directory();
        let settings = Settings { clock: clock.clone().into(), ..Settings::tiny(1) };
        let db = Db::create_in(&directory, &settings).unwrap();
        let (expired, remover) = (db.now(), &db.owner.upkeep.expiry);
        for name in ["goes", "stays"] {
            let table = block_on(db.create_table(name)).unwrap();
            let rows = (0..2 * KEYS_AT_ONCE as u32).map(move |key| (key.to_be_bytes(), "v", Some(expired)));
            block_on(table.bulk_load(rows)).unwrap();
        }
        remover.step().unwrap();
        block_on(db.drop_table("goes")).unwrap();
        assert_eq!(remover.remove_all().unwrap(), 2 * KEYS_AT_ONCE as u64);
    }
}
