//! Writes checkpoints: makes the state of one commit the state that recovery starts from, concurrently with commits.
//!
//! The steps, in this order, and the reason for each:
//! 1. Register the visible commit C like a snapshot: every page keeps its version as of C until the checkpoint is done.
//! 2. Make the log durable up to C: the superblock must never be ahead of the log.
//! 3. Write the dirty pages of C, then the changed nodes of the page table, all to new blocks: the last checkpoint
//!    stays whole.
//! 4. Sync. Only now may anything name those blocks.
//! 5. Write the superblock to one slot, durably, and then to the other, durably. After the first write recovery starts
//!    from C; after the second, damage of either slot does not bring the state before C back.
//! 6. Blocks that only the last checkpoint named become free, and log segments before C's anchor are used again, unless
//!    readers in other processes need them ([`Readers`]).
//!
//! A failure in step 3 leaves the state on the disk as it was, and the next checkpoint does the rest. After a failed
//! sync or superblock write the state of the disk is unknown: the log is poisoned, and only reopening helps.
//!
//! A commit that is not in the log becomes durable by a checkpoint before it is visible
//! ([`Checkpointer::checkpoint_at`]). Between that checkpoint and its visibility no other checkpoint is made: the
//! visible commit is older than the commit that recovery starts from.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::disk::Disk;

use crate::blocks::read_once;
use crate::blocks::reread::RepeatedReads;
use crate::buffer_pool::{
    BufferPool, CheckpointPlace, Evacuation, LooseMove, LooseStep, NodeToWrite, Pace, RelocationOutcome, Relocator,
    Snapshot, TailMove,
};
use crate::error::{Error, ErrorKind, Result};
use crate::events;
use crate::format::{
    CONVERSION_OFFSET, CommitSeq, FEATURES_COMPATIBLE, LateFeature, Location, NodeId, PageId, SUPERBLOCK_BYTES,
    SUPERBLOCK_OFFSETS, Superblock, TableId, encode_node, entries_per_node, node_location,
};
use crate::pages::{Snapshot as _, Store as _};
use crate::readers::Readers;
use crate::sync::awaited_mutex::AwaitedMutex;
use crate::sync::background::{BackgroundWork, Kind, Next, Signal};
use crate::sync::notifier::Notifier;
use crate::wal::{Anchor, Log};

/// Number of page-table nodes that a checkpoint writes at a time: a few large operations side by side.
const BATCH: usize = 512;
/// Number of changed pages that a checkpoint examines, and writes if they are dirty, at a time.
const PAGES_AT_ONCE: usize = 2048;
/// Time after its last commit that was not deferred for which a checkpoint writes at the pace that delays such commits little.
const COMMITS_WITHIN: Duration = Duration::from_millis(50);

/// A checkpoint is made when so many blocks wait for one to be free: this share of the others, as a divisor, but at
/// least `DEFERRED_BLOCKS` and as many as pages are dirty. Until then the file is larger by that share.
const DEFERRED_SHARE: u64 = 8;
const DEFERRED_BLOCKS: u64 = 4096;
/// Share of the blocks in use, as a divisor, beyond which the log's file becomes shorter when the database is closed.
const LOG_SHARE: u64 = 16;

/// Makes checkpoints of one database.
pub(crate) struct Checkpointer {
    pool: BufferPool,
    log: Log,
    readers: Readers,
    /// Set when the database is only read: then no checkpoint is made.
    read_only: OnceLock<Error>,
    /// The superblock in force. The lock is held during a checkpoint, so there is one at a time.
    current: AwaitedMutex<Superblock>,
    made: AtomicU64,
    /// Whether the next checkpoint, and later ones, name the features of properties in the catalog and of entries that
    /// expire.
    has_properties: AtomicBool,
    has_expiry: AtomicBool,
    /// Notified after each checkpoint.
    after: OnceLock<Arc<Notifier>>,
}

