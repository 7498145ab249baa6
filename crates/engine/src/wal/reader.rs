//! Reading the log after a crash: which records follow the last checkpoint, and where the log ends.
//!
//! The chain of groups starts at the anchor that the superblock names and goes on as long as the next group is whole, is
//! in its place, and names the one before. Where it stops there are two cases. Groups that were in flight together may have
//! been lost in any order, so a broken group followed by whole ones can be an honest end: nobody was told of any of them.
//! But when some later group says that the missing one *was durable*, then acknowledged commits are damaged: an error.
//!
//! Of the log only a window is in memory ([`WINDOW_BYTES`]), whatever the size of a segment. It takes no more than the groups in
//! flight do later, when there are any, so reading the log needs no memory of its own.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{Disk, Queue, QueueOptions};

use super::{Anchor, GROUPS_IN_FLIGHT_BYTES, LogOptions, Mark};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    COUNTED_MAX, CommitSeq, GROUP_HEADER_BYTES, GroupHeader, LOG_BLOCK_BYTES, PieceHeader, decode_group, payload_of,
    peek_group, take_piece,
};

#[cfg(test)]
mod tests;

/// Bytes of the log in memory while it is read. Groups are smaller; a longer one, if it is the next, takes its length.
const WINDOW_BYTES: usize = GROUPS_IN_FLIGHT_BYTES;

/// What was found, for going on with the log.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Which segment each slot of the file holds, if it is still needed.
    pub(super) slots: Vec<Option<u64>>,
    /// The last group of the chain.
    pub(super) last: Anchor,
    /// Where the next group goes.
    pub(super) position: u64,
    pub(super) anchor: Anchor,
    pub(super) marks: Vec<Mark>,
    /// The last commit whose record is complete, or that of the checkpoint.
    pub(super) commit: CommitSeq,
    /// A hash of all groups that are in the file, those behind the end of the log included.
    pub(super) groups: u64,
}

impl Recovered {
    /// The newest commit that survived.
    pub(crate) fn commit(&self) -> CommitSeq {
        self.commit
    }
}

