//! Answers one request for many random pages at once, as a search over vectors or an index makes it: 64, 512 and 4096 pages,
//! on one thread that has nothing else to do.
//!
//! Two variants: `cold`, from data many times larger than memory, which is full; and `warm`, from data that is all in memory,
//! with each page of a map in its page table. Methods: touch the pages of a map one by one; ask the kernel for them first
//! (MADV_WILLNEED for each, or `process_madvise` for many) and then touch; MADV_POPULATE_READ; a loop of `pread`; threads that
//! share the request, by touches and by `pread`; a ring, past the page cache and, warm, through it; the engine's `get_many`.

mod rules;
mod texts;
mod trial;

use serde::{Deserialize, Serialize};

use crate::config::check::{counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{
    Available, Description, Experiment, LimitedTrials, Needs, Plan, PoolBytes, Section, TargetView,
};
use crate::judge::places::count_of;
use crate::measure::read_loops::pool;
use crate::measure::workload::PAGE_BYTES;
use crate::methods::{self, Family, Method, methods};
use crate::read_trials;
use crate::record::{ExperimentId, Skip, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::show::literature::{self as published, Counterparts, LiteratureRow, LiteratureTable};
use crate::summary::{Basis, Metric, Summary};

/// The variant whose pages are on the device.
pub const COLD: &str = "cold";
/// The variant whose pages are in memory.
pub const WARM: &str = "warm";

/// Name of the parameter with the number of pages of a request.
const PAGES: &str = "pages";
/// Name of the parameter with the number of threads that share a request.
const HELPERS: &str = "helpers";
/// Data in memory is this part of the memory limit, which also holds the process.
const WARM_SHARE: u64 = 4;
/// Least number of requests for which a trial lasts where pages are read one by one.
const REQUESTS_MIN: u32 = 8;
/// Planned seconds before the clock of a trial starts, in which memory fills.
const FILLING_S: f64 = 0.7;
/// The metric by which methods are compared: pages a second.
const RATE: Metric = Metric::OpsPerS;

const fn method(id: &'static str, title: &'static str, family: Family) -> Method {
    Method::new(id, title, family).batched().ready().in_flight_of(PAGES)
}

methods! {
    /// The methods that only this experiment has.
    OWN:
    BATCH_TOUCH = method("batch-touch", "mmap, touch", Family::Mapped);
    BATCH_WILLNEED = method("batch-willneed", "mmap, WILLNEED then touch", Family::Mapped).toned("t1");
    BATCH_PROCESS_MADVISE = method("batch-process-madvise", "mmap, process_madvise then touch", Family::Mapped).toned("t1");
    BATCH_POPULATE = method("batch-populate", "mmap, POPULATE_READ", Family::Mapped).toned("t2");
    BATCH_TOUCH_THREADS = method("batch-touch-threads", "mmap, touch by threads", Family::Mapped).toned("t2");
    BATCH_PREAD = method("batch-pread", "pread loop", Family::Buffered);
    BATCH_PREAD_THREADS = method("batch-pread-threads", "pread by threads", Family::Buffered);
    BATCH_RING = method("batch-ring", "io_uring O_DIRECT", Family::Ring);
    BATCH_RING_BUFFERED = method("batch-ring-buffered", "io_uring, page cache", Family::Buffered).toned("t4");
    BATCH_GET_MANY = method("batch-get-many", "nofault get_many", Family::Pool);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("batch");

/// The experiment `batch`, as the registry lists it.
pub(crate) struct Batch;

static DESCRIPTION: Description = Description {
    plan,
    execute: trial::run,
    texts: texts::TEXTS,
    rank: 4,
    in_quick: false,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    evidence: rules::EVIDENCE,
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Batch {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::All, pool: PoolBytes::OfFile, ..Needs::default() }
    }

    fn preparation_s(&self, _: &TrialSpec) -> f64 {
        FILLING_S
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        Basis { out_of_core: spec.variant == COLD, ..Basis::paging(RATE) }
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        vec![texts::sheet(place.summary, place.target, &place.variants)]
    }

    /// The trials with the largest request stand next to a published figure.
    fn counterparts<'g, 'a>(
        &self,
        table: &LiteratureTable,
        row: &LiteratureRow,
        summary: &'g Summary<'a>,
    ) -> Counterparts<'g, 'a> {
        published::of_largest(ID, (table, row), summary, |group| count_of(group, PAGES).unwrap_or_default())
    }
}

/// Plans each method at each size of a request, cold and warm.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let own: Parameters = config.params();
    for variant in [COLD, WARM] {
        for method in trial::METHODS {
            match refusal(variant, method, available) {
                Some(reason) => plan.skips.push(Skip::new(ID, "file", method, reason)),
                None => {
                    plan.trials
                        .extend(own.pages.iter().map(|pages| trial(config, available, (variant, method), *pages)));
                }
            }
        }
    }
    plan
}

/// Why a method is left out of a variant; `None` when it takes part.
fn refusal(variant: &str, method: &str, available: &Available) -> Option<String> {
    match methods::find(OWN, method) {
        Some(&BATCH_RING) | Some(&BATCH_RING_BUFFERED) if available.no_ring.is_some() => available.no_ring.clone(),
        Some(&BATCH_RING_BUFFERED) if variant == COLD => {
            Some("cold, read-ahead would decide its figures: a ring has no hint against it".into())
        }
        Some(&BATCH_GET_MANY) if available.pool.is_none() => {
            Some("left out by the configuration (pool = 'off')".into())
        }
        _ => None,
    }
}

fn trial(config: &Config, available: &Available, (variant, method): (&str, &str), pages: u32) -> TrialSpec {
    let own: Parameters = config.params();
    let memory = available.memory;
    let file = &available.file;
    let data_bytes = match variant {
        WARM => file.data_bytes.min(memory.bytes / WARM_SHARE / PAGE_BYTES as u64 * PAGE_BYTES as u64),
        _ => file.data_bytes,
    };
    let target = Target { data_bytes, ..file.clone() };
    let base = TrialSpec::of(ID, config.seed, target, method);
    let mut spec = TrialSpec { variant: variant.into(), duration_s: own.cell_s, memory, ..base };
    let extra = &mut spec.params.extra;
    extra.insert(PAGES.into(), pages.to_string());
    if method == BATCH_GET_MANY {
        extra.insert("cache_bytes".into(), pool::cache_bytes(memory, available.pool_bytes).to_string());
        spec.target = Target { data_bytes, ..available.pool.clone().unwrap_or_default() };
    }
    if method.ends_with("-threads") {
        extra.insert(HELPERS.into(), own.helpers.to_string());
    }
    match variant {
        COLD => {
            let reads = f64::from(pages.saturating_mul(REQUESTS_MIN));
            let duration_s = read_trials::long_enough(&spec, available, reads);
            TrialSpec { duration_s, ..spec }
        }
        _ => spec,
    }
}

/// Parses a number among the trial's extra parameters.
fn number(spec: &TrialSpec, name: &str) -> Result<u32> {
    let text = spec.params.extra.get(name).map(String::as_str).unwrap_or_default();
    text.parse().ok().filter(|number| (1..=1 << 20).contains(number)).ok_or_else(|| {
        LabError::new(LabErrorKind::Usage, format!("{}: {name} = '{text}' must be 1 to 2^20", spec.key()))
    })
}

/// Parameters of `batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial in seconds; cold trials last for at least eight requests.
    pub(crate) cell_s: f64,
    /// Numbers of pages of a request.
    pub(crate) pages: Vec<u32>,
    /// Number of threads that share a request, for the methods with threads.
    pub(crate) helpers: u32,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::POOL];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::DEPTHS, |params: &mut Self, value| value.put_counts(&mut params.pages))
            .noted("; in `batch` the numbers of pages of a request"),
        Use::own(&flags::THREADS, |params: &mut Self, value| value.put_count(&mut params.helpers))
            .only(|_, value| value.one().is_some(), "one count: --set batch.helpers=COUNT"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { cell_s: 0.3, pages: vec![64, 512, 4096], helpers: 32 };
        match preset {
            Preset::Quick | Preset::Standard => quick,
            Preset::Paper => Self { cell_s: 10.0, helpers: 128, ..quick },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("batch.cell_s", &[self.cell_s])?;
        // A ring takes at most 32768 requests.
        counts("batch.pages", &self.pages, 16_384)?;
        counts("batch.helpers", &[self.helpers], 4096)
    }
}

#[cfg(test)]
mod tests;
