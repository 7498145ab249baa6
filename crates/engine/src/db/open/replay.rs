//! Replays the log: the records of many commits together, so that a page that many of them changed is copied and sealed once.
//!
//! There are no readers yet, so the states in between need not exist: only the state after the last record counts.
//!
//! Records are gathered as they lie in the log, without an allocation for each; only the positions of their changes are
//! sorted. All of it fits in memory that the database will use for other things later and that is still unused.
//!
//! A damaged page of the catalog hides tables. Records that change one of them stay in the log, and so do all later ones: no checkpoint
//! is made any more, and nothing can be committed. The other tables are brought up to date and can be read.
//!
//! Kept true by: changes are applied in the order of their keys, but of each key the youngest one alone. A commit that
//! creates or removes a table is applied by itself, after everything before it, because the table's id is the commit's
//! number.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::btree::Tree;
use crate::db::calls::catalog::Entries;
use crate::db::calls::core::Core;
use crate::db::calls::tables::FixedTables;
use crate::db::upkeep::dictionaries::refuse_unavailable;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Progress;
use crate::format::catalog::{is_name, is_to_be_freed, loaded_table, to_be_freed};
use crate::format::record::Change;
use crate::format::{CommitSeq, Moment, TableId};
use crate::pages::{CommitLog, ReservationKind, Store};
use crate::sync::driver::block_on;
use crate::transaction::{self, CATALOG, Op};
use crate::wal::RecordIter;

/// Number of changes applied together; `OP_BYTES_AT_ONCE` bounds their bytes as well.
const OPS_AT_ONCE: usize = 1024;
const OP_BYTES_AT_ONCE: usize = 256 << 10;

/// Pages that a group of changes touches besides the pages of its keys and of its bytes.
const EXTRA_PAGES: usize = 16;

/// A replay of the log, with the records gathered so far.
pub(in crate::db) struct Replay<S: Store, L: CommitLog> {
    core: Arc<Core<S, L>>,
    tables: FxHashMap<TableId, Tree>,
    hidden: Option<HiddenTables>,
    bytes_max: usize,
    changes_max: usize,
    /// The gathered records in the log's encoding. `changes` refers to them.
    bytes: Vec<u8>,
    changes: Vec<PendingChange>,
    last: Option<CommitSeq>,
}

/// Handles tables whose entries are in a damaged page of the catalog.
struct HiddenTables {
    /// The tables whose entries can be read, by name.
    tables: BTreeMap<Vec<u8>, Tree>,
    /// The error that a damaged catalog page gave.
    error: Error,
    /// Called before the first record is skipped: no checkpoint may be made from then on.
    stop_checkpoints: Box<dyn Fn(&Error)>,
    /// Whether `stop_checkpoints` was called.
    stopped: bool,
}

impl HiddenTables {
    /// Notes that a record cannot be replayed in full.
    fn leave(&mut self) {
        if !std::mem::replace(&mut self.stopped, true) {
            let what =
                "changes of tables whose names or roots it holds wait in the log, so nothing more can be written";
            self.error = Error::new(ErrorKind::Corrupt, format!("{}; {what}", self.error));
            (self.stop_checkpoints)(&self.error);
        }
    }
}

/// A change of one key, as a position in the gathered bytes.
#[derive(Debug, Clone, Copy)]
struct PendingChange {
    table: TableId,
    /// The first bytes of the key after the prefix that all gathered keys of the table share: enough for most
    /// comparisons. Set before sorting.
    head: u64,
    /// Offset of the key, which the value follows. Later changes have larger offsets.
    start: usize,
    key_len: usize,
    /// Length of the value, and the moment at which it expires; `None` when the change removes the key.
    value: Option<(usize, Moment)>,
}

impl PendingChange {
    fn key<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.start..self.start + self.key_len]
    }

    /// Compares changes by table and key.
    fn compare(&self, other: &Self, bytes: &[u8]) -> Ordering {
        let heads = (self.table, self.head).cmp(&(other.table, other.head));
        heads.then_with(|| self.key(bytes).cmp(other.key(bytes)))
    }

    fn op(&self, bytes: &[u8], tree: Tree) -> Op {
        let (key, value_at) = (self.key(bytes).to_vec(), self.start + self.key_len);
        match self.value {
            Some((len, expiry)) => Op::Put { tree, key, value: bytes[value_at..value_at + len].to_vec(), expiry },
            None => Op::Delete { tree, key },
        }
    }
}

