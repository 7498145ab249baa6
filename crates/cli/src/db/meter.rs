//! Progress of a long command on standard error: a line that renews itself on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use nofault_lab::format::Unit;

/// Entries, or other things, and bytes done, shown now and then.
pub(crate) struct Meter {
    what: &'static str,
    things: &'static str,
    quiet: bool,
    terminal: bool,
    started: Instant,
    shown: Instant,
    /// Entries so far.
    pub(crate) entries: u64,
    bytes: u64,
    /// Entries and bytes that nothing can take back.
    settled: (u64, u64),
}

impl Meter {
    pub(crate) fn new(what: &'static str, things: &'static str, quiet: bool) -> Self {
        let (now, terminal) = (Instant::now(), std::io::stderr().is_terminal());
        Self { what, things, quiet, terminal, started: now, shown: now, entries: 0, bytes: 0, settled: (0, 0) }
    }

    /// So many things of so many bytes were done until now.
    pub(crate) fn set(&mut self, things: u64, bytes: u64) {
        (self.entries, self.bytes) = (things, bytes);
        self.tick();
    }

    /// One more entry of so many bytes.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes as u64;
        // The clock costs more than the rest.
        if self.entries.is_multiple_of(1024) {
            self.tick();
        }
    }

    /// What was done until now stays, whatever becomes of the rest.
    pub(crate) fn settle(&mut self) {
        self.settled = (self.entries, self.bytes);
    }

    /// It failed: only what is settled was done.
    pub(crate) fn fall_back(&mut self) {
        (self.entries, self.bytes) = self.settled;
    }

    fn tick(&mut self) {
        let every = Duration::from_secs(if self.terminal { 1 } else { 10 });
        if !self.quiet && self.shown.elapsed() >= every {
            self.shown = Instant::now();
            let end = if self.terminal { '\r' } else { '\n' };
            let _ = write!(std::io::stderr(), "{}{end}", self.line());
        }
    }

    /// The last line, which stays.
    pub(crate) fn finish(self) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{}", self.line());
        }
    }

    fn line(&self) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = Unit::BytesPerSecond.show(self.bytes as f64 / seconds.max(1e-9));
        let bytes = nofault_lab::format::bytes(self.bytes);
        format!(
            "{}: {} {}, {bytes} in {}, {rate}  ",
            self.what,
            self.entries,
            self.things,
            nofault_lab::format::duration(seconds)
        )
    }
}
