//! Recycles frames and blocks without readers, a bounded number of versions at a time where an executor may wait for it.

use std::sync::Arc;

use super::Core;
use super::lots::Lots;
use super::registry::Superseded;
use crate::budget::Budget;

/// Steps of forgetting a version, and of recycling a frame.
const STEPS_A_VERSION: usize = 4;
const STEPS_A_FRAME: usize = 2;
/// Frames that are recycled together: commits take some meanwhile.
const RECYCLED_AT_ONCE: usize = 64;

/// Retired frames and versions: no reader can reach them any more.
#[derive(Default)]
pub(super) struct Ripe {
    pub(super) frames: Lots<u32>,
    pub(super) versions: Lots<Superseded>,
}

impl Core {
    /// Recycles all frames and blocks that have become unreachable. Returns how many frames that freed. Unbounded: for threads
    /// that no executor waits for.
    pub(crate) fn sweep_all_ripe(self: &Arc<Self>) -> usize {
        let mut freed = self.sweep_ripe();
        loop {
            let is_swept = {
                let ripe = self.ripe();
                ripe.frames.is_empty() && ripe.versions.is_empty()
            };
            if is_swept && self.registry().is_settled() {
                return freed;
            }
            freed += self.sweep_ripe();
        }
    }

    /// Recycles some of the frames and blocks that have become unreachable, within a budget. Returns how many frames that freed.
    pub(crate) fn sweep_ripe(self: &Arc<Self>) -> usize {
        let unneeded = self.registry().settle();
        self.drop_later(unneeded);
        let (mut frames, mut versions, mut budget) = (Vec::new(), Vec::new(), Budget::new());
        {
            let mut ripe = self.ripe();
            while !budget.is_spent()
                && let Some(version) = ripe.versions.pop()
            {
                budget.spend(STEPS_A_VERSION);
                versions.push(version);
            }
            while !budget.is_spent()
                && let Some(frame) = ripe.frames.pop()
            {
                budget.spend(STEPS_A_FRAME);
                frames.push(frame);
            }
        }
        frames.extend(versions.into_iter().filter_map(|version| self.drop_version(version)));
        // A few at a time: commits take frames meanwhile.
        for some in frames.chunks(RECYCLED_AT_ONCE) {
            // SAFETY: `retire` was given these frames after their numbers had been taken out of table and versions, with no
            // pins, and the epoch they waited for has passed; each frame is retired once. Or `drop_version` has just answered
            // them: the only place where such a frame could be found was the version; views that may have found it there are
            // gone, because the version came through `drop_later`; it has no pins, and pins are only added to frames that can
            // be found.
            unsafe { self.frames.recycle(some) };
        }
        if !frames.is_empty() {
            self.settle_full();
        }
        frames.len()
    }
}
