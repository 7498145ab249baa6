//! The stores compared under a fault. Each runs in a subject process and returns the bytes of a page or an
//! error. The lab, not the store, judges whether the bytes are right.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nofault::blocking::{Db, Table};
use nofault::mmap::{self, Protocol, WriteBack};
use nofault::settings::Settings;
use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection, SyncMode};

use super::pages::{self, PAGE_BYTES};
use super::{ENGINE_DIRTY, MMAP_GUARDED, MMAP_GUARDED_CHECKED, MMAP_READONLY, PREAD_DIRECT_CHECKED, SHADOW_CHECKED};
use crate::error::{LabError, LabErrorKind, Result};
use crate::methods;
use crate::paths::shown;

/// Name of the file with the pages of the stores that keep plain pages, in the trial's folder.
pub(super) const PLAIN: &str = "pages";
/// Name of the file with the pages of the engine, or of its tree over a map, in the trial's folder.
pub(super) const ENGINE: &str = "data";
/// Length in bytes of a value in the engine's table: of each page of test data the experiment stores its beginning as a
/// value.
const VALUE_BYTES: usize = 1024;
const TABLE: &str = "pages";

/// The ways of storing pages, one for each method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A readable and writable shared map, accessed without guard or checksums.
    Map,
    /// A read-only shared map, accessed without guard or checksums.
    MapReadOnly,
    /// A shared map behind a guard that turns SIGBUS into an error. No checksums.
    MapGuarded,
    /// A guarded shared map that verifies a page's checksum on every access.
    MapChecked,
    /// Read calls into private memory. No checksums.
    Calls,
    /// Read calls into private memory; a page's checksum is verified when it is loaded.
    CallsChecked,
    /// The engine, with its buffer pool and checksums.
    Engine,
    /// The engine; a stray write hits a page that was changed and is not written yet.
    EngineDirty,
    /// The engine's tree over a map, by one protocol for durable changes; the flag says whether every access verifies
    /// the page's checksum.
    Mapped(Protocol, bool),
}

const WAYS: [(&str, Way); 15] = [
    (methods::MMAP.id, Way::Map),
    (MMAP_READONLY.id, Way::MapReadOnly),
    (MMAP_GUARDED.id, Way::MapGuarded),
    (MMAP_GUARDED_CHECKED.id, Way::MapChecked),
    (methods::PREAD_DIRECT.id, Way::Calls),
    (PREAD_DIRECT_CHECKED.id, Way::CallsChecked),
    (methods::ENGINE.id, Way::Engine),
    (ENGINE_DIRTY.id, Way::EngineDirty),
    (methods::OS_COW.id, Way::Mapped(Protocol::OsCow, false)),
    (methods::USER_COW.id, Way::Mapped(Protocol::UserCow(WriteBack::Map), false)),
    (methods::USER_COW_PWRITE.id, Way::Mapped(Protocol::UserCow(WriteBack::Call), false)),
    (methods::MAPPED_LOG.id, Way::Mapped(Protocol::MappedLog, false)),
    (methods::SHADOW.id, Way::Mapped(Protocol::Shadow(WriteBack::Call), false)),
    (methods::SHADOW_WRITEMAP.id, Way::Mapped(Protocol::Shadow(WriteBack::Map), false)),
    (SHADOW_CHECKED.id, Way::Mapped(Protocol::Shadow(WriteBack::Call), true)),
];

impl Way {
    pub(super) fn of(method: &str) -> Option<Self> {
        WAYS.iter().find(|(id, _)| *id == method).map(|(_, way)| *way)
    }

    fn has_tree(self) -> bool {
        matches!(self, Self::Engine | Self::EngineDirty | Self::Mapped(..))
    }

    /// Returns the name of the file holding the store's pages.
    pub(super) fn file(self) -> &'static str {
        if self.has_tree() { ENGINE } else { PLAIN }
    }

    /// Writes `count` pages to a new store in `folder`, durably.
    pub(super) fn make(self, folder: &Path, seed: u64, count: u64) -> Result<()> {
        if let Self::Mapped(protocol, checksums) = self {
            let mut batch = mmap::Batch::new();
            for number in 0..count {
                batch.put(number.to_be_bytes(), value(seed, number));
            }
            // SAFETY: the trial's folder is new, and no other process uses it yet.
            let store = unsafe { mmap::Store::create(folder, &mapped_settings(protocol, checksums)) }?;
            store.write(&batch)?;
            return Ok(store.checkpoint()?);
        }
        if self.has_tree() {
            let db = Db::create(folder, &settings())?;
            let table = db.create_table(TABLE)?;
            table.bulk_load((0..count).map(|number| (number.to_be_bytes(), value(seed, number))))?;
            db.checkpoint()?;
            return Ok(());
        }
        let path = folder.join(PLAIN);
        let mut bytes = vec![0; PAGE_BYTES * count as usize];
        for (page, number) in bytes.chunks_exact_mut(PAGE_BYTES).zip(0..) {
            pages::fill(page, seed, number);
        }
        let written =
            File::create_new(&path).and_then(|file| file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()));
        written.map_err(|error| LabError::system(format!("write {}", shown(&path)), &error))
    }

    /// Opens the store in `folder`.
    pub(super) fn open(self, folder: &Path) -> Result<Box<dyn Store>> {
        let path = folder.join(PLAIN);
        let checked = matches!(self, Self::MapChecked | Self::CallsChecked);
        match self {
            Self::Engine | Self::EngineDirty => Ok(Box::new(EngineStore::open(folder)?)),
            Self::Mapped(protocol, checksums) => {
                // SAFETY: the requirement that no other process changes the files is broken on purpose: that is the
                // fault, in a process made for it.
                let store = unsafe { mmap::Store::open(folder, &mapped_settings(protocol, checksums)) }?;
                Ok(Box::new(store))
            }
            Self::Calls | Self::CallsChecked => Ok(Box::new(CallStore::open(&path, checked)?)),
            _ => {
                let writes = if self == Self::MapReadOnly { Protection::ReadOnly } else { Protection::Shared };
                // SAFETY: the requirement that no other process truncates the file is broken on purpose: that is the
                // fault, in a process made for it.
                let map = unsafe { MappedFile::open(&path, writes) }?;
                map.advise(Advice::Random, 0..map.len_bytes())?;
                let guarded = matches!(self, Self::MapGuarded | Self::MapChecked);
                Ok(Box::new(MapStore { map, guarded, checked }))
            }
        }
    }
}

