//! The buffer pool: keeps pages in memory, reads and evicts them, and gives each view its versions.
//!
//! | part | purpose |
//! |---|---|
//! | `table` | maps a page id to its frame or block with one load |
//! | `frames` | the frames' memory, and the only `unsafe` of the read path |
//! | `shard` | older versions and in-flight reads, by page |
//! | `registry` | decides which versions a live snapshot can still read |
//! | `epochs` | delays reclamation of memory that a reader may be looking at |
//! | `ripe` | recycles retired versions and their frames |
//! | `changed`, `changed_pages` | the pages that the next checkpoint must look at |
//! | `view`, `edits` | handles of readers and writers for one attempt |
//! | `lane`, `flights`, `ticket` | reads: shared, submitted together, awaited |
//! | `alone` | reads that a thread carries out itself |
//! | `arrivals` | completed reads: checked, installed, handed to their waiters |
//! | `walks` | long range scans: a background thread handles their reads |
//! | `nursery` | the probationary queue: new pages, which are evicted first |
//! | `full` | the queue of waiters for frames: first come, first served |
//! | `standstill` | ends waits for frames when no frame can become free |
//! | `evict`, `write` | chooses frames to evict, and writes dirty ones to disk |
//! | `moves` | defragmentation: relocates scattered pages to adjacent blocks |
//! | `map` | the page table as the next checkpoint will write it |
//! | `room` | blocks in the file: claimed, reserved, and how the file grows |
//! | `keeper` | the optional background threads |
//!
//! **Why readers need no latch.** A frame's bytes never change between `Frames::publish` and `Frames::recycle`. A frame's
//! number can be found only in the table or among the versions of its page, and both change under the shard's lock. Code
//! that removes a number from there gives it to `retire`, which recycles it only after every epoch guard pinned until then
//! is gone.
//!
//! **Locks**, each taken only while holding ones before it: queue of reads → clock → write lane → shard → books → waiter →
//! frames' free list; `registry`, `ripe`, the lane's lists, `nursery` and `full` are leaves. While a shard, books or waiter
//! lock is held, no epoch guard is pinned or dropped, no waker is called, and no device is waited for.

mod alone;
mod arrivals;
mod changed;
mod changed_pages;
mod edits;
mod epochs;
mod evict;
mod flights;
mod frames;
mod free;
mod full;
mod keeper;
mod lane;
mod lots;
mod map;
mod moves;
mod nursery;
mod page_ids;
mod registry;
mod ripe;
mod room;
mod shard;
mod snapshot;
mod standstill;
mod stats;
mod table;
mod ticket;
mod view;
mod walks;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nofault_io::disk::{Disk, QueueOptions};

use self::changed_pages::ChangedPages;
pub(crate) use self::edits::Edits;
pub(crate) use self::evict::CheckpointPlace;
pub(crate) use self::frames::Frames;
use self::full::Full;
pub(crate) use self::keeper::{Keeper, ReadCompletions};
pub(crate) use self::map::Map;
pub(crate) use self::moves::{Mover, ToEmptyOut, Together};
pub use self::registry::ReaderInfo;
use self::registry::{Registry, Superseded};
use self::ripe::Ripe;
use self::shard::{Place, Shard};
pub(crate) use self::snapshot::Snapshot;
use self::stats::Counts;
pub use self::stats::PoolStats;
pub(crate) use self::table::PAGES_MAX;
use self::table::{Entry, WordArray};
pub(crate) use self::ticket::Ticket;
use self::ticket::Waiter;
pub(crate) use self::view::View;
pub(crate) use self::walks::Walk;
pub(crate) use self::write::NodeToWrite;
use crate::bell::Bell;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BLOCK_LIMIT, CommitSeq, Location, PAGES_START_BYTES, PageId};
use crate::gate::Permit;
use crate::pages::{Claim, Missing, Room, Snapshot as _, Store, Wait};
use crate::space::Space;

