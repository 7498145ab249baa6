//! The buffer pool: keeps pages in memory, reads and evicts them, and gives each view its versions.
//!
//! [`BufferPool`] puts the rooms together and hands single parts, not itself, to the code that uses them. Each part
//! owns its data and its locks, and uses only rooms above its own in this table, and in its room only parts before it:
//!
//! | room | purpose | parts |
//! |---|---|---|
//! | `stats` | counters, and the pool's statistics | |
//! | `frames` | the frames' memory, and the waits for it: the only `unsafe` of the read path | `usage` (counts, expiries, ghosts), `frames`, `waits` |
//! | `compressed_tier` | blocks of compressed pages that stay in memory, and their share of the frames | `block_index`, `share`, `compressed_tier` |
//! | `page_table` | every change of where a version of a page is: in a frame, on disk, or being read | `word_array` (newest versions: one load where the leaf is in memory), `block_map` and `page_ids` (the table as the next checkpoint will write it), `metadata` (these, changed pages and the blocks in the file, under one lock: claims and reserves), `leaves`, `page_table` (also older versions and in-flight reads, by page), `places` (for writers, moves and checkpoints) |
//! | `versions` | the visible commit, snapshots, and the recycling of versions and frames | `chunked_queue`, `registry` (the versions that a live snapshot can still read), `history` (the visible commit; retired versions and frames, once their epoch is over), `writer_signal`, `versions` (also snapshots, and the views of readers), `leaf_loads` (brings leaves of the table into memory for threads that may block), `private_copies` (of a writer) |
//! | `evict` | makes frames free: writes dirty pages, and chooses frames to evict | `packing` (compressed pages of one block), `write_queue`, `write` (also grows the file), `evict` |
//! | `reads` | the read path, from a miss to a resident page; waits for pages and frames | see there |
//! | `relocate` | defragmentation: relocates scattered pages to adjacent blocks | `repacked`, `relocate`, `loose` |
//! | `background` | the optional background threads | |
//!
//! **Why readers need no latch.** A frame's bytes never change between `Frames::publish` and `Frames::recycle`. A frame's
//! number can be found only in the table or among the versions of its page, and both change under the shard's lock; the number of a frame with a block only in the compressed tier.
//! Code that removes a number from there gives it to `History::retire`, which recycles it only after every epoch guard pinned until then is gone.
//!
//! **Locks**, each taken only while holding ones before it: queue of reads → clock → write queue → shard → metadata → waiter →
//! frames' free list. `registry`, `reclamation`, the scheduler's lists and the probationary queue are leaves; the queue for frames comes
//! before waiters and the free list. While a shard, metadata or waiter lock is held, no epoch guard is pinned or dropped, no waker is
//! called, and no device is waited for.

mod background;
mod compressed_tier;
mod evict;
mod frames;
mod page_table;
mod reads;
mod relocate;
mod stats;
#[cfg(test)]
pub(crate) mod tests;
mod versions;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use nofault_io::disk::{Disk, QueueOptions};

use self::background::BackgroundWriter;
pub(crate) use self::background::PoolWork;
use self::evict::{Evictor, ProbationaryQueue, WriteQueue, Writer};
pub(crate) use self::evict::{NodeToWrite, Pace, TableCodecs};
use self::frames::{Frame, Frames, Waiter};
pub(crate) use self::page_table::{BlockMap, CheckpointPlace, Metadata, PageIds};
use self::page_table::{LeafClock, PageTable};
pub(crate) use self::reads::{RangeScan, ReadCompletions, SCAN_BYTES_MIN, Ticket};
use self::reads::{Reads, run_memory_bytes};
pub(crate) use self::relocate::{Evacuation, LooseMove, LooseStep, RelocationOutcome, Relocator, TailMove};
pub use self::stats::PoolStats;
pub use self::versions::ReaderInfo;
use self::versions::{LeafLoads, NEWEST, ShownEntries, Versions, WriterSignal};
pub(crate) use self::versions::{PrivateCopies, Snapshot, View};
use crate::block_allocator::BlockAllocator;
use crate::clock::{ClockSource, GuardedClock};
use crate::codec::Dictionaries;
use crate::error::{Error, ErrorKind, Result};
use crate::format::compressed::FileCodec;
use crate::format::{BLOCK_LIMIT, CommitSeq, Location, PAGES_START_BYTES, PageId};
use crate::pages::{BlockReservation, Host, Missing, ReservationKind, Snapshot as _, Store, Wait};
use crate::settings::TierUse;
use crate::sync::budget::Budget;
use crate::sync::semaphore::Permit;