/// Reads the chain of groups after `anchor` to its end. Memory: the window. Afterwards everything in it is durable, even if
/// it was not before.
///
/// # Errors
/// `Corrupt` when the anchor is not there, when a group that had been acknowledged is damaged, or when commits do not come in
/// order; what the disk says otherwise.
pub(crate) fn read_log(disk: &dyn Disk, options: &LogOptions, anchor: Anchor, after: CommitSeq) -> Result<Recovered> {
    let mut chain = Chain::open(disk, options, anchor)?;
    // What a process that died left in the device's cache must not be lost later, once it has been seen.
    chain.reader.run(OpKind::Sync, 0)?;
    let mut records = Records::new(after);
    let mut marks = Vec::new();
    while let Some((header, at)) = chain.next()? {
        let mut starts = None;
        let mut rest = payload_of(&header, &chain.reader.window[at..])?;
        while let Some((head, _)) = take_piece(&header, &mut rest)? {
            if head.first {
                starts = Some(head.commit);
            }
            records.take(&header, head)?;
        }
        marks.push(Mark { anchor: chain.last, starts });
    }
    // Of the last record the end may be missing. It never comes, so checkpoints need not stay before its beginning.
    let youngest = Some(records.commit);
    marks.iter_mut().for_each(|mark: &mut Mark| mark.starts = mark.starts.min(youngest));
    if chain.at_anchor {
        let what = format!(
            "the log does not contain group {} at {}, after which the last checkpoint begins: it is damaged, or older than the data file",
            anchor.sequence, anchor.position
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    let Chain { mut reader, slots, last, position, slots_claimed, .. } = chain;
    if slots_claimed > slots.len() as u64 {
        let what = format!(
            "the log file has been cut short: it holds {} of {slots_claimed} segments; restore it or a backup",
            slots.len()
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    let groups = reader.refuse_damage(last.sequence + 1, position)?;
    Ok(Recovered { slots, last, position, anchor, marks, commit: records.commit, groups })
}

/// The complete records after a checkpoint, in order, read as they are asked for. Memory: the window.
pub(crate) struct RecordIter {
    chain: Chain,
    records: Records,
    /// The group that is being read, and where in the window the rest of its pieces lies.
    group: Option<(GroupHeader, Range<usize>)>,
    /// The last complete commit, as `read_log` found it.
    until: CommitSeq,
    over: bool,
}

impl RecordIter {
    /// The records of commits after `after` up to `until`, of a log that [`read_log`] has accepted.
    ///
    /// # Errors
    /// What the disk says.
    pub(crate) fn open(
        disk: &dyn Disk,
        options: &LogOptions,
        anchor: Anchor,
        after: CommitSeq,
        until: CommitSeq,
    ) -> Result<Self> {
        let chain = Chain::open(disk, options, anchor)?;
        Ok(Self { chain, records: Records::new(after), group: None, until, over: after == until })
    }

    /// Appends the next record to `into`, and answers whose it is; `None` after the last. Nothing is appended with an error, which
    /// ends it.
    ///
    /// # Errors
    /// What the disk says, or that the log is another one than before.
    pub(crate) fn next_into(&mut self, into: &mut Vec<u8>) -> Result<Option<CommitSeq>> {
        if self.over {
            return Ok(None);
        }
        let start = into.len();
        let commit = self.build(start, into).inspect_err(|_| {
            into.truncate(start);
        });
        // What follows the last complete record may be overwritten from now on.
        self.over = !matches!(commit, Ok(commit) if commit < self.until);
        commit.map(Some)
    }

    /// Builds the next record behind the first `start` bytes of `into`.
    fn build(&mut self, start: usize, into: &mut Vec<u8>) -> Result<CommitSeq> {
        loop {
            let (header, left) = match self.group.take() {
                Some(group) => group,
                None => self.next_group()?,
            };
            let mut rest = &self.chain.reader.window[left.clone()];
            while let Some((head, content)) = take_piece(&header, &mut rest)? {
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
            let what = format!("the log ended at {} the second time it was read", self.chain.position);
            return Err(Error::new(ErrorKind::Io, what));
        };
        let start = at + GROUP_HEADER_BYTES;
        Ok((header, start..start + payload_of(&header, &self.chain.reader.window[at..])?.len()))
    }
}

impl Iterator for RecordIter {
    type Item = Result<(CommitSeq, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = Vec::new();
        self.next_into(&mut record).transpose().map(|commit| commit.map(|commit| (commit, record)))
    }
}

/// Goes from group to group.
struct Chain {
    reader: Reader,
    /// Which slots may hold which segment, by what their first group says.
    candidates: HashMap<u64, Vec<usize>>,
    anchor: Anchor,
    /// Still looking for the anchor.
    at_anchor: bool,
    last: Anchor,
    position: u64,
    slot: Option<usize>,
    slots: Vec<Option<u64>>,
    /// Segments that the file has held according to its groups.
    slots_claimed: u64,
}

impl Chain {
    fn open(disk: &dyn Disk, options: &LogOptions, anchor: Anchor) -> Result<Self> {
        let mut reader = Reader::open(disk, options)?;
        let candidates = reader.candidates()?;
        let slots = vec![None; reader.slot_count()];
        let position = anchor.position;
        Ok(Self {
            reader,
            candidates,
            anchor,
            at_anchor: true,
            last: anchor,
            position,
            slot: None,
            slots,
            slots_claimed: 0,
        })
    }

    /// The next group after the anchor, and where in the window it begins. `None` at the end of the chain.
    fn next(&mut self) -> Result<Option<(GroupHeader, usize)>> {
        loop {
            let segment = self.position / self.reader.segment_bytes;
            let at = self.position % self.reader.segment_bytes;
            let mut next = None;
            if at == 0 || self.slot.is_none() {
                self.slot = None;
                for slot in self.candidates.get(&segment).cloned().unwrap_or_default() {
                    next = self.group_at(slot, at)?;
                    if next.is_some() {
                        self.slot = Some(slot);
                        self.slots[slot] = Some(segment);
                        break;
                    }
                }
            } else if let Some(slot) = self.slot {
                next = self.group_at(slot, at)?;
            }
            let Some((header, start)) = next else { return Ok(None) };
            self.position += header.len_bytes() as u64;
            self.slots_claimed = self.slots_claimed.max(header.slots);
            if !self.at_anchor {
                self.last = Anchor { position: header.position, sequence: header.sequence, checksum: header.checksum };
                return Ok(Some((header, start)));
            }
            self.at_anchor = false;
        }
    }

    /// The group at this place of a slot, if it is the one that continues the chain, and where in the window it begins.
    fn group_at(&mut self, slot: usize, at: u64) -> Result<Option<(GroupHeader, usize)>> {
        let (anchor, last, at_anchor, position) = (self.anchor, self.last, self.at_anchor, self.position);
        self.reader.group(slot, at, |header| {
            let continues = if at_anchor {
                (header.sequence, header.checksum) == (anchor.sequence, anchor.checksum)
            } else {
                (header.sequence, header.previous) == (last.sequence + 1, last.checksum)
            };
            continues && header.position == position
        })
    }
}

/// Knows which pieces make up records.
struct Records {
    after: CommitSeq,
    building: Option<CommitSeq>,
    /// The last commit whose record is complete.
    commit: CommitSeq,
}

/// What a piece is to the record that is being put together.
enum Part {
    /// Of a record before the checkpoint, whose beginning may lie before the anchor.
    Unwanted,
    /// Its first piece. Whatever there was of another one was given up before its end.
    First,
    /// The next one.
    Further,
}

impl Records {
    fn new(after: CommitSeq) -> Self {
        Self { after, building: None, commit: after }
    }

    /// Takes the next piece of the log.
    fn take(&mut self, group: &GroupHeader, head: PieceHeader) -> Result<Part> {
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

/// Reads the log file, a window at a time.
struct Reader {
    queue: Box<dyn Queue>,
    file_bytes: u64,
    file_id: u64,
    segment_bytes: u64,
    window: IoBuf,
    /// Of which slot, and from which byte of it on.
    loaded: Option<(usize, u64)>,
}

impl Reader {
    fn open(disk: &dyn Disk, options: &LogOptions) -> Result<Self> {
        let failed = |error| Error::from_io("open the log", error);
        let queue = disk.queue(&QueueOptions { depth_max: 8, ..QueueOptions::default() }).map_err(failed)?;
        let file_bytes = disk.len_bytes().map_err(failed)?;
        let window_bytes = options.segment_bytes.min(WINDOW_BYTES as u64) as usize;
        // Huge pages would be more than was asked for.
        let window = IoBuf::zeroed(window_bytes, PageKind::Small).map_err(failed)?;
        let (file_id, segment_bytes) = (options.file_id, options.segment_bytes);
        Ok(Self { queue, file_bytes, file_id, segment_bytes, window, loaded: None })
    }

    fn slot_count(&self) -> usize {
        (self.file_bytes / self.segment_bytes) as usize
    }

    fn run(&mut self, kind: OpKind, offset: u64) -> Result<OpKind> {
        let failed = |error| Error::from_io("read the log", error);
        self.queue.push(Op::new(0, offset, kind)).map_err(|refused| failed(refused.error))?;
        let mut done = Vec::new();
        while done.is_empty() {
            self.queue.reap(1, &mut done).map_err(failed)?;
        }
        let completion = done.remove(0);
        completion.result.map_err(failed)?;
        Ok(completion.op.kind)
    }

    /// Sees to it that these bytes of a slot, which lie within the segment, are in the window. Answers where in it they begin.
    fn load(&mut self, slot: usize, at: u64, len_bytes: usize) -> Result<usize> {
        if let Some((of, from)) = self.loaded
            && of == slot
            && at >= from
            && at - from + len_bytes as u64 <= self.window.len() as u64
        {
            return Ok((at - from) as usize);
        }
        self.loaded = None;
        let failed = |error| Error::from_io("read the log", error);
        let empty = IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small).map_err(failed)?;
        let mut buffer = std::mem::replace(&mut self.window, empty);
        if buffer.len() < len_bytes {
            drop(buffer);
            buffer = IoBuf::zeroed(len_bytes.next_multiple_of(LOG_BLOCK_BYTES), PageKind::Small).map_err(failed)?;
        }
        // At the end of a segment the window reaches back.
        let from = at.min(self.segment_bytes - buffer.len() as u64);
        match self.run(OpKind::Read(buffer), slot as u64 * self.segment_bytes + from)? {
            OpKind::Read(buffer) => self.window = buffer,
            _ => return Err(Error::new(ErrorKind::Bug, "a read came back as something else")),
        }
        self.loaded = Some((slot, from));
        Ok((at - from) as usize)
    }

    /// The whole group at this place of a slot, if there is one and its header, unchecked yet, is `wanted`; and where in the
    /// window it begins.
    fn group(
        &mut self,
        slot: usize,
        at: u64,
        wanted: impl FnOnce(&GroupHeader) -> bool,
    ) -> Result<Option<(GroupHeader, usize)>> {
        if at + LOG_BLOCK_BYTES as u64 > self.segment_bytes {
            return Ok(None);
        }
        let start = self.load(slot, at, LOG_BLOCK_BYTES)?;
        let block = &self.window[start..start + LOG_BLOCK_BYTES];
        let claimed = peek_group(block, self.segment_bytes).filter(wanted);
        // What it says of its place need not be true.
        let claimed = claimed.filter(|header| at + header.len_bytes() as u64 <= self.segment_bytes);
        let Some(claimed) = claimed else { return Ok(None) };
        let start = self.load(slot, at, claimed.len_bytes())?;
        let whole = decode_group(self.file_id, self.segment_bytes, &self.window[start..]);
        Ok(whole.map(|header| (header, start)))
    }

    /// Which slots may hold which segment, by what their first group says.
    fn candidates(&mut self) -> Result<HashMap<u64, Vec<usize>>> {
        let mut candidates: HashMap<u64, Vec<usize>> = HashMap::new();
        for slot in 0..self.slot_count() {
            let block = IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small)
                .map_err(|error| Error::from_io("read the log", error))?;
            let OpKind::Read(block) = self.run(OpKind::Read(block), slot as u64 * self.segment_bytes)? else {
                continue;
            };
            if let Some(header) = peek_group(&block, self.segment_bytes)
                && header.position % self.segment_bytes == 0
            {
                candidates.entry(header.position / self.segment_bytes).or_default().push(slot);
            }
        }
        Ok(candidates)
    }

    /// Looks for a group that says that group `missing` was durable. Answers a hash of all that it looked at.
    fn refuse_damage(&mut self, missing: u64, position: u64) -> Result<u64> {
        let segment_bytes = self.segment_bytes;
        let mut groups = DefaultHasher::new();
        for slot in 0..self.slot_count() {
            for at in (0..segment_bytes).step_by(LOG_BLOCK_BYTES) {
                let says_so = |header: &GroupHeader| {
                    groups.write_u64(header.checksum);
                    header.position % segment_bytes == at
                        && header.sequence > missing
                        && header.durable_sequence >= missing
                };
                if let Some((later, _)) = self.group(slot, at, says_so)? {
                    let what = format!(
                        "log group {missing} at {position} is damaged: group {} at {} was written after it had been made durable. Commits from there on cannot be replayed; restore from a backup",
                        later.sequence, later.position
                    );
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
            }
        }
        Ok(groups.finish())
    }
}

/// Creates the log of a new database in an empty file: two segments, and a first group to be the anchor.
///
/// # Errors
/// What the disk says.
pub(crate) fn create_log(disk: &dyn Disk, options: &LogOptions) -> Result<(Anchor, Recovered)> {
    let failed = |error| Error::from_io("create the log", error);
    let mut queue = disk.queue(&QueueOptions { depth_max: 8, ..QueueOptions::default() }).map_err(failed)?;
    for slot in 0..2 {
        super::drive::add_segment(queue.as_mut(), slot * options.segment_bytes, options.segment_bytes)?;
    }
    let mut block = IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small).map_err(failed)?;
    let header = GroupHeader {
        sequence: 1,
        position: 0,
        durable_sequence: 0,
        previous: 0,
        slots: 2,
        opening: 0,
        payload_bytes: 0,
        checksum: 0,
    };
    let checksum = crate::format::encode_group(options.file_id, &header, &mut block);
    queue.push(Op::new(0, 0, OpKind::write(block, true))).map_err(|refused| failed(refused.error))?;
    let mut done = Vec::new();
    while done.is_empty() {
        queue.reap(1, &mut done).map_err(failed)?;
    }
    done.remove(0).result.map_err(failed)?;
    let anchor = Anchor { position: 0, sequence: 1, checksum };
    let recovered = Recovered {
        slots: vec![Some(0), None],
        last: anchor,
        position: LOG_BLOCK_BYTES as u64,
        anchor,
        marks: Vec::new(),
        commit: CommitSeq(0),
        groups: 0,
    };
    Ok((anchor, recovered))
}
