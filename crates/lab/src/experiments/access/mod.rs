//! What one thread gets from each way to read, overwrite and sync. After "The performance of memory mapping vs.
//! traditional read/write for database files on modern NVMe drives" (Leonardo Benicio, 2022), section 6.
//!
//! One thread, random 4 KiB blocks, data larger than memory. Five variants:
//! - `read`: a map, calls through the page cache, direct calls, and a ring in batches (submit B, wait for B, as the
//!   source does);
//! - `overwrite`: the same ways, whole blocks, with a sync every few writes, or each write durable by itself. `op` is
//!   the time of the write, and `sync` the time of the sync. Filling the buffer takes half a microsecond for every
//!   method; it counts in the rate, not in `op`;
//! - `sync-cost`: one block made durable each time. `op` is the time of write and sync together, `sync` the time of the
//!   call that makes the block durable;
//! - `open-loop`: reads at a fixed rate, so that coordinated omission shows;
//! - `ring-setup`: the effect of registered buffers, DEFER_TASKRUN and SQPOLL on a ring.
//!
//! Kept true by: a block is only ever overwritten with its present content, and only after `write_check` has found the lab's
//! marker; for raw devices no writes are even planned.

mod rules;
mod texts;
mod trial;

use std::collections::BTreeMap;
use std::path::Path;

use nofault_io::counters::Snapshot;
use nofault_io::mapped::Advice;
use nofault_io::probe::{Ability, Probe};
use serde::{Deserialize, Serialize};
use trial::{Overwrite, SETUPS, Setup, Way};

use crate::config::check::{counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, Section, limit_flag};
use crate::machine::content::BLOCK_BYTES;
use crate::machine::write_check;
use crate::measure::read_loops::map::{self, Maps};
use crate::measure::read_loops::sync::{self, Files, Means};
use crate::measure::read_loops::{self, Pattern};
use crate::measure::workload::Layout;
use crate::measure::{self, Measurement, Work, Worker};
use crate::methods::{self, Calls, Durability, Family, Method, methods};
use crate::read_trials::warn_of_foreign_bytes;
use crate::record::{
    Checks, ExperimentId, MemoryLimit, Outcome, Params, Skip, SkipCause, Target, TrialSpec, Warning, WarningKind,
};
use crate::show::figures::{Figure, latencies, rates, sweeps};
use crate::summary::{Basis, Group, Metric};

/// The variant that reads random blocks.
pub const READ: &str = "read";
/// The variant that overwrites random blocks, with a sync after every few writes.
pub const OVERWRITE: &str = "overwrite";
/// The variant that measures the cost of a sync: every write is made durable before the next.
pub const SYNC_COST: &str = "sync-cost";
/// The variant reading at a fixed rate.
pub const OPEN_LOOP: &str = "open-loop";
/// The variant that compares ways to set up an io_uring ring.
pub const RING_SETUP: &str = "ring-setup";

/// Share of an open-loop trial's time that goes into measuring the method's closed-loop rate.
const CALIBRATION_SHARE: f64 = 0.25;
const CALIBRATION_SEED: u64 = 0x6361_6c69_6272_6174;
/// An open-loop trial kept its fixed rate when it started this share of the scheduled requests.
const RATE_KEPT_SHARE: f64 = 0.98;

const MAP_RANDOM: Way = Way::Map(Advice::Random);
/// Buffered read and write calls with the same advice as the map, so that read-ahead makes no difference between the
/// two.
const BUFFERED: Way = Way::Calls(Means::BufferedRandom);
const DIRECT: Way = Way::Calls(Means::Direct);

