//! The order in which blocks are read, and the check of their content. Does no I/O itself.
//!
//! A [`Layout`] numbers the blocks of one or several files as one sequence: consecutive stripes lie on consecutive
//! files. The first stripe of each file is left out, because the lab's marker lies there. An [`Order`] yields block
//! numbers for one thread, without end: at random, evenly or not, or as a scan.
//!
//! Kept true by: block numbers are below [`Layout::block_count`], and every block lies wholly inside the data of its
//! file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content;
use crate::record::{Target, TrialSpec};

pub use super::skew::{Scatter, Skew, SkewedOrder};

/// Bytes between two verified words: a page, for reads of any size.
pub const PAGE_BYTES: usize = content::BLOCK_BYTES;
/// Number of blocks in the sample whose sum proves that all methods read the same data.
pub const SAMPLE_COUNT: u64 = 256;

/// The mapping from block numbers to places in the files of a target.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Paths of the files or devices.
    pub paths: Vec<PathBuf>,
    /// Bytes of a block, which one operation reads.
    pub block_bytes: u64,
    /// Bytes that are contiguous in one file before the next file continues.
    pub stripe_bytes: u64,
    /// Seed of the content; `None` for content that is unknown and cannot be verified.
    pub content_seed: Option<u64>,
    /// The blocks that a recorded program read, in their order; empty without one.
    pub recorded: Arc<[u64]>,
    stripes_per_file: u64,
}

/// The position of a block in the files of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the file in [`Layout::paths`].
    pub file: usize,
    /// Position in the file, in bytes.
    pub offset_bytes: u64,
}

impl Layout {
    /// Lays blocks of `block_bytes` over a target, in stripes of `stripe_bytes` where the target has several files.
    ///
    /// # Errors
    /// `Usage` when the sizes make no sense, or a file has no room for one stripe besides the first.
    pub fn new(target: &Target, block_bytes: u64, stripe_bytes: u64) -> Result<Self> {
        let usage = |why: String| Err(LabError::new(LabErrorKind::Usage, format!("{}: {why}", target.label)));
        let page = PAGE_BYTES as u64;
        if block_bytes == 0 || !block_bytes.is_multiple_of(page) {
            return usage(format!("blocks of {block_bytes} bytes: must be a multiple of {page}"));
        }
        let stripe_bytes = if target.paths.len() > 1 { stripe_bytes } else { block_bytes };
        if stripe_bytes == 0 || !stripe_bytes.is_multiple_of(block_bytes) {
            return usage(format!(
                "stripes of {stripe_bytes} bytes: must be a multiple of the {block_bytes} of a block"
            ));
        }
        let file_bytes = target.data_bytes.saturating_add(page);
        let stripes_per_file = (file_bytes / stripe_bytes).saturating_sub(1);
        if target.paths.is_empty() || stripes_per_file == 0 {
            return usage(format!(
                "{} files with {} bytes of data have no room for two stripes of {stripe_bytes}; make the data larger",
                target.paths.len(),
                target.data_bytes
            ));
        }
        let paths = target.paths.iter().map(PathBuf::from).collect();
        Ok(Self {
            paths,
            block_bytes,
            stripe_bytes,
            content_seed: target.content_seed,
            recorded: Arc::default(),
            stripes_per_file,
        })
    }

    /// Number of blocks in all files together.
    pub fn block_count(&self) -> u64 {
        self.stripes_per_file * self.paths.len() as u64 * (self.stripe_bytes / self.block_bytes)
    }

    /// The place of a block.
    #[inline]
    pub fn place(&self, block: u64) -> Place {
        let at = block * self.block_bytes;
        let (stripe, within) = (at / self.stripe_bytes, at % self.stripe_bytes);
        let files = self.paths.len() as u64;
        Place { file: (stripe % files) as usize, offset_bytes: (stripe / files + 1) * self.stripe_bytes + within }
    }

    /// The byte offset of a block on a striped disk over the same files in the same order.
    #[inline]
    pub fn striped_offset(&self, block: u64) -> u64 {
        block * self.block_bytes + self.stripe_bytes * self.paths.len() as u64
    }

