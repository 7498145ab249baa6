//! One simulated file: the content that reads see, the durable content, and every version in between that a power cut
//! may choose.
//!
//! Invariants:
//! 1. `cache` is the content that reads see. `stable` and `stable_len` are the content and length that no cut can
//!    take away.
//! 2. A sector with two contents that may differ has versions in `pending`, oldest first. A version is the whole page
//!    as it was just after a write (shared with the cache, so it costs nothing), and the sectors of it that the write
//!    touched.
//! 3. A sync moves the newest covered version of each sector to `stable` and forgets that version and older ones.
//! 4. A failed sync marks the versions it covered as abandoned: reads still see them, a cut may still keep them, but
//!    no later sync moves them (Linux marks the pages clean). Lengths are metadata and stay pending. A failed durable
//!    write abandons its own versions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::bytes::{Bytes, PAGE_BYTES, Page, pages_of};
use super::options::SimOptions;

/// The number of a completed write, in the order of completion over all files.
pub(super) type WriteSeq = u64;

#[derive(Clone, Debug)]
struct Version {
    seq: WriteSeq,
    /// A bitmap: bit `n` is sector `n` of the page.
    sectors: u64,
    abandoned: bool,
    image: Arc<Page>,
}

/// A completed change of the file's length or allocation.
#[derive(Clone, Debug)]
struct Growth {
    seq: WriteSeq,
    range: Range<u64>,
    /// Whether an allocation grew the file, so that it takes space that no write took.
    allocated: bool,
}

/// A write or allocation that had begun when the power was cut.
#[derive(Clone, Debug)]
pub(super) enum PendingChange {
    Write { offset: u64, data: Vec<u8> },
    Allocate { range: Range<u64> },
}

#[derive(Clone, Debug)]
pub(super) struct File {
    cache: Bytes,
    len: u64,
    stable: Bytes,
    stable_len: u64,
    pending: BTreeMap<usize, Vec<Version>>,
    growth: Vec<Growth>,
    /// The last cut of the file that a power cut may undo: its number and the new length.
    shortened: Option<(WriteSeq, u64)>,
    sector: usize,
    /// Number of disks and queues with the file open.
    pub(super) handles: usize,
}

