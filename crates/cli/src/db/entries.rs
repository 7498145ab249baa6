//! `get`, `put`, `delete` and `scan`: single entries, and ranges of them on the terminal.
//!
//! Keys and values are printed in the encoding in which they are read: printed text is a key of the next command.

use std::io::{BufWriter, IsTerminal as _, Read as _, Write};
use std::ops::Bound;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use nofault::blocking::{Db, Range};
use nofault::{Batch, Durability};
use nofault_lab::error::{LabError, LabErrorKind};

use super::transfer::table_or_new;
use super::{NOT_THERE, codec, end_of_pipe, find_table};
use crate::db_args::{Encoding, ScanArguments, TableArguments};
use crate::output::log;

/// Longest value of the engine, in bytes.
const VALUE_BYTES_MAX: u64 = 1 << 30;

fn decode(encoding: Encoding, text: &str) -> Result<Vec<u8>> {
    Ok(encoding.decode(text).map_err(|why| LabError::new(LabErrorKind::Usage, why))?)
}

/// Prints the value of a key.
pub(super) fn get(db: &Db, key: &str, raw: bool, json: bool, arguments: &TableArguments) -> Result<ExitCode> {
    let table = find_table(db, &arguments.table)?;
    let decoded = decode(arguments.of_keys(), key)?;
    // A snapshot, so that value and time are of one moment.
    let view = db.snapshot();
    let Some(value) = view.get(&table, &decoded)? else {
        log(&format!("nofault: table {} has no key {key}", table.name()));
        return Ok(ExitCode::from(NOT_THERE));
    };
    if raw && std::io::stdout().is_terminal() && acts_on_a_terminal(&value) {
        let why = "the value is no plain text, and its bytes would act on the terminal: send them to a file, or leave --raw out";
        return Err(LabError::new(LabErrorKind::Usage, why).into());
    }
    let mut out = std::io::stdout().lock();
    let written = if raw {
        out.write_all(&value).and_then(|()| out.flush())
    } else if json {
        writeln!(out, "{}", codec::to_json(table.name(), Some(&decoded), Some(&value), view.expiry(&table, &decoded)?)?)
    } else {
        writeln!(out, "{}", arguments.of_values().encode(&value))
    };
    end_of_pipe(written.context("write to standard output").map(|()| ExitCode::SUCCESS))
}

fn acts_on_a_terminal(value: &[u8]) -> bool {
    std::str::from_utf8(value).map_or(true, |text| text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')))
}

/// Sets the value of a key; without a value standard input is the value.
pub(super) fn put(
    db: &Db,
    key: &str,
    value: Option<String>,
    expiry: Option<SystemTime>,
    create_table: bool,
    arguments: &TableArguments,
) -> Result<ExitCode> {
    let key = decode(arguments.of_keys(), key)?;
    // A wrong name is reported before a value is read from standard input; a call that is refused or interrupted
    // creates no table.
    let there = if create_table { None } else { Some(find_table(db, &arguments.table)?) };
    let value = match value {
        Some(value) => decode(arguments.of_values(), &value)?,
        None => {
            let mut value = Vec::new();
            // The engine refuses a value longer than any.
            let read = std::io::stdin().lock().take(VALUE_BYTES_MAX + 1).read_to_end(&mut value);
            read.map_err(|error| LabError::system("read the value from standard input", &error))?;
            value
        }
    };
    let table = match there {
        Some(table) => table,
        None => table_or_new(db, &arguments.table)?,
    };
    match expiry {
        Some(expiry) => table.put_with_expiry(key, value, expiry)?,
        None => table.put(key, value)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Deletes keys in one commit.
pub(super) fn delete(db: &Db, keys: &[String], arguments: &TableArguments) -> Result<ExitCode> {
    let table = find_table(db, &arguments.table)?;
    let decoded = keys.iter().map(|key| decode(arguments.of_keys(), key)).collect::<Result<Vec<_>>>()?;
    let found = table.get_many(&decoded)?;
    let mut batch = Batch::new();
    decoded.iter().for_each(|key| {
        batch.delete(&table, key);
    });
    db.write(batch, Durability::Sync)?;
    let missing: Vec<_> = keys.iter().zip(&found).filter(|(_, found)| found.is_none()).collect();
    for (key, _) in &missing {
        log(&format!("nofault: table {} had no key {key}", table.name()));
    }
    Ok(ExitCode::from(if missing.is_empty() { 0 } else { NOT_THERE }))
}

/// Prints the entries of a range.
pub(super) fn scan(db: &Db, scan: ScanArguments, table: &TableArguments) -> Result<ExitCode> {
    let of = |key: Option<&String>| key.map(|key| decode(table.of_keys(), key)).transpose();
    let opened = find_table(db, &table.table)?;
    let range = match of(scan.prefix.as_ref())? {
        Some(prefix) => opened.prefix(prefix),
        None => opened.range((
            of(scan.from.as_ref())?.map_or(Bound::Unbounded, Bound::Included),
            of(scan.to.as_ref())?.map_or(Bound::Unbounded, Bound::Excluded),
        )),
    };
    print_entries(if scan.reverse { range.rev() } else { range }, &scan, table)
}

fn print_entries(mut range: Range, scan: &ScanArguments, arguments: &TableArguments) -> Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut print = || -> Result<()> {
        for _ in 0..scan.limit.unwrap_or(u64::MAX) {
            let Some((key, value)) = range.next_ref()? else { break };
            let value = (!scan.keys_only).then_some(value);
            if scan.json {
                let (key, value) = (key.to_vec(), value.map(<[u8]>::to_vec));
                let expiry = range.expiry().filter(|_| value.is_some());
                writeln!(out, "{}", codec::to_json(&arguments.table, Some(&key), value.as_deref(), expiry)?)?;
                continue;
            }
            let key = arguments.of_keys().encode(key);
            match value {
                None => writeln!(out, "{key}")?,
                Some(value) => writeln!(out, "{key}\t{}", arguments.of_values().encode(value))?,
            }
        }
        Ok(())
    };
    let printed = print();
    let is_output_broken = printed.as_ref().is_err_and(|error| error.is::<std::io::Error>());
    // Entries before a damaged page are printed to the end of their lines. Output that failed once is not tried again.
    let flushed = if is_output_broken { Ok(()) } else { out.flush().context("write to standard output") };
    drop(out.into_parts());
    let result = printed.and(flushed);
    end_of_pipe(result.map(|()| ExitCode::SUCCESS))
}
