//! `top`: the counters of a database that another process has open, as that process serves them through a socket.
//!
//! On a terminal the lines are redrawn, elsewhere each look is one line. The database is not opened.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::format::{self, Unit};
use nofault_lab::paths::shown;

use super::end_of_pipe;

/// The socket in the folder of a database.
pub(super) const SOCKET: &str = "stats.nofault/socket";

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Longest time for which an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Lines between two headings, where the output is no terminal.
const HEADING_EVERY: u64 = 20;

/// The counters at one moment.
type Counters = serde_json::Map<String, serde_json::Value>;

/// Looks at a running database until it is closed, `count` times at most.
pub(super) fn top(path: &Path, interval: f64, count: Option<u64>, json: bool) -> Result<ExitCode> {
    let count = count.unwrap_or(if json { 1 } else { u64::MAX });
    let pause = Duration::from_secs_f64(interval);
    let is_terminal = std::io::stdout().is_terminal() && !json;
    let mut before: Option<(Counters, Instant)> = None;
    for look in 0..count {
        let now = match ask(path) {
            Ok(now) => now,
            // It was there before: the process has ended, or has closed the database.
            Err(_) if look > 0 => break,
            Err(error) => return Err(error),
        };
        let at = Instant::now();
        let text = if json {
            format::harmless(&serde_json::to_string(&now)?).into_owned() + "\n"
        } else if is_terminal {
            screen(path, &now, before.as_ref(), at)
        } else {
            line(look, &now, before.as_ref(), at)
        };
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            return end_of_pipe(Err(error).context("write to standard output"));
        }
        drop(out);
        before = Some((now, at));
        if look + 1 < count {
            std::thread::sleep(pause);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the process with the database open for its counters.
fn ask(path: &Path) -> Result<Counters> {
    let refused = |why: String| LabError::new(LabErrorKind::Usage, why);
    let folder = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused(format!("there is no database in {}: check the path", shown(&path))),
        _ => LabError::of_path(shown(&path), &error),
    })?;
    // By descriptor, as names of sockets are short.
    let socket = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
    let not_served = || {
        refused(format!(
            "no process serves counters of a database in {}: it is not open, or its program does not serve them (setting \
             `stats_socket`)",
            shown(&path)
        ))
    };
    let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => not_served(),
        _ => LabError::system(format_args!("ask for the counters of {}", shown(&path)), &error),
    })?;
    let mut answer = String::new();
    let read = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer));
    match read {
        // The database was closed between the connection and the answer.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(not_served().into()),
        Err(error) => {
            return Err(LabError::system(format_args!("read the counters of {}", shown(&path)), &error).into());
        }
        Ok(0) => return Err(not_served().into()),
        Ok(_) => {}
    }
    serde_json::from_str(&answer).with_context(|| format!("the counters of {} cannot be read", shown(&path)))
}

