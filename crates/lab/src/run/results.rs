//! Results on disk: the records of a result are read, and reports, pictures, shared files and galleries are written from them.
//!
//! Kept true by: a file is replaced only where it is empty or the lab's own of the same kind, and by renaming a whole new one over
//! it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;
use crate::record::file::{RecordFile, read_records};
use crate::report::share::{self, Shared};
use crate::report::{self, listing};

/// Name of the record file in a result folder.
pub const RECORDS_NAME: &str = "records.ndjson";
/// Name of the report in a result folder.
pub const REPORT_NAME: &str = "report.html";

/// Reads the records of a result, given its folder or its record file.
///
/// # Errors
/// `Usage` when there is none; `Damaged` with line and column; `System` when it cannot be read.
pub fn read(path: &Path) -> Result<RecordFile> {
    if !path.exists() || path.is_dir() && !path.join(RECORDS_NAME).exists() {
        let message = format!(
            "there is no result in {}: name a result folder or its {RECORDS_NAME} ('nofault lab list' shows them)",
            shown(&path)
        );
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    Ok(read_records(path)?)
}

/// Writes the report of a run to `path`. An existing report is replaced; any other file is left alone.
///
/// # Errors
/// `Usage` when the path holds something other than the lab's report; the system's error. The path then holds the same
/// as before.
pub fn write_report(records: &RecordFile, path: &Path) -> Result<()> {
    if let Some(what) = in_the_way(path, report::is_one)? {
        let message = format!("{} is {what}, and left as it is; name another file with --out", shown(&path));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    replace(path, &report::html(records)?)
}

/// Writes one figure of the report as an SVG file, over an earlier picture of the lab or an empty file only.
///
/// # Errors
/// `Usage` when the result has no figure of this id (the message lists those it has), or something else is in the way; `System` when the
/// file cannot be written.
pub fn write_picture(records: &RecordFile, figure: &str, path: &Path) -> Result<()> {
    if let Some(what) = in_the_way(path, report::picture::is_one)? {
        let message = format!("{} is {what}, and left as it is; name another file with --svg", shown(&path));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    replace(path, &report::picture::svg(records, figure)?)
}

/// Writes every figure of a result as a separate SVG file into a folder, which is made where there is none. Returns the
/// paths.
///
/// # Errors
/// As [`write_picture`].
pub fn write_pictures(records: &RecordFile, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)
        .map_err(|error| LabError::system(format!("create the folder {}", shown(&folder)), &error))?;
    let mut paths = Vec::new();
    for (id, picture) in report::picture::all(records) {
        let path = folder.join(format!("{}.svg", id.replace('/', "-")));
        if let Some(what) = in_the_way(&path, report::picture::is_one)? {
            let message = format!("{} is {what}, and left as it is; name another folder with --svgs", shown(&path));
            return Err(LabError::new(LabErrorKind::Usage, message));
        }
        replace(&path, &picture)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Writes a shared result ([`crate::report::share`]) as a new file, or over an earlier one.
///
/// # Errors
/// `Usage` when something else is in the way; `System` when the file cannot be written.
pub fn write_shared(shared: &Shared, path: &Path) -> Result<()> {
    if let Some(what) = in_the_way(path, share::is_one)? {
        let message = format!("{} is {what}, and left as it is; name another file with --out", shown(&path));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    replace(path, &shared.text)
}

/// Writes the gallery of several results, over an earlier gallery or an empty file only. Each place is a result folder, a
/// folder of results, a records.ndjson or a file of `nofault lab share`; results of a folder come oldest first.
///
/// # Errors
/// `Usage` for a place without any result, or when something else is in the way of the page; as [`read`] otherwise.
pub fn write_gallery(places: &[PathBuf], path: &Path) -> Result<usize> {
    if let Some(what) = in_the_way(path, report::gallery::is_one)? {
        let message = format!("{} is {what}, and left as it is; name another file with --out", shown(&path));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let mut results = Vec::new();
    for place in places {
        let before = results.len();
        read_all(place, &mut results)?;
        if results.len() == before {
            let message = format!("there is no result in {}", shown(&place));
            return Err(LabError::new(LabErrorKind::Usage, message));
        }
    }
    replace(path, &report::gallery::html(&results)?)?;
    Ok(results.len())
}

/// Reads the results at a place: see [`write_gallery`].
fn read_all(place: &Path, results: &mut Vec<RecordFile>) -> Result<()> {
    let is_json = |path: &Path| path.extension().is_some_and(|end| end == "json");
    if place.is_file() {
        results.push(if is_json(place) { share::read(place)? } else { read(place)? });
        return Ok(());
    }
    for entry in listing::results(place)? {
        if matches!(entry.state, listing::State::Readable { .. }) {
            results.push(read(&entry.folder)?);
        }
    }
    let listed =
        std::fs::read_dir(place).map_err(|error| LabError::system(format!("list {}", shown(&place)), &error))?;
    let is_shared = |path: &PathBuf| is_json(path) && path.is_file();
    let mut shared: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(is_shared).collect();
    shared.sort();
    for path in shared {
        let mut head = Vec::new();
        let opened = std::fs::File::open(&path).and_then(|file| file.take(report::HEAD_BYTES).read_to_end(&mut head));
        // Other JSON files may lie in the folder.
        if opened.is_ok() && share::is_one(&head) {
            results.push(share::read(&path)?);
        }
    }
    Ok(())
}

/// Replaces the file at `path` through a temporary file, so that a reader never sees half a file and on a full disk the
/// old file stays.
fn replace(path: &Path, text: &str) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let half = PathBuf::from(name);
    let written = std::fs::write(&half, text).and_then(|()| std::fs::rename(&half, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&half);
        LabError::system(format!("write {}", shown(&path)), &error)
    })
}

/// Describes the obstacle to a new file at `path`: any file that is not empty and whose beginning `is_own` does not
/// accept. `None` without an obstacle.
fn in_the_way(path: &Path, is_own: fn(&[u8]) -> bool) -> Result<Option<&'static str>> {
    let look = |error: &std::io::Error| LabError::system(format!("look at {}", shown(&path)), error);
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(look(&error)),
    };
    if found.is_dir() {
        return Ok(Some("a folder"));
    }
    if !found.is_file() {
        return Ok(Some("no ordinary file"));
    }
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(report::HEAD_BYTES).read_to_end(&mut head));
    read.map_err(|error| look(&error))?;
    let fine = head.is_empty() || is_own(&head);
    Ok(if fine { None } else { Some("not one that the lab made") })
}
