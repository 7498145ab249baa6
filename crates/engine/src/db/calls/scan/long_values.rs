//! The long values of a scan, read in batches of a few values.
//!
//! Before a scan waits for a batch, it requests the pages of later values, as many pages as it reads ahead. So a short scan
//! reads few values that it does not return, and a long scan keeps the device busy.

use std::collections::VecDeque;
use std::ops::Range;

use super::Chunk;
use super::read_ahead::ReadAhead;
use crate::btree::overflow::Reader;
use crate::btree::{FoundValue, ValueRef};
use crate::db::calls::loader::Loader;
use crate::db::calls::overflow;
use crate::error::Result;
use crate::format::PageId;
use crate::pages::{Snapshot as _, Store};

/// Fewest and most bytes of the values that a scan waits for together; a single value may have more.
const BATCH_BYTES_MIN: u64 = 64 << 10;
const BATCH_BYTES_MAX: u64 = 256 << 10;

/// The next long values of a scan's chunk.
#[derive(Default)]
pub(super) struct LongValues {
    /// Values that were read, in the order of their entries.
    ready: VecDeque<Vec<u8>>,
    /// The values after `ready` that are being read.
    coming: VecDeque<Coming>,
    /// Index in the chunk of the first entry after the values of `ready` and `coming`.
    next: usize,
}

/// A value that is being read.
struct Coming {
    len_bytes: u64,
    reader: Reader,
    /// Whether pages with bytes of the value were requested: of a very long value only the first pages are.
    is_requested: bool,
}

impl LongValues {
    /// Begins with the values of another chunk.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.coming.clear();
        self.next = 0;
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the value of the next entry with a long value.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// Reads a batch of values, beginning with the first long value of `entries`, the entries of `chunk` that the scan may
    /// return. Before that, requests pages of further values, `distance` pages ahead, which `read_ahead` counts. Returns whether it
    /// had to wait. Dropping the future loses no value.
    ///
    /// # Errors
    /// The errors of reading their pages.
    pub(super) async fn read<S: Store>(
        &mut self,
        (loader, snapshot): (&Loader<S>, &S::Snapshot),
        (chunk, entries): (&Chunk, Range<usize>),
        distance: usize,
        read_ahead: &mut ReadAhead,
    ) -> Result<bool> {
        let store = loader.store();
        let ahead_bytes = (distance * store.page_bytes()) as u64;
        let batch_bytes =
            (ahead_bytes / 4).clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX).min(overflow::bytes_at_once(loader));
        self.begin(store.page_bytes(), chunk, entries, ahead_bytes.max(batch_bytes))?;
        let mut pages: Vec<PageId> = Vec::new();
        {
            let view = store.view(snapshot);
            // At most the pages of one wait, however long a value is.
            let most = distance.max((batch_bytes as usize).div_ceil(store.page_bytes())).min(loader.window());
            for coming in self.coming.iter_mut().filter(|coming| !coming.is_requested) {
                let left = most.saturating_sub(pages.len());
                coming.is_requested = left > 0 && coming.reader.name_next(&view, left, &mut pages);
            }
        }
        if !pages.is_empty() {
            read_ahead.note_shared(loader.prefetch(&pages, snapshot.seq()));
        }
        let mut bytes = 0;
        let is_in_batch = |coming: &&Coming| {
            bytes += coming.len_bytes;
            bytes <= batch_bytes
        };
        let count = self.coming.iter().take_while(is_in_batch).count().max(1).min(self.coming.len());
        let batch = &mut self.coming.make_contiguous()[..count];
        let mut readers: Vec<&mut Reader> = batch.iter_mut().map(|coming| &mut coming.reader).collect();
        let has_waited = overflow::read_requested(loader, snapshot, &mut readers).await?;
        if !has_waited && !pages.is_empty() {
            // The device reads the requested pages while the caller uses the values of the batch.
            store.submit_soon();
        }
        self.ready.extend(self.coming.drain(..count).map(|coming| coming.reader.into_value()));
        Ok(has_waited)
    }

    /// Begins to read the values of further entries, until `coming` holds values of `bytes` bytes.
    fn begin(&mut self, page_bytes: usize, chunk: &Chunk, entries: Range<usize>, bytes: u64) -> Result<()> {
        let mut begun: u64 = self.coming.iter().map(|coming| coming.len_bytes).sum();
        self.next = self.next.max(entries.start);
        while self.next < entries.end && (begun < bytes || self.coming.is_empty()) {
            let value = chunk.entry(self.next).1;
            if !matches!(value, ValueRef::Here(_))
                && let FoundValue::Long(value) = value.into()
            {
                let len_bytes = value.len_bytes();
                begun += len_bytes;
                self.coming.push_back(Coming {
                    len_bytes,
                    reader: Reader::new(page_bytes, value)?,
                    is_requested: false,
                });
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// Returns the number of pages of long values that the leaf of this chunk names.
pub(super) fn named_pages(chunk: &Chunk) -> usize {
    let pages =
        |index: usize| if let ValueRef::Spread(value) = chunk.entry(index).1 { value.pages().count() } else { 0 };
    (0..chunk.len()).map(pages).sum()
}
