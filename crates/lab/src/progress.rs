//! The display of a run in progress: a bar with an ETA on a terminal, a few lines elsewhere, nothing when silenced; a line
//! for each event where the user asks for details. All of it goes to standard error, so that standard output stays clean
//! for tables and JSON.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::format;
use crate::record::{CacheState, Tick, Trial, TrialSpec};

/// The form in which progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Progress bars that are redrawn in place.
    Bars,
    /// Lines, for logs and pipes.
    Lines,
    /// No output.
    Nothing,
}

/// The live progress of one run on standard error.
#[derive(Debug)]
pub struct Progress {
    show: Show,
    /// Whether each event has a line that stays.
    verbose: bool,
    /// Set when the user stops the run.
    stop: &'static AtomicBool,
    bar: ProgressBar,
    planned: Duration,
    behind: Duration,
    /// Number of the current trial and of all trials: `[3/28]`.
    place: String,
    last_line: Instant,
    /// Share of the planned time at which the next line is due, in percent: for a display of few lines.
    next_line_percent: u64,
}

/// Share of the planned time between two lines, in percent.
const LINE_PERCENT: u64 = 20;

impl Progress {
    /// Creates a display of the given form; `verbose` gives each event a line. It shows nothing before the first event. Once `stop` is set,
    /// a reader of its lines that takes none is not waited for.
    pub fn new(show: Show, verbose: bool, stop: &'static AtomicBool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self {
            show,
            verbose,
            stop,
            bar,
            planned: Duration::ZERO,
            behind: Duration::ZERO,
            place: String::new(),
            last_line: Instant::now(),
            next_line_percent: LINE_PERCENT,
        }
    }

    /// Prints a line that stays on the screen, above the bar.
    pub fn print(&self, line: &str) {
        match self.show {
            Show::Bars => self.bar.suspend(|| put_line(line, self.stop)),
            Show::Lines => put_line(line, self.stop),
            Show::Nothing => {}
        }
    }

    /// Prints a text that stays on the screen, broken into lines of the terminal's width and indented to the end of
    /// `head`.
    pub fn say_wrapped(&self, head: &str, text: &str) {
        wrapped(head, text, width()).iter().for_each(|line| self.print(line));
    }

    /// Returns whether each event has a line that stays.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Prints a text as [`Self::say_wrapped`], only where the user asks for details.
    pub fn detail(&self, head: &str, text: &str) {
        if self.verbose {
            self.say_wrapped(head, text);
        }
    }

    /// Begins work of a known number of bytes; `what` describes the work.
    pub fn begin_bytes(&mut self, what: &str, bytes: u64) {
        self.replace_bar(bytes, "{msg} {bar:20} {bytes}/{total_bytes} ETA {eta}");
        self.bar.set_message(what.to_owned());
        if self.show == Show::Lines && self.verbose {
            let line = match bytes {
                0 => what.to_owned(),
                _ => format!("{what}: {}", format::bytes(bytes)),
            };
            put_line(&line, self.stop);
        }
    }

    /// Updates the number of bytes done of the work that [`Self::begin_bytes`] began.
    pub fn at_bytes(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Begins the trials; `planned` is their time altogether.
    pub fn begin_trials(&mut self, planned: Duration) {
        self.planned = planned;
        self.behind = Duration::ZERO;
        self.next_line_percent = LINE_PERCENT;
        let milliseconds = u64::try_from(planned.as_millis()).unwrap_or(u64::MAX);
        self.replace_bar(milliseconds, "{bar:15} {percent:>3} % ETA {eta:4} {wide_msg}");
    }

    /// Begins a trial: shows its number and its description.
    pub fn begin_trial(&mut self, index: usize, count: usize, spec: &TrialSpec) {
        self.place = format!("[{}/{count}]", index + 1);
        let name = describe(spec);
        self.bar.set_message(format!("{} {name}", self.place));
        // A short trial prints only its end.
        if self.show == Show::Lines && self.verbose && spec.duration_s >= 10.0 {
            put_line(&format!("{} {name} begins", self.place), self.stop);
        }
        self.last_line = Instant::now();
    }

    /// Shows a tick of the current trial.
    pub fn tick(&mut self, spec: &TrialSpec, tick: &Tick) {
        let rate = rate(tick.ops, tick.bytes, tick.elapsed_s);
        self.bar.set_position(milliseconds(self.behind) + (tick.at_s.min(spec.duration_s) * 1000.0) as u64);
        self.bar.set_message(format!("{} {} {rate}", self.place, describe(spec)));
        if self.show == Show::Lines && self.verbose && self.last_line.elapsed() > Duration::from_secs(10) {
            self.last_line = Instant::now();
            put_line(&format!("    {:.0} s: {rate}", tick.at_s), self.stop);
        }
    }

    /// Ends a trial; `planned` is its planned time.
    pub fn end_trial(&mut self, trial: &Trial, planned: Duration) {
        self.skip(planned);
        self.few_lines();
        if !self.verbose {
            return;
        }
        let outcome = &trial.outcome;
        let (ops, bytes, elapsed_s) = match &outcome.steady {
            Some(window) => (window.ops, window.bytes, window.elapsed_s),
            None => (outcome.ops, outcome.bytes, outcome.elapsed_s),
        };
        let partial = if outcome.partial { " (cut short)" } else { "" };
        self.print(&format!(
            "{:<8} {:<46} {}{partial}",
            self.place,
            describe(&trial.spec),
            rate(ops, bytes, elapsed_s)
        ));
        for warning in &outcome.warnings {
            self.say_wrapped("         note: ", &warning.text);
        }
    }

    /// Prints a line at each fifth of the planned time, where lines are few.
    fn few_lines(&mut self) {
        let percent = milliseconds(self.behind) * 100 / milliseconds(self.planned).max(1);
        let due = (self.next_line_percent..100).contains(&percent);
        if self.show == Show::Lines && !self.verbose && due {
            self.next_line_percent = percent + LINE_PERCENT - percent % LINE_PERCENT;
            let left = format::duration(self.planned.saturating_sub(self.behind).as_secs_f64());
            put_line(&format!("{} {percent} %, about {left} left", self.place), self.stop);
        }
    }

    /// Takes the planned time of left-out or finished work off the ETA.
    pub fn skip(&mut self, planned: Duration) {
        self.behind += planned;
        self.bar.set_position(milliseconds(self.behind));
    }

    /// Removes the bar from the screen.
    pub fn finish(&mut self) {
        self.bar.finish_and_clear();
    }

    fn replace_bar(&mut self, len: u64, template: &str) {
        self.bar.finish_and_clear();
        let target = match self.show {
            Show::Bars => ProgressDrawTarget::stderr(),
            Show::Lines | Show::Nothing => ProgressDrawTarget::hidden(),
        };
        self.bar = ProgressBar::with_draw_target(Some(len), target);
        // The templates are constants of this file; a wrong one shows the default bar.
        self.bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    }
}