impl Checkpointer {
    pub(crate) fn new(pool: BufferPool, log: Log, current: Superblock, readers: Readers) -> Self {
        let (has_properties, has_expiry) = (current.has_properties.into(), current.has_expiry.into());
        if current.needs_zstd {
            pool.writer().codecs().note_zstd();
        }
        Self {
            pool,
            log,
            readers,
            read_only: OnceLock::new(),
            current: AwaitedMutex::new(current),
            made: AtomicU64::new(0),
            has_properties,
            has_expiry,
            after: OnceLock::new(),
        }
    }

    /// Makes a checkpoint of the visible commit and returns that commit. Blocks; needs no lock of its callers.
    ///
    /// # Errors
    /// `NoSpace` or `Io` when pages cannot be written: nothing has changed. `Poisoned` when a sync or the superblock
    /// failed.
    pub(crate) fn checkpoint(&self) -> Result<CommitSeq> {
        events::checkpoint(|| self.checkpoint_visible(&mut Pace::at_once()))
    }

    /// Makes a checkpoint as [`Checkpointer::checkpoint`] does, at a pace that delays commits little ([`Pace`]) until `is_stopped`
    /// returns true or another thread waits for the checkpoint.
    ///
    /// # Errors
    /// As there.
    fn checkpoint_beside_commits(&self, is_stopped: impl Fn() -> bool) -> Result<CommitSeq> {
        let delays_commits =
            || !is_stopped() && !self.current.is_awaited() && self.log.has_awaited_commits(COMMITS_WITHIN);
        events::checkpoint(|| self.checkpoint_visible(&mut Pace::beside_commits(&delays_commits)))
    }

    /// Makes a checkpoint of the visible commit, unless the newest checkpoint is of a later one. Returns the commit of the newest
    /// checkpoint, and whether it has made that.
    fn checkpoint_visible(&self, pace: &mut Pace<'_>) -> Result<(CommitSeq, bool)> {
        self.refuse_read_only()?;
        let mut current = self.current.lock();
        // This check matters most after a failed sync: the writes that it covered are lost, and a second sync would not
        // report them.
        self.log.check()?;
        let snapshot = self.pool.essential_snapshot();
        let commit = snapshot.seq();
        if commit < current.commit {
            // A checkpoint of `commit` would be a step back: the pages on disk are of a later commit by now.
            return Ok((current.commit, false));
        }
        self.make(&mut current, commit, Some(snapshot), pace)?;
        Ok((commit, true))
    }

    /// Makes a checkpoint of the visible commit before the database is closed, so that opening has as little of the log
    /// to replay as possible. Makes none when the log holds no records and the last checkpoint is of the visible
    /// commit. A later commit stays in the log. Blocks.
    ///
    /// # Errors
    /// As [`Checkpointer::checkpoint`]; `Poisoned` when the deferred commits cannot become durable.
    pub(crate) fn checkpoint_before_closing(&self) -> Result<()> {
        if self.read_only.get().is_some() {
            return Ok(());
        }
        self.log.check()?;
        self.log.flush()?;
        let is_saved = {
            let current = self.current.lock();
            !self.log.has_records() && self.pool.visible() <= current.commit
        };
        if !is_saved {
            self.checkpoint()?;
        }
        self.shrink_log_before_closing();
        Ok(())
    }

    /// Makes the log as short as a database of this size that is being closed is to have it. Leaves it as it is while another
    /// thread writes to it. Blocks.
    pub(crate) fn shrink_log_before_closing(&self) {
        self.shrink_log();
        // Otherwise the log of a small database that has seen a large commit would stay as it is.
        if self.log.stats().file_bytes > self.used_bytes() / LOG_SHARE {
            self.shrink_log_to_least();
        }
    }

    /// Returns the sequence of the checkpoint in force.
    pub(crate) fn sequence(&self) -> u64 {
        self.current.lock().sequence
    }

    /// Refuses every checkpoint from now on with this error: the database is only read.
    pub(crate) fn forbid(&self, why: &Error) {
        let _ = self.read_only.set(why.clone());
    }