/// The trials: variant, method, and the way in which the method reaches a block.
const METHODS: [(&str, &Method, Way); 21] = [
    (READ, &methods::MMAP, MAP_RANDOM),
    (READ, &methods::MMAP_NORMAL, Way::Map(Advice::Normal)),
    (READ, &methods::PREAD_BUFFERED, BUFFERED),
    (READ, &methods::PREAD_DIRECT, DIRECT),
    (READ, &methods::URING_DIRECT, Way::Ring),
    (OVERWRITE, &methods::MMAP, MAP_RANDOM),
    (OVERWRITE, &PWRITE_BUFFERED, BUFFERED),
    (OVERWRITE, &PWRITE_DIRECT, DIRECT),
    (OVERWRITE, &PWRITE_DSYNC, DIRECT),
    (OVERWRITE, &methods::URING_DIRECT, Way::Ring),
    (OVERWRITE, &URING_DSYNC, Way::Ring),
    (SYNC_COST, &MSYNC, MAP_RANDOM),
    (SYNC_COST, &FDATASYNC, BUFFERED),
    (SYNC_COST, &DSYNC_DIRECT, DIRECT),
    (SYNC_COST, &DSYNC_BUFFERED, BUFFERED),
    (SYNC_COST, &FDATASYNC_CLEAN, BUFFERED),
    (OPEN_LOOP, &methods::MMAP, MAP_RANDOM),
    (OPEN_LOOP, &methods::PREAD_BUFFERED, BUFFERED),
    (OPEN_LOOP, &methods::PREAD_DIRECT, DIRECT),
    (OPEN_LOOP, &methods::URING_DIRECT, Way::Ring),
    (RING_SETUP, &methods::URING_DIRECT, Way::Ring),
];

/// Returns the way in which a method of a variant reaches a block, and whether each of its writes is durable by itself;
/// `None` for an unknown method.
fn way_of(variant: &str, id: &str) -> Option<(Way, bool)> {
    let (_, method, way) = METHODS.iter().find(|(of, method, _)| (*of, method.id) == (variant, id))?;
    Some((*way, is_durable(method)))
}

/// Whether each write of a method is durable by itself.
fn is_durable(method: &Method) -> bool {
    method.durability == Durability::EachWrite
}

methods! {
    /// The methods that only this experiment has.
    OWN:
    PWRITE_BUFFERED = Method::new("pwrite-buffered", "pwrite buffered", Family::Buffered);
    PWRITE_DIRECT = Method::new("pwrite-direct", "pwrite O_DIRECT", Family::Direct);
    PWRITE_DSYNC = Method::new("pwrite-dsync", "pwrite O_DIRECT, RWF_DSYNC", Family::Direct).durable();
    URING_DSYNC = Method::new("uring-dsync", "io_uring O_DIRECT, RWF_DSYNC", Family::Ring).durable().by_depth().batched();
    MSYNC = Method::new("msync", "mmap, msync", Family::Mapped);
    FDATASYNC = Method::new("fdatasync", "pwrite buffered, fdatasync", Family::Buffered);
    DSYNC_DIRECT = Method::new("dsync-direct", "O_DIRECT, RWF_DSYNC", Family::Direct).durable();
    DSYNC_BUFFERED = Method::new("dsync-buffered", "buffered, RWF_DSYNC", Family::Buffered).durable();
    FDATASYNC_CLEAN = Method::new("fdatasync-clean", "fdatasync, nothing dirty", Family::Buffered);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("access");

/// The experiment `access`, as the registry lists it.
pub(crate) struct Access;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 9,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    more_memory: limit_flag,
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Access {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::All, ram_devices: 1, ..Needs::default() }
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        // A ring submits a batch and waits for all of it, as the source does.
        let is_ring = methods::find(OWN, &spec.method).is_some_and(|method| method.family == Family::Ring);
        Basis { calls: is_ring.then_some(Calls::Batches), ..Basis::paging(Metric::OpsPerS) }
    }

    fn covers_warning(&self, group: &Group<'_>, warning: &Warning) -> bool {
        group.spec.variant == OPEN_LOOP && warning.kind == Some(WarningKind::RateNotKept)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        let (groups, title) = (section.by_family(), &section.title);
        let mut figures = Vec::new();
        if section.variant == OPEN_LOOP {
            // The rate is fixed, so only the latencies can differ.
            figures.extend(latencies(&groups, title, "open_loop", "request, from when it was due"));
            figures.extend(latencies(&groups, title, "op", "request, from when it was started"));
            return figures;
        }
        figures.extend(rates(&groups, title, Metric::OpsPerS, "operations per second"));
        figures.extend(sweeps(&groups, title, Metric::OpsPerS, "operations per second"));
        figures.extend(latencies(&groups, title, "op", "operation"));
        figures.extend(latencies(&groups, title, "sync", "sync"));
        figures
    }
}

