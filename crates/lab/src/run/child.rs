//! One trial in a separate process, and the two sides of the pipe to it.
//!
//! The parent starts `nofault lab trial`, puts the new process under the memory limit, and only then sends the
//! [`TrialSpec`] as one line of JSON. The child answers with `Message` lines: each tick as it ends, then the outcome
//! or the error. `child` starts the process, reads its lines and ends it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nofault_io::counters::{Snapshot, Watch};
use serde::{Deserialize, Serialize};

use super::noise;
use super::schedule::preparation_s;
use crate::child::{Orders, Running, send};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::experiments;
use crate::machine::cache;
use crate::paths;
use crate::record::{CacheState, MemoryMethod, Outcome, Tick, TrialSpec};

/// The message that the parent sends: the trial, and the cgroup whose counters the child reads.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    spec: TrialSpec,
    /// As [`paths::to_text`] writes it.
    cgroup: Option<String>,
}

/// A message that the child sends, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Tick(Tick),
    Outcome(Box<Outcome>),
    Failed { kind: String, message: String },
}

/// How trials are executed.
#[derive(Debug, Clone)]
pub enum Launcher {
    /// Each trial in a separate child process.
    Child {
        /// The program, which is called as `nofault lab trial`.
        program: PathBuf,
        /// Set, together with the flag that stops the run, when the user will not wait for the result of the present trial:
        /// its process is killed, and everything is cleaned up as always.
        abandon: Arc<AtomicBool>,
    },
    /// Trials in this process, without a memory limit. For tests.
    InProcess,
}

impl Launcher {
    /// Executes one trial. `confine` is called with the new process's id before the process starts to work. On `cancel`
    /// the trial is cut short and its results so far are returned, marked partial.
    ///
    /// # Errors
    /// The trial's own error; `System` when the process cannot be started or dies.
    pub fn execute(
        &self,
        spec: &TrialSpec,
        cgroup: Option<&Path>,
        confine: &mut dyn FnMut(u32) -> Result<()>,
        cancel: &AtomicBool,
        on_tick: &mut dyn FnMut(&Tick),
    ) -> Result<Outcome> {
        match self {
            Self::InProcess => execute_here(spec, cgroup, cancel, on_tick),
            Self::Child { program, abandon } => {
                let mut child = Running::start(Command::new(program).args(["lab", "trial"]).stderr(Stdio::piped()))?;
                confine(child.0.id())?;
                child.send(&Order { spec: spec.clone(), cgroup: cgroup.map(paths::to_text) })?;
                let (cause, patience) = (if_killed(spec), Some(patience(spec)));
                child.follow(&cause, patience, cancel, abandon, &mut |message| match message {
                    Message::Tick(tick) => {
                        on_tick(&tick);
                        None
                    }
                    Message::Outcome(outcome) => Some(Ok(*outcome)),
                    Message::Failed { kind, message } => {
                        Some(Err(LabError::new(LabErrorKind::of_name(&kind), message)))
                    }
                })
            }
        }
    }
}

/// Runs the child's side, `nofault lab trial`: reads the trial from `input`, measures, writes messages to `output`.
///
/// # Errors
/// `Usage` when the input is no order; `System` when the parent has gone. Errors of the trial are messages.
pub fn serve(input: impl Read, output: impl Write + Send, cancel: &AtomicBool) -> Result<()> {
    let order: Order = Orders::new(input, "nofault lab trial").first()?;
    let mut output = output;
    let mut gone = false;
    let result =
        execute_here(&order.spec, order.cgroup.as_deref().map(paths::from_text).as_deref(), cancel, &mut |tick| {
            gone |= send(&mut output, &Message::Tick(tick.clone())).is_err();
            if gone {
                cancel.store(true, Ordering::Relaxed);
            }
        });
    send(
        &mut output,
        &match result {
            Ok(outcome) => Message::Outcome(Box::new(outcome)),
            Err(error) => Message::Failed { kind: error.kind().name().into(), message: error.to_string() },
        },
    )
}

