//! One cell in a process of its own, and the two sides of the pipe to it.
//!
//! The parent starts `nofault lab cell`, puts the new process under the memory limit, and only then sends the
//! [`CellSpec`] as one line of JSON. The child answers with [`Message`] lines: each tick as it ends, then the outcome or the
//! error. A child that dies says so by the missing last line; its parent's death kills it (PR_SET_PDEATHSIG).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nofault_io::counters::Watch;
use serde::{Deserialize, Serialize};

use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{self, Context};
use crate::machine::cache;
use crate::record::{CacheState, CellSpec, MemoryMethod, Outcome, Tick};

/// What the parent sends: the cell, and the cgroup to watch.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    spec: CellSpec,
    cgroup: Option<PathBuf>,
}

/// A line from child to parent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Tick(Tick),
    Outcome(Box<Outcome>),
    Failed { kind: String, message: String },
}

/// How cells are executed.
#[derive(Debug, Clone)]
pub enum Launcher {
    /// In a child process for each cell: this program, called as `nofault lab cell`.
    Child(PathBuf),
    /// In this process, without a memory limit. For tests.
    InProcess,
}

impl Launcher {
    /// Executes one cell. `confine` is given the new process's id before it starts to work. On `cancel` the cell is cut short and
    /// what it measured comes back marked partial.
    ///
    /// # Errors
    /// The cell's own error; `System` when the process cannot be started or dies.
    pub fn execute(
        &self,
        spec: &CellSpec,
        cgroup: Option<&Path>,
        confine: &mut dyn FnMut(u32) -> Result<()>,
        cancel: &AtomicBool,
        on_tick: &mut dyn FnMut(&Tick),
    ) -> Result<Outcome> {
        match self {
            Self::InProcess => execute_here(spec, cgroup, cancel, on_tick),
            Self::Child(program) => {
                let mut child = Running::start(program)?;
                confine(child.0.id())?;
                child.send(&Order { spec: spec.clone(), cgroup: cgroup.map(Path::to_path_buf) })?;
                child.follow(spec, cancel, on_tick)
            }
        }
    }
}

