//! Reads the durable groups of a log in use, for a tail: the complete records of its commits, in order.
//!
//! It follows the chain of groups as recovery does, and reads no group that is not durable together with all before it.
//! So each group that it reads must be whole; one that is not was moved to another slot while it was read, or is damaged.

use std::sync::Arc;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::Disk;

use super::reader::records::{Part, Records};
use super::tail::{LogHold, too_old};
use super::{Anchor, Log};
use crate::blocks::reread::RepeatedReads;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, GroupHeader, LOG_BLOCK_BYTES, decode_group, payload_of, peek_group, take_fragment};

/// Most bytes read at a time.
const READ_BYTES: u64 = 1 << 20;
/// Least bytes read at a time, if so many are durable: more than a group has, unless a version before 3 wrote it.
const FIRST_READ_BYTES: u64 = 256 << 10;

/// The complete record of a commit.
pub(crate) struct TailRecord {
    pub(crate) commit: CommitSeq,
    /// The time of the group in which the record ends, in milliseconds since 1970; 0 when it is not known.
    pub(crate) time_ms: u64,
    /// The changes, as `format::record` encodes them.
    pub(crate) bytes: Vec<u8>,
    /// A group after which the records of all later commits begin.
    pub(crate) after: Anchor,
    /// The group in which the record ends.
    pub(crate) within: Anchor,
}

/// Follows a log in use.
pub(crate) struct TailReader {
    hold: Arc<LogHold>,
    file: Arc<dyn Disk>,
    /// The last group that was read; the group to begin after, while `at_anchor`.
    last: Anchor,
    /// The position of the next group.
    position: u64,
    /// Whether the next group to be read is `last` itself, to see that it is there.
    at_anchor: bool,
    records: Records,
    /// Sequence number and checksum of a group that must be there.
    wanted: Option<(u64, u64)>,
    /// The part of the record that is being put together.
    bytes: Vec<u8>,
    read_bytes: u64,
    /// The error of a group that is whole and makes no sense: nothing behind it is returned, as records would be left out.
    damage: Option<Error>,
}

impl TailReader {
    /// Begins after a group from which `hold` keeps the log, with the first commit after `after`.
    ///
    /// # Errors
    /// `Unsupported` when the log has no file that can be read.
    pub(crate) fn new(log: &Log, hold: Arc<LogHold>, anchor: Anchor, after: CommitSeq) -> Result<Self> {
        let unreadable = || Error::new(ErrorKind::Unsupported, "the log was opened without a file to read from");
        let file = log.0.file.clone().ok_or_else(unreadable)?;
        let records = Records::new(after);
        let (position, bytes) = (anchor.position, Vec::new());
        Ok(Self {
            hold,
            file,
            last: anchor,
            position,
            at_anchor: true,
            records,
            wanted: None,
            bytes,
            read_bytes: FIRST_READ_BYTES,
            damage: None,
        })
    }

    /// Returns the position up to which the log was read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Reads until it has passed a group that the log had when it was followed before, or fails. Blocks.
    ///
    /// # Errors
    /// `TailTooOld` when the log has another group there, or none: its history is another one. Otherwise as
    /// [`TailReader::read`].
    pub(crate) fn read_beyond(
        &mut self,
        sequence: u64,
        checksum: u64,
        mut take: impl FnMut(TailRecord) -> Result<()>,
    ) -> Result<()> {
        self.wanted = Some((sequence, checksum));
        while self.wanted.is_some() {
            let before = self.position;
            self.read(&mut take)?;
            if self.position == before {
                return Err(too_old(before));
            }
        }
        Ok(())
    }

