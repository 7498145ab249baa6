//! Free pages: which of them a commit takes, and which it frees.
//!
//! They are kept as records in a tree of the same file (`free_tree`). A record's key is the commit that freed its pages and a number, both
//! big-endian, so that the records that may be used come first: those freed by commits that every reader sees already. A commit takes whole
//! records, and writes the pages that it freed or did not use as new ones.

use std::collections::BTreeMap;

use crate::format::{CommitSeq, PageId};

/// The key of a record of free pages: the commit that freed them (0 when any commit may use them), and a number.
pub(super) type Key = (u64, u64);
/// All records of free pages, as the tree has them.
pub(super) type Records = BTreeMap<Key, Vec<PageId>>;

/// The free pages that one commit takes and adds.
pub(super) struct FreePages<'a> {
    records: &'a Records,
    /// Records of commits up to this one may be used.
    usable: CommitSeq,
    taken: Vec<Key>,
    spare: Vec<PageId>,
    freed: Vec<PageId>,
    /// Set while records are written: to take further records then would change the records to be written, without end.
    closed: bool,
}

/// The changes of a commit to [`Records`].
#[derive(Debug, Default)]
pub(super) struct RecordChanges {
    pub(super) taken: Vec<Key>,
    pub(super) written: Records,
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

    /// Returns a page that was taken and is not needed after all.
    pub(super) fn give_back(&mut self, id: PageId) {
        self.spare.push(id);
    }

    /// Takes no more records from now on. Returns the keys of the records taken.
    pub(super) fn close(&mut self) -> Vec<Key> {
        self.closed = true;
        self.taken.clone()
    }

    /// The records, of at most `ids_max` pages each, that commit `commit` has to write for the pages that it freed or did not use.
    pub(super) fn wanted_records(&self, commit: CommitSeq, ids_max: usize) -> Records {
        let freed = self.freed.chunks(ids_max).zip(0..).map(|(ids, number)| ((commit.0, number), ids.to_vec()));
        let spare =
            self.spare.chunks(ids_max).zip(0..).map(|(ids, number)| ((0, commit.0 << 16 | number), ids.to_vec()));
        freed.chain(spare).collect()
    }
}
