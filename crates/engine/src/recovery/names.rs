//! Names the files of a database, and tells from the names in a folder whether it holds a database, a part of one, a
//! creation that was cut short, or nothing.
//!
//! A creation works under temporary names that contain `nofault`, so that no file of another program has one. It gives
//! the other files their names only after the temporary data file has its name durably, and the data file its name
//! last. So without `data`, a `log` or a `stripes` next to a temporary data file is left by a creation or a backup that
//! was cut short; without one it is a part of a database.

use nofault_io::disk::Directory;
use nofault_io::error::ErrorKind as IoErrorKind;

use crate::error::{Error, ErrorKind, Result};

/// Name of the file with the pages.
pub(crate) const DATA: &str = "data";
/// Name of the file with the log.
pub(crate) const LOG: &str = "log";
/// Name of the file that lists the folders of a striped database.
pub(crate) const STRIPES: &str = "stripes";
/// Name of the lock file, which names the process with the database open.
pub(crate) const LOCK: &str = "lock";
/// Name of the file with the record for readers in other processes.
pub(crate) const READERS: &str = "readers.nofault";
/// The data file of a database that is being created.
pub(crate) const NEW_DATA: &str = "data.nofault-new";
/// The data file of a database that is nothing until it is filled: a backup, for example, which gave the name.
pub(crate) const UNFINISHED: &str = "data.nofault-copy";
/// The log of a database that is being created.
pub(crate) const NEW_LOG: &str = "log.nofault-new";
/// The list of the folders of a database that is being created.
pub(crate) const NEW_STRIPES: &str = "stripes.nofault-new";

/// Every name that the file with the pages ever has.
pub(crate) const DATA_NAMES: [&str; 3] = [DATA, NEW_DATA, UNFINISHED];
/// Every name that only an unfinished creation or backup has.
const TEMPORARY: [&str; 4] = [NEW_DATA, UNFINISHED, NEW_LOG, NEW_STRIPES];

/// The state of a folder, derived from the names in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    /// The folder has no file of a database.
    Nothing,
    /// The folder has files of a creation or backup that was cut short. No complete database ever depended on them.
    Unfinished,
    /// The folder has both files of a database.
    Database,
    /// The folder has some files of a database, but `missing` is absent.
    Incomplete { found: Vec<String>, missing: &'static str },
}

/// Returns whether a file name belongs to a database, complete or not.
pub(crate) fn is_reserved(name: &str) -> bool {
    [DATA, LOG, STRIPES, LOCK, READERS].contains(&name) || TEMPORARY.contains(&name)
}

/// Returns whether a file name belongs to a part of a striped data file.
pub(crate) fn is_part(name: &str) -> bool {
    let number = name.strip_prefix("data-").and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(id, number)| {
        id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && number.parse::<u32>().is_ok()
    })
}

/// Returns the state of a folder with these names.
pub(crate) fn contents<'a>(names: impl Iterator<Item = &'a str>) -> Contents {
    let names: Vec<&str> = names.filter(|name| is_reserved(name) || is_part(name)).collect();
    let has = |name: &str| names.contains(&name);
    let found =
        || names.iter().filter(|name| ![LOCK, READERS].contains(*name)).map(|name| (*name).to_owned()).collect();
    match (has(DATA), has(LOG)) {
        (true, true) => Contents::Database,
        (true, false) => Contents::Incomplete { found: found(), missing: LOG },
        (false, _) if has(NEW_DATA) || has(UNFINISHED) => Contents::Unfinished,
        (false, false) if !has(STRIPES) => {
            let begun = has(NEW_LOG) || has(NEW_STRIPES);
            match (begun, names.iter().any(|name| is_part(name))) {
                (true, _) => Contents::Unfinished,
                (false, true) => Contents::Incomplete { found: found(), missing: DATA },
                (false, false) => Contents::Nothing,
            }
        }
        (false, _) => Contents::Incomplete { found: found(), missing: DATA },
    }
}

/// Returns the state of a directory, as the names in it show it.
///
/// # Errors
/// The error of the disk.
pub(crate) fn contents_of(directory: &dyn Directory) -> Result<Contents> {
    let names = directory.list().map_err(|error| Error::from_io("list the folder", error))?;
    Ok(contents(names.iter().map(String::as_str)))
}

