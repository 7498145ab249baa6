//! Threads that share one request: each takes an equal part of its pages. They live as long as the trial and wait at a
//! barrier between requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError, RwLock};

use crate::error::{LabError, Result};
use crate::workload::{Layout, Place};

/// Reads one page on a dedicated thread, and returns whether its content is right.
pub(super) type Reader<'a> = Box<dyn FnMut(Place) -> Result<bool> + 'a>;

/// The state that the threads share.
struct Shared {
    blocks: RwLock<Vec<u64>>,
    wrong: AtomicU64,
    error: Mutex<Option<LabError>>,
    stop: AtomicBool,
    /// Passed by all threads and the caller twice for each request: at its start and at its end.
    barrier: Barrier,
}

/// Starts `count` threads, each with its own reader, runs `body` with a function that answers one request by all of them,
/// and ends the threads.
///
/// # Errors
/// The error of `body`; a thread's first error is the request's.
pub(super) fn with<'a, T>(
    layout: &Layout,
    count: u32,
    reader: &(dyn Fn() -> Result<Reader<'a>> + Sync),
    body: impl FnOnce(&(dyn Fn(&[u64]) -> Result<u64> + Sync)) -> Result<T>,
) -> Result<T> {
    let shared = Shared {
        blocks: RwLock::new(Vec::new()),
        wrong: AtomicU64::new(0),
        error: Mutex::new(None),
        stop: AtomicBool::new(false),
        barrier: Barrier::new(count as usize + 1),
    };
    std::thread::scope(|scope| {
        for number in 0..count {
            let shared = &shared;
            scope.spawn(move || shared.serve(layout, (number as usize, count as usize), reader));
        }
        let result = body(&|blocks| shared.answer(blocks));
        shared.stop.store(true, Ordering::Release);
        shared.barrier.wait();
        result
    })
}

impl Shared {
    fn serve<'a>(
        &self,
        layout: &Layout,
        (number, of): (usize, usize),
        reader: &(dyn Fn() -> Result<Reader<'a>> + Sync),
    ) {
        // A thread without a reader still has to pass the barriers.
        let mut reader = reader();
        loop {
            self.barrier.wait();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) =
                reader.as_mut().map_err(|error| error.clone()).and_then(|read| self.share(layout, (number, of), read))
            {
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            self.barrier.wait();
        }
    }

    /// Reads every `of`-th page of the request.
    fn share(&self, layout: &Layout, (number, of): (usize, usize), read: &mut Reader<'_>) -> Result<()> {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let mut wrong = 0;
        for block in blocks.iter().skip(number).step_by(of) {
            wrong += u64::from(!read(layout.place(*block))?);
        }
        self.wrong.fetch_add(wrong, Ordering::Relaxed);
        Ok(())
    }

    fn answer(&self, blocks: &[u64]) -> Result<u64> {
        {
            let mut shared = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
            shared.clear();
            shared.extend_from_slice(blocks);
        }
        self.wrong.store(0, Ordering::Relaxed);
        self.barrier.wait();
        self.barrier.wait();
        match self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(self.wrong.load(Ordering::Relaxed)),
        }
    }
}
