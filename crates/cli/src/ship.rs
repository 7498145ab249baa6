//! `nofault ship` and `nofault restore`: a database to and from object storage.
//!
//! `ship` ships all commits, and ends. A database that an application uses is shipped by the application itself: nothing else may open it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use nofault::CommitSeq;
use nofault::blocking::Db;
use nofault_lab::error::LabError;
use nofault_lab::format;
use nofault_ship::{Address, ErrorKind, Point, Ship, ShipOptions, history, restore_with_progress, verify};
use tokio::runtime::Runtime;

use crate::db::{self, Meter};
use crate::output::{log, print, serde_text};
use crate::ship_args::{RestoreArguments, ShipArguments};
use crate::signals::Signals;

/// Time between two looks at whether the user stops the command.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The exit code for an error of shipping, by the error's kind.
pub(crate) fn exit_code(error: &nofault_ship::Error) -> u8 {
    match (error.kind(), error.database()) {
        (_, Some(error)) => db::exit_code(error),
        (ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::InvalidCall, _) => 2,
        (ErrorKind::Fenced, _) => 5,
        (ErrorKind::Corrupt, _) => db::DAMAGED,
        (ErrorKind::Unsupported, _) => 7,
        _ => 9,
    }
}

/// Ships all commits of a database, and ends.
pub(crate) fn ship(arguments: &ShipArguments, signals: &Signals) -> Result<ExitCode> {
    let ShipArguments { path, to, keep, whole, json, quiet, open } = arguments;
    // A wrong address is reported before anything is opened.
    let Address { store, name, single_writer, .. } = Address::parse(to)?;
    let db = Db::open(path, &open.watched(path))?;
    let options = ShipOptions {
        keep: *keep,
        begin_with_base: *whole,
        single_writer,
        every: Duration::ZERO,
        ..ShipOptions::new(name)
    };
    let mut meter = Meter::new("shipped", "objects", *quiet);
    let shipped = runtime()?.block_on(async {
        let handle = db.asynchronous();
        let begun = Ship::start(&handle, store, options);
        let ship = until_cancelled(&signals.stop, begun, || {}).await??;
        let mut failures = 0;
        let show = || {
            let stats = ship.stats();
            meter.set(stats.objects_put, stats.bytes_put);
            if stats.requests_failed > failures && !quiet {
                log(&format!(
                    "nofault: {} requests to the store have failed; they are made again",
                    stats.requests_failed
                ));
            }
            failures = failures.max(stats.requests_failed);
        };
        let commit = until_cancelled(&signals.stop, ship.durable(), show).await??;
        let stats = ship.stats();
        meter.set(stats.objects_put, stats.bytes_put);
        ship.close().await?;
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
        log(&format!("{to} has everything up to commit {commit}: {how} was shipped"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Restores a database, or prints the points that can be restored.
pub(crate) fn restore(arguments: &RestoreArguments, signals: &Signals) -> Result<ExitCode> {
    let RestoreArguments { from, folder, time, commit, list, check, json, quiet, open } = arguments;
    let Address { store, name, .. } = Address::parse(from)?;
    let runtime = runtime()?;
    if *check {
        let found = runtime.block_on(until_cancelled(&signals.stop, verify(store, &name), || {}))??;
        return report(&found, *json);
    }
    let Some(folder) = folder.as_deref().filter(|_| !list) else {
        let spans = runtime.block_on(until_cancelled(&signals.stop, history(store, &name), || {}))??;
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
    let restored = runtime.block_on(until_cancelled(&signals.stop, work, || {}))??;
    meter.finish();
    if *json {
        let answer = serde_json::json!({ "commit": restored.commit.0, "time": ms(restored.time) });
        print(&serde_text(&answer)?)?;
    } else {
        log(&format!(
            "{} has the state after commit {} of {}",
            folder.display(),
            restored.commit,
            humantime::format_rfc3339_millis(restored.time)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the points that can be restored.
fn print_spans(spans: &[nofault_ship::Span], json: bool) -> Result<ExitCode> {
    if json {
        let answer = spans.iter().map(|span| {
            serde_json::json!({
                "database": span.database, "first": span.first.0, "first_time": ms(span.first_time), "last": span.last.0,
                "last_time": ms(span.last_time), "bases": span.bases, "increments": span.increments, "bytes": span.bytes,
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
        });
        print(&serde_text(&answer)?)?;
    } else {
        found.problems.iter().try_for_each(|problem| print(problem))?;
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

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().context("start the threads")
}

/// Waits for work until the user stops the command; calls `show` at intervals.
async fn until_cancelled<T>(cancel: &AtomicBool, work: impl Future<Output = T>, mut show: impl FnMut()) -> Result<T> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            () = tokio::time::sleep(LOOK_EVERY) => {
                show();
                if cancel.load(Ordering::Relaxed) {
                    return Err(LabError::interrupted().into());
                }
            }
        }
    }
}
