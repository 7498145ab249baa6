//! Measures whether a buffer pool can match a map when all data is in memory. After §5 of "Are You Sure You Want to Use
//! MMAP in Your Database Management System?" (CIDR 2022), which holds that it can.
//!
//! A buffer pool must find the frame of a page by itself; for a map the hardware does it. Methods: an array indexed by
//! page id (over frames in small and in huge pages), a hash table, pointers swizzled into the parent, and a mapped file
//! with small and with huge pages. A pool is compared with a map in pages of the same size. Control: a hash table
//! behind locks that pins its pages, as in the textbook. All but the map check whether the page is resident.
//!
//! Two variants of the work. In both each access depends on the one before, so that the CPU overlaps no accesses that
//! it could not overlap in a tree:
//! - `access`: from page to page along a random cycle, one cache line of each;
//! - `lookup`: random keys in a B+tree of 4 KiB nodes, the next key known only when the last value is.
//!
//! Limits: nothing is evicted, so the pools' times contain finding a page but not choosing victims; only `hash-pinned`
//! also contains the cost of protecting a page from eviction. The map needs no guard here, because its file is in
//! memory.

mod rules;
mod texts;
mod trial;

use serde::{Deserialize, Serialize};
use trial::{Array, Frames, Hash, MappedArray, PinnedHash, Place, SwizzledFrames};

use crate::config::check::{at_least, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, MIB, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Context, Description, Experiment, Needs, Plan, Section, TargetView};
use crate::machine::system::human_bytes;
use crate::measure::workload::PAGE_BYTES;
use crate::measure::{self, Work, Worker, read_loops};
use crate::methods::{self, Family, Method, methods};
use crate::record::{CacheState, ExperimentId, Outcome, Params, Skip, SkipCause, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::show::literature::{Counterparts, LiteratureRow, LiteratureTable};
use crate::summary::{Basis, Metric, Summary, TIME_PER_OP};

/// The variant that follows references from page to page.
pub const ACCESS: &str = "access";
/// The variant that looks up keys in a tree.
pub const LOOKUP: &str = "lookup";

/// The methods: id, and whether the method is a control.
const METHODS: [(&str, bool); 7] = [
    (ARRAY.id, false),
    (HASH.id, false),
    (SWIZZLED.id, false),
    (MAPPED.id, false),
    (MAPPED_HUGE.id, false),
    (ARRAY_SMALL.id, false),
    (HASH_PINNED.id, true),
];

methods! {
    /// The methods that only this experiment has.
    OWN:
    ARRAY = Method::new("array", "page-table array", Family::Pool).toned("t3").huge();
    HASH = Method::new("hash", "hash table", Family::Pool).toned("t4").huge();
    SWIZZLED = Method::new("swizzled", "swizzled pointers", Family::Pool).huge();
    MAPPED = Method::new("mapped", "mapped file", Family::Mapped).ready();
    MAPPED_HUGE = Method::new("mapped-huge", "mapped file, huge pages", Family::Mapped).toned("t1").huge().ready();
    ARRAY_SMALL = Method::new("array-small", "page-table array, small pages", Family::Pool).toned("t5");
    HASH_PINNED = Method::new("hash-pinned", "hash table, locks and pins", Family::Pool).toned("t2").huge();
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("translate");

/// The experiment `translate`, as the registry lists it.
pub(crate) struct Translate;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 7,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    contributions: &[("pool-costs-as-much", rules::pool)],
    evidence: rules::EVIDENCE,
    less_memory: |_| Some("--set translate.working_set_bytes=[BYTES]"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Translate {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs::default()
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis::by(Metric::TimePerOp)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        vec![Sheet::new(texts::columns(place.summary, place.target))]
    }

    fn counterparts<'g, 'a>(
        &self,
        table: &LiteratureTable,
        row: &LiteratureRow,
        summary: &'g Summary<'a>,
    ) -> Counterparts<'g, 'a> {
        // The largest working set is the closest to the paper's.
        let own = summary.of_experiment(self.id()).filter(|group| {
            let spec = group.spec;
            spec.method == row.method && spec.variant == table.variant && spec.params.threads == 1
        });
        Counterparts { groups: vec![own.max_by_key(|group| group.spec.target.data_bytes)], on_file: false }
    }
}

fn title(id: &str) -> String {
    methods::title(methods::find(OWN, id), id)
}

/// Plans every method at each working set and thread count.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let translate: Parameters = config.params();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let mut skip = |skip: Skip| {
        if !plan.skips.contains(&skip) {
            plan.skips.push(skip);
        }
    };
    for working_set in &translate.working_set_bytes {
        // Twice: the pages, and the tables that find them.
        if available.memory_available_bytes.is_some_and(|bytes| bytes < working_set.saturating_mul(2)) {
            let reason = format!("a working set of {}: not enough memory is available", human_bytes(*working_set));
            skip(Skip::new(ID, "memory", "", reason));
            continue;
        }
        for threads in &translate.threads {
            if *threads > cpus {
                let reason = format!("more than {cpus} threads: there are only {cpus} CPUs, and more would only wait");
                skip(Skip::new(ID, "memory", "", reason));
                continue;
            }
            for variant in [ACCESS, LOOKUP] {
                for (method, control) in METHODS {
                    if control && !translate.controls {
                        let later = Skip::new(ID, "memory", method, "from --preset standard on");
                        skip(later.because(SkipCause::LargerPreset));
                        continue;
                    }
                    plan.trials.push(trial(config, variant, method, *working_set, *threads));
                }
            }
        }
    }
    plan
}

