//! How a call waits: for tickets of the store and of the log, and for other tasks to run.
//!
//! The same code serves tasks and blocking calls: the poll decides how a wait is done (see [`driver`](crate::sync::driver)).
//! For an executor waiting is `Pending`. In a blocking call it happens inside the poll, on the calling thread, which
//! submits and reaps its own reads.
//!
//! Kept true by: the first poll of a wait only re-schedules its task. Other tasks that are ready add their reads, and the
//! second poll submits them together, unless a thread that completes a batch has done so before. A task with submitted
//! reads submits nothing more: it would send each read that others have just added alone.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::events;
use crate::pages::{CommitLog, Durability, LogPosition, Store, Ticket};
use crate::sync::driver::{block_on, blocks};
use crate::transaction::{CommitReceipt, Commits};

/// Operations that a task may complete without waiting before it yields to other tasks.
const HITS_BEFORE_YIELD: u32 = 128;

/// A call answered from memory in nearly every case: either its answer, or the future waiting for it.
/// A first attempt without a future keeps a blocking call as short as a function call.
pub(crate) enum Call<T, F> {
    /// The first attempt gave the result.
    Done(T),
    /// Something was missing: this future waits for it and completes the call.
    Waits(F),
}

impl<T, F: Future<Output = T>> Call<T, F> {
    /// Completes the call in a task.
    pub(crate) async fn finish(self) -> T {
        match self {
            Self::Done(answer) => {
                yield_sometimes().await;
                answer
            }
            Self::Waits(rest) => rest.await,
        }
    }

    /// Completes the call on this thread, blocking it.
    #[inline]
    pub(crate) fn block(self) -> T {
        match self {
            Self::Done(answer) => answer,
            Self::Waits(rest) => block_on(rest),
        }
    }
}

/// Waits until a ticket of the store is ready.
///
/// # Errors
/// The error of the ticket.
pub(crate) async fn ready<S: Store>(store: &S, ticket: &mut S::Ticket) -> Result<()> {
    BatchedRead { store, ticket, sent_before: None, submitted: false }.await
}

/// Waits for a ticket needing no submission: a ticket of the log, or a ticket with reads already submitted.
///
/// # Errors
/// The error of the ticket.
pub(crate) async fn ready_sent<T: Ticket>(ticket: &mut T) -> Result<()> {
    std::future::poll_fn(|context| {
        if blocks(context) {
            return Poll::Ready(ticket.wait());
        }
        ticket.poll(context.waker())
    })
    .await
}

struct BatchedRead<'a, S: Store> {
    store: &'a S,
    ticket: &'a mut S::Ticket,
    /// The number of submissions before the first poll: any later submission included the reads of this ticket.
    sent_before: Option<usize>,
    submitted: bool,
}

impl<S: Store> BatchedRead<'_, S> {
    /// Ensures that the reads of this ticket are submitted.
    fn submit(&mut self) {
        let submitted = std::mem::replace(&mut self.submitted, true);
        if !submitted && self.sent_before.is_none_or(|before| before == self.store.sent()) {
            self.store.submit();
        }
    }
}

