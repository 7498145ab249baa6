//! Shadow paging, as LMDB does it: a commit writes copies of the pages it changed, and of all above them up to the
//! root, to unused pages, makes them durable, and then switches one of two meta pages.
//!
//! Kept true by:
//! 1. A page is written only while no durable meta page and no reader can reach it: pages that a commit frees are
//!    reused by later commits only, and only when no reader sees a state before it.
//! 2. The pages are durable before the meta page that leads to them is written; that is durable before the commit is visible.
//! 3. The meta page is written over the older of the two: torn, it leaves the state before.
//! 4. The meta page from which opening continues is made durable before anything else is written: found in the page
//!    cache, it need not be durable. Pages that only the meta page before it needs count as unused from then on.
//!
//! A writable map changes how the copies get to the file: by stores into the map and `msync` instead of `pwrite` and `fdatasync`.
//! The copies themselves are made in user memory in both forms, so that an abandoned commit leaves no trace.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use nofault_io::mapped::{MappedFile, SyncMode};

use super::file::DataFile;
use super::free::{FreePages, Records};
use super::free_tree::{self, FREE};
use super::meta::{Meta, State};
use super::shape::Shape;
use super::workspace::{View, Workspace};
use super::{Batch, TABLE, apply_batch, guarded, lock, reads_after_failure};
use crate::error::{Error, ErrorKind, Result};
use crate::format::node::{LEVEL_MAX, Node};
use crate::format::node_mut::set_child;
use crate::format::{CommitSeq, HEADER_BYTES, PageId, TableId, seal_page};
use crate::pages::{Attempt, PageCopies, Pages};

/// Most adjacent pages in one write.
const RUN_PAGES_MAX: usize = 64;

/// A mapped store with shadow paging: see the module.
pub(super) struct ShadowStore {
    pub(super) shape: Shape,
    pub(super) data: DataFile,
    map: MappedFile,
    through_map: bool,
    writer: Mutex<Writer>,
    readers: Mutex<Readers>,
}

struct Writer {
    meta: Meta,
    records: Records,
    failed: Option<Error>,
}

struct Readers {
    now: (CommitSeq, State),
    /// Number of readers of each commit.
    live: BTreeMap<CommitSeq, usize>,
}

impl ShadowStore {
    pub(super) fn open(shape: Shape, data: DataFile, map: MappedFile, meta: Meta, through_map: bool) -> Result<Self> {
        let records =
            guarded(&map, || free_tree::load(&View { shape, map: &map, versions: None, placed: None }, meta.state))?;
        let readers = Mutex::new(Readers { now: (meta.commit, meta.state), live: BTreeMap::new() });
        let writer = Mutex::new(Writer { meta, records, failed: None });
        Ok(Self { shape, data, map, through_map, writer, readers })
    }

    /// Registers a reader of the newest commit. [`ShadowStore::end`] ends the registration.
    pub(super) fn begin(&self) -> (CommitSeq, State) {
        let mut readers = lock(&self.readers);
        let now = readers.now;
        *readers.live.entry(now.0).or_default() += 1;
        now
    }

    pub(super) fn end(&self, commit: CommitSeq) {
        let mut readers = lock(&self.readers);
        if let Some(count) = readers.live.get_mut(&commit) {
            *count -= 1;
            if *count == 0 {
                readers.live.remove(&commit);
            }
        }
    }

    pub(super) fn look<R>(&self, look: impl FnOnce(&View<'_>) -> Attempt<R>) -> Result<R> {
        guarded(&self.map, || look(&self.view()))
    }

    fn view(&self) -> View<'_> {
        View { shape: self.shape, map: &self.map, versions: None, placed: None }
    }

    /// Returns the newest state and its free pages.
    pub(super) fn accounts(&self) -> (State, Records) {
        let writer = lock(&self.writer);
        (writer.meta.state, writer.records.clone())
    }

