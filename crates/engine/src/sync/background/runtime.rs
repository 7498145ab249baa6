//! The threads that the databases of a process share for their background work.
//!
//! Each kind of work has its own threads, which run one round of one database's work at a time; between its rounds work rests
//! without a thread. So a process at rest has one thread for each kind, and the clock, however many databases are open. The first
//! database starts them, and they end with the last.
//!
//! Kept true by:
//! 1. No work waits long for another's: work that finds no idle thread gets a new one, up to the usual number of its kind. Beyond it the
//!    threads of a kind double whenever no round of the kind has ended for a while, as where a disk does not answer: so work behind many
//!    stopped databases waits for a few such times, and not for one of each. Threads without work end soon.
//! 2. No work waits for other work of the same kind, and each kind has a thread at least: where the system has no more threads to give,
//!    work is late, but comes.
//! 3. The clock runs no work, so it is never held up.
//!
//! **Locks**: the list of the process's runtime, a notifier, a runtime's state; work runs under none of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nofault_io::process::{PerProcess, Process};

use crate::error::{Error, Result};

/// Time without work after which a thread ends, unless it is the last of its kind.
const IDLE: Duration = Duration::from_secs(1);
/// Time without the end of a round after which work that waits gets a further thread, and the same for the log, for which commits
/// wait.
const STALL: Duration = Duration::from_millis(100);
const STALL_OF_LOG: Duration = Duration::from_millis(50);
/// Time by which a long pause may be longer than asked for, so that the pauses of many databases end together.
const SLACK: Duration = Duration::from_millis(10);
/// Longest pause that is never prolonged.
const EXACT_MAX: Duration = Duration::from_millis(50);

/// Background work, as far as its threads need it.
pub(super) trait Work: Send + Sync {
    fn kind(&self) -> Kind;

    /// Returns the end of its pause, which the runtime sets. A leaf among the locks.
    fn timer(&self) -> &Mutex<Option<Timer>>;

    /// Resumes the work if it rests, and its pause is over at `now`.
    fn end_pause(self: Arc<Self>, now: Instant);

    /// Runs rounds until the work rests, lets other work go first, or ends.
    fn run(self: Arc<Self>);
}

/// A kind of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes the log.
    Log,
    /// Makes checkpoints.
    Checkpoints,
    /// Writes pages, and keeps frames free.
    Pages,
    /// Takes completions of reads.
    Reads,
    /// Frees the pages of dropped tables.
    Freeing,
    /// Keeps the file short and in order.
    Compaction,
}

const KINDS: [Kind; 6] = [Kind::Log, Kind::Checkpoints, Kind::Pages, Kind::Reads, Kind::Freeing, Kind::Compaction];

impl Kind {
    /// Returns the name of the kind's threads.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Log => "nofault-wal",
            Self::Checkpoints => "nofault-ckpt",
            Self::Pages => "nofault-writer",
            Self::Reads => "nofault-reads",
            Self::Freeing => "nofault-free",
            Self::Compaction => "nofault-compact",
        }
    }

    /// Returns the number of threads up to which work need not wait for one.
    fn threads_usual(self) -> usize {
        match self {
            Self::Log => 3,
            Self::Checkpoints | Self::Pages | Self::Compaction => 2,
            // It keeps a thread for as long as tasks wait for reads.
            Self::Reads => usize::MAX,
            Self::Freeing => 1,
        }
    }

    fn stall(self) -> Duration {
        if self == Self::Log { STALL_OF_LOG } else { STALL }
    }
}

/// The runtime of this process, while a database with background work is open.
static OF_PROCESS: PerProcess<Mutex<Option<Arc<Runtime>>>> = PerProcess::new();

/// The threads of a process, and the work waiting for them.
pub(super) struct Runtime {
    /// The process that started the threads: a forked child has none of them.
    process: Process,
    began: Instant,
    state: Mutex<State>,
    /// Notified when the clock has more to do than it knows of.
    clock: Condvar,
    /// Notified, for each kind, when there is work.
    more: [Condvar; KINDS.len()],
    /// Notified when a thread has ended.
    ended: Condvar,
}

