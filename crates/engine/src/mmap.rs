//! The engine's B+tree over a memory-mapped file, made safe as databases do it: methods to compare in the lab.
//!
//! Node format, comparator, split policy and log are the engine's. The differences: the kernel decides which pages are
//! in memory, and each protocol has its own way to keep a half-done change out of the file:
//!
//! | protocol | how | after |
//! |---|---|---|
//! | [`Protocol::OsCow`] | two maps of one file; writers change the private one, a commit is a record in the log, a background thread applies it to the shared one; the private map is dropped now and then while commits wait | MongoDB MMAPv1 |
//! | [`Protocol::UserCow`] | changed pages are copies in user memory; a commit is a record in the log; then they are copied back into the map, or written by `pwrite`; checkpoints sync | SQLite, MonetDB, RavenDB |
//! | [`Protocol::MappedLog`] | as `UserCow`, but pages reach the file in new places, never in their old ones: the engine's own design but for the pool and for its single writer | no database: it isolates the effect of residency by the kernel |
//! | [`Protocol::Shadow`] | copies up to the root go to unused pages; synced; then one of two meta pages is switched | LMDB, without and with `MDB_WRITEMAP` |
//!
//! `UserCow` written back by calls is the case of today's systems. One table, one writer at a time; every write is durable when it returns.
//!
//! **Guarantees, and their limits.** A process killed at any moment, and a power cut that loses any sectors
//! that were not synced, leave every acknowledged commit and nothing of others; tests show it. The following is not
//! promised, because with a map no store can promise it (and no test shows a power cut amid the kernel's own write-back):
//! - *A page damaged on disk is an error.* The store does not see the kernel's reads, so only a check at every
//!   access finds damage ([`Settings::checksums`]), and never a lost write, which leaves an old page that is whole.
//! - *A failed read is an error of that read.* It is a SIGBUS, which becomes an error of this call and of every later one.
//! - *A failed write-back is noticed.* The kernel reports it at the next sync, once, if ever.
//! - *A read does not wait.* It stalls its thread for as long as the disk takes, at any point of the code.
//! - *Memory stays below a limit.* The kernel decides.

mod debug;
mod file;
mod free;
mod free_tree;
mod logged;
mod meta;
mod open;
mod placed;
mod range;
mod record;
mod shadow;
mod shape;
mod verify;
mod versions;
mod workspace;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nofault_io::folder::{Folder, FolderLock};
use nofault_io::mapped::{MappedFile, Protection};

use self::file::DataFile;
use self::logged::{Background, LoggedStore, Parts};
use self::meta::Kind;
use self::placed::PlacedPages;
use self::shadow::ShadowStore;
use self::shape::Shape;
pub use self::verify::Verification;
use self::workspace::{View, Workspace};
use crate::btree::overflow::{Reader, VALUE_BYTES_MAX, Writer};
use crate::btree::write::ReplacedValue;
use crate::btree::{FoundValue, KeyRange, Tree};
use crate::error::{Error, ErrorKind, Result};
use crate::format::cell::{Cell, OverflowRef, inline_value_bytes_max};
use crate::format::{CommitSeq, PageId, TableId};
use crate::pages::{Attempt, PageCopies, Pages, Wait};

pub use self::range::{LeafScan, Range};

/// The id of the one table of a mapped store.
const TABLE: TableId = TableId(1);

/// How changed pages reach the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteBack {
    /// By stores into a writable map, and `msync`.
    Map,
    /// By `pwrite` and `fdatasync`; the map is for reading only.
    Call,
}

/// How a half-done change is kept out of the file: see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Private mapping: the operating system copies a page when a commit changes it.
    OsCow,
    /// Copies in user memory: a commit copies a page before it changes it.
    UserCow(WriteBack),
    /// Copies in user memory. Only meta pages are overwritten; a table says where pages lie. The map is read-only.
    MappedLog,
    /// Shadow paging: no page in use is overwritten, and there is no log.
    Shadow(WriteBack),
}

impl Protocol {
    fn kind(self) -> Kind {
        match self {
            Self::Shadow(_) => Kind::Shadow,
            Self::MappedLog => Kind::Placed,
            Self::OsCow | Self::UserCow(_) => Kind::Logged,
        }
    }

    fn through_map(self) -> bool {
        matches!(self, Self::OsCow | Self::UserCow(WriteBack::Map) | Self::Shadow(WriteBack::Map))
    }
}

