//! `nofault db`: the engine's calls as commands of the terminal.
//!
//! When the reader of standard output has ended (`| head`), a command ends without an error. Errors keep the engine's
//! kind, which decides the exit code as the lab's do.

mod bench;
mod codec;
mod entries;
mod meter;
mod salvage;
mod stat;
mod tables;
mod top;
mod transfer;
mod verify;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use nofault::blocking::{Db, Table, UnfinishedDb};
use nofault::db::{Compaction, Pace};
use nofault::error::{Error, ErrorKind};
use nofault::settings::{Compression, Settings};
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::format;
use nofault_lab::paths::shown;

pub(crate) use self::meter::Meter;
use self::stat::stat;
use self::transfer::{Dump, Load};
use crate::db_args::{DbArguments, DbCommand, ReadingArguments, TableCompression};
use crate::output::{log, print};
use crate::signals::{STOP, Signals, own_file};

/// Exit code of a command whose key is not in the table.
const NOT_THERE: u8 = 1;
/// Exit code of a command that found a damaged database.
pub(crate) const DAMAGED: u8 = 6;

/// Runs one command of `nofault db`.
pub(crate) fn run(arguments: DbArguments, signals: &Signals) -> Result<ExitCode> {
    match arguments.command {
        DbCommand::Create { path, table, page, stripe_over, compression, open } => {
            let mut settings = open.settings(&path);
            settings.compression = compression.into();
            settings.stripe_folders = stripe_over;
            if let Some(page) = page {
                settings.page_bytes = usize::try_from(page).unwrap_or(usize::MAX);
            }
            signals.heard(|| create(&path, &settings, table))
        }
        DbCommand::Stat { path, count, compressible, json, open } => {
            stat(&open_to_read(&path, &open, &open.settings(&path))?, &path, (count, compressible), json)
        }
        DbCommand::Table(arguments) => tables::run(arguments.command),
        DbCommand::Get { path, key, raw, json, table, open } => {
            entries::get(&open_to_read(&path, &open, &open.settings(&path))?, &key, raw, json, &table)
        }
        DbCommand::Put { path, key, value, expires, create_table, table, open } => {
            entries::put(&open_db(&path, &open.settings(&path))?, &key, value, expires, create_table, &table)
        }
        DbCommand::Delete { path, keys, table, open } => {
            entries::delete(&open_db(&path, &open.settings(&path))?, &keys, &table)
        }
        DbCommand::Scan { path, scan, table, open } => {
            entries::scan(&open_to_read(&path, &open, &open.settings(&path))?, scan, &table)
        }
        DbCommand::Load { path, file, create, table, form, sorted, batch, compression, quiet, open } => {
            let settings = Settings { compression: compression.into(), ..open.watched(&path) };
            let load = Load { file: file.as_deref(), table: &table, form, sorted, batch, quiet };
            if create {
                signals.heard(|| load_new(&load, &path, &settings))
            } else {
                let db = open_db(&path, &settings)?;
                signals.heard(|| load.run(&db))
            }
        }
        DbCommand::Dump { path, out, table, format, quiet, open } => {
            let db = open_to_read(&path, &open, &open.watched(&path))?;
            let dump = || end_of_pipe(Dump { out: out.as_deref(), tables: &table, format, quiet }.run(&db));
            // A file that is not finished is removed.
            if out.is_some() { signals.heard(dump) } else { dump() }
        }
        DbCommand::Verify { path, json, open } => {
            verify::verify(open_to_read(&path, &open, &open.watched(&path))?, json)
        }
        DbCommand::Salvage { source, dest, unsure, json, quiet, open } => {
            salvage::salvage(&source, &dest, open.settings(&source), (unsure, json, quiet), signals)
        }
        DbCommand::Check { path, form, json, open } => verify::check(&path, &open.settings(&path), form, json),
        DbCommand::Compact { path, shrink, json, quiet, open } => {
            compact(&open_db(&path, &open.watched(&path))?, shrink, json, quiet, signals)
        }
        DbCommand::Compression { path, compression, table, open } => {
            set_compression(&open_db(&path, &open.settings(&path))?, &table, compression)
        }
        DbCommand::Backup { path, to, open } => {
            let db = open_to_read(&path, &open, &open.watched(&path))?;
            signals.heard(|| backup(db, &to))
        }
        DbCommand::Top { path, interval, count, json } => {
            signals.are_the_usual_end();
            top::top(&path, interval, count, json)
        }
        DbCommand::Bench(arguments) => bench::run(&arguments, signals),
    }
}

