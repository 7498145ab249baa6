//! `load` and `dump`: entries between a database and a stream of lines, in bounded memory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use nofault::blocking::{Db, Table};
use nofault::db::TableList;
use nofault::error::ErrorKind;
use nofault::{Batch, Durability};
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::lines::{LineError, Lines};
use nofault_lab::paths::shown;

use super::codec::{self, Line};
use super::meter::Meter;
use crate::db_args::{FormArguments, Format};
use crate::input::{Input, failed};
use crate::new_file::NewFile;
use crate::output::log;
use crate::signals::STOP;

/// Bytes of entries at which a batch is committed, even if it has few entries.
const BATCH_BYTES: usize = 8 << 20;
const BUFFER_BYTES: usize = 1 << 20;
/// The defect of a plain line with a carriage return that is not at its end.
const CARRIAGE_RETURN: &str = "has a carriage return in the middle: write \\r for one in a key or value, or take all bytes as they are with --exact";
/// Name of standard input in messages.
const STANDARD: &str = "standard input";

/// An entry of the input, with the name of its table.
struct Entry {
    table: String,
    key: Vec<u8>,
    value: Vec<u8>,
    /// The time at which it expires, if it does.
    expiry: Option<SystemTime>,
}

/// The entries of the input; knows the number of the present line for messages.
struct Entries<'a> {
    lines: Lines<BufReader<Input>>,
    name: String,
    form: FormArguments,
    table: &'a str,
    /// Whether the present line is none of a dump.
    is_wrong_line: bool,
}

impl<'a> Entries<'a> {
    fn open(file: Option<&Path>, form: FormArguments, table: &'a str) -> Result<Self> {
        if form.exact && form.format != Format::Lines {
            let why = "--exact is for --format lines: JSON says itself where its data begins and ends";
            return Err(LabError::new(LabErrorKind::Usage, why).into());
        }
        let (from, name) = match file {
            Some(path) => {
                let from = Input::open(path).map_err(|error| unusable(path, &error))?;
                refuse_folder(path, &from.metadata().map_err(|error| LabError::system(shown(path), &error))?)?;
                (from, shown(path).to_string())
            }
            None => (Input::standard().map_err(|error| LabError::system(STANDARD, &error))?, STANDARD.into()),
        };
        let limit_bytes = usize::try_from(form.line_max).unwrap_or(usize::MAX);
        let lines = Lines::new(BufReader::with_capacity(BUFFER_BYTES, from), limit_bytes);
        Ok(Self { lines: if form.exact { lines.exact() } else { lines }, name, form, table, is_wrong_line: false })
    }

    /// Reads the next line that is not empty: the name of its table, and its entry if it has one.
    fn next(&mut self) -> Result<Option<(String, Option<Entry>)>> {
        loop {
            if STOP.load(Ordering::Relaxed) {
                return Err(LabError::interrupted().into());
            }
            match self.lines.next_line() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.is_wrong_line = matches!(error, LineError::Wide(_) | LineError::NotUtf8 { .. });
                    return Err(unreadable(&self.name, error).into());
                }
            }
            let (text, number) = (self.lines.line(), self.lines.number());
            if number == 1 && self.lines.has_mark() && self.form.format == Format::Lines {
                log(&format!(
                    "nofault: {} begins with a byte order mark, which is left out (not with --exact)",
                    self.name
                ));
            }
            let parsed = match self.form.format {
                Format::Ndjson if text.trim_ascii().is_empty() => continue,
                Format::Ndjson => codec::from_json(text),
                Format::Lines if !self.form.exact && text.contains(&b'\r') => Err(CARRIAGE_RETURN.into()),
                Format::Lines => codec::from_plain(text),
            };
            self.is_wrong_line = parsed.is_err();
            let Line { table, entry, expiry } = parsed
                .map_err(|why| LabError::new(LabErrorKind::Usage, format!("{}, line {number}: {why}", self.name)))?;
            let table = table.unwrap_or_else(|| self.table.to_owned());
            let entry = entry.map(|(key, value)| Entry { table: table.clone(), key, value, expiry });
            return Ok(Some((table, entry)));
        }
    }
}