/// Plans the trials: all variants on the file and on the RAM device, only reads on raw devices. The quick preset takes
/// only the simplest trials that answer the question.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let mut places = vec![(&available.file, available.memory, on_file(config))];
    match available.ram.first() {
        Some(ram) => places.push((ram, available.ram_memory, on_ram(config))),
        None => plan.skips.push(skip("ram", "", "no RAM-backed device here (root and zram make one)".into())),
    }
    for device in &available.devices {
        places.push((device, available.memory, on_device(config)));
        plan.skips.push(skip(&device.label, "", "overwrite, sync-cost: raw devices are only read".into()));
    }
    for (target, limit, candidates) in places {
        let Some(path) = target.paths.first().map(Path::new) else { continue };
        // A file that does not exist yet is judged by its folder.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let probe = Probe::of(if path.exists() { path } else { folder });
        if candidates.iter().any(|candidate| candidate.variant == RING_SETUP) {
            plan.skips.push(skip(&target.label, methods::URING_DIRECT.id, no_iopoll(&probe)));
        }
        let mut left_out = Vec::new();
        for candidate in candidates {
            if config.preset == Preset::Quick && !candidate.quick {
                left_out.push(candidate.name());
            } else if let Some(reason) = candidate.refusal(&probe) {
                plan.skips.push(skip(&target.label, candidate.method.id, format!("{}: {reason}", candidate.name())));
            } else {
                plan.trials.push(trial(config, target, limit, candidate));
            }
        }
        left_out.dedup();
        if !left_out.is_empty() {
            let reason = format!("measured from --preset standard on: {}", left_out.join(", "));
            plan.skips.push(skip(&target.label, "", reason).because(SkipCause::LargerPreset));
        }
    }
    plan
}

fn skip(target: &str, method: &str, reason: String) -> Skip {
    Skip::new(ID, target, method, reason)
}

fn trial(config: &Config, target: &Target, memory: MemoryLimit, candidate: Candidate) -> TrialSpec {
    TrialSpec {
        variant: candidate.variant.into(),
        params: Params { threads: 1, depth: candidate.depth, block_bytes: BLOCK_BYTES as u64, extra: candidate.extra },
        duration_s: config.params::<Parameters>().cell_s * candidate.share_of_trial,
        memory,
        ..TrialSpec::of(ID, config.seed, target.clone(), candidate.method.id)
    }
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for unknown methods and parameters, and for writes to a target that may only be read; the error of checking
/// the target, or of opening, reading, writing or syncing it; `Unsupported` for a call that this file system or kernel
/// refuses.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let usage = |what: String| LabError::new(LabErrorKind::Usage, format!("access: {what}"));
    let (way, durable) = way_of(&spec.variant, &spec.method)
        .ok_or_else(|| usage(format!("unknown method '{}' of '{}'", spec.method, spec.variant)))?;
    if spec.params.block_bytes != BLOCK_BYTES as u64 || spec.params.threads != 1 {
        return Err(usage(format!("a trial has one thread and blocks of {BLOCK_BYTES} bytes, not {}", spec.params)));
    }
    if !(1..=4096).contains(&spec.params.depth) || (way != Way::Ring && spec.params.depth != 1) {
        return Err(usage(format!("a depth of {} does not suit {}", spec.params.depth, spec.method)));
    }
    if spec.target.paths.len() != 1 {
        return Err(usage(format!("{} paths: a trial works on one file or device", spec.target.paths.len())));
    }
    let layout = Layout::new(&spec.target, BLOCK_BYTES as u64, BLOCK_BYTES as u64)?;
    let mut outcome = match spec.variant.as_str() {
        OVERWRITE | SYNC_COST => {
            let content_seed = write_check::check_writable(&spec.target)?;
            let one_each = spec.variant == SYNC_COST;
            let writes_per_sync = if one_each { 1 } else { number(spec, "writes_per_sync", 1.0..=1e6)? as u64 };
            let how = Overwrite { way, durable, writes_per_sync, content_seed, one_each };
            overwrites(spec, context, &layout, how)?
        }
        OPEN_LOOP => open_loop(spec, context, &layout, way)?,
        _ => reads(spec, context, &layout, way)?,
    };
    let writes = [OVERWRITE, SYNC_COST].contains(&&*spec.variant);
    if !writes && matches!(way, DIRECT | Way::Ring) {
        warn_of_foreign_bytes(spec, &mut outcome);
    }
    add_spread(&mut outcome);
    Ok(outcome)
}