impl File {
    pub(super) fn empty(sector: usize) -> Self {
        Self {
            cache: Bytes::default(),
            len: 0,
            stable: Bytes::default(),
            stable_len: 0,
            pending: BTreeMap::new(),
            growth: Vec::new(),
            shortened: None,
            sector,
            handles: 0,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn bytes_held(&self) -> u64 {
        self.cache.pages_held() * PAGE_BYTES as u64
    }

    /// Returns the bytes of space that writing or allocating the range would take.
    pub(super) fn bytes_missing(&self, range: Range<u64>) -> u64 {
        self.cache.pages_missing(range) * PAGE_BYTES as u64
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        self.cache.read(offset, into);
    }

    pub(super) fn write(&mut self, seq: WriteSeq, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let range = offset..offset + data.len() as u64;
        self.cache.write(offset, data);
        for page in pages_of(range.clone()) {
            let sectors = self.sectors_in(page, &range);
            let image = self.cache.page(page);
            self.pending.entry(page).or_default().push(Version { seq, sectors, abandoned: false, image });
        }
        self.grow(seq, range, false);
    }

    pub(super) fn allocate(&mut self, seq: WriteSeq, range: Range<u64>) {
        self.cache.allocate(range.clone());
        self.grow(seq, range, true);
    }

    /// Cuts the file to `len` bytes, a multiple of whole pages. Until the cut is durable, a power cut may bring back
    /// the bytes that were durable there.
    pub(super) fn truncate(&mut self, seq: WriteSeq, len: u64) {
        self.cache.truncate(len);
        self.len = len;
        self.pending.retain(|page, _| ((*page * PAGE_BYTES) as u64) < len);
        self.growth.retain_mut(|growth| {
            growth.range.end = growth.range.end.min(len);
            growth.range.start < growth.range.end
        });
        // Of two cuts, the later length is no larger than the earlier, unless the file has grown in between.
        let len = self.shortened.map_or(len, |(_, before)| before.min(len));
        self.shortened = Some((seq, len));
    }

    /// Makes a cut of the file durable.
    fn settle_cut(&mut self) {
        if let Some((_, len)) = self.shortened.take() {
            self.stable.truncate(len);
            self.stable_len = self.stable_len.min(len);
        }
    }

    fn grow(&mut self, seq: WriteSeq, range: Range<u64>, allocated: bool) {
        if allocated || range.end > self.len {
            self.len = self.len.max(range.end);
            self.growth.push(Growth { seq, range, allocated });
        }
    }

    /// Makes everything completed up to and including `covered` durable, except versions abandoned by a failed sync.
    pub(super) fn sync(&mut self, covered: WriteSeq) {
        if self.shortened.is_some_and(|(seq, _)| seq <= covered) {
            self.settle_cut();
        }
        let pages: Vec<usize> = self.pending.keys().copied().collect();
        for page in pages {
            self.settle(page, covered, u64::MAX);
        }
        let (stable, stable_len) = (&mut self.stable, &mut self.stable_len);
        self.growth.retain(|growth| {
            if growth.seq > covered {
                return true;
            }
            if growth.allocated {
                stable.allocate(growth.range.clone());
            }
            *stable_len = (*stable_len).max(growth.range.end);
            false
        });
    }

    /// Makes the sectors of the durable write `seq`, and a file length that reaches them, durable.
    pub(super) fn sync_range(&mut self, seq: WriteSeq, range: Range<u64>) {
        if self.shortened.is_some_and(|(_, len)| len < range.end) {
            self.settle_cut();
        }
        for page in pages_of(range.clone()) {
            let sectors = self.sectors_in(page, &range);
            self.settle(page, seq, sectors);
        }
        self.stable_len = self.stable_len.max(range.end);
        self.growth.retain(|growth| growth.allocated || growth.range.end > range.end);
    }

    /// Marks the versions covered by a failed sync: no later sync writes them.
    pub(super) fn abandon(&mut self, covered: WriteSeq) {
        for version in self.pending.values_mut().flatten().filter(|version| version.seq <= covered) {
            version.abandoned = true;
        }
    }

    /// Abandons the bytes of the durable write `seq`, which failed: no later sync makes them durable.
    pub(super) fn abandon_write(&mut self, seq: WriteSeq) {
        for version in self.pending.values_mut().flatten().filter(|version| version.seq == seq) {
            version.abandoned = true;
        }
    }

    /// Whether the page cache holds a page of this range that is clean and differs from the device.
    pub(super) fn has_abandoned_pages(&self, range: Range<u64>) -> bool {
        pages_of(range).any(|page| self.is_abandoned(page))
    }

    /// Returns whether all versions of a page are abandoned. Any other page is dirty, which keeps it in the page cache.
    fn is_abandoned(&self, page: usize) -> bool {
        self.pending.get(&page).is_some_and(|versions| versions.iter().all(|version| version.abandoned))
    }

    /// Drops the clean pages of this range from the page cache, as a kernel may: each sector gets the bytes that the device
    /// happens to hold, for reads from now on and for every power cut.
    pub(super) fn drop_abandoned_pages(&mut self, range: Range<u64>, options: &SimOptions, rng: &mut fastrand::Rng) {
        for page in pages_of(range) {
            if !self.is_abandoned(page) {
                continue;
            }
            let versions = self.pending.remove(&page).unwrap_or_default();
            let (mut stored, mut fate) = (self.stable.clone(), Fate::draw(rng));
            self.choose_sectors(page, &versions, &mut stored, &mut fate, options, rng);
            self.stable = stored;
            let image = self.stable.page(page);
            self.cache.set_page(page, image);
        }
    }

    fn settle(&mut self, page: usize, covered: WriteSeq, among: u64) {
        let Some(versions) = self.pending.get_mut(&page) else { return };
        let mut settled = 0;
        for version in versions.iter_mut().rev() {
            if version.seq <= covered && !version.abandoned {
                let take = version.sectors & among & !settled;
                if take.count_ones() as usize == PAGE_BYTES / self.sector {
                    self.stable.set_page(page, version.image.clone());
                } else {
                    for inside in sectors(take, self.sector) {
                        self.stable.write((page * PAGE_BYTES + inside.start) as u64, &version.image[inside]);
                    }
                }
                settled |= take;
            }
            version.sectors &= !settled;
        }
        versions.retain(|version| version.sectors != 0);
        if versions.is_empty() {
            self.pending.remove(&page);
        }
    }

    /// Overwrites bytes outside of any operation: visible at once, durable, and no cut restores an older version.
    pub(super) fn damage(&mut self, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        self.cache.write(offset, data);
        // Whole sectors, so that forgetting their versions takes nothing back that was written next to the damage.
        let sector = self.sector as u64;
        let whole = range.start / sector * sector..range.end.next_multiple_of(sector);
        let mut bytes = vec![0; (whole.end - whole.start) as usize];
        self.cache.read(whole.start, &mut bytes);
        self.stable.write(whole.start, &bytes);
        self.forget_versions(whole);
        self.stable_len = self.stable_len.max(range.end);
    }

    /// Cuts or extends the file (with zeroes) outside of any operation; durable at once, as is everything pending
    /// before.
    pub(super) fn set_len(&mut self, len: u64) {
        self.stable = self.cache.clone();
        self.stable.truncate(len);
        self.cache = self.stable.clone();
        self.pending.clear();
        self.growth.clear();
        self.shortened = None;
        self.len = len;
        self.stable_len = len;
    }

    fn forget_versions(&mut self, range: Range<u64>) {
        for page in pages_of(range.clone()) {
            let sectors = self.sectors_in(page, &range);
            if let Some(versions) = self.pending.get_mut(&page) {
                versions.iter_mut().for_each(|version| version.sectors &= !sectors);
                versions.retain(|version| version.sectors != 0);
            }
        }
        self.pending.retain(|_, versions| !versions.is_empty());
    }

    /// Returns the file as a power cut would leave it now; `begun` are the operations under way.
    pub(super) fn survive(&self, begun: &[&PendingChange], options: &SimOptions, rng: &mut fastrand::Rng) -> Self {
        if begun.is_empty() && self.pending.is_empty() && self.growth.is_empty() && self.shortened.is_none() {
            return Self { handles: 0, ..self.clone() };
        }
        let mut last = self.clone();
        let mut order = begun.to_vec();
        rng.shuffle(&mut order);
        // Operations in flight count as later than all completed ones, and each as a separate write.
        let first_seq = WriteSeq::MAX - order.len() as u64;
        for (seq, begun) in (first_seq..WriteSeq::MAX).zip(order) {
            match begun {
                PendingChange::Write { offset, data } => last.write(seq, *offset, data),
                PendingChange::Allocate { range } => last.allocate(seq, range.clone()),
            }
        }
        let mut fate = Fate::draw(rng);
        if last.shortened.is_some() && fate.keeps_growth(rng) {
            last.settle_cut();
        }
        let mut bytes = last.stable.clone();
        let mut len = last.stable_len;
        for growth in &last.growth {
            if fate.keeps_growth(rng) {
                len = len.max(growth.range.end);
                if growth.allocated {
                    bytes.allocate(growth.range.clone());
                }
            }
        }
        if options.garbage_growth && rng.bool() {
            last.fill_growth_with_garbage(&mut bytes, len, rng);
        }
        for (page, versions) in &last.pending {
            last.choose_sectors(*page, versions, &mut bytes, &mut fate, options, rng);
        }
        bytes.truncate(len);
        Self { cache: bytes.clone(), stable: bytes, len, stable_len: len, ..Self::empty(self.sector) }
    }

    /// Writes to `bytes` the version of each sector of the page that survives.
    fn choose_sectors(
        &self,
        page: usize,
        versions: &[Version],
        bytes: &mut Bytes,
        fate: &mut Fate,
        options: &SimOptions,
        rng: &mut fastrand::Rng,
    ) {
        let touched = versions.iter().fold(0, |all, version| all | version.sectors);
        let base = bytes.page(page);
        let mut chosen = *base;
        let mut changed = false;
        for inside in sectors(touched, self.sector) {
            let bit = 1 << (inside.start / self.sector);
            let candidates: Vec<&Version> = versions.iter().filter(|version| version.sectors & bit != 0).collect();
            if let Some(version) = candidates.iter().rev().find(|version| fate.keeps(version.seq, rng)) {
                chosen[inside.clone()].copy_from_slice(&version.image[inside.clone()]);
                changed = true;
            }
            if options.torn_sectors && fate.tears(rng) {
                // Any other version may have left its first bytes, the one before all of them included.
                let other = rng.usize(0..=candidates.len());
                let image = candidates.get(other).map_or(&base, |version| &version.image);
                let head = inside.start..inside.start + rng.usize(1..self.sector);
                chosen[head.clone()].copy_from_slice(&image[head]);
                changed = true;
            }
        }
        if changed {
            bytes.set_page(page, Arc::new(chosen));
        }
    }

    /// Fills whole sectors between the durable length and `len` with garbage, as if left by earlier content of the
    /// device.
    fn fill_growth_with_garbage(&self, bytes: &mut Bytes, len: u64, rng: &mut fastrand::Rng) {
        let mut at = self.stable_len.next_multiple_of(self.sector as u64);
        let mut garbage = vec![0; self.sector];
        while at < len {
            if rng.bool() {
                rng.fill(&mut garbage);
                bytes.write(at, &garbage);
            }
            at += self.sector as u64;
        }
    }

    /// Returns the sectors of a page that a range of the file touches, as a bitmap.
    fn sectors_in(&self, page: usize, range: &Range<u64>) -> u64 {
        let page_start = (page * PAGE_BYTES) as u64;
        let inside = |at: u64| at.saturating_sub(page_start).min(PAGE_BYTES as u64) as usize;
        (inside(range.start) / self.sector..inside(range.end).div_ceil(self.sector))
            .fold(0, |bits, sector| bits | 1 << sector)
    }
}

/// Returns the byte range in a page of each sector in a bitmap.
fn sectors(mut bits: u64, sector: usize) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let index = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            index * sector..(index + 1) * sector
        })
    })
}

