//! Measures how fast a file can be scanned, from one device and from several. After §4.2 of "Are You Sure You Want to
//! Use MMAP in Your Database Management System?" (CIDR 2022).
//!
//! Mapped and `pread` methods run several threads, each on its own part at a time, as the original benchmark does;
//! the ring and fio run one thread with large blocks and many in flight. A scan wraps around until the time is over.
//! Over several files consecutive stripes lie on consecutive files: the ring reads them through a striped disk, the map
//! through one map a file.
//!
//! Ring, fio and the pool run twice: with buffers in huge pages, and with buffers in 4 KiB pages (`buffers=small`), as a
//! map has. The block layer splits large requests over scattered pages, and this can change the rate more than the
//! choice of method does; so only the latter are compared with a map.

mod rules;
mod texts;

use serde::{Deserialize, Serialize};

use crate::config::check::{at_least, block, counts, seconds};
use crate::config::flags::{self, Flag, Heading, Kind, Reach, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, MIB, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, PoolBytes, Section, TargetView, limit_flag,
};
use crate::measure::read_loops::Pattern;
use crate::measure::read_loops::fill::Memory;
use crate::measure::workload::{self, PAGE_BYTES};
use crate::methods::{self, Family, Method, Pages};
use crate::read_trials::{self, Planner, params};
use crate::record::{ExperimentId, MemoryLimit, Outcome, Params, Skip, Target, TrialSpec};
use crate::show::columns::{self, Sheet};
use crate::show::figures::{Figure, costs, rates, sweeps, time_series};
use crate::summary::{Basis, Metric};

/// Bytes of the part that a thread scans at a time, as in the original benchmark. Trials with another size have it in
/// their parameter `part_bytes`.
const PART_BYTES: u64 = 128 << 20;

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("scan");

/// The experiment `scan`, as the registry lists it.
pub(crate) struct Scan;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 5,
    findings: rules::find,
    claims: rules::CLAIMS,
    evidence: rules::EVIDENCE,
    more_memory: limit_flag,
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Scan {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, config: &Config) -> Needs {
        let scan: Parameters = config.params();
        Needs {
            file: true,
            limited: LimitedTrials::All,
            pool: PoolBytes::OfFile,
            ram_devices: scan.ram_devices.max(1),
            stripe: true,
            ..Needs::default()
        }
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        // The buffers of a ring, of fio and of the pool lie in huge pages, unless the trial says otherwise.
        let is_huge = |method: &Method| matches!(method.family, Family::Ring | Family::Baseline | Family::Pool);
        let pages = methods::find(&[], &spec.method).filter(|method| is_huge(method)).map(|_| Pages::Huge);
        Basis { out_of_core: true, pages, ..Basis::paging(Metric::BytesPerS) }
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        let (groups, place) = (section.by_family(), &section.title);
        let mut figures = Vec::new();
        figures.extend(time_series(&groups, place, Metric::BytesPerS, "bytes per second"));
        figures.extend(rates(&groups, place, Metric::BytesPerS, "bytes per second"));
        figures.extend(costs(&groups, place, Metric::CpuPerGb, "CPU time per GB"));
        figures.extend(sweeps(&groups, place, Metric::BytesPerS, "bytes per second"));
        figures
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        let heads = columns::Heads { rate: "bytes/s", cpu_metric: Metric::CpuPerGb, cpu: "CPU/GB" };
        vec![columns::rated(place.summary, self.id(), place.target, &place.variants, &heads)]
    }
}

/// Plans the scans of one file or device, then the scans of several striped ones.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    plan_one(config, available, &available.file, available.memory, &mut plan);
    match available.ram.first() {
        Some(target) => plan_one(config, available, target, available.ram_memory, &mut plan),
        None => skip(
            &mut plan,
            "ram",
            "no RAM-backed device: making one needs root, the zram module and ram_device = 'auto'",
        ),
    }
    for device in &available.devices {
        plan_one(config, available, device, available.memory, &mut plan);
    }
    plan_striped(config, available, "striped", &available.stripe, available.memory, &mut plan);
    let scan: Parameters = config.params();
    let ram_count = available.ram.len().min(scan.ram_devices as usize);
    let ram = &available.ram[..ram_count];
    if !ram.is_empty() {
        plan_striped(config, available, "ram-striped", ram, available.ram_memory, &mut plan);
    }
    plan
}

fn skip(plan: &mut Plan, target: &str, reason: &str) {
    plan.skips.push(Skip::new(ID, target, "", reason));
}

