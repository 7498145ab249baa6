//! Judges the clock before history is forgotten by it. A clock can be wrong for one run, and forgotten history is gone.
//!
//! Each look at the clock leaves a mark in the manifest: the time that it showed, and how long the machine was up. A later look on
//! the same start of the machine knows by that how much time has passed, without the clock. After another start, or on another
//! machine, the time between is unknown, and counts up to the clock's last time.
//!
//! Kept true by: the time up to which history is forgotten is at most a day ahead of the believed time, and the believed time
//! grows by time that has verifiably passed, by a step of the clock of less than a day, or at another start up to the last look.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::names::random_id;
use crate::object::time_to_ms;

/// Largest difference between the clock and the verified time that counts as a correction of the clock.
const AHEAD_MS: u64 = 24 * 3600 * 1000;
/// Smallest difference by which a clock counts as set back. Smaller ones are ordinary corrections.
const BACK_MS: u64 = 30 * 60 * 1000;

/// A number of this process and the time at which it was made, where the system does not tell how long the machine has been up.
static PROCESS: OnceLock<(String, Instant)> = OnceLock::new();

/// One look at the clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) wall_ms: u64,
    /// The start of the machine.
    pub(crate) boot: String,
    pub(crate) uptime_ms: u64,
}

impl Reading {
    /// Looks at the time of the machine. `wall` is the time by the clock to be judged.
    pub(crate) fn of(wall: SystemTime) -> Self {
        let wall_ms = time_to_ms(wall);
        match uptime() {
            Some((boot, uptime_ms)) => Self { wall_ms, boot, uptime_ms },
            None => {
                // The process counts as the machine.
                let (boot, begun) = PROCESS.get_or_init(|| (random_id(), Instant::now()));
                Self { wall_ms, boot: boot.clone(), uptime_ms: begun.elapsed().as_millis() as u64 }
            }
        }
    }
}

/// Returns the number of this start of the machine and the milliseconds since, suspension included; `None` when the system does not tell.
fn uptime() -> Option<(String, u64)> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds = uptime.split_whitespace().next()?.parse::<f64>().ok()?;
    let since = Duration::try_from_secs_f64(seconds).ok()?;
    Some((boot.trim().to_owned(), since.as_millis() as u64))
}

/// The trace of the last look at the clock in the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockMark {
    /// The time that the clock showed; while it is ahead, the time that it should have shown.
    pub(crate) wall_ms: u64,
    /// The time believed to have come.
    pub(crate) believed_ms: u64,
    boot: String,
    uptime_ms: u64,
    /// Whether the clock was found ahead, and not right since.
    #[serde(default)]
    is_ahead: bool,
}

impl ClockMark {
    /// Returns the time that the clock should show while it is ahead.
    pub(crate) fn expected_instead(&self) -> Option<u64> {
        self.is_ahead.then_some(self.wall_ms)
    }
}

/// A clock that differed from the time that has verifiably passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) expected_ms: u64,
    pub(crate) found_ms: u64,
}

/// Judges a look at the clock by the one before, or without one by the time of the last commit that was shipped. Returns the mark of
/// this look, and the step of the clock if it is seen for the first time. With `is_trusted`, the clock is believed.
pub(crate) fn judge(
    before: Option<&ClockMark>,
    last_commit_ms: Option<u64>,
    now: Reading,
    is_trusted: bool,
) -> (ClockMark, Option<Step>) {
    let Reading { wall_ms, boot, uptime_ms } = now;
    let same_start = before.filter(|it| it.boot == boot && it.uptime_ms <= uptime_ms);
    let passed_ms = same_start.map(|before| uptime_ms - before.uptime_ms);
    let mark = |wall_ms, believed_ms, is_ahead| ClockMark { wall_ms, believed_ms, boot, uptime_ms, is_ahead };
    if is_trusted {
        return (mark(wall_ms, wall_ms, false), None);
    }
    let Some(before) = before else {
        return (mark(wall_ms, wall_ms.min(last_commit_ms.unwrap_or(wall_ms)), false), None);
    };
    let (expected_ms, sure_ms) = match passed_ms {
        Some(passed) => (before.wall_ms.saturating_add(passed), before.believed_ms.saturating_add(passed)),
        None => (before.wall_ms, before.wall_ms),
    };
    let step = Step { expected_ms, found_ms: wall_ms };
    if wall_ms.saturating_add(BACK_MS) < expected_ms {
        return (mark(wall_ms, sure_ms.min(wall_ms), false), Some(step));
    }
    if passed_ms.is_none() {
        return (mark(wall_ms, sure_ms.min(wall_ms), false), None);
    }
    if wall_ms > expected_ms.saturating_add(AHEAD_MS) {
        let is_new = !before.is_ahead;
        return (mark(expected_ms, sure_ms, true), is_new.then_some(step));
    }
    let corrected_ms = sure_ms.saturating_add(wall_ms.saturating_sub(expected_ms)).min(wall_ms);
    (mark(wall_ms, corrected_ms, false), None)
}

