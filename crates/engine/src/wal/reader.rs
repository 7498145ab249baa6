//! Reads the log after a crash: the records that follow the last checkpoint, up to the end of the log.
//!
//! The chain of groups starts at the anchor that the superblock names and continues as long as the next group is whole,
//! where it belongs, and names the one before. Where it stops there are two cases. Groups in flight together
//! may have been lost in any order, so a broken group followed by whole ones can be an honest end: no commit in them
//! was acknowledged. But when some later group says that the missing one *was durable*, then acknowledged commits are
//! damaged: an error ([`beyond`]).
//!
//! One bad read must not end the log: a group, or the anchor, counts as missing only after it was read three times.
//!
//! It reads these parts of the file: the first block of each slot, the groups from the anchor on (and once more while
//! they are replayed, if they do not fit the window), and behind the end as much as is needed to distinguish the end
//! from damage.
//!
//! Only a window of the log is in memory ([`WINDOW_BYTES`]), for any size of segment. It takes no more memory than
//! the groups in flight do later, when there are any, so reading the log needs no extra memory.
//!
//! Invariant: bytes that are read may exist in a cache only, because their write or a sync failed. So groups are
//! written once more, and synced, before any group follows them, unless a later group says that they were durable. A
//! sync alone would not suffice: after a failed sync, the next one does not cover the same writes. None follows them in
//! a log that is only read.
//!
//! While a process writes, the end moves as it is looked for, and the file may become longer than it was when it was opened.
//! All groups from before the reading began are found; which of the later ones are found does not matter.

mod beyond;
mod damaged;
mod file;
pub(super) mod records;

use std::collections::VecDeque;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{Disk, QueueOptions};

use self::beyond::UNKNOWN_SLOTS_MAX;
pub(crate) use self::damaged::read_damaged_log;
use self::file::{Directory, LogFile};
pub(crate) use self::records::RecordIter;
use self::records::Records;
use super::{Anchor, GROUPS_IN_FLIGHT_BYTES, LogOptions, LogPurpose, Mark};
use crate::blocks::reread::READS;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, GroupHeader, LOG_BLOCK_BYTES, has_header_checksum, payload_of, take_fragment};

#[cfg(test)]
mod tests;

/// Bytes of the log that are in memory at a time while it is read. A longer group gets a window of the group's
/// length.
const WINDOW_BYTES: usize = GROUPS_IN_FLIGHT_BYTES;
/// Number of attempts to read a log from its anchor, when groups found before are missing in the next read. After the
/// last attempt this is an error.
const ATTEMPTS: usize = 3;
/// Number of groups that may appear while the log is read and written. After so many the log counts as read: it
/// has all groups from before the reading began, and the writer may go on for ever.
const LATE_GROUPS_MAX: u32 = 16;

/// The result of recovery, from which the log continues.
#[derive(Debug)]
pub(crate) struct RecoveredLog {
    /// The segment in each slot of the file, if that segment is still needed, or lies right before those that are.
    pub(super) slots: Vec<Option<u64>>,
    /// Slots with a copy of a segment that another slot holds, because a move of that segment was interrupted.
    pub(super) copies: Vec<usize>,
    /// The last group of the chain that was found.
    pub(super) last: Anchor,
    /// The log position of the next group to be written.
    pub(super) position: u64,
    pub(super) anchor: Anchor,
    pub(super) marks: Vec<Mark>,
    /// The commit of the last complete record, or of the checkpoint if there is none.
    pub(crate) commit: CommitSeq,
    /// A hash of the groups that were read, including those after the end of the log.
    pub(super) groups: u64,
    /// The sequence number of the last group that a later group, or the superblock, states to be durable.
    pub(super) stated: u64,
    /// The sequence number of the last group that contains a fragment of a record, or of the anchor.
    pub(super) content: u64,
}