fn planner<'a>(
    config: &'a Config,
    available: &'a Available,
    target: &'a Target,
    memory: MemoryLimit,
    plan: &'a mut Plan,
) -> Planner<'a> {
    let duration_s = config.params::<Parameters>().cell_s;
    Planner { experiment: ID, config, available, target, memory, duration_s, no_pool: None, plan }
}

fn plan_one(config: &Config, available: &Available, target: &Target, memory: MemoryLimit, plan: &mut Plan) {
    let scan: Parameters = config.params();
    let lean = config.preset == Preset::Quick && available.ram.iter().any(|ram| ram == target);
    let mut planner = planner(config, available, target, memory, plan);
    let most = scan.map_threads.iter().copied().max();
    let touch = |threads: u32| with_part(config, params(threads, 1, PAGE_BYTES as u64));
    let read = |threads: u32| with_part(config, params(threads, 1, scan.block_bytes));
    let deep = |depth: u32| params(1, depth, scan.block_bytes);
    let small = |mut params: Params| {
        params.extra.insert("buffers".into(), "small".into());
        params
    };
    planner.add(&methods::MMAP_NORMAL, scan.map_threads.iter().map(|threads| touch(*threads)));
    planner.add(&methods::MMAP_SEQUENTIAL, scan.map_threads.iter().map(|threads| touch(*threads)));
    planner.add(&methods::PREAD_DIRECT, scan.map_threads.iter().map(|threads| read(*threads)));
    planner.add(&methods::URING_DIRECT, scan.depths.iter().map(|depth| deep(*depth)));
    planner.add(&methods::FIO_URING, scan.depths.iter().map(|depth| deep(*depth)));
    // The engine as it is, with one thread, because a range scan reads ahead by itself; and under the map's conditions.
    planner.add(&methods::POOL, [touch(1)]);
    planner.add(&methods::POOL, scan.map_threads.iter().map(|threads| small(touch(*threads))));
    // With as many requests as the map has threads, and in pages of the map's size.
    planner.add(&methods::URING_DIRECT, scan.map_threads.iter().map(|depth| small(deep(*depth))));
    if lean {
        for method in [&methods::MMAP_RANDOM, &methods::PREAD_BUFFERED] {
            planner.leave_to_larger_preset(method, "on the RAM-backed device from --preset standard on");
        }
        return;
    }
    planner.add(&methods::MMAP_RANDOM, most.map(touch));
    planner.add(&methods::PREAD_BUFFERED, scan.map_threads.iter().map(|threads| read(*threads)));
    planner.add(&methods::FIO_URING, scan.depths.first().map(|depth| small(deep(*depth))));
}

fn plan_striped(
    config: &Config,
    available: &Available,
    label: &str,
    parts: &[Target],
    memory: MemoryLimit,
    plan: &mut Plan,
) {
    if parts.len() < 2 {
        let reason = "one file or device only: name more with stripe_over, on other devices";
        let reason = if label == "striped" { reason } else { "one RAM-backed device only: set scan.ram_devices to 2" };
        return skip(plan, label, reason);
    }
    let scan: Parameters = config.params();
    let stripe_bytes = scan.raid_stripe_bytes.max(scan.block_bytes);
    let striped = |params: Params| {
        let mut params = params;
        params.extra.insert("stripe_bytes".into(), stripe_bytes.to_string());
        params
    };
    for count in widths(parts.len()) {
        let target = striped_target(&format!("{label}-{count}"), &parts[..count]);
        let mut planner = planner(config, available, &target, memory, plan);
        let most = scan.map_threads.iter().copied().max();
        let touch = || most.map(|threads| striped(with_part(config, params(threads, 1, PAGE_BYTES as u64))));
        planner.add(&methods::MMAP_NORMAL, touch());
        planner.add(&methods::MMAP_SEQUENTIAL, touch());
        let read = || most.map(|threads| striped(with_part(config, params(threads, 1, scan.block_bytes))));
        planner.add(&methods::PREAD_DIRECT, read());
        planner
            .add(&methods::URING_DIRECT, scan.depths.iter().map(|depth| striped(params(1, *depth, scan.block_bytes))));
        planner.skip(&methods::FIO_URING, "fio has no stripes: it is the baseline on one device".into());
        planner.skip(
            &methods::POOL,
            "the engine's database is measured on one device; `stripe_folders` would spread it".into(),
        );
        if config.preset == Preset::Quick {
            for method in [&methods::MMAP_RANDOM, &methods::PREAD_BUFFERED] {
                planner.leave_to_larger_preset(method, "over several devices from --preset standard on");
            }
            continue;
        }
        planner.add(&methods::MMAP_RANDOM, touch());
        planner.add(&methods::PREAD_BUFFERED, read());
    }
}