/// The commit number of a view that wants the newest version of everything.
const NEWEST: CommitSeq = CommitSeq(u64::MAX);
const SHARDS: usize = 64;
/// Most dead versions that may pile up before a committing thread clears them away.
const RIPE_MAX: usize = 64;
/// Fewest frames a pool can work with: a commit's pages, a path for each of a few readers, and the reserve.
pub(crate) const FRAMES_MIN: usize = 32;

/// How a pool is set up.
#[derive(Debug, Clone)]
pub(crate) struct PagerOptions {
    /// Bytes of memory for frames, and for everything else the pool keeps as far as it is known at the start.
    pub(crate) cache_bytes: u64,
    /// Bytes of it that other parts of the database have taken.
    pub(crate) spent_bytes: u64,
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
    /// Part of every checksum.
    pub(crate) file_id: u64,
    /// Most bytes of old page versions that snapshots may keep before the oldest snapshot is evicted.
    pub(crate) snapshot_bytes_max: u64,
    /// Most reads at the device at a time.
    pub(crate) reads_in_flight_max: usize,
}

/// The pool. Clones are handles of one.
#[derive(Clone)]
pub(crate) struct Pager(Arc<Core>);

/// Everything behind the handles.
pub(crate) struct Core {
    file_id: u64,
    frames: Frames,
    table: WordArray,
    shards: Box<[Mutex<Shard>]>,
    books: Mutex<Books>,
    registry: Mutex<Registry>,
    visible: AtomicU64,
    /// Versions and frames without readers: filled by the epoch's deferred calls, emptied by `sweep_ripe`.
    ripe: Mutex<Ripe>,
    /// How many versions and frames the epoch's deferred calls will still put there.
    dying: AtomicUsize,
    /// The waiters for frames, in order, and the frames set aside for them.
    full: Mutex<Full>,
    lane: lane::Lane,
    writer: Mutex<write::WriteLane>,
    clock: Mutex<usize>,
    nursery: nursery::Nursery,
    keeper: keeper::Signal,
    standstill: standstill::Standstill,
    bell: Bell,
    async_seen: AtomicBool,
    kept_max: usize,
    scratch_bytes: u64,
    epochs: epochs::Epochs,
    counts: Counts,
}

/// Page and block metadata that only writers, evictors and checkpoints use.
pub(crate) struct Books {
    pub(crate) space: Space,
    pub(crate) map: Map,
    /// Pages changed since the last checkpoint took them over, with their last change. A new page, or one with a reused
    /// id, is noted before the table shows it: otherwise it could be on disk before it is known that no checkpoint
    /// under way may name it. Any other page is noted afterwards: until then a lookup finds the commit before.
    /// Ordered, so that a checkpoint can take one part at a time.
    pub(crate) changed: ChangedPages,
    ids: page_ids::PageIds,
    /// Blocks set aside for commits under way.
    claimed: u64,
}

/// Memory that a frame takes with all that belongs to it. A sixteenth of the frames' bytes goes to scratch buffers for
/// reading runs.
fn frame_memory_bytes(page_bytes: usize) -> u64 {
    (page_bytes + page_bytes / 16 + size_of::<frames::Frame>() + 64) as u64 + nursery::Nursery::bytes_max(1)
}

impl Pager {
    /// Memory below which there can be no pool with this page table.
    pub(crate) fn bytes_min(page_bytes: usize, map: &Map) -> u64 {
        frame_memory_bytes(page_bytes) * FRAMES_MIN as u64 + map.memory_bytes() * 2
    }