/// Makes the error for input that cannot be read as lines.
fn unreadable(name: &str, error: LineError) -> LabError {
    match error {
        LineError::System(error) => failed(name, &error),
        LineError::TooLong { .. } => {
            LabError::new(LabErrorKind::Usage, format!("{name}: {error}; a larger --line-max reads it"))
        }
        LineError::Wide(_) | LineError::NotUtf8 { .. } => error.of(name, LabErrorKind::Usage),
    }
}

/// Makes the error for a file of the user's that cannot be opened.
fn unusable(path: &Path, error: &std::io::Error) -> LabError {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            LabError::new(LabErrorKind::Usage, format!("there is no file {}: check the path", shown(&path)))
        }
        _ => LabError::of_path(shown(&path), error),
    }
}

fn refuse_folder(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    if !metadata.is_dir() {
        return Ok(());
    }
    let why =
        format!("{} is a folder: name a file that `db dump` wrote, or copy a database with `db backup`", shown(&path));
    Err(LabError::new(LabErrorKind::Usage, why).into())
}

/// The options of `nofault db load`.
pub(super) struct Load<'a> {
    pub(super) file: Option<&'a Path>,
    pub(super) table: &'a str,
    pub(super) form: FormArguments,
    pub(super) sorted: bool,
    pub(super) batch: u64,
    pub(super) quiet: bool,
}

impl Load<'_> {
    /// Refuses a file that cannot be opened or is a folder.
    ///
    /// # Errors
    /// The error of the system; `Usage` for a folder.
    pub(super) fn check_input(&self) -> Result<()> {
        let Some(path) = self.file else { return Ok(()) };
        // Opening a pipe waits for its writer, and loses the bytes written there if it is closed again.
        let metadata = std::fs::metadata(path).map_err(|error| unusable(path, &error))?;
        if metadata.is_file() {
            File::open(path).map_err(|error| unusable(path, &error))?;
        }
        refuse_folder(path, &metadata)
    }

    pub(super) fn run(&self, db: &Db) -> Result<ExitCode> {
        let mut input = Entries::open(self.file, self.form, self.table)?;
        let mut meter = Meter::new("loaded", "entries", self.quiet);
        let result = if self.sorted {
            load_sorted(db, &mut input, &mut meter)
        } else {
            self.load_batches(db, &mut input, &mut meter)
        };
        if result.is_err() {
            meter.fall_back();
        }
        meter.finish();
        result.map(|()| ExitCode::SUCCESS)
    }

    fn load_batches(&self, db: &Db, input: &mut Entries<'_>, meter: &mut Meter) -> Result<()> {
        let mut table: Option<Table> = None;
        let (mut batch, mut bytes, mut count) = (Batch::new(), 0, 0);
        let commit = |batch: &mut Batch| db.write(std::mem::take(batch), Durability::Sync);
        while let Some((name, entry)) = input.next()? {
            let into = match table.take().filter(|table| table.name() == name) {
                Some(table) => table,
                None => table_or_new(db, &name)?,
            };
            if let Some(Entry { key, value, expiry, .. }) = entry {
                bytes += key.len() + value.len();
                count += 1;
                match expiry {
                    Some(expiry) => batch.put_with_expiry(&into, &key, &value, expiry),
                    None => batch.put(&into, &key, &value),
                };
                meter.add(key.len() + value.len());
            }
            table = Some(into);
            if count >= self.batch || bytes >= BATCH_BYTES {
                commit(&mut batch)?;
                meter.settle();
                (bytes, count) = (0, 0);
            }
        }
        if !batch.is_empty() {
            commit(&mut batch)?;
        }
        Ok(())
    }
}

