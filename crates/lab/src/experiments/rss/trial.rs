//! The measurement of a trial of `rss`, method by method.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::counters::{Snapshot, Watch};
use serde::{Deserialize, Serialize};

use super::{LIMIT, READS, UNDER_PRESSURE_S};
use crate::child::{Orders, Running, send, this_program};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::cache::Means;
use crate::machine::footprint::{CgroupMemory, Footprint};
use crate::machine::memory::CgroupGuard;
use crate::measure::read_loops::Pattern;
use crate::measure::read_loops::fill::Memory;
use crate::measure::{unix_ms, workload};
use crate::read_trials;
use crate::record::{Checks, MemoryLimit, MemoryMethod, Outcome, TrialSpec};

// Reads as every experiment reads, and samples the memory of the process and of its cgroup.

/// Names of the figures: the largest readings.
pub(super) const RSS: &str = "rss_bytes";
pub(super) const PSS: &str = "pss_bytes";
pub(super) const ANONYMOUS: &str = "anonymous_bytes";
pub(super) const CHARGED: &str = "charged_bytes";
pub(super) const WORKING_SET: &str = "working_set_bytes";

/// Time between two samples. A sample walks the page table of the process.
const SAMPLED_EVERY: Duration = Duration::from_millis(100);

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading; `Unsupported` where the kernel does not count the memory of
/// a process.
pub(super) fn run_reads(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let cgroup = context.watch.cgroup_path().map(std::path::Path::to_path_buf);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| -> Result<(Footprint, CgroupMemory)> {
            let (mut own, mut all) = (Footprint::default(), CgroupMemory::default());
            loop {
                own = own.max(Footprint::of_this_process()?);
                all = all.max(cgroup.as_deref().and_then(CgroupMemory::of).unwrap_or_default());
                if done.load(Ordering::Relaxed) {
                    return Ok((own, all));
                }
                std::thread::sleep(SAMPLED_EVERY);
            }
        });
        let outcome = read(spec, context);
        done.store(true, Ordering::Relaxed);
        let sampled = sampler.join();
        let mut outcome = outcome?;
        let (own, all) = sampled.unwrap_or_else(|_| Ok(Default::default()))?;
        let figures = [(RSS, own.rss_bytes), (PSS, own.pss_bytes), (ANONYMOUS, own.anonymous_bytes)];
        let charged = [(CHARGED, all.charged_bytes), (WORKING_SET, all.working_set_bytes)];
        let charged = charged.into_iter().filter(|_| cgroup.is_some());
        outcome.figures.extend(figures.into_iter().chain(charged).map(|(name, bytes)| (name.to_owned(), bytes as f64)));
        Ok(outcome)
    })
}

/// Reads random pages, once memory has settled by the method's own reads.
///
/// # Errors
/// As [`run_reads`].
pub(super) fn read(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, spec.params.block_bytes)?;
    read_trials::execute(spec, &layout, (Pattern::Random, Memory::Settled), context)
}

// Lets memory run out in a cgroup of the lab's own, in which one process reads and a neighbour allocates memory, and reports
// the process that the kernel kills.
//
// Kept true by: both processes end with the trial (`crate::child`); the cgroup is removed when its guard drops, and
// after a crash by the lab's next start; the trial itself is outside of it. Nothing outside of the cgroup can be killed,
// because it is the cgroup's limit that is reached.

/// Names of the figures: whether each process was killed (0 or 1), and the bytes that the neighbour had until then. The kernel
/// may kill a second process while the first one is still ending.
pub(super) const READER_KILLED: &str = "reader_killed";
pub(super) const NEIGHBOUR_KILLED: &str = "neighbour_killed";
pub(super) const NEIGHBOUR: &str = "neighbour_bytes";
/// The neighbour's bytes as a part of the limit.
pub(super) const SHARE: &str = "neighbour_share";

