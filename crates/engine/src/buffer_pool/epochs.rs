//! Epochs: memory that a thread looks at under a guard is not reclaimed before the guard is gone.
//!
//! Each pool has its own collector. So guards of another pool, or of another user of the library in this process, do not
//! delay the reuse of this pool's frames; and a history of a pool repeats exactly, independent of the rest of the process.
//!
//! A thread must be registered with a collector before it can pin. Each thread keeps the handles of the collectors it used last.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use crossbeam_epoch::{Collector, Guard, LocalHandle};

/// Most pools whose epoch handles a thread keeps, so that it can alternate between them without registering again.
const HANDLES_MAX: usize = 8;

/// The epoch collector of a pool, which hands out epoch guards.
pub(super) struct Epochs {
    collector: Collector,
    /// Dropped with the pool, so that a thread can tell which of its handles belong to pools that no longer exist.
    alive: Arc<()>,
}

struct ThreadHandle {
    handle: Rc<LocalHandle>,
    pool: Weak<()>,
}

thread_local! {
    /// The epoch handles of this thread, most recently used first.
    static HANDLES: RefCell<Vec<ThreadHandle>> = const { RefCell::new(Vec::new()) };
}

impl Epochs {
    pub(super) fn new() -> Self {
        Self { collector: Collector::new(), alive: Arc::new(()) }
    }

    /// Pins the current epoch. Nothing is pinned or dropped while the thread's list of handles is borrowed, because
    /// both may run deferred calls.
    #[inline]
    pub(super) fn pin(&self) -> Guard {
        let last = HANDLES.try_with(|handles| {
            let handles = handles.borrow();
            let first = handles.first().filter(|first| *first.handle.collector() == self.collector)?;
            Some(Rc::clone(&first.handle))
        });
        match last {
            Ok(Some(handle)) => handle.pin(),
            _ => self.pin_another(),
        }
    }

    /// Pins the epoch with a handle that is not the most recently used one, or with a new handle.
    #[cold]
    fn pin_another(&self) -> Guard {
        let earlier = HANDLES.try_with(|handles| {
            let mut handles = handles.borrow_mut();
            let at = handles.iter().position(|entry| *entry.handle.collector() == self.collector)?;
            handles[..=at].rotate_right(1);
            Some(Rc::clone(&handles[0].handle))
        });
        if let Ok(Some(handle)) = earlier {
            return handle.pin();
        }
        let handle = Rc::new(self.collector.register());
        let new = ThreadHandle { handle: Rc::clone(&handle), pool: Arc::downgrade(&self.alive) };
        // A thread that is ending keeps no handle: the guard alone keeps the registration alive.
        let gone = HANDLES.try_with(|handles| {
            let mut handles = handles.borrow_mut();
            let is_of_use = |handle: &mut ThreadHandle| handle.pool.strong_count() > 0;
            let mut gone: Vec<ThreadHandle> = handles.extract_if(.., |handle| !is_of_use(handle)).collect();
            if handles.len() == HANDLES_MAX {
                gone.extend(handles.pop());
            }
            handles.insert(0, new);
            gone
        });
        drop(gone);
        handle.pin()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn handles() -> usize {
        HANDLES.with(|handles| handles.borrow().len())
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_handles_and_none_of_pools_that_are_gone() {
        let pools: Vec<_> = (0..HANDLES_MAX * 3).map(|_| Epochs::new()).collect();
        for round in 0..3 {
            for pool in pools.iter().cycle().skip(round).take(pools.len() * 2) {
                drop(pool.pin());
                assert!(*HANDLES.with(|handles| Rc::clone(&handles.borrow()[0].handle)).collector() == pool.collector);
            }
        }
        assert_eq!(handles(), HANDLES_MAX);
        drop(pools);
        drop(Epochs::new().pin());
        assert_eq!(handles(), 1);
    }

    #[test]
    fn guards_of_other_pools_delay_no_reclamation() {
        let (of_others, mine) = (Epochs::new(), Epochs::new());
        let _held = (crossbeam_epoch::pin(), of_others.pin());
        let ran = Arc::new(AtomicBool::new(false));
        let by_call = Arc::clone(&ran);
        mine.pin().defer(move || by_call.store(true, Ordering::SeqCst));
        for _ in 0..8 {
            mine.pin().flush();
        }
        assert!(ran.load(Ordering::SeqCst));
    }
}
