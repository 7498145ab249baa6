//! Reads that a thread carries out itself, by a system call, because it needs one page and nothing else.

use std::sync::Arc;

use nofault_io::completion::{Op, OpKind};

use super::Core;
use super::arrivals::{Finished, Over};
use super::frames::OwnedFrame;
use super::lane::{Begun, Read};
use super::ticket::Waiter;
use crate::error::{Error, Result};
use crate::pages::Missing;

/// Staged reads that a blocking waiter looks through for its own.
const LOOK_BACK: usize = 64;

impl Core {
    /// Reads the one page that a blocking waiter needs on its own thread, if its read is still staged: one system call, without
    /// taking the queue and without another thread that has to wake this one.
    pub(super) fn read_here(self: &Arc<Self>, waiter: &Arc<Waiter>) -> bool {
        let Some(page) = waiter.only_read() else { return false };
        let taken = {
            let mut staged = self.lane.staged();
            let from = staged.len().saturating_sub(LOOK_BACK);
            let at = (from..staged.len()).rev().find(|at| staged[*at].page() == page);
            at.and_then(|at| staged.remove(at))
        };
        let Some(mut read) = taken else { return false };
        if read.frame.is_none() {
            read.frame = self.frame_for_read();
        }
        let Some(owned) = read.frame.take_if(|_| self.lane.enter_device()) else {
            self.lane.staged().push_front(read);
            return false;
        };
        // All waiters for the page receive an error, this thread's waiter among them.
        let _ = self.carry_out(read, owned);
        true
    }

    /// Reads one page for a thread that needs nothing else, if the page is not being read: as [`Core::read_here`], but without a
    /// waiter. Returns false when the page has to be requested. The page is not pinned: it may be evicted before the caller looks
    /// it up again.
    ///
    /// # Errors
    /// The error of the read.
    pub(super) fn read_alone(self: &Arc<Self>, missing: Missing) -> Result<bool> {
        // All resources are taken before the page is marked: other threads count on the read from then on.
        let Some(owned) = self.frame_for_read() else { return Ok(false) };
        if !self.lane.enter_device() {
            self.return_frames(vec![owned]);
            return Ok(false);
        }
        let page = missing.page;
        let begun = self.begin_read(&mut self.shard(page), missing);
        let Begun::Here(id) = begun else {
            self.lane.leave_device(1);
            self.return_frames(vec![owned]);
            self.submit_reads();
            return Ok(matches!(begun, Begun::Resident(_)));
        };
        self.count_misses(1);
        let failed = self.carry_out(Read::new(id), owned);
        // Its frame can be evicted, and a waiter for the queue finds it free: as at the end of a ticket.
        self.keeper.wake_if_starving();
        self.leave_lane();
        failed.map_or(Ok(true), Err)
    }

    /// Reads a page by one system call on this thread, which has entered the device for it; by two if the checksum is wrong.
    /// Returns the error, if any.
    fn carry_out(self: &Arc<Self>, read: Read, owned: OwnedFrame) -> Option<Error> {
        self.lane.note_sent();
        let mut finished = Finished::default();
        let mut next = Some((read, owned));
        while let Some((read, OwnedFrame { index, buffer })) = next.take() {
            let offset = read.block() * self.frames.page_bytes() as u64;
            let performed = self.lane.disk.perform(Op::new(0, offset, OpKind::Read(buffer)));
            let named = |error| Error::from_io(format!("read page {} at {offset}", read.page()), error);
            let (owned, error) = match performed {
                Ok(done) => {
                    let error = done.result.as_ref().err().cloned().map(named);
                    (done.into_buffer().map(|buffer| OwnedFrame { index, buffer }), error)
                }
                Err(error) => (None, Some(named(error))),
            };
            let over = Over { read, owned, error };
            self.fetch_ahead(std::slice::from_ref(&over));
            self.finish_read(over, &mut finished);
            next = finished.again.pop_if(|again| again.frame.is_some()).and_then(|mut again| {
                let owned = again.frame.take()?;
                Some((again, owned))
            });
        }
        self.lane.note_back(1);
        let failed = finished.failed.take();
        self.settle_reads(finished);
        // Threads that found the device full meanwhile left their reads staged.
        self.submit_reads();
        failed
    }
}
