//! fio, the outside baseline: the same engine, depth, threads, block size and bytes as our own method, read only.
//!
//! fio measures itself. Its status reports, one a tick, carry sums since its start. They make the time series, and the
//! interval between the first and the last report is the steady window: as with our own methods, all but the first
//! tick. fio gets the same resources as ours: registered file and buffers, the same batches, and (unless the trial is
//! there to show the difference) buffers in huge pages, which its C library provides through a tunable. It verifies
//! nothing, so its trials have no checks.
//!
//! Two things are not left to fio, because they would favour it:
//! 1. Its order. The first thread of fio 3.33 reads the same blocks in every run, for any `randseed`, unless
//!    `randrepeat` is off; a host below this machine then has them in its cache. With it off that thread's order cannot
//!    be repeated; the other threads' follow from the seed.
//! 2. Its CPU time. fio truncates each thread's to whole milliseconds at every report: with 16 threads and a report a
//!    tick that hides 1 µs a read. Instead the kernel's own figures for its reading threads are taken with each report,
//!    which leaves out fio's start and its reports.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nofault_io::aligned::PageKind;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;

use crate::child::Running;
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::system::threads_cpu_s;
use crate::measure::read_loops::{self, Pattern, order_seed, ring};
use crate::measure::workload::Layout;
use crate::measure::{self, Measurement, Work, Worker, is_level, new_histogram};
use crate::record::{Latency, Outcome, Tick, TrialSpec, Window};

/// The reason why fio's methods are left out where fio is not installed.
pub const NOT_INSTALLED: &str = "fio is not installed, so there is no outside baseline; install it (apt install fio)";

/// Time that fio gets beyond the trial's duration, for set-up and reports, before it is stopped.
const GRACE: Duration = Duration::from_secs(20);

/// The I/O engine that fio uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// fio calls `pread`, on threads.
    Psync,
    /// fio uses io_uring.
    Uring,
}

/// Runs fio as the worker of a trial.
///
/// # Errors
/// `Unsupported` when it is not installed, `System` when it fails or its output cannot be parsed; the message quotes
/// its error stream.
pub fn run(
    plan: &Measurement<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    pattern: Pattern,
    engine: Engine,
    on_tick: &mut dyn FnMut(&Tick),
) -> Result<Outcome> {
    let mut command = Command::new("fio");
    command.args(arguments(plan.duration, spec, layout, pattern, engine)?);
    // glibc's malloc asks for transparent huge pages then; other C libraries ignore it.
    if ring::pages_of(spec, pattern) == PageKind::Huge {
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    }
    run_command(plan, command, spec.params.threads, on_tick)
}

fn run_command(
    plan: &Measurement<'_>,
    command: Command,
    threads: u32,
    on_tick: &mut dyn FnMut(&Tick),
) -> Result<Outcome> {
    let reports = Mutex::new(Vec::new());
    let longer = Measurement { duration: plan.duration + GRACE, ..*plan };
    let work: Work<'_> = Box::new(|worker| drive(worker, command, threads, &reports));
    let outcome = measure::run(&longer, vec![work], on_tick)?;
    let reports = reports.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(with_reports(outcome, &reports, plan.tick))
}

