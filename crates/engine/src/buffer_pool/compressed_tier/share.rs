//! Decides whether blocks have a share of the frames, by what they save.
//!
//! The tier is *off*, and blocks have no frames, or *on*, and they may have nearly all but an eighth. There is nothing useful in
//! between: a small tier holds little but the blocks of pages in memory as well, so as it grows, a pool first reads
//! more than without it. For the same reason no comparison of one frame more here and one fewer there finds the larger
//! share. The judgement is of the whole instead, over windows of as many misses as there are frames. Ghosts are the pages
//! or blocks of lately, as many as the tier would have frames:
//!
//! - While it is *on*, evicted pages are ghosts. A miss of a ghost would be a hit if the blocks' frames held pages. So a page
//!   that is restored and is no ghost saves a read; restoring a ghost costs a decompression, and reading one a read.
//! - While it is *off*, the blocks of missed pages are ghosts. A miss whose block is one would be restored if the tier was on.
//!   As many pages as are missed now are supposed to be no hits then, which makes up for the hits that are not counted.
//!
//! The costs are those that the pool measures ([`Costs`]). At the end of a window the tier is on if it has saved, or
//! would have saved, clearly more than it cost. When a promise was wrong, the next one is not believed for a number of windows,
//! which doubles each time: what trials cost becomes less than a hundredth.
//!
//! **Costs** of a read and of a restored page, as the pool itself measures them: times, smoothed over the last few dozens.
//!
//! A read costs a thread waiting for it the time of the wait, if a CPU is free to do nothing. That is so
//! while no more threads read than there are CPUs. With more of them the CPUs have other work during a wait, and so it
//! counts for a part.
//!
//! A task does not keep its thread: others go on. But all tasks wait for the same device, or for the CPU time that their
//! reads take. So a read of a task costs the time from one completed read to the next while the device has reads: the time
//! in which one read fewer would let the tasks go on with other work, whatever it is that bounds them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::buffer_pool::frames::Ghosts;
use crate::format::{BlockId, PageId};
use crate::settings::TierUse;

/// What the tier saves must be so many times what it costs, as a fraction: it is on where it clearly pays.
const SAVED_MIN: (u64, u64) = (3, 2);
/// Most ghosts. In larger pools a part of the blocks is watched, which stands for all.
const GHOSTS_MAX: usize = 1 << 18;
/// Fewest misses of a window.
const WINDOW_MIN: usize = 256;
/// Windows after the tier was switched on in which it fills and is not judged.
const FILLING_WINDOWS: u32 = 2;
/// Windows without a trial after the first that failed, and most of them.
const REST_WINDOWS: u32 = 16;
const REST_WINDOWS_MAX: u32 = 512;
/// Share of the frames, as a divisor, that is left to pages, in addition to the frames kept free, and as many frames as
/// the smallest pool has: so whatever works in the smallest pool works with blocks in memory.
const PAGES_MIN_SHARE: usize = 8;
const PAGES_MIN: usize = 32;
/// Set in the number of a block among the ghosts, as pages have the same numbers.
const BLOCK_GHOST: u64 = 1 << 40;

/// The way in which an operation needs a page that is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::buffer_pool) enum Need {
    /// Nothing waits for it yet: a scan requests it early.
    Later,
    /// An operation waits for it, and the thread can go on with other tasks.
    InTask,
    /// A thread waits for it.
    InThread,
}

/// The number of frames that blocks may have, and the facts that decide about it.
#[derive(Debug)]
pub(super) struct TierShare {
    is_on: AtomicBool,
    blocks_max: usize,
    /// Blocks are watched in whose scattered number these bits are zero.
    unwatched: u64,
    is_judged: bool,
    judge: Mutex<Judge>,
    costs: Costs,
    memory_bytes: u64,
}

#[derive(Debug)]
struct Judge {
    ghosts: Ghosts,
    /// Misses of a window, and those that are left of the current one.
    window: usize,
    left: usize,
    /// The tier's savings in this window, real or possible, and its costs, in nanoseconds.
    saved_ns: u64,
    cost_ns: u64,
    /// Windows left in which nothing is decided.
    waiting: u32,
    rest: u32,
}

