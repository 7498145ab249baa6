//! Scans a range of a table: entries come leaf by leaf, and later leaves are requested early.
//!
//! The distance by which the scan reads ahead adapts, as in PostgreSQL's read stream: a wait doubles the distance, and
//! a leaf reduces it by one when no read was queued for it or for those ahead. So a scan in memory requests nothing, and a
//! cold one soon keeps the device busy. A leaf read in time does not count as one that was in memory: otherwise
//! the distance would fall until the scan waits again, and grow by as many waits.
//!
//! Leaves that the scan has used are replaced by new requests in small parts, so that the device always has nearly the
//! whole distance before it. The reads of a long scan are submitted and completed by another thread
//! (`Store::begin_range_scan`): copying and checking pages is most of the work, and with a second CPU it then costs the
//! scan no time.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use self::long_values::{LongValues, named_pages};
use self::read_ahead::ReadAhead;
use self::view::ScanView;
use super::bounds::skip_to_after;
use super::loader::Loader;
use super::pins::PinBudget;
use super::reader::{Reader, is_younger};
use super::wait::{ready, yield_sometimes};
use crate::btree::{Chunk, Direction, KeyRange, Portion, Tree, ValueRef};
use crate::error::Result;
use crate::format::{CommitSeq, Moment, PageId};
use crate::pages::{Missing, RangeScan as _, Snapshot, Store, Wait};

mod long_values;
mod read_ahead;
#[cfg(test)]
mod tests;
mod view;

/// Most pages on the way from the root to a leaf, about.
const WAY_PAGES: usize = 8;
/// Bytes that read-ahead requests together as one large read, once it reads at least twice as far ahead.
const ASKED_AT_ONCE_BYTES: usize = 256 << 10;
/// Number of bytes of read-ahead from which the completion thread takes the completions of a scan; it stops doing so at
/// half of this.
const BESIDE_FROM_BYTES: usize = 512 << 10;
/// Number of pages of read-ahead from which on a scan counts its leaves: only one that waits again and again, as its
/// leaves are not in memory, reads so far ahead.
const FAR_AHEAD_PAGES: usize = 16;
/// Number of leaves that a scan counts together.
const COUNTED_AT_ONCE: u64 = 256;
/// Number of pages by which a scan reads long values ahead after its first wait for a long value.
const LONG_VALUES_AHEAD_MIN: usize = 32;
/// Number of pages of values that a scan waits for together at first.
const VALUES_AT_ONCE_FIRST: usize = 8;
/// Bytes of entries that a scan copies at first, out of a leaf and its pages of values: a short scan needs no more.
const COPIED_AT_ONCE_FIRST: usize = 16 << 10;
/// Bytes of entries that a long scan copies at a time: few enough to be in the nearest CPU caches still when they are
/// returned.
const COPIED_AT_ONCE_MAX: usize = 64 << 10;

/// A key and its value.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// A scan of a range as of one snapshot. Entries are copied out of their pages a portion at a time, and returned from
/// that copy: [`Scan::make_ready`] waits for the next entry, [`Scan::take`] and [`Scan::show`] return it. Dropping the
/// future of a wait loses no entry.
pub(crate) struct Scan<S: Store> {
    reader: Reader<S>,
    snapshot: Arc<S::Snapshot>,
    tree: Tree,
    direction: Direction,
    /// Only changes after this commit are returned: see [`Tree::scan_changes`].
    since: Option<CommitSeq>,
    /// The part of the range that follows `chunk`.
    rest: Option<KeyRange>,
    chunk: Chunk,
    /// Number of entries at the front of `chunk` that may be returned, and how many of them were.
    usable: usize,
    given: usize,
    /// The range of keys whose content the entries from the front of `chunk` on replace, until it was returned.
    replaced: Option<KeyRange>,
    /// The next long values of `chunk`.
    long: LongValues,
    /// The long value that was lent to the caller last.
    shown: Vec<u8>,
    /// Bytes to be copied for the next chunk.
    portion_bytes: usize,
    /// Whether `rest` begins inside the leaf from which `chunk` was copied.
    inside_leaf: bool,
    /// Number of pages by which read-ahead leads the scan.
    distance: usize,
    /// Number of pages of values of one leaf to wait for together: few at first, because a short scan needs no more.
    values_at_once: usize,
    /// Most leaves requested ahead.
    leaves_max: usize,
    /// Number of entries that the scan may still return.
    left: u64,
    read_ahead: ReadAhead,
    /// Registers the scan with the store as a long one, while it reads far ahead.
    range_scan: Option<S::RangeScan>,
    /// Number of leaves read far ahead that are not yet counted in `Reader::scanned`.
    uncounted: u64,
}

