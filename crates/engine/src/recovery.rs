//! Creates the files of a database, and opens them after a regular end or a crash.
//!
//! A database is a folder with two files: `data` (superblocks, pages, page table) and `log`. Creating works under
//! temporary names (`names`); the rename to `data` turns the folder into a database, after everything in it, and its
//! log, is durable. So a power cut leaves a database or none, never one that cannot be opened. Opening never creates:
//! an empty file is an error. A database filled at its creation is one only when it is complete: until then its
//! data file has a temporary name ([`finish`]).
//!
//! The data file is locked before it has its name, and before it is read; the name of the holder is written only when
//! the folder is known to hold a database.
//!
//! Bytes that are read at opening may be in a cache only, when their write failed or was cut short by the end of the
//! process. So before any byte that an older superblock refers to is overwritten, the superblock in force is made
//! durable, in both slots ([`superblocks`]).

use std::cell::Cell;
use std::sync::Arc;

use nofault_io::aligned::IoBuf;
use nofault_io::disk::{Directory, Disk, FileLock};

use self::names::{DATA, LOCK, LOG, NEW_DATA, NEW_LOG, NEW_STRIPES, READERS, STRIPES, UNFINISHED};
use crate::blocks::reread::RepeatedReads;
use crate::blocks::{BlockReader, read_once};
use crate::buffer_pool::{BufferPool, LoadedTable, PAGES_MAX, PoolOptions, SCAN_BYTES_MIN};
use crate::checkpoint::Checkpointer;
use crate::error::{Error, ErrorKind, Result};
use crate::events::Progress;
use crate::format::{
    CONVERSION_OFFSET, CONVERSION_SLOT, CommitSeq, FEATURES_COMPATIBLE, Location, NodeId, PAGE_BYTES_MAX,
    PAGE_BYTES_MIN, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, decode_node, entries_per_node, node_location,
    nodes_on_level, version_of,
};
use crate::readers::Readers;
use crate::settings::Settings;
use crate::transaction;
use crate::wal::{
    Anchor, Log, LogOptions, LogPurpose, RecordIter, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, create_log, read_log,
};

mod memory;
pub(crate) mod names;
mod superblocks;
#[cfg(test)]
mod tests;
pub(crate) mod verify;

pub(crate) use self::memory::{read_set_bytes, recent_commits_bytes, replay_bytes, spent_bytes};
use self::superblocks::{CurrentSuperblock, Slot, WholeSuperblock, choose};

/// Number of page-table nodes read at a time.
const NODES_AT_A_TIME: usize = 64;

/// The purpose for which a database is created or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A database to be used: it is complete as soon as it has been created.
    Use,
    /// A database to be filled, which is nothing until [`finish`] makes it a database.
    Fill,
    /// A database that is only read, in a directory that keeps what opening writes. Where another process may write to its
    /// files, `registered` is the sequence of the checkpoint that this one has registered to read.
    Read { registered: Option<u64> },
}

impl Purpose {
    /// Returns the name of the data file.
    fn data_name(self) -> &'static str {
        match self {
            Self::Use | Self::Read { .. } => DATA,
            Self::Fill => UNFINISHED,
        }
    }

    /// Returns whether the database is only read.
    pub(crate) fn is_read_only(self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// Returns the purpose for which its log is opened.
    fn of_log(self) -> LogPurpose {
        match self {
            Self::Use | Self::Fill => LogPurpose::Write,
            Self::Read { registered: None } => LogPurpose::Read,
            Self::Read { registered: Some(_) } => LogPurpose::ReadBesideWriter,
        }
    }
}

/// The locks that keep other processes from the files of a database. Dropping them releases first the name that this
/// process has left, then the files.
#[derive(Debug)]
pub(crate) struct Locks {
    /// The name's lock. None where the record for readers is locked, which keeps the same processes out.
    signed: Option<Arc<dyn FileLock>>,
    files: Box<dyn FileLock>,
}

impl Locks {
    /// Returns the device and inode of the data file, where there is a file: no other file of this machine has the
    /// same.
    pub(crate) fn id(&self) -> Option<(u64, u64)> {
        self.files.id()
    }
}

