//! Reads the log file, a window at a time, and finds out which slot may hold which segment.
//!
//! A read is made again, on the calling thread and without a queue in between where the disk can do that, before
//! anything that it lacks counts as lost: see [`LogFile::begin_again`].

use std::collections::BTreeMap;
use std::ops::Range;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind, WriteData};
use nofault_io::disk::{Disk, Queue, QueueOptions};

use super::super::{LogOptions, SEGMENT_BYTES_MAX};
use super::WINDOW_BYTES;
use crate::blocks::reread::RepeatedReads;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{GroupHeader, LOG_BLOCK_BYTES, UNSUMMED_GROUP_BYTES_MAX, decode_group, peek_group};

/// Number of slots with first blocks read together.
const BLOCKS_AT_ONCE: usize = 64;
/// Number of bytes of the first of several consecutive reads; each further read is twice as long, up to the window.
const FIRST_READ_BYTES: usize = 64 << 10;
/// Maximum number of segment slots in a log file. With the smallest segments these are 64 GiB.
const SLOTS_MAX: u64 = 1 << 22;

/// Reads a log file through one window of memory, for which the header of this file gives the reasons.
pub(super) struct LogFile {
    queue: Box<dyn Queue>,
    file_bytes: u64,
    pub(super) file_id: u64,
    pub(super) segment_bytes: u64,
    pub(super) window: IoBuf,
    loaded: Option<WindowContents>,
    /// Number of bytes of the next read, if it continues where the last read ended.
    read_bytes: usize,
    reread: RepeatedReads,
    /// True while the log is read once more because groups were missing: reads then take no more than is needed.
    again: bool,
    /// The range of bytes of the window to be written again.
    rewrite: Option<Range<usize>>,
    rewritten: bool,
}

/// The part of the file that the window contains: its slot, its first byte in the slot, and its length.
#[derive(Debug, Clone, Copy)]
struct WindowContents {
    slot: usize,
    from: u64,
    len_bytes: usize,
}

/// The segments that the slots of the file contain, according to their first blocks.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// For each segment the slots that seem to contain it. Several slots claim the same segment only after an
    /// interrupted move, or in damaged files.
    pub(super) held: BTreeMap<u64, Vec<usize>>,
    /// Slots without a group in the first block: never used, or damaged.
    pub(super) unknown: Vec<usize>,
    /// Checksums of the groups with which the slots begin.
    pub(super) checksums: Vec<u64>,
}

impl Directory {
    /// Adds the slots that another reading of the first blocks has found.
    pub(super) fn learn(&mut self, other: Self) {
        for (segment, slots) in other.held {
            let known = self.held.entry(segment).or_default();
            known.extend(slots.iter().filter(|slot| !known.contains(slot)).copied().collect::<Vec<_>>());
            self.unknown.retain(|slot| !slots.contains(slot));
        }
    }
}