/// The options of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The crash-safety protocol. `OsCow` and `UserCow` have the same file format.
    pub protocol: Protocol,
    /// Bytes of a page, a power of two from 512 to 65,536. At creation only.
    pub page_bytes: usize,
    /// Bytes of the file and of its map, fixed at creation; the unused part takes no space. With `MappedLog`
    /// the bytes of all pages: file and map are a little more than three times as long.
    pub map_bytes: u64,
    /// Bytes of log after which a checkpoint is due; not for `Shadow`, which has no log.
    pub log_bytes: u64,
    /// `OsCow`: the private map drops its copies when they take more than this.
    pub private_bytes_max: u64,
    /// Whether pages carry checksums, which every access then checks. At creation only.
    pub checksums: bool,
    /// Whether to tell the kernel not to read around a fault (`MADV_RANDOM`), as LMDB does with `MDB_NORDAHEAD`.
    pub random: bool,
    /// Whether a thread applies and checkpoints in the background; without it committers do.
    pub background_thread: bool,
}

impl Settings {
    /// Defaults: 4 KiB pages, map 1 GiB, log 64 MiB, private copies 64 MiB, no checksums, a background thread.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            page_bytes: 4096,
            map_bytes: 1 << 30,
            log_bytes: 64 << 20,
            private_bytes_max: 64 << 20,
            checksums: false,
            random: true,
            background_thread: true,
        }
    }

    /// Small settings for tests, without a background thread.
    #[cfg(test)]
    fn small(protocol: Protocol) -> Self {
        let (page_bytes, map_bytes, log_bytes) = (512, 4 << 20, 64 << 10);
        Self { page_bytes, map_bytes, log_bytes, background_thread: false, ..Self::new(protocol) }
    }
}

/// Changes that take effect together, in the order given.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> &mut Self {
        self.changes.push((key.into(), Some(value.into())));
        self
    }

    /// Removes a key, if it is there.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) -> &mut Self {
        self.changes.push((key.into(), None));
        self
    }
}

/// Counters and sizes of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes written to the data file, meta pages included.
    pub data_bytes_written: u64,
    /// Syncs of the data file, and durable writes of meta pages.
    pub data_syncs: u64,
    /// Bytes written to the log.
    pub log_bytes_written: u64,
    /// Durable writes of the log.
    pub log_writes: u64,
    /// Number of checkpoints made.
    pub checkpoints: u64,
    /// Committed pages that are not in the data file yet.
    pub waiting_pages: u64,
    /// `OsCow`: pages of which the system holds a private copy.
    pub private_pages: u64,
    /// `OsCow`: how often the private map was dropped.
    pub remaps: u64,
    /// `OsCow`: longest time that commits waited while the private map was dropped, in nanoseconds.
    pub remap_ns_max: u64,
    /// Bytes the data file takes on disk.
    pub file_bytes: u64,
}

/// A B+tree over a mapped file. `Send + Sync`; the folder is locked while it is open.
///
/// ```
/// use nofault::mmap::{Batch, Protocol, Settings, Store, WriteBack};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let settings = Settings { map_bytes: 16 << 20, ..Settings::new(Protocol::Shadow(WriteBack::Call)) };
/// // SAFETY: the folder is this program's own, and no other program touches the files in it.
/// let store = unsafe { Store::create(folder.path().join("shop"), &settings) }?;
/// let mut batch = Batch::new();
/// batch.put("apples", "12").put("pears", "3").delete("plums");
/// store.write(&batch)?;
/// let before = store.snapshot();
/// store.put("apples", "11")?;
/// assert_eq!(before.get(b"apples")?, Some(b"12".to_vec()));
/// assert_eq!(before.range(b"b", None).count(), 1);
/// drop(before);
/// assert_eq!(store.verify()?.entries, 2);
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub struct Store {
    // Ends before the fields that it works on.
    _background: Option<Background>,
    store: StoreKind,
    _lock: FolderLock,
}

enum StoreKind {
    Shadow(Box<ShadowStore>),
    Logged(Arc<LoggedStore>),
}

