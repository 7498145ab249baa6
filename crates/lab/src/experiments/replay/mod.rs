//! Replays the recorded accesses of a program of the user's by each method: reads, writes and syncs, by as many threads as the
//! program had. For the user's question whether *this* program would gain from a map.
//!
//! Two variants:
//! - `recorded`: each access is due at its recorded time. The latency counts from then on, whether or not an earlier access of the
//!   thread made it late, so that a stall counts for all accesses that it delays (no coordinated omission);
//! - `fast`: without the recorded times, each thread makes its next access when the last has ended.
//!
//! All methods have the same number of requests in flight: one for each recorded thread. A ring has them all on one thread.
//!
//! The accesses go to the lab's own data, which has the size of the recorded file; the user's file is not opened. Kept true by: a
//! target is written only after `write_check` has found the lab's marker, and only with its present content; after the clock
//! has stopped, written blocks are read back past the page cache and compared byte by byte.

mod rules;
mod texts;
mod trial;

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::Advice;
use nofault_io::probe::{Ability, Probe};
use serde::{Deserialize, Serialize};
use trial::Steps;

use crate::config::check::seconds;
use crate::config::flags::{self, Flag, Heading, Kind, Reach, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, Section, TargetView};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::machine::write_check;
use crate::measure::read_loops::overwrite::index_at;
use crate::measure::read_loops::sync::{Files, Means};
use crate::measure::workload::{Layout, first_word};
use crate::measure::{self, Measurement, read_loops};
use crate::methods::{self, Family, Method, methods};
use crate::paths;
use crate::record::{ExperimentId, Outcome, Params, Skip, TrialSpec, WarningKind};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::summary::{Basis, Group, Metric};
use crate::trace::Trace;

/// The variant in which each access is due at its recorded time.
pub const RECORDED: &str = "recorded";
/// The variant without the recorded times.
pub const FAST: &str = "fast";
/// Name of the parameter with the path of the trace.
const TRACE: &str = "trace";
/// Shortest time after the last access is due at which a trial is stopped, however late its accesses are; with a longer recorded time
/// that time again.
const LATE_MIN: Duration = Duration::from_secs(1);

methods! {
    /// The methods that only this experiment has.
    OWN:
    CALLS_BUFFERED = Method::new("calls-buffered", "pread/pwrite buffered", Family::Buffered);
    CALLS_BUFFERED_RANDOM = Method::new("calls-buffered-random", "pread/pwrite buffered, RANDOM hint", Family::Buffered);
    CALLS_DIRECT = Method::new("calls-direct", "pread/pwrite O_DIRECT", Family::Direct);
}

/// The way in which a method reaches the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Loads and stores in a shared map with this advice.
    Map(Advice),
    /// Read and write calls.
    Calls(Means),
    /// A ring past the page cache.
    Ring,
}

/// The methods in the order of the plan, each with the way in which it reads and writes.
const METHODS: [(&Method, Way); 6] = [
    (&methods::MMAP_NORMAL, Way::Map(Advice::Normal)),
    (&methods::MMAP_RANDOM, Way::Map(Advice::Random)),
    (&CALLS_BUFFERED, Way::Calls(Means::Buffered)),
    (&CALLS_BUFFERED_RANDOM, Way::Calls(Means::BufferedRandom)),
    (&CALLS_DIRECT, Way::Calls(Means::Direct)),
    (&methods::URING_DIRECT, Way::Ring),
];

/// The way of a method; `None` for an unknown one.
fn way_of(id: &str) -> Option<Way> {
    METHODS.iter().find(|(method, _)| method.id == id).map(|(_, way)| *way)
}

impl Way {
    /// Returns why a method of this way cannot be measured here; `None` when it can.
    fn refusal(self, probe: &Probe) -> Option<String> {
        let needs: &[&Ability] = match self {
            Self::Map(_) | Self::Calls(Means::Buffered | Means::BufferedRandom | Means::DontCache) => &[],
            Self::Calls(Means::Direct) => &[&probe.direct_io],
            Self::Ring => &[&probe.direct_io, &probe.io_uring],
        };
        needs.iter().find_map(|ability| ability.reason().map(str::to_owned))
    }
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("replay");

/// The experiment `replay`, as the registry lists it.
pub(crate) struct Replay;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 0,
    in_quick: false,
    needs_trace: true,
    methods: OWN,
    findings: rules::find,
    evidence: rules::EVIDENCE,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Replay {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::All, ..Needs::default() }
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        Basis::paging(metric_of(&spec.variant))
    }

    fn covers_warning(&self, _: &Group<'_>, warning: &crate::record::Warning) -> bool {
        warning.kind == Some(WarningKind::RateNotKept)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), &section.title, section.variant)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        place.variants.iter().map(|variant| texts::sheet(place.summary, place.target, variant)).collect()
    }
}