/// A database that was opened. The records must be replayed, in order, before anything else is done with it.
pub(crate) struct OpenedParts {
    /// The pool with the pages of the database, as of commit `base`.
    pub(crate) pool: BufferPool,
    /// The cache size that the sizes of other buffers are derived from: never less than an empty database needs.
    pub(crate) cache_bytes: usize,
    /// The log of the database, ready to be appended to after the last record.
    pub(crate) log: Log,
    /// The commit of the last checkpoint.
    pub(crate) base: CommitSeq,
    /// The complete records after the last checkpoint.
    pub(crate) records: RecordIter,
    /// Makes the checkpoints from now on.
    pub(crate) checkpointer: Arc<Checkpointer>,
    /// The data file, for reads that bypass the pool.
    pub(crate) disk: Arc<dyn Disk>,
    /// The file locks, to be held for as long as anything may be written.
    pub(crate) locks: Locks,
    /// Descriptions of damage repaired without loss.
    pub(crate) repairs: Vec<String>,
}

/// The options for creating a database.
#[derive(Debug)]
pub(crate) struct Creation {
    /// Distinguishes the files of this database from all others. It should be random.
    pub(crate) file_id: u64,
    /// The purpose of the database.
    pub(crate) purpose: Purpose,
    /// The text of the list of folders, if the database is to be striped.
    pub(crate) stripes: Option<String>,
    /// A lock taken before the creation, if any: it is held as long as the database is locked.
    pub(crate) signed: Option<Arc<dyn FileLock>>,
}

/// Refuses settings with which no database can be created, before anything is made for one.
///
/// # Errors
/// `InvalidCall`; `NoResources` where a limit of this process leaves too little address space.
pub(crate) fn check_new(settings: &Settings) -> Result<()> {
    settings.check_new()?;
    if !settings.page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&settings.page_bytes) {
        let what = format!("pages of {} bytes: choose a power of two from 4,096 to 65,536", settings.page_bytes);
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    memory::refuse_small_cache(settings)?;
    memory::refuse_little_address_space(settings)
}

/// Creates a database in an existing folder. Removes the files of an unfinished creation first. Returns the locks that
/// keep other processes from the database.
///
/// # Errors
/// `AlreadyExists` when there is one, or a part of one (nothing is touched), `Busy` when it is being created,
/// `InvalidCall` for impossible settings, or the error of the disk.
pub(crate) fn create(directory: &Arc<dyn Directory>, settings: &Settings, creation: Creation) -> Result<Locks> {
    let Creation { file_id, purpose, stripes, signed } = creation;
    let failed = |action: &str| {
        let action = action.to_owned();
        move |error| Error::from_io(action, error)
    };
    check_new(settings)?;
    names::refuse_existing(&names::contents_of(&**directory)?)?;
    names::remove_unfinished(&**directory)?;
    if let Some(stripes) = &stripes {
        directory.write_text(NEW_STRIPES, stripes).map_err(failed("write down the folders of a database"))?;
        // Synced before there is anything in those folders: without the list an unfinished creation there could not be
        // recognised.
        directory.sync().map_err(failed("sync the folder"))?;
    }
    let log_disk = directory.create(NEW_LOG).map_err(failed("create the log"))?;
    let options = log_options(settings, file_id, segment_bytes_for(settings.log_bytes));
    let (anchor, recovered) = create_log(&*log_disk, &options)?;
    let log = Log::open(&*log_disk, options, recovered)?;
    let disk = directory.create(NEW_DATA).map_err(failed("create the data file"))?;
    let files = directory.lock(NEW_DATA, LOCK).map_err(failed("lock the data file"))?;
    let superblock = Superblock {
        file_id,
        page_bytes: settings.page_bytes as u32,
        segment_bytes: options.segment_bytes,
        sequence: 0,
        commit: CommitSeq(0),
        page_count: 0,
        table_levels: 0,
        table_root: crate::format::BlockId(0),
        table_checksum: 0,
        log_anchor: anchor.position,
        log_anchor_sequence: anchor.sequence,
        log_anchor_checksum: anchor.checksum,
        compatible_features: FEATURES_COMPATIBLE,
        needs_zstd: false,
        has_properties: false,
        has_expiry: false,
    };
    let table = LoadedTable::new(settings.page_bytes, FILE_BYTES_MAX);
    let pool = BufferPool::new(&disk, &pool_options(settings, &superblock), table, CommitSeq(0))?;
    pool.writer().complete_last_group()?;
    transaction::create_catalog(&pool)?;
    Checkpointer::new(pool, log, superblock, Readers::none()).checkpoint()?;
    // All files are whole and durable; now their names: first the temporary ones, by which the next creation recognises
    // the files of an unfinished one, and last the name that makes them a database.
    directory.sync().map_err(failed("sync the folder"))?;
    directory.rename(NEW_LOG, LOG).map_err(failed("name the log"))?;
    if stripes.is_some() {
        directory.rename(NEW_STRIPES, STRIPES).map_err(failed("name the list of folders"))?;
    }
    directory.sync().map_err(failed("sync the folder"))?;
    directory.rename(NEW_DATA, purpose.data_name()).map_err(failed("name the data file"))?;
    directory.sync().map_err(failed("sync the folder"))?;
    Ok(Locks { signed, files })
}

