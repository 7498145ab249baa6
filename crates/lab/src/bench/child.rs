//! A work in a process of its own, inside a memory cgroup: so that "out of core" is true for everybody, also for those whose
//! cache is the kernel's.
//!
//! The parent starts `nofault db bench --child`, puts it into the group, and only then sends the options as one line of
//! JSON. The child answers with lines: what it is doing, and at the end its rows. Its parent's death kills it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::row::Row;
use super::{BenchOptions, run};
use crate::error::{LabError, LabErrorKind, Result};
use crate::format;
use crate::machine::memory::CgroupGuard;

/// Memory that a process needs beside 1.3 times its cache: the engine's own rule.
const BESIDE_CACHE_BYTES: u64 = 64 << 20;

/// A line from child to parent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Doing(String),
    Done { rows: Vec<Row>, trouble: Option<(String, String)> },
}

/// The least limit under which a process with a cache of this size is not killed.
pub(super) fn limit_bytes(cache_bytes: u64) -> u64 {
    cache_bytes + cache_bytes.div_ceil(10) * 3 + BESIDE_CACHE_BYTES
}

/// Runs one work in a child of `program`. Answers its rows, each saying under which limit it was measured, and what went wrong.
///
/// # Errors
/// `System` when the child cannot be started, or dies.
pub(super) fn run_work(
    program: &Path,
    options: &BenchOptions,
    cancel: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<(Vec<Row>, Option<LabError>)> {
    let bytes = options.limit_bytes.unwrap_or_else(|| limit_bytes(options.cache_bytes));
    let group = CgroupGuard::create(bytes);
    let note = match &group {
        Ok(_) if bytes >= options.data_bytes => {
            format!("in a memory cgroup of {}, which is not less than the data", format::bytes(bytes))
        }
        Ok(_) => format!("in a memory cgroup of {}, page cache included", format::bytes(bytes)),
        Err(error) => format!("no memory cgroup ({error}): rivals may keep everything in the page cache"),
    };
    let mut child = Running::start(program)?;
    if let Ok(group) = &group {
        group.add_pid(child.0.id())?;
    }
    child.send(options)?;
    let (mut rows, trouble) = child.follow(cancel, say)?;
    rows.iter_mut().for_each(|row| row.note(note.clone()));
    Ok((rows, trouble))
}

/// The child's side: reads options from `input`, works, writes messages to `output`.
///
/// # Errors
/// `Usage` when the input is not of this program; `System` when the parent has gone.
pub fn serve(input: impl Read, mut output: impl Write, cancel: &AtomicBool) -> Result<()> {
    // Without a parent nobody reads the result, and the limit may already be gone.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut line = String::new();
    BufReader::new(input).read_line(&mut line).map_err(|error| LabError::system("read the options", &error))?;
    let options: BenchOptions = serde_json::from_str(&line).map_err(|error| {
        let message = format!("'nofault db bench --child' is called by the benchmark itself: {error}");
        LabError::new(LabErrorKind::Usage, message)
    })?;
    let mut send = |message: &Message| -> Result<()> {
        let mut line = serde_json::to_string(message)
            .map_err(|error| LabError::new(LabErrorKind::System, format!("a message of the benchmark: {error}")))?;
        line.push('\n');
        let sent = output.write_all(line.as_bytes()).and_then(|()| output.flush());
        sent.map_err(|error| LabError::system("tell the parent", &error))
    };
    // A parent that has gone takes this process with it.
    let (report, trouble) = run(&options, cancel, &mut |what| drop(send(&Message::Doing(what.to_owned()))))?;
    let trouble = trouble.map(|error| (error.kind().name().to_owned(), error.to_string()));
    send(&Message::Done { rows: report.rows, trouble })
}

/// A child at work. Killed and waited for when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(program: &Path) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        Command::new(program)
            .args(["db", "bench", "--child"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches the parent alone, which tells the child to finish what it has.
            .process_group(0)
            .spawn()
            .map(Self)
            .map_err(|error| LabError::system(format!("start {}", program.display()), &error))
    }

    fn send(&mut self, options: &BenchOptions) -> Result<()> {
        let no_pipe = || LabError::new(LabErrorKind::System, "no pipe to the child");
        let mut line = serde_json::to_string(options)
            .map_err(|error| LabError::new(LabErrorKind::System, format!("the child's options: {error}")))?;
        line.push('\n');
        let mut input = self.0.stdin.take().ok_or_else(no_pipe)?;
        input.write_all(line.as_bytes()).map_err(|error| LabError::system("send the child its options", &error))
    }

    fn follow(&mut self, cancel: &AtomicBool, say: &mut dyn FnMut(&str)) -> Result<(Vec<Row>, Option<LabError>)> {
        let lines = lines_of(self.0.stdout.take());
        let mut told = false;
        loop {
            if cancel.load(Ordering::Relaxed)
                && !std::mem::replace(&mut told, true)
                && let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed())
            {
                // It may have ended meanwhile: then its last line is on the way.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
            }
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => match serde_json::from_str(&line) {
                    // The parent has said which work it is.
                    Ok(Message::Doing(what)) => say(&what),
                    Ok(Message::Done { rows, trouble }) => {
                        let trouble =
                            trouble.map(|(kind, message)| LabError::new(LabErrorKind::of_name(&kind), message));
                        return Ok((rows, trouble));
                    }
                    Err(error) => {
                        let message = format!("the child said something that is no message: {error}: {line}");
                        return Err(LabError::new(LabErrorKind::System, message));
                    }
                },
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.died()),
            }
        }
    }

    fn died(&mut self) -> LabError {
        use std::os::unix::process::ExitStatusExt;
        let how = match self.0.wait() {
            Ok(status) if status.signal() == Some(9) => {
                "the child was killed: most likely out of memory under its limit; give it more (--limit)".to_owned()
            }
            Ok(status) => format!("the child ended without a result ({status})"),
            Err(error) => format!("the child ended without a result ({error})"),
        };
        LabError::new(LabErrorKind::System, how)
    }
}

/// Lines of a pipe, read by a thread so that the reader can also look for Ctrl-C. Ends with the pipe.
fn lines_of(pipe: Option<ChildStdout>) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    if let Some(pipe) = pipe {
        std::thread::spawn(move || {
            let lines = BufReader::new(pipe).lines().map_while(std::result::Result::ok);
            lines.map(|line| sender.send(line)).take_while(std::result::Result::is_ok).for_each(drop);
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_are_no_options_is_refused_with_a_word_about_who_calls_this() {
        let error = serve(&b"hello\n"[..], Vec::new(), &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Usage);
        assert!(error.to_string().contains("called by the benchmark itself"));
    }

    #[test]
    fn a_child_answers_with_rows_that_the_parent_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let options = BenchOptions {
            data_bytes: 1 << 20,
            memory_keys: 1000,
            ..super::super::tests::tiny(folder.path(), &["space"])
        };
        let mut said = Vec::new();
        let line = serde_json::to_string(&options).unwrap() + "\n";
        serve(line.as_bytes(), &mut said, &AtomicBool::new(false)).unwrap();
        let last = String::from_utf8(said).unwrap().lines().last().unwrap().to_owned();
        let Message::Done { rows, trouble } = serde_json::from_str(&last).unwrap() else { panic!("{last}") };
        assert!(trouble.is_none() && rows.len() == 4 && rows[0].engine.is_some(), "{rows:?}");
    }
}
