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

mod cyclic;
mod figures;
mod findings;
mod hypotheses;
mod literature;
mod once;
mod params;
mod ring;
mod words;

use crate::config::Config;
use crate::config::params::ParametersOf;
use crate::error::Result;
use crate::experiment::{Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, Section, TargetView};
use crate::format;
use crate::methods::{Family, Method, methods};
use crate::read_trials;
use crate::record::{CacheState, ExperimentId, MemoryMethod, Outcome, Skip, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::summary::{Basis, Metric};
use crate::workload::{self, PAGE_BYTES};

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
    question: words::QUESTION,
    main_figure: words::MAIN_FIGURE,
    procedure: words::METHOD,
    change: words::CHANGE,
    rank: 5,
    in_quick: false,
    methods: OWN,
    findings: findings::find,
    claims: hypotheses::CLAIMS,
    // Only the part of the file that a trial loads, not all of it.
    warms_itself: true,
    less_memory: |_| Some("--set load.file_bytes=BYTES"),
    literature: literature::TABLES,
    ..Description::of(ID, &ParametersOf::<params::Params>::NEW)
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
        figures::figures(&section.by_family(), section.variant, &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        figures::sheets(place.summary, place.target, &place.variants)
    }
}

/// Plans each method with the whole file once, cold and warm, and with the file again and again at each size of it.
fn plan(config: &Config, available: &Available) -> Plan {
    let own: params::Params = config.params();
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
        CYCLIC => cyclic::run(spec, &layout, context),
        _ => once::run(spec, &layout, context),
    }
}

#[cfg(test)]
mod tests;
