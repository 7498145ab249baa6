//! Decides which thread takes the completions of reads: the pool's completion thread, an executor, or the waiting threads.
//!
//! Until a task waits for a ticket or a long range scan begins, blocking waiters take their completions themselves: that costs
//! them no hop between threads. An executor that polls the queue's descriptor replaces the completion thread, until it leaves
//! completions lying for [`OVERDUE_AFTER`] while tasks wait: then the completion thread takes them, until the executor does
//! again. So an executor that stops polling delays the tasks of others and does not stop them. When no task has
//! waited for a tenth of a second, the completion thread leaves the queue to blocking waiters again; it does not sooner,
//! because each change costs a wake-up.
//!
//! Copying, checking and finding room for the pages that a read brings takes longer than scanning them. A thread that does all
//! of this alone reads no faster than one CPU allows, however far ahead it requests pages; and while it is busy with pages, its
//! requested reads are not submitted. So while a scan is under way the completion thread listens to the queue, as it does for
//! executors, and waiting threads rely on it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nofault_io::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::dispatcher::Dispatcher;
use super::scheduler::Scheduler;
use crate::sync::notifier::Notifier;

/// Time for which the completion thread sleeps between polls when the queue has no descriptor.
const WITHOUT_DESCRIPTOR: Duration = Duration::from_micros(200);
/// Time without waiting tasks after which the completion thread no longer serves tasks.
const QUIET_AFTER: Duration = Duration::from_millis(100);
/// Time for which an executor may leave completions in the queue before the completion thread takes them, and the longest
/// time between two looks of that thread: it takes them before twice this time has passed.
const OVERDUE_AFTER: Duration = Duration::from_millis(50);
/// Added to `CompletionDemand::tasks` when a task begins to wait: one to each half.
const TASK_BEGINS: u64 = 1 << 32 | 1;

/// Counts the users of the completion thread, which decide whether it takes completions, and wakes it.
#[derive(Default)]
pub(crate) struct CompletionDemand {
    notifier: Arc<Notifier>,
    /// Whether the completion thread takes completions for tasks. Set by a task beginning to wait, cleared by the
    /// completion thread.
    serves_tasks: AtomicBool,
    /// The number of tasks that wait, in the lower half; the number of waits begun so far, in the upper half.
    tasks: AtomicU64,
    /// The number of waits begun when the completion thread first found no task waiting, and the time. For that thread.
    quiet: Mutex<Option<(u64, Instant)>>,
    /// Number of executors that take completions themselves.
    executors: AtomicUsize,
    /// Number of times that an executor took completions.
    takes: AtomicU64,
    /// The value of `takes` when the completion thread first found completions in the queue that no executor has taken
    /// since, and the time. For that thread.
    untaken: Mutex<Option<(u64, Instant)>>,
    /// Whether the completion thread takes completions in place of executors. Set by that thread, cleared by an executor.
    replaces_executors: AtomicBool,
    /// Number of long range scans in progress.
    scans: AtomicUsize,
    /// Number of blocking waiters that rely on the completion thread to take their completions.
    reliant: AtomicUsize,
}

impl CompletionDemand {
    /// Returns the notifier of the completion thread.
    pub(crate) fn notifier(&self) -> &Arc<Notifier> {
        &self.notifier
    }

    /// Notes that a task begins to wait: until [`CompletionDemand::end_task`], the completion thread takes completions.
    pub(crate) fn begin_task(&self) {
        // This counts and then looks at the flag; `leave_tasks` clears the flag and then looks at the count. So one of the
        // two sees the other.
        self.tasks.fetch_add(TASK_BEGINS, Ordering::SeqCst);
        if !self.serves_tasks.load(Ordering::SeqCst) {
            self.serves_tasks.store(true, Ordering::SeqCst);
            self.notifier.notify();
        }
    }