struct State {
    groups: [ThreadGroup; KINDS.len()],
    /// Resting work, by the end of its pause.
    timers: BTreeMap<Timer, Arc<dyn Work>>,
    /// When the clock looks next by itself; `None` when it waits without an end.
    clock_looks: Option<Instant>,
    /// Number of works that have not left.
    works: usize,
    newest: u64,
    threads: usize,
    is_closed: bool,
}

/// The end of a pause, and a number that no other has.
pub(super) type Timer = (Instant, u64);

/// The threads of a kind, and the work for them.
struct ThreadGroup {
    queue: VecDeque<Arc<dyn Work>>,
    threads: usize,
    /// Number of threads that have not looked for work yet: each takes some, as an idle one does.
    starting: usize,
    idle: usize,
    /// When a round ended last, or work began to wait, or a thread was asked for.
    moved: Instant,
    /// Whether the system had no thread at that time.
    was_refused: bool,
}

/// The threads that a kind lacks.
#[derive(Debug, PartialEq, Eq)]
enum Shortage {
    None,
    /// None until then, unless a round ends before.
    Until(Instant),
    Threads(usize),
}

impl ThreadGroup {
    fn shortage(&self, kind: Kind, now: Instant) -> Shortage {
        if self.queue.is_empty() || self.idle + self.starting > 0 {
            // A thread that takes work and leaves some tells the clock.
            return Shortage::None;
        }
        let look = self.moved + kind.stall();
        if look <= now {
            // As many as there are: with one at a time, the last work would wait for one such time for each that is held up.
            return Shortage::Threads(self.queue.len().min(self.threads));
        }
        let is_usual = self.threads < kind.threads_usual() && !self.was_refused;
        if is_usual { Shortage::Threads(1) } else { Shortage::Until(look) }
    }
}