fn arguments(
    duration: Duration,
    spec: &TrialSpec,
    layout: &Layout,
    pattern: Pattern,
    engine: Engine,
) -> Result<Vec<OsString>> {
    let [path] = layout.paths.as_slice() else {
        return Err(LabError::new(LabErrorKind::Usage, "fio: one file or device at a time"));
    };
    let block_bytes = layout.block_bytes;
    let mut file = b"--filename=".to_vec();
    for byte in path.as_os_str().as_bytes() {
        // A colon separates file names.
        file.extend((*byte == b':').then_some(b'\\').into_iter().chain([*byte]));
    }
    let mut arguments: Vec<String> =
        ["--name=nofault", "--readonly", "--allow_file_create=0", "--direct=1", "--thread"]
            .into_iter()
            .chain(["--group_reporting", "--time_based", "--eta=never", "--output-format=json+"])
            .map(str::to_owned)
            .collect();
    arguments.extend([
        format!("--bs={block_bytes}"),
        format!("--offset={}", layout.place(0).offset_bytes),
        format!("--size={}", layout.block_count() * block_bytes),
        format!("--numjobs={}", spec.params.threads),
        format!("--runtime={}ms", duration.as_millis()),
        format!("--status-interval={}ms", read_loops::tick_of(spec).as_millis().max(100)),
        // fio takes no seed of 64 bits.
        format!("--randseed={}", order_seed(spec) >> 33),
        // Without this option fio's first thread ignores the seed.
        "--randrepeat=0".into(),
    ]);
    match pattern {
        Pattern::Random => arguments.extend(["--rw=randread".into(), "--norandommap".into()]),
        Pattern::Scan { .. } => arguments.push("--rw=read".into()),
        Pattern::Skewed(_) | Pattern::Recorded => {
            let message = "fio: it cannot read the blocks in the lab's order";
            return Err(LabError::new(LabErrorKind::Usage, message));
        }
    }
    match engine {
        Engine::Psync => arguments.push("--ioengine=psync".into()),
        Engine::Uring => {
            let (depth, batch) = (spec.params.depth, ring::batch_of(spec.params.depth, block_bytes));
            arguments.extend([
                "--ioengine=io_uring".into(),
                "--registerfiles=1".into(),
                format!("--iodepth={depth}"),
                format!("--iodepth_batch_submit={batch}"),
                format!("--iodepth_batch_complete_min={batch}"),
                format!("--iodepth_batch_complete_max={depth}"),
            ]);
            // fio fails where the kernel refuses to pin its buffers, so the locked-memory limit is checked.
            let memlock = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            if memlock.is_none_or(|bytes| bytes >= u64::from(depth).saturating_mul(block_bytes).saturating_mul(2)) {
                arguments.push("--fixedbufs=1".into());
            }
        }
    }
    Ok(arguments.into_iter().map(OsString::from).chain([OsString::from_vec(file)]).collect())
}

/// One status report of fio, with sums since its start.
#[derive(Debug, Clone, PartialEq)]
struct Report {
    /// Time of the report's arrival, in seconds after the start of the trial.
    at_s: f64,
    /// Time that fio had been reading, in seconds.
    runtime_s: f64,
    ops: u64,
    bytes: u64,
    /// CPU seconds of the reading threads until now; `None` where /proc does not give them, and once the threads have
    /// ended.
    cpu_s: Option<f64>,
    /// The fraction of its CPU time that fio spent in the kernel, by fio's own figures.
    system_share: f64,
    latency: Latency,
}

impl Report {
    fn of(json: &Value, at_s: f64, cpu_s: Option<f64>) -> Result<Self> {
        let job = &json["jobs"][0];
        let number = |value: &Value, name: &str| -> Result<f64> {
            value[name].as_f64().ok_or_else(|| nonsense(&format!("no number '{name}'"), &json.to_string()))
        };
        if let Some(code) = job["error"].as_i64().filter(|code| *code != 0) {
            return Err(LabError::system("fio", &std::io::Error::from_raw_os_error(code as i32)));
        }
        let read = &job["read"];
        let (user, system) = (number(job, "usr_cpu")?, number(job, "sys_cpu")?);
        Ok(Self {
            at_s,
            runtime_s: number(read, "runtime")? / 1000.0,
            ops: number(read, "total_ios")? as u64,
            bytes: number(read, "io_bytes")? as u64,
            cpu_s,
            system_share: if user + system > 0.0 { system / (user + system) } else { 1.0 },
            latency: latency_of(&read["clat_ns"]),
        })
    }
}

/// Converts the latency histogram that fio prints. Empty where this version of fio prints none.
fn latency_of(clat: &Value) -> Latency {
    let mut histogram = new_histogram();
    for (ns, count) in clat["bins"].as_object().into_iter().flatten() {
        if let (Ok(ns), Some(count)) = (ns.parse::<u64>(), count.as_u64()) {
            histogram.saturating_record_n(ns.max(1), count);
        }
    }
    Latency::of(&histogram)
}

fn nonsense(why: &str, said: &str) -> LabError {
    let said: String = said.trim().chars().take(300).collect();
    let message =
        format!("fio's output cannot be understood ({why}); try `fio --version`, 3.x is known. It said: {said}");
    LabError::new(LabErrorKind::System, message)
}