fn trial(config: &Config, variant: &str, method: &str, working_set: u64, threads: u32) -> TrialSpec {
    let extra = [("working_set".to_owned(), working_set.to_string())].into();
    let target =
        Target { label: "memory".into(), paths: Vec::new(), data_bytes: working_set, content_seed: Some(config.seed) };
    TrialSpec {
        variant: variant.into(),
        params: Params { threads, depth: 1, block_bytes: PAGE_BYTES as u64, extra },
        duration_s: config.params::<Parameters>().cell_s,
        // All pages are in memory before the clock starts.
        cache: CacheState::Warm,
        ..TrialSpec::of(ID, config.seed, target, method)
    }
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method or variant; `NoSpace` without the memory; `Unsupported` where a map gets no huge
/// pages.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let page_count = (spec.target.data_bytes / PAGE_BYTES as u64) as usize;
    if page_count < 8 {
        return Err(LabError::new(LabErrorKind::Usage, "translate: the working set is smaller than eight pages"));
    }
    match methods::find(OWN, &spec.method) {
        Some(&ARRAY) => measured(spec, context, Array::new(Frames::in_huge_pages(page_count)?, spec.seed)),
        Some(&ARRAY_SMALL) => measured(spec, context, Array::new(Frames::in_small_pages(page_count)?, spec.seed)),
        Some(&HASH) => measured(spec, context, Hash::new(Frames::in_huge_pages(page_count)?, spec.seed)),
        Some(&HASH_PINNED) => measured(spec, context, PinnedHash::new(Frames::in_huge_pages(page_count)?, spec.seed)),
        Some(&SWIZZLED) => measured(spec, context, SwizzledFrames::new(Frames::in_huge_pages(page_count)?, spec.seed)),
        Some(&MAPPED) => measured(spec, context, MappedArray::new(page_count, false)?),
        Some(&MAPPED_HUGE) => measured(spec, context, MappedArray::new(page_count, true)?),
        _ => Err(read_loops::unknown(spec)),
    }
}

fn measured<P: Place>(spec: &TrialSpec, context: &mut Context<'_>, mut place: P) -> Result<Outcome> {
    let plan = context.timed(spec)?;
    let threads = spec.params.threads.max(1);
    let before = trial::huge_bytes();
    let mut outcome = match spec.variant.as_str() {
        ACCESS => {
            let cycle = trial::Cycle::build(&mut place, spec.seed)?;
            let place = &place;
            let works = (0..threads).map(|thread| -> Work<'_> {
                let start = cycle.start(thread, threads);
                Box::new(move |worker: &mut Worker<'_>| trial::follow(worker, place, start))
            });
            measure::run(&plan, works.collect(), context.on_tick)?
        }
        LOOKUP => {
            let tree = trial::Tree::build(&mut place, spec.seed)?;
            let (place, tree) = (&place, &tree);
            let works = (0..threads).map(|thread| -> Work<'_> {
                Box::new(move |worker: &mut Worker<'_>| tree.look_up(worker, place, spec.seed, thread))
            });
            let mut outcome = measure::run(&plan, works.collect(), context.on_tick)?;
            outcome.figures.insert("levels".into(), f64::from(tree.levels()));
            outcome
        }
        other => {
            return Err(LabError::new(LabErrorKind::Usage, format!("translate: unknown variant '{other}'")));
        }
    };
    let rate = outcome.ops_per_s();
    if rate > 0.0 {
        outcome.figures.insert(TIME_PER_OP.into(), f64::from(threads) / rate);
    }
    outcome.figures.insert("table_bytes_per_page".into(), place.table_bytes() as f64 / place.page_count() as f64);
    if let (Some(before), Some(now)) = (before, trial::huge_bytes()) {
        outcome.figures.insert("huge_page_bytes".into(), now.saturating_sub(before) as f64);
    }
    outcome.cache_method = "built in memory before the clock started".into();
    Ok(outcome)
}

/// Parameters of `translate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Sizes in bytes of the pages that are accessed, all in memory.
    pub(crate) working_set_bytes: Vec<u64>,
    /// Thread counts; the plan leaves out counts above the number of CPUs.
    pub(crate) threads: Vec<u32>,
    /// Whether the control is measured too: a hash table with locks and pins as in the textbook.
    pub(crate) controls: bool,
}

impl Parameters {
    /// The parameters of the quick preset: one working set, one thread.
    fn quick() -> Self {
        Self { cell_s: 0.1, working_set_bytes: vec![128 * MIB], threads: vec![1], controls: false }
    }

    /// The parameters of the standard preset: working sets from the size of the caches to far beyond them.
    fn standard() -> Self {
        Self {
            cell_s: 0.3,
            working_set_bytes: vec![2 * MIB, 64 * MIB, 1024 * MIB],
            threads: vec![1, 2],
            controls: true,
        }
    }

    /// The parameters of the paper preset: larger working sets, longer trials, more threads.
    fn paper() -> Self {
        Self {
            cell_s: 2.0,
            working_set_bytes: vec![2 * MIB, 64 * MIB, 1024 * MIB, 8192 * MIB, 32_768 * MIB],
            threads: vec![1, 2, 4, 8, 16, 32, 64, 128],
            controls: true,
        }
    }
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::SIZE, "--set translate.working_set_bytes=[BYTES]"),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.threads)),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self::quick(),
            Preset::Standard => Self::standard(),
            Preset::Paper => Self::paper(),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("translate.cell_s", &[self.cell_s])?;
        counts("translate.threads", &self.threads, 4096)?;
        let sizes = &self.working_set_bytes;
        sizes.iter().try_for_each(|bytes| at_least("translate.working_set_bytes", *bytes, 1 << 16))
    }
}

#[cfg(test)]
mod tests;
