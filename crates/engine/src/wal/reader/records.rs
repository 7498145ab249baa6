//! Puts the records of commits together from the groups of a log, as they are asked for.

use std::ops::Range;

use super::Chain;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    COUNTED_MAX, CommitSeq, FragmentHeader, GROUP_HEADER_BYTES, GroupHeader, payload_of, take_fragment,
};

/// Iterates over the complete records after a checkpoint, in order, reading them as they are requested. Memory: the
/// window.
pub(crate) struct RecordIter {
    pub(super) chain: Chain,
    records: Records,
    /// The group that is being read, and the range of its fragments in the window that were not read yet.
    group: Option<(GroupHeader, Range<usize>)>,
    /// The last commit with a complete record, as [`super::read_log`] found it.
    until: CommitSeq,
    over: bool,
}

impl RecordIter {
    /// Iterates over the records of commits after `after` up to `until`, of a log that [`super::read_log`] has accepted
    /// from its anchor on.
    pub(super) fn new(chain: Chain, after: CommitSeq, until: CommitSeq) -> Self {
        Self { chain, records: Records::new(after), group: None, until, over: after == until }
    }

    /// Appends the next record to `into`, and returns the number of its commit; `None` after the last record. After an
    /// error nothing is appended, and the iterator ends.
    ///
    /// # Errors
    /// The error of the disk, or an error when the log differs from the one that [`super::read_log`] accepted.
    pub(crate) fn next_into(&mut self, into: &mut Vec<u8>) -> Result<Option<CommitSeq>> {
        if self.over {
            return Ok(None);
        }
        let start = into.len();
        let commit = self.build(start, into).inspect_err(|_| {
            into.truncate(start);
        });
        // Reading stops here, because the log behind the last complete record may be overwritten from now on.
        self.over = !matches!(commit, Ok(commit) if commit < self.until);
        commit.map(Some)
    }

    /// Appends the next record to `into`, which has `start` bytes of earlier content, and returns its commit.
    fn build(&mut self, start: usize, into: &mut Vec<u8>) -> Result<CommitSeq> {
        loop {
            let (header, left) = match self.group.take() {
                Some(group) => group,
                None => self.next_group()?,
            };
            let mut rest = &self.chain.file.window[left.clone()];
            while let Some((head, content)) = take_fragment(&header, &mut rest)? {
                match self.records.take(&header, head)? {
                    Part::Unwanted => continue,
                    Part::First => into.truncate(start),
                    Part::Further => {}
                }
                into.extend_from_slice(content);
                if head.last {
                    self.group = Some((header, left.end - rest.len()..left.end));
                    return Ok(head.commit);
                }
            }
        }
    }

    fn next_group(&mut self) -> Result<(GroupHeader, Range<usize>)> {
        let Some((header, at)) = self.chain.next()? else {
            let what = format!("the log ended at {} the second time it was read", self.chain.place.position);
            return Err(Error::new(ErrorKind::Io, what));
        };
        let start = at + GROUP_HEADER_BYTES;
        Ok((header, start..start + payload_of(&header, &self.chain.file.window[at..])?.len()))
    }
}

impl Iterator for RecordIter {
    type Item = Result<(CommitSeq, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = Vec::new();
        self.next_into(&mut record).transpose().map(|commit| commit.map(|commit| (commit, record)))
    }
}

/// Assembles fragments into records.
pub(in crate::wal) struct Records {
    after: CommitSeq,
    building: Option<CommitSeq>,
    /// The last commit of which a complete record was found.
    pub(in crate::wal) commit: CommitSeq,
}

/// The role of a fragment in the record that is being put together.
pub(in crate::wal) enum Part {
    /// A fragment that belongs to no record after the checkpoint, or to a record whose beginning is missing.
    Unwanted,
    /// The first fragment of a record. If the record before it is not complete, that one was abandoned.
    First,
    /// A further fragment of the record that is being put together.
    Further,
}

impl Records {
    pub(in crate::wal) fn new(after: CommitSeq) -> Self {
        Self { after, building: None, commit: after }
    }

    /// Returns whether a record has begun that is not complete.
    pub(in crate::wal) fn is_open(&self) -> bool {
        self.building.is_some()
    }

    /// Adds the next fragment of the log, and returns its role.
    pub(in crate::wal) fn take(&mut self, group: &GroupHeader, head: FragmentHeader) -> Result<Part> {
        if head.first {
            self.building = Some(head.commit);
        }
        if head.commit <= self.after || self.building != Some(head.commit) {
            return Ok(Part::Unwanted);
        }
        if head.commit.0 >= COUNTED_MAX || (head.last && head.commit <= self.commit) {
            let what = format!("log group {}: commit {} comes after {}", group.sequence, head.commit, self.commit);
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        if head.last {
            self.commit = head.commit;
            self.building = None;
        }
        Ok(if head.first { Part::First } else { Part::Further })
    }
}
