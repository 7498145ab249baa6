//! The one place where anything waits: attempts are repeated until nothing is missing.
//!
//! The same code serves tasks and threads. In [`Mode::Async`] waiting is `Pending`; in [`Mode::Blocking`] it happens inside the poll,
//! on the calling thread, which submits and reaps its own reads.
//!
//! Kept true by:
//! 1. Whoever waits for pages holds a permit for each page that its ticket pins, taken before the request; so the frames
//!    pinned by waiters never exceed what the pool set aside, and each of them can go on.
//! 2. A waiter drops what it holds before it asks for more. After [`ATTEMPTS_BEFORE_HOLDING`] rounds it keeps all it was
//!    given: one such operation runs at a time, on frames set aside for it, so it ends.
//! 3. The first poll of a wait only re-schedules its task: other tasks that are ready add their reads, and the second
//!    poll submits them together, or whoever completes a batch before that. A task whose reads have been sent sends nothing: it
//!    would send each read that others have just added alone.
//! 4. A thread that misses one page reads it itself, without permit or ticket: nothing is pinned for it, and it waits for nobody. What
//!    it misses again and again it asks for like everybody else.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Gate, Permit};
use crate::pages::{Attempt, Store, Ticket, Wait};

/// Rounds after which an operation keeps the pages it was given.
const ATTEMPTS_BEFORE_HOLDING: usize = 16;
/// Rounds after which something must be wrong: no tree is that high.
const ATTEMPTS_MAX: usize = 10_000;
/// Pages that one operation may ask for at a time, where the pool is large enough: more than are under way at the device, so
/// that a large batch keeps it busy from its first read to its last.
const WINDOW_MAX: usize = 512;
/// Pages that a scan may ask for before it needs them: they are not pinned, only on their way.
const AHEAD_MAX: usize = 2048;
/// Pages that an attempt of a thread reads by itself before it asks for them: more than a tree is high, in most.
const READ_ALONE_MAX: usize = 8;
/// Operations that may end without waiting before a task lets others run.
const HITS_BEFORE_YIELD: u32 = 128;

/// Who is waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A task: waiting is `Pending`.
    Async,
    /// A thread: waiting blocks it.
    Blocking,
}

/// Shares of the frames that waiters may pin.
#[derive(Debug)]
pub(crate) struct Admission {
    pins: Arc<Gate>,
    holding: Arc<Gate>,
}

impl Admission {
    /// Shares out `pins_max` pages.
    pub(crate) fn new(pins_max: usize) -> Self {
        Self { pins: Gate::new(pins_max.max(1)), holding: Gate::new(1) }
    }

    /// Most pages that one operation may ask for at a time.
    pub(crate) fn window(&self) -> usize {
        (self.pins.permits() / 2).clamp(1, WINDOW_MAX)
    }

    /// Permits for so many pages, if they can be had at once: for one who holds others, and must not wait for these.
    pub(crate) fn try_pins(&self, count: usize) -> Option<Permit> {
        self.pins.try_acquire(count)
    }

    /// Most pages that one scan asks for ahead of its need: a small part of the pool.
    pub(crate) fn ahead_max(&self) -> usize {
        (self.pins.permits() / 8).clamp(2, AHEAD_MAX)
    }
}

/// Repeats `attempt` until it neither misses nor lacks anything.
///
/// # Errors
/// What `attempt` failed with, or what loading a page failed with.
pub(crate) async fn attempt<S: Store, R>(
    store: &S,
    admission: &Admission,
    mode: Mode,
    mut attempt: impl FnMut() -> Attempt<R>,
) -> Result<R> {
    let mut wait = match attempt() {
        Ok(result) => {
            breathe(mode).await;
            return Ok(result);
        }
        Err(wait) => wait,
    };
    if mode == Mode::Blocking {
        for _ in 0..READ_ALONE_MAX {
            let Wait::Miss(missing) = wait else { break };
            if !store.read_alone(missing)? {
                break;
            }
            wait = match attempt() {
                Ok(result) => return Ok(result),
                Err(wait) => wait,
            };
        }
    }
    let mut held = Held::default();
    loop {
        load(store, admission, mode, &mut held, &[wait]).await?;
        wait = match attempt() {
            Ok(result) => return Ok(result),
            Err(wait) => wait,
        };
    }
}