    /// Fails when the database is only read.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn refuse_read_only(&self) -> Result<()> {
        self.read_only.get().cloned().map_or(Ok(()), Err)
    }

    /// Frees the blocks that were kept for readers in other processes which need them no more, or have had their time.
    pub(crate) fn free_kept(&self) {
        if let Some(until) = self.readers.free_until() {
            self.free_kept_until(until);
        }
    }

    /// Frees all blocks kept for readers in other processes, which learn that they have lost them: the disk is
    /// full. Returns whether there were any.
    pub(crate) fn give_up_readers(&self) -> bool {
        let given_up = self.readers.give_up_all();
        given_up.inspect(|until| self.free_kept_until(*until)).is_some()
    }

    fn free_kept_until(&self, sequence: u64) {
        while self.pool.metadata().lock().allocator.free_kept(sequence) > 0 {}
    }

    /// Makes the superblock name a feature before the first record needing it is in the log: so a build that does not
    /// know the feature refuses the database. Makes a checkpoint, once in the life of a database. Blocks.
    ///
    /// # Errors
    /// As [`Checkpointer::checkpoint`].
    pub(crate) fn allow(&self, feature: LateFeature) -> Result<()> {
        self.refuse_read_only()?;
        let is_allowed = match feature {
            LateFeature::Properties => &self.has_properties,
            LateFeature::Expiry => &self.has_expiry,
        };
        is_allowed.store(true, Ordering::Release);
        while !self.current.lock().has(feature) {
            self.checkpoint()?;
            // A bulk load that has made its own checkpoint becomes visible within moments; no other is made before.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns the bytes of the data file in use.
    fn used_bytes(&self) -> u64 {
        self.pool.metadata().lock().allocator.space.used_blocks() * self.pool.page_bytes() as u64
    }

    /// Sets the notifier of the thread to be woken after each checkpoint. Only the first call has an effect.
    pub(crate) fn notify_after_checkpoints(&self, notifier: Arc<Notifier>) {
        let _ = self.after.set(notifier);
    }

    /// Gives back the part of the log's file beyond its setting, if a checkpoint has freed it. See [`Log::shrink`].
    /// Blocks.
    pub(crate) fn shrink_log(&self) {
        if self.log.may_shrink(false) && self.read_only.get().is_none() {
            self.readers.try_change_log(|| self.log.shrink());
        }
    }

    /// As [`Checkpointer::shrink_log`], to the least size that a log has. See [`Log::shrink_to_least`]. Blocks.
    fn shrink_log_to_least(&self) {
        if self.log.may_shrink(true) && self.read_only.get().is_none() {
            self.readers.try_change_log(|| self.log.shrink_to_least());
        }
    }

    /// Makes a checkpoint of `commit`, which is published to its last page and not visible yet. The caller holds the
    /// commit section, and every earlier commit is visible and durable. So the newest version of each page is its
    /// version as of `commit`, and stays the newest. Blocks.
    ///
    /// # Errors
    /// As [`Checkpointer::checkpoint`]. Unless it is `Poisoned`, the caller may take the commit back.
    pub(crate) fn checkpoint_at(&self, commit: CommitSeq) -> Result<()> {
        self.refuse_read_only()?;
        let make = || {
            let mut current = self.current.lock();
            self.log.check()?;
            self.make(&mut current, commit, None, &mut Pace::at_once()).map(|()| (commit, true))
        };
        events::checkpoint(make).map(drop)
    }

    /// Executes steps 2 to 6 of a checkpoint of `commit` (see the module). Each page keeps its version as of `commit`
    /// until `registered` is dropped; without `registered` the caller ensures that.
    fn make(
        &self,
        current: &mut Superblock,
        commit: CommitSeq,
        registered: Option<Snapshot>,
        pace: &mut Pace<'_>,
    ) -> Result<()> {
        if self.log.durable_commit() < commit {
            self.log.flush()?;
        }
        let anchor = self.log.anchor_after(commit);
        let next = match self.write_state(current, commit, anchor, pace) {
            // Perhaps the blocks are missing that are kept for readers in other processes.
            Err(error) if error.kind() == ErrorKind::NoSpace && self.give_up_readers() => {
                self.write_state(current, commit, anchor, pace)?
            }
            written => written?,
        };
        self.switch(&next)?;
        *current = next;
        self.pool.writer().codecs().checkpoint_durable(commit);
        // The list of changed pages is emptied only now. After a failure the next checkpoint, which may be of an
        // earlier commit, must examine all of them again, or it would name pages that do not exist as of that commit.
        self.pool.metadata().forget_changed(commit);
        drop(registered);
        self.pool.reclaim();
        if self.readers.keeps_for(current.sequence) {
            self.pool.metadata().lock().allocator.deferred.keep_expired(current.sequence);
        }
        while self.pool.metadata().lock().allocator.checkpoint_durable() > 0 {}
        self.free_kept();
        // Done before the next checkpoint begins, which adds to the blocks that `checkpoint_durable` frees and has a
        // later anchor.
        if self.readers.await_log_readers(current.sequence) {
            self.log.recycle(anchor);
        }
        self.log.set_usual_bytes(self.used_bytes());
        self.made.fetch_add(1, Ordering::Relaxed);
        if let Some(after) = self.after.get() {
            after.notify();
        }
        Ok(())
    }

    /// Executes step 3 of a checkpoint (see the module): writes what the superblock, which it returns, is to name.
    fn write_state(
        &self,
        current: &Superblock,
        commit: CommitSeq,
        anchor: Anchor,
        pace: &mut Pace<'_>,
    ) -> Result<Superblock> {
        self.pool.leaves().catch_up()?;
        self.write_pages(commit, pace)?;
        let next = Superblock {
            sequence: current.sequence + 1,
            commit,
            log_anchor: anchor.position,
            log_anchor_sequence: anchor.sequence,
            log_anchor_checksum: anchor.checksum,
            compatible_features: current.compatible_features & FEATURES_COMPATIBLE,
            has_properties: self.has_properties.load(Ordering::Acquire),
            has_expiry: self.has_expiry.load(Ordering::Acquire),
            needs_zstd: current.needs_zstd || self.pool.writer().codecs().needs_zstd(),
            ..*current
        };
        write_table(&self.pool, next, pace)
    }

    /// Moves pages to adjacent blocks while no checkpoint is under way; see [`Relocator::defragment`].
    ///
    /// # Errors
    /// As [`Relocator::defragment`].
    pub(crate) fn defragment(
        &self,
        relocator: &mut Relocator,
        table: TableId,
        pages: &[PageId],
    ) -> Result<RelocationOutcome> {
        let _none_meanwhile = self.current.lock();
        relocator.defragment(table, pages)
    }

    /// Moves pages out of groups to be emptied while no checkpoint is under way; see [`Relocator::evacuate`].
    ///
    /// # Errors
    /// As [`Relocator::evacuate`].
    pub(crate) fn evacuate(&self, relocator: &mut Relocator, evacuation: &mut Evacuation) -> Result<Option<u64>> {
        let _none_meanwhile = self.current.lock();
        relocator.evacuate(evacuation)
    }

    /// Moves pages out of the end of the file while no checkpoint is under way; see [`Relocator::move_tail`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn move_tail(&self, relocator: &mut Relocator, tail: &mut TailMove) -> Result<Option<u64>> {
        let _none_meanwhile = self.current.lock();
        relocator.move_tail(tail)
    }

    /// Repacks pages whose blocks are partly empty while no checkpoint is under way; see [`LooseMove::step`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn move_loose(&self, relocator: &mut Relocator, loose: &mut LooseMove) -> Result<Option<LooseStep>> {
        let _none_meanwhile = self.current.lock();
        loose.step(relocator)
    }

    /// Reads both superblocks and compares them with the superblock in force, while no checkpoint is under way. Returns
    /// an error for each slot that is damaged or differs; none after a failure that only reopening clears, because the
    /// contents of the slots are unknown then.
    pub(crate) fn check_superblocks(&self, disk: &dyn Disk) -> Vec<Error> {
        let current = self.current.lock();
        if self.log.check().is_err() {
            return Vec::new();
        }
        let check = |slot: usize| {
            let found = Superblock::decode(slot, &read_once(disk, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS[slot])?)?;
            if found == *current {
                return Ok(());
            }
            let what = format!(
                "{} is of checkpoint {}, although {} was the last one: a write of it was lost",
                Superblock::place(slot),
                found.sequence,
                current.sequence
            );
            Err(Error::new(ErrorKind::Corrupt, what))
        };
        (0..SUPERBLOCK_OFFSETS.len())
            .filter_map(|slot| RepeatedReads::on(disk).until_whole(|_| check(slot)).err())
            .collect()
    }

    /// Checkpoints made since the database was opened.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Whether a checkpoint is due: half the log is used, many blocks wait to be free, or the list of changed pages is
    /// long.
    pub(crate) fn is_due(&self) -> bool {
        if self.pool.has_many_changed() {
            return true;
        }
        self.log.wants_checkpoint() || self.deferred_share() >= 1.0
    }

    /// Returns the number of blocks waiting for a checkpoint to be free, as a share of the number for which one is
    /// made. A checkpoint that would write more pages than it makes blocks free is not made for them.
    fn deferred_share(&self) -> f64 {
        let dirty = self.pool.dirty_pages();
        let metadata = self.pool.metadata().lock();
        let deferred = metadata.allocator.deferred.len();
        let live = metadata.allocator.space.used_blocks() - deferred;
        deferred as f64 / (live / DEFERRED_SHARE).max(DEFERRED_BLOCKS).max(dirty) as f64
    }

    /// Brings the checkpoint's page table to the state of `commit`, and writes the pages that are only in memory. Takes
    /// a part of the changed pages at a time, in order of their numbers: pages that commits add to the list in between
    /// do no harm, before or after the current position.
    fn write_pages(&self, commit: CommitSeq, pace: &mut Pace<'_>) -> Result<()> {
        // Pages with numbers from `end` on were allocated by later commits.
        let (mut next, end) = (Some(PageId(0)), self.pool.metadata().pages_end());
        let mut lot: Vec<PageId> = Vec::new();
        loop {
            while lot.len() < PAGES_AT_ONCE
                && let Some(from) = next
            {
                let mut pages;
                (pages, next) = self.pool.metadata().changed_between(from, end);
                lot.append(&mut pages);
            }
            if lot.is_empty() {
                return Ok(());
            }
            let (mut dirty, mut cold) = (Vec::new(), None);
            // A dirty page stays in the lot, and is on disk when the next round looks at it again.
            lot.retain(|page| match self.pool.checkpoint_place(*page, commit) {
                CheckpointPlace::Dirty(item) => {
                    dirty.push(item);
                    true
                }
                CheckpointPlace::OnDisk(at) => {
                    self.pool.take_over(*page, Some(at));
                    false
                }
                CheckpointPlace::Absent => {
                    self.pool.take_over(*page, None);
                    false
                }
                CheckpointPlace::Cold => {
                    cold = Some(*page);
                    false
                }
            });
            if !dirty.is_empty() {
                self.pool.writer().write_frames_at(pace, dirty)?;
            }
            if let Some(page) = cold {
                let what =
                    format!("page {page} was changed, and the leaf of the page table that says how is not in memory");
                return Err(Error::new(ErrorKind::Bug, what));
            }
        }
    }

    /// Executes steps 4 and 5 of a checkpoint (see the module): syncs the data file, then writes both superblocks.
    /// After a failure the log is poisoned.
    fn switch(&self, next: &Superblock) -> Result<()> {
        let poison = |error: Error| {
            self.log.poison(&error);
            let what =
                format!("a checkpoint failed half-way ({error}); reads go on, reopen the database to write again");
            Error::new(ErrorKind::Poisoned, what)
        };
        self.pool.writer().sync_data().map_err(poison)?;
        self.pool.metadata().lock().allocator.deferred.checkpoint_begins();
        let first = (next.sequence % 2) as usize;
        // One slot at a time: while one is written the other is intact.
        [first, 1 - first].into_iter().try_for_each(|slot| write_superblock(&self.pool, next, slot)).map_err(poison)
    }
}

