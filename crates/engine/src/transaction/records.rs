//! The log record of a commit: its changes, one after the other.

use super::{Op, no_such_table};
use crate::btree::Tree;
use crate::error::Result;
use crate::format::TableId;
use crate::format::record::Change;

/// Encodes the complete record of a commit.
pub(crate) fn encode(ops: &[Op]) -> Vec<u8> {
    let mut record = Vec::with_capacity(record_bytes(ops));
    for op in ops {
        let value = op.change().encode_head(&mut record);
        record.extend_from_slice(value);
    }
    record
}

/// Returns an estimate of the record's length, at most 30 bytes too high for each change.
pub(crate) fn record_bytes(ops: &[Op]) -> usize {
    let op_bytes = |op: &Op| match op {
        Op::Put { key, value, .. } => key.len() + value.len() + 34,
        Op::Delete { key, .. } => key.len() + 14,
        Op::CreateTable { name, .. } => name.len() + 5,
        Op::DropTable { name, .. } | Op::SetCompression { name, .. } => name.len() + 15,
        Op::RenameTable { name, to, .. } => name.len() + to.len() + 20,
        Op::SetTypes { name, key, value, .. } => name.len() + key.len() + value.len() + 20,
    };
    ops.iter().map(op_bytes).sum()
}

/// Splits the record of these changes into fragments of `fragment_bytes`, without building the whole record.
pub(crate) fn for_each_fragment(ops: &[Op], fragment_bytes: usize) -> impl Iterator<Item = Vec<u8>> + use<'_> {
    let mut heads = ops.iter();
    let mut fragment = Vec::new();
    let mut value: &[u8] = &[];
    std::iter::from_fn(move || {
        loop {
            let left = fragment_bytes.saturating_sub(fragment.len());
            let (now, later) = value.split_at(value.len().min(left));
            fragment.extend_from_slice(now);
            value = later;
            if fragment.len() >= fragment_bytes {
                let rest = fragment.split_off(fragment_bytes);
                return Some(std::mem::replace(&mut fragment, rest));
            }
            match heads.next() {
                Some(op) => value = op.change().encode_head(&mut fragment),
                None if fragment.is_empty() => return None,
                None => return Some(std::mem::take(&mut fragment)),
            }
        }
    })
}

/// Returns the ops of a record. `root_of` returns the roots of tables, including tables that earlier records created.
///
/// # Errors
/// `Corrupt` when the record is damaged or names a table that does not exist.
pub(crate) fn decode(mut record: &[u8], mut root_of: impl FnMut(TableId) -> Option<Tree>) -> Result<Vec<Op>> {
    let mut tree = |table: TableId| root_of(table).ok_or_else(|| no_such_table(table));
    let mut ops = Vec::new();
    while let Some(change) = Change::decode(&mut record)? {
        ops.push(match change {
            Change::Put { table, key, value, expiry } => {
                Op::Put { tree: tree(table)?, key: key.to_vec(), value: value.to_vec(), expiry }
            }
            Change::Delete { table, key } => Op::Delete { tree: tree(table)?, key: key.to_vec() },
            Change::CreateTable { name, compression } => Op::CreateTable { name: name.to_vec(), compression },
            Change::DropTable { table, name } => Op::DropTable { tree: tree(table)?, name: name.to_vec() },
            Change::SetCompression { table, name, compression } => {
                Op::SetCompression { tree: tree(table)?, name: name.to_vec(), compression }
            }
            Change::RenameTable { table, name, to } => {
                Op::RenameTable { tree: tree(table)?, name: name.to_vec(), to: to.to_vec() }
            }
            Change::SetTypes { table, name, key, value } => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                Op::SetTypes { tree: tree(table)?, name: name.to_vec(), key: text(key), value: text(value) }
            }
        });
    }
    Ok(ops)
}