impl Store {
    /// Creates a store in the folder `path`, which is made if need be, and opens it. Blocks.
    ///
    /// # Safety
    /// While it is open, the files in the folder must not be truncated or written by other means: bytes under a shared
    /// slice must not change. Truncation is contained as far as the guard goes (see the module); changed bytes are not.
    ///
    /// # Errors
    /// `AlreadyExists` when there is one; `InvalidCall` for impossible settings; otherwise the error of the system.
    pub unsafe fn create(path: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let path = path.as_ref();
        open::check(settings)?;
        std::fs::create_dir_all(path).map_err(|error| file::failed("create the folder", path, &error))?;
        let (folder, held) = open::lock_folder(path)?;
        open::create_files(&folder, path, settings)?;
        // SAFETY: the caller promises it.
        unsafe { Self::open_locked(&folder, path, held, settings) }
    }

    /// Opens the store in the folder `path`, after a crash as well: replays its log. Blocks. Settings that count at
    /// creation only are taken from the file.
    ///
    /// # Safety
    /// As for [`Store::create`].
    ///
    /// # Errors
    /// `NotFound` when there is none; `InvalidCall` when it was made for another protocol; `Corrupt` when meta pages or log are
    /// damaged; `Busy` when another process or handle has it open.
    pub unsafe fn open(path: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let path = path.as_ref();
        if !path.join(open::DATA).is_file() {
            let what = format!("there is no mapped store in {}: create it, or check the path", path.display());
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let (folder, held) = open::lock_folder(path)?;
        // SAFETY: the caller promises it.
        unsafe { Self::open_locked(&folder, path, held, settings) }
    }

    unsafe fn open_locked(folder: &Folder, path: &Path, held: FolderLock, settings: &Settings) -> Result<Self> {
        let data = DataFile::open(&path.join(open::DATA))?;
        let meta = data.meta()?;
        let protocol = settings.protocol;
        if meta.kind != protocol.kind() {
            let what =
                format!("the store in {} is {:?}; it cannot be opened as {protocol:?}", path.display(), meta.kind);
            return Err(Error::new(ErrorKind::InvalidCall, what));
        }
        let shape = Shape {
            page_bytes: meta.page_bytes,
            file_id: meta.file_id,
            pages_max: meta.map_bytes / meta.page_bytes as u64,
            checksums: meta.checksums,
        };
        let len_bytes = open::file_bytes(meta.kind, meta.page_bytes, meta.map_bytes);
        // SAFETY: the caller of `create` or `open` promises that nothing else writes the file; the protocols order the
        // writes of this store.
        let map = |protection| unsafe { data.map(protection, len_bytes, settings.random) };
        let shared = map(if protocol.through_map() { Protection::Shared } else { Protection::ReadOnly })?;
        // The meta page may be in the page cache only, if its write failed or its process was killed in it. Then the
        // one before is the durable one, and the pages that it needs count as unused from here on. So it is written
        // again, to the same place, and not just synced: see `recovery`.
        data.write_meta(&meta)?;
        if meta.kind == Kind::Shadow {
            let shadow = ShadowStore::open(shape, data, shared, meta, protocol.through_map())?;
            return Ok(Self { _background: None, store: StoreKind::Shadow(Box::new(shadow)), _lock: held });
        }
        let private = if protocol == Protocol::OsCow { Some(map(Protection::Private)?) } else { None };
        let placed = match meta.kind {
            Kind::Placed => Some(PlacedPages::open(shape, &data, meta.table)?),
            _ => None,
        };
        let (log, commit, state) = open::replay(folder, &data, &meta, placed.as_ref(), settings)?;
        let (through_map, private_bytes_max) = (protocol.through_map(), settings.private_bytes_max);
        let parts = Parts { shape, data, shared, through_map, private, placed, private_bytes_max, log, meta };
        let logged = Arc::new(LoggedStore::open(parts, commit, state)?);
        let background = if settings.background_thread { Some(Background::start(&logged)?) } else { None };
        Ok(Self { _background: background, store: StoreKind::Logged(logged), _lock: held })
    }

    /// The newest durable value of a key (`OsCow`: the newest of any). Stalls while the kernel reads.
    ///
    /// # Errors
    /// `Corrupt`, or `Io` when the map failed.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot().get(key)
    }