fn execute_here(
    spec: &TrialSpec,
    cgroup: Option<&Path>,
    cancel: &AtomicBool,
    on_tick: &mut dyn FnMut(&Tick),
) -> Result<Outcome> {
    let experiment = experiments::known(spec.experiment)?;
    let mut watch = Watch::new();
    for path in &spec.target.paths {
        // tmpfs and similar have no device: the trial then has no device counters.
        watch = match Watch::device_of(watch, Path::new(path)) {
            Ok(watch) => watch,
            Err(_) => Watch::new(),
        };
    }
    if let Some(folder) = cgroup {
        watch = watch.cgroup(folder)?;
    }
    // Here and not in the parent: this process is under the limit, and a page is charged to its first reader.
    let warm = match spec.cache {
        CacheState::Warm if !experiment.warms_itself(spec) => {
            let paths: Vec<&Path> = spec.target.paths.iter().map(Path::new).collect();
            let bytes = if spec.memory.method == MemoryMethod::None { u64::MAX } else { spec.memory.bytes };
            Some(cache::make_warm(&paths, bytes)?)
        }
        CacheState::Cold | CacheState::Warm => None,
    };
    let before = Snapshot::take(&watch);
    let mut outcome =
        experiment.execute(spec, &mut Context { watch: &watch, cancel, cold: cache::Means::best(), on_tick })?;
    let around = Snapshot::take(&watch).since(&before).named();
    noise::warn(&mut outcome, &around.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    if let Some((warm, held)) = warm {
        drop(held);
        outcome.cache_method = warm.method;
        outcome.resident_before_bytes = warm.resident_bytes;
    }
    Ok(outcome)
}

/// The likely cause when a trial is killed, and the setting that gives the trial more memory or lets it use less.
fn if_killed(spec: &TrialSpec) -> String {
    let Some(experiment) = experiments::find(spec.experiment) else { return "out of memory".into() };
    if matches!(spec.memory.method, MemoryMethod::None | MemoryMethod::LargeFile) {
        let less = (experiment.description().less_memory)(&spec.target)
            .map_or(String::new(), |how| format!("; ask for less ({how})"));
        return format!("the machine ran out of memory{less}");
    }
    let more = (experiment.description().more_memory)(&spec.target);
    format!("out of memory under its limit; give it more ({more})")
}

/// Longest time that a trial may take beyond its planned time: for opening files, filling databases, a slow disk, a
/// queue that drains.
fn patience(spec: &TrialSpec) -> Duration {
    Duration::from_secs_f64((spec.duration_s.max(1.0) + preparation_s(spec) * 4.0) * 2.0 + 120.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ExperimentId, MemoryLimit, Params, Target};

    #[test]
    fn input_that_is_no_order_is_refused_with_a_hint() {
        let error = serve(&b"hello\n"[..], Vec::new(), &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Usage);
        assert!(error.to_string().contains("called by nofault itself"));
    }
    /// The error message of a trial whose process is killed before it has worked.
    fn message_when_killed(experiment: ExperimentId, label: &str, method: MemoryMethod) -> String {
        let spec = TrialSpec {
            experiment,
            variant: String::new(),
            target: Target { label: label.into(), paths: Vec::new(), data_bytes: 0, content_seed: None },
            method: String::new(),
            params: Params::default(),
            repeat: 0,
            duration_s: 1.0,
            memory: MemoryLimit { method, bytes: 64 << 20 },
            cache: CacheState::Cold,
            seed: 1,
        };
        let mut kill = |pid: u32| {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            Ok(())
        };
        // `xargs` waits for its input, with any arguments.
        let launcher = Launcher::Child { program: "xargs".into(), abandon: Arc::default() };
        let ended = launcher.execute(&spec, None, &mut kill, &AtomicBool::new(false), &mut |_| ());
        ended.unwrap_err().to_string()
    }

    #[test]
    fn the_error_of_a_killed_trial_names_the_setting_for_more_memory() {
        use experiments::{engines, eviction, random, scan, translate};
        let by_group = |experiment, label| message_when_killed(experiment, label, MemoryMethod::CgroupV2);
        for (experiment, label, flag) in [
            (random::ID, "file", "(--memory)"),
            (eviction::ID, "ram", "(--memory)"),
            (engines::ID, "file", "(--memory)"),
            (engines::ID, "in-memory", "(--set engines.fit_memory_bytes=BYTES)"),
            (random::ID, "ram", "(--set ram_memory_bytes=BYTES)"),
            (scan::ID, "ram-striped-2", "(--set ram_memory_bytes=BYTES)"),
        ] {
            let message = by_group(experiment, label);
            assert!(message.contains("under its limit") && message.ends_with(flag), "{experiment} {label}: {message}");
        }
        let unlimited = message_when_killed(translate::ID, "memory", MemoryMethod::None);
        assert!(unlimited.contains("the machine ran out of memory; ask for less"), "{unlimited}");
        assert!(unlimited.contains("translate.working_set_bytes"), "{unlimited}");
    }
}
