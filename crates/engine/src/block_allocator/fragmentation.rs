//! Measures the effect of near-place allocation on scans: rewrites a tenth of all pages at random, in checkpoints, and
//! computes how a scan in key order would have to read afterwards.
//!
//! In the ordinary tests it runs tiny; for the table of figures:
//! `cargo test --release -p nofault block_allocator::fragmentation -- --ignored --nocapture`.

use rustc_hash::FxHashSet;

use super::*;

/// A model of one file: its pages in key order, and the block of each page.
struct Pages {
    allocator: BlockAllocator,
    place: Vec<BlockId>,
}

/// The cost of a scan over all pages in key order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scan {
    /// Average number of pages in key order that lie in consecutive blocks.
    run_pages: f64,
    /// Number of reads for a thousand pages, in a scan that asks for `WINDOW` pages at a time, sorts them by block, and
    /// reads over gaps of up to `GAP_BLOCKS`.
    reads_per_1000: f64,
    /// Bytes that the scan of `reads_per_1000` reads for each byte of the wanted pages.
    amplification: f64,
    /// Bytes of wanted pages in an average read of that scan, in KiB, with pages of 4 KiB.
    read_kib: f64,
}

const WINDOW: usize = 256;
const GAP_BLOCKS: u64 = 4;
const READ_BLOCKS_MAX: u64 = 64;

impl Pages {
    /// Creates `count` pages as a bulk load does: in key order, leaving the spare blocks that sequential allocation
    /// leaves.
    fn loaded(count: usize) -> Self {
        let mut allocator = BlockAllocator::new(32, u64::MAX);
        let place = (0..count).map(|_| allocator.allocate().unwrap()).collect();
        let mut pages = Self { allocator, place };
        pages.name_all();
        pages
    }

    /// Rewrites `count` pages chosen at random, and makes a checkpoint after every `per_checkpoint` of them.
    fn rewrite(&mut self, count: usize, per_checkpoint: usize, random: &mut fastrand::Rng) {
        let mut left = count;
        while left > 0 {
            let now = left.min(per_checkpoint);
            left -= now;
            let mut chosen: Vec<usize> = (0..now).map(|_| random.usize(0..self.place.len())).collect();
            // As the buffer pool writes: in the order of old places, each page once.
            chosen.sort_by_key(|page| self.place[*page]);
            chosen.dedup();
            for page in chosen {
                let old = self.place[page];
                self.place[page] = self.allocator.allocate_near(old).unwrap();
                self.allocator.release(old);
            }
            self.name_all();
            self.allocator.deferred.checkpoint_begins();
            while self.allocator.checkpoint_durable() > 0 {}
        }
    }

    /// Relocates all pages in key order, as `buffer_pool::relocate` does. It makes a checkpoint after every sixteenth
    /// of the pages, and keeps the file below nine eighths of the blocks in use and a few groups. Returns how many
    /// pages moved into contiguous runs, how many moved to empty a group, and how many found no run.
    fn compact(&mut self) -> (usize, usize, usize) {
        let (mut moved, mut stayed, mut aside) = (0, 0, 0);
        let (mut after, mut left_behind, mut tidy) = (None, Vec::new(), FxHashSet::default());
        let mut may_empty = true;
        for start in (0..self.place.len()).step_by(ROW_BLOCKS_MAX as usize) {
            let window = start..(start + ROW_BLOCKS_MAX as usize).min(self.place.len());
            let mut blocks: Vec<u64> = self.place[window.clone()].iter().map(|block| block.0).collect();
            blocks.sort_unstable();
            let pieces = blocks.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() + 1;
            if pieces <= window.len().div_ceil(16) {
                tidy.extend(blocks.iter().map(|block| group_of(BlockId(*block))));
                continue;
            }
            let mut pages = window;
            while !pages.is_empty() {
                let live =
                    self.allocator.space.used_blocks() - self.allocator.deferred.len() - left_behind.len() as u64;
                let (want, end_max) = (pages.len() as u64, live + live / 8 + 16 * GROUP_BLOCKS);
                let Ok(row) = self.allocator.allocate_row(want, want.min(16), after, end_max) else {
                    if !left_behind.is_empty() {
                        self.checkpoint(&mut left_behind);
                        continue;
                    }
                    let mut groups = self.allocator.space.groups_to_empty(256, &tidy);
                    may_empty &= !groups.is_empty();
                    if !may_empty {
                        stayed += pages.len();
                        break;
                    }
                    for place in &mut self.place {
                        if !groups.concerns(*place) {
                            continue;
                        }
                        let Some(block) = self.allocator.allocate_into(&mut groups) else { break };
                        left_behind.push(std::mem::replace(place, block));
                        aside += 1;
                    }
                    self.checkpoint(&mut left_behind);
                    continue;
                };
                tidy.insert(group_of(BlockId(row.start)));
                after = Some(BlockId(row.end - 1));
                for block in row {
                    let page = pages.next().unwrap();
                    left_behind.push(std::mem::replace(&mut self.place[page], BlockId(block)));
                    moved += 1;
                }
            }
            if left_behind.len() > (self.place.len() / 16).max(4096) {
                self.checkpoint(&mut left_behind);
            }
        }
        self.checkpoint(&mut left_behind);
        (moved, aside, stayed)
    }

    fn checkpoint(&mut self, left_behind: &mut Vec<BlockId>) {
        self.name_all();
        left_behind.drain(..).for_each(|block| self.allocator.release(block));
        self.allocator.deferred.checkpoint_begins();
        while self.allocator.checkpoint_durable() > 0 {}
    }