/// The exit code for an error of the engine, by the error's kind.
pub(crate) fn exit_code(error: &Error) -> u8 {
    LabErrorKind::from(error.kind()).exit_code()
}

/// Opens a database for a command that only reads.
fn open_to_read(path: &Path, reading: &ReadingArguments, settings: &Settings) -> Result<Db> {
    if reading.read_only { warned(Db::open_read_only(path, settings)?) } else { open_db(path, settings) }
}

fn open_db(path: &Path, settings: &Settings) -> Result<Db> {
    let db = Db::open(path, settings)?;
    if settings.stats_socket {
        // While the database is open, the socket is of no other process.
        own_file(path.join(top::SOCKET));
    }
    warned(db)
}

/// Says so if a database takes more memory than its cache.
fn warned(db: Db) -> Result<Db> {
    let stats = db.stats();
    if stats.memory_over_bytes > 0 {
        log(&format!(
            "nofault: warning: this database takes {} of memory, {} more than the cache of {}: its page table has outgrown the cache; \
             a larger --cache leaves room for pages",
            format::bytes(stats.memory_bytes),
            format::bytes(stats.memory_over_bytes),
            format::bytes(stats.cache_bytes)
        ));
    }
    Ok(db)
}

fn find_table(db: &Db, name: &str) -> Result<Table> {
    match db.table(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let tables = db.list_tables()?;
            let more = if tables.damage.is_empty() { "" } else { ", and those that damage hides" };
            let why = format!("{error}; its tables are: {}{more}", tables.names.join(", "));
            Err(LabError::new(LabErrorKind::Usage, why).into())
        }
        other => Ok(other?),
    }
}

fn create(path: &Path, settings: &Settings, tables: Vec<String>) -> Result<ExitCode> {
    let new = UnfinishedDb::create(path, settings)?;
    let tables = if tables.is_empty() { vec!["main".to_owned()] } else { tables };
    tables.iter().try_for_each(|name| new.db().create_table(name).map(drop))?;
    new.finish()?;
    log(&format!("created {} with {}", shown(&path), tables.join(", ")));
    Ok(ExitCode::SUCCESS)
}

/// Creates a database and loads entries into it. After an error, or when the user stops the command, nothing is left.
fn load_new(load: &Load<'_>, path: &Path, settings: &Settings) -> Result<ExitCode> {
    // A wrong name of the input is reported before anything is created.
    load.check_input()?;
    let new = UnfinishedDb::create(path, settings)?;
    match load.run(new.db()) {
        Ok(code) => {
            new.finish()?;
            Ok(code)
        }
        Err(error) => {
            drop(new);
            log(&format!("nofault: {}: nothing was loaded, and the new database is removed", shown(&path)));
            Err(error)
        }
    }
}