/// Measures reads in a closed loop. Methods waiting for each block use the loop shared with `random`; a ring reads in
/// batches.
fn reads(spec: &TrialSpec, context: &mut Context<'_>, layout: &Layout, way: Way) -> Result<Outcome> {
    match way {
        Way::Map(advice) => {
            let maps = Maps::open(layout, advice)?;
            measured(spec, context, map::works(spec, layout, &maps, Pattern::Random))
        }
        Way::Calls(means) => {
            let files = Files::open(layout, means)?;
            measured(spec, context, sync::works(spec, layout, &files, Pattern::Random))
        }
        Way::Ring => {
            let setup = Setup::of(spec.params.extra.get("flags").map(String::as_str))?;
            let mut missing = None;
            let outcome = measured_one(spec, context, |worker| {
                missing = trial::read_batches(worker, spec, layout, setup)?;
                Ok(())
            })?;
            Ok(with_warning(outcome, missing))
        }
    }
}

fn overwrites(spec: &TrialSpec, context: &mut Context<'_>, layout: &Layout, how: Overwrite) -> Result<Outcome> {
    let (mut written, mut missing) = (0, None);
    let (watch, cancel) = (context.watch, context.cancel);
    let before = Snapshot::take(watch);
    let mut outcome = measured_one(spec, context, |worker| {
        if spec.method == FDATASYNC_CLEAN {
            return trial::sync_clean(worker, layout, how);
        }
        (written, missing) = match how.way {
            Way::Ring => trial::overwrite_batches(worker, spec, layout, how, cancel)?,
            _ => (trial::overwrite(worker, spec, layout, how, cancel)?, None),
        };
        Ok(())
    })?;
    let moved = Snapshot::take(watch).since(&before).device_write_bytes;
    if let (Some(moved), true) = (moved, written > 0) {
        outcome.figures.insert("device_bytes_per_write".into(), moved as f64 / written as f64);
        // The new content equals the old, so that content alone does not prove the write; the device's counter must. Of
        // k random blocks among n, about 0.63 min(k, n) or more are different ones.
        if (moved as f64) < 0.5 * (written.min(layout.block_count()) * BLOCK_BYTES as u64) as f64 {
            outcome.warnings.push(format!("the device was written only {moved} bytes for {written} overwrites").into());
        }
    }
    Ok(with_warning(outcome, missing))
}