/// A store as the subject process uses it.
pub(super) trait Store {
    /// Returns the bytes of a page, or the error that the store itself detected.
    fn read(&mut self, number: u64) -> Result<Vec<u8>>;

    /// Rewrites a page with the same content, so that its version in memory is newer than on disk.
    fn change(&mut self, seed: u64, number: u64) -> Result<()> {
        let _ = (seed, number);
        Err(LabError::new(LabErrorKind::Unsupported, "this store changes no pages"))
    }

    /// Writes to disk all data that the store would write sooner or later.
    fn sync(&mut self) -> Result<()>;
}

fn damaged(number: u64) -> LabError {
    LabError::new(LabErrorKind::Damaged, format!("page {number}: its checksum does not match"))
}

struct MapStore {
    map: MappedFile,
    guarded: bool,
    checked: bool,
}

impl Store for MapStore {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        let at = number as usize * PAGE_BYTES;
        let range = at..at + PAGE_BYTES;
        let page = match self.guarded {
            true => self.map.guarded(range, <[u8]>::to_vec)?,
            false => self.map.bytes()[range].to_vec(),
        };
        if self.checked && !pages::is_whole(&page, number) {
            return Err(damaged(number));
        }
        Ok(page)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.map.sync(0..self.map.len_bytes(), SyncMode::Wait)?)
    }
}

/// Pages in private memory, loaded by read calls: the simplest buffer pool.
struct CallStore {
    file: File,
    path: PathBuf,
    checked: bool,
    frames: std::collections::BTreeMap<u64, IoBuf>,
}

impl CallStore {
    fn open(path: &Path, checked: bool) -> Result<Self> {
        let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = match open(libc::O_DIRECT) {
            // Without direct I/O on this file system, buffered calls take its place.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
            other => other,
        };
        let file = file.map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
        Ok(Self { file, path: path.to_path_buf(), checked, frames: Default::default() })
    }
}

impl Store for CallStore {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        if let Some(frame) = self.frames.get(&number) {
            return Ok(frame.to_vec());
        }
        let mut frame = IoBuf::zeroed(PAGE_BYTES, PageKind::Small)?;
        let action = || format!("read page {number} of {}", shown(&self.path));
        let count = self
            .file
            .read_at(&mut frame, number * PAGE_BYTES as u64)
            .map_err(|error| LabError::system(action(), &error))?;
        if count < PAGE_BYTES {
            let message = format!("{}: {count} of {PAGE_BYTES} bytes: the file is shorter than it was", action());
            return Err(LabError::new(LabErrorKind::Damaged, message));
        }
        if self.checked && !pages::is_whole(&frame, number) {
            return Err(damaged(number));
        }
        let page = frame.to_vec();
        self.frames.insert(number, frame);
        Ok(page)
    }

    fn sync(&mut self) -> Result<()> {
        // The store's pages are never written, so there is no data to sync.
        Ok(())
    }
}

struct EngineStore {
    db: Db,
    table: Table,
}

fn settings() -> Settings {
    // Without background threads, memory and disk change only through the requested operations.
    Settings { cache_bytes: 32 << 20, log_bytes: 4 << 20, background_threads: false, ..Settings::default() }
}

fn value(seed: u64, number: u64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    pages::fill(&mut value, seed, number);
    value
}

impl EngineStore {
    fn open(folder: &Path) -> Result<Self> {
        let db = Db::open(folder, &settings())?;
        let table = db.table(TABLE)?;
        Ok(Self { db, table })
    }
}

impl Store for EngineStore {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        // A missing key counts as wrong bytes, not as an error: the program got no sign of it.
        Ok(self.table.get(number.to_be_bytes())?.unwrap_or_default())
    }

    fn change(&mut self, seed: u64, number: u64) -> Result<()> {
        Ok(self.table.put(number.to_be_bytes(), value(seed, number))?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.db.checkpoint()?)
    }
}

/// As [`settings`], with a map no larger than needed, because the lab searches all of it.
fn mapped_settings(protocol: Protocol, checksums: bool) -> mmap::Settings {
    let background_thread = false;
    mmap::Settings {
        map_bytes: 16 << 20,
        log_bytes: 4 << 20,
        checksums,
        background_thread,
        ..mmap::Settings::new(protocol)
    }
}

impl Store for mmap::Store {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        Ok(self.get(&number.to_be_bytes())?.unwrap_or_default())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.checkpoint()?)
    }
}
