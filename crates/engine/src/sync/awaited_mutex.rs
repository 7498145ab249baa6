//! A mutex whose holder can tell whether another thread waits for it: work in no hurry pauses only while none does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that counts the threads waiting for it. A panic of a holder does not poison it.
#[derive(Debug)]
pub(crate) struct AwaitedMutex<T> {
    value: Mutex<T>,
    waiting: AtomicUsize,
}

impl<T> AwaitedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), waiting: AtomicUsize::new(0) }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let guard = self.value.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            guard
        })
    }

    /// Returns the lock unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns whether a thread waits for the lock at this moment.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_learns_that_another_thread_waits() {
        let mutex = AwaitedMutex::new(1);
        let guard = mutex.lock();
        assert!(!mutex.is_awaited() && mutex.try_lock().is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *mutex.lock());
            while !mutex.is_awaited() {
                std::thread::yield_now();
            }
            drop(guard);
            assert_eq!(waits.join().unwrap(), 1);
        });
        assert!(!mutex.is_awaited());
    }

    #[test]
    fn a_panic_of_a_holder_leaves_the_value_for_others() {
        let mutex = AwaitedMutex::new(1);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _held = mutex.lock();
                panic!("as the test wants");
            });
            assert!(panics.join().is_err());
        });
        assert_eq!(*mutex.lock(), 1);
        assert_eq!(mutex.try_lock().map(|guard| *guard), Some(1));
    }
}