impl<S: Store> Scan<S> {
    /// Creates a scan. No I/O.
    pub(crate) fn new(
        reader: Reader<S>,
        snapshot: Arc<S::Snapshot>,
        tree: Tree,
        range: KeyRange,
        direction: Direction,
    ) -> Self {
        let read_ahead = ReadAhead::new(ASKED_AT_ONCE_BYTES / reader.loader.store().page_bytes());
        let rest = (!is_younger(tree, &*snapshot)).then_some(range);
        Self {
            reader,
            snapshot,
            tree,
            direction,
            since: None,
            rest,
            chunk: Chunk::default(),
            usable: 0,
            given: 0,
            replaced: None,
            long: LongValues::default(),
            shown: Vec::new(),
            portion_bytes: COPIED_AT_ONCE_FIRST,
            inside_leaf: false,
            distance: 0,
            values_at_once: VALUES_AT_ONCE_FIRST,
            leaves_max: usize::MAX,
            left: u64::MAX,
            read_ahead,
            range_scan: None,
            uncounted: 0,
        }
    }

    /// Sets the direction of a scan that has not begun.
    pub(crate) fn set_direction(&mut self, direction: Direction) {
        self.direction = direction;
    }

    /// Restricts a scan of a whole table that has not begun to the changes after a commit.
    pub(crate) fn set_since(&mut self, since: CommitSeq) {
        self.since = Some(since);
    }

    /// Takes the range of keys whose content the next entries replace, if they begin one. After [`Scan::make_ready`].
    pub(crate) fn take_replaced(&mut self) -> Option<KeyRange> {
        self.replaced.take()
    }

    /// Limits read-ahead to this many leaves.
    pub(crate) fn set_read_ahead_max(&mut self, leaves: usize) {
        self.leaves_max = leaves;
    }

    /// Leaves the values out: all values are empty, and no page of values is read. For a scan that has not
    /// begun.
    pub(crate) fn set_keys_only(&mut self) {
        self.chunk.keys_only = true;
    }

    /// Sets how many entries the scan may still return.
    pub(crate) fn set_limit(&mut self, entries: u64) {
        self.left = entries;
    }

    /// Takes one entry off the limit for another scan that shares it. Returns false when none is left.
    pub(crate) fn spend_limit(&mut self) -> bool {
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// Leaves out the keys up to and including `key`, in the direction of the scan, which has not begun.
    pub(crate) fn skip_to_after(&mut self, key: &[u8]) {
        if let Some(rest) = &mut self.rest {
            skip_to_after(rest, key, self.direction);
        }
    }

    /// Creates a scan of the entries to come, in the other direction.
    pub(crate) fn reversed(&self) -> Self {
        let after = |key: &[u8]| [key, &[0]].concat();
        let ready = (self.given < self.usable).then(|| {
            let (first, last) = (self.chunk.entry(self.given).0, self.chunk.entry(self.usable - 1).0);
            let (low, high) = if self.direction == Direction::Forward { (first, last) } else { (last, first) };
            KeyRange { start: low.to_vec(), end: Some(after(high)) }
        });
        let (range, direction) = match (ready, self.rest.clone(), self.direction) {
            (None, None, _) => (KeyRange { start: Vec::new(), end: Some(Vec::new()) }, Direction::Forward),
            (Some(ready), Some(rest), Direction::Forward) => {
                (KeyRange { start: ready.start, end: rest.end }, Direction::Reverse)
            }
            (Some(ready), Some(rest), Direction::Reverse) => {
                (KeyRange { start: rest.start, end: ready.end }, Direction::Forward)
            }
            (Some(range), None, Direction::Forward) | (None, Some(range), Direction::Forward) => {
                (range, Direction::Reverse)
            }
            (Some(range), None, Direction::Reverse) | (None, Some(range), Direction::Reverse) => {
                (range, Direction::Forward)
            }
        };
        let mut scan = Self::new(self.reader.clone(), self.snapshot.clone(), self.tree, range, direction);
        scan.leaves_max = self.leaves_max;
        scan
    }

    /// Counts the entries to come.
    pub(crate) async fn count(&mut self) -> Result<u64> {
        let mut count = 0;
        loop {
            self.make_ready().await?;
            let ready = self.usable - self.given;
            if ready == 0 {
                return Ok(count);
            }
            count += ready as u64;
            self.given = self.usable;
        }
    }

    /// Returns the next entries that can be returned together, `most` at the most; none at the end.
    pub(crate) async fn next_batch(&mut self, most: usize) -> Result<Vec<Entry>> {
        self.make_ready().await?;
        Ok(std::iter::from_fn(|| self.take()).take(most).collect())
    }

    /// Returns the next entry.
    pub(crate) async fn next(&mut self) -> Result<Option<Entry>> {
        self.make_ready().await?;
        Ok(self.take())
    }

    /// Returns whether the next entry can be returned without waiting.
    pub(crate) fn is_ready(&self) -> bool {
        self.left > 0 && self.given < self.usable && (!self.is_long(self.given) || self.long.has_ready())
    }

    /// Waits until the next entry can be returned. When there is none afterwards, the range has ended. A scan that
    /// fails returns the error once, and is at its end from then on.
    pub(crate) async fn make_ready(&mut self) -> Result<()> {
        self.reader.loader.store().check_process()?;
        let ready = self.find().await;
        if ready.is_err() {
            self.rest = None;
            (self.usable, self.given) = (0, 0);
            self.replaced = None;
            self.long.clear();
            self.range_scan = None;
        }
        ready
    }

    async fn find(&mut self) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        // A leaf that has changed may have no entries any more.
        while self.given == self.usable && self.replaced.is_none() {
            if !self.fill().await? {
                return Ok(());
            }
        }
        if self.given < self.usable && self.is_long(self.given) && !self.long.has_ready() {
            self.read_long_values().await?;
        }
        Ok(())
    }

