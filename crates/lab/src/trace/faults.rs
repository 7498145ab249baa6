//! Records the page faults of a command in mapped files by perf: the accesses through a map that found no page there.
//!
//! The kernel counts a fault with its address, and perf also records each mapping, so that an address becomes a position in a file
//! (`reader`). Loads and stores of a page that is mapped make no fault and are not seen. Whether the program loaded or
//! stored is not in the record: each fault is a read of one page. Its time is its end.

mod maps;
mod reader;

use std::ffi::OsStr;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

use super::ACCESSES_MAX;
use super::choice::{Recording, choose, in_folder};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;
use reader::Reader;

/// How to install perf.
const INSTALL: &str = "install it (Debian: apt-get install linux-perf; Ubuntu: linux-tools-generic; others: perf), or write the CSV file by other means";
/// What allows perf to record.
const RIGHTS: &str =
    "run as root, or lower kernel.perf_event_paranoid to 2 or less (sysctl kernel.perf_event_paranoid=2)";
/// What allows perf to see the faults that the kernel has on behalf of the program.
const RIGHTS_FOR_ALL: &str = "run as root, or lower kernel.perf_event_paranoid to 1 or less";
/// The error of a command without a fault in a mapped file.
const NOTHING: &str = "no page fault in a mapped file other than programs and libraries was seen; calls such as read and pread make none: record \
     them without --faults";
/// Parts of the paths of files that the C library maps in most programs. They are taken only when they are named.
const LIBRARY_FILES: [&str; 3] = ["/etc/ld.so.cache", "/locale/", "/gconv-modules.cache"];
/// One of how many faults may be without a known mapping before a note says so. The stack always has some.
const UNMAPPED_SHARE: u64 = 10;

/// Runs a command under perf, and returns its page faults in one mapped file as reads of one page: in `of`, or in the file with
/// the most, other than programs and libraries. Of `every` faults, one is recorded. The first 1,048,576 of them are taken. The
/// command has the terminal; its own result is not looked at.
///
/// # Errors
/// `Unsupported` where perf is not installed or does not work; `NoPermission` where it may not record; `Usage` when the
/// command did not start, or had no fault in the file.
pub fn record(command: &[impl AsRef<OsStr>], of: Option<&Path>, every: u32) -> Result<Recording> {
    in_folder(|folder| {
        let this = [std::ffi::OsStr::new("perf"), "--version".as_ref()];
        let tried = perf_record(&folder.join("try"), 1).args(this).stdin(Stdio::null()).output();
        let tried = tried.map_err(|error| not_started(&error))?;
        if !tried.status.success() {
            return Err(refused(&String::from_utf8_lossy(&tried.stderr)));
        }
        let output = folder.join("perf.data");
        // perf returns the result of the command, so that its own failure shows in the output alone.
        perf_record(&output, every).args(command).status().map_err(|error| not_started(&error))?;
        taken(read(folder, &output)?, command, of, every)
    })
}

/// `perf record` into a file, up to the command, which is to follow.
fn perf_record(output: &Path, every: u32) -> Command {
    let mut perf = Command::new("perf");
    // Without build ids (-B, -N): nothing is wanted from the programs themselves.
    perf.args(["record", "-q", "-B", "-N", "-e", "major-faults", "-e", "minor-faults", "--data", "-c"]);
    perf.arg(every.max(1).to_string()).arg("-o").arg(output).arg("--");
    perf
}

fn not_started(error: &std::io::Error) -> LabError {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            LabError::new(LabErrorKind::Unsupported, format!("perf is not installed; {INSTALL}"))
        }
        _ => LabError::system("start perf", error),
    }
}

/// The error for a perf that does not record, from its own words.
fn refused(said: &str) -> LabError {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).take(2).collect();
    let said = lines.join(" ");
    let lower = said.to_ascii_lowercase();
    let rights = ["permi", "limited", "paranoid"].iter().any(|word| lower.contains(word));
    match rights {
        true => LabError::new(LabErrorKind::NoPermission, format!("perf may not record page faults: {said}; {RIGHTS}")),
        false => LabError::new(
            LabErrorKind::Unsupported,
            format!("perf does not record page faults here: {said}; if perf is not the kernel's own, {INSTALL}"),
        ),
    }
}

