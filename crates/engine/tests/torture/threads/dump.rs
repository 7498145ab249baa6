//! Files and history of a failure, written where they can be looked at and checked again.
//!
//! The folder holds the files of the database under `disk`, and `history.txt` with one thing a line, the rest of a line after its
//! first word being fields between blanks. It is written by tests and read by them, so reading stops at the first mistake.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use nofault::settings::Settings;
use nofault_sim::{FileSnapshot, SimOptions, SimWorld};

use super::check::View;
use super::history::{HistoryRecord, Op, Outcome, Write};
use crate::story::{Model, tiny_with};

/// The files of a disk by name, shared with it until one of them changes.
pub(crate) type Files = Vec<(String, FileSnapshot)>;

/// The inputs of a check: the history of the commits, a view, and the disk that it was read from.
#[derive(Debug)]
pub(crate) struct Dump {
    pub(crate) settings: Settings,
    pub(crate) base: Model,
    pub(crate) history: HistoryRecord,
    pub(crate) view: View,
    /// The disk before it was opened; `None` when the view is a snapshot of a running database.
    pub(crate) world: Option<SimWorld>,
}

/// Copies the files as they are now.
pub(crate) fn files(world: &SimWorld) -> Files {
    let names = world.directory().list().unwrap();
    names.into_iter().map(|name| (name.clone(), world.snapshot_file(&name).unwrap())).collect()
}

/// Writes everything to a new folder under the target folder. Returns its path.
pub(crate) fn write(name: &str, dump: &Dump, files: Option<&Files>) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("torture-{name}-{}", std::process::id()));
    let disk = folder.join("disk");
    fs::create_dir_all(&disk).unwrap();
    if let Some(files) = files {
        let world = world_of(files.iter().map(|(name, file)| (name.clone(), file.clone())));
        for (name, _) in files {
            fs::write(disk.join(name), world.read_file(name).unwrap()).unwrap();
        }
    } else {
        fs::remove_dir(&disk).unwrap();
    }
    fs::write(folder.join("history.txt"), text_of(dump)).unwrap();
    folder.display().to_string()
}

fn world_of(files: impl Iterator<Item = (String, FileSnapshot)>) -> SimWorld {
    let world = SimWorld::new(1, SimOptions::calm());
    for (name, file) in files {
        drop(world.directory().create(&name).unwrap());
        world.restore_file(&name, &file).unwrap();
    }
    world.directory().sync().unwrap();
    world
}

