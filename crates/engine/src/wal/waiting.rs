//! Waiting for the log, choosing the next group-commit leader, and the share of the WAL writer: rules 4 and 6 of the
//! log.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use nofault_io::disk::EndedQueue;

use super::{Log, LogCore, LogState};
use crate::error::{Error, ErrorKind, Result};
use crate::pages::{self, Durability, LogPosition};
use crate::sync::background::PanicWatch;
use crate::sync::wakers::wake;

/// The condition that a ticket waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// All bytes up to this position are durable.
    Durable(LogPosition),
    /// All bytes up to this position are durable, and a later group records that they are.
    Stated(LogPosition),
    /// `len_bytes` of log space are free, or more than `failures_before` checkpoints have failed to free them.
    FreeSpace { len_bytes: usize, failures_before: u64 },
}

/// The task or the thread that a ticket must wake.
pub(super) enum Waiter {
    Task(Waker),
    Thread(Thread),
}

impl Waiter {
    pub(super) fn wake(self) {
        match self {
            Self::Task(waker) => wake(waker),
            Self::Thread(thread) => thread.unpark(),
        }
    }

    fn is_thread(&self) -> bool {
        matches!(self, Self::Thread(_))
    }
}

/// The waiters, grouped by the condition they wait for and ordered by position or ticket number.
#[derive(Default)]
pub(super) struct Waiters {
    for_durable: BTreeMap<(LogPosition, u64), Waiter>,
    for_stated: BTreeMap<u64, (LogPosition, Waiter)>,
    for_space: BTreeMap<u64, (usize, Waiter)>,
    next_ticket: u64,
}

impl Waiters {
    /// Adds the waiter of a ticket to the list, or replaces it. Returns the previous waiter, to be dropped when no lock
    /// is held.
    fn add(&mut self, ticket: &mut Option<u64>, goal: Goal, waiter: Waiter) -> Option<Waiter> {
        let number = *ticket.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        match goal {
            Goal::Durable(position) => self.for_durable.insert((position, number), waiter),
            Goal::Stated(position) => self.for_stated.insert(number, (position, waiter)).map(|(_, waiter)| waiter),
            Goal::FreeSpace { len_bytes, .. } => {
                self.for_space.insert(number, (len_bytes, waiter)).map(|(_, waiter)| waiter)
            }
        }
    }

    /// Removes the waiter of a ticket, if it is listed, and returns it.
    fn remove(&mut self, ticket: &mut Option<u64>, goal: Goal) -> Option<Waiter> {
        let number = ticket.take()?;
        match goal {
            Goal::Durable(position) => self.for_durable.remove(&(position, number)),
            Goal::Stated(_) => self.for_stated.remove(&number).map(|(_, waiter)| waiter),
            Goal::FreeSpace { .. } => self.for_space.remove(&number).map(|(_, waiter)| waiter),
        }
    }

    pub(super) fn waits_for_closing(&self) -> bool {
        !self.for_stated.is_empty()
    }

    /// Returns the number of bytes that each ticket waiting for log space needs.
    pub(super) fn lengths_for_space(&self) -> impl Iterator<Item = usize> {
        self.for_space.values().map(|(len_bytes, _)| *len_bytes)
    }

    fn take_all(&mut self, wake: &mut Vec<Waiter>) {
        wake.extend(std::mem::take(&mut self.for_durable).into_values());
        wake.extend(std::mem::take(&mut self.for_stated).into_values().map(|(_, waiter)| waiter));
        wake.extend(std::mem::take(&mut self.for_space).into_values().map(|(_, waiter)| waiter));
    }

    fn take_durable(&mut self, durable: LogPosition, wake: &mut Vec<Waiter>) {
        while let Some(first) = self.for_durable.first_entry()
            && first.key().0 <= durable
        {
            wake.push(first.remove());
        }
    }

