//! The files of a damaged database, which are only read, and the superblock to begin from.
//!
//! Kept true by: an error that says nothing about the data, such as a limit of this process, never counts as a loss
//! ([`Source::check`]).

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use nofault_io::aligned::IoBuf;
use nofault_io::disk::{Directory, Disk, FileLock};

use crate::blocks::read_once;
use crate::blocks::reread::RepeatedReads;
use crate::db::open::read_only::read_only_parts;
use crate::error::{Error, ErrorKind, Result};
use crate::format::NodeId;
use crate::format::{
    SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, VERSION_MIRRORED, decode_node, node_location, version_of,
};
use crate::recovery::names::{DATA, LOCK, LOG};

/// The files of a database.
pub(super) struct Source {
    data: Arc<dyn Disk>,
    data_bytes: u64,
    /// The log, or the reason why there is none.
    pub(super) log: Result<Arc<dyn Disk>>,
    /// The first error that says nothing about the data: see [`Source::check`].
    failure: RefCell<Option<Error>>,
    /// Keeps out processes that would change the files.
    _lock: Option<Box<dyn FileLock>>,
}

impl Source {
    /// Opens the database in a folder for reading.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Busy` when a process has it open, and the error of the system.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::of(&*read_only_parts(path)?)
    }

    /// As [`Source::open`], for a directory that is only read.
    pub(super) fn of(directory: &dyn Directory) -> Result<Self> {
        let failed = |error| Error::from_io("open the data file", error);
        let lock = match directory.lock(DATA, LOCK) {
            Ok(lock) => Some(lock),
            // Where there are no locks no process can have the database open.
            Err(error) if error.kind() == nofault_io::error::ErrorKind::Unsupported => None,
            Err(error) => return Err(failed(error)),
        };
        let data = directory.open(DATA).map_err(failed)?;
        let data_bytes = data.extent_bytes().map_err(failed)?;
        let log = directory.open(LOG).map_err(|error| Error::from_io("open the log", error));
        if let Err(error) = &log
            && error.is_of_the_moment()
        {
            return Err(error.clone());
        }
        Ok(Self { data, data_bytes, log, failure: RefCell::default(), _lock: lock })
    }

    /// Fails if any read so far did so for a reason that lies in this process or this machine. The readers take each read that fails for
    /// a loss, so what they have found by then is not to be used.
    ///
    /// # Errors
    /// The first such error.
    pub(super) fn check(&self) -> Result<()> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Keeps an error that says nothing about the data.
    fn noted<T>(&self, read: Result<T>) -> Result<T> {
        read.inspect_err(|error| {
            if error.is_of_the_moment() {
                self.failure.borrow_mut().get_or_insert_with(|| error.clone());
            }
        })
    }

    /// Returns the length of the data file.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Reads bytes of the data file once.
    ///
    /// # Errors
    /// `Corrupt` when they lie outside of the file; the error of the read.
    pub(super) fn read(&self, offset: u64, len_bytes: usize) -> Result<IoBuf> {
        self.noted(self.try_read(offset, len_bytes))
    }

    fn try_read(&self, offset: u64, len_bytes: usize) -> Result<IoBuf> {
        if offset.checked_add(len_bytes as u64).is_none_or(|end| end > self.data_bytes) {
            return Err(Error::new(ErrorKind::Corrupt, format!("byte {offset} lies behind the end of the data file")));
        }
        read_once(&*self.data, len_bytes, offset)
    }

    /// Reads bytes and decodes them; while that fails, reads them again, as one bad read is no damage.
    ///
    /// # Errors
    /// The error of the last read, or of decoding it.
    pub(super) fn decode<T>(
        &self,
        offset: u64,
        len_bytes: usize,
        mut decode: impl FnMut(&[u8]) -> Result<T>,
    ) -> Result<T> {
        self.noted(RepeatedReads::without_pause().until_whole(|_| decode(&self.try_read(offset, len_bytes)?)))
    }

    /// Chooses the superblock to begin from: the newest whole one, or an older one if only that leads to a page table.
    ///
    /// # Errors
    /// `Unsupported` when a superblock is whole and of a version or with a feature that this code does not know.
    pub(super) fn start(&self) -> Result<Start> {
        let mut start = Start::default();
        let mut whole: Vec<(Superblock, u32, usize)> = Vec::new();
        // Whether a slot that is not whole holds anything: creation in an earlier version wrote slot B only.
        let mut was_written = false;
        for (slot, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
            let decoded = self
                .decode(offset, SUPERBLOCK_BYTES, |sector| Ok((Superblock::decode(slot, sector)?, version_of(sector))));
            match decoded {
                Ok((superblock, version)) => whole.push((superblock, version, slot)),
                Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
                Err(error) => {
                    let is_empty = |sector: IoBuf| sector.iter().all(|byte| *byte == 0);
                    was_written |= !self.read(offset, SUPERBLOCK_BYTES).is_ok_and(is_empty);
                    start.notes.push(error.to_string());
                }
            }
        }
        whole.sort_by_key(|(superblock, ..)| std::cmp::Reverse(superblock.sequence));
        let leads_to_pages = |superblock: &Superblock| self.root_of(superblock).is_ok();
        let chosen = whole.iter().position(|(superblock, ..)| leads_to_pages(superblock)).unwrap_or(0);
        let newest = whole.first().copied();
        let Some((superblock, version, slot)) = whole.get(chosen).copied() else { return Ok(start) };
        let is_first_of_all = slot == 1 && superblock.sequence == 1 && !was_written;
        if version < VERSION_MIRRORED && whole.len() == 1 && !is_first_of_all {
            start.cut = Some(format!(
                "the state is of checkpoint {}: the other superblock cannot be read and may have been newer",
                superblock.sequence
            ));
        }
        // Since version 3 nothing of the older state is given up before both superblocks are of the newer one.
        if let Some((newest, ..)) = newest.filter(|(newest, ..)| {
            newest.sequence > superblock.sequence + 1
                || (newest.sequence != superblock.sequence && version < VERSION_MIRRORED)
                || newest.file_id != superblock.file_id
        }) {
            start.cut = Some(format!(
                "the state is of checkpoint {}: the page table of checkpoint {} cannot be read",
                superblock.sequence, newest.sequence
            ));
        }
        start.superblock = Some(superblock);
        Ok(start)
    }

    /// Reads the root of the page table.
    fn root_of(&self, superblock: &Superblock) -> Result<()> {
        let Some(level) = superblock.table_levels.checked_sub(1) else { return Ok(()) };
        let page_bytes = superblock.page_bytes as usize;
        let at = node_location(superblock.table_root, superblock.table_checksum);
        self.decode(at.block.0.saturating_mul(page_bytes as u64), page_bytes, |block| {
            decode_node(superblock.file_id, NodeId { level, index: 0 }, at, block).map(drop)
        })
    }
}

/// The state from which salvaging begins.
#[derive(Default)]
pub(super) struct Start {
    /// `None` when there is no whole superblock.
    pub(super) superblock: Option<Superblock>,
    /// The damage of superblocks.
    pub(super) notes: Vec<String>,
    /// The reason why the state may not be the last checkpoint's.
    pub(super) cut: Option<String>,
}
