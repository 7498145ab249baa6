//! `load` and `dump`: entries between a database and a stream of lines, in bounded memory.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, BufWriter, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use nofault::blocking::{Db, Table};
use nofault::db::TableList;
use nofault::error::ErrorKind;
use nofault::{Batch, Durability};
use nofault_lab::error::{LabError, LabErrorKind};

use super::codec::{self, Line};
use super::meter::Meter;
use crate::db_args::Format;
use crate::input::{Input, failed};

/// Bytes of entries at which a batch is committed, even if it has few entries.
const BATCH_BYTES: usize = 8 << 20;
const BUFFER_BYTES: usize = 1 << 20;
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

/// The lines of the input; knows the number of the present line for messages.
struct Lines<'a> {
    from: BufReader<Input<'a>>,
    name: String,
    line: u64,
    buffer: Vec<u8>,
    format: Format,
    table: &'a str,
    cancel: &'a AtomicBool,
}

impl<'a> Lines<'a> {
    fn open(file: Option<&Path>, format: Format, table: &'a str, cancel: &'a AtomicBool) -> Result<Self> {
        let (from, name) = match file {
            Some(path) => {
                let file = File::open(path).map_err(|error| unusable(path, &error))?;
                refuse_folder(path, &file.metadata().map_err(|error| LabError::system(path.display(), &error))?)?;
                (Input::new(file, cancel), path.display().to_string())
            }
            None => {
                let from = Input::standard(cancel);
                (from.map_err(|error| LabError::system(STANDARD, &error))?, STANDARD.into())
            }
        };
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        Ok(Self { from, name, line: 0, buffer: Vec::new(), format, table, cancel })
    }

    /// Reads the next line that is not empty: the name of its table, and its entry if it has one.
    fn next(&mut self) -> Result<Option<(String, Option<Entry>)>> {
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(LabError::interrupted().into());
            }
            self.buffer.clear();
            let read = self.from.read_until(b'\n', &mut self.buffer);
            if read.map_err(|error| failed(&self.name, &error))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
            let parsed = match self.format {
                Format::Ndjson if text.trim_ascii().is_empty() => continue,
                Format::Ndjson => codec::from_json(text),
                Format::Lines => codec::from_plain(text),
            };
            let Line { table, entry, expiry } = parsed.map_err(|why| {
                LabError::new(LabErrorKind::Usage, format!("{}, line {}: {why}", self.name, self.line))
            })?;
            let table = table.unwrap_or_else(|| self.table.to_owned());
            let entry = entry.map(|(key, value)| Entry { table: table.clone(), key, value, expiry });
            return Ok(Some((table, entry)));
        }
    }
}

/// Makes the error for a file of the user's that cannot be opened.
fn unusable(path: &Path, error: &std::io::Error) -> LabError {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            LabError::new(LabErrorKind::Usage, format!("there is no file {}: check the path", path.display()))
        }
        _ => LabError::system(path.display(), error),
    }
}

fn refuse_folder(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    if !metadata.is_dir() {
        return Ok(());
    }
    let why = format!(
        "{} is a folder: name a file that `db dump` wrote, or copy a database with `db backup`",
        path.display()
    );
    Err(LabError::new(LabErrorKind::Usage, why).into())
}

/// The options of `nofault db load`.
pub(super) struct Load<'a> {
    pub(super) file: Option<&'a Path>,
    pub(super) table: &'a str,
    pub(super) format: Format,
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
        // Opening a pipe waits for its writer, and loses what the writer has written if it is closed again.
        let metadata = std::fs::metadata(path).map_err(|error| unusable(path, &error))?;
        if metadata.is_file() {
            File::open(path).map_err(|error| unusable(path, &error))?;
        }
        refuse_folder(path, &metadata)
    }

    pub(super) fn run(&self, db: &Db, cancel: &AtomicBool) -> Result<ExitCode> {
        let mut input = Lines::open(self.file, self.format, self.table, cancel)?;
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

    fn load_batches(&self, db: &Db, input: &mut Lines<'_>, meter: &mut Meter) -> Result<()> {
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
fn load_sorted(db: &Db, input: &mut Lines<'_>, meter: &mut Meter) -> Result<()> {
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

/// Reads all lines of a dump and counts its tables and entries.
///
/// # Errors
/// `Usage` for a line that is none of a dump, naming it; the error of the system.
pub(super) fn count_lines(file: &Path, format: Format, cancel: &AtomicBool) -> Result<(usize, u64)> {
    let mut lines = Lines::open(Some(file), format, "main", cancel)?;
    let (mut tables, mut entries) = (BTreeSet::new(), 0);
    while let Some((table, entry)) = lines.next()? {
        if !tables.contains(&table) {
            tables.insert(table);
        }
        entries += u64::from(entry.is_some());
    }
    Ok((tables.len(), entries))
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
    pub(super) fn run(&self, db: &Db, cancel: &AtomicBool) -> Result<ExitCode> {
        let listed = if self.tables.is_empty() { db.list_tables()? } else { TableList::default() };
        let names = if self.tables.is_empty() { listed.names.as_slice() } else { self.tables };
        if self.format == Format::Lines && names.len() != 1 {
            let why = format!("plain lines hold one table and there are {}: choose with --table", names.len());
            return Err(LabError::new(LabErrorKind::Usage, why).into());
        }
        // Tables are opened before the file is created, so that a wrong name leaves no file.
        let tables = names.iter().map(|name| db.table(name)).collect::<nofault::error::Result<Vec<_>>>()?;
        let to: Box<dyn Write> = match self.out {
            Some(path) => {
                let file = OpenOptions::new().write(true).create_new(true).open(path);
                Box::new(file.map_err(|error| LabError::system(format_args!("create {}", path.display()), &error))?)
            }
            None => Box::new(std::io::stdout().lock()),
        };
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, to);
        let mut meter = Meter::new("dumped", "entries", self.quiet);
        if self.out.is_none() && std::io::stdout().is_terminal() {
            meter = meter.at_end();
        }
        let result = self.write(db, &tables, &mut out, &mut meter, cancel);
        let result = result.and_then(|()| out.flush().context("write the dump"));
        // The buffer is discarded without another attempt: the failed write has been reported.
        drop(out.into_parts());
        meter.finish();
        // The readable tables are in the dump by now; the result says that others are missing.
        result
            .and_then(|()| listed.damage.into_iter().next().map_or(Ok(ExitCode::SUCCESS), |damage| Err(damage.into())))
    }

    fn write(
        &self,
        db: &Db,
        tables: &[Table],
        out: &mut impl Write,
        meter: &mut Meter,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let snapshot = db.snapshot();
        for table in tables {
            if self.format == Format::Ndjson {
                writeln!(out, "{}", codec::to_json(table.name(), None, None, None)?)?;
            }
            let mut range = snapshot.range::<&[u8]>(table, ..)?;
            while let Some((key, value)) = range.next().transpose()? {
                if cancel.load(Ordering::Relaxed) {
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