/// Measures the method's closed-loop rate, then reads at a fixed rate that is a share of it.
fn open_loop(spec: &TrialSpec, context: &mut Context<'_>, layout: &Layout, way: Way) -> Result<Outcome> {
    let share = number(spec, "rate_share", 1e-3..=10.0)?;
    // The calibration reads other blocks, because the measured blocks would then be in memory already.
    let seed = spec.seed ^ CALIBRATION_SEED;
    let calibration = TrialSpec { seed, duration_s: spec.duration_s * CALIBRATION_SHARE, ..spec.clone() };
    let mut quiet = Context { watch: context.watch, cancel: context.cancel, cold: context.cold, on_tick: &mut |_| {} };
    let calibration = reads(&calibration, &mut quiet, layout, way)?;
    let closed_loop = calibration.ops as f64 / calibration.elapsed_s.max(1e-9);
    if calibration.partial {
        let checks = Checks { checksum: 0, ..calibration.checks };
        let stopped = Some("stopped before the closed-loop rate was known".to_owned());
        return Ok(with_warning(Outcome { checks, ..calibration }, stopped));
    }
    if calibration.ops == 0 {
        let message = format!("access: not one read in {:.2} s: take a longer access.cell_s", calibration.elapsed_s);
        return Err(LabError::new(LabErrorKind::System, message));
    }
    let rate = closed_loop * share;
    let rest = TrialSpec { duration_s: spec.duration_s * (1.0 - CALIBRATION_SHARE), ..spec.clone() };
    let mut outcome = measured_one(&rest, context, |worker| match way {
        Way::Ring => trial::ring(worker, spec, layout, Setup::of(None)?, rate),
        _ => trial::blocking(worker, spec, layout, way, rate),
    })?;
    outcome.checks.wrong += calibration.checks.wrong;
    outcome.figures.insert("closed_loop_ops_per_s".into(), closed_loop);
    outcome.figures.insert("rate_per_s".into(), rate);
    let figure = |name: &str| outcome.figures.get(name).copied().unwrap_or(0.0);
    let (scheduled, started) = (figure("reads_scheduled"), figure("reads_started"));
    if started < scheduled * RATE_KEPT_SHARE {
        outcome.warnings.push(WarningKind::RateNotKept.warning(format!(
            "the rate of {rate:.0}/s could not be kept: {started:.0} of {scheduled:.0} reads were started; the others have no \
             latency here, so open_loop is a lower bound"
        )));
    }
    Ok(outcome)
}

/// Runs one worker for the trial's planned time.
fn measured_one<'a>(
    spec: &TrialSpec,
    context: &mut Context<'_>,
    work: impl FnOnce(&mut Worker<'_>) -> Result<()> + Send + 'a,
) -> Result<Outcome> {
    measured(spec, context, vec![Box::new(work)])
}

fn measured(spec: &TrialSpec, context: &mut Context<'_>, works: Vec<Work<'_>>) -> Result<Outcome> {
    let plan = Measurement { memory_bytes: read_loops::memory_limit_of(spec), ..context.timed(spec)? };
    measure::run(&plan, works, &mut *context.on_tick)
}

/// Parses a number among the trial's extra parameters.
fn number(spec: &TrialSpec, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64> {
    let text = spec.params.extra.get(name).map(String::as_str).unwrap_or_default();
    text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| {
        let message = format!("access: {name} = '{text}' must be a number from {} to {}", range.start(), range.end());
        LabError::new(LabErrorKind::Usage, message)
    })
}

/// Adds the standard deviation and the largest value of each latency to the figures: a mean says little about syncs
/// without them.
fn add_spread(outcome: &mut Outcome) {
    for (name, latency) in &outcome.latency {
        if let Some(histogram) = latency.histogram() {
            outcome.figures.insert(format!("{name}_stddev_ns"), histogram.stdev());
            outcome.figures.insert(format!("{name}_max_ns"), histogram.max() as f64);
        }
    }
}

fn with_warning(mut outcome: Outcome, warning: Option<String>) -> Outcome {
    outcome.warnings.extend(warning.map(Warning::from));
    outcome
}