/// Name of the test that a test binary runs as one of the two processes.
const PROCESS_TEST: &str = "experiments::rss::tests::a_process_of_other_tests";
/// Bytes that the neighbour allocates at a time, and the pause after it. The kernel has time to take pages back.
const STEP_BYTES: usize = 4 << 20;
const STEP_PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for the reading process to begin, and for the kernel to kill: so many seconds, and the time in which the limit
/// is filled at the slowest rate that is expected of a device and of reclaim.
const PATIENCE_S: f64 = 60.0;
const SLOWEST_BYTES_PER_S: f64 = 50e6;
/// Time after the death of one process in which the other, which is stopped and allocates nothing, shows whether the kernel
/// had killed it as well. A process of many pages takes some milliseconds to end.
const AFTER_DEATH: Duration = Duration::from_millis(300);
/// Pause between two looks at the processes.
const GLANCE: Duration = Duration::from_millis(2);

/// The task of one of the two processes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// Reads as this trial says.
    Read(Box<TrialSpec>),
    /// Allocates memory until it is killed.
    Allocate,
}

/// The progress of a process: reads done, or bytes allocated, since the last report or in all.
#[derive(Debug, Serialize, Deserialize)]
struct Progress {
    amount: u64,
    wrong: u64,
}

/// Runs the command `nofault lab memory-user`: reads, or allocates memory, as the order says.
///
/// # Errors
/// `Usage` when the input is no order; the error of reading; `System` when the parent has closed the pipe.
pub fn serve(input: impl Read, mut output: impl Write) -> Result<()> {
    match Orders::new(input, "nofault lab memory-user").first()? {
        Order::Read(spec) => {
            let (watch, gone) = (Watch::new(), AtomicBool::new(false));
            let mut on_tick = |tick: &crate::record::Tick| {
                if send(&mut output, &Progress { amount: tick.ops, wrong: 0 }).is_err() {
                    gone.store(true, Ordering::Relaxed);
                }
            };
            let outcome =
                read(&spec, &mut Context { watch: &watch, cancel: &gone, cold: Means::Advise, on_tick: &mut on_tick })?;
            send(&mut output, &Progress { amount: 0, wrong: outcome.checks.wrong })
        }
        Order::Allocate => {
            let mut held = Vec::new();
            loop {
                let mut memory = IoBuf::zeroed(STEP_BYTES, PageKind::Small)?;
                memory.fill(0xA5);
                held.push(memory);
                send(&mut output, &Progress { amount: STEP_BYTES as u64, wrong: 0 })?;
                std::thread::sleep(STEP_PAUSE);
            }
        }
    }
}

/// One of the two processes, with its progress so far.
struct Process {
    running: Running,
    lines: Receiver<String>,
    amount: u64,
    wrong: u64,
}

impl Process {
    fn start(group: &CgroupGuard, order: &Order) -> Result<Self> {
        let mut running = Running::start(this_program("memory-user", PROCESS_TEST)?.stderr(Stdio::null()))?;
        group.add_pid(running.0.id())?;
        let lines = running.lines();
        running.send(order)?;
        Ok(Self { running, lines, amount: 0, wrong: 0 })
    }

