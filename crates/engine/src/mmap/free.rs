//! Free pages: a second tree in the same file, whose records are lists of page numbers.
//!
//! A record's key is the commit that freed its pages and a number, both big-endian, so that the records that may be
//! used come first: those freed by commits that every reader sees already. A commit takes whole records, and writes the pages
//! that it freed or did not use as new ones. Doing so changes the tree, which frees and takes pages itself: [`save`]
//! repeats until nothing changes any more, as LMDB does.

use std::collections::BTreeMap;

use super::meta::State;
use super::workspace::Workspace;
use crate::error::{Error, ErrorKind};
use crate::format::node::{CHILD_BYTES, Cell, decode_child, encode_child, inline_value_bytes_max};
use crate::format::{CommitSeq, PageId, TableId};
use crate::pages::{Attempt, Pages, Wait};
use crate::tree::{Chunk, Direction, Found, KeyRange, Portion, Tree};

/// The table that free pages are kept in.
pub(super) const FREE: TableId = TableId(2);
/// Records taken, or rounds of saving, that no sound file needs.
const ROUNDS_MAX: usize = 100;

/// The commit that freed the pages (0 for any), and a number.
type Key = (u64, u64);
/// All records, as they are in the tree.
pub(super) type Records = BTreeMap<Key, Vec<PageId>>;

/// Which pages a commit takes and frees.
pub(super) struct FreePages<'a> {
    records: &'a Records,
    /// Records of commits up to this one may be used.
    usable: CommitSeq,
    taken: Vec<Key>,
    spare: Vec<PageId>,
    freed: Vec<PageId>,
    /// While records are written no more are taken, or it would never end.
    closed: bool,
}

/// The changes of a commit to [`Records`].
#[derive(Debug, Default)]
pub(super) struct RecordChanges {
    taken: Vec<Key>,
    written: Records,
}

impl RecordChanges {
    pub(super) fn apply(self, records: &mut Records) {
        for key in self.taken {
            records.remove(&key);
        }
        records.extend(self.written);
    }
}

impl<'a> FreePages<'a> {
    pub(super) fn new(records: &'a Records, usable: CommitSeq) -> Self {
        Self { records, usable, taken: Vec::new(), spare: Vec::new(), freed: Vec::new(), closed: false }
    }

    /// Takes an unused page, if there is one.
    pub(super) fn take(&mut self) -> Option<PageId> {
        if self.spare.is_empty() && !self.closed {
            let next = match self.taken.last() {
                None => self.records.iter().next(),
                Some(last) => self.records.range((std::ops::Bound::Excluded(*last), std::ops::Bound::Unbounded)).next(),
            };
            if let Some((key, pages)) = next.filter(|(key, _)| key.0 <= self.usable.0) {
                self.taken.push(*key);
                self.spare.clone_from(pages);
            }
        }
        self.spare.pop()
    }

    /// Frees a page that the state before this commit used: it can be reused once no reader needs that state.
    pub(super) fn give(&mut self, id: PageId) {
        self.freed.push(id);
    }

    /// A page that was taken and is not needed after all.
    pub(super) fn give_back(&mut self, id: PageId) {
        self.spare.push(id);
    }

    fn wanted_records(&self, commit: CommitSeq, ids_max: usize) -> Records {
        let freed = self.freed.chunks(ids_max).zip(0..).map(|(ids, number)| ((commit.0, number), ids.to_vec()));
        let spare =
            self.spare.chunks(ids_max).zip(0..).map(|(ids, number)| ((0, commit.0 << 16 | number), ids.to_vec()));
        freed.chain(spare).collect()
    }
}

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
    // A record must fit with its key into a leaf beside others.
    let ids_max = (inline_value_bytes_max(work.page_bytes()) / CHILD_BYTES).clamp(4, 160);
    settle(work)?;
    work.free.closed = true;
    let taken = work.free.taken.clone();
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
    Err(Wait::Failed(Error::new(ErrorKind::Bug, "writing down the free pages does not come to an end")))
}

/// Reads all records.
pub(super) fn load<P: Pages>(pages: &P, state: State) -> Attempt<Records> {
    let (mut records, mut chunk) = (Records::new(), Chunk::default());
    let mut rest = Some(KeyRange { start: Vec::new(), end: None });
    let damaged =
        |what: &str| Wait::Failed(Error::corrupt_page(state.free, format_args!("the list of free pages {what}")));
    while let Some(range) = rest {
        rest = tree(state).scan(pages, &range, Direction::Forward, Portion::ALL, 0, &mut chunk)?;
        for index in 0..chunk.len() {
            let (key, cell) = chunk.entry(index);
            let Found::Inline(value) = Found::from(cell) else { return Err(damaged("holds a long value")) };
            let word = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
            let (Some(commit), Some(number)) = (word(0), word(8)) else { return Err(damaged("has a short key")) };
            let ids: Option<Vec<_>> = value.chunks(CHILD_BYTES).map(decode_child).collect();
            records.insert((commit, number), ids.ok_or_else(|| damaged("ends in the middle of a number"))?);
        }
    }
    Ok(records)
}