/// Parameters of `access`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Batch sizes of the ring method.
    pub(crate) batches: Vec<u32>,
    /// Number of overwrites between two syncs.
    pub(crate) writes_per_sync: u32,
    /// Rates of the open-loop trials, as shares of the closed-loop rate of the same method.
    pub(crate) open_loop_shares: Vec<f64>,
    /// Whether ring set-ups are measured too: registered buffers, DEFER_TASKRUN, SQPOLL.
    pub(crate) ring_setups: bool,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::RAM_DEVICE, &flags::RAM_SIZE, &flags::DEVICE];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::DEPTHS, |params: &mut Self, value| value.put_counts(&mut params.batches))
            .noted("; in access the sizes of their batches"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.3,
            batches: vec![8, 64],
            writes_per_sync: 64,
            open_loop_shares: vec![0.5],
            ring_setups: false,
        };
        let standard = |quick| Self {
            cell_s: 0.5,
            batches: vec![1, 4, 16, 64, 128],
            open_loop_shares: vec![0.5, 0.8],
            ring_setups: true,
            ..quick
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self { cell_s: 60.0, batches: vec![1, 2, 4, 8, 16, 32, 64, 128], ..standard(quick) },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("access.cell_s", &[self.cell_s])?;
        counts("access.batches", &self.batches, 4096)?;
        counts("access.writes_per_sync", &[self.writes_per_sync], 1 << 20)?;
        positive("access.open_loop_shares", &self.open_loop_shares)
    }
}

// The trials that can be measured on each kind of target, the requirements of each, and the selection for the quick
// preset.

/// Batch sizes at which the ring set-ups are compared.
const SETUP_BATCHES: [u32; 3] = [1, 32, 128];

/// A trial that would be measured if the machine and the preset allow it.
#[derive(Debug, Clone)]
struct Candidate {
    variant: &'static str,
    method: &'static Method,
    depth: u32,
    extra: BTreeMap<String, String>,
    /// Length of the trial, as a share of `access.cell_s`.
    share_of_trial: f64,
    /// Whether the quick preset measures the trial.
    quick: bool,
}

impl Candidate {
    /// Names the trial for people: variant, method and batch size.
    fn name(&self) -> String {
        match self.depth {
            1 => format!("{} {}", self.variant, self.method.id),
            depth => format!("{} {} x{depth}", self.variant, self.method.id),
        }
    }

    /// Returns why the trial cannot be measured here; `None` when it can.
    fn refusal(&self, probe: &Probe) -> Option<String> {
        let (way, durable) = way_of(self.variant, self.method.id)?;
        let mut needs: Vec<&Ability> = Vec::new();
        if matches!(way, Way::Calls(Means::Direct) | Way::Ring) {
            needs.push(&probe.direct_io);
        }
        if durable {
            needs.push(&probe.durable_write);
        }
        if way == Way::Ring {
            needs.push(&probe.io_uring);
        }
        if self.variant == RING_SETUP
            && let Ok(setup) = Setup::of(self.extra.get("flags").map(String::as_str))
        {
            let flags = [
                (setup.registered, &probe.registered_buffers),
                (setup.defer, &probe.defer_taskrun),
                (setup.sqpoll, &probe.sqpoll),
            ];
            needs.extend(flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, ability)| ability));
        }
        needs.into_iter().find_map(Ability::reason).map(str::to_owned)
    }
}

/// Returns all trials to measure on the data file.
fn on_file(config: &Config) -> Vec<Candidate> {
    let quick = |variant: &str, method: &Method, deepest: bool| match variant {
        READ => *method != methods::MMAP_NORMAL,
        OVERWRITE => deepest && [methods::MMAP, PWRITE_DIRECT, methods::URING_DIRECT].contains(method),
        SYNC_COST => [MSYNC, FDATASYNC, DSYNC_DIRECT].contains(method),
        OPEN_LOOP => [methods::MMAP, methods::URING_DIRECT].contains(method),
        _ => false,
    };
    let mut all = all(config, quick);
    if config.params::<Parameters>().ring_setups {
        for flags in SETUPS {
            for batch in SETUP_BATCHES {
                let extra = [("flags".to_owned(), flags.to_owned())].into();
                let (variant, method) = (RING_SETUP, &methods::URING_DIRECT);
                all.push(Candidate { variant, method, depth: batch, extra, share_of_trial: 0.5, quick: true });
            }
        }
    }
    all
}

