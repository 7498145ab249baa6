//! A handle of a waiting operation: polls or blocks until the pages and frames that it requested are there.

use std::sync::Arc;
use std::task::{Poll, Waker};

use super::reads::{Reads, Round};
use super::waiter::Waiter;
use crate::error::Result;
use crate::pages;
use crate::sync::semaphore::Permit;

/// A handle of a waiting operation; keeps the pages that have arrived in memory until it is dropped.
pub(crate) struct Ticket {
    reads: Arc<Reads>,
    waiter: Arc<Waiter>,
    /// Whether a task waits for it.
    is_task: bool,
    /// The permits for all pages that this ticket pins. They are returned after the pins have been removed.
    _permit: Option<Permit>,
}

impl Ticket {
    pub(super) fn new(reads: Arc<Reads>, waiter: Arc<Waiter>, permit: Permit) -> Self {
        Self { reads, waiter, is_task: false, _permit: Some(permit) }
    }

    /// A ticket that pins no page.
    pub(super) fn without_pins(reads: &Arc<Reads>, waiter: Arc<Waiter>) -> Self {
        Self { reads: Arc::clone(reads), waiter, is_task: false, _permit: None }
    }

    #[cfg(test)]
    pub(super) fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }
}

impl pages::Ticket for Ticket {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        if !self.is_task {
            self.is_task = true;
            self.reads.begin_task();
        }
        match self.reads.failure().error() {
            Some(error) => Poll::Ready(Err(error.clone())),
            None => self.waiter.poll(waker),
        }
    }

    fn wait(&mut self) -> Result<()> {
        let mut idle_rounds = 0;
        loop {
            if let Some(outcome) = self.waiter.outcome() {
                self.reads.scheduler().hand_on_queue();
                return outcome;
            }
            if let Some(error) = self.reads.failure().error() {
                return Err(error.clone());
            }
            idle_rounds = match self.reads.wait_round(&self.waiter)? {
                Round::Moved => 0,
                Round::Idle { weight } => self.reads.standstill().count_idle(idle_rounds, weight)?,
            };
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.reads.versions().process().is_here() {
            return;
        }
        if self.is_task {
            self.reads.end_task();
        }
        let (pinned, wants_frames) = self.waiter.withdraw();
        for (page, frame) in pinned {
            self.reads.versions().unpin(page, frame);
        }
        if wants_frames {
            self.reads.versions().frame_waits().leave(&self.waiter);
        }
    }
}
