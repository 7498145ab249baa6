//! How late an executor's own timer fires: the delay that a user of the executor sees when a call blocks its thread.
//!
//! Kept true by: expirations are counted by the kernel, so a tick that the executor did not run in time still counts,
//! as late as it was.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::{LabError, Result};

/// Period of the ticker.
const TICK: Duration = Duration::from_millis(1);

/// A periodic kernel timer watched by an executor. The kernel counts its expirations, so none is lost while the
/// executor is stuck.
pub(crate) struct Ticker {
    timer: AsyncFd<OwnedFd>,
    started: Cell<Instant>,
    fired: Cell<u32>,
    late: RefCell<Vec<Duration>>,
}

impl Ticker {
    /// Creates the timer and registers it with the executor of this thread.
    ///
    /// # Errors
    /// When the system has no timer or poller to give.
    pub(crate) fn prepare() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| LabError::system("make a timer", &error.into()))?;
        let timer = watch(timer)?;
        let late = RefCell::new(Vec::with_capacity(100_000));
        Ok(Self { timer, started: Cell::new(Instant::now()), fired: Cell::new(0), late })
    }

    /// Starts the timer: the first tick is due one period from now.
    ///
    /// # Errors
    /// When the timer cannot be set.
    pub(crate) fn start(&self) -> Result<()> {
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        let every = Itimerspec { it_interval: tick, it_value: tick };
        self.started.set(Instant::now());
        timerfd_settime(self.timer.get_ref().as_fd(), TimerfdTimerFlags::empty(), &every)
            .map_err(|error| LabError::system("set a timer", &error.into()))?;
        Ok(())
    }

    /// Records ticks without end: a task that runs along with the observed tasks.
    pub(crate) async fn run(&self) {
        while let Ok(mut ready) = self.timer.readable().await {
            self.collect();
            ready.clear_ready();
        }
    }

    /// Records the expirations so far: how late each is against its own due time.
    pub(crate) fn collect(&self) {
        let mut count = [0; 8];
        if rustix::io::read(self.timer.get_ref(), &mut count) != Ok(8) {
            return;
        }
        let now = Instant::now();
        for _ in 0..u64::from_ne_bytes(count) {
            self.fired.set(self.fired.get() + 1);
            let due = self.started.get() + TICK * self.fired.get();
            self.late.borrow_mut().push(now.saturating_duration_since(due));
        }
    }

    /// Takes the recorded lateness of each tick.
    pub(crate) fn lateness(&self) -> Vec<Duration> {
        self.late.take()
    }
}

/// Registers a descriptor with the executor's poller.
pub(crate) fn watch(descriptor: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped, and the `AsyncFd` owns it.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }
        .map_err(|error| LabError::system("watch a descriptor", &error.into()))
}