/// Fewest frames with which a pool works: for a commit's pages, a path through a tree for each of a few readers, and
/// the reserve.
pub(crate) const FRAMES_MIN: usize = 32;

/// The end of the page ids: every id is below it. The largest page table takes 32 GiB, for 16 TiB of pages of 4 KiB.
pub(crate) const PAGES_MAX: u64 = 1 << 32;

/// The options with which a pool is created.
#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    /// Bytes of memory for the frames and for the pool's metadata of a size known when the pool is created.
    pub(crate) cache_bytes: u64,
    /// Bytes of `cache_bytes` that other parts of the database have taken.
    pub(crate) spent_bytes: u64,
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
    /// Random number of the database file, which enters every checksum.
    pub(crate) file_id: u64,
    /// Most bytes of old page versions that snapshots may keep before the oldest snapshot is evicted.
    pub(crate) snapshot_bytes_max: u64,
    /// Most read operations at the device at a time.
    pub(crate) reads_in_flight_max: usize,
    /// Fewest bytes of memory for private runs of scans: a smaller pool has none.
    pub(crate) scan_bytes_min: usize,
    /// Whether the frames are registered with the kernel, which reads into them at a little less cost then, and gives all of them memory at
    /// once.
    pub(crate) registers_frames: bool,
    /// Whether leaves of the page table leave memory as soon as nothing needs them: for tests.
    pub(crate) evicts_table: bool,
    /// Whether blocks of compressed pages may stay in memory.
    pub(crate) tier: TierUse,
    /// The clock by which entries expire.
    pub(crate) clock: ClockSource,
}

/// A handle of a buffer pool. Clones share one pool.
#[derive(Clone)]
pub(crate) struct BufferPool {
    versions: Arc<Versions>,
    writer: Arc<Writer>,
    evictor: Arc<Evictor>,
    reads: Arc<Reads>,
    background: Arc<BackgroundWriter>,
    leaves: LeafLoads,
}

/// Returns the bytes of memory that a frame takes, with its metadata.
fn bare_frame_bytes(page_bytes: usize) -> u64 {
    (page_bytes + size_of::<Frame>() + 64) as u64 + ProbationaryQueue::bytes_max(1)
}

/// Returns the bytes of memory that `frames` frames take, with their metadata and the memory for runs.
fn frames_bytes(frames: u64, page_bytes: usize, scan_bytes_min: usize) -> u64 {
    frames * bare_frame_bytes(page_bytes) + run_memory_bytes(frames, page_bytes, scan_bytes_min)
}

/// Part of a page, as a divisor, that stays free for each frame: for the memory for runs, and in a large pool, which has less of that, for
/// leaves of the page table that are loaded later.
const FREE_SHARE: u64 = 16;

/// Returns the number of frames of a pool with so many bytes for them and for runs.
fn frames_in(bytes: u64, page_bytes: usize, scan_bytes_min: usize) -> u64 {
    let bare = bare_frame_bytes(page_bytes);
    let (mut fit, mut too_many) = (0, bytes / bare + 1);
    while too_many - fit > 1 {
        let middle = fit.midpoint(too_many);
        if frames_bytes(middle, page_bytes, scan_bytes_min) <= bytes {
            fit = middle;
        } else {
            too_many = middle;
        }
    }
    fit.min(bytes / (bare + page_bytes as u64 / FREE_SHARE))
}