    /// Bytes at the start of each file that hold its blocks, the header included.
    pub fn file_bytes(&self) -> u64 {
        (self.stripes_per_file + 1) * self.stripe_bytes
    }

    /// The places of the sample, one page each. They depend on the seed alone, so that every method sums the same pages
    /// with any block size.
    pub fn sample(target: &Target, seed: u64) -> impl Iterator<Item = Place> + use<> {
        let mut chance = fastrand::Rng::with_seed(seed ^ 0x5a4d_504c);
        let (files, blocks) = (target.paths.len().max(1), (target.data_bytes / PAGE_BYTES as u64).max(1));
        (0..SAMPLE_COUNT).map(move |_| Place {
            file: chance.usize(0..files),
            offset_bytes: content::block_offset(chance.u64(0..blocks)),
        })
    }

    /// Whether a page at `offset_bytes` of a file may start with `word`. True where the content is unknown.
    #[inline]
    pub fn is_right_word(&self, word: u64, offset_bytes: u64) -> bool {
        match self.content_seed {
            Some(seed) => word == content::tag(seed, offset_bytes / PAGE_BYTES as u64 - 1),
            None => true,
        }
    }

    /// Whether `block`, read from `offset_bytes` of a file, has the expected content: checks the first word of each
    /// page, and the last word of the block. `None` where the content is unknown; the first words are loaded all the
    /// same.
    #[inline]
    pub fn is_right(&self, block: &[u8], offset_bytes: u64) -> Option<bool> {
        let mut right = true;
        let mut offset = offset_bytes;
        for page in block.chunks_exact(PAGE_BYTES) {
            right &= self.is_right_word(std::hint::black_box(first_word(page)), offset);
            offset += PAGE_BYTES as u64;
        }
        self.content_seed?;
        let last = block.last_chunk().copied().map_or(0, u64::from_le_bytes);
        Some(right && !block.is_empty() && self.is_right_word(last, offset - PAGE_BYTES as u64))
    }
}