    /// Removes a waiting thread from the list and returns it, so that it can become the leader.
    fn take_thread(&mut self) -> Option<Waiter> {
        let found = self.for_durable.iter().find(|(_, waiter)| waiter.is_thread());
        if let Some(ticket) = found.map(|(ticket, _)| *ticket) {
            return self.for_durable.remove(&ticket);
        }
        let found = self.for_stated.iter().find(|(_, (_, waiter))| waiter.is_thread());
        if let Some(ticket) = found.map(|(ticket, _)| *ticket) {
            return self.for_stated.remove(&ticket).map(|(_, waiter)| waiter);
        }
        let found = self.for_space.iter().find(|(_, (_, waiter))| waiter.is_thread());
        let ticket = found.map(|(ticket, _)| *ticket)?;
        self.for_space.remove(&ticket).map(|(_, waiter)| waiter)
    }
}

/// The WAL writer's share of the work: the positions up to which it must ensure that the log is written. `soon_until`
/// covers fragments that may have no other future leader, `deferred_until` covers deferred commits, which may be
/// written a little later. Each `*_notified` flag says that the WAL writer was notified of the matching position and
/// has not checked it yet.
#[derive(Debug, Default)]
pub(super) struct WriterDuties {
    soon_until: Option<LogPosition>,
    deferred_until: Option<LogPosition>,
    pub(super) soon_notified: bool,
    pub(super) deferred_notified: bool,
    /// Set while the WAL writer checks from time to time whether writing has paused, until every durable commit is
    /// recorded as durable.
    pub(super) watches: bool,
    /// Set when deferred commits are written only when their room is needed, or when a caller asks for it.
    pub(super) leaves_deferred: bool,
    /// Set when a commit was appended that is not deferred, until the next write has ended.
    has_awaited: bool,
    /// The end of the last write after which that was set.
    awaited_at: Option<Instant>,
}

impl WriterDuties {
    /// Notes a fragment up to position `until`; `last` is the durability of its commit if it is the commit's last. A deferred commit
    /// is left to the WAL writer. Returns true when the caller must notify the WAL writer.
    pub(super) fn note_commit(&mut self, last: Option<Durability>, until: LogPosition) -> bool {
        self.has_awaited |= last == Some(Durability::Sync);
        if last != Some(Durability::Deferred) || self.leaves_deferred {
            return false;
        }
        self.deferred_until = Some(until);
        !std::mem::replace(&mut self.deferred_notified, true)
    }

    /// Notes that a write has ended.
    pub(super) fn note_written(&mut self) {
        if std::mem::take(&mut self.has_awaited) {
            self.awaited_at = Some(Instant::now());
        }
    }

    /// Returns whether commits that are not deferred were written within the last `within`.
    pub(super) fn has_awaited_commits(&self, within: Duration) -> bool {
        self.awaited_at.is_some_and(|at| at.elapsed() < within)
    }

    /// Notes that the WAL writer has checked its share of the work, so that it must be notified again of later
    /// additions.
    pub(super) fn looks(&mut self) {
        (self.soon_notified, self.deferred_notified) = (false, false);
    }
}

impl LogCore {
    /// Returns whether all bytes up to `position` are durable, and their commits visible.
    fn is_durable(&self, position: LogPosition) -> bool {
        position.0 <= self.durable.load(Ordering::Acquire)
    }

    pub(super) fn reached(&self, state: &LogState, goal: Goal) -> Option<Result<()>> {
        match (goal, &state.poisoned) {
            (Goal::Durable(position), _) if self.is_durable(position) => Some(Ok(())),
            (Goal::Stated(position), _) if state.says_durable(position, self.durable.load(Ordering::Acquire)) => {
                Some(Ok(()))
            }
            (_, Some(error)) => Some(Err(error.clone())),
            (Goal::FreeSpace { .. }, None) if state.refused.is_some() => state.refused.clone().map(Err),
            (Goal::FreeSpace { len_bytes, .. }, None) if self.has_space(state, len_bytes) => Some(Ok(())),
            (Goal::FreeSpace { len_bytes, failures_before }, None)
                if failures_before < state.failed_checkpoints && !self.has_file_space(state, len_bytes) =>
            {
                state.failure.clone().map(Err)
            }
            _ => None,
        }
    }