/// Memory limit of the page table's leaves, as a divisor of the pool's bytes, unless more of them were loaded when it
/// was opened; and the fewest leaves for which there is memory.
const LEAVES_SHARE: u64 = 16;
const LEAVES_MIN: u64 = 16;
/// Part of this memory, as a divisor, by which changed leaves may exceed it before a checkpoint is made for them.
const LEAVES_EXCESS_SHARE: u64 = 4;
/// Part of the frames, as a divisor, whose pages one operation may need at once, each with a different leaf.
const FRAMES_AT_ONCE_SHARE: u64 = 8;
/// Bytes of the nodes that lead to the first leaves of the page table.
const NODES_BYTES: u64 = 30 << 10;
/// Bytes of these nodes for each leaf.
const PLACE_BYTES: u64 = 12;
/// Bytes of lists of blocks and page ids that are not counted when a pool is created.
const LISTS_BYTES_FREE: u64 = 64 << 10;

/// A page table as it is loaded when a database is opened.
#[derive(Debug)]
pub(crate) struct LoadedTable {
    pub(crate) map: BlockMap,
    pub(crate) ids: PageIds,
    /// In it every block is marked as used to which the table refers.
    pub(crate) allocator: BlockAllocator,
}

impl LoadedTable {
    /// Returns the table of a new database.
    pub(crate) fn new(page_bytes: usize, file_bytes_max: u64) -> Self {
        let allocator = BufferPool::new_allocator(page_bytes, file_bytes_max);
        Self { map: BlockMap::new(page_bytes), ids: PageIds::new(page_bytes), allocator }
    }

    /// Returns the bytes of memory that the table takes in a pool.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let lists = self.allocator.memory_bytes() + self.ids.memory_bytes();
        // The nodes that lead to the leaves.
        let places = if self.map.leaf_count() > 0 { NODES_BYTES } else { 0 } + PLACE_BYTES * self.map.leaf_count();
        self.map.memory_bytes() + self.map.leaf_bytes() + places + lists.saturating_sub(LISTS_BYTES_FREE)
    }

    /// Returns the bytes of memory that a leaf takes: the newest places of its pages, and the places that the next checkpoint
    /// writes.
    pub(crate) fn bytes_a_leaf(page_bytes: usize) -> u64 {
        2 * BlockMap::bytes_a_leaf(page_bytes)
    }
}

/// The length of the data file, and the part of it that is not needed, in blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExcessBlocks {
    pub(crate) file: u64,
    /// Not needed once the blocks waiting for a checkpoint are free.
    pub(crate) idle: u64,
    /// Not needed as long as just as many blocks wait for a checkpoint.
    pub(crate) in_use: u64,
}

impl BufferPool {
    /// Returns the smallest number of bytes with which a pool for this page table can be created.
    pub(crate) fn bytes_min(page_bytes: usize, table: &LoadedTable) -> u64 {
        frames_bytes(FRAMES_MIN as u64, page_bytes, SCAN_BYTES_MIN) + table.memory_bytes()
    }

    /// Returns the most leaves of the page table that are kept in memory when it is loaded, for a pool that has so many
    /// bytes in all: half of them.
    pub(crate) fn leaves_loaded_max(page_bytes: usize, bytes: u64) -> u64 {
        (bytes / 2 / LoadedTable::bytes_a_leaf(page_bytes)).max(LEAVES_MIN)
    }