impl LogFile {
    pub(super) fn open(disk: &dyn Disk, options: &LogOptions) -> Result<Self> {
        let failed = |error| Error::from_io("open the log", error);
        let (file_id, segment_bytes) = (options.file_id, options.segment_bytes);
        let file_bytes = disk.len_bytes().map_err(failed)?;
        if segment_bytes > SEGMENT_BYTES_MAX || file_bytes / segment_bytes > SLOTS_MAX {
            let what = format!(
                "a log of {file_bytes} bytes in segments of {segment_bytes}: there are at most {SLOTS_MAX} segments of at most {SEGMENT_BYTES_MAX} bytes"
            );
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let queue =
            disk.queue(&QueueOptions { depth_max: BLOCKS_AT_ONCE, ..QueueOptions::default() }).map_err(failed)?;
        // Huge pages would take more memory than was asked for.
        let window_bytes = segment_bytes.min(WINDOW_BYTES as u64) as usize;
        let window = IoBuf::zeroed(window_bytes, PageKind::Small).map_err(failed)?;
        let reread = RepeatedReads::on(disk);
        Ok(Self {
            queue,
            file_bytes,
            file_id,
            segment_bytes,
            window,
            loaded: None,
            read_bytes: FIRST_READ_BYTES,
            reread,
            again: false,
            rewrite: None,
            rewritten: false,
        })
    }

    pub(super) fn slot_count(&self) -> usize {
        (self.file_bytes / self.segment_bytes) as usize
    }

    /// Drops the window, so that all later reads come from the file again. `attempt` is the number of the repetition,
    /// which determines the pause before it.
    pub(super) fn begin_again(&mut self, attempt: u32) -> Result<()> {
        self.write_back()?;
        self.loaded = None;
        self.reread.pause_before(attempt);
        self.again = true;
        Ok(())
    }

    pub(super) fn end_again(&mut self) {
        self.again = false;
    }

    fn run(&mut self, kind: OpKind, offset: u64, action: &str) -> Result<OpKind> {
        let failed = |error| Error::from_io(action, error);
        let mut done: Vec<Completion> = Vec::new();
        if self.again {
            self.queue.run(Op::new(0, offset, kind), &mut done).map_err(failed)?;
        } else {
            self.queue.push(Op::new(0, offset, kind)).map_err(|refused| failed(refused.error))?;
            while done.is_empty() {
                self.queue.reap(1, &mut done).map_err(failed)?;
            }
        }
        let completion = done.remove(0);
        completion.result.map_err(failed)?;
        Ok(completion.op.kind)
    }

    /// Loads `len_bytes` bytes of a slot from offset `at` on into the window, unless they are there. They must lie
    /// within the segment. Returns their position in the window.
    fn load(&mut self, slot: usize, at: u64, len_bytes: usize) -> Result<usize> {
        let mut goes_on = false;
        if let Some(loaded) = self.loaded.filter(|loaded| loaded.slot == slot && at >= loaded.from) {
            if at - loaded.from + len_bytes as u64 <= loaded.len_bytes as u64 {
                return Ok((at - loaded.from) as usize);
            }
            goes_on = at - loaded.from <= loaded.len_bytes as u64;
        }
        self.write_back()?;
        self.loaded = None;
        self.read_bytes = if goes_on { (2 * self.read_bytes).min(WINDOW_BYTES) } else { FIRST_READ_BYTES };
        let failed = |error| Error::from_io("read the log", error);
        if self.window.len() < len_bytes {
            self.window =
                IoBuf::zeroed(len_bytes.next_multiple_of(LOG_BLOCK_BYTES), PageKind::Small).map_err(failed)?;
        }
        let more = if self.again { 0 } else { self.read_bytes };
        let left = usize::try_from(self.segment_bytes - at).unwrap_or(usize::MAX);
        let read_bytes = len_bytes.next_multiple_of(LOG_BLOCK_BYTES).max(more).min(self.window.len()).min(left);
        let (part, rest) = self.take_window()?.split_at(read_bytes);
        match self.run(OpKind::Read(part), slot as u64 * self.segment_bytes + at, "read the log")? {
            OpKind::Read(part) => self.window = join(part, rest)?,
            _ => return Err(Error::new(ErrorKind::Bug, "a read came back as something else")),
        }
        self.loaded = Some(WindowContents { slot, from: at, len_bytes: read_bytes });
        Ok(0)
    }

    /// Takes the memory of the window. If it is not put back, the next read allocates new memory.
    fn take_window(&mut self) -> Result<IoBuf> {
        let left = IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small);
        Ok(std::mem::replace(&mut self.window, left.map_err(|error| Error::from_io("read the log", error))?))
    }

    /// Returns the whole group at offset `at` of a slot, if there is one and its header, not verified yet, satisfies
    /// `wanted`; and its position in the window.
    pub(super) fn group(
        &mut self,
        slot: usize,
        at: u64,
        wanted: impl FnOnce(&GroupHeader) -> bool,
    ) -> Result<Option<(GroupHeader, usize)>> {
        let Some((claimed, _)) = self.claim(slot, at)?.filter(|(header, _)| wanted(header)) else { return Ok(None) };
        let start = self.load(slot, at, claimed.len_bytes())?;
        let whole = decode_group(self.file_id, self.segment_bytes, &self.window[start..]);
        Ok(whole.map(|header| (header, start)))
    }

