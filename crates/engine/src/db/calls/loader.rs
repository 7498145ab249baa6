//! Loads the pages that an operation needs, with permits for the pages that operations pin.
//!
//! An attempt looks pages up and never waits. When it misses some, the loader waits for them and makes the attempt
//! again, from its beginning. `wait` says how that differs between a task and a blocking call.
//!
//! Kept true by:
//! 1. The pages that an operation waits for are pinned with permits of its budget (`pins`), so each operation that has
//!    its pages can go on.
//! 2. A blocking call that misses one page reads it itself, without permit or ticket: nothing is pinned for it, and it
//!    waits for no other thread. A page that it misses again and again it requests with a ticket, as tasks do.

use std::sync::Arc;

use super::pins::{Admission, PinBudget};
use super::wait::{ready, yield_sometimes};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, PageId};
use crate::pages::{Attempt, Missing, Store, Wait};
use crate::sync::driver::is_blocking;
use crate::sync::semaphore::Permit;

/// Number of missed pages that a blocking call reads on its own thread, before it requests further ones with a ticket:
/// more than most trees have levels.
pub(in crate::db) const READ_ALONE_MAX: usize = 8;

/// Loads pages for operations: the store of a database, and the permits for pins.
pub(crate) struct Loader<S: Store> {
    store: Arc<S>,
    admission: Admission,
}

impl<S: Store> Loader<S> {
    /// Creates a loader that shares out the pins which the store allows.
    pub(in crate::db) fn new(store: Arc<S>) -> Self {
        let admission = Admission::new(store.pins_max());
        Self { store, admission }
    }

    /// Returns the store.
    #[inline]
    pub(in crate::db) fn store(&self) -> &S {
        &self.store
    }

    /// Returns the most pages that one operation may request at a time.
    pub(in crate::db) fn window(&self) -> usize {
        self.admission.window()
    }

    /// Returns the most pages that one scan may request ahead of its position.
    pub(in crate::db) fn ahead_max(&self) -> usize {
        self.admission.ahead_max()
    }

    /// Takes permits for `count` pages, or for all if there are fewer; `None` if that many are not free now. For an
    /// operation that holds other permits and must not wait.
    pub(in crate::db) fn try_pins(&self, count: usize) -> Option<Permit> {
        self.admission.try_pins(count)
    }

    /// Ends the waits for permits, of a store that has ended: each of these operations continues and meets its error.
    pub(in crate::db) fn end(&self) {
        self.admission.open();
    }

    /// Returns whether every permit for pinned pages is free.
    #[cfg(test)]
    pub(in crate::db) fn is_idle(&self) -> bool {
        self.admission.is_idle()
    }

    /// Repeats `attempt` until all pages and resources that it needs are there.
    ///
    /// # Errors
    /// The errors of `attempt`, and of loading a page.
    pub(in crate::db) async fn attempt<R>(&self, attempt: impl FnMut() -> Attempt<R>) -> Result<R> {
        self.attempt_within(&mut PinBudget::default(), attempt).await
    }

    /// As [`Loader::attempt`], for a step of an operation that has pins already: they are released before the call
    /// waits.
    ///
    /// # Errors
    /// As [`Loader::attempt`].
    pub(in crate::db) async fn attempt_within<R>(
        &self,
        budget: &mut PinBudget<S::Ticket>,
        mut attempt: impl FnMut() -> Attempt<R>,
    ) -> Result<R> {
        let mut wait = match attempt() {
            Ok(result) => {
                yield_sometimes().await;
                return Ok(result);
            }
            Err(wait) => wait,
        };
        if is_blocking().await {
            for _ in 0..READ_ALONE_MAX {
                let Wait::Miss(missing) = wait else { break };
                if !self.store.read_alone(missing)? {
                    break;
                }
                wait = match attempt() {
                    Ok(result) => return Ok(result),
                    Err(wait) => wait,
                };
            }
        }
        loop {
            self.load(budget, &[wait]).await?;
            wait = match attempt() {
                Ok(result) => {
                    // The pages may have been restored from blocks in memory, without any wait.
                    yield_sometimes().await;
                    return Ok(result);
                }
                Err(wait) => wait,
            };
        }
    }

    /// One round of an operation: waits for everything in `waits` (at most [`Loader::window`]), and pins it in `budget`
    /// until the next round.
    ///
    /// # Errors
    /// The error of a wait.
    pub(in crate::db) async fn load(&self, budget: &mut PinBudget<S::Ticket>, waits: &[Wait]) -> Result<()> {
        for wait in waits {
            match wait {
                Wait::Failed(error) => return Err(error.clone()),
                Wait::LogFull { .. } => {
                    return Err(Error::new(ErrorKind::Bug, "a store was asked for free log space"));
                }
                Wait::Miss(_) | Wait::Full { .. } => {}
            }
        }
        let permit = budget.admit(&self.admission, waits).await?;
        let mut ticket = self.store.request(waits, permit);
        ready(&*self.store, &mut ticket).await?;
        budget.keep(ticket);
        Ok(())
    }

    /// Reads the pages of `waits` on the calling thread, if it may block and their blocks lie together. Returns whether they were
    /// read, and so are probably in memory now.
    ///
    /// # Errors
    /// The error of the read of a single page.
    pub(in crate::db) async fn read_here(&self, waits: &[Wait]) -> Result<bool> {
        if !is_blocking().await {
            return Ok(false);
        }
        let missing = |wait: &Wait| if let Wait::Miss(missing) = wait { Some(*missing) } else { None };
        let missing: Option<Vec<Missing>> = waits.iter().map(missing).collect();
        missing.map_or(Ok(false), |missing| self.store.read_together(&missing))
    }

    /// Reads a page on the calling thread, if it may block, together with `others` if all of them lie next to it. Returns whether the
    /// page was read, and so is probably in memory now.
    ///
    /// # Errors
    /// The error of the read of the page.
    pub(in crate::db) async fn read_with(
        &self,
        missing: Missing,
        others: impl Iterator<Item = PageId>,
    ) -> Result<bool> {
        if !is_blocking().await {
            return Ok(false);
        }
        let all: Vec<Missing> = others.map(|page| Missing { page, ..missing }).chain([missing]).collect();
        if all.len() > 1 && self.store.are_neighbours(&all) && self.store.read_together(&all)? {
            return Ok(true);
        }
        self.store.read_alone(missing)
    }

    /// Queues reads of pages that the operation will need. Returns how many of them it queued: the others are in memory, or
    /// being read.
    pub(in crate::db) fn prefetch(&self, pages: &[PageId], at: CommitSeq) -> usize {
        let missing: Vec<_> = pages.iter().map(|page| Missing { page: *page, at }).collect();
        self.store.prefetch(&missing)
    }
}
