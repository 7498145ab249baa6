//! A directory of which a process that never ends reads every checkpoint, so that no block becomes free while there is
//! space for it to be kept.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nofault_io::disk::{Directory, FileLock, READER_RECORD_BYTES, ReaderUse, ReaderWatch};
use nofault_io::error::Result;
use nofault_sim::Hooks;

/// Returns the directory, and the number of times that a writer has told its readers anything.
pub(crate) fn read_by_another(directory: Arc<dyn Directory>) -> (Arc<dyn Directory>, Arc<AtomicU64>) {
    let records = Arc::<AtomicU64>::default();
    let of_readers = Arc::clone(&records);
    let hooks = Hooks::new().lock(move |directory, name, signed| {
        let lock = directory.lock(name, signed)?;
        let watch = Arc::new(EternalReader { record: Mutex::new(None), records: Arc::clone(&of_readers) });
        Ok(Box::new(ReadFile { lock, watch }))
    });
    (hooks.directory(directory), records)
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
