//! Counts the places at the device that reads take, so that no more are under way than the settings allow.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Limits the number of read operations at the device.
pub(super) struct DevicePlaces {
    /// Number of operations with a place: at the device already, or still waiting for a frame.
    taken: AtomicUsize,
    max: usize,
    /// Number of operations at the device.
    under_way: AtomicUsize,
}

impl DevicePlaces {
    pub(super) fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max, under_way: AtomicUsize::new(0) }
    }

    /// Takes a place for an operation, if one is free, until [`DevicePlaces::leave`] or [`DevicePlaces::note_back`].
    pub(super) fn enter(&self) -> bool {
        let more = |count: usize| (count < self.max).then_some(count + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Frees the place of an operation that was not sent to the device.
    pub(super) fn leave(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an operation sent to the device.
    pub(super) fn note_sent(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts operations that the device completed, and frees their places.
    pub(super) fn note_back(&self, count: usize) {
        self.under_way.fetch_sub(count, Ordering::Relaxed);
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the number of places that are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the number of operations at the device.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }
}
