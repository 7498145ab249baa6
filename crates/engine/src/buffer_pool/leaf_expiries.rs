//! The latest moment at which an entry of a leaf expires, for frames with leaves of which a scan has found that all entries had
//! expired. Another scan passes them without a look at the page.
//!
//! Kept true by: a published frame never changes, so its latest expiry holds until it is published again, which forgets it
//! first. A thread notes a moment only under the epoch guard, or pin, by which it reads the frame.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::Moment;

/// The latest expiry in each frame: its complement, so that memory that was never written to says [`Moment::NEVER`].
pub(crate) struct LeafExpiries(Box<[AtomicU64]>);

impl LeafExpiries {
    /// Creates the moments of `frames` frames, all [`Moment::NEVER`]: nothing is known.
    pub(super) fn new(frames: usize) -> Self {
        Self((0..frames).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns a moment from which on all entries of the leaf in this frame have expired; `NEVER` where none is known.
    #[inline]
    pub(super) fn latest(&self, frame: u32) -> Moment {
        Moment(!self.0[frame as usize].load(Ordering::Relaxed))
    }

    /// Notes the latest expiry of the leaf in this frame.
    pub(super) fn note(&self, frame: u32, latest: Moment) {
        self.0[frame as usize].store(!latest.0, Ordering::Relaxed);
    }

    /// Forgets the note for this frame, before it is published.
    pub(super) fn forget(&self, frame: u32) {
        self.note(frame, Moment::NEVER);
    }

    /// Returns the bytes of memory that the moments take.
    pub(super) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }
}