    pub(super) fn end_task(&self) {
        self.tasks.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether the completion thread takes completions for tasks, if there is one.
    pub(super) fn serves_tasks(&self) -> bool {
        self.serves_tasks.load(Ordering::Relaxed)
    }

    /// Stops serving tasks if none has waited for some time. Called by the completion thread.
    fn leave_tasks_if_quiet(&self, now: Instant) {
        let tasks = self.tasks.load(Ordering::SeqCst);
        let mut quiet = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        match *quiet {
            _ if tasks as u32 > 0 || !self.serves_tasks() => *quiet = None,
            Some((begun, since)) if begun == tasks >> 32 => {
                if now.saturating_duration_since(since) >= QUIET_AFTER {
                    *quiet = None;
                    self.leave_tasks();
                }
            }
            _ => *quiet = Some((tasks >> 32, now)),
        }
    }

    fn leave_tasks(&self) {
        self.serves_tasks.store(false, Ordering::SeqCst);
        // A task that has begun to wait since either sees that it must set this itself, or is seen here.
        if self.tasks.load(Ordering::SeqCst) as u32 > 0 {
            self.serves_tasks.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn begin_executor(&self) {
        self.executors.fetch_add(1, Ordering::SeqCst);
        self.notifier.notify();
    }

    pub(super) fn end_executor(&self) {
        self.executors.fetch_sub(1, Ordering::SeqCst);
        self.notifier.notify();
    }

    /// Notes that an executor takes completions.
    pub(super) fn note_take(&self) {
        self.takes.fetch_add(1, Ordering::SeqCst);
        if self.replaces_executors.load(Ordering::Relaxed) {
            self.replaces_executors.store(false, Ordering::SeqCst);
        }
    }

    /// Returns whether executors take the completions.
    fn has_executor(&self) -> bool {
        self.executors.load(Ordering::SeqCst) > 0 && !self.replaces_executors.load(Ordering::SeqCst)
    }

    /// Returns the time between two looks at the executors that are to take the completions of tasks; `None` when there is no
    /// task or no such executor.
    pub(crate) fn looks_every(&self) -> Option<Duration> {
        (self.serves_tasks() && self.has_executor()).then_some(OVERDUE_AFTER)
    }

    /// Replaces the executors if they have left completions in the queue for too long. Called by the completion thread, with
    /// the queue's descriptor. Without one nothing shows whether there are completions, and they count as there.
    pub(crate) fn look_at_executors(&self, now: Instant, ready_fd: Option<BorrowedFd<'_>>) {
        let takes = self.takes.load(Ordering::SeqCst);
        let mut untaken = self.untaken.lock().unwrap_or_else(PoisonError::into_inner);
        match *untaken {
            _ if !ready_fd.is_none_or(is_readable) => *untaken = None,
            Some((seen, since)) if seen == takes => {
                if now.saturating_duration_since(since) >= OVERDUE_AFTER {
                    *untaken = None;
                    // An executor that takes at this moment clears it with its next take.
                    self.replaces_executors.store(true, Ordering::SeqCst);
                }
            }
            _ => *untaken = Some((takes, now)),
        }
    }

    fn begin_scan(&self) {
        if self.scans.fetch_add(1, Ordering::SeqCst) == 0 {
            // The completion thread does not poll the queue yet.
            self.notifier.notify();
        }
    }

    fn end_scan(&self) {
        self.scans.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts the calling thread as relying on the completion thread while `wait` runs, so that the completion thread
    /// keeps taking completions even if the range scan ends before. `wait` must check first whether that thread takes
    /// completions.
    pub(super) fn while_reliant<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.reliant.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.reliant.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Returns whether the completion thread, if there is one, will take the completions of a thread that now begins to
    /// wait.
    pub(super) fn is_served(&self) -> bool {
        (self.serves_tasks() || self.scans.load(Ordering::SeqCst) > 0) && !self.has_executor()
    }

    /// Returns whether the completion thread must take completions from the queue. Called by that thread.
    pub(crate) fn is_wanted(&self) -> bool {
        self.leave_tasks_if_quiet(Instant::now());
        let relied_on = || self.scans.load(Ordering::SeqCst) > 0 || self.reliant.load(Ordering::SeqCst) > 0;
        (self.serves_tasks() || relied_on()) && !self.has_executor()
    }

    pub(crate) fn wake(&self) {
        self.notifier.notify();
    }

    /// Puts the completion thread to sleep until there may be completions, or no task has waited for some time. Without users
    /// the queue is not polled: a wake-up for each read of a blocking waiter would only slow the waiter down.
    pub(crate) fn wait(&self, watch: &ReadWatch) {
        let ready = watch.ready_fd();
        self.notifier.wait(ready, Some(if ready.is_some() { QUIET_AFTER } else { WITHOUT_DESCRIPTOR }));
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An interruption is as good as none: the next look finds them.
    poll(&mut watched, Some(&at_once)).is_ok_and(|count| count > 0)
}

/// A long range scan in progress: counted as a user of the completion thread until this is dropped.
pub(crate) struct ServedScan(Arc<CompletionDemand>);

impl ServedScan {
    pub(super) fn new(demand: &Arc<CompletionDemand>) -> Self {
        demand.begin_scan();
        Self(Arc::clone(demand))
    }
}

impl Drop for ServedScan {
    fn drop(&mut self) {
        self.0.end_scan();
    }
}

/// A watch over the read queue, which ends when this is dropped: while one lives, the queue keeps its descriptor, for a thread or an
/// executor to poll. A queue at rest may have no descriptor: one on a ring borrows the ring for its operations, and for these watches.
pub(crate) struct ReadWatch {
    scheduler: Arc<Scheduler>,
    ready_fd: Option<OwnedFd>,
}

impl ReadWatch {
    /// Begins a watch. Waits for the thread with the queue.
    pub(super) fn begin(scheduler: &Arc<Scheduler>) -> Self {
        Self { ready_fd: scheduler.begin_watch(), scheduler: Arc::clone(scheduler) }
    }

    /// Returns a descriptor that is readable when the queue has completions; `None` when the queue has none, or the process none
    /// left.
    pub(crate) fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready_fd.as_ref().map(AsFd::as_fd)
    }

    /// Takes the descriptor out of the watch, which must outlive its use.
    pub(super) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.ready_fd.take()
    }
}

impl Drop for ReadWatch {
    fn drop(&mut self) {
        self.scheduler.end_watch();
    }
}

/// The right of an executor to take completions itself. While such a right exists and is used, the completion
/// thread is idle.
pub(crate) struct ReadCompletions {
    /// The process with the queue.
    process: Process,
    demand: Arc<CompletionDemand>,
    dispatcher: Arc<Dispatcher>,
    ready_fd: OwnedFd,
    _watch: ReadWatch,
}

impl ReadCompletions {
    /// Creates the right of an executor; `None` when the queue has no descriptor that the executor could poll.
    pub(super) fn new(
        demand: &Arc<CompletionDemand>,
        dispatcher: &Arc<Dispatcher>,
        mut watch: ReadWatch,
    ) -> Option<Self> {
        let (process, ready_fd) = (Process::current(), watch.take_fd()?);
        demand.begin_executor();
        let (demand, dispatcher) = (Arc::clone(demand), Arc::clone(dispatcher));
        Some(Self { process, demand, dispatcher, ready_fd, _watch: watch })
    }

    /// Takes completions and submits queued reads, unless another thread is doing so.
    pub(crate) fn take(&self) {
        if self.process.is_here() {
            self.demand.note_take();
            self.dispatcher.take();
        }
    }
}

impl AsFd for ReadCompletions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready_fd.as_fd()
    }
}

impl Drop for ReadCompletions {
    fn drop(&mut self) {
        if self.process.is_here() {
            self.demand.end_executor();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_completion_thread_serves_tasks_until_none_has_waited_for_a_time() {
        let demand = CompletionDemand::default();
        let start = Instant::now();
        let look = |later_ms: u64| {
            demand.leave_tasks_if_quiet(start + Duration::from_millis(later_ms));
            demand.serves_tasks()
        };
        assert!(!look(0));
        demand.begin_task();
        assert!(look(0) && look(1000), "a task waits");
        demand.begin_task();
        demand.end_task();
        assert!(look(2000), "another task waits");
        demand.end_task();
        assert!(look(3000) && look(3099));
        demand.begin_task();
        demand.end_task();
        assert!(look(3100) && look(3199), "a task has waited in between");
        assert!(!look(3200) && !look(4000));
        demand.begin_task();
        assert!(demand.serves_tasks() && look(5000));
    }

    #[test]
    fn an_executor_that_leaves_completions_in_the_queue_is_replaced_until_it_takes_them() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let demand = CompletionDemand::default();
        let start = Instant::now();
        let look = |later_ms: u64| {
            demand.look_at_executors(start + Duration::from_millis(later_ms), Some(reader.as_fd()));
            demand.is_wanted()
        };
        demand.begin_task();
        assert!(demand.is_wanted() && demand.is_served());
        assert_eq!(demand.looks_every(), None, "there is no executor");
        demand.begin_executor();
        assert_eq!(demand.looks_every(), Some(OVERDUE_AFTER));
        assert!(!look(0) && !look(1000), "there is nothing to take");
        rustix::io::write(&writer, &[1]).unwrap();
        assert!(!look(2000) && !look(2049));
        demand.note_take();
        assert!(!look(2050) && !look(2099), "the executor has taken some");
        assert!(look(2100) && demand.is_served() && look(9000));
        demand.note_take();
        assert!(!demand.is_wanted() && !demand.is_served(), "the executor is back");
        assert!(!look(9001) && look(9051));
        demand.end_executor();
        assert!(demand.is_wanted());
    }

    /// The outcome of the race between a task that begins to wait and the thread that leaves tasks.
    #[test]
    fn a_task_that_begins_to_wait_while_the_thread_leaves_is_served() {
        for _ in 0..1000 {
            let demand = Arc::new(CompletionDemand::default());
            demand.begin_task();
            demand.end_task();
            let task = std::thread::spawn({
                let demand = Arc::clone(&demand);
                move || demand.begin_task()
            });
            demand.leave_tasks();
            task.join().unwrap();
            assert!(demand.serves_tasks());
        }
    }
}
