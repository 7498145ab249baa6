//! Brings one large file into memory from front to back, as a program does with the weights of a model: once, and again
//! and again where the file is larger than memory.
//!
//! Three variants:
//! - `cold`: the file is on the device, and fits in memory. The clock stops when a word of each of its pages was checked.
//! - `warm`: the same, with the file in the page cache.
//! - `cyclic`: the file is read from front to back over and over, at sizes around the memory's. A cache that evicts the
//!   oldest page evicts each page just before it is needed; a program reading by itself may keep a part of the file.
//!
//! Methods: a map whose pages are touched, asked for first (WILLNEED), or all mapped by one call (POPULATE_READ); read
//! calls through the page cache into memory of the process; direct reads into such memory, in small and in huge pages. Mapping
//! and allocating are part of the time. Each page is checked by the thread that loads.

mod rules;
mod texts;
mod trial;

use serde::{Deserialize, Serialize};

use crate::config::check::{at_least, counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, GIB, MIB, Preset};
use crate::error::Result;
use crate::experiment::{Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, Section, TargetView};
use crate::format;
use crate::measure::workload::{self, PAGE_BYTES};
use crate::methods::{Family, Method, methods};
use crate::read_trials;
use crate::record::{CacheState, ExperimentId, MemoryMethod, Outcome, Skip, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::summary::{Basis, Metric};

/// The variant with the file on the device.
pub const COLD: &str = "cold";
/// The variant with the file in the page cache.
pub const WARM: &str = "warm";
/// The variant that reads the file again and again.
pub const CYCLIC: &str = "cyclic";

/// Bytes of one read, and of the part of a map that is touched or asked for at a time.
const BLOCK_BYTES: u64 = 1 << 20;
/// Number of blocks that `cyclic` and the direct reads have in flight or ask for ahead.
const AHEAD: u32 = 8;
/// Name of the parameter with the number of blocks that a method has before it at a time: the whole file when it is loaded
/// once, [`AHEAD`] in a cycle.
const BLOCKS: &str = "blocks";
/// Name of the parameter with the size of the data, as a multiple of the memory.
const DATA: &str = "data_per_memory";
/// Planned rate of a pass over the file, in bytes a second.
const PASS_BYTES_PER_S: f64 = 1.2e9;

const fn method(id: &'static str, title: &'static str, family: Family) -> Method {
    Method::new(id, title, family).batched().in_flight_of(BLOCKS)
}

// Each has the same blocks before it: the whole file when it is loaded once, the next ones in a cycle. A map on one thread
// cannot read them at the same time by itself; with a hint the kernel does. LOAD_KEPT keeps as much of the file in memory of the
// process as half of the limit allows, and reads the rest past the page cache.
methods! {
    /// The methods that only this experiment has.
    OWN:
    LOAD_TOUCH = method("load-touch", "mmap, touch", Family::Mapped);
    LOAD_WILLNEED = method("load-willneed", "mmap, WILLNEED then touch", Family::Mapped).toned("t1");
    LOAD_POPULATE = method("load-populate", "mmap, POPULATE_READ", Family::Mapped).toned("t2");
    LOAD_READ = method("load-read", "read calls", Family::Buffered);
    LOAD_DIRECT = method("load-direct", "io_uring O_DIRECT", Family::Ring);
    LOAD_KEPT = method("load-kept", "io_uring O_DIRECT, a part kept", Family::Pool);
}

/// The methods that load the file once, each with the pages of its memory where these are a choice.
const ONCE_EACH: [(&Method, &str); 6] = [
    (&LOAD_TOUCH, ""),
    (&LOAD_WILLNEED, ""),
    (&LOAD_POPULATE, ""),
    (&LOAD_READ, ""),
    (&LOAD_DIRECT, "small"),
    (&LOAD_DIRECT, "huge"),
];
/// The methods that read the file again and again.
const AGAIN: [(&Method, &str); 5] =
    [(&LOAD_TOUCH, ""), (&LOAD_WILLNEED, ""), (&LOAD_READ, ""), (&LOAD_DIRECT, "small"), (&LOAD_KEPT, "small")];

/// Whether a method reads past the page cache.
fn is_direct(method: &Method) -> bool {
    [LOAD_DIRECT, LOAD_KEPT].contains(method)
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("load");

/// The experiment `load`, as the registry lists it.
pub(crate) struct Load;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 5,
    in_quick: false,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    // Only the part of the file that a trial loads, not all of it.
    warms_itself: true,
    less_memory: |_| Some("--set load.file_bytes=BYTES"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Load {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::Some, ..Needs::default() }
    }

    fn preparation_s(&self, spec: &TrialSpec) -> f64 {
        let pass_s = spec.target.data_bytes as f64 / PASS_BYTES_PER_S;
        if spec.variant == COLD { 0.0 } else { pass_s }
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        match spec.variant.as_str() {
            CYCLIC => {
                Basis { out_of_core: spec.target.data_bytes > spec.memory.bytes, ..Basis::paging(Metric::BytesPerS) }
            }
            _ => Basis::by(Metric::Seconds),
        }
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), section.variant, &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        texts::sheets(place.summary, place.target, &place.variants)
    }
}