impl Runtime {
    /// Enters work of a kind, and returns the runtime of the process, which has a thread for it.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(super) fn enter(kind: Kind) -> Result<Arc<Self>> {
        let mut of_process = lock(OF_PROCESS.get());
        let runtime = of_process.take().unwrap_or_else(|| Arc::new(Self::new()));
        let started = runtime.start(kind);
        let is_used = {
            let mut state = runtime.lock();
            state.works += usize::from(started.is_ok());
            state.is_closed = state.works == 0;
            !state.is_closed
        };
        if is_used {
            *of_process = Some(Arc::clone(&runtime));
        } else {
            drop(of_process);
            runtime.end();
        }
        started.map(|()| runtime)
    }

    fn new() -> Self {
        let now = Instant::now();
        let group = |_| ThreadGroup {
            queue: VecDeque::new(),
            threads: 0,
            starting: 0,
            idle: 0,
            moved: now,
            was_refused: false,
        };
        let state = State {
            groups: KINDS.map(group),
            timers: BTreeMap::new(),
            clock_looks: None,
            works: 0,
            newest: 0,
            threads: 0,
            is_closed: false,
        };
        let (clock, more, ended) = (Condvar::new(), KINDS.map(|_| Condvar::new()), Condvar::new());
        Self { process: Process::current(), began: now, state: Mutex::new(state), clock, more, ended }
    }

    /// Starts the clock and a thread of the kind, where they are missing.
    fn start(self: &Arc<Self>, kind: Kind) -> Result<()> {
        if self.lock().threads == 0 {
            self.spawn("nofault-clock", Self::keep_time)?;
        }
        if self.lock().groups[kind as usize].threads == 0 {
            self.add_thread(kind)?;
        }
        Ok(())
    }

    fn add_thread(self: &Arc<Self>, kind: Kind) -> Result<()> {
        let count = |change: fn(&mut usize)| {
            let group = &mut self.lock().groups[kind as usize];
            change(&mut group.threads);
            change(&mut group.starting);
        };
        count(|threads| *threads += 1);
        self.spawn(kind.name(), move |runtime| runtime.serve(kind)).inspect_err(|_| count(|threads| *threads -= 1))
    }

    fn spawn(self: &Arc<Self>, name: &str, run: impl FnOnce(&Arc<Self>) + Send + 'static) -> Result<()> {
        let runtime = Arc::clone(self);
        self.lock().threads += 1;
        let started = Builder::new().name(name.into()).spawn(move || {
            super::mark();
            run(&runtime);
            runtime.lock().threads -= 1;
            runtime.ended.notify_all();
        });
        started.map(drop).map_err(|error| {
            self.lock().threads -= 1;
            Error::from_spawn(&error)
        })
    }

    /// Leaves the runtime, which ends its threads when no work is left.
    pub(super) fn leave(&self) {
        if !self.process.is_here() {
            // Its locks may be held by threads that this process does not have.
            return;
        }
        let mut of_process = lock(OF_PROCESS.get());
        let is_last = {
            let mut state = self.lock();
            state.works -= 1;
            state.is_closed = state.works == 0;
            state.is_closed
        };
        if is_last {
            let last = of_process.take();
            drop(of_process);
            drop(last);
            self.end();
        }
    }

    /// Waits for the end of the threads, unless one of them calls.
    fn end(&self) {
        let mut state = self.lock();
        self.clock.notify_all();
        self.more.iter().for_each(Condvar::notify_all);
        while state.threads > 0 && !super::is_here() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives work a thread: it does not rest any more.
    pub(super) fn resume(&self, work: Arc<dyn Work>) {
        if !self.process.is_here() {
            return;
        }
        let kind = work.kind() as usize;
        let mut state = self.lock();
        if let Some(timer) = lock(work.timer()).take() {
            state.timers.remove(&timer);
        }
        let group = &mut state.groups[kind];
        if group.queue.is_empty() {
            group.moved = Instant::now();
        }
        group.queue.push_back(work);
        let has_idle = group.idle > 0;
        drop(state);
        if has_idle { self.more[kind].notify_one() } else { self.clock.notify_one() }
    }

    /// Sets the end of the pause of work that is about to rest.
    pub(super) fn set_timer(&self, work: Arc<dyn Work>, pause: Duration) {
        let mut until = Instant::now() + pause;
        if pause > EXACT_MAX {
            let past = (until - self.began).as_nanos() % SLACK.as_nanos();
            until += SLACK - Duration::from_nanos(past as u64);
        }
        let mut state = self.lock();
        state.newest += 1;
        let timer = (until, state.newest);
        *lock(work.timer()) = Some(timer);
        state.timers.insert(timer, work);
        // Pauses are set and ended early all the time: most ends lie behind a look that the clock has planned for one of them.
        let is_before_look = state.clock_looks.is_none_or(|looks| until < looks);
        drop(state);
        if is_before_look {
            self.clock.notify_one();
        }
    }

    /// Forgets the end of the pause of work that has ended.
    pub(super) fn end_timer(&self, work: &dyn Work) {
        let timer = lock(work.timer()).take();
        let ended = timer.and_then(|timer| self.lock().timers.remove(&timer));
        drop(ended);
    }

    /// Returns whether other work of the kind waits for a thread.
    pub(super) fn is_awaited(&self, kind: Kind) -> bool {
        kind != Kind::Reads && !self.lock().groups[kind as usize].queue.is_empty()
    }

    /// Runs work of a kind until the runtime ends, or there was none for a while and another thread is left.
    fn serve(&self, kind: Kind) {
        let mut state = self.lock();
        state.groups[kind as usize].starting -= 1;
        loop {
            let is_closed = state.is_closed;
            let group = &mut state.groups[kind as usize];
            if let Some(work) = group.queue.pop_front() {
                let (is_awaited, has_idle) = (!group.queue.is_empty(), group.idle > 0);
                drop(state);
                if is_awaited {
                    if has_idle { self.more[kind as usize].notify_one() } else { self.clock.notify_one() }
                }
                work.run();
                state = self.lock();
                state.groups[kind as usize].moved = Instant::now();
                continue;
            }
            if is_closed {
                break;
            }
            group.idle += 1;
            let waited = self.more[kind as usize].wait_timeout(state, IDLE);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            let group = &mut state.groups[kind as usize];
            group.idle -= 1;
            if timeout.timed_out() && group.queue.is_empty() && group.threads > 1 {
                break;
            }
        }
        state.groups[kind as usize].threads -= 1;
    }

    /// Ends the pauses of resting work, and adds threads where work waits for one.
    fn keep_time(self: &Arc<Self>) {
        let mut state = self.lock();
        while !state.is_closed {
            let now = Instant::now();
            let mut over = Vec::new();
            while let Some(first) = state.timers.first_entry()
                && first.key().0 <= now
            {
                over.push(first.remove());
            }
            if !over.is_empty() {
                drop(state);
                over.into_iter().for_each(|work| work.end_pause(now));
                state = self.lock();
                continue;
            }
            let mut next = state.timers.first_key_value().map(|((until, _), _)| *until);
            let mut short_of = None;
            for (kind, group) in KINDS.iter().zip(&state.groups) {
                match group.shortage(*kind, now) {
                    Shortage::None => {}
                    Shortage::Until(look) => next = Some(next.map_or(look, |next| next.min(look))),
                    Shortage::Threads(count) => short_of = Some((*kind, count)),
                }
            }
            if let Some((kind, count)) = short_of {
                drop(state);
                let is_refused = (0..count).any(|_| self.add_thread(kind).is_err());
                state = self.lock();
                let group = &mut state.groups[kind as usize];
                (group.moved, group.was_refused) = (now, is_refused);
                continue;
            }
            state.clock_looks = next;
            state = match next {
                Some(next) => {
                    let left = next.saturating_duration_since(now);
                    self.clock.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.clock.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Waiting(Mutex<Option<Timer>>);

    impl Work for Waiting {
        fn kind(&self) -> Kind {
            Kind::Log
        }

        fn timer(&self) -> &Mutex<Option<Timer>> {
            &self.0
        }

        fn end_pause(self: Arc<Self>, _: Instant) {}

        fn run(self: Arc<Self>) {}
    }

    fn group(works: usize, threads: usize, moved: Instant) -> ThreadGroup {
        let work = |_| Arc::new(Waiting(Mutex::default())) as Arc<dyn Work>;
        let queue = (0..works).map(work).collect();
        ThreadGroup { queue, threads, starting: 0, idle: 0, moved, was_refused: false }
    }

    #[test]
    fn threads_double_while_none_ends_a_round_so_that_no_work_waits_for_each_that_is_held_up() {
        let begun = Instant::now();
        let (mut now, mut threads, mut stalls) = (begun, 1, 0);
        const WORKS: usize = 300;
        while threads < WORKS {
            let group = group(WORKS - threads, threads, now);
            match group.shortage(Kind::Log, now) {
                Shortage::Threads(count) => threads += count,
                Shortage::Until(look) => {
                    (now, stalls) = (look, stalls + 1);
                    let Shortage::Threads(count) = group.shortage(Kind::Log, now) else { panic!("no thread is added") };
                    threads += count;
                }
                Shortage::None => panic!("work waits for ever"),
            }
        }
        assert!(threads == WORKS && stalls <= 7, "{threads} threads after {stalls} stalls");
    }

    #[test]
    fn no_thread_is_added_for_work_that_another_is_about_to_take() {
        let now = Instant::now();
        assert_eq!(group(0, 1, now).shortage(Kind::Log, now + STALL), Shortage::None);
        assert_eq!(ThreadGroup { idle: 1, ..group(9, 3, now) }.shortage(Kind::Log, now + STALL), Shortage::None);
        assert_eq!(ThreadGroup { starting: 1, ..group(9, 3, now) }.shortage(Kind::Reads, now), Shortage::None);
        assert_eq!(group(9, 3, now).shortage(Kind::Reads, now), Shortage::Threads(1));
        let refused = ThreadGroup { was_refused: true, ..group(9, 1, now) };
        assert_eq!(refused.shortage(Kind::Log, now), Shortage::Until(now + STALL_OF_LOG));
    }
}