/// Breaks a text into lines of at most `width` columns, indented to the end of `head`. A longer word stays whole.
pub(crate) fn wrapped(head: &str, text: &str, width: usize) -> Vec<String> {
    let indent = head.chars().count();
    let (mut lines, mut line, mut used) = (Vec::new(), head.to_owned(), indent);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > indent && used + 1 + length > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            used = indent;
        } else if used > indent {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    lines.push(line);
    lines
}

/// Width for texts in columns: the terminal's, but at most 120, and 120 without a terminal.
fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(120, |size| usize::from(size.ws_col));
    if columns < 40 { 120 } else { columns.min(120) }
}

/// Bytes that a stream which takes output takes at once: `PIPE_BUF`.
const PIECE_BYTES: usize = 4096;
/// Timeout of one look at whether a stream takes output.
const MOMENT: Duration = Duration::from_millis(50);
/// Longest time for which a reader is waited for once the user has stopped the command.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints a line on standard error, without control characters. An error is ignored, because the reader of the stream may have ended (`2>&1 |
/// head`), and the command continues. A reader that takes nothing is waited for until `stop` is set, and two seconds longer: a write would
/// be restarted after each signal.
pub fn put_line(line: &str, stop: &AtomicBool) {
    let _ = put(&mut std::io::stderr(), &format!("{}\n", format::harmless(line)), stop);
}