/// Reads the chain of groups after `anchor` to its end, and makes durable any of it that was not, unless the log is only
/// read. Memory: the window. Returns the state from which the log continues, and the complete records, which must be
/// read before anything is written.
///
/// # Errors
/// `Corrupt` when the anchor is not there, when a group that had been acknowledged is damaged, or when commits do not
/// come in order; otherwise the error of the disk.
pub(crate) fn read_log(
    disk: &dyn Disk,
    options: &LogOptions,
    anchor: Anchor,
    after: CommitSeq,
) -> Result<(RecoveredLog, RecordIter)> {
    for _ in 0..ATTEMPTS {
        if let Some(read) = try_read(disk, options, anchor, after)? {
            return Ok(read);
        }
    }
    let what =
        "groups of the log are there in one read and gone in the next: the device or its cache drops what was written";
    Err(Error::new(ErrorKind::Io, what))
}

/// Reads the log once. Returns `None` when groups that were found were missing again before they could be made durable.
/// As no caller has seen them, the log may then end before them.
fn try_read(
    disk: &dyn Disk,
    options: &LogOptions,
    anchor: Anchor,
    after: CommitSeq,
) -> Result<Option<(RecoveredLog, RecordIter)>> {
    let mut chain = Chain::open(disk, options, anchor)?;
    let begin = chain.place;
    let mut records = Records::new(after);
    let mut marks = Vec::new();
    let (mut stated, mut content) = (anchor.sequence, anchor.sequence);
    // Begins with the last place that is surely durable.
    let mut places = VecDeque::from([begin]);
    let mut groups = 0;
    loop {
        let Some((header, at)) = chain.next()? else {
            if chain.place.at_anchor {
                break;
            }
            match chain.end()? {
                Some(hash) => groups = hash,
                None => continue,
            }
            break;
        };
        let mut starts = None;
        let mut rest = payload_of(&header, &chain.file.window[at..])?;
        if !rest.is_empty() {
            content = header.sequence;
        }
        while let Some((head, _)) = take_fragment(&header, &mut rest)? {
            if head.first {
                starts = Some(head.commit);
            }
            records.take(&header, head)?;
        }
        marks.push(Mark { anchor: chain.place.last, starts });
        // Earlier versions stated that the groups found at opening were durable, after nothing but a sync.
        if has_header_checksum(&chain.file.window[at..]) {
            stated = stated.max(header.durable_sequence.min(header.sequence - 1));
        }
        places.push_back(chain.place);
        while places.get(1).is_some_and(|place| place.last.sequence <= stated) {
            places.pop_front();
        }
    }
    // The end of the last record may be missing. It will never be written, so checkpoints need not stay before the
    // record's beginning.
    let youngest = Some(records.commit);
    marks.iter_mut().for_each(|mark: &mut Mark| mark.starts = mark.starts.min(youngest));
    let end = chain.place;
    chain.late_groups = 0;
    if end.at_anchor {
        let what = format!(
            "the log does not contain group {} at {}, after which the last checkpoint begins: it is damaged, or older than the data file",
            anchor.sequence, anchor.position
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    if chain.slots_claimed > chain.slots.len() as u64 && !chain.has_grown(disk)? {
        let what = format!(
            "the log file has been cut short: it holds {} of {} segments; restore it or a backup",
            chain.slots.len(),
            chain.slots_claimed
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    let (slots, copies) = (chain.slots.clone(), chain.copies());
    if options.purpose == LogPurpose::Write
        && let Some(place) = places.front()
        && place.last.sequence < end.last.sequence
        && !chain.rewrite(*place, end.position)?
    {
        return Ok(None);
    }
    chain.place = begin;
    let Place { last, position, .. } = end;
    let slots = chain.with_earlier_segments(slots);
    let commit = records.commit;
    let recovered = RecoveredLog { slots, copies, last, position, anchor, marks, commit, groups, stated, content };
    Ok(Some((recovered, RecordIter::new(chain, after, commit))))
}

/// The place in the log up to which the chain of groups has been followed.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The last group found, or the anchor if no group follows it.
    last: Anchor,
    /// The log position of the next group.
    position: u64,
    /// The slot of the next group; `None` when the next group begins a segment.
    slot: Option<usize>,
    /// Whether the next group to be read is the anchor itself.
    at_anchor: bool,
}

/// Follows the log from group to group.
struct Chain {
    file: LogFile,
    directory: Directory,
    anchor: Anchor,
    place: Place,
    slots: Vec<Option<u64>>,
    /// Number of segments that the file had when the last group was written.
    slots_claimed: u64,
    /// Whether another process may append to the log.
    beside_writer: bool,
    /// Number of groups that were missing at first and appeared, as the writer wrote them.
    late_groups: u32,
}

impl Chain {
    fn open(disk: &dyn Disk, options: &LogOptions, anchor: Anchor) -> Result<Self> {
        let mut file = LogFile::open(disk, options)?;
        let directory = file.directory()?;
        let slots = vec![None; file.slot_count()];
        let place = Place { last: anchor, position: anchor.position, slot: None, at_anchor: true };
        let beside_writer = options.purpose == LogPurpose::ReadBesideWriter;
        Ok(Self { file, directory, anchor, place, slots, slots_claimed: 0, beside_writer, late_groups: 0 })
    }

    /// Returns the slots holding a copy of a segment of the chain, which was found in another slot.
    fn copies(&self) -> Vec<usize> {
        let is_copy = |segment, slot: &usize| self.slots[*slot].is_none() && self.slots.contains(&Some(segment));
        let held = self.directory.held.iter();
        held.flat_map(|(segment, slots)| slots.iter().filter(|slot| is_copy(*segment, slot)).copied()).collect()
    }

    /// Adds to the segments in the slots the ones right before the anchor's: recovery does not need them, but a tail may go
    /// on in them until their slots are used again.
    fn with_earlier_segments(&self, mut slots: Vec<Option<u64>>) -> Vec<Option<u64>> {
        let mut segment = self.anchor.position / self.file.segment_bytes;
        while let Some(before) = segment.checked_sub(1)
            && let Some(slot) = self.directory.held.get(&before).and_then(|found| found.first())
            && let Some(free @ None) = slots.get_mut(*slot)
        {
            *free = Some(before);
            segment = before;
        }
        slots
    }

    /// Reads the next group, and returns its offset in the window. `None` at the end of the chain.
    fn next(&mut self) -> Result<Option<(GroupHeader, usize)>> {
        loop {
            let Some((header, start)) = self.find_surely()? else { return Ok(None) };
            self.place.position += header.len_bytes() as u64;
            self.slots_claimed = header.slots;
            if !std::mem::take(&mut self.place.at_anchor) {
                self.place.last =
                    Anchor { position: header.position, sequence: header.sequence, checksum: header.checksum };
                return Ok(Some((header, start)));
            }
        }
    }

    /// Reads the group at the current place. If it is not there, reads it again, up to [`READS`] times in all, and also
    /// the first blocks of all slots if the group must begin a segment.
    fn find_surely(&mut self) -> Result<Option<(GroupHeader, usize)>> {
        let mut found = self.find();
        if matches!(found, Ok(Some(_))) || self.is_followed_enough() {
            return found;
        }
        for attempt in 1..READS {
            self.file.begin_again(attempt)?;
            found = self.find_again();
            self.file.end_again();
            if found.as_ref().is_ok_and(Option::is_some) {
                self.late_groups += 1;
                break;
            }
        }
        found
    }

    /// Returns whether the file has got the segments that the last group claims since it was opened: another process
    /// appends to it. The new segments hold nothing from before the reading began.
    fn has_grown(&self, disk: &dyn Disk) -> Result<bool> {
        if !self.beside_writer {
            return Ok(false);
        }
        let file_bytes = disk.extent_bytes().map_err(|error| Error::from_io("read the log", error))?;
        Ok(file_bytes / self.file.segment_bytes >= self.slots_claimed)
    }

    /// Returns whether a writer has added so many groups that the next ones need not be waited for.
    fn is_followed_enough(&self) -> bool {
        self.beside_writer && self.late_groups >= LATE_GROUPS_MAX
    }

    /// Makes sure that the chain ends where the next group is missing. Returns a hash of the groups behind it; `None`
    /// when the group has been written since, so that the chain continues.
    ///
    /// # Errors
    /// `Corrupt` when a later group says that the missing one was durable.
    fn end(&mut self) -> Result<Option<u64>> {
        if self.is_followed_enough() {
            return Ok(Some(0));
        }
        let refused = match self.refuse_damage() {
            Err(error) if self.beside_writer && error.kind() == ErrorKind::Corrupt => error,
            ended => return ended.map(Some),
        };
        // The later group says so of a time before it was read.
        self.file.begin_again(1)?;
        let found = self.find_again();
        self.file.end_again();
        self.late_groups += 1;
        if found?.is_some() { Ok(None) } else { Err(refused) }
    }

    fn find_again(&mut self) -> Result<Option<(GroupHeader, usize)>> {
        if self.place.slot.is_none() || self.place.position.is_multiple_of(self.file.segment_bytes) {
            self.directory.learn(self.file.directory()?);
        }
        self.find()
    }

    fn find(&mut self) -> Result<Option<(GroupHeader, usize)>> {
        let segment = self.place.position / self.file.segment_bytes;
        let at = self.place.position % self.file.segment_bytes;
        if let Some(slot) = self.place.slot.filter(|_| at != 0) {
            return self.group_at(slot, at);
        }
        let mut slots = self.directory.held.get(&segment).cloned().unwrap_or_default();
        if self.place.at_anchor {
            // Groups before the anchor may be damaged: they are not needed.
            slots.extend(self.directory.unknown.iter().take(UNKNOWN_SLOTS_MAX));
        }
        for slot in slots {
            let found = self.group_at(slot, at)?;
            if found.is_some() {
                self.place.slot = Some(slot);
                self.slots[slot] = Some(segment);
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Reads the group at offset `at` of a slot, if that group continues the chain, and returns its header and its
    /// offset in the window.
    fn group_at(&mut self, slot: usize, at: u64) -> Result<Option<(GroupHeader, usize)>> {
        let (anchor, Place { last, position, at_anchor, .. }) = (self.anchor, self.place);
        self.file.group(slot, at, |header| {
            let continues = if at_anchor {
                (header.sequence, header.checksum) == (anchor.sequence, anchor.checksum)
            } else {
                (header.sequence, header.previous) == (last.sequence + 1, last.checksum)
            };
            continues && header.position == position
        })
    }

    /// Writes the groups from `place` up to position `end` again, with the same bytes, and syncs the file: they may
    /// have been read from a cache of the device and be lost in the next power cut. Returns false when a group that was
    /// whole before can no longer be read.
    fn rewrite(&mut self, place: Place, end: u64) -> Result<bool> {
        self.place = place;
        while self.place.position < end {
            let Some((header, start)) = self.next()? else { return Ok(false) };
            self.file.rewrite(start..start + header.len_bytes());
        }
        self.file.make_durable()?;
        Ok(true)
    }
}

/// Creates the log of a new database in an empty file: two segments, and a first group to be the anchor.
///
/// # Errors
/// The disk's error.
pub(crate) fn create_log(disk: &dyn Disk, options: &LogOptions) -> Result<(Anchor, RecoveredLog)> {
    let failed = |error| Error::from_io("create the log", error);
    let mut queue = disk.queue(&QueueOptions { depth_max: 8, ..QueueOptions::default() }).map_err(failed)?;
    for slot in 0..2 {
        super::growth::prepare_segments(queue.as_mut(), slot * options.segment_bytes, options.segment_bytes)?;
    }
    let mut block = IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small).map_err(failed)?;
    let header = GroupHeader {
        sequence: 1,
        position: 0,
        durable_sequence: 0,
        previous: 0,
        slots: 2,
        opening: 0,
        time_ms: 0,
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
    let recovered = RecoveredLog {
        slots: vec![Some(0), None],
        copies: Vec::new(),
        last: anchor,
        position: LOG_BLOCK_BYTES as u64,
        anchor,
        marks: Vec::new(),
        commit: CommitSeq(0),
        groups: 0,
        stated: 1,
        content: 1,
    };
    Ok((anchor, recovered))
}