/// Reads a dump that [`write`] has written.
pub(crate) fn read(folder: &Path) -> Dump {
    let mut dump = dump_of(&fs::read_to_string(folder.join("history.txt")).unwrap());
    if let Ok(entries) = fs::read_dir(folder.join("disk")) {
        let world = SimWorld::new(1, SimOptions::calm());
        for entry in entries.map(Result::unwrap) {
            let (name, bytes) = (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
            drop(world.directory().create(&name).unwrap());
            world.set_len(&name, bytes.len() as u64).unwrap();
            world.overwrite(&name, 0, &bytes).unwrap();
        }
        world.directory().sync().unwrap();
        dump.world = Some(world);
    }
    dump
}

fn text_of(dump: &Dump) -> String {
    let mut text = String::new();
    let Dump { settings, base, history, view, .. } = dump;
    let Settings { page_bytes, cache_bytes, log_bytes, background_threads, .. } = settings;
    writeln!(text, "settings {page_bytes} {cache_bytes} {log_bytes} {background_threads}").unwrap();
    writeln!(text, "view {} {} {}", view.from, view.until, view.is_snapshot).unwrap();
    writeln!(text, "threads {} {}", history.writers, history.threads.len()).unwrap();
    for (begun, ended) in &history.syncs {
        writeln!(text, "sync {begun} {ended}").unwrap();
    }
    for (thread, ops) in history.threads.iter().enumerate() {
        for op in ops {
            let outcome = match op.outcome {
                Outcome::Unknown => "unknown".into(),
                Outcome::Refused => "refused".into(),
                Outcome::Acknowledged(at) => at.to_string(),
            };
            write!(text, "op {thread} {} {} {outcome} {}", op.id, op.invoked, op.is_sync).unwrap();
            op.writes.iter().for_each(|write| write!(text, " {}", word_of(write)).unwrap());
            text.push('\n');
        }
    }
    for (word, model) in [("base", base), ("found", &view.found)] {
        for (table, rows) in model {
            writeln!(text, "{word} {table}").unwrap();
            rows.iter().for_each(|(key, value)| writeln!(text, "{word} {table} {} {}", hex(key), hex(value)).unwrap());
        }
    }
    text
}

fn word_of(write: &Write) -> String {
    match write {
        Write::Put { table, key, len } => format!("put:{table}:{key}:{len}"),
        Write::Delete { table, key } => format!("delete:{table}:{key}"),
        Write::Append { list } => format!("append:{list}"),
        Write::Create { table } => format!("create:{table}"),
        Write::Load { table, first, count } => format!("load:{table}:{first}:{count}"),
        Write::Drop { table } => format!("drop:{table}"),
    }
}

fn write_of(word: &str) -> Write {
    let parts: Vec<&str> = word.split(':').collect();
    match parts[..] {
        ["put", table, key, len] => Write::Put { table: table.into(), key: number(key), len: number(len) },
        ["delete", table, key] => Write::Delete { table: table.into(), key: number(key) },
        ["append", list] => Write::Append { list: number(list) },
        ["create", table] => Write::Create { table: table.into() },
        ["load", table, first, count] => {
            Write::Load { table: table.into(), first: number(first), count: number(count) }
        }
        ["drop", table] => Write::Drop { table: table.into() },
        _ => panic!("not a write: {word}"),
    }
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

fn hex(bytes: &[u8]) -> String {
    // A mark before it: an empty value is a field as well.
    bytes.iter().fold(String::from("x"), |text, byte| text + &format!("{byte:02x}"))
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.strip_prefix('x').unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn dump_of(text: &str) -> Dump {
    let view = View { found: Model::new(), from: 0, until: 0, is_snapshot: false };
    let mut dump =
        Dump { settings: tiny_with(512), base: Model::new(), history: HistoryRecord::default(), view, world: None };
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            ["settings", page, cache, log, threads] => {
                let (cache_bytes, log_bytes, background_threads) = (number(cache), number(log), number(threads));
                let tiny = tiny_with(number(page));
                dump.settings = Settings { cache_bytes, log_bytes, background_threads, seed: None, ..tiny };
            }
            ["view", from, until, is_snapshot] => {
                (dump.view.from, dump.view.until) = (number(from), number(until));
                dump.view.is_snapshot = number(is_snapshot);
            }
            ["threads", writers, all] => {
                dump.history.writers = number(writers);
                dump.history.threads = vec![Vec::new(); number(all)];
            }
            ["sync", begun, ended] => dump.history.syncs.push((number(begun), number(ended))),
            ["op", thread, id, invoked, outcome, is_sync, ref writes @ ..] => {
                let outcome = match outcome {
                    "unknown" => Outcome::Unknown,
                    "refused" => Outcome::Refused,
                    at => Outcome::Acknowledged(number(at)),
                };
                let writes = writes.iter().map(|word| write_of(word)).collect();
                let op = Op { id: number(id), invoked: number(invoked), outcome, is_sync: number(is_sync), writes };
                dump.history.threads[number::<usize>(thread)].push(op);
            }
            [which @ ("base" | "found"), table, ref row @ ..] => {
                let model = if which == "base" { &mut dump.base } else { &mut dump.view.found };
                let rows = Arc::make_mut(model.entry(table.into()).or_default());
                if let [key, value] = row {
                    rows.insert(bytes_of(key), bytes_of(value).into());
                }
            }
            _ => panic!("not a line of a history: {line}"),
        }
    }
    dump
}

#[test]
fn a_dump_contains_all_that_a_check_needs() {
    let rows = [(b"a key".to_vec(), Arc::from([1, 2, 255])), (vec![], Arc::from([]))];
    let model = |table: &str| Model::from([(table.to_owned(), Arc::new(rows.clone().into()))]);
    let table = || "t".to_owned();
    let writes = vec![
        Write::Put { table: table(), key: 3, len: 70 },
        Write::Delete { table: table(), key: 4 },
        Write::Append { list: 1 },
        Write::Create { table: table() },
        Write::Load { table: table(), first: 1, count: 2 },
        Write::Drop { table: table() },
    ];
    let outcomes = [Outcome::Unknown, Outcome::Refused, Outcome::Acknowledged(9)];
    let op = |outcome| Op { id: 7, invoked: 8, outcome, is_sync: true, writes: writes.clone() };
    let history = HistoryRecord { writers: 1, threads: vec![outcomes.map(op).into(), vec![]], syncs: vec![(1, 2)] };
    let view = View { found: model("found"), from: 5, until: 6, is_snapshot: true };
    let dump = Dump { settings: tiny_with(1024), base: model("base"), history, view, world: None };
    let again = dump_of(&text_of(&dump));
    assert_eq!((again.base, again.history, again.view), (dump.base, dump.history, dump.view));
    assert_eq!(again.settings.page_bytes, 1024);
}