    /// Opens a pool over `disk` with the page table `map` as of `commit`; `space` has every block marked that the map names.
    /// Starts no threads: see [`Pager::start_keeper`].
    ///
    /// # Errors
    /// `InvalidCall` when the cache is too small, `NoSpace` without memory, or the disk's error when it opens queues.
    pub(crate) fn new(
        disk: &Arc<dyn Disk>,
        options: &PagerOptions,
        map: Map,
        mut space: Space,
        commit: CommitSeq,
    ) -> Result<Self> {
        let per_frame = frame_memory_bytes(options.page_bytes);
        let overhead = map.memory_bytes() * 2;
        let count = options.cache_bytes.saturating_sub(overhead + options.spent_bytes) / per_frame;
        if count < FRAMES_MIN as u64 || count > u64::from(u32::MAX) {
            let what =
                format!("a pool of {} bytes, {} of them spent already", options.cache_bytes, options.spent_bytes);
            return Err(Error::new(ErrorKind::InvalidCall, what));
        }
        let frames = Frames::new(count as usize, options.page_bytes)?;
        let table = WordArray::new();
        for (page, at) in map.pages_from(PageId(0)) {
            table.store(page, Entry::OnDisk(at).to_word());
        }
        let ids = page_ids::PageIds::of(&map);
        let scratch = flights::Scratch::new(frames.count(), options.page_bytes)?;
        let scratch_bytes = scratch.bytes();
        let registered = vec![frames.region().clone(), scratch.region().clone()];
        let queue =
            QueueOptions { registered, depth_max: options.reads_in_flight_max.max(1), ..QueueOptions::default() };
        let writes = disk.queue(&QueueOptions::default());
        let writes = writes.map_err(|error| Error::from_io("open a queue of the data file", error))?;
        let lane = write::WriteLane::new(writes, &**disk)?;
        space.set_backed(lane.file_bytes / options.page_bytes as u64);
        let core = Core {
            file_id: options.file_id,
            table,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            books: Mutex::new(Books { space, map, changed: ChangedPages::default(), ids, claimed: 0 }),
            registry: Mutex::new(Registry::new(commit)),
            visible: AtomicU64::new(commit.0),
            ripe: Mutex::default(),
            dying: AtomicUsize::new(0),
            full: Mutex::default(),
            lane: lane::Lane::new(disk, &queue, scratch)?,
            writer: Mutex::new(lane),
            clock: Mutex::new(0),
            nursery: nursery::Nursery::new(frames.count()),
            keeper: keeper::Signal::new(),
            standstill: standstill::Standstill::default(),
            bell: Bell::new()?,
            async_seen: AtomicBool::new(false),
            kept_max: (options.snapshot_bytes_max / options.page_bytes as u64) as usize,
            scratch_bytes,
            epochs: epochs::Epochs::new(),
            counts: Counts::default(),
            frames,
        };
        Ok(Self(Arc::new(core)))
    }

    /// The space of a new data file.
    pub(crate) fn new_space(page_bytes: usize, file_bytes_max: u64) -> Space {
        let first = PAGES_START_BYTES.div_ceil(page_bytes as u64);
        Space::new(first, (file_bytes_max / page_bytes as u64).min(BLOCK_LIMIT))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Snapshots alive, oldest first.
    pub(crate) fn readers(&self) -> Vec<ReaderInfo> {
        let mut readers: Vec<ReaderInfo> = Vec::new();
        loop {
            let last = readers.last().map(|reader| reader.commit);
            let mut some = self.0.registry().readers_after(last, self.0.frames.page_bytes());
            if some.is_empty() {
                return readers;
            }
            readers.append(&mut some);
        }
    }

    /// Blocks the threads that clear dead versions away, until the returned guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold_dead_versions(&self) -> impl Sized + '_ {
        self.0.ripe()
    }

    /// Registers the visible commit for a checkpoint or backup: a non-evictable snapshot.
    pub(crate) fn essential_snapshot(&self) -> Snapshot {
        Snapshot::new(&self.0, true)
    }
}

impl Store for Pager {
    type View<'a> = View<'a>;
    type Edits<'a> = Edits<'a>;
    type Snapshot = Snapshot;
    type Ticket = Ticket;
    type Walk = Walk;

    fn page_bytes(&self) -> usize {
        self.0.frames.page_bytes()
    }

