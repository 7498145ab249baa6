//! Restores pages whose blocks are in the compressed tier, on the thread that misses them and without the device.
//!
//! The page is marked as being read until then, as for any read: other operations that miss it wait for this thread, some
//! microseconds, and do no work themselves. No lock is held while a page is checked and decompressed. One request
//! restores as many pages as a budget allows, and reads the others.

use std::sync::Arc;

use super::installer::{Aftermath, Installer};
use super::scheduler::Scheduler;
use super::state::{Read, ReadState};
use crate::budget::Budget;
use crate::buffer_pool::compressed_tier::Need;
use crate::buffer_pool::evict::Evictor;
use crate::buffer_pool::frames::OwnedFrame;
use crate::buffer_pool::page_table::CheckedPage;
use crate::buffer_pool::versions::Versions;
use crate::format::compressed::restore_page;

/// Steps of a `Budget` that restoring one page spends.
const STEPS_A_PAGE: usize = 8;

/// Restores pages from blocks in memory.
pub(super) struct Restorer {
    versions: Arc<Versions>,
    evictor: Arc<Evictor>,
    scheduler: Arc<Scheduler>,
    installer: Arc<Installer>,
}

impl Restorer {
    pub(super) fn new(
        (versions, evictor): (&Arc<Versions>, &Arc<Evictor>),
        (scheduler, installer): (&Arc<Scheduler>, &Arc<Installer>),
    ) -> Self {
        let (versions, evictor) = (Arc::clone(versions), Arc::clone(evictor));
        Self { versions, evictor, scheduler: Arc::clone(scheduler), installer: Arc::clone(installer) }
    }

    /// Restores the page of a read that has just begun. Returns the read when it must be carried out: the page's block is
    /// not in memory, no frame is free, or the budget is spent.
    pub(super) fn restore(&self, read: Read, budget: &mut Budget) -> Option<Read> {
        let is_here =
            |read: &Read| self.versions.pages().tier().find(self.versions.frames(), read.id.at.block).is_some();
        if !read.id.at.is_compressed || budget.is_spent() || !is_here(&read) {
            return Some(read);
        }
        budget.spend(STEPS_A_PAGE);
        let _fails = self.installer.failure().guard();
        // Taken before the block is looked up: while an epoch is pinned no frame becomes free.
        let Some(owned) = self.evictor.frame_for_read() else { return Some(read) };
        let (read, owned) = self.restore_into(read, owned).err()?;
        self.versions.frame_waits().return_frames(vec![owned]);
        Some(read)
    }

    /// Restores the page of a read that has just begun into a frame.
    ///
    /// # Errors
    /// The read and the frame, when the page's block is not in memory.
    pub(super) fn restore_into(&self, mut read: Read, mut owned: OwnedFrame) -> Result<(), (Read, OwnedFrame)> {
        let at = read.id.at;
        if !at.is_compressed {
            return Err((read, owned));
        }
        let restore =
            |block: &[u8]| restore_page(self.versions.file_codec(), read.page(), at, block, &mut owned.buffer);
        match self.versions.with_block(at.block, read.need != Need::Later, restore) {
            None => return Err((read, owned)),
            Some(Err(_)) => {
                // Wrong bytes in memory, or a record that the disk had damaged when another page of the block was read:
                // reading the block again decides.
                self.versions.forget_blocks(std::iter::once(at.block));
                return Err((read, owned));
            }
            Some(Ok(())) => {}
        }
        self.versions.pages().tier().note_restored(read.page(), at.block, read.need);
        self.scheduler.begin(1);
        // Nothing is read.
        read.missed_at = None;
        read.advance(ReadState::Completed);
        let mut aftermath = Aftermath::default();
        self.installer.end(read, Some(CheckedPage { page: owned, block: None }), None, &mut aftermath);
        self.installer.settle(aftermath);
        Ok(())
    }
}