/// What an operation was given and keeps until its next attempt is over. Frees pins before permits.
pub(crate) struct Held<T> {
    /// The last one given: nearly always the only one, which then takes no memory of its own.
    ticket: Option<T>,
    tickets: Vec<T>,
    permit: Option<Permit>,
    holding: bool,
    rounds: usize,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self { ticket: None, tickets: Vec::new(), permit: None, holding: false, rounds: 0 }
    }
}

impl<T> Held<T> {
    /// The operation got on: its rounds are counted from here.
    pub(crate) fn new_round(&mut self) {
        self.rounds = 0;
    }
}

/// Waits for everything in `waits` (at most `admission.window()`), and leaves it in `held` instead of what was there.
///
/// # Errors
/// What a wait failed with.
pub(crate) async fn load<S: Store>(
    store: &S,
    admission: &Admission,
    mode: Mode,
    held: &mut Held<S::Ticket>,
    waits: &[Wait],
) -> Result<()> {
    for wait in waits {
        match wait {
            Wait::Failed(error) => return Err(error.clone()),
            Wait::LogFull { .. } => return Err(Error::new(ErrorKind::Bug, "a store was asked for room in the log")),
            Wait::Miss(_) | Wait::Full { .. } => {}
        }
    }
    held.rounds += 1;
    if held.rounds > ATTEMPTS_MAX {
        return Err(Error::new(ErrorKind::Bug, format!("an operation met {waits:?} after {ATTEMPTS_MAX} attempts")));
    }
    if !held.holding {
        held.ticket = None;
        held.tickets.clear();
        held.permit = None;
        held.holding = held.rounds > ATTEMPTS_BEFORE_HOLDING;
        let (gate, count) = if held.holding { (&admission.holding, 1) } else { (&admission.pins, waits.len()) };
        held.permit = Some(match gate.try_acquire(count) {
            Some(permit) => permit,
            None => gate.acquire(count).await,
        });
    }
    let mut ticket = store.request(waits);
    ready(store, mode, &mut ticket).await?;
    held.tickets.extend(held.ticket.replace(ticket));
    Ok(())
}

/// Waits for a ticket of the store.
///
/// # Errors
/// What it failed with.
pub(crate) async fn ready<S: Store>(store: &S, mode: Mode, ticket: &mut S::Ticket) -> Result<()> {
    match mode {
        Mode::Blocking => ticket.wait(),
        Mode::Async => Batched { store, ticket, sent_before: None, submitted: false }.await,
    }
}

/// Waits for a ticket that needs no submission: one of the log, or one whose reads have been sent.
///
/// # Errors
/// What it failed with.
pub(crate) async fn ready_sent<T: Ticket>(mode: Mode, ticket: &mut T) -> Result<()> {
    match mode {
        Mode::Blocking => ticket.wait(),
        Mode::Async => std::future::poll_fn(|context| ticket.poll(context.waker())).await,
    }
}

struct Batched<'a, S: Store> {
    store: &'a S,
    ticket: &'a mut S::Ticket,
    /// Submissions before the first poll: any since then had its reads.
    sent_before: Option<usize>,
    submitted: bool,
}

impl<S: Store> Batched<'_, S> {
    /// Makes sure that its reads are sent.
    fn submit(&mut self) {
        let submitted = std::mem::replace(&mut self.submitted, true);
        if !submitted && self.sent_before.is_none_or(|before| before == self.store.sent()) {
            self.store.submit();
        }
    }
}

impl<S: Store> Future for Batched<'_, S> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let first = this.ticket.poll(context.waker());
        if first.is_ready() {
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

impl<S: Store> Drop for Batched<'_, S> {
    fn drop(&mut self) {
        // The task may go between its first and its second poll, and others may have joined its reads.
        self.submit();
    }
}

/// Lets other tasks run once in a while, also when every page is in memory.
pub(super) async fn breathe(mode: Mode) {
    thread_local! {
        static HITS: Cell<u32> = const { Cell::new(0) };
    }
    if mode == Mode::Blocking {
        return;
    }
    let hits = HITS.get() + 1;
    HITS.set(hits % HITS_BEFORE_YIELD);
    if hits < HITS_BEFORE_YIELD {
        return;
    }
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
