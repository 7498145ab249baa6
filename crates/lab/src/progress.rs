//! What a run shows while it runs: bars with an ETA on a terminal, plain lines elsewhere, nothing when asked. All of it
//! goes to standard error, so that standard output stays clean for tables and JSON.

use std::io::Write as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::format;
use crate::record::{Cell, CellSpec, Tick};

/// Where progress goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Bars that redraw themselves.
    Bars,
    /// One line an event, for logs and pipes.
    Lines,
    /// Nothing.
    Nothing,
}

/// Live progress of one run.
#[derive(Debug)]
pub struct Progress {
    show: Show,
    bar: ProgressBar,
    planned: Duration,
    behind: Duration,
    cell_s: f64,
    last_line: Instant,
}

impl Progress {
    /// Progress shown in the given way. Nothing appears before the first event.
    pub fn new(show: Show) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        Self { show, bar, planned: Duration::ZERO, behind: Duration::ZERO, cell_s: 0.0, last_line: Instant::now() }
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        match self.show {
            Show::Bars => self.bar.suspend(|| put(line)),
            Show::Lines => put(line),
            Show::Nothing => {}
        }
    }

    /// Work of a known number of bytes begins.
    pub fn begin_bytes(&mut self, what: &str, bytes: u64) {
        self.replace_bar(bytes, "{msg:40} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}");
        self.bar.set_message(what.to_owned());
        if self.show == Show::Lines {
            put(&format!("{what}: {}", format::bytes(bytes)));
        }
    }

    /// So many of its bytes are done.
    pub fn at_bytes(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// The cells begin: how long all of them will take.
    pub fn begin_cells(&mut self, planned: Duration) {
        self.planned = planned;
        self.behind = Duration::ZERO;
        let milliseconds = u64::try_from(planned.as_millis()).unwrap_or(u64::MAX);
        self.replace_bar(milliseconds, "{bar:30} {percent:>3} % ETA {eta:4} {msg}");
    }

    /// A cell begins: its place among all, and what it is.
    pub fn begin_cell(&mut self, index: usize, count: usize, spec: &CellSpec) {
        self.cell_s = 0.0;
        let name = describe(spec);
        self.bar.set_message(format!("[{}/{count}] {name}", index + 1));
        if self.show == Show::Lines {
            put(&format!("[{}/{count}] {name}", index + 1));
        }
        self.last_line = Instant::now();
    }

    /// A tick of the current cell.
    pub fn tick(&mut self, spec: &CellSpec, tick: &Tick) {
        self.cell_s = tick.at_s;
        let rate = rate(tick.ops, tick.bytes, tick.elapsed_s);
        self.bar.set_position(milliseconds(self.behind) + (tick.at_s.min(spec.duration_s) * 1000.0) as u64);
        self.bar.set_message(format!("{} {rate}", describe(spec)));
        if self.show == Show::Lines && self.last_line.elapsed() > Duration::from_secs(10) {
            self.last_line = Instant::now();
            put(&format!("    {:.0} s: {rate}", tick.at_s));
        }
    }

    /// A cell has ended; `planned` is the time it had been given.
    pub fn end_cell(&mut self, cell: &Cell, planned: Duration) {
        self.skip(planned);
        let outcome = &cell.outcome;
        let (ops, bytes, elapsed_s) = match &outcome.steady {
            Some(window) => (window.ops, window.bytes, window.elapsed_s),
            None => (outcome.ops, outcome.bytes, outcome.elapsed_s),
        };
        let partial = if outcome.partial { " (cut short)" } else { "" };
        self.say(&format!("  {:<58} {}{partial}", describe(&cell.spec), rate(ops, bytes, elapsed_s)));
        for warning in &outcome.warnings {
            self.say(&format!("    note: {warning}"));
        }
    }

    /// Planned work that will not happen: keeps the ETA right.
    pub fn skip(&mut self, planned: Duration) {
        self.behind += planned;
        self.bar.set_position(milliseconds(self.behind));
    }

    /// No bar any more.
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

/// A line on standard error. Whoever reads it may have gone (`2>&1 | head`): the run goes on without them.
fn put(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A cell in one line: `random file mmap-random 16x1`.
pub fn describe(spec: &CellSpec) -> String {
    let mut line = format!("{} {} {}", spec.experiment, spec.target.label, spec.contender);
    if !spec.variant.is_empty() {
        line.push_str(&format!(" {}", spec.variant));
    }
    line.push_str(&format!(" {}x{}", spec.params.threads, spec.params.depth));
    for (name, value) in &spec.params.extra {
        line.push_str(&format!(" {name}={value}"));
    }
    line
}

/// Operations and bytes a second, in the unit that reads best.
fn rate(ops: u64, bytes: u64, elapsed_s: f64) -> String {
    let per_s = |count: u64| count as f64 / elapsed_s.max(1e-9);
    format!("{:>9.0} ops/s {:>7.2} GB/s", per_s(ops), per_s(bytes) / 1e9)
}