/// The metric by which the trials of a variant are judged.
fn metric_of(variant: &str) -> Metric {
    if variant == FAST { Metric::OpsPerS } else { Metric::Latency("open_loop", 990) }
}

/// Plans one trial for each method.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let skip = |target: &str, method: &str, reason: String| Skip::new(ID, target, method, reason);
    let Some((path, Ok(trace))) = config.trace.first().map(|path| (path, Trace::read(path))) else { return plan };
    let replay: Parameters = config.params();
    let target = &available.file;
    let Some(file) = target.paths.first().map(Path::new) else { return plan };
    let mut variant = if replay.think_time { RECORDED } else { FAST };
    if variant == RECORDED && trace.span().1 <= 0.0 {
        variant = FAST;
        plan.skips.push(skip(
            "file",
            "recorded-times",
            "the trace has no times, so it is replayed as fast as possible".into(),
        ));
    }
    let steps = Steps::of(&trace, target.data_bytes, variant, replay.cell_s);
    if trace.is_cut {
        let reason = format!(
            "the accesses behind the first {} of the trace: more would fill the memory of a trial",
            trace.accesses.len()
        );
        plan.skips.push(skip("file", "end-of-the-trace", reason));
    }
    if variant == RECORDED && trace.span().1 > replay.cell_s {
        let all = crate::format::Unit::Seconds.show(trace.span().1);
        let reason = format!("the trace lasts {all}; the first {} s of it are replayed (--seconds)", replay.cell_s);
        plan.skips.push(skip("file", "end-of-the-trace", reason));
    }
    // A file that does not exist yet is judged by its folder.
    let probe = Probe::of(if file.exists() { file } else { file.parent().unwrap_or(Path::new(".")) });
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
    for (method, way) in METHODS {
        if let Some(reason) = way.refusal(&probe) {
            plan.skips.push(skip("file", method.id, reason));
            continue;
        }
        let count = steps.threads.len() as u32;
        let (threads, depth) = if way == Way::Ring { (1, count) } else { (count, 1) };
        let mut params = Params { threads, depth, block_bytes: BLOCK_BYTES as u64, ..Params::default() };
        params.extra.insert(TRACE.into(), paths::to_text(&whole));
        plan.trials.push(TrialSpec {
            variant: variant.into(),
            params,
            duration_s: if variant == FAST { replay.cell_s } else { steps.span.as_secs_f64().max(0.001) },
            memory: available.memory,
            ..TrialSpec::of(ID, config.seed, target.clone(), method.id)
        });
    }
    plan
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method or variant, and for a target that may only be read; the error of reading the trace, and of
/// opening, reading, writing or syncing the target.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let usage = |what: String| LabError::new(LabErrorKind::Usage, format!("replay: {what}"));
    let way = way_of(&spec.method).ok_or_else(|| read_loops::unknown(spec))?;
    if ![RECORDED, FAST].contains(&spec.variant.as_str()) {
        return Err(usage(format!("unknown variant '{}'", spec.variant)));
    }
    let path = spec.params.extra.get(TRACE).ok_or_else(|| usage("a trial without a trace".into()))?;
    let content_seed = write_check::check_writable(&spec.target)?;
    let layout = Layout::new(&spec.target, BLOCK_BYTES as u64, BLOCK_BYTES as u64)?;
    let steps =
        Steps::of(&Trace::read(&paths::from_text(path))?, spec.target.data_bytes, &spec.variant, spec.duration_s);
    let planned = spec.params.threads.saturating_mul(spec.params.depth) as usize;
    if planned != steps.threads.len() {
        return Err(usage(format!(
            "{path} has changed: it has {} threads now, and had {planned}",
            steps.threads.len()
        )));
    }
    let written = Mutex::new(Vec::new());
    let job = trial::Job { layout: &layout, steps: &steps, content_seed, written: &written };
    let timed = context.timed(spec)?;
    let late = if spec.variant == RECORDED { timed.duration.max(LATE_MIN) } else { Duration::ZERO };
    let plan =
        Measurement { memory_bytes: read_loops::memory_limit_of(spec), duration: timed.duration + late, ..timed };
    let file = layout.paths.first().cloned().unwrap_or_default();
    let mut outcome = match way {
        Way::Ring => measure::run(&plan, vec![Box::new(|worker| trial::replay(worker, &job))], &mut *context.on_tick)?,
        _ => {
            let subject = trial::Subject::open(&layout, &file, way)?;
            let outcome = measure::run(&plan, trial::works(&job, &subject), &mut *context.on_tick)?;
            subject.sync()?;
            outcome
        }
    };
    judge_pace(&mut outcome);
    let written = written.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    read_back(spec, &layout, content_seed, &written, &mut outcome)?;
    Ok(outcome)
}