/// Makes a database of one that was filled: everything in it is durable, and no process has it open any more.
///
/// # Errors
/// `Busy` when another process has it open all the same; the error of the system: it may be a database then, or not.
pub(crate) fn finish(directory: &dyn Directory) -> Result<()> {
    let failed = |error| Error::from_io("name the data file of a database that was filled", error);
    let _lock = directory.lock(UNFINISHED, LOCK).map_err(failed)?;
    directory.rename(UNFINISHED, DATA).map_err(failed)?;
    directory.sync().map_err(|error| Error::from_io("sync the folder of a database that was filled", error))
}

/// Removes the files of a creation that failed or was not finished, as far as that is possible, also where the database was whole
/// already and could not be opened. The caller knows that no other process has opened it since.
pub(crate) fn remove_unfinished(directory: &dyn Directory) {
    if matches!(names::contents_of(directory), Ok(names::Contents::Database)) {
        // It has its final name already; without that name the other files are recognised as unfinished.
        let _ = directory.rename(DATA, UNFINISHED);
    }
    let _ = names::remove_unfinished(directory)
        .and_then(|()| directory.sync().map_err(|error| Error::from_io("sync the folder", error)));
    match names::contents_of(directory) {
        Ok(names::Contents::Nothing) => {
            // Missing where opening did not come so far. The lock comes last: until then it keeps others away.
            let _ = directory.remove(READERS);
            let _ = directory.remove(LOCK);
        }
        Ok(_) => {}
        // Without a descriptor for the list nothing was made but the name of this process, which is for messages only.
        Err(_) => drop(directory.remove(LOCK)),
    }
}

/// Opens the database in a folder: the one that was created with `locks`, or another one.
///
/// # Errors
/// `NotFound` when there is none, `Busy` when another process has it open. `Corrupt` when a file is missing, damaged,
/// emptied, foreign, or older than the other (the message says which and where). `InvalidCall` when a file is no
/// regular file, `Unsupported` for another version, and errors of the disk. No byte of a database refused here
/// has changed, unless writing the superblocks failed.
pub(crate) fn open(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    purpose: Purpose,
    locks: Option<Locks>,
) -> Result<OpenedParts> {
    memory::refuse_little_address_space(settings)?;
    let (is_new, data) = (locks.is_some(), purpose.data_name());
    let mut locks = match locks {
        Some(locks) => locks,
        None => {
            let files = directory.lock(data, LOCK).map_err(|error| unusable(&**directory, data, error))?;
            Locks { signed: None, files }
        }
    };
    let open_file = |name: &str| directory.open(name).map_err(|error| unusable(&**directory, name, error));
    let (disk, log_disk) = (open_file(data)?, open_file(LOG)?);
    locks.files.check(data).map_err(|error| unusable(&**directory, data, error))?;
    let mut reader = DataReader::open(&disk)?;
    let in_force = reader.superblock()?;
    let failed = |error| Error::from_io("open the database", error);
    let watch = match purpose {
        Purpose::Use => locks.files.readers(READERS).map_err(failed)?,
        Purpose::Fill | Purpose::Read { .. } => None,
    };
    if !is_new {
        // The folder is known to hold a database by now, so the lock file with the name of this process may be written.
        locks.signed = Some(directory.sign(LOCK).map_err(failed)?.into());
    }
    if watch.is_some() {
        locks.signed = None;
    }
    let superblock = *in_force.superblock();
    if matches!(purpose, Purpose::Read { registered: Some(registered) } if registered != superblock.sequence) {
        // The data file may have become longer since it was opened.
        let what = format!("checkpoint {} is in force by now", superblock.sequence);
        return Err(Error::new(ErrorKind::SnapshotTooOld, what));
    }
    let readers = Readers::begin(watch, superblock.file_id, superblock.sequence, settings.readers_wait_max)?;
    let cache_bytes = memory::shared_out_bytes(settings, superblock.page_bytes as usize);
    let leaves_max = match settings.evicts_table() {
        true => 0,
        false => memory::leaves_loaded_max(cache_bytes, superblock.page_bytes as usize),
    };
    let table = reader.page_table(&superblock, leaves_max)?;
    drop(reader);
    let mut options = pool_options(settings, &superblock);
    options.spent_bytes = memory::spent_bytes(cache_bytes);
    // Of many processes that read, each has the memory that it uses, and not its whole cache's.
    options.registers_frames = !purpose.is_read_only() && memory::may_register(cache_bytes);
    options.cache_bytes = memory::pool_cache_bytes(cache_bytes, options.page_bytes, &table);
    let pool = BufferPool::new(&disk, &options, table, superblock.commit)?;
    let options = log_options(settings, superblock.file_id, superblock.segment_bytes);
    let options = LogOptions { purpose: purpose.of_log(), ..options };
    let anchor = anchor_of(&superblock);
    // The log is read twice: first to learn whether all of it is whole, and where it ends; then, as the caller asks for
    // them, for its records.
    let (log, records) = readers.change_log(|| {
        let (recovered, records) = read_log(&*log_disk, &options, anchor, superblock.commit)?;
        // Without the page cache the kernel has no write-back errors of the file, for which `open_to_grow` needs two openings.
        let to_grow = if log_disk.info().direct { Arc::clone(&log_disk) } else { open_file(LOG)? };
        Ok((Log::open_to_grow(&*log_disk, &to_grow, options, recovered)?, records))
    })?;
    // A process that created or moved the files may have ended before their names were durable. Nothing is acknowledged
    // until they are.
    directory.sync().map_err(|error| Error::from_io("sync the folder", error))?;
    let repairs = in_force.repairs.clone();
    let superblock = in_force.make_durable(&pool)?;
    let checkpointer = Arc::new(Checkpointer::new(pool.clone(), log.clone(), superblock, readers));
    pool.writer().complete_last_group()?;
    Ok(OpenedParts { pool, log, cache_bytes, base: superblock.commit, records, checkpointer, disk, locks, repairs })
}

