//! `verify` and `check`: read all of a database, or of a dump, and print the damage.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use nofault::blocking::Db;
use nofault::db::Verification;
use nofault::settings::Settings;
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::paths::shown;

use super::DAMAGED;
use super::transfer::count_lines;
use crate::db_args::FormArguments;
use crate::output::{log, print};

/// Reads every page of a database opened for it, and prints all damage.
pub(super) fn verify(db: Db, json: bool) -> Result<ExitCode> {
    let repairs = match db.is_read_only() {
        true => "opening the database to write would repair",
        false => "repaired when the database was opened",
    };
    let found = db.verify()?;
    report(&found, json, repairs)?;
    if found.is_clean() {
        return Ok(ExitCode::SUCCESS);
    }
    let count = found.problems.len();
    log(&format!("nofault: {count} problems: restore from a backup, or salvage what can be read (`db salvage`)"));
    Ok(ExitCode::from(DAMAGED))
}

/// Reads every page of a backup, or every line of a dump, without changing anything, and prints all damage. Damage that
/// opening would repair counts: a backup must not have any.
pub(super) fn check(path: &Path, settings: &Settings, form: FormArguments, json: bool) -> Result<ExitCode> {
    if !path.is_dir() && path.exists() {
        return check_dump(path, form, json);
    }
    let found = Db::check(path, settings)?;
    report(&found, json, "opening the database would repair")?;
    match (found.problems.len(), found.repairs.len()) {
        (0, 0) => Ok(ExitCode::SUCCESS),
        (0, repairs) => {
            log(&format!("nofault: {repairs} places are damaged, and nothing is lost yet: make another backup"));
            Ok(ExitCode::from(DAMAGED))
        }
        (problems, _) => {
            log(&format!(
                "nofault: {problems} problems: use another backup, or salvage what can be read (`db salvage`)"
            ));
            Ok(ExitCode::from(DAMAGED))
        }
    }
}

/// Reads every line of a dump. Its lines say nothing of each other, so a dump that was cut off at the end of a line counts
/// as whole.
fn check_dump(path: &Path, form: FormArguments, json: bool) -> Result<ExitCode> {
    if ["data", "log", "stripes"].iter().any(|name| path.file_name().is_some_and(|file| file == *name)) {
        let folder = path.parent().filter(|parent| parent.file_name().is_some()).unwrap_or(Path::new("."));
        let why = format!("{} is a part of a database: check its folder, {}", shown(&path), shown(&folder));
        return Err(LabError::new(LabErrorKind::Usage, why).into());
    }
    if !path.is_file() {
        let why = format!("{} is neither the folder of a backup nor the file of a dump", shown(&path));
        return Err(LabError::new(LabErrorKind::Usage, why).into());
    }
    let (tables, entries) = match count_lines(path, form)? {
        Ok(counts) => counts,
        Err(defect) => {
            if json {
                let answer = serde_json::json!({ "clean": false, "problems": [defect] });
                print(&serde_json::to_string_pretty(&answer)?)?;
            }
            log(&format!("nofault: {defect}: the dump is damaged, or is no dump in this --format"));
            return Ok(ExitCode::from(DAMAGED));
        }
    };
    if json {
        let answer = serde_json::json!({ "clean": true, "tables": tables, "entries": entries, "problems": [] });
        print(&serde_json::to_string_pretty(&answer)?)?;
    } else {
        log(&format!("read {entries} entries of {tables} tables; every line can be loaded"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the report of a verification; `repairs` says when damage that loses nothing is repaired.
fn report(found: &Verification, json: bool, repairs: &str) -> Result<()> {
    if json {
        let problems = found.problems.iter().map(|problem| {
            let page = problem.error.page().map(|page| page.0);
            serde_json::json!({ "table": problem.table, "page": page, "problem": problem.error.to_string() })
        });
        let answer = serde_json::json!({
            "clean": found.is_clean(), "tables": found.tables, "entries": found.entries, "pages": found.pages,
            "blocks": found.blocks, "problems": problems.collect::<Vec<_>>(), "repairs": found.repairs,
            "sound_tables": found.sound_tables, "damaged_tables": found.damaged_tables,
            "catalog_pages_damaged": found.catalog_pages_damaged,
            "unnamed_tables": found.unnamed_tables.iter().map(|table| table.0).collect::<Vec<_>>(),
        });
        print(&serde_json::to_string_pretty(&answer)?)?;
    } else {
        for problem in &found.problems {
            let place = problem.table.as_ref().map_or(String::new(), |table| format!("table {table}: "));
            print(&format!("{place}{}", problem.error))?;
        }
        for repair in &found.repairs {
            print(&format!("{repairs}: {repair}"))?;
        }
        let (tables, entries) = (found.tables, found.entries);
        let repaired = if found.repairs.is_empty() { "" } else { ", but for the repair above" };
        log(&format!(
            "read {} blocks; {tables} tables (with the catalog), {entries} entries in {} pages are sound{repaired}",
            found.blocks, found.pages
        ));
    }
    if !json && !found.is_clean() {
        print_tables(found)?;
    }
    Ok(())
}

/// Prints which tables of a damaged database can still be read.
fn print_tables(found: &Verification) -> Result<()> {
    let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    print(&format!("sound tables: {}", list(&found.sound_tables)))?;
    if !found.damaged_tables.is_empty() {
        print(&format!("damaged tables, of which the other pages can be read: {}", list(&found.damaged_tables)))?;
    }
    if found.catalog_pages_damaged > 0 {
        print(&format!(
            "{} pages of the catalog (the table of tables) are damaged: the tables that they name cannot be opened",
            found.catalog_pages_damaged
        ))?;
    }
    for table in &found.unnamed_tables {
        print(&format!("table number {table}, name unknown: its root is sound"))?;
    }
    Ok(())
}