/// How one cut treats one file. Drawn per file, because bugs hide in extremes as well as in the middle: "all lost",
/// "all kept", "each write whole or absent", "each sector for itself".
struct Fate {
    keep: f64,
    by_sector: bool,
    tear: f64,
    writes: BTreeMap<WriteSeq, bool>,
}

impl Fate {
    fn draw(rng: &mut fastrand::Rng) -> Self {
        let keep = [0.0, 1.0, 0.1, 0.5, 0.5, 0.9][rng.usize(0..6)];
        let tear = if rng.bool() { 0.0 } else { 0.2 };
        Self { keep, by_sector: rng.bool(), tear, writes: BTreeMap::new() }
    }

    fn keeps(&mut self, seq: WriteSeq, rng: &mut fastrand::Rng) -> bool {
        if self.by_sector {
            return rng.f64() < self.keep;
        }
        *self.writes.entry(seq).or_insert_with(|| rng.f64() < self.keep)
    }

    /// Draws whether a change of length survives, independently of the data: a journal stores them separately.
    fn keeps_growth(&self, rng: &mut fastrand::Rng) -> bool {
        if rng.u8(0..4) == 0 { rng.bool() } else { rng.f64() < self.keep }
    }

    fn tears(&self, rng: &mut fastrand::Rng) -> bool {
        rng.f64() < self.tear
    }
}
