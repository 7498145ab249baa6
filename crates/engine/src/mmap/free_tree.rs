//! The second tree of a mapped file, whose records are lists of free pages: it is read when the file is opened, and written at each
//! commit.
//!
//! Writing changes the tree, which frees and takes pages itself: [`save`] repeats until nothing changes any more, as LMDB does.

use super::free::{Key, RecordChanges, Records};
use super::meta::State;
use super::workspace::Workspace;
use crate::btree::{Chunk, Direction, FoundValue, KeyRange, Portion, Tree};
use crate::error::{Error, ErrorKind};
use crate::format::cell::{CHILD_BYTES, Cell, decode_child, encode_child, inline_value_bytes_max};
use crate::format::{CommitSeq, TableId};
use crate::pages::{Attempt, Pages, Wait};

/// The table id of the tree of free pages.
pub(super) const FREE: TableId = TableId(2);
/// Limit on records taken, and on rounds of saving: only a damaged file exceeds it.
const ROUNDS_MAX: usize = 100;

fn key_bytes(key: Key) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.0.to_be_bytes());
    bytes[8..].copy_from_slice(&key.1.to_be_bytes());
    bytes
}

fn tree(state: State) -> Tree {
    Tree { root: state.free, table: FREE }
}

/// Writes the changes of commit `commit` to the free pages. `settle` runs after each round of changes: it may move
/// pages.
pub(super) fn save(
    work: &mut Workspace<'_>,
    commit: CommitSeq,
    mut settle: impl FnMut(&mut Workspace<'_>) -> Attempt<()>,
) -> Attempt<RecordChanges> {
    // A record must fit with its key into a leaf together with others.
    let ids_max = (inline_value_bytes_max(work.page_bytes()) / CHILD_BYTES).clamp(4, 160);
    settle(work)?;
    let taken = work.free.close();
    for key in &taken {
        tree(work.state).delete(work, &key_bytes(*key))?;
    }
    let mut written = Records::new();
    for _ in 0..ROUNDS_MAX {
        settle(work)?;
        let wanted = work.free.wanted_records(commit, ids_max);
        if wanted == written {
            return Ok(RecordChanges { taken, written });
        }
        for key in written.keys().filter(|key| !wanted.contains_key(*key)) {
            tree(work.state).delete(work, &key_bytes(*key))?;
        }
        for (key, ids) in wanted.iter().filter(|(key, ids)| written.get(*key) != Some(*ids)) {
            let value: Vec<u8> = ids.iter().flat_map(|id| encode_child(*id)).collect();
            tree(work.state).put(work, &key_bytes(*key), Cell::Inline(&value))?;
        }
        written = wanted;
    }
    Err(Wait::Failed(Error::new(ErrorKind::Bug, "writing the list of free pages does not end")))
}

/// Reads all records of free pages.
pub(super) fn load<P: Pages>(pages: &P, state: State) -> Attempt<Records> {
    let (mut records, mut chunk) = (Records::new(), Chunk::default());
    let mut rest = Some(KeyRange { start: Vec::new(), end: None });
    let damaged =
        |what: &str| Wait::Failed(Error::corrupt_page(state.free, format_args!("the list of free pages {what}")));
    while let Some(range) = rest {
        rest = tree(state).scan(pages, &range, Direction::Forward, Portion::ALL, 0, &mut chunk)?;
        for index in 0..chunk.len() {
            let (key, cell) = chunk.entry(index);
            let FoundValue::Inline(value) = FoundValue::from(cell) else { return Err(damaged("holds a long value")) };
            let word = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
            let (Some(commit), Some(number)) = (word(0), word(8)) else { return Err(damaged("has a short key")) };
            let ids: Option<Vec<_>> = value.chunks(CHILD_BYTES).map(decode_child).collect();
            records.insert((commit, number), ids.ok_or_else(|| damaged("ends in the middle of a number"))?);
        }
    }
    Ok(records)
}