/// The worker of a trial: runs fio and collects its reports as they arrive.
fn drive(worker: &mut Worker<'_>, mut command: Command, threads: u32, reports: &Mutex<Vec<Report>>) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    worker.start();
    let mut running = Running::spawn(&mut command).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => LabError::new(LabErrorKind::Unsupported, NOT_INSTALLED),
        _ => LabError::system("start fio", &error),
    })?;
    let (Some(stdout), Some(stderr)) = (running.0.stdout.take(), running.0.stderr.take()) else {
        return Err(LabError::new(LabErrorKind::System, "start fio: it has no output"));
    };
    let (mut out, mut err) = (Output::new(stdout), Output::new(stderr));
    let mut last = (0, 0);
    while out.open || err.open {
        if !worker.running() {
            // Cancelled, or fio takes far longer than it should. The reports so far are kept.
            return Ok(());
        }
        read_some(&mut out, &mut err)?;
        while let Some(json) = next_object(&mut out)? {
            let (at_s, cpu_s) = (worker.started().elapsed().as_secs_f64(), reading_cpu_s(running.0.id(), threads));
            let report = Report::of(&json, at_s, cpu_s).map_err(|error| said(error, &err))?;
            worker.done(report.ops.saturating_sub(last.0), report.bytes.saturating_sub(last.1));
            last = (report.ops, report.bytes);
            reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        }
    }
    let status = running.wait().map_err(|error| LabError::system("wait for fio", &error))?;
    if !status.success() {
        return Err(said(LabError::new(LabErrorKind::System, format!("fio failed ({status})")), &err));
    }
    if last.0 == 0 {
        return Err(said(nonsense("no report with reads in it", &out.text()), &err));
    }
    if !out.text().trim().is_empty() {
        return Err(nonsense("something after the last report", &out.text()));
    }
    Ok(())
}

/// Adds the text of fio's error stream to an error.
fn said(error: LabError, err: &Output<impl Read + AsFd>) -> LabError {
    let text: String = err.text().trim().chars().take(500).collect();
    if text.is_empty() { error } else { LabError::new(error.kind(), format!("{error}; fio says: {text}")) }
}

/// One output stream of fio, with the bytes that were read and not yet parsed.
struct Output<R> {
    from: R,
    bytes: Vec<u8>,
    open: bool,
}

