//! Exhaustive models of the protocols of pool and log between threads: every interleaving, and every reordering that
//! the memory model allows. Each model is the protocol of one module, reduced to the steps that can go wrong.
//!
//! Built only for `cargo xtask models`, because it takes the model checker along.
#![cfg(nofault_models)]

mod blocks_in_memory;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// `buffer_pool::frames`: a frame's bytes and description are written before its number is stored (release), read after
/// the number was loaded (acquire), and written again only when every thread pinned while it could be found
/// has unpinned.
#[test]
fn a_frame_is_never_written_while_a_reader_may_look_at_it() {
    struct Frame {
        commit: AtomicU64,
        bytes: UnsafeCell<u64>,
    }
    struct Pool {
        entry: AtomicUsize,
        pinned: AtomicUsize,
        frames: [Frame; 2],
    }
    loom::model(|| {
        let frame = |commit: u64| Frame { commit: AtomicU64::new(commit), bytes: UnsafeCell::new(commit * 10) };
        let pool =
            Arc::new(Pool { entry: AtomicUsize::new(0), pinned: AtomicUsize::new(0), frames: [frame(1), frame(0)] });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    // The promise of an epoch guard.
                    pool.pinned.fetch_add(1, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                    let frame = &pool.frames[pool.entry.load(Ordering::Acquire)];
                    let commit = frame.commit.load(Ordering::Relaxed);
                    let bytes = frame.bytes.with(|bytes| {
                        // SAFETY: the subject of this model; the checker reports a race if it is wrong.
                        unsafe { *bytes }
                    });
                    assert_eq!(bytes, commit * 10, "a page of two minds");
                    pool.pinned.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        // The writer publishes commit 2 in the free frame, and uses the old one again if it may.
        pool.frames[1].commit.store(2, Ordering::Relaxed);
        pool.frames[1].bytes.with_mut(|bytes| {
            // SAFETY: no other thread can find this frame yet.
            unsafe { *bytes = 20 }
        });
        pool.entry.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if pool.pinned.load(Ordering::SeqCst) == 0 {
            pool.frames[0].commit.store(9, Ordering::Relaxed);
            pool.frames[0].bytes.with_mut(|bytes| {
                // SAFETY: as above.
                unsafe { *bytes = 90 }
            });
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Explores interleavings with up to three preemptions: few enough that the search ends, and enough for every bug that
/// was ever found by these models.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// `buffer_pool::reads` and `buffer_pool::frames::waits`: all waiters that miss one page share one read. The thread that has
/// the queue completes the read for all of them, and hands the queue on. The page is pinned for its waiters from the
/// beginning, and is not evicted before they have unpinned it.
#[test]
fn one_read_serves_all_waiters_and_its_page_stays_until_they_have_unpinned_it() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Entry {
        OnDisk,
        Loading,
        Resident,
    }
    #[derive(Default)]
    struct Waiter {
        state: Mutex<(bool, bool)>,
        changed: Condvar,
    }
    struct Core {
        entry: Mutex<(Entry, usize, Vec<Arc<Waiter>>)>,
        queue: Mutex<usize>,
        queue_waiters: Mutex<Vec<Arc<Waiter>>>,
    }
    fn complete(core: &Core) {
        let mut page = core.entry.lock().unwrap();
        if page.0 == Entry::Loading {
            page.0 = Entry::Resident;
            let waiting = std::mem::take(&mut page.2);
            page.1 += waiting.len();
            for waiter in waiting {
                waiter.state.lock().unwrap().0 = true;
                waiter.changed.notify_all();
            }
        }
    }
    fn load(core: &Core) {
        let waiter = Arc::new(Waiter::default());
        {
            let mut page = core.entry.lock().unwrap();
            if page.0 == Entry::Resident {
                page.1 += 1;
                waiter.state.lock().unwrap().0 = true;
            } else {
                page.0 = Entry::Loading;
                page.2.push(Arc::clone(&waiter));
            }
        }
        while !waiter.state.lock().unwrap().0 {
            let mut queue = core.queue.try_lock();
            if queue.is_err() {
                core.queue_waiters.lock().unwrap().push(Arc::clone(&waiter));
                queue = core.queue.try_lock();
            }
            match queue {
                Ok(mut turns) => {
                    *turns += 1;
                    complete(core);
                }
                Err(_) => {
                    let mut state = waiter.state.lock().unwrap();
                    while !state.0 && !state.1 {
                        state = waiter.changed.wait(state).unwrap();
                    }
                    state.1 = false;
                }
            }
        }
        loop {
            let Some(next) = core.queue_waiters.lock().unwrap().pop() else { break };
            let mut state = next.state.lock().unwrap();
            if !state.0 {
                state.1 = true;
                next.changed.notify_all();
                break;
            }
        }
    }
    model(|| {
        let core = Arc::new(Core {
            entry: Mutex::new((Entry::OnDisk, 0, Vec::new())),
            queue: Mutex::new(0),
            queue_waiters: Mutex::new(Vec::new()),
        });
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let core = Arc::clone(&core);
                thread::spawn(move || {
                    load(&core);
                    let mut page = core.entry.lock().unwrap();
                    assert_eq!(page.0, Entry::Resident, "evicted under a ticket");
                    page.1 -= 1;
                })
            })
            .collect();
        // The eviction clock examines the page.
        let mut page = core.entry.lock().unwrap();
        if page.0 == Entry::Resident && page.1 == 0 {
            page.0 = Entry::OnDisk;
        }
        drop(page);
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(core.entry.lock().unwrap().1, 0, "a pin was lost");
    });
}

/// `buffer_pool::reads::completion_demand`: the completion thread stops serving tasks when none waits, and a task that
/// begins to wait at that moment is served all the same.
#[test]
fn a_task_that_begins_to_wait_while_the_completion_thread_leaves_is_served() {
    loom::model(|| {
        let serves = Arc::new(AtomicBool::new(true));
        let tasks = Arc::new(AtomicU64::new(0));
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let (serves, tasks) = (Arc::clone(&serves), Arc::clone(&tasks));
                thread::spawn(move || {
                    tasks.fetch_add(1, Ordering::SeqCst);
                    // The model checker needs the fences; for the hardware the order of the operations themselves is enough.
                    fence(Ordering::SeqCst);
                    if !serves.load(Ordering::SeqCst) {
                        serves.store(true, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        serves.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if tasks.load(Ordering::SeqCst) > 0 {
            serves.store(true, Ordering::SeqCst);
        }
        waiting.into_iter().for_each(|task| task.join().unwrap());
        assert!(serves.load(Ordering::SeqCst), "a task waits, and no thread takes its completions");
    });
}

/// A model of `wal`: pending fragments, the group-commit leader, and the waiters. It models rules 4 and 5 of that
/// module.
mod log {
    use super::*;

    /// The condition that a thread or a task waits for.
    #[derive(Default)]
    pub(super) struct Parker {
        token: Mutex<bool>,
        changed: Condvar,
    }

    impl Parker {
        pub(super) fn park(&self) {
            let mut token = self.token.lock().unwrap();
            while !*token {
                token = self.changed.wait(token).unwrap();
            }
            *token = false;
        }

        pub(super) fn unpark(&self) {
            *self.token.lock().unwrap() = true;
            self.changed.notify_one();
        }
    }

    #[derive(Clone)]
    struct Waiter {
        position: u64,
        is_thread: bool,
        parker: Arc<Parker>,
    }

    #[derive(Default)]
    struct State {
        appended: u64,
        written: u64,
        leading: bool,
        waiters: Vec<Waiter>,
        writer_until: Option<u64>,
        writer_notified: bool,
    }

    impl State {
        fn must_notify_writer(&mut self) -> bool {
            !self.leading
                && self.written < self.appended
                && self.writer_until >= Some(self.written)
                && !std::mem::replace(&mut self.writer_notified, true)
        }
    }

    pub(super) struct Log {
        state: Mutex<State>,
        pub(super) durable: AtomicU64,
        visible: AtomicU64,
        pub(super) notifier: Parker,
    }

    impl Log {
        pub(super) fn new() -> Arc<Self> {
            let (durable, visible) = (AtomicU64::new(0), AtomicU64::new(0));
            Arc::new(Self { state: Mutex::default(), durable, visible, notifier: Parker::default() })
        }

        fn is_durable(&self, position: u64) -> bool {
            let durable = self.durable.load(Ordering::Acquire) >= position;
            if durable {
                // Relaxed: the acquire above must be enough.
                assert!(self.visible.load(Ordering::Relaxed) >= position, "reported before it is visible");
            }
            durable
        }

        fn append(&self) -> u64 {
            let mut state = self.state.lock().unwrap();
            state.appended += 1;
            state.appended
        }

        /// Writes until `goal` is durable, or nothing is pending.
        fn lead(&self, goal: Option<u64>) {
            let mut wake = Vec::new();
            loop {
                let end = {
                    let state = self.state.lock().unwrap();
                    let there_yet = goal.is_some_and(|goal| self.is_durable(goal));
                    if there_yet || state.written == state.appended {
                        break;
                    }
                    state.appended
                };
                self.state.lock().unwrap().written = end;
                self.visible.store(end, Ordering::Relaxed);
                let mut state = self.state.lock().unwrap();
                state.waiters.retain(|waiter| {
                    let satisfied = waiter.position <= end;
                    if satisfied {
                        wake.push(waiter.clone());
                    }
                    !satisfied
                });
                self.durable.store(end, Ordering::Release);
            }
            let mut state = self.state.lock().unwrap();
            state.leading = false;
            let pending = state.written < state.appended;
            let next_leader = if pending { state.waiters.iter().position(|waiter| waiter.is_thread) } else { None };
            let next_leader = next_leader.map(|at| state.waiters.remove(at));
            let notify = next_leader.is_none() && state.must_notify_writer();
            drop(state);
            next_leader.into_iter().for_each(|next_leader| next_leader.parker.unpark());
            if notify {
                self.notifier.unpark();
            }
            wake.into_iter().for_each(|waiter| waiter.parker.unpark());
        }

        /// Makes a commit on a thread, which waits until it is durable.
        pub(super) fn commit(&self) {
            let position = self.append();
            let parker = Arc::new(Parker::default());
            while !self.is_durable(position) {
                let leads = {
                    let mut state = self.state.lock().unwrap();
                    if self.is_durable(position) {
                        break;
                    }
                    state.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.parker, &parker));
                    let leads = state.written < state.appended && !state.leading;
                    if leads {
                        state.leading = true;
                    } else {
                        state.waiters.push(Waiter { position, is_thread: true, parker: Arc::clone(&parker) });
                    }
                    leads
                };
                if leads { self.lead(Some(position)) } else { parker.park() }
            }
        }

        /// Commits in a task, which may be dropped after its first poll.
        pub(super) fn commit_as_task(&self, goes_away: bool) {
            let position = self.append();
            let parker = Arc::new(Parker::default());
            while !self.is_durable(position) {
                let notify = {
                    let mut state = self.state.lock().unwrap();
                    if self.is_durable(position) {
                        break;
                    }
                    state.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.parker, &parker));
                    if !goes_away {
                        state.waiters.push(Waiter { position, is_thread: false, parker: Arc::clone(&parker) });
                    }
                    state.writer_until = state.writer_until.max(Some(position));
                    state.must_notify_writer()
                };
                if notify {
                    self.notifier.unpark();
                }
                if goes_away {
                    break;
                }
                parker.park();
            }
        }

        /// Runs the WAL writer until the log is durable up to `until`.
        pub(super) fn write_until(&self, until: u64) {
            while self.durable.load(Ordering::Acquire) < until {
                self.notifier.park();
                let leads = {
                    let mut state = self.state.lock().unwrap();
                    state.writer_notified = false;
                    !std::mem::replace(&mut state.leading, true)
                };
                if leads {
                    self.lead(None);
                }
            }
        }
    }
}

/// Committers append, then one of them writes for all. No committer waits for ever, none is woken before its bytes are
/// written and its commit is visible, and no WAL writer is needed.
#[test]
fn no_committer_sleeps_through_the_write_that_makes_it_durable() {
    model(|| {
        let log = log::Log::new();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let log = Arc::clone(&log);
                thread::spawn(move || log.commit())
            })
            .collect();
        log.commit();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(log.durable.load(Ordering::Acquire), 3);
    });
}