    /// Wakes all waiters with a condition satisfied now.
    pub(super) fn wake_satisfied(&self) {
        let mut wake = Vec::new();
        self.take_satisfied(&mut self.lock(), &mut wake);
        wake.into_iter().for_each(Waiter::wake);
    }

    fn take_satisfied(&self, state: &mut LogState, wake: &mut Vec<Waiter>) {
        self.take_durable(state, LogPosition(self.durable.load(Ordering::Relaxed)), wake);
    }

    /// Moves to `wake` the waiters with a condition satisfied once all bytes up to `durable` are durable.
    pub(super) fn take_durable(&self, state: &mut LogState, durable: LogPosition, wake: &mut Vec<Waiter>) {
        if state.poisoned.is_some() {
            return state.waiters.take_all(wake);
        }
        state.waiters.take_durable(durable, wake);
        if !state.waiters.for_stated.is_empty() {
            let mut for_stated = std::mem::take(&mut state.waiters.for_stated);
            let found = for_stated.extract_if(.., |_, (position, _)| state.says_durable(*position, durable.0));
            wake.extend(found.map(|(_, (_, waiter))| waiter));
            state.waiters.for_stated = for_stated;
        }
        if !state.waiters.for_space.is_empty() {
            let mut for_space = std::mem::take(&mut state.waiters.for_space);
            let found = for_space.extract_if(.., |_, (len_bytes, _)| self.has_space(state, *len_bytes));
            wake.extend(found.map(|(_, (_, waiter))| waiter));
            state.waiters.for_space = for_space;
        }
    }

    /// Ends with `error` the waits for log space that lack it, after a failed checkpoint or a failed attempt to grow:
    /// see [`super::Log::checkpoint_failed`].
    pub(super) fn refuse_space(&self, error: &Error) {
        let mut state = self.lock();
        state.failed_checkpoints += 1;
        state.failure = Some(error.clone());
        // From now on the next ticket tries again to prepare a segment.
        state.growth.failure = None;
        let mut for_space = std::mem::take(&mut state.waiters.for_space);
        let refused = for_space.extract_if(.., |_, (len_bytes, _)| !self.has_file_space(&state, *len_bytes));
        let wake: Vec<Waiter> = refused.map(|(_, (_, waiter))| waiter).collect();
        state.waiters.for_space = for_space;
        drop(state);
        wake.into_iter().for_each(Waiter::wake);
    }

    /// Refuses all further appends with the error `why`, and ends the waits for log space: see
    /// [`crate::pages::CommitLog::refuse`].
    pub(super) fn refuse_for_good(&self, why: &Error) {
        let mut state = self.lock();
        state.refused.get_or_insert_with(|| why.clone());
        let for_space = std::mem::take(&mut state.waiters.for_space);
        drop(state);
        for_space.into_values().for_each(|(_, waiter)| waiter.wake());
    }

    /// Makes the caller the group-commit leader, unless there is a leader already.
    pub(super) fn try_to_lead<'a>(&'a self, state: &mut LogState) -> Option<Leadership<'a>> {
        // Built only when this call set the flag: dropping a `Leadership` clears it, and would end another thread's
        // leadership.
        let is_free = !std::mem::replace(&mut state.leadership, true);
        is_free.then(|| Leadership { core: self, wake: Vec::new(), watch: PanicWatch::begin() })
    }
}

impl Log {
    /// Keeps every thread from writing to the log until the returned guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold_writes(&self) -> impl Sized + '_ {
        self.0.lock_writer()
    }

    /// Ends the log of a database that is being closed, when all of it is durable that ever will be: nothing is written to
    /// it any more, and all waiters for more of it get this error. Blocks while another thread writes.
    pub(crate) fn end(&self, why: &Error) {
        let mut writer = self.0.lock_writer();
        self.0.lock().poisoned = Some(why.clone());
        writer.end();
        drop(writer);
        *self.0.grower.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(EndedQueue);
        self.0.wake_satisfied();
        self.0.wake_tails();
    }
}