impl<S: Store> Future for BatchedRead<'_, S> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if blocks(context) {
            // Waiting submits the queued reads.
            this.submitted = true;
            return Poll::Ready(this.ticket.wait());
        }
        let first = this.ticket.poll(context.waker());
        if first.is_ready() {
            // Reads that are still staged belong to other tasks, each of which submits its own. Only a failed ticket may
            // leave its own reads behind.
            this.submitted |= matches!(first, Poll::Ready(Ok(())));
            return first;
        }
        if this.sent_before.is_some() {
            this.submit();
        } else {
            this.sent_before = Some(this.store.sent());
            this.submitted = this.store.submit_batch();
            if !this.submitted {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

impl<S: Store> Drop for BatchedRead<'_, S> {
    fn drop(&mut self) {
        // The future may be dropped between its first and its second poll, when other tasks may have joined its reads.
        self.submit();
    }
}

/// Yields to other tasks now and then, even when every page is in memory.
pub(in crate::db) async fn yield_sometimes() {
    thread_local! {
        static HITS: Cell<u32> = const { Cell::new(0) };
    }
    let hits = HITS.get() + 1;
    HITS.set(hits % HITS_BEFORE_YIELD);
    if hits == HITS_BEFORE_YIELD {
        yield_now().await;
    }
}

/// Lets other tasks run: between two parts of a call that may be as long as the caller chooses. A blocking call continues
/// at once.
pub(in crate::db) async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if blocks(context) || std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Time within which a commit has usually published the record that it appended.
const OTHERS_PUBLISH_WITHIN: Duration = Duration::from_millis(1);

/// A function that frees log space for so many bytes on the calling thread, with a checkpoint if necessary. It returns
/// false when the caller should try again.
pub(in crate::db) type MakeLogSpace = Box<dyn Fn(usize) -> Result<bool> + Send + Sync>;

/// Waits for free space and for durability of the log of a database.
pub(crate) struct LogWaits<S: Store, L: CommitLog> {
    log: Arc<L>,
    commits: Arc<Commits<S, L>>,
    /// The function that frees log space, in a database without background threads. It blocks.
    make_space: OnceLock<MakeLogSpace>,
    /// Set in a database that is nothing until it is finished: its end alone is durable.
    is_unfinished: AtomicBool,
}

impl<S: Store, L: CommitLog> LogWaits<S, L> {
    pub(in crate::db) fn new(log: Arc<L>, commits: Arc<Commits<S, L>>) -> Self {
        Self { log, commits, make_space: OnceLock::new(), is_unfinished: AtomicBool::new(false) }
    }

    /// From now on no call waits until anything is durable: the database is nothing until it is finished. Called when it is opened.
    pub(in crate::db) fn leave_to_the_end(&self) {
        self.is_unfinished.store(true, Ordering::Relaxed);
    }

    /// Returns whether the database is nothing until it is finished, so that no commit or load is durable for itself.
    pub(in crate::db) fn is_unfinished(&self) -> bool {
        self.is_unfinished.load(Ordering::Relaxed)
    }

    /// Returns the durability that a commit gets which asks for `durability`.
    pub(in crate::db) fn granted(&self, durability: Durability) -> Durability {
        if self.is_unfinished() { Durability::Deferred } else { durability }
    }

    /// Sets the function that a commit calls when it finds the log full. Called once, when the database is opened.
    pub(in crate::db) fn make_space_by(&self, make_space: MakeLogSpace) {
        let set = self.make_space.set(make_space);
        debug_assert!(set.is_ok(), "set once, when the database is opened");
    }

    /// Waits until a commit is as durable and visible as `durability` asks.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub(in crate::db) async fn acknowledged(&self, committed: CommitReceipt, durability: Durability) -> Result<()> {
        let position = match durability {
            Durability::Sync => Some(committed.position),
            Durability::Deferred => self.commits.held_up_by(committed.seq),
        };
        match position {
            Some(position) => self.durable(position).await,
            None => Ok(()),
        }
    }

    /// Waits until the log is durable up to `position`; in an unfinished database, for nothing.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub(in crate::db) async fn durable(&self, position: LogPosition) -> Result<()> {
        if self.is_unfinished() {
            return self.commits.check_poison();
        }
        ready_sent(&mut self.log.durable(position)).await
    }

    /// Waits until the log is durable up to `position` and a later group or superblock states so; in an unfinished database, for
    /// nothing.
    ///
    /// # Errors
    /// `Poisoned` after a failure of the log.
    pub(in crate::db) async fn stated(&self, position: LogPosition) -> Result<()> {
        if self.is_unfinished() {
            return self.commits.check_poison();
        }
        ready_sent(&mut self.log.stated(position)).await
    }

    /// Waits until the log has free space. Where no thread makes checkpoints, this one does.
    ///
    /// # Errors
    /// The error of a checkpoint; `Poisoned` after a failure of the log.
    pub(in crate::db) async fn await_space(&self, len_bytes: usize) -> Result<()> {
        let begun = Instant::now();
        let outcome = self.space(len_bytes).await;
        events::waited("log_space", begun.elapsed());
        outcome
    }

    async fn space(&self, len_bytes: usize) -> Result<()> {
        let Some(make_space) = self.make_space.get() else {
            return ready_sent(&mut self.log.await_space(len_bytes)).await;
        };
        // Polled, without a ticket of the log: only a checkpoint completes such a ticket, and without background
        // threads there may be no other caller to make one.
        while !make_space(len_bytes)? {
            self.commits.check_poison()?;
            std::thread::sleep(OTHERS_PUBLISH_WITHIN);
        }
        Ok(())
    }
}