/// Reads which checkpoint of a database is in force: the number of its file, and the sequence of the checkpoint.
///
/// # Errors
/// As [`open`].
pub(crate) fn in_force(directory: &dyn Directory) -> Result<(u64, u64)> {
    let disk = directory.open(DATA).map_err(|error| unusable(directory, DATA, error))?;
    let in_force = DataReader::open(&disk)?.superblock()?;
    Ok((in_force.superblock().file_id, in_force.superblock().sequence))
}

/// Returns the newest commit in the log of a database that is only read, in a directory that keeps what reading the log
/// writes. Replays nothing.
///
/// # Errors
/// As [`open`].
pub(crate) fn newest_commit(directory: &dyn Directory, settings: &Settings) -> Result<CommitSeq> {
    let open_file = |name: &str| directory.open(name).map_err(|error| unusable(directory, name, error));
    let (disk, log_disk) = (open_file(DATA)?, open_file(LOG)?);
    let in_force = DataReader::open(&disk)?.superblock()?;
    let superblock = in_force.superblock();
    let options = log_options(settings, superblock.file_id, superblock.segment_bytes);
    let options = LogOptions { purpose: LogPurpose::ReadBesideWriter, ..options };
    let (recovered, _) = read_log(&*log_disk, &options, anchor_of(superblock), superblock.commit)?;
    Ok(recovered.commit)
}

fn anchor_of(superblock: &Superblock) -> Anchor {
    Anchor {
        position: superblock.log_anchor,
        sequence: superblock.log_anchor_sequence,
        checksum: superblock.log_anchor_checksum,
    }
}

/// Turns an error of opening a database file into one that names the file and the remedy.
fn unusable(directory: &dyn Directory, name: &str, error: nofault_io::error::Error) -> Error {
    use nofault_io::error::ErrorKind as Io;
    let action = format!("open the file «{name}»");
    match error.kind() {
        Io::NotFound => {
            names::contents_of(directory).and_then(|contents| names::refuse_missing(&contents)).err().unwrap_or_else(
                // The missing file is a part in another folder.
                || {
                    Error::new(
                        ErrorKind::Corrupt,
                        format!("{action}: {error}: it is missing; put it back, or restore a backup"),
                    )
                },
            )
        }
        // It is a link, a folder, a pipe.
        Io::InvalidCall => Error::new(ErrorKind::InvalidCall, format!("{action}: {error}")),
        _ => Error::from_io(action, error),
    }
}