impl<R: Read + AsFd> Output<R> {
    fn new(from: R) -> Self {
        Self { from, bytes: Vec::new(), open: true }
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// Reads the available bytes of the stream; called when poll reports some.
    fn read(&mut self) -> Result<()> {
        let mut chunk = [0; 16 << 10];
        match self.from.read(&mut chunk) {
            Ok(0) => self.open = false,
            Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(LabError::system("read what fio says", &error)),
        }
        Ok(())
    }
}

/// Waits up to 100 ms for output on either stream, and reads it.
fn read_some(out: &mut Output<impl Read + AsFd>, err: &mut Output<impl Read + AsFd>) -> Result<()> {
    let ready = {
        // A stream that has ended is left out.
        let mut waiting = Vec::with_capacity(2);
        if out.open {
            waiting.push(PollFd::new(&out.from, PollFlags::IN));
        }
        if err.open {
            waiting.push(PollFd::new(&err.from, PollFlags::IN));
        }
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match poll(&mut waiting, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(LabError::system("wait for fio", &errno.into())),
        }
        let is_ready = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        if out.open {
            (is_ready(waiting.first()), is_ready(waiting.get(1)))
        } else {
            (false, is_ready(waiting.first()))
        }
    };
    if ready.0 {
        out.read()?;
    }
    if ready.1 {
        err.read()?;
    }
    Ok(())
}

/// Parses the next complete report in the output, a JSON object. Text before a report (warnings) is skipped.
fn next_object(out: &mut Output<impl Read + AsFd>) -> Result<Option<Value>> {
    let starts_line = |at: usize| at == 0 || out.bytes[at - 1] == b'\n';
    let Some(start) = (0..out.bytes.len()).find(|at| out.bytes[*at] == b'{' && starts_line(*at)) else {
        return Ok(None);
    };
    let mut parsed = serde_json::Deserializer::from_slice(&out.bytes[start..]).into_iter::<Value>();
    match parsed.next() {
        Some(Ok(value)) => {
            let end = start + parsed.byte_offset();
            out.bytes.drain(..end);
            Ok(Some(value))
        }
        Some(Err(error)) if !error.is_eof() => Err(nonsense(&error.to_string(), &out.text())),
        _ => Ok(None),
    }
}

/// Replaces the operations and bytes that the lab sampled by the figures in fio's reports.
fn with_reports(mut outcome: Outcome, reports: &[Report], tick: Duration) -> Outcome {
    let Some(last) = reports.last() else { return outcome };
    let began_s = (last.at_s - last.runtime_s).max(0.0);
    let mut before = (0, 0);
    for tick in &mut outcome.ticks {
        let (ops, bytes) = sums_at(reports, began_s, tick.at_s);
        // Sums are rounded, not their differences, so that the ticks add up to the totals.
        let until = (ops.round() as u64, bytes.round() as u64);
        (tick.ops, tick.bytes) = (until.0.saturating_sub(before.0), until.1.saturating_sub(before.1));
        before = until;
    }
    (outcome.ops, outcome.bytes, outcome.elapsed_s) = (last.ops, last.bytes, last.runtime_s);
    outcome.latency.insert("op".into(), last.latency.clone());
    let all_cpu_s = children_cpu_s(&outcome.counters);
    set_cpu(&mut outcome.counters, reports, 0, last.ops);
    // fio's start, its reports and its end are not the cost of its reads, but they are no other load either.
    let helpers_cpu_s = (all_cpu_s - children_cpu_s(&outcome.counters)).max(0.0);
    outcome.counters.insert("helpers_cpu_s".into(), helpers_cpu_s);
    // As with our own methods, the first tick does not count. Its report may come a millisecond early.
    outcome.steady = reports.iter().find(|report| report.runtime_s >= tick.as_secs_f64() * 0.9).and_then(|first| {
        let elapsed_s = last.runtime_s - first.runtime_s;
        if elapsed_s < last.runtime_s / 4.0 {
            return None;
        }
        let mut window = Window {
            from_s: first.at_s,
            elapsed_s,
            ops: last.ops.saturating_sub(first.ops),
            bytes: last.bytes.saturating_sub(first.bytes),
            counters: counters_between(&outcome.ticks, first.at_s, last.at_s, elapsed_s),
        };
        set_cpu(&mut window.counters, reports, first.ops, last.ops);
        Some(window)
    });
    outcome
}

/// Sums the counters of the ticks between two reports, scaled to `elapsed_s`. Ticks before the first report contain
/// fio's own loading from disk, ticks after the last its exit; both are left out.
fn counters_between(ticks: &[Tick], from_s: f64, until_s: f64, elapsed_s: f64) -> BTreeMap<String, f64> {
    let mut counters = BTreeMap::new();
    let mut seen_s = 0.0;
    for tick in ticks.iter().filter(|tick| tick.at_s - tick.elapsed_s >= from_s - 0.005 && tick.at_s <= until_s + 0.005)
    {
        seen_s += tick.elapsed_s;
        for (name, value) in &tick.counters {
            let sum = counters.entry(name.clone()).or_insert(0.0);
            if is_level(name) { *sum = *value } else { *sum += value }
        }
    }
    let share = elapsed_s / seen_s;
    counters.iter_mut().filter(|(name, _)| !is_level(name)).for_each(|(_, value)| *value *= share);
    counters
}

fn children_cpu_s(counters: &BTreeMap<String, f64>) -> f64 {
    ["children_cpu_user_s", "children_cpu_system_s"].iter().filter_map(|name| counters.get(*name)).sum()
}

/// Sets the counters of CPU time to the time of the reads from `from_ops` to `to_ops`. The kernel's counters for child
/// processes would miss fio until its end, and would include fio's start and reports. The last report comes after the
/// threads have ended: its reads are assumed to cost as much as the earlier ones.
fn set_cpu(counters: &mut BTreeMap<String, f64>, reports: &[Report], from_ops: u64, to_ops: u64) {
    let mut known =
        reports.iter().filter(|report| report.ops >= from_ops).filter_map(|report| Some((report, report.cpu_s?)));
    let Some(first) = known.next() else { return };
    let cpu_per_op_s = match known.next_back() {
        Some(last) if last.0.ops > first.0.ops => (last.1 - first.1).max(0.0) / (last.0.ops - first.0.ops) as f64,
        // Only one report has a value: count from the start.
        _ if first.0.ops > 0 => first.1 / first.0.ops as f64,
        _ => return,
    };
    let cpu_s = cpu_per_op_s * to_ops.saturating_sub(from_ops) as f64;
    let system_share = reports.last().map_or(1.0, |last| last.system_share);
    counters.insert("children_cpu_user_s".into(), cpu_s * (1.0 - system_share));
    counters.insert("children_cpu_system_s".into(), cpu_s * system_share);
}

/// CPU seconds of fio's reading threads and of the kernel's ring workers: of all threads but the first two, fio's main
/// thread and its reporting thread. `None` unless all threads are there.
fn reading_cpu_s(pid: u32, threads: u32) -> Option<f64> {
    let all = threads_cpu_s(pid)?;
    let reading = all.get(2..).filter(|reading| reading.len() >= threads as usize)?;
    Some(reading.iter().sum())
}

/// Operations and bytes that fio had finished at a moment of the trial, interpolated linearly between its reports.
fn sums_at(reports: &[Report], began_s: f64, at_s: f64) -> (f64, f64) {
    let mut before = (began_s, 0.0, 0.0);
    for report in reports {
        let here = (report.at_s, report.ops as f64, report.bytes as f64);
        if at_s <= here.0 {
            let share = ((at_s - before.0) / (here.0 - before.0).max(1e-9)).clamp(0.0, 1.0);
            return (before.1 + (here.1 - before.1) * share, before.2 + (here.2 - before.2) * share);
        }
        before = here;
    }
    (before.1, before.2)
}

#[cfg(test)]
mod tests {
    // Tests of fio where it is installed, and of the parsing of its reports everywhere.
    use std::sync::atomic::AtomicBool;