    /// Reads some of the durable groups, and passes the records that are complete to `take`. Blocks.
    ///
    /// # Errors
    /// `TailTooOld` when the log is not there any more, `Corrupt` when a group is damaged, the error of the disk.
    pub(crate) fn read(&mut self, mut take: impl FnMut(TailRecord) -> Result<()>) -> Result<()> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        let Some(block) = self.next_groups()? else { return Ok(()) };
        let options = self.hold.core().options;
        let mut at = 0;
        while let Some(header) = decode_group(options.file_id, options.segment_bytes, &block[at..])
            && at + header.len_bytes() <= block.len()
            && self.continues(&header)
        {
            let before = self.last;
            self.last = Anchor { position: header.position, sequence: header.sequence, checksum: header.checksum };
            self.position += header.len_bytes() as u64;
            if let Some((sequence, checksum)) = self.wanted
                && header.sequence >= sequence
            {
                if (header.sequence, header.checksum) != (sequence, checksum) {
                    return Err(too_old(header.position));
                }
                self.wanted = None;
            }
            if !std::mem::take(&mut self.at_anchor) {
                let taken = self.take_group(&header, &block[at..], before, &mut take);
                taken.inspect_err(|error| self.damage = Some(error.clone()))?;
            }
            at += header.len_bytes();
        }
        Ok(())
    }

    /// Puts the records together that end in a group; `before` is the group before it.
    fn take_group(
        &mut self,
        header: &GroupHeader,
        block: &[u8],
        before: Anchor,
        take: &mut impl FnMut(TailRecord) -> Result<()>,
    ) -> Result<()> {
        let mut rest = payload_of(header, block)?;
        let mut newest: Option<TailRecord> = None;
        while let Some((head, content)) = take_fragment(header, &mut rest)? {
            match self.records.take(header, head)? {
                Part::Unwanted => continue,
                Part::First => self.bytes.clear(),
                Part::Further => {}
            }
            self.bytes.extend_from_slice(content);
            if head.last {
                let (commit, time_ms, bytes) = (head.commit, header.time_ms, std::mem::take(&mut self.bytes));
                // Records begin in the order of the commits, so later commits' records begin in this group at the earliest.
                let found = TailRecord { commit, time_ms, bytes, after: before, within: self.last };
                newest.replace(found).map_or(Ok(()), &mut *take)?;
            }
        }
        // Behind the last record of a group that nothing has begun after, a tail needs no group but this one.
        let after = if self.records.is_open() { before } else { self.last };
        newest.map(|found| TailRecord { after, ..found }).map_or(Ok(()), take)
    }

    /// Reads a part of the log beginning with the next group, which is whole. `None` when it is not durable yet.
    fn next_groups(&mut self) -> Result<Option<IoBuf>> {
        let mut again = None;
        // Each time the slot is looked up again: the segment may have moved.
        let read = RepeatedReads::on(&*self.file).until_whole(|_| match self.try_next_groups() {
            Err(error) if error.kind() == ErrorKind::TailTooOld => {
                again = Some(error);
                Ok(None)
            }
            done => done,
        });
        match (again, read) {
            (Some(error), _) => Err(error),
            (None, Err(error)) if self.at_anchor && error.kind() == ErrorKind::Corrupt => Err(too_old(self.position)),
            (None, read) => read,
        }
    }

    fn try_next_groups(&mut self) -> Result<Option<IoBuf>> {
        let failed = |error| Error::from_io("read the log for a tail", error);
        let options = self.hold.core().options;
        let Some((offset, durable)) = self.hold.place_of(self.position)? else { return Ok(None) };
        let mut len_bytes = self.read_bytes.min(durable);
        loop {
            let buffer = IoBuf::zeroed(len_bytes as usize, PageKind::Small).map_err(failed)?;
            let completion = self.file.perform(Op::new(0, offset, OpKind::Read(buffer))).map_err(failed)?;
            completion.result.map_err(failed)?;
            let OpKind::Read(block) = completion.op.kind else {
                return Err(Error::new(ErrorKind::Bug, "a read came back as something else"));
            };
            let header = peek_group(&block[..LOG_BLOCK_BYTES], options.segment_bytes).filter(|it| self.continues(it));
            match header {
                // Longer than any group of this version.
                Some(header) if header.len_bytes() as u64 > len_bytes && (header.len_bytes() as u64) <= durable => {
                    len_bytes = header.len_bytes() as u64;
                    continue;
                }
                Some(_) if decode_group(options.file_id, options.segment_bytes, &block).is_some() => {
                    self.read_bytes = (2 * len_bytes).clamp(FIRST_READ_BYTES, READ_BYTES);
                    return Ok(Some(block));
                }
                _ => {}
            }
            let what = format!(
                "group {} of the log, at {}, was durable and cannot be read any more",
                self.last.sequence + u64::from(!self.at_anchor),
                self.position
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
    }

    /// Returns whether a group is the next one.
    fn continues(&self, header: &GroupHeader) -> bool {
        let Anchor { sequence, checksum, .. } = self.last;
        let is_next = if self.at_anchor {
            (header.sequence, header.checksum) == (sequence, checksum)
        } else {
            (header.sequence, header.previous) == (sequence + 1, checksum)
        };
        is_next && header.position == self.position
    }
}

impl std::fmt::Debug for TailReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TailReader(at {})", self.position)
    }
}