    /// Returns the header, not verified, in the block at offset `at` of a slot, if a group of the length that it gives
    /// fits into the segment; and its position in the window.
    pub(super) fn claim(&mut self, slot: usize, at: u64) -> Result<Option<(GroupHeader, usize)>> {
        if at + LOG_BLOCK_BYTES as u64 > self.segment_bytes {
            return Ok(None);
        }
        let start = self.load(slot, at, LOG_BLOCK_BYTES)?;
        let claimed = peek_group(&self.window[start..start + LOG_BLOCK_BYTES], self.segment_bytes);
        // The position in the header may be wrong, so it is not used here.
        let fits = |header: &GroupHeader| at + header.len_bytes() as u64 <= self.segment_bytes;
        Ok(claimed.filter(fits).map(|header| (header, start)))
    }

    /// Reads all of a group of an earlier format version into the window, and returns its position there; `None` when
    /// its header gives a length that groups of those versions never had.
    pub(super) fn bring(&mut self, slot: usize, header: &GroupHeader) -> Result<Option<usize>> {
        if header.len_bytes() > UNSUMMED_GROUP_BYTES_MAX {
            return Ok(None);
        }
        self.load(slot, header.position % self.segment_bytes, header.len_bytes()).map(Some)
    }

    /// Determines which slots may contain which segment, from their first blocks.
    pub(super) fn directory(&mut self) -> Result<Directory> {
        let failed = |error| Error::from_io("read the log", error);
        let mut directory = Directory::default();
        let count = self.slot_count();
        let mut spare: Vec<IoBuf> = Vec::new();
        for first in (0..count).step_by(BLOCKS_AT_ONCE) {
            let mut done = Vec::new();
            let last = count.min(first + BLOCKS_AT_ONCE);
            for slot in first..last {
                let block = spare.pop().map_or_else(|| IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small), Ok);
                let op = Op::new(slot as u64, slot as u64 * self.segment_bytes, OpKind::Read(block.map_err(failed)?));
                match self.again {
                    true => self.queue.run(op, &mut done).map_err(failed)?,
                    false => self.queue.push(op).map_err(|refused| failed(refused.error))?,
                }
            }
            while self.queue.in_flight() > 0 {
                self.queue.reap(1, &mut done).map_err(failed)?;
            }
            done.sort_unstable_by_key(|completion| completion.op.token);
            for completion in done {
                completion.result.map_err(failed)?;
                let (slot, OpKind::Read(block)) = (completion.op.token as usize, completion.op.kind) else { continue };
                match peek_group(&block, self.segment_bytes) {
                    Some(header) if header.position.is_multiple_of(self.segment_bytes) => {
                        directory.held.entry(header.position / self.segment_bytes).or_default().push(slot);
                        directory.checksums.push(header.checksum);
                    }
                    _ => directory.unknown.push(slot),
                }
                spare.push(block);
            }
        }
        Ok(directory)
    }

    /// Marks a range of the window, which consists of complete groups, to be written again before the window moves.
    pub(super) fn rewrite(&mut self, range: Range<usize>) {
        let range = self.rewrite.take().map_or(range.clone(), |before| before.start.min(range.start)..range.end);
        self.rewrite = Some(range);
    }

    fn write_back(&mut self) -> Result<()> {
        let (Some(range), Some(loaded)) = (self.rewrite.take(), self.loaded) else { return Ok(()) };
        let (head, rest) = self.take_window()?.split_at(range.start);
        let (part, tail) = rest.split_at(range.len());
        let offset = loaded.slot as u64 * self.segment_bytes + loaded.from + range.start as u64;
        let written = self.run(OpKind::write(part, false), offset, "write the end of the log once more")?;
        let OpKind::Write { data: WriteData::Owned(part), .. } = written else {
            return Err(Error::new(ErrorKind::Bug, "a write came back as something else"));
        };
        self.window = join(join(head, part)?, tail)?;
        self.rewritten = true;
        Ok(())
    }

    /// Writes the marked bytes of the window again and makes all rewritten bytes durable.
    pub(super) fn make_durable(&mut self) -> Result<()> {
        self.write_back()?;
        if std::mem::take(&mut self.rewritten) {
            self.run(OpKind::Sync, 0, "make the end of the log durable")?;
        }
        Ok(())
    }
}

fn join(part: IoBuf, next: IoBuf) -> Result<IoBuf> {
    part.join(next).map_err(|_| Error::new(ErrorKind::Bug, "the parts of a window do not join"))
}