/// Plans each method with the whole file once, cold and warm, and with the file again and again at each size of it.
fn plan(config: &Config, available: &Available) -> Plan {
    let own: Parameters = config.params();
    let mut plan = Plan { repeats: Some(own.repeats), ..Plan::default() };
    let file = &available.file;
    let no_ring = |method: &Method| available.no_ring.as_ref().filter(|_| is_direct(method)).cloned();
    let once = format!("{COLD}, {WARM}");
    // Read calls hold the file in the page cache and in memory of the process.
    let free = available.memory_available_bytes.filter(|free| *free / 2 < own.file_bytes);
    if own.file_bytes > file.data_bytes {
        plan.skip(too_small(&once, own.file_bytes, file.data_bytes));
    } else if let Some(free) = free {
        let (needed, free) = (format::bytes(own.file_bytes), format::bytes(free));
        let reason =
            format!("{once}: memory holds a file of {needed} twice, and {free} are free; --set load.file_bytes=BYTES");
        plan.skip(Skip::new(ID, "file", "", reason));
    } else {
        let target = Target { data_bytes: own.file_bytes, ..file.clone() };
        for (variant, cache) in [(COLD, CacheState::Cold), (WARM, CacheState::Warm)] {
            for (method, buffers) in ONCE_EACH {
                if let Some(reason) = no_ring(method) {
                    plan.skip(Skip::new(ID, "file", method.id, reason));
                    continue;
                }
                let blocks = own.file_bytes / BLOCK_BYTES;
                let planned_s = own.file_bytes as f64 / PASS_BYTES_PER_S;
                let trial = trial(config, &target, (variant, method.id, buffers), blocks);
                plan.trials.push(TrialSpec { cache, duration_s: planned_s, ..trial });
            }
        }
    }
    if available.memory.method == MemoryMethod::None {
        plan.skip(Skip::new(ID, "file", "", format!("{CYCLIC}: memory cannot be limited here")));
        return plan;
    }
    for data in &own.data_per_memory {
        let bytes = (available.memory.bytes as f64 * data) as u64 / BLOCK_BYTES * BLOCK_BYTES;
        if bytes > file.data_bytes {
            plan.skip(too_small(&format!("{CYCLIC}, data {data} times the memory"), bytes, file.data_bytes));
            continue;
        }
        let target = Target { data_bytes: bytes, ..file.clone() };
        for (method, buffers) in AGAIN {
            if let Some(reason) = no_ring(method) {
                plan.skip(Skip::new(ID, "file", method.id, reason));
                continue;
            }
            let mut trial = trial(config, &target, (CYCLIC, method.id, buffers), u64::from(AHEAD));
            trial.params.extra.insert(DATA.into(), data.to_string());
            plan.trials.push(TrialSpec { duration_s: own.cell_s, memory: available.memory, ..trial });
        }
    }
    plan
}

fn too_small(what: &str, needed: u64, present: u64) -> Skip {
    let (needed, present) = (format::bytes(needed), format::bytes(present));
    Skip::new(ID, "file", "", format!("{what}: {needed} of {present}; ask for more with --size"))
}

fn trial(config: &Config, target: &Target, (variant, method, buffers): (&str, &str, &str), blocks: u64) -> TrialSpec {
    let base = TrialSpec::of(ID, config.seed, target.clone(), method);
    let mut trial = TrialSpec { variant: variant.into(), params: read_trials::params(1, 1, BLOCK_BYTES), ..base };
    trial.params.extra.insert(BLOCKS.into(), blocks.to_string());
    if !buffers.is_empty() {
        trial.params.extra.insert("buffers".into(), buffers.into());
    }
    trial
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(PAGE_BYTES as u64), "a block has whole pages");

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, spec.params.block_bytes)?;
    match spec.variant.as_str() {
        CYCLIC => trial::run_cyclic(spec, &layout, context),
        _ => trial::run_once(spec, &layout, context),
    }
}

/// Parameters of `load`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Bytes of the file loaded once, which must fit in the memory of the machine twice.
    pub(crate) file_bytes: u64,
    /// Sizes of the file read again and again, as multiples of the memory.
    pub(crate) data_per_memory: Vec<f64>,
    /// Length in seconds of a trial that reads the file again and again.
    pub(crate) cell_s: f64,
    /// How often each trial is measured.
    pub(crate) repeats: u32,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { file_bytes: 256 * MIB, data_per_memory: vec![0.75, 1.25, 2.0], cell_s: 0.6, repeats: 3 };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self { file_bytes: 512 * MIB, ..quick },
            Preset::Paper => Self {
                file_bytes: 16 * GIB,
                data_per_memory: vec![0.75, 1.0, 1.25, 1.5, 2.0, 4.0],
                cell_s: 120.0,
                repeats: 5,
            },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("load.cell_s", &[self.cell_s])?;
        at_least("load.file_bytes", self.file_bytes, 4 * BLOCK_BYTES)?;
        positive("load.data_per_memory", &self.data_per_memory)?;
        counts("load.repeats", &[self.repeats], 1000)
    }
}

#[cfg(test)]
mod tests;