/// Largest data file: the pages that the largest page table can name at a small page size.
const FILE_BYTES_MAX: u64 = 1 << 56;

fn pool_options(settings: &Settings, superblock: &Superblock) -> PoolOptions {
    let snapshot_bytes_max = match settings.snapshot_bytes_max {
        0 => 4_u64.saturating_mul(settings.cache_bytes as u64),
        chosen => chosen,
    };
    PoolOptions {
        cache_bytes: settings.cache_bytes as u64,
        spent_bytes: memory::spent_bytes(settings.cache_bytes),
        page_bytes: superblock.page_bytes as usize,
        file_id: superblock.file_id,
        snapshot_bytes_max,
        reads_in_flight_max: settings.reads_in_flight_max,
        scan_bytes_min: SCAN_BYTES_MIN,
        registers_frames: false,
        evicts_table: settings.evicts_table(),
        tier: settings.tier(),
        clock: settings.clock.clone(),
    }
}

fn log_options(settings: &Settings, file_id: u64, segment_bytes: u64) -> LogOptions {
    let log_bytes = settings.log_bytes.max(4 * segment_bytes);
    let buffer_bytes = memory::log_buffer_bytes(settings.cache_bytes);
    LogOptions { file_id, segment_bytes, log_bytes, buffer_bytes, seed: settings.seed, purpose: LogPurpose::Write }
}

/// Returns the size of a segment: a sixteenth of the log, but 256 KiB at most, because the file of a log has three
/// segments at least and a small database is to take little space; of logs beyond 256 MiB a 1,024th part.
fn segment_bytes_for(log_bytes: u64) -> u64 {
    let most = (log_bytes / 1024).next_power_of_two().clamp(256 << 10, SEGMENT_BYTES_MAX);
    (log_bytes / 16).next_power_of_two().clamp(SEGMENT_BYTES_MIN, most)
}

/// Reads the blocks from which recovery starts: superblocks and page table.
struct DataReader {
    disk: Arc<dyn Disk>,
    blocks: BlockReader,
}

impl DataReader {
    fn open(disk: &Arc<dyn Disk>) -> Result<Self> {
        Ok(Self { disk: Arc::clone(disk), blocks: BlockReader::open(&**disk)? })
    }

    /// Decodes `first`, the outcome of a read at `offset`. While that fails the bytes are read again, through
    /// `Disk::perform` instead of the queue: without them an older state would be in force, or none.
    ///
    /// # Errors
    /// The error of the last read, or of decoding it.
    fn decode_again<T>(
        &self,
        first: Result<IoBuf>,
        offset: u64,
        len_bytes: usize,
        decode: impl Fn(IoBuf) -> Result<T>,
    ) -> Result<T> {
        let mut first = Some(first);
        RepeatedReads::on(&*self.disk).until_whole(|_| {
            let block = match first.take() {
                Some(block) => block,
                None => read_once(&*self.disk, len_bytes, offset),
            };
            block.and_then(&decode)
        })
    }