/// Sets the compression of a table, or prints it.
fn set_compression(db: &Db, name: &str, compression: Option<TableCompression>) -> Result<ExitCode> {
    let table = find_table(db, name)?;
    match compression {
        Some(compression) => db.set_compression(table.name(), compression.into())?,
        None => print(compression_name(db.compression(table.name())?))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn compression_name(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Fast => "fast",
        Compression::Small => "small",
        _ => "unknown",
    }
}

/// Turns a broken pipe into success: the program that read the output has ended.
fn end_of_pipe(result: Result<ExitCode>) -> Result<ExitCode> {
    let gone = |error: &anyhow::Error| {
        error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    };
    match result {
        Err(error) if gone(&error) => Ok(ExitCode::SUCCESS),
        other => other,
    }
}

fn compact(db: &Db, shrink: bool, json: bool, quiet: bool, signals: &Signals) -> Result<ExitCode> {
    let page_bytes = db.page_bytes() as u64;
    let mut meter = Meter::new("compacted", "pages", quiet);
    let go_on = |so_far: &Compaction| {
        let moved = so_far.pages_moved + so_far.pages_moved_from_end;
        meter.set(so_far.pages + so_far.pages_moved_from_end, moved * page_bytes);
        !STOP.load(Ordering::Relaxed)
    };
    let found = signals.heard(|| if shrink { db.shrink(Pace::Full, go_on) } else { db.compact(Pace::Full, go_on) })?;
    meter.finish();
    if json {
        let answer = serde_json::json!({
            "tables": found.tables, "pages": found.pages, "pages_moved": found.pages_moved,
            "pages_without_free_blocks": found.pages_without_free_blocks, "fragments_before": found.fragments_before,
            "fragments_after": found.fragments_after, "page_bytes": page_bytes,
            "leaves_merged": found.leaves_merged, "leaves_without_free_blocks": found.leaves_without_free_blocks, "pages_moved_from_end": found.pages_moved_from_end, "bytes_given_back": found.bytes_given_back,
        });
        print(&serde_json::to_string_pretty(&answer)?)?;
    } else {
        let stayed = match found.pages_without_free_blocks {
            0 => String::new(),
            pages => format!("; {pages} found no free blocks beside each other"),
        };
        let merged = match found.leaves_merged {
            0 => String::new(),
            leaves => format!("; {leaves} leaves were merged into others"),
        };
        let shorter = match found.bytes_given_back {
            0 => "the file is as short as before".to_owned(),
            bytes => format!("the file is {} shorter", format::bytes(bytes)),
        };
        let shorter = format!("{merged}; {shorter}");
        if shrink {
            log(&format!("moved {} pages from the end of the file{shorter}", found.pages_moved_from_end));
            return interrupted_or_done();
        }
        log(&format!(
            "moved {} of {} pages ({}): {} fragments of the file became {}{stayed}{shorter}",
            found.pages_moved,
            found.pages,
            format::bytes(found.pages_moved * page_bytes),
            found.fragments_before,
            found.fragments_after
        ));
    }
    interrupted_or_done()
}

/// Returns the end of a command that Ctrl-C ends early without an error.
fn interrupted_or_done() -> Result<ExitCode> {
    if STOP.load(Ordering::Relaxed) {
        return Err(LabError::interrupted().into());
    }
    Ok(ExitCode::SUCCESS)
}

fn backup(db: Db, to: &Path) -> Result<ExitCode> {
    let (folder, was_there) = (to.to_path_buf(), to.exists());
    match until_cancelled(move || db.backup(folder)) {
        Ok(result) => result?,
        Err(interrupted) => {
            // The copying thread ends with this process; its files are no database.
            if was_there {
                log(&format!(
                    "{}: the unfinished backup is not a database; the next backup to this folder removes it",
                    shown(&to)
                ));
            } else {
                // The thread may make a file between the look at the folder and its removal; in a folder that is removed it makes none.
                (0..100).any(|_| std::fs::remove_dir_all(to).is_ok() || !to.exists());
            }
            return Err(interrupted);
        }
    }
    log(&format!("backup: {}", shown(&to)));
    Ok(ExitCode::SUCCESS)
}

/// Runs a call that cannot be stopped on a dedicated thread. When the user stops the command, the thread is abandoned
/// and the process ends, which does a database no harm.
fn until_cancelled<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R> {
    let (sender, results) = std::sync::mpsc::channel();
    let worker = std::thread::Builder::new().name("nofault-db".into()).spawn(move || sender.send(work()));
    let worker = worker.map_err(|error| LabError::no_thread(&error))?;
    loop {
        match results.recv_timeout(Duration::from_millis(100)) {
            Ok(answer) => {
                // The result has arrived, so the thread is about to end.
                let _ = worker.join();
                return Ok(answer);
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) if STOP.load(Ordering::Relaxed) => {
                return Err(LabError::interrupted().into());
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => anyhow::bail!("the call ended without a result"),
        }
    }
}