impl TierShare {
    /// Creates the share of a pool of `frames` frames, of which `kept_free` are kept free.
    pub(super) fn new(frames: usize, kept_free: usize, tier_use: TierUse) -> Self {
        let parts = frames.div_ceil(GHOSTS_MAX).next_power_of_two();
        let (ghosts, window) = (Ghosts::new(frames / parts), (frames / parts).max(WINDOW_MIN));
        let memory_bytes = ghosts.memory_bytes();
        let blocks_max = frames.saturating_sub(frames / PAGES_MIN_SHARE + PAGES_MIN + kept_free);
        let judge = Judge { ghosts, window, left: window, saved_ns: 0, cost_ns: 0, waiting: 0, rest: REST_WINDOWS };
        Self {
            is_on: AtomicBool::new(tier_use == TierUse::Always && blocks_max > 0),
            blocks_max,
            unwatched: parts as u64 - 1,
            is_judged: tier_use == TierUse::Judged && blocks_max > 0,
            judge: Mutex::new(judge),
            costs: Costs::new(),
            memory_bytes,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that blocks may have next to `changed` frames that cannot be evicted at once: so there are
    /// always as many clean pages as in a pool that works.
    pub(super) fn blocks_wanted(&self, changed: usize) -> usize {
        if self.is_on() { self.blocks_max.saturating_sub(changed) } else { 0 }
    }

    fn watches(&self, block: BlockId) -> bool {
        self.is_judged && (block.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) & self.unwatched == 0
    }

    /// Returns the costs of reads and of restored pages.
    pub(super) fn costs(&self) -> &Costs {
        &self.costs
    }

    fn read_ns(&self, need: Need) -> u64 {
        if need == Need::InThread { self.costs.waited_read_ns() } else { self.costs.task_read_ns() }
    }

    /// Has a miss judged: `of` returns what the tier saves, and what it costs. Nothing happens while another thread does
    /// this: it is an estimate, for which no thread waits.
    fn judge(&self, block: BlockId, of: impl FnOnce(&mut Judge, bool) -> (u64, u64)) {
        let Some(mut judge) = self.watches(block).then(|| self.judge.try_lock().ok()).flatten() else { return };
        let is_on = self.is_on();
        let (saved_ns, cost_ns) = of(&mut judge, is_on);
        judge.saved_ns += saved_ns;
        judge.cost_ns += cost_ns;
        judge.left -= 1;
        if judge.left == 0 {
            self.is_on.store(judge.end_window(is_on), Ordering::Relaxed);
            self.costs.begin_window();
        }
    }

    /// Notes that an operation must wait for the read of a page in this block.
    pub(super) fn note_read(&self, page: PageId, block: BlockId, is_compressed: bool, need: Need) {
        self.judge(block, |judge, is_on| {
            let (read_ns, restored_ns) = (self.read_ns(need), self.costs.restored_ns());
            if is_on {
                return (0, if judge.ghosts.contains(page.0) { read_ns } else { 0 });
            }
            if !is_compressed {
                return (0, read_ns);
            }
            let ghost = block.0 | BLOCK_GHOST;
            let saves = judge.ghosts.contains(ghost);
            judge.ghosts.add(ghost);
            if saves { (read_ns, 2 * restored_ns) } else { (0, restored_ns) }
        });
    }

    /// Notes that an operation needed a page restored from this block in memory.
    pub(super) fn note_restored(&self, page: PageId, block: BlockId, need: Need) {
        self.judge(block, |judge, is_on| match is_on {
            true if judge.ghosts.contains(page.0) => (0, self.costs.restored_ns()),
            true => (self.read_ns(need), self.costs.restored_ns()),
            false => (0, 0),
        });
    }

    /// Notes evicted pages, with their blocks.
    pub(super) fn note_evicted(&self, pages: impl Iterator<Item = (PageId, BlockId)>) {
        if self.is_on()
            && let Ok(mut judge) = self.judge.try_lock()
        {
            pages.filter(|(_, block)| self.watches(*block)).for_each(|(page, _)| judge.ghosts.add(page.0));
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Judge {
    /// Begins a new window. Returns whether the tier is to be on in it.
    fn end_window(&mut self, is_on: bool) -> bool {
        let (saved_ns, cost_ns) = (std::mem::take(&mut self.saved_ns), std::mem::take(&mut self.cost_ns));
        let gains = saved_ns.saturating_mul(SAVED_MIN.1) > cost_ns.saturating_mul(SAVED_MIN.0);
        self.left = self.window;
        if self.waiting > 0 {
            self.waiting -= 1;
            return is_on;
        }
        match (is_on, gains) {
            (true, true) => self.rest = REST_WINDOWS,
            (true, false) => {
                self.waiting = self.rest;
                self.rest = (self.rest * 2).min(REST_WINDOWS_MAX);
            }
            (false, true) => self.waiting = FILLING_WINDOWS,
            (false, false) => {}
        }
        gains
    }
}

/// Costs assumed before anything was measured.
const WAIT_NS: u64 = 50_000;
const PACE_NS: u64 = 10_000;
const DECOMPRESSION_NS: u64 = 2_000;
/// Nanoseconds that a restored page takes in addition to its decompression: to find the block, take a frame and install
/// the page.
const INSTALLATION_NS: u64 = 1_500;
/// Share with which a new time counts, as a divisor.
const SMOOTHED_OVER: u64 = 16;
/// Highest time that counts, as a multiple of the smoothed one: a thread may have lost its CPU.
const OUTLIER: u64 = 4;
/// Numbers of threads that are told apart. When three quarters of them were seen, more threads read than can be counted.
const THREADS: usize = 256;

/// Times of reads and decompressions, and the number of threads waiting for reads.
#[derive(Debug)]
pub(super) struct Costs {
    wait_ns: AtomicU64,
    /// Time from one completed read to the next while there are reads.
    pace_ns: AtomicU64,
    decompression_ns: AtomicU64,
    /// The threads that have waited for a read in the current window, as bits.
    threads: [AtomicU64; THREADS / 64],
    /// The number of threads that waited for a read in the last window.
    threads_before: AtomicUsize,
    cpus: usize,
}

impl Costs {
    pub(super) fn new() -> Self {
        Self::with_cpus(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn with_cpus(cpus: usize) -> Self {
        Self {
            wait_ns: AtomicU64::new(WAIT_NS),
            pace_ns: AtomicU64::new(PACE_NS),
            decompression_ns: AtomicU64::new(DECOMPRESSION_NS),
            threads: [const { AtomicU64::new(0) }; THREADS / 64],
            threads_before: AtomicUsize::new(0),
            cpus,
        }
    }

    /// Returns the cost of a restored page, in nanoseconds.
    pub(super) fn restored_ns(&self) -> u64 {
        self.decompression_ns.load(Ordering::Relaxed) + INSTALLATION_NS
    }

    /// Returns the cost of a read for which a thread waits, in nanoseconds; at least the cost of a restored page.
    pub(super) fn waited_read_ns(&self) -> u64 {
        let threads = self.thread_count().max(self.threads_before.load(Ordering::Relaxed));
        let wait_ns = self.wait_ns.load(Ordering::Relaxed);
        let share = match threads {
            _ if threads > THREADS / 4 * 3 => 0,
            _ if threads > self.cpus => wait_ns * self.cpus as u64 / threads as u64,
            _ => wait_ns,
        };
        share.max(self.restored_ns())
    }

    /// Returns the cost of a read for which a task waits, in nanoseconds; at least the cost of a restored page.
    pub(super) fn task_read_ns(&self) -> u64 {
        self.pace_ns.load(Ordering::Relaxed).max(self.restored_ns())
    }

    /// Notes that it took so long from one completed read to the next.
    pub(super) fn note_pace(&self, time: Duration) {
        smooth(&self.pace_ns, time);
    }

    /// Notes that the calling thread has waited so long for a read.
    pub(super) fn note_wait(&self, time: Duration) {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = NUMBERS.fetch_add(1, Ordering::Relaxed) % THREADS;
        }
        // In a thread that is ending the thread-local value may be gone.
        self.note_wait_of(NUMBER.try_with(|number| *number).unwrap_or(0), time);
    }

    fn note_wait_of(&self, thread: usize, time: Duration) {
        let (word, bit) = (&self.threads[thread / 64], 1 << (thread % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        smooth(&self.wait_ns, time);
    }

    /// Notes that the decompression of a page has taken so long.
    pub(super) fn note_decompression(&self, time: Duration) {
        smooth(&self.decompression_ns, time);
    }

    fn thread_count(&self) -> usize {
        self.threads.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    /// Restarts the count of threads.
    pub(super) fn begin_window(&self) {
        self.threads_before.store(self.thread_count(), Ordering::Relaxed);
        self.threads.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Moves a smoothed time towards a new one. Of two threads that do this at once, one may be without effect.
fn smooth(smoothed_ns: &AtomicU64, time: Duration) {
    let before = smoothed_ns.load(Ordering::Relaxed);
    let new = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(before.max(1) * OUTLIER);
    smoothed_ns.store(before - before / SMOOTHED_OVER + new / SMOOTHED_OVER, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: usize = 1024;

    fn share() -> TierShare {
        TierShare::new(FRAMES, FRAMES / 16, TierUse::Judged)
    }

    /// Misses for some windows, each page with its block, in a loop over so many blocks.
    fn read_in_a_loop(share: &TierShare, blocks: u64, windows: usize, need: Need) {
        for miss in 0..(windows * FRAMES) as u64 {
            share.note_read(PageId(miss), BlockId(miss % blocks), true, need);
        }
    }

    #[test]
    fn dirty_pages_take_the_frames_of_blocks() {
        let share = TierShare::new(FRAMES, FRAMES / 16, TierUse::Always);
        let most = share.blocks_wanted(0);
        let wanted = [1, most - 1, most, FRAMES].map(|changed| share.blocks_wanted(changed));
        assert_eq!(wanted, [most - 1, 1, 0, 0]);
    }

    #[test]
    fn reads_of_blocks_that_would_be_in_memory_switch_the_tier_on() {
        for (blocks, is_on) in [(300, true), (10_000, false)] {
            let share = share();
            read_in_a_loop(&share, blocks, 1, Need::InThread);
            read_in_a_loop(&share, blocks, 1, Need::InThread);
            assert_eq!((share.is_on(), share.blocks_wanted(0) > FRAMES / 2), (is_on, is_on), "{blocks} blocks");
        }
        let whole = share();
        (0..5000).for_each(|miss| whole.note_read(PageId(miss), BlockId(miss % 300), false, Need::InThread));
        assert!(!whole.is_on(), "pages that are not compressed cannot be restored");
    }

    #[test]
    fn a_tier_that_saves_less_than_it_costs_is_switched_off_and_tried_less_and_less_often() {
        let share = share();
        let mut rests = Vec::new();
        for _ in 0..4 {
            let mut rest = 0;
            while !share.is_on() {
                read_in_a_loop(&share, 300, 1, Need::InThread);
                rest += 1;
            }
            rests.push(rest);
            // Every page that is restored or read was evicted a short time before.
            for miss in 0.. {
                let page = PageId(miss % 500);
                share.note_evicted(std::iter::once((page, BlockId(3))));
                share.note_restored(page, BlockId(3), Need::InThread);
                share.note_read(page, BlockId(3), true, Need::InThread);
                if !share.is_on() {
                    break;
                }
            }
        }
        assert!(rests.is_sorted() && rests[1] > REST_WINDOWS && rests[3] > 3 * rests[1], "{rests:?}");
    }

    #[test]
    fn a_tier_that_saves_reads_stays_on() {
        let share = share();
        read_in_a_loop(&share, 300, 2, Need::InThread);
        for miss in 0..(20 * FRAMES) as u64 {
            share.note_evicted(std::iter::once((PageId(miss), BlockId(miss % 300))));
            share.note_restored(PageId(miss), BlockId(miss % 300), Need::InThread);
        }
        assert!(!share.is_on(), "all pages were evicted lately");
        let share = self::share();
        read_in_a_loop(&share, 300, 2, Need::InThread);
        (0..(20 * FRAMES) as u64)
            .for_each(|miss| share.note_restored(PageId(miss), BlockId(miss % 300), Need::InThread));
        assert!(share.is_on());
    }

    #[test]
    fn reads_of_tasks_count_with_the_pace_of_the_device() {
        let share = share();
        (0..200).for_each(|_| share.costs().note_pace(Duration::from_micros(1)));
        read_in_a_loop(&share, 300, 20, Need::InTask);
        assert!(!share.is_on(), "a read costs no more than a restored page");
        (0..400).for_each(|_| share.costs().note_pace(Duration::from_micros(20)));
        read_in_a_loop(&share, 300, 2, Need::InTask);
        assert!(share.is_on());
        (0..400).for_each(|_| share.costs().note_pace(Duration::from_micros(1)));
        (0..(4 * FRAMES) as u64).for_each(|miss| share.note_restored(PageId(miss), BlockId(miss % 300), Need::InTask));
        assert!(!share.is_on());
    }

    #[test]
    fn a_part_of_the_blocks_stands_for_all_in_large_pools() {
        let frames = 8 * GHOSTS_MAX;
        let share = TierShare::new(frames, 256, TierUse::Judged);
        let watched = (0..80_000).filter(|block| share.watches(BlockId(*block))).count();
        assert!((8_000..12_000).contains(&watched), "{watched}");
        assert!(share.memory_bytes() <= 4 * GHOSTS_MAX as u64, "{}", share.memory_bytes());
    }

    #[test]
    fn pages_keep_some_frames_in_pools_of_any_size() {
        assert_eq!(PAGES_MIN, crate::buffer_pool::FRAMES_MIN);
        for frames in [PAGES_MIN, 64, 100, FRAMES, 1 << 24] {
            let share = TierShare::new(frames, frames / 16, TierUse::Always);
            let wanted = share.blocks_wanted(0);
            assert_eq!((wanted > 0, share.is_on()), (frames > PAGES_MIN, frames > PAGES_MIN));
            assert!(frames - wanted >= PAGES_MIN, "{wanted} of {frames}");
            assert_eq!(
                share.blocks_wanted(20),
                wanted.saturating_sub(20),
                "dirty frames are not taken from clean pages"
            );
            assert_eq!(TierShare::new(frames, frames / 16, TierUse::Never).blocks_wanted(0), 0);
        }
    }

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn costs_follow_what_was_measured_and_few_long_waits_do_not_matter() {
        let costs = Costs::with_cpus(4);
        assert!(costs.waited_read_ns() > 10 * costs.restored_ns());
        (0..200).for_each(|_| costs.note_wait_of(1, 1000 * MICROSECOND));
        (0..200).for_each(|_| costs.note_decompression(20 * MICROSECOND));
        let near = |got: u64, wanted: u64| got > wanted - wanted / 8 && got < wanted + wanted / 8;
        assert!(near(costs.waited_read_ns(), 1_000_000), "{costs:?}");
        assert!(near(costs.restored_ns(), 20_000 + INSTALLATION_NS), "{costs:?}");
        costs.note_wait_of(1, Duration::from_secs(100));
        assert!(costs.waited_read_ns() < 1_300_000, "{costs:?}");
        (0..400).for_each(|_| costs.note_wait_of(1, Duration::ZERO));
        assert_eq!(costs.waited_read_ns(), costs.restored_ns(), "never less than a restored page");
        (0..200).for_each(|_| costs.note_pace(100 * MICROSECOND));
        assert!(near(costs.task_read_ns(), 100_000), "{costs:?}");
        (0..400).for_each(|_| costs.note_pace(Duration::ZERO));
        assert_eq!(costs.task_read_ns(), costs.restored_ns(), "never less than a restored page");
    }

    #[test]
    fn with_more_threads_than_cpus_a_wait_counts_for_a_part() {
        let cost_of = |threads: usize| {
            let costs = Costs::with_cpus(4);
            (0..threads.max(10) * 40).for_each(|at| costs.note_wait_of(at % threads, 60 * MICROSECOND));
            costs.begin_window();
            costs.note_wait_of(0, 60 * MICROSECOND);
            costs.waited_read_ns() * 10 / costs.restored_ns()
        };
        let alone = cost_of(1);
        assert_eq!(cost_of(4), alone);
        assert!(cost_of(8) < alone * 6 / 10 && cost_of(8) > alone * 4 / 10, "{} of {alone}", cost_of(8));
        assert_eq!((cost_of(100), cost_of(THREADS)), (10, 10), "of one restored page");
    }
}
