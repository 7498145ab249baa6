//! Bounds the number of pages that operations pin while they wait, and keeps the pins of an operation from one attempt
//! to the next.
//!
//! A page is pinned by a ticket, and a ticket owns a permit for each page that it pins: [`Store::request`] takes the
//! permits and asks for no more pages than there are. All permits together are [`Store::pins_max`], so pinned pages
//! always leave frames for reads.
//!
//! Kept true by:
//! 1. An operation has one [`PinBudget`], which releases its pins before it waits for permits. So no operation waits
//!    for permits while it holds some, and each that has them continues.
//! 2. The budget itself counts rounds that ask for no page that is new to the operation: its pages had been evicted
//!    again. After [`IDLE_ROUNDS_BEFORE_RESERVE`] of them the operation takes the reserve: permits that one operation
//!    at a time has to itself. With them it keeps its pages from round to round, the oldest leaving when there is no
//!    permit for the next.
//! 3. The reserve is given back when all of it is in use and the operation has come to new pages since it took it.
//! 4. When an attempt needs more pages at once than the reserve has permits, [`PinBudget::is_exceeded`] returns true:
//!    the attempt must be made smaller.
//! 5. Pins are released before an operation waits for anything else than its pages: the commit turn, free log space,
//!    user code.

#[cfg(test)]
mod model;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::error::{Error, ErrorKind, Result};
use crate::format::PageId;
use crate::pages::Wait;
use crate::sync::semaphore::{Permit, Semaphore};

/// Attempts in a row that met no page for the first time, after which an operation takes the permits for pinned pages
/// that are reserved for one operation at a time.
const IDLE_ROUNDS_BEFORE_RESERVE: usize = 16;
/// Attempts in a row that met no page for the first time, after which the operation fails: no tree has so many levels.
const IDLE_ROUNDS_MAX: usize = 10_000;
/// Number of first rounds in which an operation does not record its pages: nearly every operation ends within them.
const ROUNDS_NOT_NOTED: usize = 8;
/// Most pages that an operation records: `NOTED_MIN`, and this many more for each permit of the reserve.
const NOTED_PER_PERMIT: usize = 4;
const NOTED_MIN: usize = 4096;
/// Pages that one operation may ask for at a time, where the pool is large enough: more than are under way at the
/// device, so that a large batch keeps it busy from its first read to its last.
const WINDOW_MAX: usize = 512;
/// Most pages that a scan may request ahead of its position: they are read but not pinned.
const AHEAD_MAX: usize = 2048;
/// Fewest permits in the reserve, where there are at least twice as many in all: more than most trees have levels.
const RESERVE_MIN: usize = 16;

/// Permits for the pages that operations pin.
#[derive(Debug)]
pub(crate) struct Admission {
    shared: Arc<Semaphore>,
    /// The reserved permits, used only by the owner of `reserve_owner`.
    reserve: Arc<Semaphore>,
    reserve_owner: Arc<Semaphore>,
}

impl Admission {
    /// Creates permits for `pins_max` pages, at least two.
    pub(crate) fn new(pins_max: usize) -> Self {
        let reserve = (pins_max / 4).max(RESERVE_MIN).min(pins_max / 2).max(1);
        let shared = pins_max.saturating_sub(reserve).max(1);
        Self { shared: Semaphore::new(shared), reserve: Semaphore::new(reserve), reserve_owner: Semaphore::new(1) }
    }

    /// Grants all permits from now on: no page is pinned any more.
    pub(crate) fn open(&self) {
        [&self.shared, &self.reserve, &self.reserve_owner].into_iter().for_each(|semaphore| semaphore.open());
    }

    /// Returns the most pages that one operation may request at a time.
    pub(crate) fn window(&self) -> usize {
        (self.shared.permits() / 2).min(self.reserve.permits()).clamp(1, WINDOW_MAX)
    }

    /// Takes permits for `count` pages, or all shared permits if there are fewer; `None` if that many are not free now.
    /// For an operation that holds other permits and must not wait.
    pub(crate) fn try_pins(&self, count: usize) -> Option<Permit> {
        self.shared.try_acquire(count)
    }

    /// Returns whether every permit for pinned pages is free.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        [&self.shared, &self.reserve, &self.reserve_owner]
            .iter()
            .all(|semaphore| semaphore.try_acquire(semaphore.permits()).is_some())
    }

    /// Returns the most pages that one scan requests ahead of its position: a small part of the pool.
    pub(crate) fn ahead_max(&self) -> usize {
        (self.shared.permits() / 8).clamp(2, AHEAD_MAX)
    }
}