    /// Notes the blocks of all pages as named, as a checkpoint does.
    fn name_all(&mut self) {
        self.place.iter().for_each(|block| self.allocator.note_named(*block));
    }

    fn scan(&self) -> Scan {
        let breaks = self.place.windows(2).filter(|pair| pair[1].0 != pair[0].0 + 1).count();
        let (mut reads, mut blocks_read) = (0_u64, 0_u64);
        for window in self.place.chunks(WINDOW) {
            let mut blocks: Vec<u64> = window.iter().map(|block| block.0).collect();
            blocks.sort_unstable();
            let mut start = blocks[0];
            let mut last = blocks[0];
            for block in &blocks[1..] {
                if block - last > GAP_BLOCKS + 1 || block - start >= READ_BLOCKS_MAX {
                    reads += 1;
                    blocks_read += last - start + 1;
                    start = *block;
                }
                last = *block;
            }
            reads += 1;
            blocks_read += last - start + 1;
        }
        let pages = self.place.len() as f64;
        Scan {
            run_pages: pages / (breaks + 1) as f64,
            reads_per_1000: reads as f64 * 1000.0 / pages,
            amplification: blocks_read as f64 / pages,
            read_kib: blocks_read as f64 * 4.0 / reads as f64,
        }
    }
}

#[test]
fn after_rewriting_a_tenth_a_scan_still_reads_large_pieces() {
    let mut pages = Pages::loaded(20_000);
    let fresh = pages.scan();
    assert!(fresh.run_pages > 200.0 && fresh.amplification < 1.01, "{fresh:?}");
    let spread = pages.place.last().unwrap().0 as f64 / 20_000.0;
    assert!(spread < 1.05, "{spread} blocks for a page");
    pages.rewrite(2000, 500, &mut fastrand::Rng::with_seed(1));
    let scan = pages.scan();
    assert!(scan.read_kib > 64.0 && scan.amplification < 1.5, "{scan:?}");
}

#[test]
fn compaction_gives_a_scan_its_large_pieces_back_and_the_file_hardly_grows() {
    let mut pages = Pages::loaded(60_000);
    pages.rewrite(180_000, 1200, &mut fastrand::Rng::with_seed(1));
    let before = pages.scan();
    assert!(before.run_pages < 1.5, "{before:?}");
    let found = pages.compact();
    let after = pages.scan();
    assert!(after.run_pages > 16.0 && after.amplification < 1.1, "{after:?}; {found:?}");
    assert!(
        pages.allocator.space.end_block() <= 60_000 * 9 / 8 + 17 * GROUP_BLOCKS,
        "{}",
        pages.allocator.space.end_block()
    );
}

#[test]
fn groups_of_a_file_without_any_order_are_evacuated_to_free_contiguous_runs() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut pages = Pages::loaded(60_000);
    random.shuffle(&mut pages.place);
    let (moved, aside, stayed) = pages.compact();
    let after = pages.scan();
    assert!(after.run_pages > 100.0 && stayed == 0, "{after:?}; {stayed} stayed");
    assert!(moved == 60_000 && aside > 0 && aside < 120_000, "{moved} moved, {aside} aside");
    assert!(
        pages.allocator.space.end_block() <= 60_000 * 9 / 8 + 17 * GROUP_BLOCKS,
        "{}",
        pages.allocator.space.end_block()
    );
}

#[test]
#[ignore = "prints figures: what compaction gives back, and where there is no order left at all"]
fn figures_of_compaction() {
    for (what, count, rewritten) in
        [("near", 1_000_000, 0.1), ("near", 1_000_000, 3.0), ("anywhere", 200_000, 0.0), ("anywhere", 1_000_000, 0.0)]
    {
        let mut random = fastrand::Rng::with_seed(7);
        let mut pages = Pages::loaded(count);
        pages.rewrite((count as f64 * rewritten) as usize, count / 50, &mut random);
        if what == "anywhere" {
            random.shuffle(&mut pages.place);
        }
        for round in 0..4 {
            let Scan { run_pages, reads_per_1000, amplification, read_kib } = pages.scan();
            let end = pages.allocator.space.end_block() as f64 / count as f64;
            println!(
                "{what:8} {count:8} {rewritten:4.1} round {round} | {run_pages:6.1} in a row, {reads_per_1000:6.1} reads/1000, {amplification:5.2}, {read_kib:6.1} KiB | file {end:5.3}"
            );
            println!("{:?}", pages.compact());
        }
    }
}

#[test]
#[ignore = "prints figures: how scans fare after rewriting pages at random"]
fn figures() {
    println!(
        "pages  rewritten  per checkpoint | run  reads/1000  amplification  KiB/read | same group  near  far  file"
    );
    for count in [200_000, 1_000_000] {
        for (rewritten, per_checkpoint) in
            [(0.0, 0.01), (0.1, 0.1), (0.1, 0.02), (0.1, 0.005), (0.5, 0.02), (1.0, 0.02), (3.0, 0.02)]
        {
            let mut pages = Pages::loaded(count);
            let total = (count as f64 * rewritten) as usize;
            pages.rewrite(total, ((count as f64 * per_checkpoint) as usize).max(1), &mut fastrand::Rng::with_seed(7));
            let Scan { run_pages, reads_per_1000, amplification, read_kib } = pages.scan();
            let placed = pages.allocator.placement();
            let end = pages.allocator.space.end_block() as f64 / count as f64;
            println!(
                "{count:8} {rewritten:8.2} {per_checkpoint:8.3} | {run_pages:6.1} {reads_per_1000:8.1} {amplification:8.2} {read_kib:8.1} | {:8} {:8} {:8} {end:6.3}",
                placed.same_group, placed.near_group, placed.far
            );
        }
    }
}