impl LogState {
    /// Returns whether all bytes up to `position` are durable and a group records that they are. All bytes up to
    /// `durable` are durable.
    fn says_durable(&self, position: LogPosition, durable: u64) -> bool {
        let by_next = self.stated >= position.0 && self.stated_sequence >= self.recovered_content;
        by_next || (durable >= position.0 && self.is_stated())
    }

    /// Cancels the closing group because there is no space for it: tickets waiting for it now wait for durability
    /// only.
    pub(super) fn give_up_closing(&mut self) {
        self.stated_sequence = self.content_sequence;
        self.stated = self.appended;
        self.wants_closing = false;
    }

    /// Returns whether the caller must notify the WAL writer, so that it writes a group that records the newest durable
    /// records as durable.
    pub(super) fn must_watch(&mut self) -> bool {
        !self.is_stated() && !std::mem::replace(&mut self.writer_duties.watches, true)
    }

    fn count_refusal(&mut self, outcome: &Result<()>) {
        let refused = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace);
        self.growth.refused += u64::from(refused);
    }

    /// Leaves the pending fragments up to position `until` to the WAL writer. Returns true when the caller must notify
    /// the WAL writer.
    fn leave_to_writer(&mut self, until: LogPosition) -> bool {
        self.writer_duties.soon_until = self.writer_duties.soon_until.max(Some(until));
        self.must_notify_writer()
    }

    /// Returns whether the caller must notify the WAL writer: there is no leader, a part of the WAL writer's share is
    /// pending, and it has not been notified of that part yet.
    fn must_notify_writer(&mut self) -> bool {
        if self.leadership || !self.has_work() || self.poisoned.is_some() {
            return false;
        }
        if self.pending.is_empty() {
            return !std::mem::replace(&mut self.writer_duties.soon_notified, true);
        }
        let begins = Some(LogPosition(self.appended - self.pending_bytes as u64));
        let duties = &mut self.writer_duties;
        if duties.soon_until > begins {
            return !std::mem::replace(&mut duties.soon_notified, true);
        }
        duties.deferred_until > begins && !std::mem::replace(&mut duties.deferred_notified, true)
    }
}

/// The right of the group-commit leader to write the pending fragments. Dropping it passes the right on (rule 4 of the
/// log). A panic of the leader poisons the log: fragments that it has taken may be written nowhere.
pub(super) struct Leadership<'a> {
    pub(super) core: &'a LogCore,
    /// Waiters with commits that this leader made durable, not woken yet.
    pub(super) wake: Vec<Waiter>,
    watch: PanicWatch,
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        if let Some(error) = self.watch.panic("wrote the log") {
            self.core.poison(&error);
        }
        let mut state = self.core.lock();
        state.leadership = false;
        self.core.take_satisfied(&mut state, &mut self.wake);
        let goes_on = state.has_work() && state.poisoned.is_none();
        let next_leader = if goes_on { state.waiters.take_thread() } else { None };
        // A thread that has appended and does not wait yet becomes the leader when it begins to wait.
        let notify_writer = next_leader.is_none() && state.must_notify_writer();
        let is_untold = state.poison_untold;
        drop(state);
        // The next leader is woken first: the device is idle until that thread has a CPU.
        next_leader.into_iter().for_each(Waiter::wake);
        if notify_writer {
            self.core.notifier.notify();
        }
        self.wake.drain(..).for_each(Waiter::wake);
        if is_untold {
            self.core.tell_of_poison();
        }
    }
}

/// A wait for the log: for the durability of a commit or for free log space.
pub(crate) struct LogTicket {
    core: Arc<LogCore>,
    goal: Goal,
    /// The number of this ticket in the list of waiters, once it is on the list.
    number: Option<u64>,
}