/// Returns the trials to measure on the RAM device: all except ring set-ups. A ring passes requests for this device to
/// worker threads, which hides the effect of its set-up.
fn on_ram(config: &Config) -> Vec<Candidate> {
    all(config, |variant, method, _| variant == READ && [methods::MMAP, methods::PREAD_DIRECT].contains(method))
}

/// Returns the trials to measure on a raw device: only reads.
fn on_device(config: &Config) -> Vec<Candidate> {
    let quick = |_: &str, method: &Method, deepest: bool| {
        deepest && [methods::MMAP, methods::PREAD_DIRECT, methods::URING_DIRECT].contains(method)
    };
    all(config, quick).into_iter().filter(|candidate| candidate.variant == READ).collect()
}

/// Returns every method of every variant with its parameters. `quick` decides on the quick preset from variant, method,
/// and whether the batch is the deepest.
fn all(config: &Config, quick: impl Fn(&str, &Method, bool) -> bool) -> Vec<Candidate> {
    let access: Parameters = config.params();
    let mut batches = access.batches.clone();
    batches.sort_unstable();
    batches.dedup();
    let deepest = batches.last().copied().unwrap_or(1);
    let mut candidates = Vec::new();
    for (variant, method, way) in METHODS.into_iter().filter(|(variant, ..)| *variant != RING_SETUP) {
        let depths = match (way, variant) {
            (Way::Ring, OPEN_LOOP) => vec![deepest],
            (Way::Ring, _) if is_durable(method) => few(&batches),
            (Way::Ring, _) => batches.clone(),
            _ => vec![1],
        };
        for depth in depths {
            let is_deepest = way != Way::Ring || depth == deepest;
            let candidate = |extra: BTreeMap<String, String>, first: bool| Candidate {
                variant,
                method,
                depth,
                extra,
                share_of_trial: if variant == SYNC_COST { 0.5 } else { 1.0 },
                quick: first && quick(variant, method, is_deepest),
            };
            match variant {
                OVERWRITE => {
                    let every = access.writes_per_sync.to_string();
                    candidates.push(candidate([("writes_per_sync".to_owned(), every)].into(), true));
                }
                OPEN_LOOP => {
                    for (number, share) in access.open_loop_shares.iter().enumerate() {
                        candidates.push(candidate([("rate_share".to_owned(), share.to_string())].into(), number == 0));
                    }
                }
                _ => candidates.push(candidate(BTreeMap::new(), true)),
            }
        }
    }
    candidates
}

/// Returns the shallowest, a middle and the deepest of sorted batch sizes, because durable writes do not need the whole
/// sweep.
fn few(batches: &[u32]) -> Vec<u32> {
    let mut few: Vec<u32> =
        [batches.first(), batches.get(batches.len() / 2), batches.last()].into_iter().flatten().copied().collect();
    few.dedup();
    few
}

/// Returns why polled completions (IOPOLL) are not measured, for the record.
fn no_iopoll(probe: &Probe) -> String {
    let why = match &probe.device {
        Ok(facts) if facts.io_poll == Some(true) => {
            "this device has polled queues, but the lab's rings do not use them yet"
        }
        Ok(_) => {
            "EOPNOTSUPP: the device has no polled queues (its queue/io_poll is 0); NVMe drives get them by nvme.poll_queues"
        }
        Err(_) => "EOPNOTSUPP: there is no block device beneath",
    };
    format!("{RING_SETUP}, flags=iopoll: {why}")
}

#[cfg(test)]
mod tests;