/// Returns the first eight bytes of a key as a number that orders as keys do, up to ties.
fn head_of(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

/// Sets the `head` of each change: the bytes of its key after the prefix that all keys of the table share.
fn set_heads(changes: &mut [PendingChange], bytes: &[u8]) {
    let mut shared: FxHashMap<TableId, &[u8]> = FxHashMap::default();
    for change in &*changes {
        let key = change.key(bytes);
        let prefix = shared.entry(change.table).or_insert(key);
        if !key.starts_with(prefix) {
            let same = prefix.iter().zip(key).take_while(|(a, b)| a == b).count();
            *prefix = &prefix[..same];
        }
    }
    for change in changes {
        let shared = shared.get(&change.table).map_or(0, |prefix| prefix.len());
        change.head = head_of(&change.key(bytes)[shared..]);
    }
}

impl<S: Store, L: CommitLog> Replay<S, L> {
    /// Begins with the tables that there are before the first record. Takes `memory_bytes_max` at the most, but for a single
    /// record longer. `stop_checkpoints` is called if records must stay in the log.
    pub(in crate::db) fn new(
        core: Arc<Core<S, L>>,
        catalog: &Entries,
        stop_checkpoints: Box<dyn Fn(&Error)>,
        memory_bytes_max: usize,
    ) -> Self {
        let Entries { tables: entries, damage, .. } = catalog;
        let mut tables = FxHashMap::from_iter([(CATALOG.table, CATALOG)]);
        // The content that a table had before a load has the same id, and another root.
        let in_use = entries.iter().filter(|(key, _)| !is_to_be_freed(key));
        tables.extend(in_use.map(|(_, tree)| (tree.table, *tree)));
        let hidden = damage.first().cloned().map(|error| {
            let tables = entries.iter().filter(|(key, _)| is_name(key)).cloned().collect();
            HiddenTables { tables, error, stop_checkpoints, stopped: false }
        });
        let bytes_max = memory_bytes_max / 3 * 2;
        let changes_max = (memory_bytes_max / 3 / size_of::<PendingChange>()).max(1);
        // Reserved at once, so that growing never holds the old and the new memory together; unused memory is never
        // touched.
        let (bytes, changes) = (Vec::with_capacity(bytes_max), Vec::with_capacity(changes_max));
        Self { core, tables, hidden, bytes_max, changes_max, bytes, changes, last: None }
    }

    /// Replays all of `records`, and returns how many there were. Blocks.
    ///
    /// # Errors
    /// `Corrupt` for a malformed record; the errors of reading the log and pages.
    pub(in crate::db) fn run(mut self, mut records: RecordIter) -> Result<u64> {
        let mut progress = Progress::new("replay");
        loop {
            let start = self.bytes.len();
            match records.next_into(&mut self.bytes)? {
                Some(seq) => self.take(seq, start)?,
                None => break,
            }
            progress.add(1);
        }
        self.apply()?;
        if let Some(HiddenTables { tables, error, stopped: true, .. }) = self.hidden {
            self.core.commits.poison(&error);
            self.core.tables.fix(FixedTables { tables, error });
        }
        Ok(progress.done())
    }

    /// Adds the record of commit `seq`: the gathered bytes from `start` on.
    fn take(&mut self, seq: CommitSeq, start: usize) -> Result<()> {
        let before = self.changes.len();
        let mut rest = &self.bytes[start..];
        let mut known = None;
        while let Some(change) = Change::decode(&mut rest)? {
            let (table, key, value) = match change {
                Change::Put { table, key, value, expiry } => (table, key, Some((value.len(), expiry))),
                // The marker of a load: the key is never there.
                Change::Delete { table: TableId::CATALOG, key } if loaded_table(key).is_some() => continue,
                Change::Delete { table, key } => (table, key, None),
                Change::CreateTable { .. }
                | Change::DropTable { .. }
                | Change::SetCompression { .. }
                | Change::RenameTable { .. }
                | Change::SetTypes { .. } => {
                    self.changes.truncate(before);
                    return self.apply_alone(seq, start);
                }
            };
            let is_hidden = known != Some(table) && !self.tables.contains_key(&table);
            // The entry of a dictionary.
            if is_hidden || (table == CATALOG.table && self.hidden.is_some() && !self.is_catalog_sound(key)) {
                match &mut self.hidden {
                    Some(hidden) => hidden.leave(),
                    None => return Err(transaction::no_such_table(table)),
                }
                continue;
            }
            known = Some(table);
            let key_at = self.bytes.len() - rest.len() - value.map_or(0, |(len, _)| len) - key.len();
            self.changes.push(PendingChange { table, head: 0, start: key_at, key_len: key.len(), value });
        }
        self.last = Some(seq);
        // On a disk that is nearly full a few at a time: a checkpoint can be made between two lots, and not within one.
        let short = self.pages(self.changes.len()) as u64 > self.core.store.spare_pages() / 2;
        let full = self.bytes.len() >= self.bytes_max || self.changes.len() >= self.changes_max;
        if full || short { self.apply() } else { Ok(()) }
    }

    /// Returns an upper bound for the pages that so many gathered changes touch.
    fn pages(&self, changes: usize) -> usize {
        let there = usize::try_from(self.core.store.page_count()).unwrap_or(usize::MAX).min(changes);
        there + self.bytes.len().div_ceil(self.core.store.page_bytes()) * 3 + EXTRA_PAGES
    }

    /// Applies a commit that creates, drops or changes tables. Its record is the gathered bytes from `start` on.
    fn apply_alone(&mut self, seq: CommitSeq, start: usize) -> Result<()> {
        let record = self.bytes[start..].to_vec();
        self.bytes.truncate(start);
        self.apply()?;
        let ops = match transaction::decode(&record, |table| self.tables.get(&table).copied()) {
            Ok(ops) if ops.iter().any(|op| refused_compression(op).is_err()) => {
                return ops.iter().try_for_each(refused_compression);
            }
            Ok(ops) if self.hidden.is_none() || self.is_catalog_sound_for(&ops) => ops,
            Err(error) if self.hidden.is_none() => return Err(error),
            _ => {
                self.leave_alone(&record)?;
                // The number of the next commit follows this number.
                self.last = Some(seq);
                return Ok(());
            }
        };
        let _reservation = block_on(self.core.reservations.reserve(EXTRA_PAGES, ReservationKind::Reserve)).ok();
        self.core.committer.large.replay(seq, std::iter::once(Ok(ops.clone())))?;
        self.core.tables.note_renamed(&ops, seq);
        for op in ops {
            match op {
                Op::CreateTable { name, .. } => {
                    let tree = block_on(self.core.catalog.table(&name))?;
                    self.tables.insert(tree.table, tree);
                    if let Some(hidden) = &mut self.hidden {
                        hidden.tables.insert(name, tree);
                    }
                }
                Op::DropTable { tree, name } => {
                    self.core.tables.dropped(tree, &name, seq);
                    self.tables.remove(&tree.table);
                    if let Some(hidden) = &mut self.hidden {
                        hidden.tables.remove(&name);
                    }
                }
                Op::RenameTable { tree, name, to } => {
                    if let Some(hidden) = &mut self.hidden {
                        hidden.tables.remove(&name);
                        hidden.tables.insert(to, tree);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns whether the catalog pages that lead to this key can be read.
    fn is_catalog_sound(&self, key: &[u8]) -> bool {
        let look = || CATALOG.get(&self.core.store.latest_published(), key);
        block_on(self.core.reader.loader.attempt(look)).is_ok()
    }

    /// Returns whether the catalog pages that these changes touch, and the roots that they move, can be read.
    fn is_catalog_sound_for(&self, ops: &[Op]) -> bool {
        let is_sound = |key: &[u8]| self.is_catalog_sound(key);
        ops.iter().all(|op| match op {
            Op::CreateTable { name, .. } | Op::SetCompression { name, .. } | Op::SetTypes { name, .. } => {
                is_sound(name)
            }
            Op::RenameTable { name, to, .. } => is_sound(name) && is_sound(to),
            Op::DropTable { tree, name } => is_sound(name) && is_sound(&to_be_freed(tree.table)),
            Op::Put { .. } | Op::Delete { .. } => true,
        })
    }

    /// Leaves a record in the log that creates, removes or changes tables in a damaged page of the catalog. A table
    /// that it removes is gone, and one that it renames has the new name. A table whose old entry is hidden stays so:
    /// changes of its rows were left out.
    fn leave_alone(&mut self, mut record: &[u8]) -> Result<()> {
        let Some(hidden) = &mut self.hidden else { return Ok(()) };
        hidden.leave();
        while let Some(change) = Change::decode(&mut record)? {
            let (Change::DropTable { name, .. } | Change::RenameTable { name, .. }) = change else { continue };
            let Some(tree) = hidden.tables.remove(name) else { continue };
            match change {
                Change::RenameTable { to, .. } => drop(hidden.tables.insert(to.to_vec(), tree)),
                _ => drop(self.tables.remove(&tree.table)),
            }
        }
        Ok(())
    }

    /// Applies the gathered changes and empties the list.
    fn apply(&mut self) -> Result<()> {
        // A commit without changes counts as well: the next one's number follows it.
        if let Some(last) = self.last.take() {
            let bytes = &self.bytes;
            set_heads(&mut self.changes, bytes);
            let pages = self.pages(self.changes.len());
            // Of one key the youngest change first, because the first one is kept.
            let by_key = |a: &PendingChange, b: &PendingChange| a.compare(b, bytes).then(b.start.cmp(&a.start));
            self.changes.sort_unstable_by(by_key);
            self.changes.dedup_by(|older, younger| older.compare(younger, bytes).is_eq());
            // Every commit found free blocks when it was made, so there are enough now, at the latest after a checkpoint of the
            // commits replayed so far.
            let _reservation = block_on(self.core.reservations.reserve(pages, ReservationKind::Reserve)).ok();
            self.core.committer.large.replay(last, portions(&self.changes, bytes, &self.tables))?;
        }
        self.bytes.clear();
        self.changes.clear();
        Ok(())
    }
}

/// Fails for a change that makes a table use a compression that this build does not have.
fn refused_compression(op: &Op) -> Result<()> {
    match op {
        Op::CreateTable { compression, .. } | Op::SetCompression { compression, .. } => {
            refuse_unavailable(*compression)
        }
        _ => Ok(()),
    }
}

/// Splits the changes into lists of bounded size.
fn portions<'r>(
    mut changes: &'r [PendingChange],
    bytes: &'r [u8],
    tables: &'r FxHashMap<TableId, Tree>,
) -> impl Iterator<Item = Result<Vec<Op>>> + 'r {
    std::iter::from_fn(move || {
        let (mut ops, mut op_bytes) = (Vec::new(), 0);
        while let Some((change, rest)) = changes.split_first()
            && ops.len() < OPS_AT_ONCE
            && op_bytes < OP_BYTES_AT_ONCE
        {
            let Some(tree) = tables.get(&change.table) else {
                return Some(Err(Error::new(ErrorKind::Bug, "a table vanished while its changes were gathered")));
            };
            ops.push(change.op(bytes, *tree));
            op_bytes += change.key_len + change.value.map_or(0, |(len, _)| len);
            changes = rest;
        }
        (!ops.is_empty()).then_some(Ok(ops))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(parts: &[(u64, &[u8])], bytes: &mut Vec<u8>) -> Vec<PendingChange> {
        let one = |(table, key): &(u64, &[u8])| {
            let start = bytes.len();
            bytes.extend_from_slice(key);
            PendingChange { table: TableId(*table), head: 0, start, key_len: key.len(), value: None }
        };
        parts.iter().map(one).collect()
    }

    proptest::proptest! {
        #[test]
        fn heads_keep_the_order_of_tables_and_keys(
            parts in proptest::collection::vec((0u64..3, "(pre|prefix0|)[ab0]{0,12}"), 1..40),
        ) {
            let mut bytes = Vec::new();
            let parts: Vec<(u64, &[u8])> = parts.iter().map(|(table, key)| (*table, key.as_bytes())).collect();
            let mut changes = gathered(&parts, &mut bytes);
            set_heads(&mut changes, &bytes);
            for (a, of_a) in changes.iter().zip(&parts) {
                for (b, of_b) in changes.iter().zip(&parts) {
                    proptest::prop_assert_eq!(a.compare(b, &bytes), of_a.cmp(of_b));
                }
            }
        }
    }
}