    /// Commits one put.
    ///
    /// # Errors
    /// As for [`Store::write`].
    pub fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(key, value);
        self.write(&batch)
    }

    /// Commits the removal of a key.
    ///
    /// # Errors
    /// As for [`Store::write`].
    pub fn delete(&self, key: impl Into<Vec<u8>>) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(key);
        self.write(&batch)
    }

    /// Commits a batch: durable when it returns. Writers take turns; with a log, those that wait for it share its writes.
    ///
    /// # Errors
    /// `InvalidCall` for a key too long; `NoSpace` when the map, the log or the disk is full. Nothing has changed then.
    /// `Poisoned` after a failed write or sync: open the store again, and see whether the batch is there. A failure
    /// after the batch is durable fails the next call instead.
    pub fn write(&self, batch: &Batch) -> Result<()> {
        if batch.changes.is_empty() {
            return Ok(());
        }
        match &self.store {
            StoreKind::Shadow(store) => store.commit(batch),
            StoreKind::Logged(store) => store.commit(batch),
        }
    }

    /// A snapshot of the newest durable commit, readable for as long as it lives. With `OsCow` there are no snapshots:
    /// each call reads the newest state. A snapshot keeps pages from being reused until it ends: with `Shadow` the file
    /// grows until then, with `UserCow` and `MappedLog` the log does.
    pub fn snapshot(&self) -> Snapshot<'_> {
        let (commit, root) = match &self.store {
            StoreKind::Shadow(store) => {
                let (commit, state) = store.begin();
                (commit, state.table)
            }
            StoreKind::Logged(store) => (store.begin(), store.table),
        };
        Snapshot { store: self, commit, tree: Tree { root, table: TABLE } }
    }

    /// Applies the log to the file and syncs the file. Does nothing with `Shadow`.
    ///
    /// # Errors
    /// `Poisoned` after a failed write or sync.
    pub fn checkpoint(&self) -> Result<()> {
        match &self.store {
            StoreKind::Shadow(_) => Ok(()),
            StoreKind::Logged(store) => store.checkpoint(),
        }
    }

    /// `OsCow`: drops the private copies now, as happens by itself when there are many.
    ///
    /// # Errors
    /// As for [`Store::checkpoint`].
    pub fn remap(&self) -> Result<()> {
        match &self.store {
            StoreKind::Shadow(_) => Ok(()),
            StoreKind::Logged(store) => store.shrink(),
        }
    }

    /// Returns the counters and sizes of the store.
    pub fn stats(&self) -> Stats {
        let data = match &self.store {
            StoreKind::Shadow(store) => &store.data,
            StoreKind::Logged(store) => &store.data,
        };
        let mut stats = Stats {
            data_bytes_written: data.bytes_written.load(Ordering::Relaxed),
            data_syncs: data.syncs.load(Ordering::Relaxed),
            file_bytes: data.allocated_bytes(),
            ..Stats::default()
        };
        if let StoreKind::Logged(store) = &self.store {
            let (log, counts) = (store.log.stats(), &store.counts);
            stats.log_bytes_written = log.bytes_written;
            stats.log_writes = log.groups_written;
            stats.checkpoints = counts.checkpoints.load(Ordering::Relaxed);
            stats.waiting_pages = store.waiting_pages() as u64;
            stats.private_pages = counts.private_pages.load(Ordering::Relaxed);
            stats.remaps = counts.remaps.load(Ordering::Relaxed);
            stats.remap_ns_max = counts.remap_ns_max.load(Ordering::Relaxed);
        }
        stats
    }

    /// Walks everything: nodes are well-formed and between their fences, and each page is used once or free. No commit may
    /// happen at the same time.
    ///
    /// # Errors
    /// `Corrupt`, naming the first page that is wrong.
    pub fn verify(&self) -> Result<Verification> {
        let (state, records) = match &self.store {
            StoreKind::Shadow(store) => store.accounts(),
            StoreKind::Logged(store) => store.check_places().map(|()| store.accounts())?,
        };
        let snapshot = self.snapshot();
        self.look(snapshot.commit, |view| verify::verify(view, state, &records))
    }

    fn look<R>(&self, commit: CommitSeq, look: impl FnOnce(&View<'_>) -> Attempt<R>) -> Result<R> {
        match &self.store {
            StoreKind::Shadow(store) => store.look(look),
            StoreKind::Logged(store) => store.look(commit, look),
        }
    }
}

/// A snapshot of a mapped store: see [`Store::snapshot`].
pub struct Snapshot<'a> {
    store: &'a Store,
    commit: CommitSeq,
    tree: Tree,
}

