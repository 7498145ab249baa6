//! Progress of a long command on standard error: a redrawn line on a terminal, a line at intervals elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nofault_lab::format::{self, Unit};

use crate::output::log;

/// Counts entries (or pages) and their bytes, and prints the counts at intervals.
pub(crate) struct Meter {
    what: &'static str,
    things: &'static str,
    quiet: bool,
    /// Whether the meter prints before the end of the command.
    live: bool,
    /// The meter's line on a terminal, cut to the terminal's width and cleared at the end. Hidden without a terminal.
    bar: ProgressBar,
    started: Instant,
    shown: Instant,
    /// Number of entries so far.
    pub(crate) entries: u64,
    bytes: u64,
    /// Numbers of entries and bytes that are committed.
    settled: (u64, u64),
}

impl Meter {
    pub(crate) fn new(what: &'static str, things: &'static str, quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        // The template is a constant; a wrong one would show the default bar.
        bar.set_style(ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
        let now = Instant::now();
        Self { what, things, quiet, live: !quiet, bar, started: now, shown: now, entries: 0, bytes: 0, settled: (0, 0) }
    }

    /// Makes the meter print only at the end, for commands whose entries themselves go to the terminal.
    pub(crate) fn at_end(self) -> Self {
        Self { live: false, ..self }
    }

    /// Sets the numbers of things and bytes done so far.
    pub(crate) fn set(&mut self, things: u64, bytes: u64) {
        (self.entries, self.bytes) = (things, bytes);
        self.tick();
    }

    /// Counts one more entry of `bytes` bytes.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes as u64;
        // Reading the clock costs more than the rest.
        if self.entries.is_multiple_of(1024) {
            self.tick();
        }
    }

    /// Marks all entries so far as committed: a later failure does not undo them.
    pub(crate) fn settle(&mut self) {
        self.settled = (self.entries, self.bytes);
    }

    /// Takes the counts back to the committed entries, after a failure.
    pub(crate) fn fall_back(&mut self) {
        (self.entries, self.bytes) = self.settled;
    }

    fn tick(&mut self) {
        let every = if self.bar.is_hidden() { Duration::from_secs(10) } else { Duration::from_millis(250) };
        if !self.live || self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        match self.bar.is_hidden() {
            true => self.put_line(),
            false => self.bar.set_message(self.line()),
        }
    }

    /// Prints the final counts on a line that stays.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
        if !self.quiet {
            self.put_line();
        }
    }

    /// Prints the counts as a line.
    fn put_line(&self) {
        log(&self.line());
    }

    fn line(&self) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = Unit::BytesPerSecond.show(self.bytes as f64 / seconds.max(1e-9));
        let (bytes, took) = (format::bytes(self.bytes), format::duration(seconds));
        format!("{}: {} {}, {bytes} in {took}, {rate}", self.what, self.entries, self.things)
    }
}