    fn latest(&self) -> View<'_> {
        View::new(&self.0, || self.visible(), None)
    }

    fn commit_of(view: &View<'_>) -> CommitSeq {
        view.commit()
    }

    fn tip(&self) -> View<'_> {
        View::new(&self.0, || NEWEST, None)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.0, false)
    }

    fn view<'a>(&'a self, snapshot: &'a Snapshot) -> View<'a> {
        View::new(&self.0, || snapshot.seq(), Some(&snapshot.too_old))
    }

    fn edit_frames_max(&self) -> usize {
        self.0.edit_frames_max()
    }

    fn pins_max(&self) -> usize {
        // The frames without the writers' reserve and the private copies, less a few for prefetched pages to pass through.
        self.0.frames.count() - self.0.frames.reserve() - self.0.edit_frames_max() - 2
    }

    fn edits(&self) -> Edits<'_> {
        Edits::new(&self.0)
    }

    fn publish(&self, edits: Edits<'_>, seq: CommitSeq) {
        edits.publish(seq);
    }

    fn set_visible(&self, seq: CommitSeq) {
        let unneeded = {
            let mut registry = self.0.registry();
            let unneeded = registry.advance(seq);
            // Stored under the lock: it must not go back when two commits become visible at once.
            self.0.visible.store(registry.visible().0, Ordering::SeqCst);
            unneeded
        };
        self.0.drop_later(unneeded);
        self.0.limit_snapshots();
    }

    fn clear_up(&self) {
        let ripe = self.0.ripe().versions.len();
        if ripe > RIPE_MAX {
            self.0.sweep_ripe();
        }
    }

    fn visible(&self) -> CommitSeq {
        CommitSeq(self.0.visible.load(Ordering::SeqCst))
    }

    fn request(&self, waits: &[Wait], permit: Permit) -> Ticket {
        let waiter = Waiter::new();
        for wait in waits.iter().take(permit.count()) {
            match wait {
                Wait::Miss(missing) => self.0.ask(*missing, &waiter),
                Wait::Full { frames } => waiter.want_frames(*frames),
                Wait::Failed(error) => drop(waiter.fail(error.clone())),
                Wait::LogFull { .. } => {}
            }
        }
        if waiter.frames_missing() > 0 {
            self.0.counts.full_waits.fetch_add(1, Ordering::Relaxed);
            self.0.wait_for_frames(&waiter);
        }
        Ticket::new(Arc::clone(&self.0), waiter, permit)
    }

    fn prefetch(&self, pages: &[Missing]) {
        // Frames that are not free now soon are: the submitting thread evicts clean frames, and the keeper writes dirty ones.
        // But a range scan must not fill the pool.
        let spare = self.0.frames.free_count().saturating_sub(self.0.frames.reserve());
        let most = if self.0.keeper.is_running() { spare.max(self.0.frames.count() / 8) } else { spare };
        self.0.ask_ahead(&pages[..pages.len().min(most)]);
    }

    fn read_alone(&self, missing: Missing) -> Result<bool> {
        self.0.read_alone(missing)
    }

    fn submit(&self) {
        self.0.submit_reads();
    }

    fn walk(&self) -> Walk {
        Walk::new(&self.0)
    }

    fn submit_soon(&self) {
        self.0.submit_reads_soon();
    }

    fn submit_batch(&self) -> bool {
        self.0.submit_batch()
    }

    fn sent(&self) -> usize {
        self.0.lane.lined_up()
    }

    fn claim_room(&self, pages: usize, claim: Claim) -> Option<Room> {
        self.0.claim_blocks(pages as u64, claim)
    }

    fn grow(&self) -> Result<bool> {
        self.0.grow()
    }

    fn spare_pages(&self) -> u64 {
        self.0.spare_blocks()
    }

    fn page_count(&self) -> u64 {
        self.0.books().ids.end()
    }

    fn write_soon(&self, pages: &[PageId]) {
        self.0.keeper.write_soon(pages);
    }
}