    /// Reads the next long values of the chunk, and requests the pages of the values after them.
    async fn read_long_values(&mut self) -> Result<()> {
        let loader = &*self.reader.loader;
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX);
        let entries = self.given..self.usable.min(self.given.saturating_add(wanted));
        let distance = self.ahead_pages();
        let read_ahead = &mut self.read_ahead;
        let read = self.long.read((loader, &self.snapshot), (&self.chunk, entries), distance, read_ahead);
        if read.await? {
            let far = loader.ahead_max();
            self.distance = (self.distance * 2).max(LONG_VALUES_AHEAD_MIN).min(far);
            self.share_work();
        }
        Ok(())
    }

    /// Returns the number of pages by which the scan reads ahead.
    fn ahead_pages(&self) -> usize {
        self.distance.min(self.leaves_max.saturating_mul(self.read_ahead.pages_a_leaf))
    }

    /// Has the completion thread take part in the scan while the scan reads far ahead.
    fn share_work(&mut self) {
        let store = self.reader.loader.store();
        let ahead_bytes = self.ahead_pages() * store.page_bytes();
        if ahead_bytes >= BESIDE_FROM_BYTES {
            self.range_scan.get_or_insert_with(|| store.begin_range_scan());
        } else if ahead_bytes < BESIDE_FROM_BYTES / 2 {
            self.range_scan = None;
        }
    }

    /// Returns the key of the entry that is ready.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.is_ready().then(|| self.chunk.entry(self.given).0)
    }

    /// Returns the entry that is ready, and advances.
    pub(crate) fn take(&mut self) -> Option<Entry> {
        if !self.is_ready() {
            return None;
        }
        let (key, held) = self.chunk.entry(self.given);
        let value = match held {
            ValueRef::Here(value) => value.to_vec(),
            ValueRef::Overflow(_) | ValueRef::Spread(_) => self.long.take()?,
        };
        let key = key.to_vec();
        self.given += 1;
        self.left -= 1;
        Some((key, value))
    }

    /// Lends the entry that is ready, without copying it, and advances.
    pub(crate) fn show(&mut self) -> Option<(&[u8], &[u8])> {
        if !self.is_ready() {
            return None;
        }
        if self.is_long(self.given) {
            self.shown = self.long.take()?;
        }
        let (key, held) = self.chunk.entry(self.given);
        self.given += 1;
        self.left -= 1;
        let value = match held {
            ValueRef::Here(value) => value,
            ValueRef::Overflow(_) | ValueRef::Spread(_) => &self.shown,
        };
        Some((key, value))
    }

    /// Returns the moment at which the entry returned last expires.
    pub(crate) fn expiry(&self) -> Moment {
        self.given.checked_sub(1).map_or(Moment::NEVER, |last| self.chunk.expiry(last))
    }

    fn is_long(&self, index: usize) -> bool {
        !matches!(self.chunk.entry(index).1, ValueRef::Here(_))
    }

    /// Copies the next entries of a leaf. Returns `false` at the end of the range.
    async fn fill(&mut self) -> Result<bool> {
        let Some(range) = &self.rest else { return Ok(false) };
        self.usable = 0;
        self.given = 0;
        self.long.clear();
        let Self {
            reader,
            snapshot,
            tree,
            chunk,
            read_ahead,
            distance,
            values_at_once,
            leaves_max,
            direction,
            since,
            range_scan,
            ..
        } = self;
        let most = Portion { bytes: self.portion_bytes, ..Portion::ALL };
        let loader = &*reader.loader;
        let (window, far) = (loader.window(), loader.ahead_max());
        let far = range_scan.as_ref().map_or(far, |scan| scan.ahead_max(far));
        let at = snapshot.seq();
        let mut waited = false;
        // Pages after a leaf are named when the scan reaches it and may request more, and wherever the scan has to
        // wait.
        let in_memory = !self.inside_leaf && read_ahead.pass_leaf();
        let mut names_ahead = !self.inside_leaf && read_ahead.idle_leaves == 0;
        // The way to the leaf must be in memory at the same time, and the reserve of pins may be no larger than the window.
        chunk.own_max = (*values_at_once).min(window.saturating_sub(WAY_PAGES)).max(1);
        let mut pins = PinBudget::default();
        let rest = loop {
            let ahead_max = if names_ahead { (*distance * 2).max(2).min(*leaves_max) } else { 0 };
            let (looked, used) = {
                let view = ScanView::<S>::new(loader.store().view(snapshot), range_scan.as_ref());
                let looked = match *since {
                    None => tree.scan(&view, range, *direction, most, ahead_max, chunk),
                    Some(since) => tree.scan_changes(&view.shared, range, since, most, ahead_max, chunk),
                };
                (looked, view.into_used())
            };
            let wait = match looked {
                Ok(rest) => {
                    if let Some(scan) = range_scan {
                        scan.note_used(used);
                        if !chunk.is_part {
                            scan.pass_leaf();
                        }
                    }
                    break rest;
                }
                Err(_) if !std::mem::replace(&mut names_ahead, true) => continue,
                Err(wait) => wait,
            };
            let mut waits = vec![wait];
            if let Wait::Miss(missing) = &waits[0] {
                // Its neighbours are needed soon, and none of them is read ahead any more.
                let refused = range_scan.as_mut().map(|scan| scan.take_refused(missing.page)).unwrap_or_default();
                read_ahead.note_shared(loader.prefetch(&refused, at));
                if !chunk.own.is_empty() {
                    // The pages that the leaf needs, as many together as `values_at_once` allows.
                    let own = &chunk.own[..chunk.own.len().min(chunk.own_max)];
                    let wait_for = |page: &PageId| Wait::Miss(Missing { page: *page, at });
                    if range_scan.is_some() {
                        // Reads complete in about this order: when the last page is in memory, it is worth making
                        // another attempt.
                        request_ahead((loader, range_scan, read_ahead), (own.to_vec(), Vec::new()), (at, *since));
                        let is_own =
                            |page: &&PageId| range_scan.as_ref().is_some_and(|scan| scan.page(**page).is_some());
                        waits.extend(own.last().filter(|page| !is_own(page)).map(wait_for));
                    } else {
                        waits = own.iter().map(wait_for).collect();
                    }
                    read_ahead.pages_a_leaf = read_ahead.pages_a_leaf.max(chunk.own.len() + 1);
                }
                // Requests for later leaves go out in the same submission.
                let mut shared = Vec::new();
                let pages = {
                    let view = ScanView::<S>::new(loader.store().view(snapshot), range_scan.as_ref());
                    let name = name_values(*tree, &view, *direction, *since, &mut shared);
                    read_ahead.next(&chunk.ahead, (*distance).max(1), *leaves_max, name)
                };
                request_ahead((loader, range_scan, read_ahead), (pages, shared), (at, *since));
            }
            waited = true;
            if let Some(mut ticket) = request_own::<S>(range_scan.as_ref(), &waits) {
                ready(loader.store(), &mut ticket).await?;
                continue;
            }
            let loaded = loader.load(&mut pins, &waits).await;
            loaded.map_err(|error| reader.tables.explain(*tree, at, error))?;
        };
        drop(pins);
        if waited {
            *values_at_once = (*values_at_once * 2).min(window);
            *distance = (*distance * 2).clamp(2, far);
        } else {
            *distance = distance.saturating_sub(usize::from(in_memory)).min(far);
            yield_sometimes().await;
        }
        let long_pages = named_pages(chunk);
        if long_pages > 0 {
            read_ahead.pages_a_leaf = read_ahead.pages_a_leaf.max(long_pages + 1);
        }
        if names_ahead {
            let mut shared = Vec::new();
            let pages = {
                let view = ScanView::<S>::new(loader.store().view(snapshot), range_scan.as_ref());
                let name = name_values(*tree, &view, *direction, *since, &mut shared);
                read_ahead.next(&chunk.ahead, *distance, *leaves_max, name)
            };
            if !pages.is_empty() || !shared.is_empty() {
                request_ahead((loader, range_scan, read_ahead), (pages, shared), (at, *since));
                // The device reads them while the caller processes this leaf.
                loader.store().submit_soon();
            }
        }
        self.share_work();
        self.uncounted += u64::from(self.ahead_pages() >= FAR_AHEAD_PAGES && !self.inside_leaf);
        self.portion_bytes = (self.portion_bytes * 2).min(COPIED_AT_ONCE_MAX);
        self.inside_leaf = self.chunk.is_part;
        if rest.is_none() {
            self.range_scan = None;
        }
        self.rest = rest;
        self.usable = self.chunk.len();
        self.replaced = self.chunk.replaced.take();
        if self.uncounted >= COUNTED_AT_ONCE {
            self.count_leaves();
        }
        Ok(true)
    }
}

