//! `nofault ship` and `nofault restore`: a database to and from object storage.
//!
//! `ship` ships all commits, and ends. A database that an application uses is shipped by the application itself: nothing else may open it.

use std::ffi::OsStr;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use nofault::CommitSeq;
use nofault::blocking::Db;
use nofault_lab::error::LabError;
use nofault_lab::format;
use nofault_lab::paths::shown;
use nofault_ship::{
    Address, ErrorKind, Point, RestoredPoint, Ship, ShipOptions, history, rebuild, restore_with_progress, verify,
};
use tokio::runtime::Runtime;

use crate::db::{self, Meter};
use crate::output::{log, print, serde_text};
use crate::ship_args::{RestoreArguments, ShipArguments};
use crate::signals::Signals;

/// Time between two looks at whether the user stops the command.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Bounds on the time after which a request counts as failed.
const REQUEST_AT_LEAST: Duration = Duration::from_secs(1);
const REQUEST_AT_MOST: Duration = Duration::from_secs(60);

/// Most threads for calls waiting for a folder: as many as objects are read at the same time.
const WAITING_THREADS: usize = 8;

/// The exit code for an error of shipping, by the error's kind.
pub(crate) fn exit_code(error: &nofault_ship::Error) -> u8 {
    match (error.kind(), error.database()) {
        (_, Some(error)) => db::exit_code(error),
        (ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::InvalidCall, _) => 2,
        (ErrorKind::NoPermission, _) => 3,
        (ErrorKind::NoSpace, _) => 4,
        (ErrorKind::Fenced | ErrorKind::Busy, _) => 5,
        (ErrorKind::Corrupt, _) => db::DAMAGED,
        (ErrorKind::Unsupported, _) => 7,
        (ErrorKind::NoResources, _) => 10,
        // `Refused` and `Store` are of the system.
        _ => 9,
    }
}

/// Opens the store of an address; one that is no text is a folder.
fn address(given: &OsStr) -> nofault_ship::Result<Address> {
    given.to_str().map_or_else(|| Address::of_folder(Path::new(given)), Address::parse)
}

