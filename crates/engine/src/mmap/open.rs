//! Creates the files of a mapped store, and replays the log into them when a store is opened.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use nofault_io::disk::Directory;
use nofault_io::folder::{Backend, Folder, FolderLock};

use super::file::DataFile;
use super::free_tree::FREE;
use super::meta::{Kind, META_PAGES, Meta, State};
use super::placed::{self, PlacedPages};
use super::shape::Shape;
use super::{Settings, TABLE, record};
use crate::error::{Error, ErrorKind, Result};
use crate::format::node_mut::{NodeSpec, init};
use crate::format::{CommitSeq, HEADER_BYTES, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PageId, seal_page};
use crate::wal::{Anchor, Log, LogOptions, LogPurpose, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, create_log, read_log};

/// Name of the file with the pages.
pub(super) const DATA: &str = "data";
const LOG: &str = "log";
const UNFINISHED: &str = "data.new";
const LOCK: &str = "lock";
/// Bytes of records that may be in memory before they are written to the log.
const LOG_BUFFER_BYTES: usize = 1 << 20;

/// Refuses invalid settings.
pub(super) fn check(settings: &Settings) -> Result<()> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidCall, what));
    let page_bytes = settings.page_bytes;
    if !page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) {
        return invalid(format!("pages of {page_bytes} bytes: choose a power of two from 512 to 65,536"));
    }
    let unit = page_bytes.max(PAGE_BYTES_MAX) as u64;
    if settings.map_bytes < 2 * unit || !settings.map_bytes.is_multiple_of(unit) || settings.map_bytes > 1 << 46 {
        return invalid(format!(
            "a map of {} bytes: choose a multiple of {unit}, at least twice that",
            settings.map_bytes
        ));
    }
    Ok(())
}

pub(super) fn lock_folder(path: &Path) -> Result<(Folder, FolderLock)> {
    let failed = |error| Error::from_io(format_args!("open the store in {}", path.display()), error);
    let folder = Folder::open(path, Backend::Auto).map_err(failed)?;
    let held = folder.lock_by_name(LOCK).map_err(failed)?;
    Ok((folder, held))
}

/// Creates the files of an empty store. The rename at the end makes them a store.
pub(super) fn create_files(folder: &Folder, path: &Path, settings: &Settings) -> Result<()> {
    let failed = |action: &'static str| move |error| Error::from_io(action, error);
    let names = folder.list().map_err(failed("list the folder"))?;
    if names.iter().any(|name| name == DATA) {
        return Err(Error::new(ErrorKind::AlreadyExists, "there is a store in this folder already: open it instead"));
    }
    for name in names.iter().filter(|name| *name == UNFINISHED || *name == LOG) {
        folder.remove(name).map_err(failed("remove the files of an unfinished creation"))?;
    }
    // Tells the files of one store from other stores' files.
    let file_id = RandomState::new().build_hasher().finish();
    let segment_bytes = (settings.log_bytes / 16).next_power_of_two().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
    let kind = settings.protocol.kind();
    let anchor = if kind == Kind::Shadow {
        Anchor { position: 0, sequence: 0, checksum: 0 }
    } else {
        let disk = folder.create(LOG).map_err(failed("create the log"))?;
        create_log(&*disk, &log_options(settings, file_id, segment_bytes))?.0
    };
    let data = DataFile::create(&path.join(UNFINISHED), file_bytes(kind, settings.page_bytes, settings.map_bytes))?;
    let mut made = Vec::new();
    let (table, free) = (PageId(META_PAGES), PageId(META_PAGES + 1));
    for (id, of) in [(table, TABLE), (free, FREE)] {
        let mut page = vec![0; settings.page_bytes];
        init(&mut page[HEADER_BYTES..], &NodeSpec { level: 0, table: of, lower: &[], upper: None, first_child: None });
        if settings.checksums {
            seal_page(file_id, id, CommitSeq(0), &mut page);
        }
        made.push((id, CommitSeq(0), page.into()));
    }
    let mut root = 0;
    if kind == Kind::Placed {
        let pages_max = settings.map_bytes / settings.page_bytes as u64;
        let placed = PlacedPages::empty(Shape {
            page_bytes: settings.page_bytes,
            file_id,
            pages_max,
            checksums: settings.checksums,
        });
        placed.write(&data, &made)?;
        root = placed.snapshot(&data)?.root;
    } else {
        made.iter().try_for_each(|(id, _, page)| data.write_at(page, id.0 * settings.page_bytes as u64))?;
    }
    data.sync()?;
    data.write_meta(&Meta {
        kind,
        file_id,
        page_bytes: settings.page_bytes,
        map_bytes: settings.map_bytes,
        checksums: settings.checksums,
        sequence: 0,
        commit: CommitSeq(0),
        state: State { table, free, page_count: META_PAGES + 2 },
        segment_bytes,
        anchor,
        table: root,
    })?;
    folder.sync().map_err(failed("sync the folder"))?;
    folder.rename(UNFINISHED, DATA).map_err(failed("name the data file"))?;
    folder.sync().map_err(failed("sync the folder"))
}