    /// Opens a pool over `disk` with the page table `table` as of `commit`. In its allocator every block to which the
    /// table refers is marked as used. Starts no threads: see [`BufferPool::start_background_threads`].
    ///
    /// # Errors
    /// `InvalidCall` when the cache is too small, `NoResources` without memory, or the disk's error when it opens queues.
    pub(crate) fn new(
        disk: &Arc<dyn Disk>,
        options: &PoolOptions,
        table: LoadedTable,
        commit: CommitSeq,
    ) -> Result<Self> {
        let page_bytes = options.page_bytes;
        let left_bytes = options.cache_bytes.saturating_sub(options.spent_bytes);
        let count = frames_in(left_bytes.saturating_sub(table.memory_bytes()), page_bytes, options.scan_bytes_min);
        let pages_at_once = (count / FRAMES_AT_ONCE_SHARE).max(FRAMES_MIN as u64);
        let leaf_clock = if options.evicts_table {
            LeafClock::new(0, 0, pages_at_once)
        } else {
            let share = (left_bytes / LEAVES_SHARE / LoadedTable::bytes_a_leaf(page_bytes)).max(LEAVES_MIN);
            LeafClock::new(
                share.max(table.map.leaves_in_memory().len() as u64),
                share / LEAVES_EXCESS_SHARE,
                pages_at_once,
            )
        };
        let LoadedTable { map, ids, mut allocator } = table;
        if count < FRAMES_MIN as u64 || count > u64::from(u32::MAX) {
            let what =
                format!("a pool of {} bytes, {} of them spent already", options.cache_bytes, options.spent_bytes);
            return Err(Error::new(ErrorKind::InvalidCall, what));
        }
        let writes = disk.queue(&QueueOptions::default());
        let writes = writes.map_err(|error| Error::from_io("open a queue of the data file", error))?;
        let writes = WriteQueue::new(writes, disk)?;
        allocator.space.set_backed(writes.file_bytes() / page_bytes as u64);
        let frames = Frames::new(count as usize, page_bytes)?;
        let metadata = Arc::new(Metadata::new(allocator, map, ids, page_bytes));
        let pages = PageTable::new(frames, &metadata, leaf_clock, options.tier);
        let signal = Arc::new(WriterSignal::new());
        let kept_max = (options.snapshot_bytes_max / page_bytes as u64) as usize;
        let clock = GuardedClock::new(options.clock.clone());
        let versions = Arc::new(Versions::new(pages, commit, (options.file_id, kept_max), clock, &signal));
        let writer = Arc::new(Writer::new(&versions, writes));
        let evictor = Arc::new(Evictor::new(&versions, &writer, &signal));
        let reads = Arc::new(Reads::new(disk, options, (&versions, &writer, &evictor), &signal)?);
        let background = BackgroundWriter::new((&versions, &writer), (&evictor, &reads), &signal);
        let leaves = LeafLoads::new(&versions, disk);
        Ok(Self { versions, writer, evictor, reads, background: Arc::new(background), leaves })
    }

    /// Returns the block allocator of a new data file.
    fn new_allocator(page_bytes: usize, file_bytes_max: u64) -> BlockAllocator {
        let first = PAGES_START_BYTES.div_ceil(page_bytes as u64);
        BlockAllocator::new(first, (file_bytes_max / page_bytes as u64).min(BLOCK_LIMIT))
    }

    /// Starts the background threads: from now on readers never write, and tickets can be polled. When one of them
    /// panics, all waits fail from then on, and `in_panic` is called.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads or descriptors left.
    pub(crate) fn start_background_threads(
        &self,
        in_panic: impl Fn(&Error) + Clone + Send + 'static,
    ) -> Result<PoolWork> {
        PoolWork::start(&self.background, in_panic)
    }

    /// Ends the pool of a database that is closed: every page that is looked up, and every wait, fails with this error, and
    /// no write is in flight any more. Waits for writes under way.
    pub(crate) fn end(&self, why: &Error) {
        self.versions.end(why);
        self.reads.failure().end(why);
        self.writer.end();
    }

    /// Returns the clock by which entries expire.
    pub(crate) fn clock(&self) -> &GuardedClock {
        self.versions.clock()
    }

    /// Returns the metadata of pages and blocks.
    pub(crate) fn metadata(&self) -> &Metadata {
        self.versions.metadata()
    }