/// Returns the latest time up to which history may be forgotten: by the clock, and at most a day ahead of the believed time; by the believed
/// time while the clock is known to be ahead.
pub(crate) fn forgetting_ms(mark: &ClockMark, wall_ms: u64) -> u64 {
    let slack_ms = if mark.is_ahead { 0 } else { AHEAD_MS };
    wall_ms.min(mark.believed_ms.saturating_add(slack_ms))
}

/// Returns whether a commit's time is so far before the one of the commit before it that the clock was set back between them.
pub(crate) fn is_set_back(before_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_add(BACK_MS) < before_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = AHEAD_MS;
    const HOUR: u64 = DAY / 24;

    fn reading(boot: &str, wall_ms: u64, uptime_ms: u64) -> Reading {
        Reading { wall_ms, boot: boot.into(), uptime_ms }
    }

    /// Judges looks one after the other. Returns the times up to which each lets forget, and the number of steps.
    fn forget_by(looks: &[(&str, u64, u64)]) -> (Vec<u64>, usize) {
        let (mut before, mut steps, mut times) = (None, 0, Vec::new());
        for (boot, wall_ms, uptime_ms) in looks {
            let (mark, step) = judge(before.as_ref(), Some(100 * DAY), reading(boot, *wall_ms, *uptime_ms), false);
            times.push(forgetting_ms(&mark, *wall_ms));
            steps += usize::from(step.is_some());
            before = Some(mark);
        }
        (times, steps)
    }

    #[test]
    fn a_clock_that_leaps_ahead_forgets_nothing_however_often_it_is_looked_at() {
        let start = 100 * DAY;
        let looks: Vec<_> = (0..200).map(|at| ("a", start + if at == 0 { 0 } else { 60 * DAY + at }, 5 + at)).collect();
        let (times, steps) = forget_by(&looks);
        assert!(times.iter().all(|time| *time <= start + 200), "{times:?}");
        assert_eq!(steps, 1, "one step, and one warning");
        // Right again: the clock's time counts.
        let right = [looks.clone(), vec![("a", start + 300, 305), ("a", start + 300 + DAY, 305 + DAY)]].concat();
        let (times, _) = forget_by(&right);
        assert_eq!(times[200..], [start + 300, start + 300 + DAY]);
    }

    #[test]
    fn after_another_start_of_the_machine_one_look_forgets_by_the_look_before_it() {
        let start = 100 * DAY;
        // Switched off for 50 days, and then looked at for two days.
        let (times, steps) = forget_by(&[
            ("a", start, 9),
            ("b", start + 50 * DAY, 9),
            ("b", start + 51 * DAY, 9 + DAY),
            ("b", start + 52 * DAY, 9 + 2 * DAY),
            ("c", start + 53 * DAY, 3),
        ]);
        assert_eq!(steps, 0);
        assert_eq!(times, [start, start + DAY, start + 2 * DAY, start + 3 * DAY, start + 53 * DAY]);
        // An uptime that is less than before belongs to another container.
        assert_eq!(forget_by(&[("a", start, 9), ("a", start + 60 * DAY, 3)]).0, [start, start + DAY]);
        // The first look is bounded by the last commit.
        assert_eq!(forget_by(&[("a", 300 * DAY, 0)]).0, [101 * DAY]);
    }

    #[test]
    fn a_clock_that_is_set_back_is_a_step_and_forgets_by_its_own_time() {
        let start = 100 * DAY;
        let (times, steps) = forget_by(&[("a", start, 9), ("a", start - 40 * DAY, 19), ("a", start + 30, 39)]);
        assert_eq!((times[0], times[1], steps), (start, start - 40 * DAY, 2));
        assert!(times[2] <= start - 39 * DAY + 30, "{times:?}");
        // The beginning of 1970, and the last time that there is.
        let (times, _) = forget_by(&[("a", start, 9), ("a", 0, 19), ("b", u64::MAX, 1), ("b", u64::MAX, 2)]);
        assert_eq!(times, [start, 0, DAY, DAY + 1]);
        let (times, steps) =
            forget_by(&[("a", start, 0), ("a", start + 23 * HOUR, HOUR), ("a", start + DAY, 2 * HOUR)]);
        assert_eq!((times, steps), (vec![start, start + 23 * HOUR, start + DAY], 0), "a correction");
    }

    #[test]
    fn a_clock_that_the_caller_vouches_for_is_believed() {
        let (before, _) = judge(None, None, reading("a", DAY, 5), false);
        let (mark, step) = judge(Some(&before), None, reading("a", 90 * DAY, 6), true);
        assert_eq!((forgetting_ms(&mark, 90 * DAY), step), (90 * DAY, None));
    }
}