/// Returns the file size for so many bytes of pages.
pub(super) fn file_bytes(kind: Kind, page_bytes: usize, map_bytes: u64) -> u64 {
    if kind == Kind::Placed { placed::file_bytes(page_bytes, map_bytes) } else { map_bytes }
}

fn log_options(settings: &Settings, file_id: u64, segment_bytes: u64) -> LogOptions {
    let log_bytes = settings.log_bytes.max(4 * segment_bytes);
    let (buffer_bytes, purpose) = (LOG_BUFFER_BYTES, LogPurpose::Write);
    LogOptions { file_id, segment_bytes, log_bytes, buffer_bytes, seed: None, purpose }
}

/// Applies the records since the last checkpoint to the file. Returns the log, ready to go on, and the state after the
/// last record.
pub(super) fn replay(
    folder: &Folder,
    data: &DataFile,
    meta: &Meta,
    placed: Option<&PlacedPages>,
    settings: &Settings,
) -> Result<(Log, CommitSeq, State)> {
    let disk = folder.open(LOG).map_err(|error| Error::from_io("open the log", error))?;
    let options = log_options(settings, meta.file_id, meta.segment_bytes);
    let (recovered, records) = read_log(&*disk, &options, meta.anchor, meta.commit)?;
    let last = recovered.commit;
    let mut state = meta.state;
    let mut changed = BTreeSet::new();
    for found in records {
        state = record::replay(&found?.1, |id, start, bytes| {
            let pages_max = meta.map_bytes / meta.page_bytes as u64;
            if !(META_PAGES..pages_max).contains(&id.0) || start + bytes.len() > meta.page_bytes {
                let what = "lies outside of the mapped file, though a log record changes it";
                return Err(Error::corrupt_page(id, what));
            }
            let block = match placed {
                None => id.0,
                Some(placed) => {
                    changed.insert(id);
                    placed.own(data, id)?
                }
            };
            data.write_at(bytes, block * meta.page_bytes as u64 + start as u64)
        })?;
    }
    placed.map_or(Ok(()), |placed| placed.retag(data, &changed))?;
    data.sync()?;
    Ok((Log::open(&*disk, options, recovered)?, last, state))
}

#[cfg(test)]
mod tests {
    use super::super::{Protocol, Store, WriteBack};
    use super::*;
    use crate::pages::CommitLog as _;

    /// Leaves the files in the state of a process killed during a large commit.
    fn begin_a_record_larger_than_the_log(path: &Path, settings: &Settings) {
        let (folder, _held) = lock_folder(path).unwrap();
        let meta = DataFile::open(&path.join(DATA)).unwrap().meta().unwrap();
        let options = log_options(settings, meta.file_id, meta.segment_bytes);
        let disk = folder.open(LOG).unwrap();
        let (recovered, _) = read_log(&*disk, &options, meta.anchor, meta.commit).unwrap();
        let commit = recovered.commit.next();
        let log = Log::open(&*disk, options, recovered).unwrap();
        while log.stats().live_bytes <= options.log_bytes {
            crate::pages::Ticket::wait(&mut log.await_space(10_000)).unwrap();
            log.append(commit, &[&[7; 10_000]], None).unwrap();
            log.flush().unwrap();
        }
    }

    #[test]
    fn a_record_larger_than_the_log_that_was_never_ended_keeps_no_space_in_it() {
        for protocol in [Protocol::OsCow, Protocol::UserCow(WriteBack::Call), Protocol::MappedLog] {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path();
            let settings = Settings::small(protocol);
            // SAFETY: no other code knows the folder.
            drop(unsafe { Store::create(path, &settings) }.unwrap());
            begin_a_record_larger_than_the_log(path, &settings);
            for key in ["a", "b"] {
                // SAFETY: as above.
                let store = unsafe { Store::open(path, &settings) }.unwrap();
                store.put(key, "v").unwrap_or_else(|error| panic!("{protocol:?}, {key}: {error}"));
                assert_eq!(store.get(b"a").unwrap(), Some(b"v".to_vec()), "{protocol:?}");
            }
        }
    }
}