impl LogTicket {
    pub(super) fn new(core: &Arc<LogCore>, goal: Goal) -> Self {
        Self { core: Arc::clone(core), goal, number: None }
    }

    /// Returns whether the ticket waits for durability and its position is durable; the ticket is then in no list.
    /// Takes no lock.
    fn is_durable(&self) -> bool {
        matches!(self.goal, Goal::Durable(position) if self.core.is_durable(position))
    }
}

impl pages::Ticket for LogTicket {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        if self.is_durable() {
            return Poll::Ready(Ok(()));
        }
        let Self { core, goal, number } = self;
        // A waker is foreign code: it is cloned, and dropped, without the lock.
        let waiter = Waiter::Task(waker.clone());
        let mut state = core.lock();
        if let Some(outcome) = core.reached(&state, *goal) {
            let gone = state.waiters.remove(number, *goal);
            state.count_refusal(&outcome);
            drop(state);
            drop((gone, waiter));
            return Poll::Ready(outcome);
        }
        let before = state.waiters.add(number, *goal, waiter);
        let until = match *goal {
            Goal::Durable(position) => position,
            Goal::Stated(position) => {
                state.wants_closing = true;
                position
            }
            Goal::FreeSpace { .. } => LogPosition(state.appended),
        };
        let mut tell = state.leave_to_writer(until);
        if let Goal::FreeSpace { len_bytes, .. } = *goal {
            tell |= core.ask_for_segments(&mut state, len_bytes);
        }
        drop(state);
        drop(before);
        if tell {
            core.notifier.notify();
        }
        Poll::Pending
    }

    fn wait(&mut self) -> Result<()> {
        loop {
            if self.is_durable() {
                return Ok(());
            }
            let Self { core, goal, number } = self;
            let leadership = {
                let mut state = core.lock();
                if let Some(outcome) = core.reached(&state, *goal) {
                    let gone = state.waiters.remove(number, *goal);
                    state.count_refusal(&outcome);
                    // Perhaps it was woken to be the leader and a checkpoint freed space first. Pending fragments may
                    // be other commits', so leadership is passed on.
                    let to_pass_on = match goal {
                        Goal::FreeSpace { .. } if !state.pending.is_empty() => core.try_to_lead(&mut state),
                        _ => None,
                    };
                    drop(state);
                    drop((gone, to_pass_on));
                    return outcome;
                }
                if let Goal::FreeSpace { len_bytes, .. } = *goal
                    && state.growth.failure.is_none()
                    && core.has_log_space(&state, len_bytes)
                    && !core.has_segments(&state, len_bytes)
                {
                    let seen = state.slots;
                    drop(state);
                    if let Err(error) = core.grow_or_release(seen) {
                        core.note_failure(error);
                    }
                    continue;
                }
                state.wants_closing |= matches!(goal, Goal::Stated(_));
                let leadership = if state.has_work() { core.try_to_lead(&mut state) } else { None };
                match leadership {
                    Some(_) => drop(state.waiters.remove(number, *goal)),
                    None => drop(state.waiters.add(number, *goal, Waiter::Thread(std::thread::current()))),
                }
                leadership
            };
            match leadership {
                Some(leadership) => leadership.lead(Some(*goal)),
                // The present leader, or the thread that makes a checkpoint, wakes this thread when its goal is
                // reached or to take over.
                None => std::thread::park(),
            }
        }
    }
}