/// Takes the latencies from the due times away from a trial that did not start all accesses within its time: its slowest
/// accesses have none.
fn judge_pace(outcome: &mut Outcome) {
    let figure = |name: &str| outcome.figures.get(name).copied().unwrap_or(0.0);
    let (due, started) = (figure("accesses_due"), figure("accesses_started"));
    if started < due && !outcome.partial {
        outcome.latency.remove("open_loop");
        outcome.warnings.push(WarningKind::RateNotKept.warning(format!(
            "the recorded pace could not be kept: {started:.0} of {due:.0} accesses were started in {:.1} s, so there is no latency from the time \
             when each was due",
            outcome.elapsed_s
        )));
    }
}

/// Compares written blocks with their expected content, as they are on the device, and sums the sample of blocks that all methods
/// sum.
fn read_back(spec: &TrialSpec, layout: &Layout, seed: u64, written: &[u64], outcome: &mut Outcome) -> Result<()> {
    let files = match Files::open(layout, Means::Direct) {
        // Only a file system in memory refuses direct I/O; there a buffered read shows the stored bytes.
        Err(error) if error.kind() == LabErrorKind::Unsupported => Files::open(layout, Means::BufferedRandom)?,
        other => other?,
    };
    let mut block = IoBuf::zeroed(BLOCK_BYTES, PageKind::Small)?;
    for offset in written {
        files.read(layout, 0, *offset, &mut block)?;
        outcome.checks.verified += 1;
        outcome.checks.wrong += u64::from(!content::check_block_fully(&block, seed, index_at(*offset)));
    }
    for place in Layout::sample(&spec.target, spec.seed) {
        files.read(layout, place.file, place.offset_bytes, &mut block)?;
        outcome.checks.checksum = outcome.checks.checksum.wrapping_add(first_word(&block));
    }
    Ok(())
}

/// The flag for a replay without the recorded times.
static NO_THINK_TIME: Flag = Flag {
    name: "no-think-time",
    value_name: "",
    help: "Replay the accesses of --trace as fast as each method can, without the recorded times between them",
    heading: Heading::What,
    kind: Kind::Switch,
    reach: Reach::Chosen,
    shared: None,
};

/// Parameters of `replay`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Seconds of the trace that are replayed at their recorded times; without these the length of a trial.
    pub(crate) cell_s: f64,
    /// Whether each access is due at its recorded time.
    pub(crate) think_time: bool,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::TRACE, &flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params: &mut Self, value| value.put_seconds(&mut params.cell_s))
            .noted("; in replay the seconds of the trace"),
        Use::own(&NO_THINK_TIME, |params: &mut Self, _| params.think_time = false),
        Use::none(&flags::THREADS, "the trace gives the threads"),
        Use::none(&flags::DEPTHS, "a ring has a request in flight for each thread of the trace"),
    ];

    fn preset(preset: Preset) -> Self {
        let cell_s = match preset {
            Preset::Quick => 3.0,
            Preset::Standard => 10.0,
            Preset::Paper => 60.0,
        };
        Self { cell_s, think_time: true }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("replay.cell_s", &[self.cell_s])
    }
}

#[cfg(test)]
mod tests;