    use nofault_io::counters::Watch;

    use super::*;
    use crate::config::Config;
    use crate::experiment::Available;
    use crate::experiments;
    use crate::record::Target;

    fn run_shell(script: &str, duration: Duration, cancel: &AtomicBool) -> Result<Outcome> {
        let watch = Watch::new();
        let tick = Duration::from_millis(50);
        let plan = Measurement { duration, tick, watch: &watch, memory_bytes: None, fill_first: false, cancel };
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_command(&plan, command, 1, &mut |_| {})
    }

    fn report(runtime_ms: u64, ops: u64) -> String {
        let bytes = ops * 4096;
        format!(
            r#"{{"jobs":[{{"error":0,"usr_cpu":10.0,"sys_cpu":30.0,"read":{{"runtime":{runtime_ms},"total_ios":{ops},"io_bytes":{bytes},
        "clat_ns":{{"bins":{{"1000":{ops}}}}}}}}}]}}"#
        )
    }

    #[test]
    fn reports_become_totals_and_a_steady_part() {
        let script = format!(
            "echo 'fio: a warning first'; echo '{}'; sleep 0.2; echo '{}'; sleep 0.2; echo '{}'",
            report(100, 50),
            report(300, 250),
            report(500, 450)
        );
        let outcome = run_shell(&script, Duration::from_secs(1), &AtomicBool::new(false)).unwrap();
        assert_eq!((outcome.ops, outcome.bytes, outcome.elapsed_s), (450, 450 * 4096, 0.5));
        let steady = outcome.steady.as_ref().unwrap();
        assert_eq!((steady.ops, steady.bytes), (400, 400 * 4096));
        assert!((steady.elapsed_s - 0.4).abs() < 1e-9, "{steady:?}");
        assert!((outcome.ops_per_s() - 1000.0).abs() < 1e-6);
        assert_eq!(outcome.latency["op"].count, 450);
        let in_ticks: u64 = outcome.ticks.iter().map(|tick| tick.ops).sum();
        assert!(in_ticks <= 450, "{in_ticks}");
    }

    #[test]
    fn the_cpu_time_of_a_read_comes_from_the_living_reading_threads_between_reports() {
        let report = |at_s: f64, ops: u64, cpu_s: Option<f64>| {
            let json = serde_json::from_str(&report((at_s * 1000.0) as u64, ops)).unwrap();
            Report::of(&json, at_s, cpu_s).unwrap()
        };
        let reports = [report(0.1, 100, Some(5.0)), report(0.2, 300, Some(5.5)), report(0.3, 500, None)];
        let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
        let tick = Duration::from_millis(100);
        let plan =
            Measurement { duration: tick, tick, watch: &watch, memory_bytes: None, fill_first: false, cancel: &cancel };
        let mut outcome = measure::run(&plan, Vec::new(), &mut |_| {}).unwrap();
        // fio first loads itself from disk, which is no cost of its reads.
        let tick_of = |at_s: f64, device: f64| {
            let counters = BTreeMap::from([("device_read_bytes".to_owned(), device)]);
            Tick { at_s, elapsed_s: 0.05, counters, ..Tick::default() }
        };
        outcome.ticks = vec![tick_of(0.05, 9e9), tick_of(0.15, 500.0), tick_of(0.2, 500.0), tick_of(0.3, 500.0)];
        let steady = with_reports(outcome, &reports, tick).steady.unwrap();
        assert_eq!(steady.ops, 400);
        assert!((steady.counters["device_read_bytes"] - 2000.0).abs() < 1e-6, "{steady:?}");
        // 2.5 ms each for 400 reads, three quarters of it in the kernel; time before the first report is left out.
        assert!((steady.counters["children_cpu_user_s"] - 0.25).abs() < 1e-9, "{steady:?}");
        assert!((steady.counters["children_cpu_system_s"] - 0.75).abs() < 1e-9, "{steady:?}");
    }

    #[test]
    fn a_process_with_fewer_threads_than_the_trial_gives_no_cpu_time() {
        assert_eq!(reading_cpu_s(std::process::id(), 100_000), None);
        assert_eq!(reading_cpu_s(0, 1), None);
        let count = threads_cpu_s(std::process::id()).unwrap().len();
        assert!(count >= 2, "{count}");
    }

    #[test]
    fn another_seed_is_another_order_also_for_its_first_thread() {
        if Command::new("fio").arg("--version").output().is_err() {
            eprintln!("not run: fio is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        // Holes: fio reads them on any file system.
        std::fs::File::create(&data).unwrap().set_len(64 << 20).unwrap();
        let order = |seed: u64, name: &str| {
            let target = Target {
                label: "file".into(),
                paths: vec![data.clone()],
                data_bytes: (64 << 20) - 4096,
                content_seed: None,
            };
            let plan =
                experiments::known(experiments::translate::ID).unwrap().plan(&Config::default(), &Available::default());
            let mut spec = TrialSpec { target, seed, ..plan.trials[0].clone() };
            (spec.params.threads, spec.params.depth, spec.params.block_bytes) = (1, 1, 4096);
            let layout = Layout::new(&spec.target, 4096, 4096).unwrap();
            let log = folder.path().join(name);
            let duration = Duration::from_millis(100);
            let arguments = arguments(duration, &spec, &layout, Pattern::Random, Engine::Psync).unwrap();
            // tmpfs has no direct I/O, and the order does not depend on it.
            let arguments = arguments.iter().filter(|argument| *argument != "--direct=1");
            let done = Command::new("fio")
                .args(arguments)
                .args([&format!("--write_iolog={}", log.display()), "--io_size=64k"])
                .output()
                .unwrap();
            assert!(done.status.success(), "{done:?}");
            let log = std::fs::read_to_string(log).unwrap();
            let reads = log.lines().filter(|line| line.contains(" read ")).take(16);
            reads.map(|line| line.split(' ').skip_while(|word| *word != "read").nth(1).unwrap().to_owned()).collect()
        };
        let (one, other): (Vec<String>, Vec<String>) = (order(1, "one"), order(2, "other"));
        assert!(one.len() == 16 && other.len() == 16, "{one:?} {other:?}");
        assert_ne!(one, other);
    }

    #[test]
    fn output_that_is_no_report_is_an_error_that_quotes_fio() {
        let error =
            |script: &str| run_shell(script, Duration::from_secs(1), &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error("echo hello").contains("hello"));
        assert!(error("echo '{ this is not json'").contains("not json"));
        assert!(error("echo '{\"jobs\": []}'").contains("cannot be understood"));
        assert!(error("echo bad flag >&2; exit 3").contains("bad flag"));
        assert!(error("true").contains("no report"));
        assert!(error("echo '{\"jobs\":[{\"error\":5}]}'; echo pid=0 >&2").contains("Input/output error"));
    }

    #[test]
    fn the_reason_for_a_missing_fio_names_the_way_to_install_it() {
        let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
        let tick = Duration::from_millis(50);
        let plan =
            Measurement { duration: tick, tick, watch: &watch, memory_bytes: None, fill_first: false, cancel: &cancel };
        let error = run_command(&plan, Command::new("no-such-program-as-fio"), 1, &mut |_| {}).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (LabErrorKind::Unsupported, NOT_INSTALLED));
    }

    #[test]
    fn cancelling_ends_fio_and_keeps_its_reports() {
        let cancel = AtomicBool::new(false);
        let script = format!("echo '{}'; exec sleep 60", report(100, 50));
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                cancel.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            run_shell(&script, Duration::from_secs(60), &cancel).unwrap()
        });
        assert!(outcome.partial && outcome.ops == 50);
    }
}
