//! Epochs: what is looked at under a guard is not reclaimed before the guard is gone.
//!
//! Those of the process are the quickest, and when they advance depends on everything else in the process that uses them. A
//! test that must repeat exactly has epochs of its own, which only what it does itself moves on.

use std::cell::RefCell;
use std::rc::Rc;

use crossbeam_epoch::{Collector, Guard, LocalHandle};

/// Where a pool takes its guards from.
pub(super) enum Epochs {
    /// The process's.
    Shared,
    /// This pool's alone.
    Own(Collector),
}

thread_local! {
    /// The handle that this thread used last, of epochs that are not shared. Which pools a thread uses, and in which order, is
    /// part of a history, so what becomes of this is, too.
    static LAST: RefCell<Option<Rc<LocalHandle>>> = const { RefCell::new(None) };
}

impl Epochs {
    pub(super) fn new(own: bool) -> Self {
        if own { Self::Own(Collector::new()) } else { Self::Shared }
    }

    #[inline]
    pub(super) fn pin(&self) -> Guard {
        match self {
            Self::Shared => crossbeam_epoch::pin(),
            Self::Own(collector) => pin_own(collector),
        }
    }
}

/// Nothing is pinned or dropped while the cell is borrowed: both may run what was deferred.
#[cold]
fn pin_own(collector: &Collector) -> Guard {
    let last = LAST.try_with(|last| last.borrow().clone()).ok().flatten();
    if let Some(handle) = &last
        && handle.collector() == collector
    {
        return handle.pin();
    }
    let handle = Rc::new(collector.register());
    // Not kept when the thread is ending: the guard alone keeps it alive.
    let before = LAST.try_with(|last| last.replace(Some(Rc::clone(&handle))));
    drop(before);
    handle.pin()
}
