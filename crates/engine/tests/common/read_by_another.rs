//! A directory of which a process that never ends reads every checkpoint, so that no block becomes free while there is
//! space for it to be kept.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nofault_io::disk::{Directory, Disk, FileLock, READER_RECORD_BYTES, ReaderUse, ReaderWatch};
use nofault_io::error::Result;

#[derive(Debug)]
pub(crate) struct ReadByAnother {
    directory: Arc<dyn Directory>,
    records: Arc<AtomicU64>,
}

impl ReadByAnother {
    pub(crate) fn new(directory: Arc<dyn Directory>) -> Self {
        Self { directory, records: Arc::default() }
    }

    /// Returns how often a writer has told its readers anything.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }
}

impl Directory for ReadByAnother {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.directory.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.directory.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.directory.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.directory.list()
    }

    fn sync(&self) -> Result<()> {
        self.directory.sync()
    }

    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        let lock = self.directory.lock(name, signed)?;
        let watch = Arc::new(EternalReader { record: Mutex::new(None), records: Arc::clone(&self.records) });
        Ok(Box::new(ReadFile { lock, watch }))
    }
}

#[derive(Debug)]
struct ReadFile {
    lock: Box<dyn FileLock>,
    watch: Arc<EternalReader>,
}

impl FileLock for ReadFile {
    fn check(&self, name: &str) -> Result<()> {
        self.lock.check(name)
    }

    fn readers(&self, _record: &str) -> Result<Option<Arc<dyn ReaderWatch>>> {
        Ok(Some(self.watch.clone()))
    }
}

/// A reader that moves on to the newest checkpoint at once, and that no writer sees do so.
#[derive(Debug)]
struct EternalReader {
    record: Mutex<Option<[u8; READER_RECORD_BYTES]>>,
    records: Arc<AtomicU64>,
}

impl ReaderWatch for EternalReader {
    fn is_in_use(&self, of: ReaderUse, numbers: Range<u64>) -> Result<bool> {
        // It cannot have registered before there was a record.
        Ok(of == ReaderUse::Content && !numbers.is_empty() && self.record()?.is_some())
    }

    fn try_exclude(&self, _of: ReaderUse) -> Result<bool> {
        Ok(true)
    }

    fn admit(&self, _of: ReaderUse) {}

    fn record_inode(&self) -> u64 {
        0
    }

    fn record(&self) -> Result<Option<[u8; READER_RECORD_BYTES]>> {
        Ok(*self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_record(&self, bytes: &[u8; READER_RECORD_BYTES]) -> Result<()> {
        self.records.fetch_add(1, Ordering::Relaxed);
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = Some(*bytes);
        Ok(())
    }
}