    /// Stops the process, so that it allocates no more, and returns whether the kernel had killed it already.
    fn dies_too(&mut self) -> Result<bool> {
        if let Some(pid) = rustix::process::Pid::from_raw(self.running.0.id().cast_signed()) {
            // The process may have ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::STOP);
        }
        let end = Instant::now() + AFTER_DEATH;
        while Instant::now() < end {
            if let Some(status) = self.look()? {
                return Ok(status.signal() == Some(9));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(false)
    }

    /// Takes the reports that have come, and returns how the process ended; `None` while it runs.
    fn look(&mut self) -> Result<Option<std::process::ExitStatus>> {
        // The status is read first: all reports of a process that has ended are in the pipe.
        let ended = self.running.0.try_wait().map_err(|error| LabError::system("look at a process", &error))?;
        loop {
            match self.lines.try_recv() {
                // The test harness prints lines, too, and the last line may be cut off.
                Ok(line) => {
                    if let Ok(progress) = serde_json::from_str::<Progress>(&line) {
                        self.amount += progress.amount;
                        self.wrong += progress.wrong;
                    }
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(ended),
            }
        }
    }
}

/// Measures one trial.
///
/// # Errors
/// `Unsupported` or `NoPermission` where no cgroup can be made; `System` when a process ends by itself, or when none is killed in
/// time.
pub(super) fn run_pressure(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let limit = spec.params.extra.get(LIMIT).and_then(|text| text.parse().ok());
    let limit_bytes: u64 =
        limit.ok_or_else(|| LabError::new(LabErrorKind::Usage, format!("{}: {LIMIT} must be a number", spec.key())))?;
    let before = Snapshot::take(context.watch);
    let group = CgroupGuard::create(limit_bytes)?;
    let filling_s = limit_bytes as f64 / SLOWEST_BYTES_PER_S;
    let patience = Duration::from_secs_f64(PATIENCE_S + filling_s);
    let reading = TrialSpec {
        variant: READS.into(),
        duration_s: UNDER_PRESSURE_S + filling_s,
        memory: MemoryLimit { method: MemoryMethod::LargeFile, bytes: limit_bytes },
        ..spec.clone()
    };
    let started = (unix_ms(), Instant::now());
    let mut reader = Process::start(&group, &Order::Read(Box::new(reading)))?;
    wait(&mut reader, None, patience, context.cancel, |reader, _| reader.amount > 0)?;
    let mut neighbour = Process::start(&group, &Order::Allocate)?;
    let killed = wait(&mut reader, Some(&mut neighbour), patience, context.cancel, |_, _| false)?;
    let mut outcome = Outcome { started_unix_ms: started.0, ..Outcome::default() };
    outcome.elapsed_s = started.1.elapsed().as_secs_f64();
    (outcome.ops, outcome.bytes) = (reader.amount, reader.amount * spec.params.block_bytes);
    outcome.checks = Checks { verified: reader.amount, wrong: reader.wrong, ..Checks::default() };
    outcome.partial = killed.is_none();
    let survivor = match killed {
        Some(Victim::Reader) => Some(&mut neighbour),
        Some(Victim::Neighbour) => Some(&mut reader),
        None => None,
    };
    let both = survivor.map_or(Ok(false), Process::dies_too)?;
    let died = |victim: Victim| f64::from(u8::from(both || killed == Some(victim)));
    let figures = [
        (READER_KILLED, died(Victim::Reader)),
        (NEIGHBOUR_KILLED, died(Victim::Neighbour)),
        (NEIGHBOUR, neighbour.amount as f64),
        (SHARE, neighbour.amount as f64 / limit_bytes as f64),
        ("oom_kills", group.usage()?.oom_kills as f64),
    ];
    outcome.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    drop((reader, neighbour));
    // The two processes are the trial's own, so that their reads of the device are no others'.
    let counters = Snapshot::take(context.watch).since(&before).named().into_iter();
    let counters = counters.filter(|(name, _)| !name.contains("device_"));
    outcome.counters = counters.map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(outcome)
}

/// The process that the kernel killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Reader,
    Neighbour,
}

/// Waits until the kernel kills one of the processes, or `enough` says so; `None` for the latter, and when the user stops the run.
fn wait(
    reader: &mut Process,
    mut neighbour: Option<&mut Process>,
    patience: Duration,
    cancel: &AtomicBool,
    enough: impl Fn(&Process, Option<&Process>) -> bool,
) -> Result<Option<Victim>> {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if let Some(process) = neighbour.as_deref_mut()
            && let Some(status) = process.look()?
        {
            return killed(status, Victim::Neighbour);
        }
        if let Some(status) = reader.look()? {
            return killed(status, Victim::Reader);
        }
        if enough(reader, neighbour.as_deref()) || cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        std::thread::sleep(GLANCE);
    }
    let message = format!("rss: the kernel killed no process within {} s", patience.as_secs());
    Err(LabError::new(LabErrorKind::System, message))
}

fn killed(status: std::process::ExitStatus, victim: Victim) -> Result<Option<Victim>> {
    match status.signal() {
        Some(9) => Ok(Some(victim)),
        _ => Err(LabError::new(LabErrorKind::System, format!("rss: a process ended by itself ({status})"))),
    }
}