/// Writes a text to a stream; waits for its reader as [`put_line`] does.
///
/// # Errors
/// The system's; `TimedOut` where the user has stopped the command and the reader takes nothing.
pub fn put<W: Write + AsFd>(to: &mut W, text: &str, stop: &AtomicBool) -> std::io::Result<()> {
    let mut stopped: Option<Instant> = None;
    for piece in text.as_bytes().chunks(PIECE_BYTES) {
        while !takes_output(to.as_fd(), MOMENT) {
            let is_stopped = stop.load(Ordering::Relaxed);
            if is_stopped && stopped.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
        }
        to.write_all(piece)?;
        to.flush()?;
    }
    Ok(())
}

/// Returns whether a stream takes output, within some time.
pub fn takes_output(stream: BorrowedFd<'_>, time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    let looked = poll(&mut [PollFd::from_borrowed_fd(stream, PollFlags::OUT)], Some(&time));
    // Where it cannot be polled, the write tells.
    looked.map_or_else(|error| error != rustix::io::Errno::INTR, |count| count > 0)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Describes a trial in one line: `random file mmap-random 16 threads`.
pub fn describe(spec: &TrialSpec) -> String {
    let mut line = format!("{} {} {}", spec.experiment, spec.target.label, spec.method);
    if !spec.variant.is_empty() {
        line.push_str(&format!(" {}", spec.variant));
    }
    if spec.cache == CacheState::Warm {
        line.push_str(" warm");
    }
    if spec.params.threads > 1 {
        line.push_str(&format!(" {} threads", spec.params.threads));
    }
    if spec.params.depth > 1 {
        line.push_str(&format!(" depth {}", spec.params.depth));
    }
    for (name, value) in &spec.params.extra {
        line.push_str(&format!(" {name}={value}"));
    }
    line
}

/// Formats operations a second and bytes a second, as MB/s or GB/s.
fn rate(ops: u64, bytes: u64, elapsed_s: f64) -> String {
    let per_s = |count: u64| count as f64 / elapsed_s.max(1e-9);
    let (bytes_per_s, unit) = match per_s(bytes) {
        large if large >= 1e9 => (large / 1e9, "GB/s"),
        small => (small / 1e6, "MB/s"),
    };
    format!("{:>8.0} ops/s {bytes_per_s:>6.1} {unit}", per_s(ops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Params;

    #[test]
    fn the_line_of_a_trial_differs_from_that_of_every_other() {
        let spec = |cache, threads, depth| TrialSpec {
            method: "mmap".into(),
            cache,
            params: Params { threads, depth, ..Params::default() },
            ..crate::experiments::known(crate::experiments::async_hazard::ID)
                .unwrap()
                .plan(&crate::config::Config::default(), &crate::experiment::Available::default())
                .trials
                .remove(0)
        };
        let lines = [
            spec(CacheState::Cold, 1, 1),
            spec(CacheState::Warm, 1, 1),
            spec(CacheState::Cold, 16, 1),
            spec(CacheState::Cold, 1, 64),
        ]
        .map(|spec| describe(&spec));
        assert!(lines[1].contains("warm") && lines[2].contains("16 threads") && lines[3].contains("depth 64"));
        assert!(!lines[0].contains("warm") && !lines[0].contains("threads"), "{}", lines[0]);
    }

    #[test]
    fn a_text_is_broken_between_words_and_stands_below_itself() {
        assert_eq!(wrapped("note: ", "some words that wrap", 16), ["note: some words", "      that wrap"]);
        assert_eq!(wrapped("note: ", "", 16), ["note: "]);
        assert_eq!(wrapped("", "incomprehensibilities are whole", 10), ["incomprehensibilities", "are whole"]);
    }

    #[test]
    fn rates_read_well_at_any_speed() {
        assert_eq!(rate(13_000, 13_000 * 4096, 1.0).trim(), "13000 ops/s   53.2 MB/s");
        assert_eq!(rate(3000, 3_000_000_000, 1.0).trim(), "3000 ops/s    3.0 GB/s");
        assert!(rate(0, 0, 0.0).contains("0 ops/s"));
    }
}