/// The child's side of `nofault lab cell`: reads an order from `input`, works, writes messages to `output`.
///
/// # Errors
/// `Usage` when the input is no order; `System` when the parent has gone. Errors of the cell are messages.
pub fn serve(input: impl Read, output: impl Write + Send, cancel: &AtomicBool) -> Result<()> {
    // Without a parent nobody reads the result, and the memory limit may already be gone.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut line = String::new();
    BufReader::new(input).read_line(&mut line).map_err(|error| LabError::system("read the order", &error))?;
    let order: Order = serde_json::from_str(&line).map_err(|error| {
        let message = format!("'nofault lab cell' is called by the lab itself and reads its order from there: {error}");
        LabError::new(LabErrorKind::Usage, message)
    })?;
    let mut output = output;
    let mut gone = false;
    let result = execute_here(&order.spec, order.cgroup.as_deref(), cancel, &mut |tick| {
        gone |= say(&mut output, &Message::Tick(tick.clone())).is_err();
        if gone {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    say(
        &mut output,
        &match result {
            Ok(outcome) => Message::Outcome(Box::new(outcome)),
            Err(error) => Message::Failed { kind: error.kind().name().into(), message: error.to_string() },
        },
    )
}

fn say(output: &mut impl Write, message: &Message) -> Result<()> {
    let mut line = serde_json::to_string(message)
        .map_err(|error| LabError::new(LabErrorKind::System, format!("a cell's message: {error}")))?;
    line.push('\n');
    output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|error| LabError::system("tell the parent", &error))
}

fn execute_here(
    spec: &CellSpec,
    cgroup: Option<&Path>,
    cancel: &AtomicBool,
    on_tick: &mut dyn FnMut(&Tick),
) -> Result<Outcome> {
    let mut watch = Watch::new();
    for path in &spec.target.paths {
        // tmpfs and the like have no device to count: the cell then has no device counters.
        watch = match Watch::device_of(watch, Path::new(path)) {
            Ok(watch) => watch,
            Err(_) => Watch::new(),
        };
    }
    if let Some(folder) = cgroup {
        watch = watch.cgroup(folder)?;
    }
    // Here and not in the parent: this process is under the limit, and pages are charged to whoever reads them first.
    let warm = match spec.cache {
        CacheState::Warm if !experiment::warms_itself(spec) => {
            let paths: Vec<&Path> = spec.target.paths.iter().map(Path::new).collect();
            let bytes = if spec.memory.method == MemoryMethod::None { u64::MAX } else { spec.memory.bytes };
            Some(cache::make_warm(&paths, bytes)?)
        }
        CacheState::Cold | CacheState::Warm => None,
    };
    let mut outcome = experiment::execute(spec, &mut Context { watch: &watch, cancel, on_tick })?;
    if let Some((warm, held)) = warm {
        drop(held);
        outcome.cache_method = warm.method;
        outcome.resident_before_bytes = warm.resident_bytes;
    }
    Ok(outcome)
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
            .args(["lab", "cell"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C reaches the parent alone, which tells the child to finish what it has.
            .process_group(0)
            .spawn()
            .map(Self)
            .map_err(|error| LabError::system(format!("start {}", program.display()), &error))
    }

    fn send(&mut self, order: &Order) -> Result<()> {
        let mut line = serde_json::to_string(order)
            .map_err(|error| LabError::new(LabErrorKind::System, format!("a cell's order: {error}")))?;
        line.push('\n');
        let mut input =
            self.0.stdin.take().ok_or_else(|| LabError::new(LabErrorKind::System, "no pipe to the cell"))?;
        input.write_all(line.as_bytes()).map_err(|error| LabError::system("send the cell its order", &error))
    }

    /// Reads messages until the last one. A cell that is silent for long after its time is killed.
    fn follow(mut self, spec: &CellSpec, cancel: &AtomicBool, on_tick: &mut dyn FnMut(&Tick)) -> Result<Outcome> {
        let lines = read_lines(self.0.stdout.take());
        let complaints = read_lines(self.0.stderr.take());
        let mut deadline = Instant::now() + patience(spec);
        let mut told = false;
        loop {
            if cancel.load(Ordering::Relaxed) && !told {
                told = true;
                deadline = Instant::now() + Duration::from_secs(10);
                if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
                    // It may have ended meanwhile: then its last line is on the way.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
                }
            }
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(Message::Tick(tick)) => on_tick(&tick),
                    Ok(Message::Outcome(outcome)) => return Ok(*outcome),
                    Ok(Message::Failed { kind, message }) => {
                        return Err(LabError::new(LabErrorKind::of_name(&kind), message));
                    }
                    Err(error) => {
                        let message = format!("the cell said something that is no message: {error}: {line}");
                        return Err(LabError::new(LabErrorKind::System, message));
                    }
                },
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let message = format!("the cell did not end {} s after its time", patience(spec).as_secs());
                    return Err(LabError::new(LabErrorKind::System, message));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.died(&complaints)),
            }
        }
    }

    /// Why a child ended without a last line.
    fn died(mut self, complaints: &mpsc::Receiver<String>) -> LabError {
        use std::os::unix::process::ExitStatusExt;
        let status = self.0.wait();
        let how = match &status {
            Ok(status) => match status.signal() {
                Some(9) => {
                    "the cell was killed: most likely out of memory under its limit; give it more (--memory)".into()
                }
                Some(7) => "the cell died of SIGBUS: the file shrank or a read failed under its map".into(),
                _ => format!("the cell ended without a result ({status})"),
            },
            Err(error) => format!("the cell ended without a result ({error})"),
        };
        let said: Vec<String> = complaints.try_iter().take(20).collect();
        let message = if said.is_empty() { how } else { format!("{how}: {}", said.join(" / ")) };
        LabError::new(LabErrorKind::System, message)
    }
}

/// How long a cell may take beyond its time: opening, populating, a slow disk, a queue that drains.
fn patience(spec: &CellSpec) -> Duration {
    Duration::from_secs_f64(spec.duration_s.max(1.0) * 2.0 + 120.0)
}

/// Lines of a pipe, read by a thread so that the reader can also wait for other things. Ends with the pipe.
fn read_lines(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    if let Some(pipe) = pipe {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
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

    #[test]
    fn what_is_no_order_is_refused_with_a_word_about_who_calls_this() {
        let error = serve(&b"hello\n"[..], Vec::new(), &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Usage);
        assert!(error.to_string().contains("called by the lab itself"));
    }
}