impl Snapshot<'_> {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// As for [`Store::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.store.look(self.commit, |view| match self.tree.get(view, key)? {
            None => Ok(None),
            Some(found) => value(view, found).map(Some),
        })
    }

    /// Returns the entries from `start` on and below `end`, in order.
    pub fn range(&self, start: &[u8], end: Option<&[u8]>) -> Range<'_> {
        Range::new(self, KeyRange { start: start.to_vec(), end: end.map(<[u8]>::to_vec) })
    }

    /// Scans all entries in order, a leaf at a time. Asks the kernel for up to `ahead` of the leaves to come
    /// (`MADV_WILLNEED`), and again once half of them are passed; adjacent pages by one call. The kernel may ignore it, and the
    /// call itself may wait for the device. With `OsCow` the leaves may be of different commits.
    pub fn leaf_scan(&self, ahead: usize) -> LeafScan<'_> {
        LeafScan::new(self, ahead)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        match &self.store.store {
            StoreKind::Shadow(store) => store.end(self.commit),
            StoreKind::Logged(store) => store.end(self.commit),
        }
    }
}

/// Applies the changes of a batch.
fn apply_batch(work: &mut Workspace<'_>, batch: &Batch) -> Attempt<()> {
    for (key, value) in &batch.changes {
        let tree = Tree { root: work.state.table, table: TABLE };
        let old = match value {
            None => tree.delete(work, key)?,
            Some(value) if value.len() <= inline_value_bytes_max(work.page_bytes()) => {
                tree.put(work, key, Cell::Inline(value))?
            }
            Some(value) if value.len() as u64 <= VALUE_BYTES_MAX => {
                crate::btree::write::check_key(work.page_bytes(), key)?;
                let written = Writer::new(value).write(work, tree, usize::MAX)?;
                let unfinished = || Error::new(ErrorKind::Bug, "a long value was not written to its end");
                tree.put(work, key, written.ok_or_else(unfinished)?.cell())?
            }
            Some(value) => {
                let what = format!("a value of {} bytes; {VALUE_BYTES_MAX} is the most", value.len());
                return Err(Error::new(ErrorKind::InvalidCall, what).into());
            }
        };
        if let Some(ReplacedValue::Long(old)) = old {
            pages_of(work, old)?.into_iter().for_each(|page| work.free(page));
        }
    }
    Ok(())
}

/// Returns the bytes of a value found in the tree, reading the overflow pages of a long one.
fn value<P: Pages>(pages: &P, found: FoundValue) -> Attempt<Vec<u8>> {
    match found {
        FoundValue::Inline(value) => Ok(value),
        FoundValue::Long(at) => read_long(pages, Reader::new(pages.page_bytes(), at)?).map(Reader::into_value),
    }
}

/// Returns the pages of a long value.
fn pages_of<P: Pages>(pages: &P, at: OverflowRef) -> Attempt<Vec<PageId>> {
    read_long(pages, Reader::listing(pages.page_bytes(), at)?).map(Reader::into_pages)
}

fn read_long<P: Pages>(pages: &P, mut reader: Reader) -> Attempt<Reader> {
    let mut missing = Vec::new();
    if reader.advance(pages, CommitSeq(0), 1, &mut missing)? {
        return Ok(reader);
    }
    Err(Error::new(ErrorKind::Bug, format!("a map answered {missing:?}")).into())
}

/// Runs `access` under the guard of `map`, and turns a fault or a wait into an error.
fn guarded<R>(map: &MappedFile, access: impl FnOnce() -> Attempt<R>) -> Result<R> {
    // The fault first: after one, `access` has read zeroes in place of a page, and its result means nothing.
    match map.watched(access).map_err(|error| Error::from_io("use the mapped file", error))? {
        Ok(result) => Ok(result),
        Err(Wait::Failed(error)) => Err(error),
        Err(wait) => Err(Error::new(ErrorKind::Bug, format!("a map answered {wait:?}"))),
    }
}

const READS_GO_ON: &str = "reads go on, open the store again to write";

/// Tells, for an error message, whether readers of `map` still work after commits have stopped. See
/// [`MappedFile::watched`].
fn reads_after_failure(map: &MappedFile) -> &'static str {
    if map.watched(|| ()).is_ok() { READS_GO_ON } else { "reads fail from now on as well: open the store again" }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks only changes in whole steps, so poisoning is ignored.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fuzzer's entry point to this module: decodes bytes as the beginning of a file, and as a record.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn decode_anything(bytes: &[u8]) {
    meta::decode_anything(bytes);
    let _ = record::replay(bytes, |_, _, _| Ok(()));
}