    /// Makes a batch durable and visible.
    pub(super) fn commit(&self, batch: &Batch) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &writer.failed {
            return Err(error.clone());
        }
        let commit = writer.meta.commit.next();
        let usable = lock(&self.readers).live.keys().next().copied().unwrap_or(writer.meta.commit);
        let (copies, state, changes) = guarded(&self.map, || {
            let free = FreePages::new(&writer.records, usable);
            let mut work = Workspace::copying(self.view(), writer.meta.state, free);
            apply_batch(&mut work, batch)?;
            let changes = free_tree::save(&mut work, commit, move_up)?;
            let state = work.state;
            Ok((work.into_copies(), state, changes))
        })?;
        let meta = Meta { sequence: writer.meta.sequence + 1, commit, state, ..writer.meta };
        if let Err(error) = self.write(copies, &meta) {
            let reads = reads_after_failure(&self.map);
            let what = format!("a commit failed on its way to the disk ({error}); {reads}");
            let error = Error::new(ErrorKind::Poisoned, what);
            writer.failed = Some(error.clone());
            return Err(error);
        }
        writer.meta = meta;
        changes.apply(&mut writer.records);
        lock(&self.readers).now = (commit, state);
        Ok(())
    }

    fn write(&self, copies: BTreeMap<PageId, Box<[u8]>>, meta: &Meta) -> Result<()> {
        let page_bytes = self.shape.page_bytes;
        let mut run: Vec<u8> = Vec::new();
        let mut run_end = PageId(0);
        let send = |run: &mut Vec<u8>, end: PageId| {
            let at = end.0 * page_bytes as u64 - run.len() as u64;
            let sent = if self.through_map {
                self.data.note_written(run.len());
                // SAFETY: pages that no meta page and no reader reaches (rule 1), and there is one writer.
                unsafe { self.map.write_at(at as usize, run) }
                    .map_err(|error| Error::from_io("store into the map", error))
            } else {
                self.data.write_at(run, at)
            };
            run.clear();
            sent
        };
        for (id, mut page) in copies {
            if self.shape.checksums {
                seal_page(self.shape.file_id, id, meta.commit, &mut page);
            }
            if !run.is_empty() && (id != run_end || run.len() >= RUN_PAGES_MAX * page_bytes) {
                send(&mut run, run_end)?;
            }
            run.extend_from_slice(&page);
            run_end = PageId(id.0 + 1);
        }
        if !run.is_empty() {
            send(&mut run, run_end)?;
        }
        if self.through_map {
            self.data.syncs.fetch_add(1, Ordering::Relaxed);
            let used = meta.state.page_count as usize * page_bytes;
            self.map.sync(0..used, SyncMode::Wait).map_err(|error| Error::from_io("sync the map", error))?;
        } else {
            self.data.sync()?;
        }
        // The switch: only now, when everything that it leads to is durable.
        self.data.write_meta(meta)
    }
}

/// Gives every edited page a new place, from the leaves up: each leads to an edit of its parent, and at last to another root.
fn move_up(work: &mut Workspace<'_>) -> Attempt<()> {
    for level in 0..=LEVEL_MAX {
        if work.all_moved() {
            break;
        }
        for id in work.in_old_place(level)? {
            let (table, lower) = {
                let page = work.page(id)?;
                let node = Node::open(id, &page)?;
                (TableId(node.table()), node.lower().to_vec())
            };
            let moved = work.move_page(id)?;
            let root = match table {
                TABLE => &mut work.state.table,
                FREE => &mut work.state.free,
                _ => return Err(Error::corrupt_page(id, format_args!("is a node of table {table}")).into()),
            };
            if *root == id {
                *root = moved;
                continue;
            }
            let root = *root;
            let (parent, index) = parent_of(work, root, id, &lower)?;
            set_child(parent, work.edit(parent)?, index, moved)?;
        }
    }
    Ok(())
}

/// Finds the parent of `child`, whose lower fence is `lower`. Returns the parent, and the index of the child in it.
fn parent_of(work: &Workspace<'_>, root: PageId, child: PageId, lower: &[u8]) -> Attempt<(PageId, usize)> {
    let mut at = root;
    for _ in 0..=LEVEL_MAX {
        let page = work.page(at)?;
        let node = Node::open(at, &page)?;
        if node.level() == 0 {
            break;
        }
        let index = node.child_index(lower)?;
        let next = node.child(index)?;
        if next == child {
            return Ok((at, index));
        }
        at = next;
    }
    Err(Error::corrupt_page(child, "no node above leads to it").into())
}

const _: () = assert!(HEADER_BYTES.is_multiple_of(8), "meta words are aligned");