impl Core {
    fn shard(&self, page: PageId) -> MutexGuard<'_, Shard> {
        let at = (page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ripe(&self) -> MutexGuard<'_, Ripe> {
        self.ripe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn file_id(&self) -> u64 {
        self.file_id
    }

    /// Returns the most frames one `Edits` may hold: half of those that may be dirty, so that its source pages and some
    /// readers fit beside it.
    pub(crate) fn edit_frames_max(&self) -> usize {
        self.frames.dirty_max() / 2
    }

    /// Block near which a neighbour of this page should go.
    fn block_of(&self, page: PageId) -> Option<u64> {
        match Entry::from_word(self.table.load(page)) {
            Entry::OnDisk(at) | Entry::Loading(at) => Some(at.block.0),
            // The number may be stale by now; it is a hint.
            Entry::Resident(frame) => {
                let frame = self.frames.frame(frame);
                frame.disk().map(|at| at.block.0).or_else(|| frame.near())
            }
            Entry::Free => None,
        }
    }

    /// Drops versions that no later view requests, once the earlier views are gone: each of these was made under a guard that
    /// was pinned before it read the visible commit.
    fn drop_later(self: &Arc<Self>, versions: Vec<Superseded>) {
        if versions.is_empty() {
            return;
        }
        let (core, count) = (Arc::downgrade(self), versions.len());
        self.after_this_epoch(count, move || {
            // Only notes the versions: this may run at any pin of any thread, under any lock that the thread holds.
            if let Some(core) = core.upgrade() {
                core.dying.fetch_sub(count, Ordering::Relaxed);
                core.ripe().versions.push_all(versions);
            }
        });
    }

    /// Calls `note` when every guard that is pinned now is gone. `note` makes `count` frames or versions ripe.
    fn after_this_epoch(&self, count: usize, note: impl FnOnce() + Send + 'static) {
        let dying = self.dying.fetch_add(count, Ordering::Relaxed) + count;
        let guard = self.epochs.pin();
        guard.defer(note);
        if dying > RIPE_MAX {
            // Without a flush the call would stay in this thread's own list until the thread has deferred some dozens more; no
            // other thread can run it, and each of many committing threads would keep some dozens of groups of dead versions.
            guard.flush();
        }
    }

    /// Recycles frames that cannot be found any more, once no reader can be reading them.
    fn retire(self: &Arc<Self>, frames: Vec<u32>) {
        if frames.is_empty() {
            return;
        }
        let (core, count) = (Arc::downgrade(self), frames.len());
        self.after_this_epoch(count, move || {
            if let Some(core) = core.upgrade() {
                core.dying.fetch_sub(count, Ordering::Relaxed);
                core.ripe().frames.push_all(frames);
            }
        });
    }

    /// Forgets a version that no view can request. Returns its frame if that is to be recycled.
    fn drop_version(&self, old: Superseded) -> Option<u32> {
        let mut shard = self.shard(old.page);
        let version = shard.remove_version(old.page, old.from, old.until)?;
        let mut frame_free = None;
        match version.place {
            Place::Disk(at) | Place::Loading(at) => self.release_unless_mapped(old.page, at),
            Place::Frame(index) => {
                let frame = self.frames.frame(index);
                if let Some(at) = frame.disk() {
                    self.release_unless_mapped(old.page, at);
                }
                if frame.pins() > 0 { frame.doom() } else { frame_free = Some(index) }
            }
        }
        drop(shard);
        if version.frees_id {
            self.books().ids.put_back(old.page);
        }
        frame_free
    }

    /// Releases the block of a dead version, unless the page table of the next checkpoint names it: then the replacement of that
    /// entry releases it. Under the lock of the page's shard.
    fn release_unless_mapped(&self, page: PageId, at: Location) {
        let mut books = self.books();
        if books.map.get(page).is_none_or(|mapped| mapped.block != at.block) {
            books.space.release(at.block);
        }
    }

    /// Ends a pin.
    fn unpin(self: &Arc<Self>, page: PageId, index: u32) {
        let _shard = self.shard(page);
        let last = self.frames.frame(index).unpin();
        drop(_shard);
        if last {
            self.retire(vec![index]);
        }
        self.keeper.wake_if_starving();
    }

    fn limit_snapshots(self: &Arc<Self>) {
        let unneeded = {
            let mut registry = self.registry();
            if registry.kept_count() <= self.kept_max { Vec::new() } else { registry.limit(self.kept_max) }
        };
        self.drop_later(unneeded);
    }
}
