//! A child process of the lab, isolated because its work may kill it, and the lines of JSON exchanged with it.
//!
//! The parent starts the child, puts it under its limits, and only then sends it a line of work; the child answers with
//! lines until it is done.
//!
//! Kept true by: a child does not outlive its parent (PR_SET_PDEATHSIG) nor the parent's handle of it; how a child
//! ended is determined from the end of its lines and its exit status, not from a failed write to it.

use std::io::{BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{LabError, LabErrorKind, Result};
use crate::lines::{LineError, Lines};
use crate::paths::shown;

/// Most bytes of a message: a trial's result, which becomes a line of the records.
const LINE_BYTES_MAX: usize = 32 << 20;
/// Most characters shown of a line that is no message.
const SHOWN_CHARS_MAX: usize = 500;
/// Longest time that a child may take to finish after it was asked to, where the parent waits for a limited time.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Returns the command that starts this program as `nofault lab <part>`; in the lab's unit tests, the test named `test`
/// stands for it.
///
/// # Errors
/// `System` when the program's file cannot be found.
pub(crate) fn this_program(part: &str, test: &str) -> Result<Command> {
    let program = std::env::current_exe().map_err(|error| LabError::system("find this program", &error))?;
    let mut command = Command::new(program);
    if cfg!(test) {
        command.args(["--exact", test, "--ignored", "--nocapture"]);
    } else {
        command.args(["lab", part]);
    }
    Ok(command)
}

/// A running child process. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only when the child has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts the child in a new process group, so that Ctrl-C reaches only the parent, which then asks the
    /// child to finish.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Self> {
        command.process_group(0).spawn().map(Self)
    }

    /// Starts the child with pipes for its standard input, output and error.
    ///
    /// # Errors
    /// The system's error, with the program's name.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let started = Self::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        started.map_err(|error| LabError::system(format!("start {}", shown(&command.get_program())), &error))
    }

    /// Sends a message as a line to the child. A failed write is ignored: if the child has ended, the end of its output
    /// tells so.
    ///
    /// # Errors
    /// `System` for a message without a JSON form.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let line = line_of(message)?;
        if let Some(input) = &mut self.0.stdin {
            let _ = input.write_all(line.as_bytes()).and_then(|()| input.flush());
        }
        Ok(())
    }

    /// Takes the child's standard output and returns its lines, which end with the output. For one caller.
    pub(crate) fn lines(&mut self) -> mpsc::Receiver<String> {
        lines_of(self.0.stdout.take())
    }

    /// Takes the child's standard error, if that is a pipe, and returns its lines. For one caller.
    pub(crate) fn complaints(&mut self) -> mpsc::Receiver<String> {
        lines_of(self.0.stderr.take())
    }

    /// Waits for the child's end.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.0.wait()
    }

    /// Passes each of the child's messages to `take`, until that returns a result. On `cancel` the child is asked once
    /// to finish, and its remaining messages are still passed on; once `abandon` is set as well, the child is killed at
    /// once. `if_killed` is added to the error when the child was killed: the likely cause, and the remedy.
    ///
    /// # Errors
    /// The error of `take`; `Interrupted` for an abandoned child; `System` when the child ends or sends a line that is no message, and when it is still
    /// silent after `patience`.
    pub(crate) fn follow<M: DeserializeOwned, T>(
        mut self,
        if_killed: &str,
        patience: Option<Duration>,
        cancel: &AtomicBool,
        abandon: &AtomicBool,
        take: &mut dyn FnMut(M) -> Option<Result<T>>,
    ) -> Result<T> {
        let (lines, complaints) = (self.lines(), self.complaints());
        let mut deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        let mut signalled = false;
        loop {
            if cancel.load(Ordering::Relaxed) && abandon.load(Ordering::Relaxed) {
                return Err(LabError::interrupted());
            }
            if cancel.load(Ordering::Relaxed) && !std::mem::replace(&mut signalled, true) {
                deadline = deadline.map(|_| Instant::now() + LAST_WORDS);
                if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
                    // The child may have ended: then its last line is in the pipe.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
                }
            }
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(message) => {
                        if let Some(result) = take(message) {
                            return result;
                        }
                    }
                    Err(error) => {
                        let beginning: String = line.chars().take(SHOWN_CHARS_MAX).collect();
                        let message = format!("the child printed something that is no message: {error}: {beginning}");
                        return Err(LabError::new(LabErrorKind::System, message));
                    }
                },
                Err(mpsc::RecvTimeoutError::Timeout) if deadline.is_none_or(|end| Instant::now() < end) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let message = "the child did not end in time, and was killed";
                    return Err(LabError::new(LabErrorKind::System, message));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.died(if_killed, &complaints)),
            }
        }
    }

    /// Creates the error for a child that ended without its final message: how it ended, and what it wrote to standard
    /// error.
    fn died(mut self, if_killed: &str, complaints: &mpsc::Receiver<String>) -> LabError {
        let status = self.wait();
        let how = match &status {
            Ok(status) => match status.signal() {
                Some(9) => format!("the child was killed: most likely {if_killed}"),
                Some(7) => "the child died of SIGBUS: the file shrank or a read failed under its map".into(),
                _ => format!("the child ended without a result ({status})"),
            },
            Err(error) => format!("the child ended without a result ({error})"),
        };
        // For a limited time, because a process that the child started may still hold the other end of the pipe.
        let soon = || complaints.recv_timeout(LAST_WORDS / 10).ok();
        let output: Vec<String> = std::iter::from_fn(soon).take(20).collect();
        let message = if output.is_empty() { how } else { format!("{how}: {}", output.join(" / ")) };
        LabError::new(LabErrorKind::System, message)
    }
}