impl Drop for LogTicket {
    fn drop(&mut self) {
        if !self.core.process.is_here() || self.is_durable() {
            return;
        }
        let mut state = self.core.lock();
        let gone = state.waiters.remove(&mut self.number, self.goal);
        let tell = match self.goal {
            // The ticket is gone, but its commit must still become durable and visible.
            Goal::Durable(position) | Goal::Stated(position) => state.leave_to_writer(position),
            Goal::FreeSpace { .. } => false,
        };
        drop(state);
        drop(gone);
        if tell {
            self.core.notifier.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nofault_sim::{SimOptions, SimWorld};

    use super::super::{Log, LogOptions, LogPurpose, create_log};
    use super::*;
    use crate::buffer_pool::tests::wakers::Probe;
    use crate::format::CommitSeq;
    use crate::pages::{CommitLog as _, Durability, Ticket as _};

    const OPTIONS: LogOptions = LogOptions {
        file_id: 5,
        segment_bytes: 32768,
        log_bytes: 1 << 17,
        buffer_bytes: 1 << 16,
        seed: Some(5),
        purpose: LogPurpose::Write,
    };

    #[test]
    fn the_log_calls_no_waker_under_its_lock() {
        let world = SimWorld::new(6, SimOptions::calm());
        let disk = world.directory().create("log").unwrap();
        let log = Log::open(&*disk, OPTIONS, create_log(&*disk, &OPTIONS).unwrap().1).unwrap();
        let of_waker = Arc::clone(&log.0);
        let probe = Probe::new(move || of_waker.state.try_lock().is_err());
        let mut commit = 0;
        let mut begin = || {
            commit += 1;
            let position = log.append(CommitSeq(commit), &[&[1; 10]], Some(Durability::Sync)).unwrap();
            let mut ticket = log.durable(position);
            // Polls with another waker each time, so that the waker before it is dropped.
            assert!((0..2).all(|_| ticket.poll(&probe.waker()).is_pending()));
            ticket
        };
        // One ticket is dropped, and another is woken by a thread writing for it.
        drop(begin());
        let mut woken = begin();
        let mut last = log.durable(log.append(CommitSeq(3), &[&[1; 10]], Some(Durability::Sync)).unwrap());
        last.wait().unwrap();
        assert!(woken.poll(&probe.waker()).is_ready());
        probe.check(&["clone", "wake", "drop"]);
    }

    #[test]
    fn a_thread_woken_as_leader_that_finds_free_space_leaves_the_commits_of_tasks_to_the_writer() {
        let world = SimWorld::new(6, SimOptions::calm());
        let disk = world.directory().create("log").unwrap();
        let log = Log::open(&*disk, OPTIONS, create_log(&*disk, &OPTIONS).unwrap().1).unwrap();
        // Prepares every segment that the log may ever use, so that it never grows.
        super::super::tests::prepare_segments(&log, 1 << 17);
        // Simulates a running WAL writer.
        log.0.notifier.set_listening(true);
        log.0.lock().writer_duties.watches = true;
        let append = |commit: u64, len_bytes: usize| {
            log.append(CommitSeq(commit), &[&vec![1; len_bytes]], Some(Durability::Sync))
        };
        let mut commit = 1;
        while log.stats().live_bytes + 10_000 <= OPTIONS.log_bytes {
            log.durable(append(commit, 100).unwrap()).wait().unwrap();
            commit += 1;
        }
        // For the log this thread waits for space, ...
        let mut space = log.await_space(10_000);
        let thread = Waiter::Thread(std::thread::current());
        assert!(log.0.lock().waiters.add(&mut space.number, space.goal, thread).is_none());
        // ... and a task's small commit comes while there is a leader that does not write it.
        let leadership = log.0.try_to_lead(&mut log.0.lock()).unwrap();
        let mut task = log.durable(append(commit, 10).unwrap());
        assert!(task.poll(Waker::noop()).is_pending());
        drop(leadership);
        assert!(log.0.lock().waiters.for_space.is_empty(), "the thread is to lead");
        assert!(!log.0.notifier.wait(None, Some(Duration::ZERO)));
        // A checkpoint, before the thread leads.
        log.recycle(log.anchor_after(CommitSeq(commit - 1)));
        space.wait().unwrap();
        assert!(log.0.notifier.wait(None, Some(Duration::ZERO)), "no thread writes it");
    }
}