/// Returns the function that lists the pages of values of a leaf that a scan needs. It adds to `shared` those pages, the leaf among them, that
/// the scan looks up in the store only.
fn name_values<S: Store>(
    tree: Tree,
    view: &ScanView<'_, S>,
    direction: Direction,
    since: Option<CommitSeq>,
    shared: &mut Vec<PageId>,
) -> impl FnMut(PageId, &mut Vec<PageId>) -> bool {
    move |leaf, into| match since {
        None => {
            let is_there = tree.name_values_and_spread(view, leaf, direction, into, shared);
            if !is_there && view.has_refused(leaf) {
                shared.push(leaf);
            }
            is_there
        }
        Some(since) => tree.name_changed_values(&view.shared, leaf, since, into),
    }
}

/// Queues reads of pages that the scan will need, for the scan alone where the store does that, except for the pages in `shared`. Not for a
/// scan of changes, which looks at pages of the store only.
fn request_ahead<S: Store>(
    (loader, range_scan, read_ahead): (&Loader<S>, &mut Option<S::RangeScan>, &mut ReadAhead),
    (mut pages, shared): (Vec<PageId>, Vec<PageId>),
    (at, since): (CommitSeq, Option<CommitSeq>),
) {
    let Some(scan) = range_scan.as_mut().filter(|_| since.is_none()) else {
        read_ahead.note_shared(loader.prefetch(&pages, at));
        return;
    };
    if !shared.is_empty() {
        let shared: FxHashSet<PageId> = shared.iter().copied().collect();
        pages.retain(|page| !shared.contains(page));
    }
    read_ahead.note_own(scan.read(&mut pages, at));
    pages.extend(shared);
    let queued = loader.prefetch(&pages, at);
    scan.note_shared(queued, read_ahead.note_shared(queued));
}

/// Returns a ticket for the first of the missing pages that is being read for the scan alone.
fn request_own<S: Store>(range_scan: Option<&S::RangeScan>, waits: &[Wait]) -> Option<S::Ticket> {
    let scan = range_scan?;
    waits.iter().find_map(|wait| if let Wait::Miss(missing) = wait { scan.request(missing.page) } else { None })
}

impl<S: Store> Scan<S> {
    /// Counts the leaves read from the disk one after the other: a table of which there are many is kept in
    /// order.
    fn count_leaves(&mut self) {
        let leaves = std::mem::take(&mut self.uncounted);
        self.reader.scanned.add(std::iter::once((self.tree, leaves)));
    }
}

impl<S: Store> Drop for Scan<S> {
    fn drop(&mut self) {
        if self.reader.loader.store().check_process().is_err() {
            // Its memory is not there.
            std::mem::forget(self.range_scan.take());
            return;
        }
        if self.uncounted > 0 {
            self.count_leaves();
        }
    }
}
