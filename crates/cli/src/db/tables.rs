//! `nofault db table`: lists the tables of a database, creates, renames, empties and drops them.
//!
//! All names of a call are checked before anything changes. Where entries are lost, the user confirms it on a terminal,
//! or has said so before with `--yes`.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use nofault::blocking::{Db, Table};
use nofault::error::ErrorKind;
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::format;
use nofault_lab::paths::shown;
use serde_json::json;

use super::stat::count_entries;
use super::{DAMAGED, compression_name, find_table, open_db, open_to_read};
use crate::db_args::{DoomedTables, TableCommand};
use crate::output::{ANSWER_BYTES_MAX, log, print};

/// Runs one command of `nofault db table`.
pub(super) fn run(command: TableCommand) -> Result<ExitCode> {
    match command {
        TableCommand::List { path, json, open } => list(&open_to_read(&path, &open, &open.settings(&path))?, json),
        TableCommand::Create { path, names, compression, open } => {
            let mut settings = open.settings(&path);
            settings.compression = compression.into();
            create(&open_db(&path, &settings)?, &names)
        }
        TableCommand::Rename { path, name, to, open } => {
            let db = open_db(&path, &open.settings(&path))?;
            find_table(&db, &name)?;
            db.rename_table(&name, &to)?;
            Ok(ExitCode::SUCCESS)
        }
        TableCommand::Clear { doomed } => clear(&doomed),
        TableCommand::Drop { doomed } => drop_tables(&doomed),
    }
}

/// Prints the tables. A table that cannot be read is listed with its damage.
fn list(db: &Db, json: bool) -> Result<ExitCode> {
    let listed = db.list_tables()?;
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let mut problems: Vec<String> = listed.damage.iter().map(ToString::to_string).collect();
    for name in &listed.names {
        let facts = || -> nofault::error::Result<_> {
            let table = db.table(name)?;
            let all = ..;
            let sizes = (table.approximate_len::<&[u8]>(all)?, table.approximate_bytes::<&[u8]>(all)?);
            Ok((sizes.0, sizes.1, compression_name(db.compression(name)?)))
        };
        match facts() {
            Ok((entries, bytes, compression)) => {
                rows.push(json!({ "name": name, "entries_approximate": entries, "bytes_approximate": bytes,
                                  "compression": compression }));
                let compressed = if compression == "none" { String::new() } else { format!(", {compression}") };
                lines.push((name, format!("about {entries} entries, {}{compressed}", format::bytes(bytes))));
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                rows.push(json!({ "name": name, "problem": error.to_string() }));
                lines.push((name, format!("damaged: {error}")));
                problems.push(format!("table {name}: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if json {
        print(&serde_json::to_string_pretty(&json!({ "tables": rows, "problems": problems }))?)?;
    } else {
        let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        print(&lines.iter().fold(String::new(), |text, (name, facts)| text + &format!("{name:<width$}  {facts}\n")))?;
        listed.damage.iter().for_each(|damage| log(&format!("nofault: {damage}")));
    }
    Ok(ExitCode::from(if problems.is_empty() { 0 } else { DAMAGED }))
}

fn create(db: &Db, names: &[String]) -> Result<ExitCode> {
    let there = db.list_tables()?.names;
    if let Some(name) = names.iter().find(|name| there.contains(name)) {
        let why = format!("there is a table {name} already: nothing was created");
        return Err(LabError::new(LabErrorKind::Usage, why).into());
    }
    for (index, name) in names.iter().enumerate() {
        if let Err(error) = db.create_table(name) {
            // This call has made the tables before it, and they are empty.
            names[..index].iter().try_for_each(|created| db.drop_table(created))?;
            return Err(error.into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn clear(doomed: &DoomedTables) -> Result<ExitCode> {
    let (_db, tables) = confirmed("delete all entries of", doomed)?;
    for table in tables {
        let entries = table.clear()?;
        log(&format!("table {}: {entries} entries deleted", table.name()));
    }
    Ok(ExitCode::SUCCESS)
}

fn drop_tables(doomed: &DoomedTables) -> Result<ExitCode> {
    let (db, tables) = confirmed("drop", doomed)?;
    for table in tables {
        db.drop_table(table.name())?;
        log(&format!("dropped table {}", table.name()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the tables that lose their entries, once the user has agreed.
fn confirmed(action: &str, doomed: &DoomedTables) -> Result<(Db, Vec<Table>)> {
    let db = open_db(&doomed.path, &doomed.open.settings(&doomed.path))?;
    let mut names = doomed.names.clone();
    names.dedup();
    let tables = names.iter().map(|name| find_table(&db, name)).collect::<Result<Vec<_>>>()?;
    if !doomed.yes {
        let mut listed = Vec::new();
        for table in &tables {
            // Counted: an estimate is too little to agree to a loss.
            let entries = match count_entries(&db, table.name()) {
                Ok(1) => "1 entry".to_owned(),
                Ok(count) => format!("{count} entries"),
                Err(_) => "entries that cannot be counted".to_owned(),
            };
            listed.push(format!("{} ({entries})", table.name()));
        }
        let listed = listed.join(", ");
        ask(&format!("{action} table {listed} in {}", shown(&doomed.path)))?;
    }
    Ok((db, tables))
}

/// Asks on the terminal whether to carry an action out.
///
/// # Errors
/// `Usage` when the answer is anything but "yes", or when there is no terminal to ask on.
fn ask(action: &str) -> Result<()> {
    let refused = |why: String| Err(LabError::new(LabErrorKind::Usage, why).into());
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return refused(format!(
            "to {action}, repeat the command with --yes: there is no terminal on which to confirm it"
        ));
    }
    let _ = write!(std::io::stderr(), "{}? Type yes: ", format::harmless(action));
    let mut answer = String::new();
    let read = std::io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer);
    read.map_err(|error| LabError::system("read the answer", &error))?;
    if answer.trim() == "yes" { Ok(()) } else { refused("nothing was changed".into()) }
}