/// A leader stops when its own commit is durable; fragments that a task has appended since are left to the WAL
/// writer, also when the task has gone.
#[test]
fn fragments_of_a_task_are_written_whichever_thread_leads_even_when_the_task_has_gone() {
    for goes_away in [false, true] {
        model(move || {
            let log = log::Log::new();
            let writer = {
                let log = Arc::clone(&log);
                thread::spawn(move || log.write_until(2))
            };
            let task = {
                let log = Arc::clone(&log);
                thread::spawn(move || log.commit_as_task(goes_away))
            };
            log.commit();
            task.join().unwrap();
            if !goes_away || log.durable.load(Ordering::Acquire) == 2 {
                // Nothing may be left to do by now: the writer is only stopped.
                assert_eq!(log.durable.load(Ordering::Acquire), 2);
                log.notifier.unpark();
            }
            writer.join().unwrap();
        });
    }
}

/// `sync::notifier`: a thread that finds `notified` set does not write to the descriptor. The listener sees the work
/// that was done before either way of notifying.
#[test]
fn a_listener_sees_the_work_before_every_notification_even_one_that_was_left_out() {
    const WORK: [u64; 2] = [2, 1];
    struct Notifier {
        notified: AtomicBool,
        fd: Mutex<u64>,
        readable: Condvar,
        work: [AtomicU64; 2],
    }
    fn notify(notifier: &Notifier) {
        if !notifier.notified.swap(true, Ordering::AcqRel) {
            *notifier.fd.lock().unwrap() += 1;
            notifier.readable.notify_one();
        }
    }
    model(|| {
        let (notified, fd, readable) = (AtomicBool::new(false), Mutex::new(0), Condvar::new());
        let notifier = Arc::new(Notifier { notified, fd, readable, work: [AtomicU64::new(0), AtomicU64::new(0)] });
        let threads: Vec<_> = (0..2)
            .map(|at| {
                let notifier = Arc::clone(&notifier);
                thread::spawn(move || {
                    for done in 1..=WORK[at] {
                        notifier.work[at].store(done, Ordering::Relaxed);
                        notify(&notifier);
                    }
                })
            })
            .collect();
        // A lost notification makes this wait for ever, which the checker reports.
        while notifier.work.iter().zip(WORK).any(|(work, all)| work.load(Ordering::Relaxed) < all) {
            let mut fd = notifier.fd.lock().unwrap();
            while *fd == 0 {
                fd = notifier.readable.wait(fd).unwrap();
            }
            *fd = 0;
            drop(fd);
            notifier.notified.swap(false, Ordering::AcqRel);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