fn number(counters: &Counters, name: &str) -> u64 {
    counters.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// Returns the growth of a counter in a second, since the look before or since the database was opened.
fn rate(name: &str, now: &Counters, before: Option<&(Counters, Instant)>, at: Instant) -> f64 {
    let (earlier, seconds) = match before {
        Some((before, then)) => (number(before, name), (at - *then).as_secs_f64()),
        None => (0, number(now, "open_ms") as f64 / 1000.0),
    };
    number(now, name).saturating_sub(earlier) as f64 / seconds.max(1e-3)
}

/// Returns the value that `percent` percent of the times in a histogram do not exceed, among the times since the look before, or since the
/// database was opened.
fn percentile(name: &str, percent: f64, now: &Counters, before: Option<&(Counters, Instant)>) -> String {
    let buckets = |counters: &Counters| -> BTreeMap<u64, u64> {
        counters
            .get(name)
            .and_then(|buckets| serde_json::from_value(buckets.clone()).ok())
            .map_or_else(BTreeMap::new, |buckets: Vec<_>| buckets.into_iter().collect())
    };
    let mut counts = buckets(now);
    for (greatest, count) in before.map(|(before, _)| buckets(before)).unwrap_or_default() {
        counts.entry(greatest).and_modify(|now| *now = now.saturating_sub(count));
    }
    let rank = (counts.values().sum::<u64>() as f64 * percent / 100.0).ceil() as u64;
    let mut passed = 0;
    let found = counts.iter().find(|(_, count)| {
        passed += **count;
        passed >= rank && rank > 0
    });
    found.map_or("–".into(), |(ns, _)| Unit::Seconds.show(*ns as f64 / 1e9))
}

/// Returns the share of page lookups that found their page in memory, in percent.
fn hit_share(now: &Counters, before: Option<&(Counters, Instant)>, at: Instant) -> String {
    let (hits, reads) = (rate("pages_hit", now, before, at), rate("pages_read", now, before, at));
    if hits + reads > 0.0 { format!("{:.1}", hits / (hits + reads) * 100.0) } else { "–".into() }
}

fn screen(path: &Path, now: &Counters, before: Option<&(Counters, Instant)>, at: Instant) -> String {
    let rate = |name| format::digits(rate(name, now, before, at));
    let bytes = |name| format::bytes(number(now, name));
    let time = |name, percent| percentile(name, percent, now, before);
    let title = format!("{} · process {}", shown(&path), number(now, "process"));
    let seconds = number(now, "open_ms") as f64 / 1000.0;
    let lines = [
        format!("{title} · open for {}", format::duration(seconds)),
        String::new(),
        format!(
            "commits       {:>10} /s   (p50 {}, p99 {}, commit {})",
            rate("commits_durable"),
            time("commit_ns", 50.0),
            time("commit_ns", 99.0),
            number(now, "commit")
        ),
        format!(
            "log           {:>10} writes/s, {} since the checkpoint, {} waits for space",
            rate("log_writes"),
            bytes("log_bytes_live"),
            number(now, "log_space_waits")
        ),
        format!("pages found   {:>10} /s   ({} % in memory)", rate("pages_hit"), hit_share(now, before, at)),
        format!(
            "pages read    {:>10} /s   (p50 {}, p99 {}, {} in flight)",
            rate("pages_read"),
            time("read_ns", 50.0),
            time("read_ns", 99.0),
            number(now, "reads_in_flight")
        ),
        format!(
            "pages written {:>10} /s   ({} changed in memory, {} checkpoints)",
            rate("pages_written"),
            number(now, "pages_dirty"),
            number(now, "checkpoints")
        ),
        format!(
            "memory        {:>10}      (cache {}, {} of old versions)",
            bytes("memory_bytes"),
            bytes("cache_bytes"),
            bytes("snapshot_bytes")
        ),
        format!("data          {:>10}      of a file of {}", bytes("data_bytes_used"), bytes("data_bytes")),
        String::new(),
        "Ctrl-C ends".to_owned(),
    ];
    // Home, and each line up to its end, so that nothing flickers.
    let clear = if before.is_none() { "\x1b[2J" } else { "" };
    lines.iter().fold(format!("{clear}\x1b[H"), |text, line| text + line + "\x1b[K\n") + "\x1b[J"
}

fn line(look: u64, now: &Counters, before: Option<&(Counters, Instant)>, at: Instant) -> String {
    let rate = |name| format::digits(rate(name, now, before, at));
    let heading = "    open  commits/s  commit p99  log writes/s  found/s  in memory %  read/s    read p99  written/s     memory       data\n";
    let heading = if look.is_multiple_of(HEADING_EVERY) { heading } else { "" };
    let (memory, data) = (format::bytes(number(now, "memory_bytes")), format::bytes(number(now, "data_bytes_used")));
    format!(
        "{heading}{:>7.0}s {:>10} {:>11} {:>13} {:>8} {:>12} {:>7} {:>11} {:>10} {:>10} {:>10}\n",
        number(now, "open_ms") as f64 / 1000.0,
        rate("commits_durable"),
        percentile("commit_ns", 99.0, now, before),
        rate("log_writes"),
        rate("pages_hit"),
        hit_share(now, before, at),
        rate("pages_read"),
        percentile("read_ns", 99.0, now, before),
        rate("pages_written"),
        memory,
        data,
    )
}
