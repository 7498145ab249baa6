//! Calls on a table that read and write it in one transaction: each runs again for as long as other commits change what
//! it read, as [`Db::transact`](super::Db::transact) does.
//!
//! They are loops and no closures of `transact`: the caller's closure is changed by each run, and a future that borrows
//! it from run to run would not be `Send`.

use super::retry::Retries;
use super::{Table, merged_load, thread};
use crate::btree::{Direction, KeyRange};
use crate::error::Result;
use crate::format::Moment;
use crate::pages::Durability;

/// The key and the value of an entry.
type Entry = (Vec<u8>, Vec<u8>);

/// Replaces the value of a key by the result of `change`, and returns that. The time at which the key expires stays. When
/// `change` fails, nothing is changed.
///
/// # Errors
/// The error of `change`; as [`Table::update`].
pub(super) async fn update(
    table: &Table,
    key: &[u8],
    mut change: impl FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>>,
) -> Result<Option<Vec<u8>>> {
    let mut retries = Retries::new(Durability::Sync.into())?;
    loop {
        let run = retries.begin(&table.db).await?;
        let before = run.0.get(table, key).await?;
        let expiry = match &before {
            Some(_) if table.db.core.expiries.are_used() => run.0.inner.expiry(table.tree, key).await?,
            _ => None,
        };
        let after = change(before.as_deref())?;
        match &after {
            _ if after == before => {}
            Some(value) => run.0.put_until(table, key, value, expiry.unwrap_or(Moment::NEVER))?,
            None => run.0.delete(table, key)?,
        }
        if retries.commit(run).await? {
            return Ok(after);
        }
    }
}

/// Removes the entry with the first key, and returns it.
///
/// # Errors
/// As [`Table::pop_first`].
pub(super) async fn pop_first(table: &Table) -> Result<Option<Entry>> {
    let mut retries = Retries::new(Durability::Sync.into())?;
    loop {
        let run = retries.begin(&table.db).await?;
        let first = run.0.range::<&[u8]>(table, ..)?.read_ahead_max(0).next().await?;
        if let Some((key, _)) = &first {
            run.0.delete(table, key)?;
        }
        if retries.commit(run).await? {
            return Ok(first);
        }
    }
}

/// Memory for each key that a transaction removes, in addition to the bytes of the key.
const REMOVED_KEY_BYTES: usize = 100;

/// Removes all entries in a range, and returns their number. The table is rewritten without them where their keys
/// take more memory than the read set of a transaction may.
///
/// # Errors
/// As [`Table::delete_range`].
pub(super) async fn delete_range(table: &Table, range: &KeyRange) -> Result<u64> {
    let mut retries = Retries::new(Durability::Sync.into())?;
    loop {
        let run = retries.begin(&table.db).await?;
        let mut scan = run.0.inner.scan(table.tree, range.clone(), Direction::Forward)?;
        scan.set_keys_only();
        let (mut count, mut bytes) = (0, 0);
        while let Some((key, _)) = scan.next().await? {
            bytes += key.len() + REMOVED_KEY_BYTES;
            if bytes > table.db.core.read_set_bytes_max {
                let (table, range) = (table.clone(), range.clone());
                return thread::run("nofault-load", move || merged_load::write_without(&table, &range)).await?;
            }
            run.0.delete(table, key)?;
            count += 1;
        }
        if retries.commit(run).await? {
            return Ok(count);
        }
    }
}