/// Writes a superblock to a slot, durably.
///
/// # Errors
/// When the write fails: then the slot may hold anything.
pub(crate) fn write_superblock(pool: &BufferPool, superblock: &Superblock, slot: usize) -> Result<()> {
    let offset = SUPERBLOCK_OFFSETS.get(slot).copied().unwrap_or(CONVERSION_OFFSET);
    let mut sector = IoBuf::zeroed(SUPERBLOCK_BYTES, PageKind::Small)
        .map_err(|error| Error::from_io("take memory for a superblock", error))?;
    superblock.encode(slot, &mut sector);
    pool.writer().write_superblock(offset, sector)
}

/// Writes the changed nodes of the page table, from the leaves up. Returns the superblock with the new root in it.
fn write_table(pool: &BufferPool, mut superblock: Superblock, pace: &mut Pace<'_>) -> Result<Superblock> {
    let (leaves, levels, page_count) = {
        let mut metadata = pool.metadata().lock();
        (metadata.map.begin_writing(), metadata.map.levels(), metadata.map.page_count())
    };
    let outcome = write_levels(pool, leaves, levels, pace);
    // After a failure the inner nodes above the written ones are stale; the next checkpoint rewrites them, from the leaves
    // up.
    pool.metadata().lock().map.end_writing(outcome.is_ok());
    if let Some((at, checksum)) = outcome? {
        superblock.table_root = at.block;
        superblock.table_checksum = checksum;
    }
    superblock.table_levels = levels;
    superblock.page_count = page_count;
    Ok(superblock)
}