/// Loads consecutive entries of one table in a single bulk load. An error of the input is returned after the entries
/// before it are loaded.
fn load_sorted(db: &Db, input: &mut Entries<'_>, meter: &mut Meter) -> Result<()> {
    let mut next = input.next()?;
    while let Some((name, first)) = next.take() {
        let table = table_or_new(db, &name)?;
        let Some(first) = first else {
            next = input.next()?;
            continue;
        };
        let mut failed = None;
        let mut entry = Some(first);
        let entries = std::iter::from_fn(|| {
            let Entry { key, value, expiry, .. } = entry.take()?;
            meter.add(key.len() + value.len());
            match input.next() {
                Ok(Some((_, Some(found)))) if found.table == name => entry = Some(found),
                Ok(other) => next = other,
                Err(error) => failed = Some(error),
            }
            Some((key, value, expiry))
        });
        let loaded = table.bulk_load(entries);
        loaded.with_context(|| format!("table {name}: --sorted needs entries in ascending order"))?;
        meter.settle();
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

/// Reads all lines of a dump and counts its tables and entries; or returns the defect of a line that is none of a dump.
///
/// # Errors
/// `Usage` for a wrong call or a line longer than the call allows; the error of the system.
pub(super) fn count_lines(file: &Path, form: FormArguments) -> Result<std::result::Result<(usize, u64), String>> {
    let mut lines = Entries::open(Some(file), form, "main")?;
    let (mut tables, mut entries) = (BTreeSet::new(), 0);
    loop {
        let (table, entry) = match lines.next() {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(error) if lines.is_wrong_line => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        if !tables.contains(&table) {
            tables.insert(table);
        }
        entries += u64::from(entry.is_some());
    }
    Ok(Ok((tables.len(), entries)))
}

/// Opens a table by its name, and creates it if it is missing.
pub(super) fn table_or_new(db: &Db, name: &str) -> nofault::error::Result<Table> {
    match db.table(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => db.create_table(name),
        other => other,
    }
}

/// The options of `nofault db dump`.
pub(super) struct Dump<'a> {
    pub(super) out: Option<&'a Path>,
    pub(super) tables: &'a [String],
    pub(super) format: Format,
    pub(super) quiet: bool,
}

impl Dump<'_> {
    pub(super) fn run(&self, db: &Db) -> Result<ExitCode> {
        let listed = if self.tables.is_empty() { db.list_tables()? } else { TableList::default() };
        let names = if self.tables.is_empty() { listed.names.as_slice() } else { self.tables };
        if self.format == Format::Lines && names.len() != 1 {
            let why = format!("plain lines hold one table and there are {}: choose with --table", names.len());
            return Err(LabError::new(LabErrorKind::Usage, why).into());
        }
        // Tables are opened before the file is created, so that a wrong name leaves no file.
        let tables = names.iter().map(|name| db.table(name)).collect::<nofault::error::Result<Vec<_>>>()?;
        let mut meter = Meter::new("dumped", "entries", self.quiet);
        let result = match self.out {
            Some(path) => {
                let mut file = NewFile::create(path)?;
                self.write(db, &tables, &mut file, &mut meter).and_then(|()| Ok(file.finish()?))
            }
            None => {
                if std::io::stdout().is_terminal() {
                    meter = meter.at_end();
                }
                self.write(db, &tables, &mut std::io::stdout().lock(), &mut meter)
            }
        };
        meter.finish();
        // The readable tables are in the dump by now; the result says that others are missing.
        result
            .and_then(|()| listed.damage.into_iter().next().map_or(Ok(ExitCode::SUCCESS), |damage| Err(damage.into())))
    }

    fn write(&self, db: &Db, tables: &[Table], to: &mut dyn Write, meter: &mut Meter) -> Result<()> {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, to);
        let written = self.write_tables(db, tables, &mut out, meter);
        let written = written.and_then(|()| out.flush().context("write the dump"));
        // The buffer is discarded without another attempt: the failed write has been reported.
        drop(out.into_parts());
        written
    }

    fn write_tables(&self, db: &Db, tables: &[Table], out: &mut impl Write, meter: &mut Meter) -> Result<()> {
        let snapshot = db.snapshot();
        for table in tables {
            if self.format == Format::Ndjson {
                writeln!(out, "{}", codec::to_json(table.name(), None, None, None)?)?;
            }
            let mut range = snapshot.range::<&[u8]>(table, ..)?;
            while let Some((key, value)) = range.next().transpose()? {
                if STOP.load(Ordering::Relaxed) {
                    return Err(LabError::interrupted().into());
                }
                match (self.format, range.expiry()) {
                    (Format::Ndjson, expiry) => {
                        writeln!(out, "{}", codec::to_json(table.name(), Some(&key), Some(&value), expiry)?)?;
                    }
                    (Format::Lines, None) => writeln!(out, "{}\t{}", codec::escape(&key), codec::escape(&value))?,
                    (Format::Lines, Some(_)) => {
                        let name = table.name();
                        let why = format!(
                            "entries of table {name} expire, which plain lines cannot say: use --format ndjson"
                        );
                        return Err(LabError::new(LabErrorKind::Usage, why).into());
                    }
                }
                meter.add(key.len() + value.len());
            }
        }
        Ok(())
    }
}