/// Ships all commits of a database, and ends.
pub(crate) fn ship(arguments: &ShipArguments, signals: &Signals) -> Result<ExitCode> {
    let ShipArguments { path, to, json, quiet, open, .. } = arguments;
    if to.to_str().is_none() {
        // A store whose last part is no text is a folder that must be there; where it cannot be made, the address is wrong.
        let _ = std::fs::create_dir(to);
    }
    // A wrong address is reported before anything is opened.
    let address = address(to)?;
    address.check_target()?;
    let db = Db::open(path, &open.watched(path))?;
    let options = ShipOptions {
        keep: arguments.keep,
        begin_with_base: arguments.whole,
        take_over: arguments.take_over,
        is_clock_trusted: arguments.trust_clock,
        single_writer: arguments.single_writer,
        every: Duration::ZERO,
        start_timeout: arguments.timeout,
        // A request that does not return counts as well.
        request_timeout: arguments.timeout.clamp(REQUEST_AT_LEAST, REQUEST_AT_MOST),
        ..ShipOptions::new(address.name)
    };
    let mut meter = Meter::new("shipped", "objects", *quiet);
    let shipped = runtime()?.block_on(async {
        let handle = db.asynchronous();
        let begun = Ship::start(&handle, address.store, options);
        let ship = until_cancelled(signals.stop, begun, || Ok(())).await??;
        ship.warnings().iter().for_each(|warning| log(&format!("nofault: {warning}")));
        let mut patience = Patience::new(arguments.timeout, *quiet);
        let show = || {
            let stats = ship.stats();
            meter.set(stats.objects_put, stats.bytes_put);
            patience.look(&ship)
        };
        let commit = until_cancelled(signals.stop, ship.durable(), show).await??;
        let stats = ship.stats();
        meter.set(stats.objects_put, stats.bytes_put);
        // Only upkeep is left.
        let closing = tokio::time::timeout(arguments.timeout.max(REQUEST_AT_LEAST), ship.close());
        match until_cancelled(signals.stop, closing, || Ok(())).await? {
            Ok(closed) => closed?,
            Err(_) => log("nofault: everything was shipped; the upkeep of old objects was ended by --timeout, and is left to the next time"),
        }
        anyhow::Ok((commit, stats))
    });
    let (commit, stats) = shipped?;
    meter.finish();
    db.close()?;
    if *json {
        let answer = serde_json::json!({
            "commit": commit.0, "objects": stats.objects_put, "bytes": stats.bytes_put, "bases": stats.bases,
            "increments": stats.increments,
        });
        print(&serde_text(&answer)?)?;
    } else {
        let how = if stats.bases > 0 { "the whole database" } else { "what was new" };
        let to = shown(to);
        log(&format!("{to} has everything up to commit {commit}: {how} was shipped"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The patience with a store whose requests fail.
struct Patience {
    timeout: Duration,
    is_quiet: bool,
    /// The objects that the store had taken, and the requests that had failed, when it took one last; and when that was.
    taken: u64,
    failed_before: u64,
    since: Instant,
    /// The number of failures that was printed last.
    printed: u64,
}

impl Patience {
    fn new(timeout: Duration, is_quiet: bool) -> Self {
        Self { timeout, is_quiet, taken: 0, failed_before: 0, since: Instant::now(), printed: 0 }
    }

    /// Looks at a shipper, and prints the error of requests made again.
    ///
    /// # Errors
    /// The error of the store, when it does not pass by itself or the patience is over.
    fn look(&mut self, ship: &Ship) -> Result<()> {
        let (stats, trouble) = (ship.stats(), ship.trouble());
        if stats.objects_put > self.taken {
            (self.taken, self.failed_before, self.since) = (stats.objects_put, stats.requests_failed, Instant::now());
        }
        let Some(error) = trouble else { return Ok(()) };
        if matches!(error.kind(), ErrorKind::Refused | ErrorKind::NoPermission | ErrorKind::NoResources) {
            return Err(error.into());
        }
        if stats.requests_failed > self.failed_before && self.since.elapsed() >= self.timeout {
            let after = humantime::format_duration(self.timeout);
            return Err(anyhow::Error::from(error).context(format!("the store has taken nothing for {after}")));
        }
        // Pauses between attempts grow, so this does too.
        if stats.requests_failed > self.printed && !self.is_quiet {
            log(&format!("nofault: {} requests have failed and are made again: {error}", stats.requests_failed));
        }
        self.printed = stats.requests_failed;
        Ok(())
    }
}

/// Restores a database, or prints the points that can be restored.
pub(crate) fn restore(arguments: &RestoreArguments, signals: &Signals) -> Result<ExitCode> {
    let RestoreArguments { from, folder, time, commit, list, check, json, quiet, open, .. } = arguments;
    let Address { store, name, .. } = address(from)?;
    let runtime = runtime()?;
    if arguments.rebuild {
        let rebuilt = runtime.block_on(until_cancelled(signals.stop, rebuild(store, &name), || Ok(())))??;
        rebuilt.remarks.iter().for_each(|remark| log(&format!("nofault: {remark}")));
        return print_spans(&rebuilt.spans, *json);
    }
    if *check {
        let found = runtime.block_on(until_cancelled(signals.stop, verify(store, &name), || Ok(())))??;
        return report(&found, *json);
    }
    let Some(folder) = folder.as_deref().filter(|_| !list) else {
        let spans = runtime.block_on(until_cancelled(signals.stop, history(store, &name), || Ok(())))??;
        return print_spans(&spans, *json);
    };
    let point = match (time, commit) {
        (Some(time), _) => Point::Time(*time),
        (None, Some(commit)) => Point::Commit(CommitSeq(*commit)),
        (None, None) => Point::Latest,
    };
    let settings = open.settings(Path::new(from));
    let mut meter = Meter::new("restored", "objects", *quiet);
    let work = restore_with_progress(store, &name, point, folder, &settings, |so_far| {
        meter.set(so_far.objects, so_far.bytes);
    });
    let restored = runtime.block_on(until_cancelled(signals.stop, work, || Ok(())))??;
    meter.finish();
    restored.warnings.iter().for_each(|warning| log(&format!("nofault: {warning}")));
    if *json {
        let next = restored.next.map(|(commit, time)| serde_json::json!({ "commit": commit.0, "time": ms(time) }));
        let answer = serde_json::json!({
            "commit": restored.commit.0, "time": ms(restored.time), "next": next, "warnings": restored.warnings,
        });
        print(&serde_text(&answer)?)?;
    } else {
        log(&format!("{} has the state after {}", shown(&folder), describe(&restored)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the restored commit, its time, and the next commit: a time asked for may be one that no commit has.
fn describe(restored: &RestoredPoint) -> String {
    let time = humantime::format_rfc3339_millis;
    let what = format!("commit {} of {}", restored.commit, time(restored.time));
    match restored.next {
        Some((next, of)) => format!("{what}; the next one that was shipped is commit {next} of {}", time(of)),
        None if restored.warnings.is_empty() => format!("{what}; no later one was shipped in this span"),
        None => format!("{what}, the newest one that the manifest names"),
    }
}

/// Prints the points that can be restored.
fn print_spans(spans: &[nofault_ship::Span], json: bool) -> Result<ExitCode> {
    if json {
        let answer = spans.iter().map(|span| {
            serde_json::json!({
                "database": span.database, "first": span.first.0, "first_time": ms(span.first_time), "last": span.last.0,
                "last_time": ms(span.last_time), "bases": span.bases, "increments": span.increments, "bytes": span.bytes,
                "clock_steps": span.clock_steps.iter().map(|step| serde_json::json!({
                    "commit": step.commit.0, "expected": ms(step.expected), "found": ms(step.found),
                })).collect::<Vec<_>>(),
            })
        });
        print(&serde_text(&answer.collect::<Vec<_>>())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for span in spans {
        let [first, last] = [span.first_time, span.last_time].map(humantime::format_rfc3339_millis);
        let (bases, increments, bytes) = (span.bases, span.increments, format::bytes(span.bytes));
        print(&format!(
            "{first} to {last}, commits {} to {}, database {}: {bytes}, copies of the whole: {bases}, increments: {increments}",
            span.first, span.last, span.database
        ))?;
        span.clock_steps.iter().try_for_each(|step| print(&format!("  {step}")))?;
    }
    if spans.is_empty() {
        log("nofault: nothing can be restored yet: the first copy of the whole database is not complete");
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the result of checking.
fn report(found: &nofault_ship::Verification, json: bool) -> Result<ExitCode> {
    if json {
        let answer = serde_json::json!({
            "clean": found.is_clean(), "objects": found.objects, "bytes": found.bytes, "commits": found.commits,
            "bases": found.bases, "increments": found.increments, "unneeded_objects": found.unneeded_objects, "problems": found.problems,
            "remarks": found.remarks,
        });
        print(&serde_text(&answer)?)?;
    } else {
        found.problems.iter().try_for_each(|problem| print(problem))?;
        found.remarks.iter().for_each(|remark| log(&format!("nofault: {remark}")));
        let (objects, bytes) = (found.objects, format::bytes(found.bytes));
        log(&format!(
            "read {objects} objects, {bytes}; copies of the whole: {}, increments: {}, commits after them: {}",
            found.bases, found.increments, found.commits
        ));
    }
    if found.is_clean() {
        return Ok(ExitCode::SUCCESS);
    }
    log(&format!(
        "nofault: {} problems: ship the whole database again (`ship --whole`) while there is one",
        found.problems.len()
    ));
    Ok(ExitCode::from(db::DAMAGED))
}

fn ms(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Starts a runtime on this thread, and the first of its threads for calls that wait.
///
/// # Errors
/// `NoResources` when the process has no descriptors or threads left.
fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // Tokio panics where it has no such thread and can start none, and otherwise uses the threads that it has. So the first one stays.
    builder.enable_time().max_blocking_threads(WAITING_THREADS).thread_keep_alive(Duration::MAX);
    // Needed for the network only. With it tokio may make descriptors for signals, and panics where it can have none.
    #[cfg(feature = "s3")]
    builder.enable_io();
    let runtime = builder.build().map_err(|error| LabError::system("start the runtime", &error))?;
    let no_thread = |error| anyhow::Error::from(LabError::no_thread(&error));
    let is_possible = std::thread::Builder::new().spawn(|| {}).map_err(no_thread)?;
    let _ = is_possible.join();
    let first = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(|| {})));
    let first = first.map_err(|_| no_thread(std::io::ErrorKind::WouldBlock.into()))?;
    runtime.block_on(first).context("start the threads")?;
    Ok(runtime)
}

/// Waits for work until the user stops the command, or `show`, which is called at intervals, fails.
async fn until_cancelled<T>(
    cancel: &AtomicBool,
    work: impl Future<Output = T>,
    mut show: impl FnMut() -> Result<()>,
) -> Result<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            () = tokio::time::sleep(LOOK_EVERY) => {
                show()?;
                if cancel.load(Ordering::Relaxed) {
                    return Err(LabError::interrupted().into());
                }
            }
        }
    }
}