/// Writes these leaves of the page table and the nodes above them. Returns place and checksum of the root, unless there is
/// nothing to write.
fn write_levels(
    pool: &BufferPool,
    leaves: Vec<u64>,
    levels: u32,
    pace: &mut Pace<'_>,
) -> Result<Option<(Location, u64)>> {
    let (mut root, mut level, mut changed) = (None, 0, leaves);
    while !changed.is_empty() && level < levels {
        let mut left = &changed[..];
        while !left.is_empty() {
            let begun = Instant::now();
            let count = (pace.bytes_at_once(false) / pool.page_bytes()).clamp(1, BATCH).min(left.len());
            let (part, rest) = left.split_at(count);
            root = write_nodes(pool, level, part)?;
            pace.pause_after(begun.elapsed());
            left = rest;
        }
        let per_node = entries_per_node(pool.page_bytes());
        changed.iter_mut().for_each(|index| *index /= per_node);
        changed.dedup();
        level += 1;
    }
    Ok(root)
}

/// Returns the entries of a node, from its place on disk where it is a leaf that is to be moved and not in memory; `None`
/// where that cannot be read: then it stays where it is.
fn entries_of(pool: &BufferPool, node: NodeId) -> Result<Option<(Vec<u64>, Option<Location>)>> {
    let (entries, at) = {
        let metadata = pool.metadata().lock();
        (metadata.map.entries(node), metadata.map.node(node))
    };
    match (entries, at) {
        (Some(entries), at) => Ok(Some((entries, at))),
        (None, Some(at)) => match pool.leaves().read(node.index, at) {
            Ok(entries) => Ok(Some((entries, Some(at)))),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        },
        (None, None) => Err(Error::new(ErrorKind::Bug, format!("{node:?} is to be written and nowhere to be found"))),
    }
}

