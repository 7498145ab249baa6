//! Reading the log after a crash: which records follow the last checkpoint, and where the log ends.
//!
//! The chain of groups starts at the anchor that the superblock names and goes on as long as the next group is whole, is
//! in its place, and names the one before. Where it stops there are two cases. Groups that were in flight together may have
//! been lost in any order, so a broken group followed by whole ones can be an honest end: nobody was told of any of them.
//! But when some later group says that the missing one *was durable*, then acknowledged commits are damaged: an error.

use std::collections::HashMap;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{Disk, Queue, QueueOptions};

use super::{Anchor, LogOptions, Mark};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, GroupHeader, LOG_BLOCK_BYTES, decode_group, peek_group, pieces_of};

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
}

impl Recovered {
    /// The newest commit that survived.
    pub(crate) fn commit(&self) -> CommitSeq {
        self.commit
    }
}

/// Reads what follows `anchor` and gives each complete record after commit `after` to `replay`: its commit and its pieces.
/// Memory: two segments, and the largest record. Afterwards everything read is durable, even if it was not before.
///
/// # Errors
/// `Corrupt` when the anchor is not there, or when a group that had been acknowledged is damaged; what the disk or `replay`
/// says otherwise.
pub(crate) fn read_log(
    disk: &dyn Disk,
    options: &LogOptions,
    anchor: Anchor,
    after: CommitSeq,
    replay: &mut dyn FnMut(CommitSeq, &[Vec<u8>]) -> Result<()>,
) -> Result<Recovered> {
    let mut reader = Reader::open(disk, options)?;
    // What a process that died left in the device's cache must not be lost later, once it has been seen.
    reader.run(OpKind::Sync, 0)?;
    let candidates = reader.candidates()?;
    let mut records = Records { after, building: None, pieces: Vec::new(), piece: Vec::new(), commit: after };
    let mut slots: Vec<Option<u64>> = vec![None; reader.slot_count()];
    let mut marks = Vec::new();
    let (mut last, mut position) = (anchor, anchor.position);
    let mut at_anchor = true;
    'segments: loop {
        let segment = position / options.segment_bytes;
        let inside = position % options.segment_bytes;
        let holders = candidates.get(&segment).cloned().unwrap_or_default();
        let mut entered = None;
        for slot in holders {
            reader.load(slot)?;
            let header = decode_group(options.file_id, options.segment_bytes, &reader.segment[inside as usize..]);
            let continues = |header: &GroupHeader| {
                header.position == position
                    && if at_anchor {
                        (header.sequence, header.checksum) == (anchor.sequence, anchor.checksum)
                    } else {
                        (header.sequence, header.previous) == (last.sequence + 1, last.checksum)
                    }
            };
            if header.as_ref().is_some_and(continues) {
                entered = Some(slot);
                break;
            }
        }
        let Some(slot) = entered else { break };
        slots[slot] = Some(segment);
        let mut inside = inside as usize;
        while inside < options.segment_bytes as usize {
            let block = &reader.segment[inside..];
            let header = decode_group(options.file_id, options.segment_bytes, block);
            let next = |header: &GroupHeader| {
                at_anchor
                    || (header.position, header.sequence, header.previous)
                        == (position, last.sequence + 1, last.checksum)
            };
            let Some(header) = header.filter(next) else { break 'segments };
            if at_anchor {
                at_anchor = false;
            } else {
                let starts = records.take(&header, block, replay)?;
                last = Anchor { position, sequence: header.sequence, checksum: header.checksum };
                marks.push(Mark { anchor: last, starts });
            }
            position += header.len_bytes() as u64;
            inside += header.len_bytes();
        }
    }
    if at_anchor {
        let what = format!(
            "the log does not contain group {} at {}, after which the last checkpoint begins: it is damaged, or older than the data file",
            anchor.sequence, anchor.position
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    reader.refuse_damage(last.sequence + 1, position)?;
    Ok(Recovered { slots, last, position, anchor, marks, commit: records.commit })
}

/// Puts pieces together to records.
struct Records {
    after: CommitSeq,
    building: Option<CommitSeq>,
    pieces: Vec<Vec<u8>>,
    piece: Vec<u8>,
    commit: CommitSeq,
}

impl Records {
    /// Takes the pieces of a group. Answers the youngest commit whose record starts in it.
    fn take(
        &mut self,
        header: &GroupHeader,
        block: &[u8],
        replay: &mut dyn FnMut(CommitSeq, &[Vec<u8>]) -> Result<()>,
    ) -> Result<Option<CommitSeq>> {
        let mut starts = None;
        for (head, content) in pieces_of(header, block)? {
            if head.first {
                starts = Some(head.commit);
                self.building = Some(head.commit);
                self.pieces.clear();
                self.piece.clear();
            }
            if head.commit <= self.after || self.building != Some(head.commit) {
                // Part of a record before the checkpoint, whose beginning may lie before the anchor.
                continue;
            }
            self.piece.extend_from_slice(content);
            if head.ends {
                self.pieces.push(std::mem::take(&mut self.piece));
            }
            if head.last {
                if head.commit <= self.commit {
                    let what =
                        format!("log group {}: commit {} comes after {}", header.sequence, head.commit, self.commit);
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
                replay(head.commit, &self.pieces)?;
                self.commit = head.commit;
                self.building = None;
            }
        }
        Ok(starts)
    }
}

/// Reads segments of the log file.
struct Reader {
    queue: Box<dyn Queue>,
    file_bytes: u64,
    file_id: u64,
    segment_bytes: u64,
    segment: IoBuf,
    loaded: Option<usize>,
}

impl Reader {
    fn open(disk: &dyn Disk, options: &LogOptions) -> Result<Self> {
        let failed = |error| Error::from_io("open the log", error);
        let queue = disk.queue(&QueueOptions { depth_max: 8, ..QueueOptions::default() }).map_err(failed)?;
        let file_bytes = disk.len_bytes().map_err(failed)?;
        let segment = IoBuf::zeroed(options.segment_bytes as usize, PageKind::Huge).map_err(failed)?;
        let (file_id, segment_bytes) = (options.file_id, options.segment_bytes);
        Ok(Self { queue, file_bytes, file_id, segment_bytes, segment, loaded: None })
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

    fn load(&mut self, slot: usize) -> Result<()> {
        if self.loaded == Some(slot) {
            return Ok(());
        }
        self.loaded = None;
        let empty =
            IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small).map_err(|error| Error::from_io("read the log", error))?;
        let buffer = std::mem::replace(&mut self.segment, empty);
        match self.run(OpKind::Read(buffer), slot as u64 * self.segment_bytes)? {
            OpKind::Read(buffer) => self.segment = buffer,
            _ => return Err(Error::new(ErrorKind::Bug, "a read came back as something else")),
        }
        self.loaded = Some(slot);
        Ok(())
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

    /// Looks for a group that says that group `missing` was durable.
    fn refuse_damage(&mut self, missing: u64, position: u64) -> Result<()> {
        for slot in 0..self.slot_count() {
            self.load(slot)?;
            for at in (0..self.segment_bytes as usize).step_by(LOG_BLOCK_BYTES) {
                let block = &self.segment[at..];
                let says_so = |header: &GroupHeader| {
                    header.position % self.segment_bytes == at as u64
                        && header.sequence > missing
                        && header.durable_sequence >= missing
                };
                if peek_group(block, self.segment_bytes).as_ref().is_some_and(says_so)
                    && let Some(later) = decode_group(self.file_id, self.segment_bytes, block)
                {
                    let what = format!(
                        "log group {missing} at {position} is damaged: group {} at {} was written after it had been made durable. Commits from there on cannot be replayed; restore from a backup",
                        later.sequence, later.position
                    );
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
            }
        }
        Ok(())
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
    let header =
        GroupHeader { sequence: 1, position: 0, durable_sequence: 0, previous: 0, payload_bytes: 0, checksum: 0 };
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
    };
    Ok((anchor, recovered))
}