/// Reads what perf recorded.
fn read(folder: &Path, output: &Path) -> Result<Reader> {
    let system = |error: std::io::Error| LabError::system("read the faults with perf script", &error);
    let said = folder.join("script.txt");
    let mut script = Command::new("perf")
        .args(["script", "--show-mmap-events", "--show-task-events", "--show-lost-events", "--ns"])
        .args(["-F", "pid,tid,time,event,addr", "-i"])
        .arg(output)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&said).map_err(system)?)
        .spawn()
        .map_err(system)?;
    let mut reader = Reader::new(rustix::param::page_size() as u64, ACCESSES_MAX);
    let result = script.stdout.take().map_or(Ok(()), |text| reader.read(BufReader::new(text)));
    // Its output is closed: perf ends.
    let status = script.wait().map_err(system)?;
    result.map_err(system)?;
    // Without a start of the command there may be nothing to read, which has a separate error.
    if status.success() || !reader.is_started {
        return Ok(reader);
    }
    let said = std::fs::read(&said).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned();
    Err(LabError::new(LabErrorKind::System, format!("perf script ended with {status}: {said}")))
}

/// The faults in one file, with what is to be known of them.
fn taken(mut reader: Reader, command: &[impl AsRef<OsStr>], of: Option<&Path>, every: u32) -> Result<Recording> {
    if !reader.is_started {
        let name = command.first().map_or(Path::new(""), |name| Path::new(name));
        let why = format!("the command did not start: is '{}' there?", shown(name));
        return Err(LabError::new(LabErrorKind::Usage, why));
    }
    let mut files = std::mem::take(&mut reader.files);
    if of.is_none() {
        let is_library = |path: &str| LIBRARY_FILES.iter().any(|part| path.contains(part));
        files.retain(|path, _| !reader.executed.contains(path.as_str()) && !is_library(path));
        // The lists are cut, the counts are not.
        let most =
            reader.counts.iter().filter(|(path, _)| files.contains_key(*path)).max_by_key(|(_, counts)| counts.sum());
        if let Some(most) = most.map(|(path, _)| path.clone()) {
            files.retain(|path, _| *path == most);
        }
    }
    let mut recorded = choose(files, of, NOTHING)?;
    recorded.trace.is_cut = reader.counts_of(&recorded.file).sum() > recorded.trace.accesses.len() as u64;
    recorded.notes = notes(&reader, &recorded, every);
    Ok(recorded)
}

fn notes(reader: &Reader, recorded: &Recording, every: u32) -> Vec<String> {
    let counts = reader.counts_of(&recorded.file);
    let mut notes = vec![format!(
        "each read is a page fault, {} major (the page came from the device) and {} minor (it was in memory): the misses of the map, not all \
         accesses; whether the program read or wrote is not known",
        counts.major, counts.minor
    )];
    if counts.minor > counts.major {
        notes.push(
            "most pages were in memory: a fault then maps the cached pages around as well (by default 64 KiB), which make no fault; begin with a cold \
             cache to see more"
                .into(),
        );
    }
    if every > 1 {
        notes.push(format!("one of {every} faults was recorded, so the pace is that much slower than the program's"));
    }
    if reader.lost_count > 0 {
        let more = u64::from(every).saturating_mul(10);
        notes.push(format!("perf lost {} events, so faults are missing: try --every {more}", reader.lost_count));
    }
    let seen: u64 = reader.counts.values().map(|counts| counts.sum()).sum();
    if reader.unmapped_count > (seen + reader.unmapped_count) / UNMAPPED_SHARE {
        notes.push(format!(
            "{} faults were at addresses of no known mapping and are left out: perf does not show what mremap moves or lengthens",
            reader.unmapped_count
        ));
    }
    if reader.is_user_only {
        notes
            .push(format!("faults during system calls are not seen with these rights; to have them, {RIGHTS_FOR_ALL}"));
    }
    if recorded.trace.is_cut {
        let (taken, all) = (recorded.trace.accesses.len(), counts.sum());
        notes.push(format!("the first {taken} faults of {all} are taken: a larger --every covers more of the time"));
    }
    notes
}

#[cfg(test)]
mod tests;