/// The first eight bytes of a page; zero for fewer bytes, a value that no page of the lab starts with.
#[inline]
pub fn first_word(page: &[u8]) -> u64 {
    page.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// The order in which one thread reads blocks. It never ends.
#[derive(Debug, Clone)]
pub enum Order {
    /// Each block of the data is as likely as any other, independently of the blocks before it.
    Random(RandomOrder),
    /// At random, some blocks more often than others.
    Skewed(SkewedOrder),
    /// In the order of a recorded program, shared with the other threads; starts again at the end.
    Recorded(RecordedOrder),
    /// Front to back, one part at a time, shared with the other threads of the scan; starts again at the end.
    Scan(ScanOrder),
}

impl Order {
    /// Creates a random order for thread number `thread`. The sequence depends on seed and thread alone.
    pub fn random(layout: &Layout, seed: u64, thread: u32) -> Self {
        // Seeds of neighbouring threads must not be neighbours in the generator's own sequence.
        let chance = fastrand::Rng::with_seed(content::tag(seed, u64::from(thread)));
        Self::Random(RandomOrder { chance, count: layout.block_count() })
    }

    /// Creates the skewed orders of several threads. The sequence of each depends on seed and thread alone; the preferred
    /// blocks are the same for all.
    pub fn skewed(layout: &Layout, skew: Skew, seed: u64, threads: u32) -> Vec<Self> {
        SkewedOrder::many(skew, layout.block_count(), seed, threads).into_iter().map(Self::Skewed).collect()
    }

    /// Creates the orders of threads that share the layout's recorded blocks: each takes the next one.
    pub fn recorded(layout: &Layout, threads: u32) -> Vec<Self> {
        let next = Arc::new(AtomicU64::new(0));
        let order = RecordedOrder { blocks: Arc::clone(&layout.recorded), next };
        (0..threads).map(|_| Self::Recorded(order.clone())).collect()
    }

    /// Creates the orders for the threads of one scan: each thread takes the next part of `part_bytes`, reads it front
    /// to back, and takes another, as the original benchmark does.
    pub fn scan(layout: &Layout, part_bytes: u64, threads: u32) -> Vec<Self> {
        let part = (part_bytes / layout.block_bytes).clamp(1, layout.block_count());
        let next_part = Arc::new(AtomicU64::new(0));
        let order = ScanOrder { next_part, part, count: layout.block_count(), next: 0, end: 0 };
        (0..threads).map(|_| Self::Scan(order.clone())).collect()
    }

    /// Returns the number of the next block to read.
    #[inline]
    pub fn next_block(&mut self) -> u64 {
        match self {
            // The upper bound is exclusive: the original benchmark's was inclusive, and sometimes read past the end.
            Self::Random(order) => order.chance.u64(0..order.count),
            Self::Skewed(order) => order.next_block(),
            Self::Recorded(order) => order.next_block(),
            Self::Scan(order) => order.next_block(),
        }
    }
}

/// State of an order of recorded blocks ([`Order::Recorded`]).
#[derive(Debug, Clone)]
pub struct RecordedOrder {
    blocks: Arc<[u64]>,
    next: Arc<AtomicU64>,
}

impl RecordedOrder {
    #[inline]
    fn next_block(&mut self) -> u64 {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % (self.blocks.len() as u64).max(1);
        self.blocks.get(at as usize).copied().unwrap_or_default()
    }
}

/// State of a random order ([`Order::Random`]).
#[derive(Debug, Clone)]
pub struct RandomOrder {
    chance: fastrand::Rng,
    count: u64,
}

/// State of one thread of a scan ([`Order::Scan`]).
#[derive(Debug, Clone)]
pub struct ScanOrder {
    next_part: Arc<AtomicU64>,
    part: u64,
    count: u64,
    next: u64,
    end: u64,
}

impl ScanOrder {
    #[inline]
    fn next_block(&mut self) -> u64 {
        if self.next == self.end {
            let parts = self.count.div_ceil(self.part);
            let part = self.next_part.fetch_add(1, Ordering::Relaxed) % parts;
            self.next = part * self.part;
            self.end = (self.next + self.part).min(self.count);
        }
        self.next += 1;
        self.next - 1
    }
}

/// The layout of a trial's target, with the block size given and the stripe size of the trial.
///
/// # Errors
/// As [`Layout::new`]; `Usage` for a stripe size that is no number.
pub fn layout_of(spec: &TrialSpec, block_bytes: u64) -> Result<Layout> {
    let stripe_bytes = match spec.params.extra.get("stripe_bytes") {
        None => block_bytes,
        Some(text) => text.parse().map_err(|_| {
            LabError::new(LabErrorKind::Usage, format!("stripe_bytes = '{text}': must be a number of bytes"))
        })?,
    };
    Layout::new(&spec.target, block_bytes, stripe_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(files: usize, data_bytes: u64) -> Target {
        let paths = (0..files).map(|file| format!("f{file}").into()).collect();
        Target { label: "file".into(), paths, data_bytes, content_seed: Some(3) }
    }

    #[test]
    fn every_block_lies_inside_the_data_and_none_twice() {
        for (files, data_bytes, block, stripe) in [
            (1, 40 * 4096, 4096, 4096),
            (1, 99 * 4096, 16384, 0),
            (3, 100 * 4096, 4096, 16384),
            (2, 64 << 12, 8192, 8192),
        ] {
            let layout = Layout::new(&target(files, data_bytes), block, stripe).unwrap();
            let mut seen = std::collections::HashSet::new();
            for number in 0..layout.block_count() {
                let place = layout.place(number);
                assert!(place.offset_bytes >= 4096 && place.offset_bytes + block <= data_bytes + 4096, "{place:?}");
                assert!(place.offset_bytes + block <= layout.file_bytes());
                assert!(seen.insert((place.file, place.offset_bytes)), "{place:?} twice");
            }
            assert_eq!(seen.iter().map(|(file, _)| file).max(), Some(&(files - 1)));
        }
        assert_eq!(Layout::new(&target(1, 40 * 4096), 4096, 0).unwrap().block_count(), 40, "no block is left out");
    }

    #[test]
    fn a_striped_disk_has_the_block_at_the_same_place() {
        let layout = Layout::new(&target(3, 100 * 4096), 4096, 16384).unwrap();
        for block in 0..layout.block_count() {
            let at = layout.striped_offset(block);
            let (stripe, within) = (at / 16384, at % 16384);
            let place = Place { file: (stripe % 3) as usize, offset_bytes: stripe / 3 * 16384 + within };
            assert_eq!(layout.place(block), place);
        }
    }

    #[test]
    fn random_orders_reach_the_first_and_the_last_block_and_never_beyond() {
        let layout = Layout::new(&target(1, 16 * 4096), 4096, 0).unwrap();
        let mut order = Order::random(&layout, 1, 0);
        let mut seen = [false; 16];
        (0..10_000).for_each(|_| seen[order.next_block() as usize] = true);
        assert_eq!(seen, [true; 16]);
        let blocks = |seed, thread| {
            let mut order = Order::random(&layout, seed, thread);
            (0..20).map(|_| order.next_block()).collect::<Vec<_>>()
        };
        assert_eq!(blocks(1, 0), blocks(1, 0));
        assert_ne!(blocks(1, 0), blocks(1, 1));
        assert_ne!(blocks(1, 0), blocks(2, 0));
    }

    #[test]
    fn threads_of_a_scan_share_the_parts_and_wrap_around() {
        let layout = Layout::new(&target(1, 10 * 4096), 4096, 0).unwrap();
        let mut orders = Order::scan(&layout, 3 * 4096, 2);
        let mut take =
            |thread: usize, count: usize| -> Vec<u64> { (0..count).map(|_| orders[thread].next_block()).collect() };
        assert_eq!(take(0, 2), [0, 1]);
        assert_eq!(take(1, 4), [3, 4, 5, 6]);
        assert_eq!(take(0, 3), [2, 9, 0], "the last part is short, then it starts again");
    }

    #[test]
    fn threads_take_the_recorded_blocks_in_turn_and_start_again() {
        let layout = Layout { recorded: [7, 3, 9].into(), ..Layout::new(&target(1, 16 * 4096), 4096, 0).unwrap() };
        let mut orders = Order::recorded(&layout, 2);
        let taken: Vec<u64> = [0, 1, 1, 0, 0].map(|thread: usize| orders[thread].next_block()).into();
        assert_eq!(taken, [7, 3, 9, 7, 3]);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        let refused = |target: &Target, block, stripe| Layout::new(target, block, stripe).unwrap_err().kind();
        assert_eq!(refused(&target(1, 1 << 20), 1000, 0), LabErrorKind::Usage);
        assert_eq!(refused(&target(1, 1 << 20), 0, 0), LabErrorKind::Usage);
        assert_eq!(refused(&target(2, 1 << 20), 8192, 4096), LabErrorKind::Usage);
        assert_eq!(refused(&target(1, 4096), 1 << 20, 0), LabErrorKind::Usage);
        assert_eq!(refused(&target(0, 1 << 20), 4096, 0), LabErrorKind::Usage);
    }

    #[test]
    fn a_block_with_one_wrong_page_is_wrong() {
        let layout = Layout::new(&target(1, 16 * 4096), 16384, 0).unwrap();
        let mut block = vec![0; 16384];
        for (page, index) in block.chunks_exact_mut(4096).zip(3..) {
            content::fill_block(page, 3, index);
        }
        assert_eq!(layout.is_right(&block, 4 * 4096), Some(true));
        assert_eq!(layout.is_right(&block, 5 * 4096), Some(false), "from another place");
        block[8192] ^= 1;
        assert_eq!(layout.is_right(&block, 4 * 4096), Some(false));
        block[8192] ^= 1;
        block[16383] ^= 1;
        assert_eq!(layout.is_right(&block, 4 * 4096), Some(false), "the last page did not arrive whole");
        let unknown = Layout { content_seed: None, ..layout };
        assert_eq!(unknown.is_right(&block, 4096), None);
    }
}