/// Writes nodes of one level. Returns the place and checksum of the last of them: on the top level that is the root.
fn write_nodes(pool: &BufferPool, level: u32, indexes: &[u64]) -> Result<Option<(Location, u64)>> {
    let mut nodes = Vec::with_capacity(indexes.len());
    let mut written = Vec::with_capacity(indexes.len());
    for index in indexes {
        let node = NodeId { level, index: *index };
        let mut buffer = IoBuf::zeroed(pool.page_bytes(), PageKind::Small)
            .map_err(|error| Error::from_io("take memory for a page-table node", error))?;
        let Some((entries, at)) = entries_of(pool, node)? else { continue };
        written.push((node, encode_node(pool.file_id(), node, entries.into_iter(), &mut buffer)));
        nodes.push(NodeToWrite { near: at.map(|at| at.block), buffer });
    }
    let blocks = pool.writer().write_nodes(nodes)?;
    let mut metadata = pool.metadata().lock();
    let mut last = None;
    for ((node, checksum), block) in written.into_iter().zip(blocks) {
        let at = node_location(block, checksum);
        metadata.allocator.note_named(block);
        if let Some(before) = metadata.map.set_node(node, at) {
            metadata.allocator.release(before.block);
        }
        last = Some((at, checksum));
    }
    Ok(last)
}