/// Returns the stripe widths to measure: 2, 4, 8 … and the largest width.
fn widths(most: usize) -> Vec<usize> {
    let mut widths: Vec<usize> =
        std::iter::successors(Some(2), |width| Some(width * 2)).take_while(|w| *w < most).collect();
    widths.push(most);
    widths
}

/// Joins several targets into one striped target with the size of the smallest. When their content differs, the
/// target's content cannot be verified.
fn striped_target(label: &str, parts: &[Target]) -> Target {
    let seed = parts.first().and_then(|part| part.content_seed);
    Target {
        label: label.into(),
        paths: parts.iter().flat_map(|part| part.paths.iter().cloned()).collect(),
        data_bytes: parts.iter().map(|part| part.data_bytes).min().unwrap_or(0),
        content_seed: seed.filter(|seed| parts.iter().all(|part| part.content_seed == Some(*seed))),
    }
}

fn with_part(config: &Config, mut params: Params) -> Params {
    let part_bytes = config.params::<Parameters>().map_stripe_bytes;
    if part_bytes != PART_BYTES {
        params.extra.insert("part_bytes".into(), part_bytes.to_string());
    }
    params
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method or sizes that are no numbers; the error of opening or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let part_bytes = match spec.params.extra.get("part_bytes") {
        None => PART_BYTES,
        Some(text) => text.parse().map_err(|_| {
            LabError::new(LabErrorKind::Usage, format!("part_bytes = '{text}': must be a number of bytes"))
        })?,
    };
    let layout = workload::layout_of(spec, spec.params.block_bytes)?;
    read_trials::execute(spec, &layout, (Pattern::Scan { part_bytes }, Memory::Empty), context)
}

/// Parameters of `scan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Thread counts of the mapped methods; each thread scans its own stripe at a time.
    pub(crate) map_threads: Vec<u32>,
    /// Bytes of the stripe that a thread scans at a time, as in the published benchmark mmapbench.
    pub(crate) map_stripe_bytes: u64,
    /// Queue depths of the direct methods, which use one thread.
    pub(crate) depths: Vec<u32>,
    /// Bytes of one direct read.
    pub(crate) block_bytes: u64,
    /// Bytes of one stripe when the data is striped over several files or devices.
    pub(crate) raid_stripe_bytes: u64,
    /// Largest number of RAM-backed devices to stripe over: 2 adds a pair to the single device.
    pub(crate) ram_devices: u32,
}

/// The flag naming a further folder, on another file system, for the striped scan.
static STRIPE_OVER: Flag = Flag {
    name: "stripe-over",
    value_name: "FOLDER",
    help: "A further folder, on another file system, for the striped scan; may be repeated",
    heading: Heading::Where,
    kind: Kind::Paths,
    reach: Reach::Chosen,
    shared: Some(|config, value| value.put_paths(&mut config.stripe_over)),
};

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[
        &flags::SIZE,
        &flags::MEMORY,
        &flags::MEMORY_METHOD,
        &flags::RAM_DEVICE,
        &flags::RAM_SIZE,
        &flags::DEVICE,
        &flags::FILE,
        &STRIPE_OVER,
        &flags::FIO,
        &flags::POOL,
        &flags::READ_AHEAD,
    ];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.map_threads)),
        Use::own(&flags::DEPTHS, |params, value| value.put_counts(&mut params.depths)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.45,
            map_threads: vec![4],
            map_stripe_bytes: 128 * MIB,
            depths: vec![4],
            block_bytes: MIB,
            raid_stripe_bytes: MIB,
            ram_devices: 2,
        };
        let standard = |quick| Self { cell_s: 0.8, map_threads: vec![1, 4, 20], depths: vec![4, 20], ..quick };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self { cell_s: 200.0, ..standard(quick) },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("scan.cell_s", &[self.cell_s])?;
        counts("scan.map_threads", &self.map_threads, 4096)?;
        counts("scan.depths", &self.depths, 4096)?;
        block("scan.block_bytes", self.block_bytes)?;
        block("scan.raid_stripe_bytes", self.raid_stripe_bytes)?;
        at_least("scan.map_stripe_bytes", self.map_stripe_bytes, MIB)
    }
}

#[cfg(test)]
mod tests;