/// The requests that the parent sends to this child process, one line each.
pub(crate) struct Orders<R> {
    from: Lines<BufReader<R>>,
    command: &'static str,
}

impl<R: Read> Orders<R> {
    /// Reads requests from `input`; `command` names this child in messages. From now on the kernel ends this process
    /// when its parent ends: without the parent the result has no reader, and the memory limits may already be gone.
    pub(crate) fn new(input: R, command: &'static str) -> Self {
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        Self { from: Lines::new(BufReader::new(input), LINE_BYTES_MAX), command }
    }

    /// Reads the first request; an error where there is none.
    ///
    /// # Errors
    /// `Usage` for a line that is no order, as when a person runs the command; `System` when the pipe fails.
    pub(crate) fn first<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?.unwrap_or_default();
        self.parse(&line)
    }

    /// Reads the next request; `None` at the end of the input.
    ///
    /// # Errors
    /// As [`Orders::first`].
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        self.line()?.map(|line| self.parse(&line)).transpose()
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let line = self.from.next_line().map(|line| line.map(<[u8]>::to_vec));
        line.map_err(|error| error.of("an order", LabErrorKind::Usage))
    }

    fn parse<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T> {
        serde_json::from_slice(line).map_err(|error| self.usage(&error))
    }

    /// Creates the `Usage` error for a request that cannot be understood.
    pub(crate) fn usage(&self, why: &dyn std::fmt::Display) -> LabError {
        let message = format!("'{}' is called by nofault itself and reads its orders from there: {why}", self.command);
        LabError::new(LabErrorKind::Usage, message)
    }
}

/// Writes one message to the parent, as a line.
///
/// # Errors
/// `System` when the parent has gone, or for a message without a JSON form.
pub(crate) fn send(output: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let line = line_of(message)?;
    let sent = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    sent.map_err(|error| LabError::system("send to the parent", &error))
}

fn line_of(message: &impl Serialize) -> Result<String> {
    let line = serde_json::to_string(message);
    let line = line.map_err(|error| LabError::new(LabErrorKind::System, format!("a message of a child: {error}")))?;
    Ok(line + "\n")
}