    /// Returns the superblock in force.
    ///
    /// # Errors
    /// As [`choose`].
    fn superblock(&mut self) -> Result<CurrentSuperblock> {
        let slots = [self.slot(0, SUPERBLOCK_OFFSETS[0])?, self.slot(1, SUPERBLOCK_OFFSETS[1])?];
        if self.blocks.file_bytes() == 0 {
            let what = "the data file is empty: a database was here, restore a backup";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        choose(slots, || match self.slot(CONVERSION_SLOT, CONVERSION_OFFSET)?.found {
            Ok(noted) => Ok(Some(noted.superblock)),
            Err(error) if error.is_of_the_moment() => Err(error),
            Err(_) => Ok(None),
        })
    }

    /// Reads superblock slot `slot`, which lies at `offset`.
    ///
    /// # Errors
    /// When the device cannot be read.
    fn slot(&mut self, slot: usize, offset: u64) -> Result<Slot> {
        if self.blocks.file_bytes() < offset + SUPERBLOCK_BYTES as u64 {
            return Ok(Slot { found: Err(Superblock::cut_off(slot)), is_empty: false });
        }
        let first = self.blocks.try_read(SUPERBLOCK_BYTES, &[offset])?.remove(0);
        let is_empty = Cell::new(false);
        let found = self.decode_again(first, offset, SUPERBLOCK_BYTES, |sector| {
            is_empty.set(sector.iter().all(|byte| *byte == 0));
            let superblock = Superblock::decode(slot, &sector)?;
            Ok(WholeSuperblock { superblock, version: version_of(&sector), sector })
        });
        Ok(Slot { found, is_empty: is_empty.get() })
    }

    /// Loads the page table that a superblock names, and marks every block it uses: node after node, of which at most
    /// `leaves_max` leaves stay in memory. Memory is bounded by the nodes that are there, even if they are damaged.
    ///
    /// # Errors
    /// `Corrupt` when a node is damaged, or names a page or a node that a table of this size does not have, a block
    /// outside the file, or a block in use already.
    fn page_table(&mut self, superblock: &Superblock, leaves_max: u64) -> Result<LoadedTable> {
        let page_bytes = superblock.page_bytes as usize;
        let mut table = LoadedTable::new(page_bytes, FILE_BYTES_MAX);
        if superblock.page_count > PAGES_MAX {
            let what = format!("{} pages; this version of nofault keeps up to {PAGES_MAX}", superblock.page_count);
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        table.map.set_page_count(superblock.page_count);
        if let Some(top) = superblock.table_levels.checked_sub(1) {
            let root = node_location(superblock.table_root, superblock.table_checksum);
            table.map.set_node(NodeId { level: top, index: 0 }, root);
        }
        let mut progress = Progress::new("page_table");
        for level in (0..superblock.table_levels).rev() {
            let mut next = NodeId { level, index: 0 };
            loop {
                let of_level = table.map.nodes_from(next).take_while(|(node, _)| node.level == level);
                let window: Vec<(NodeId, Location)> = of_level.take(NODES_AT_A_TIME).collect();
                let Some((last, _)) = window.last() else { break };
                next = NodeId { level, index: last.index + 1 };
                self.table_nodes(superblock, &window, leaves_max, &mut table)?;
                progress.add(window.len() as u64);
            }
        }
        table.ids.end_loading(&table.map);
        Ok(table)
    }

    /// Reads some nodes of one level of the page table, and notes what they name.
    fn table_nodes(
        &mut self,
        superblock: &Superblock,
        nodes: &[(NodeId, Location)],
        leaves_max: u64,
        table: &mut LoadedTable,
    ) -> Result<()> {
        let page_bytes = superblock.page_bytes as usize;
        let blocks = self.blocks.file_bytes() / page_bytes as u64;
        let LoadedTable { map, ids, allocator } = table;
        let mut claim = |what: &dyn std::fmt::Display, at: Location| {
            let wrong = if at.block.0 >= blocks {
                format!("lies in block {}, behind the end of the data file ({blocks} blocks)", at.block)
            } else if !(if at.is_compressed {
                allocator.mark_page(at.block)
            } else {
                allocator.space.mark_used(at.block)
            }) {
                format!("lies in block {}, which something else uses", at.block)
            } else {
                return Ok(());
            };
            Err(Error::new(ErrorKind::Corrupt, format!("{what} {wrong}")))
        };
        for (NodeId { level, index }, at) in nodes {
            claim(&format_args!("page-table node {index} of level {level}"), *at)?;
        }
        let offsets: Vec<u64> = nodes.iter().map(|(_, at)| at.block.0 * page_bytes as u64).collect();
        let found = self.blocks.try_read(page_bytes, &offsets)?;
        for (((node, at), offset), block) in nodes.iter().zip(&offsets).zip(found) {
            let NodeId { level, index } = *node;
            // Number of nodes of the level below, or of pages, that the nodes of this level may name in all.
            let named = match level.checked_sub(1) {
                Some(below) => nodes_on_level(superblock.page_count, below, page_bytes),
                None => superblock.page_count,
            };
            let entries = self.decode_again(block, *offset, page_bytes, |block| {
                decode_node(superblock.file_id, *node, *at, &block)
            })?;
            for (index, word) in (index * entries_per_node(page_bytes)..).zip(&entries) {
                let Some(at) = Location::from_word(*word) else { continue };
                if index >= named {
                    let kind = if level > 0 { "node" } else { "page" };
                    let what = format!("a page-table node of level {level} names {kind} {index} of {named}");
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
                match level.checked_sub(1) {
                    Some(level) => drop(map.set_node(NodeId { level, index }, at)),
                    None => claim(&format_args!("page {index}"), at)?,
                }
            }
            if level == 0 {
                ids.load_leaf(index, &entries, superblock.page_count);
                if (map.leaves_in_memory().len() as u64) < leaves_max {
                    map.add_leaf(index, entries);
                }
            }
        }
        Ok(())
    }
}
