//! Runs and questions that are interrupted: the results so far are kept and reported.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{Lab, Running, outcome};

#[test]
fn a_run_that_cannot_remove_its_files_still_makes_its_report_and_prints_its_path() {
    let lab = Lab::new();
    let out = lab.outer.path().join("out");
    let mut command = lab.command_in_dir(&["--verbose", "--config", lab.endless().to_str().unwrap()]);
    command.arg("--out").arg(&out);
    let mut running = Running::start(command);
    running.until("[1/");
    // The folder is gone, so its files can neither be listed nor removed.
    fs::rename(&lab.dir, lab.outer.path().join("moved")).unwrap();
    running.signal("INT");
    let (code, stderr) = running.end();
    assert_eq!(code, Some(130), "{stderr}");
    let named = format!("report:  {}", out.join("report.html").display());
    assert!(stderr.contains(&named) && stderr.contains("records.ndjson"), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.contains("the results so far are kept") && last.contains(lab.dir.to_str().unwrap()), "{stderr}");
    assert!(fs::read_to_string(out.join("report.html")).unwrap().contains("<title>nofault lab"));
    assert!(fs::read_to_string(out.join("records.ndjson")).unwrap().contains("\"type\":\"end\""));
}

/// GNU `timeout` sends two signals at once; a supervisor may go on sending them.
#[test]
fn no_number_of_signals_keeps_a_run_from_removing_its_data() {
    for name in ["TERM", "INT"] {
        let lab = Lab::new();
        let mut running =
            Running::start(lab.command_in_dir(&["--verbose", "--config", lab.endless().to_str().unwrap()]));
        running.until("[1/");
        let (code, stderr) = running.end_under_signals(name);
        assert_eq!(code, Some(130), "{stderr}");
        assert_eq!(lab.names().len(), 1, "no data, no lock, only the result: {:?}", lab.names());
        let result = lab.only_result();
        let records = fs::read_to_string(result.join("records.ndjson")).unwrap();
        assert!(records.lines().last().unwrap().contains("\"complete\":false"), "{records}");
        assert!(result.join("report.html").exists(), "{stderr}");
    }
}

/// A file system of this size, in memory. Dropping it unmounts it.
struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts it at a new folder; `None`, with the reason printed, where that is not possible.
    fn new(folder: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir(&folder).unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&folder).output();
        match mount {
            Ok(output) if output.status.success() => Some(Self { folder }),
            Ok(output) => {
                eprintln!("skipped: no small disk: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("skipped: no small disk: {error}");
                None
            }
        }
    }

    /// Writes a file until nothing more fits.
    fn fill(&self) {
        let mut file = fs::File::create(self.folder.join("foreign")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

#[test]
fn on_a_disk_that_fills_up_the_trials_so_far_are_recorded_and_reported() {
    let lab = Lab::new();
    let Some(disk) = SmallDisk::new(lab.outer.path().join("small"), "100m") else { return };
    let dir = disk.folder.join("lab");
    let mut command = lab.command(&["--verbose", "--config", lab.endless().to_str().unwrap(), "--dir"]);
    command.arg(&dir);
    let mut running = Running::start(command);
    running.until("[2/");
    disk.fill();
    let (code, stderr) = running.end();
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.lines().last().unwrap().contains("which are reported"), "{stderr}");
    let entries: Vec<PathBuf> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "only the result: {entries:?}");
    let records = fs::read_to_string(entries[0].join("records.ndjson")).unwrap();
    let last = records.lines().last().unwrap();
    assert!(last.contains("\"type\":\"end\"") && last.contains("No space left"), "{last}");
    let unmeasured = |line: &&str| line.contains("\"type\":\"skip\"") && line.contains("the run ended before it");
    assert!(records.lines().filter(unmeasured).count() > 3, "the gaps are named: {records}");
    assert!(fs::read_to_string(entries[0].join("report.html")).unwrap().contains("<title>nofault lab"));
}

#[test]
fn a_disk_that_stays_full_costs_the_files_and_not_the_answer() {
    let lab = Lab::new();
    let Some(disk) = SmallDisk::new(lab.outer.path().join("small"), "64k") else { return };
    let out = disk.folder.join("out");
    let ended = lab.run(&["--repeats", "2", "--set", "async.runs=20", "--out", out.to_str().unwrap()]);
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    assert!(ended.stdout.contains("async mmap") && ended.stdout.contains("Verdict"), "{}", ended.stdout);
    let records = outcome(lab.command(&["report", "--out"]).arg(lab.outer.path().join("r.html")).arg(&out));
    assert_eq!(records.code, 0, "what the disk took can be read: {}", records.stderr);
}

/// In a terminal Ctrl-C is a character; `script` provides the terminal.
#[test]
fn one_ctrl_c_ends_the_questions_of_a_verdict() {
    let lab = Lab::measured();
    let command = format!("{} lab verdict {}", env!("CARGO_BIN_EXE_nofault"), lab.only_result().display());
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = script.spawn() else {
        println!("left out: there is no program 'script' to make a terminal");
        return;
    };
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("empty: unknown]") {
        let mut some = [0; 256];
        let count = from.read(&mut some).unwrap();
        assert!(count > 0, "it asks: {}", String::from_utf8_lossy(&said));
        said.extend(&some[..count]);
    }
    to.write_all(b"\x03").unwrap();
    // A command that keeps waiting is finally given the end of its input, which is no interruption.
    let (ended, is_ended) = mpsc::channel::<()>();
    let patience = std::thread::spawn(move || {
        let _ = is_ended.recv_timeout(Duration::from_secs(20));
        drop(to);
    });
    from.read_to_end(&mut said).unwrap();
    drop(ended);
    patience.join().unwrap();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("\nnofault: interrupted"), "a separate line: {said}");
}
