//! Waiting for the time at which a request is due, for loops that do not wait for earlier requests.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use nofault_io::disk::Queue;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::{LabError, Result};
use crate::measure::Worker;

/// Longest sleep before the check whether the trial has ended.
const NAP_MAX: Duration = Duration::from_millis(20);

/// Makes sleeps of the calling thread end on time. With the default slack of the kernel's timers the thread may wake 50 us
/// late, which would count against the method.
pub fn exact_timer() {
    // A refusal only makes the sleeps as exact as they were.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Waits until `due`; returns false when the trial ended before. In the last `awake` before that time the thread spins, because
/// no sleep is exact to the microsecond.
pub fn wait_until(worker: &Worker<'_>, due: Instant, awake: Duration) -> bool {
    while worker.running() {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        match left.checked_sub(awake) {
            Some(sleep) => std::thread::sleep(sleep.min(NAP_MAX)),
            None => std::hint::spin_loop(),
        }
    }
    false
}

/// Sleeps until an operation of a ring has finished, or until `due`.
///
/// # Errors
/// The system's error.
pub fn wait_for_completion(queue: &dyn Queue, due: Instant) -> Result<()> {
    let Some(descriptor) = queue.ready_fd() else { return Ok(()) };
    let left = due.saturating_duration_since(Instant::now()).min(NAP_MAX);
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    match rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(LabError::system("wait for a ring", &error.into())),
    }
}