    /// Returns the loader of the page table's leaves, for threads that may block.
    pub(crate) fn leaves(&self) -> &LeafLoads {
        &self.leaves
    }

    /// Returns the writer of pages, page-table nodes and superblocks.
    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Returns the random number of the database file, which enters every checksum.
    pub(crate) fn file_id(&self) -> u64 {
        self.versions.file_codec().file_id
    }

    /// Returns the dictionaries that compressed pages name.
    pub(crate) fn dictionaries(&self) -> &Dictionaries {
        self.versions.file_codec().dictionaries
    }

    /// Returns the properties of the data file with which pages are checked, compressed and restored.
    pub(crate) fn file_codec(&self) -> FileCodec<'_> {
        self.versions.file_codec()
    }

    /// Returns the right of an executor to take the completions of reads itself; `None` when the read queue has no
    /// descriptor to poll.
    pub(crate) fn completions(&self) -> Option<ReadCompletions> {
        self.reads.completions()
    }

    /// Returns by how many blocks [`Relocator::plan_tail`] would make the file shorter.
    pub(crate) fn excess_blocks(&self) -> ExcessBlocks {
        let metadata = self.metadata().lock();
        let file = metadata.allocator.space.backed_end();
        let idle = file.saturating_sub(self.metadata().shortest_end(self.versions.frames(), &metadata));
        ExcessBlocks { file, idle, in_use: idle.saturating_sub(metadata.allocator.deferred.len()) }
    }

    /// Opens a relocator that reads past the pool, with its own queue.
    ///
    /// # Errors
    /// The disk's error when it opens the queue.
    pub(crate) fn relocator(&self, disk: &dyn Disk) -> Result<Relocator> {
        Relocator::new(&self.versions, &self.writer, &self.leaves, disk)
    }

    /// Sets the database of the pool, which may own it. Only the first call has an effect.
    pub(crate) fn set_host(&self, host: Weak<dyn Host>) {
        self.reads.standstill().set_host(host);
    }

    /// Returns the live snapshots, oldest first.
    pub(crate) fn readers(&self) -> Vec<ReaderInfo> {
        self.versions.history().readers()
    }

    /// Registers the visible commit for a checkpoint or backup: a non-evictable snapshot.
    pub(crate) fn essential_snapshot(&self) -> Snapshot {
        Snapshot::new(&self.versions, true)
    }

    /// Pins the frame of a page version as of commit `at` if the version must still be written, or returns its location
    /// on disk. The commit `at` must be registered.
    pub(crate) fn checkpoint_place(&self, page: PageId, at: CommitSeq) -> CheckpointPlace {
        self.versions.pages().places().checkpoint_place(page, at)
    }

    /// Sets the location of a page to `at` in the page table of the next checkpoint. Releases the block that this table
    /// named before, unless a version that can still be read lies there.
    pub(crate) fn take_over(&self, page: PageId, at: Option<Location>) {
        self.versions.pages().places().take_over(page, at);
    }

    /// Returns whether the list of changed pages exceeds its share of the memory and a checkpoint would shorten it.
    pub(crate) fn has_many_changed(&self) -> bool {
        self.metadata().has_many_changed(self.versions.frames())
    }

    /// Returns the number of pages whose newest version is only in memory.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.versions.frames().limits().dirty_count() as u64
    }

    /// Recycles all frames and blocks that no reader can reach any more. The work is unbounded, so no executor may wait
    /// for the calling thread.
    pub(crate) fn reclaim(&self) {
        self.versions.trim_leaves();
        self.versions.history().help_epoch();
        self.versions.sweep_all();
    }

    /// Blocks the threads that drop retired versions, until the returned guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold_dead_versions(&self) -> impl Sized + '_ {
        self.versions.history().reclamation().hold()
    }

    /// Returns the pool's statistics.
    pub(crate) fn stats(&self) -> PoolStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (counters, frames) = (self.versions.counters(), self.versions.frames());
        let kept = self.versions.history().kept_count();
        let memory_dictionaries_bytes = self.dictionaries().memory_bytes();
        let metadata = self.metadata().lock();
        let tier = self.versions.pages().tier().stats(frames);
        let memory_frames_bytes = frames.memory_bytes() + self.reads.scratch_bytes() + tier.memory_bytes;
        let memory_table_bytes = self.versions.pages().words().0.memory_bytes() + metadata.map.memory_bytes();
        let leaf_bytes = LoadedTable::bytes_a_leaf(frames.page_bytes());
        let table_bytes = metadata.map.leaf_count() * leaf_bytes;
        let (words, clock) = self.versions.pages().words();
        let (pages_compressed, blocks_compressed) = metadata.allocator.pages.totals();
        PoolStats {
            frames: frames.count() as u64,
            frames_free: frames.free_count() as u64,
            hits: counters.hits.get(),
            misses: get(&counters.misses),
            misses_for_scans: get(&counters.for_scans),
            misses_joined: get(&counters.joined),
            evicted: get(&counters.evicted),
            pages_dirty: frames.limits().dirty_count() as u64,
            pages_written: get(&counters.written),
            pages_moved: get(&counters.moved),
            pages_compressed,
            blocks_compressed,
            blocks_loose: metadata.allocator.pages.packed().excess() as u64,
            tier_blocks: tier.blocks,
            tier_blocks_wanted: tier.blocks_wanted,
            tier_hits: tier.restored,
            tier_added: tier.added,
            tier_evicted: tier.evicted,
            tier_forgotten: tier.forgotten,
            checksum_retries: get(&counters.checksum_retries),
            frame_waits: get(&counters.frame_waits),
            reads_in_flight: self.reads.scheduler().in_flight() as u64,
            snapshot_bytes: (kept * frames.page_bytes()) as u64,
            pages_changed: metadata.changed.page_count(),
            pages_placed_same: metadata.allocator.placement().same_group,
            pages_placed_near: metadata.allocator.placement().near_group,
            pages_placed_far: metadata.allocator.placement().far,
            blocks_file: metadata.allocator.space.end_block(),
            blocks_used: metadata.allocator.space.used_blocks(),
            blocks_deferred: metadata.allocator.deferred.len(),
            blocks_kept: metadata.allocator.deferred.kept_len(),
            blocks_free: metadata.allocator.space.free_blocks(),
            blocks_reserve: self.metadata().blocks_kept_free(frames, &metadata),
            memory_bytes: memory_frames_bytes
                + memory_table_bytes
                + memory_dictionaries_bytes
                + metadata.allocator.memory_bytes()
                + metadata.ids.memory_bytes()
                + metadata.changed.memory_bytes(),
            memory_frames_bytes,
            memory_table_bytes,
            memory_dictionaries_bytes,
            table_bytes,
            table_leaves: metadata.map.leaf_count(),
            table_leaves_in_memory: words.slots().used(),
            table_leaves_max: clock.leaves_max(),
        }
    }
}