/// The pages that an operation keeps until its next round, or longer where it has the reserve. `T` is a ticket of the
/// store, which owns its permits.
pub(crate) struct PinBudget<T> {
    /// The pinned pages. Declared before `reserve`, so that they are unpinned first.
    tickets: Tickets<T>,
    reserve: Option<Reserve>,
    rounds: usize,
    idle_rounds: usize,
    /// Pages that the operation has requested, up to a bound.
    asked: FxHashSet<PageId>,
    exceeded: bool,
}

/// The reserved permits, and whether the operation that holds them has reached new pages since.
struct Reserve {
    _owner: Permit,
    progressed: bool,
}

/// The tickets of an operation. Nearly always there is one, which needs no allocation.
struct Tickets<T> {
    newest: Option<T>,
    older: VecDeque<T>,
}

impl<T> Tickets<T> {
    fn add(&mut self, ticket: T) {
        self.older.extend(self.newest.replace(ticket));
    }

    fn take_oldest(&mut self) -> Option<T> {
        self.older.pop_front().or_else(|| self.newest.take())
    }

    fn clear(&mut self) {
        while self.take_oldest().is_some() {}
    }
}

impl<T> Default for PinBudget<T> {
    fn default() -> Self {
        let tickets = Tickets { newest: None, older: VecDeque::new() };
        Self { tickets, reserve: None, rounds: 0, idle_rounds: 0, asked: FxHashSet::default(), exceeded: false }
    }
}

impl<T> PinBudget<T> {
    /// Releases the pins and the reserve, before the operation waits for anything else than pages. The counts of rounds
    /// and pages go on.
    pub(crate) fn release(&mut self) {
        self.tickets.clear();
        self.reserve = None;
    }

    /// Returns whether the operation needs more pages in one attempt than it can ever pin: it had the reserve, and had
    /// to unpin pages without having reached new ones.
    pub(in crate::db) fn is_exceeded(&self) -> bool {
        self.exceeded
    }

    /// Keeps the pages that a ticket has pinned until the next round.
    pub(in crate::db) fn keep(&mut self, ticket: T) {
        self.tickets.add(ticket);
    }

    /// Begins a round that asks for `waits`: releases the pins of the round before, or the oldest ones, and waits for
    /// permits.
    ///
    /// # Errors
    /// `Bug` when the operation asks for the same pages again and again and does not end.
    pub(in crate::db) async fn admit(&mut self, admission: &Admission, waits: &[Wait]) -> Result<Permit> {
        self.count_round(admission, waits);
        if self.idle_rounds > IDLE_ROUNDS_MAX {
            let what = format!("an operation met {waits:?} after {IDLE_ROUNDS_MAX} attempts");
            return Err(Error::new(ErrorKind::Bug, what));
        }
        if self.reserve.is_none() {
            self.release();
            // Frames are no pages: an operation waiting for frames only has no pages to keep.
            let for_pages = waits.iter().any(|wait| matches!(wait, Wait::Miss(_)));
            if self.idle_rounds <= IDLE_ROUNDS_BEFORE_RESERVE || !for_pages {
                return Ok(permits(&admission.shared, waits.len()).await);
            }
            self.reserve = Some(Reserve { _owner: permits(&admission.reserve_owner, 1).await, progressed: false });
        }
        loop {
            if let Some(permit) = admission.reserve.try_acquire(waits.len()) {
                return Ok(permit);
            }
            if self.reserve.as_ref().is_some_and(|reserve| reserve.progressed) {
                self.release();
                return Ok(permits(&admission.shared, waits.len()).await);
            }
            match self.tickets.take_oldest() {
                Some(oldest) => {
                    drop(oldest);
                    self.exceeded = true;
                }
                // The previous owner has released the reserve, and its last ticket is about to be dropped.
                None => return Ok(admission.reserve.acquire(waits.len()).await),
            }
        }
    }

    fn count_round(&mut self, admission: &Admission, waits: &[Wait]) {
        self.rounds += 1;
        if self.rounds <= ROUNDS_NOT_NOTED {
            return;
        }
        if self.asked.len() >= NOTED_MIN + admission.reserve.permits() * NOTED_PER_PERMIT {
            // No attempt needs so many pages at once: the operation has made progress.
            self.asked.clear();
        }
        let mut is_idle = true;
        for wait in waits {
            if let Wait::Miss(missing) = wait {
                is_idle &= !self.asked.insert(missing.page);
            }
        }
        if is_idle {
            self.idle_rounds += 1;
        } else {
            self.idle_rounds = 0;
            if let Some(reserve) = &mut self.reserve {
                reserve.progressed = true;
            }
        }
    }
}

async fn permits(semaphore: &Arc<Semaphore>, count: usize) -> Permit {
    match semaphore.try_acquire(count) {
        Some(permit) => permit,
        None => semaphore.acquire(count).await,
    }
}
