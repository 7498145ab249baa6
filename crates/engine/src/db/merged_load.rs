//! Rewrites a table that holds entries: with a run of entries merged into them, or without a range of them. A short
//! run is an ordinary commit instead, and so is the removal of few entries (`read_modify_write`).
//!
//! Right because the entries of the table are read when the load (`bulk`) is the only commit that can change them: the
//! ranges begin when their first entry is asked for.

use std::cell::Cell;

use super::bulk::{self, LoadCommit, Present};
use super::load_entries::{IterEntries, LoadEntry, MergedEntries, SortedEntries, WithFront};
use super::{Batch, Table};
use crate::btree::KeyRange;
use crate::driver::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LateFeature, Moment};
use crate::pages::Durability;

/// Most entries of a run that is committed as any other change.
const SHORT_RUN_ENTRIES: usize = 4096;
/// Most bytes of keys and values of such a run.
const SHORT_RUN_BYTES: usize = 4 << 20;
/// A short run takes at most one of so many bytes that a transaction may take for its read set.
const SHORT_RUN_SHARE: usize = 16;

/// Every key.
const ALL: KeyRange = KeyRange { start: Vec::new(), end: None };

#[cfg(test)]
mod tests;

/// Loads entries into a table that holds some, as [`Table::bulk_load`] documents. Once all were taken, `expires` tells whether
/// any of them expires. Blocks.
pub(super) fn load(table: &Table, entries: &mut dyn SortedEntries, expires: &Cell<bool>) -> Result<u64> {
    let (core, owner) = (&table.db.core, &table.db.owner);
    let bytes_max = SHORT_RUN_BYTES.min(core.read_set_bytes_max / SHORT_RUN_SHARE);
    let (mut count, mut bytes) = (0, 0);
    let mut entries = WithFront::take(entries, |key, value| {
        count += 1;
        bytes += key.len() + value.len();
        count >= SHORT_RUN_ENTRIES || bytes >= bytes_max
    })?;
    if let Some(run) = entries.all() {
        return commit(table, run);
    }
    let loaded = write_anew(table, &mut entries, expires)?;
    owner.free_dropped(&core.dropped);
    Ok(loaded)
}

/// Rewrites a table from its entries and a run, and leaves the content before to be freed. Returns the number
/// of entries in the run. `expires` as for [`load`].
pub(crate) fn write_anew(table: &Table, run: &mut dyn SortedEntries, expires: &Cell<bool>) -> Result<u64> {
    let mut merged = MergedEntries::new(IterEntries::new(entries_of(table, ALL)), run);
    write(table, Present::Replace, &mut merged, expires)?;
    Ok(merged.of_run())
}

/// Removes a range of entries by rewriting the table without them. Returns their number. Blocks.
///
/// # Errors
/// As [`Table::delete_range`].
pub(super) fn write_without(table: &Table, removed: &KeyRange) -> Result<u64> {
    table.db.core.committer.check_call()?;
    let before = KeyRange { start: Vec::new(), end: Some(removed.start.clone()) };
    let after = removed.end.clone().map(|start| KeyRange { start, end: None });
    let present = if removed.start.is_empty() && after.is_none() { Present::Remove } else { Present::Replace };
    let count = Cell::new(0);
    let counted = std::iter::once_with(|| block_on(table.scan(removed.clone()).count_entries()));
    let counted = counted.filter_map(|found| found.map(|found| count.set(found)).err().map(Err));
    let after = after.into_iter().flat_map(|range| entries_of(table, range));
    // The entries that stay have rows already.
    let mut left = IterEntries::new(entries_of(table, before).chain(counted).chain(after));
    write(table, present, &mut left, &Cell::new(false))?;
    table.db.owner.free_dropped(&table.db.core.dropped);
    Ok(count.get())
}

fn write(table: &Table, present: Present, entries: &mut dyn SortedEntries, expires: &Cell<bool>) -> Result<u64> {
    table.db.owner.allow(LateFeature::Properties)?;
    bulk::load(&table.db.core, table.tree, present, entries, expires, &|filled| make_durable(table, filled))
}

/// Makes a load durable, unless the database is unfinished. The superblock names the feature of entries that expire before it leads
/// to any. Blocks.
///
/// # Errors
/// As a checkpoint.
pub(super) fn make_durable(table: &Table, filled: LoadCommit) -> Result<()> {
    let owner = &table.db.owner;
    if filled.expires {
        owner.allow(LateFeature::Expiry)?;
    }
    if table.db.core.waits.is_unfinished() { Ok(()) } else { owner.checkpoint_at(filled.commit) }
}

/// Commits a short run.
fn commit(table: &Table, run: &[LoadEntry<Vec<u8>, Vec<u8>>]) -> Result<u64> {
    if run.windows(2).any(|two| two[0].0 >= two[1].0) {
        return Err(Error::new(ErrorKind::InvalidCall, "bulk load: a key is not above the key before it"));
    }
    let mut batch = Batch::new();
    run.iter().for_each(|(key, value, expiry)| _ = batch.put_until(table, key, value, *expiry));
    block_on(table.db.write(batch, Durability::Sync))?;
    Ok(run.len() as u64)
}

/// The entries of a table in a range, as of the moment when the first is asked for.
fn entries_of(table: &Table, range: KeyRange) -> impl Iterator<Item = Result<LoadEntry<Vec<u8>, Vec<u8>>>> {
    let mut scan = None;
    std::iter::from_fn(move || {
        let scan = scan.get_or_insert_with(|| table.scan(range.clone()));
        let entry = scan.take().map_or_else(|| block_on(scan.next()).transpose(), |entry| Some(Ok(entry)))?;
        let expiry = scan.expiry().map_or(Moment::NEVER, Moment::at_or_after);
        Some(entry.map(|(key, value)| (key, value, expiry)))
    })
}