impl Store for BufferPool {
    type View<'a> = View<'a>;
    type Copies<'a> = PrivateCopies<'a>;
    type Snapshot = Snapshot;
    type Ticket = Ticket;
    type RangeScan = RangeScan;

    fn check_process(&self) -> Result<()> {
        Error::unless_here(self.versions.process())
    }

    fn page_bytes(&self) -> usize {
        self.versions.frames().page_bytes()
    }

    fn latest(&self) -> View<'_> {
        View::new(&self.versions, || self.visible(), None, ShownEntries::Unexpired(self.versions.clock()))
    }

    fn commit_of(view: &View<'_>) -> CommitSeq {
        view.commit()
    }

    fn latest_published(&self) -> View<'_> {
        View::new(&self.versions, || NEWEST, None, ShownEntries::All)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::new(&self.versions, false)
    }

    fn view<'a>(&'a self, snapshot: &'a Snapshot) -> View<'a> {
        View::new(&self.versions, || snapshot.seq(), Some(snapshot.too_old()), snapshot.shown())
    }

    fn copy_frames_max(&self) -> usize {
        self.versions.frames().limits().private_max()
    }

    fn pins_max(&self) -> usize {
        // All frames but the writers' reserve, the private copies, and a few through which prefetched pages pass.
        let frames = self.versions.frames();
        frames.count() - frames.limits().reserve() - frames.limits().private_max() - 2
    }

    fn copies(&self) -> PrivateCopies<'_> {
        PrivateCopies::new(&self.versions)
    }

    fn publish(&self, copies: PrivateCopies<'_>, seq: CommitSeq) {
        copies.publish(seq);
    }

    fn set_visible(&self, seq: CommitSeq) {
        self.versions.history().set_visible(seq);
    }

    fn clear_up(&self) {
        self.versions.clear_up();
    }

    fn visible(&self) -> CommitSeq {
        self.versions.history().visible()
    }

    fn request(&self, waits: &[Wait], permit: Permit) -> Ticket {
        let (waiter, mut budget) = (Waiter::new(), Budget::new());
        for wait in waits.iter().take(permit.count()) {
            match wait {
                Wait::Miss(missing) => self.reads.request(*missing, &waiter, &mut budget),
                Wait::Full { frames } => waiter.want_frames(*frames),
                Wait::Failed(error) => drop(waiter.fail(error.clone())),
                Wait::LogFull { .. } => {}
            }
        }
        if waiter.frames_missing() > 0 {
            self.versions.counters().frame_waits.fetch_add(1, Ordering::Relaxed);
            self.evictor.wait_for_frames(&waiter);
        }
        Ticket::new(Arc::clone(&self.reads), waiter, permit)
    }

    fn prefetch(&self, pages: &[Missing]) -> usize {
        // Frames that are not free now soon are: the submitting thread evicts clean frames, and the background writer
        // writes dirty ones. But a range scan must not fill the pool.
        let spare = self.versions.frames().free_count().saturating_sub(self.versions.frames().limits().reserve());
        let most =
            if self.background.signal().is_running() { spare.max(self.versions.frames().count() / 8) } else { spare };
        self.reads.prefetch(&pages[..pages.len().min(most)])
    }

    fn read_alone(&self, missing: Missing) -> Result<bool> {
        self.reads.dispatcher().read_alone(missing)
    }

    fn read_together(&self, missing: &[Missing]) -> Result<bool> {
        self.reads.dispatcher().read_together(missing)
    }

    fn are_neighbours(&self, pages: &[Missing]) -> bool {
        self.reads.dispatcher().are_neighbours(pages)
    }

    fn submit(&self) {
        // Also called where a future is dropped, perhaps in a forked process.
        if self.versions.process().is_here() {
            self.reads.submit();
        }
    }

    fn begin_range_scan(&self) -> RangeScan {
        RangeScan::new(&self.reads)
    }

    fn submit_soon(&self) {
        self.reads.submit_soon();
    }

    fn submit_batch(&self) -> bool {
        self.reads.submit_batch()
    }

    fn sent(&self) -> usize {
        self.reads.scheduler().staged().lined_up()
    }

    fn reserve_blocks(&self, pages: usize, kind: ReservationKind) -> Option<BlockReservation> {
        self.versions.metadata().reserve(self.versions.frames(), pages as u64, kind)
    }

    fn grow(&self) -> Result<bool> {
        self.writer.grow()
    }

    fn spare_pages(&self) -> u64 {
        self.metadata().spare_blocks(self.versions.frames(), ReservationKind::Reserve)
    }

    fn page_count(&self) -> u64 {
        self.metadata().pages_end().0
    }

    fn write_soon(&self, pages: &[PageId]) {
        self.background.signal().write_soon(pages);
    }
}