/// Returns the lines of a pipe, read by a thread so that the receiver can wait with a timeout. They end with the pipe, and after a line that
/// is too long for a message, in whose place an error stands.
fn lines_of(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    if let Some(pipe) = pipe {
        std::thread::spawn(move || {
            let mut lines = Lines::new(BufReader::new(pipe), LINE_BYTES_MAX).exact();
            loop {
                let (line, is_last) = match lines.next_line() {
                    Ok(Some(line)) => (String::from_utf8_lossy(line).into_owned(), false),
                    Ok(None) | Err(LineError::System(_)) => break,
                    Err(error) => (error.to_string(), true),
                };
                if sender.send(line).is_err() || is_last {
                    break;
                }
            }
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        // Background jobs of a script ignore SIGINT, their children too, and a shell cannot trap a signal that it
        // ignored at its start.
        let mut shell = Command::new("env");
        Running::start(shell.args(["--default-signal=INT", "sh", "-c", script]).stderr(Stdio::piped())).unwrap()
    }

    fn follow(child: Running, patience: Option<Duration>, cancel: bool) -> Result<u64> {
        let mut sum = 0;
        let mut add = |number: u64| {
            sum += number;
            (number == 0).then_some(Ok(sum))
        };
        child.follow("--more", patience, &AtomicBool::new(cancel), &AtomicBool::new(false), &mut add)
    }

    #[test]
    fn messages_are_taken_until_one_is_the_last() {
        assert_eq!(follow(shell("echo 1; echo 2; echo 0; exec sleep 1000"), None, false), Ok(3));
        let mut child = shell("read a; echo $a; echo 0");
        child.send(&7).unwrap();
        assert_eq!(follow(child, None, false), Ok(7));
    }

    #[test]
    fn a_child_that_ends_before_its_last_message_is_reported_with_its_output() {
        let error = |script: &str| follow(shell(script), None, false).unwrap_err().to_string();
        assert!(error("echo 1; echo no disk >&2; exit 3").ends_with("3): no disk"));
        assert!(error("kill -9 $$").contains("--more"));
        assert!(error("kill -7 $$").contains("SIGBUS"));
        assert!(error("echo hello; exec sleep 1000").contains("no message"));
    }

    #[test]
    fn messages_after_the_signal_still_arrive_and_a_silent_child_is_abandoned() {
        let script = "trap 'kill $!; echo 0; exit' INT; sleep 1000 & echo 5; wait";
        let child = shell(script);
        let cancel = AtomicBool::new(false);
        let mut sum = 0;
        let mut add = |number: u64| {
            sum += number;
            // Only now has the shell set its trap.
            cancel.store(true, Ordering::Relaxed);
            (number == 0).then_some(Ok(sum))
        };
        assert_eq!(child.follow("--more", None, &cancel, &AtomicBool::new(false), &mut add), Ok(5));
        let error = follow(shell("exec sleep 1000"), Some(Duration::from_millis(1)), false).unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
    }

    #[test]
    fn a_child_that_ignores_the_signal_is_killed_at_the_second_one() {
        let child = shell("trap '' INT; echo 1; exec sleep 1000");
        let (cancel, abandon) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut stop = |_: u64| {
            cancel.store(true, Ordering::Relaxed);
            abandon.store(true, Ordering::Relaxed);
            None::<Result<()>>
        };
        let error = child.follow("--more", None, &cancel, &abandon, &mut stop).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Interrupted);
    }

    #[test]
    fn orders_are_read_one_by_one_and_other_lines_are_refused_with_a_hint() {
        let mut orders = Orders::new(&b"1\n2\n"[..], "nofault test");
        assert_eq!((orders.first(), orders.next(), orders.next::<u64>()), (Ok(1), Ok(Some(2)), Ok(None)));
        let error = Orders::new(&b"hello\n"[..], "nofault test").first::<u64>().unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Usage);
        assert!(error.to_string().starts_with("'nofault test' is called by nofault itself"), "{error}");
        assert!(Orders::new(&b""[..], "nofault test").first::<u64>().is_err());
    }
}