/// Refuses to create a database in a folder with these contents unless it is free for one.
///
/// # Errors
/// `AlreadyExists` when there is one, or a part of one.
pub(crate) fn refuse_existing(contents: &Contents) -> Result<()> {
    match contents {
        Contents::Nothing | Contents::Unfinished => Ok(()),
        Contents::Database => {
            let what = "there is a database in this folder already: open it instead";
            Err(Error::new(ErrorKind::AlreadyExists, what))
        }
        Contents::Incomplete { found, missing } => {
            let what = format!(
                "{}; to begin anew, move {} away first: data that is only there is lost otherwise",
                incomplete(found, missing),
                listed(found)
            );
            Err(Error::new(ErrorKind::AlreadyExists, what))
        }
    }
}

/// Refuses to open a database in a folder with these contents unless it holds one.
///
/// # Errors
/// `NotFound` when there is none; `Corrupt` when a part of it is missing.
pub(crate) fn refuse_missing(contents: &Contents) -> Result<()> {
    match contents {
        Contents::Database => Ok(()),
        Contents::Nothing => {
            Err(Error::new(ErrorKind::NotFound, "there is no database in this folder: create it, or check the path"))
        }
        Contents::Unfinished => {
            let what = "a creation or a backup was cut short in this folder, and there is no database: create it again";
            Err(Error::new(ErrorKind::NotFound, what))
        }
        Contents::Incomplete { found, missing } => Err(Error::new(ErrorKind::Corrupt, incomplete(found, missing))),
    }
}

fn incomplete(found: &[String], missing: &str) -> String {
    format!(
        "«{missing}» is missing in this folder, where {} is: a part of a database; if it is being copied or restored, wait for \
         that, else put it back, or restore a backup",
        listed(found)
    )
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("«{name}»")).collect::<Vec<_>>().join(", ")
}

/// Removes the files of a creation or a backup that was cut short. When the power fails before it ends, the remaining files
/// are still recognised as unfinished. Blocks.
///
/// # Errors
/// `Busy` when a creation is under way; the error of the disk.
pub(crate) fn remove_unfinished(directory: &dyn Directory) -> Result<()> {
    let failed = |error| Error::from_io("remove the files of an unfinished creation", error);
    let names = directory.list().map_err(failed)?;
    if contents(names.iter().map(String::as_str)) != Contents::Unfinished {
        return Ok(());
    }
    let there =
        |wanted: &[&str]| -> Vec<&String> { names.iter().filter(|name| wanted.contains(&name.as_str())).collect() };
    for name in there(&[NEW_DATA, UNFINISHED]) {
        match directory.lock(name, LOCK) {
            // Parts of a striped data file may never have been created.
            Err(error) if error.kind() != IoErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    let named = there(&[LOG, STRIPES]);
    for name in &named {
        directory.remove(name).map_err(failed)?;
    }
    if !named.is_empty() {
        // These removals are made durable before the temporary data file is removed, without which the files would
        // count as parts of a database.
        directory.sync().map_err(failed)?;
    }
    there(&TEMPORARY).into_iter().try_for_each(|name| directory.remove(name)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_a_database_from_a_part_of_one_and_from_an_unfinished_creation() {
        let part = "data-0123456789abcdef-1";
        let incomplete = |found: &[&str], missing| Contents::Incomplete {
            found: found.iter().map(|name| (*name).to_owned()).collect(),
            missing,
        };
        for (names, said) in [
            (&["data.new", "lock", "readme", "data-1", "data-0123456789abcdef-x"][..], Contents::Nothing),
            (&[DATA, LOG], Contents::Database),
            (&[DATA, LOG, LOCK, NEW_DATA, STRIPES], Contents::Database),
            (&[DATA, LOG, LOCK, READERS], Contents::Database),
            (&[READERS, LOCK], Contents::Nothing),
            (&[DATA, LOCK, READERS], incomplete(&[DATA], LOG)),
            (&[DATA, LOCK], incomplete(&[DATA], LOG)),
            (&[DATA, NEW_LOG], incomplete(&[DATA, NEW_LOG], LOG)),
            (&[LOG], incomplete(&[LOG], DATA)),
            (&[LOG, NEW_LOG], incomplete(&[LOG, NEW_LOG], DATA)),
            (&[STRIPES, NEW_STRIPES], incomplete(&[STRIPES, NEW_STRIPES], DATA)),
            (&[part], incomplete(&[part], DATA)),
            (&[part, LOG], incomplete(&[part, LOG], DATA)),
            (&[part, NEW_STRIPES], Contents::Unfinished),
            (&[NEW_LOG], Contents::Unfinished),
            (&[NEW_DATA, LOG, STRIPES], Contents::Unfinished),
            (&[UNFINISHED, LOG, STRIPES, LOCK], Contents::Unfinished),
        ] {
            assert_eq!(contents(names.iter().copied()), said, "{names:?}");
        }
    }
}