/// Times between two looks at whether a checkpoint is due: usually, when many blocks wait for one, and after a failure.
const PAUSE: Duration = Duration::from_secs(1);
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// Part of the blocks waiting for the next checkpoint from which on it is looked for more often.
const NEAR_SHARE: f64 = 0.25;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Makes checkpoints when they are due; this ends when it is dropped.
pub(crate) struct Background {
    _work: BackgroundWork,
}

impl Background {
    /// Starts the work. The database counts as idle when `idle_after` has passed without a commit.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(crate) fn start(checkpointer: Arc<Checkpointer>, idle_after: Duration) -> Result<Self> {
        let notifier = checkpointer.log.pressure();
        // Commits waiting for a checkpoint to free log space would wait for ever.
        let in_panic = checkpointer.log.poison_in_panic();
        let idle = IdleTime::new(checkpointer.pool.visible(), idle_after);
        let mut rounds = Rounds { checkpointer, pause: PAUSE, idle, saved: None };
        let round = move |signal: &Signal, _| rounds.round(signal);
        let work = BackgroundWork::start(Kind::Checkpoints, notifier, Next::Wait(Some(PAUSE)), in_panic, round)?;
        Ok(Self { _work: work })
    }
}

/// The state of the work between its rounds.
struct Rounds {
    checkpointer: Arc<Checkpointer>,
    pause: Duration,
    idle: IdleTime,
    /// The visible commit of the checkpoint that was made because the database was idle. There is one at most for each: a
    /// large commit under way has records in the log that no checkpoint can take over.
    saved: Option<CommitSeq>,
}

impl Rounds {
    fn round(&mut self, signal: &Signal) -> Next {
        let checkpointer = &*self.checkpointer;
        let visible = checkpointer.pool.visible();
        let is_idle = self.idle.is_over(visible);
        let is_first = is_idle && self.saved != Some(visible);
        let is_due = checkpointer.is_due() || (is_first && checkpointer.log.has_records());
        if is_due {
            let begun = checkpointer.log.checkpoint_begins();
            let outcome = checkpointer.checkpoint_beside_commits(|| signal.is_stopped());
            self.pause = if outcome.is_err() { PAUSE_AFTER_FAILURE } else { PAUSE };
            match outcome {
                Ok(_) => {
                    checkpointer.log.checkpoint_made(begun);
                    self.saved = is_idle.then_some(visible).or(self.saved);
                }
                Err(error) => {
                    // The commits that wait for log space receive the error and decide. An immediate retry would only
                    // burn CPU time.
                    checkpointer.log.checkpoint_failed(&error);
                    signal.sleep(SHORT_PAUSE);
                }
            }
        }
        checkpointer.free_kept();
        // Done in each round, because another thread may have kept the log from shrinking in the last one.
        if is_idle {
            checkpointer.shrink_log_to_least();
        } else {
            checkpointer.shrink_log();
        }
        let is_near = checkpointer.deferred_share() >= NEAR_SHARE;
        Next::Wait(Some(if is_near { self.pause.min(SHORT_PAUSE) } else { self.pause }))
    }
}

/// Measures how long no commit has become visible.
pub(crate) struct IdleTime {
    visible: CommitSeq,
    since: Instant,
    /// After how long the database is idle.
    pub(crate) after: Duration,
}

impl IdleTime {
    /// Begins to measure; `visible` is the newest commit. The database is idle when `after` has passed without another.
    pub(crate) fn new(visible: CommitSeq, after: Duration) -> Self {
        Self { visible, since: Instant::now(), after }
    }

    /// Returns whether no commit has become visible for that long; `visible` is the newest one.
    pub(crate) fn is_over(&mut self, visible: CommitSeq) -> bool {
        if visible != self.visible {
            (self.visible, self.since) = (visible, Instant::now());
        }
        self.since.elapsed() >= self.after
    }

    /// Counts the commits up to `visible` as none: compaction made them, or they became visible during it.
    pub(crate) fn ignore(&mut self, visible: CommitSeq) {
        self.visible = visible;
    }
}
