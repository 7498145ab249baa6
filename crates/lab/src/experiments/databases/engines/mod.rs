//! Compares whole databases, with a map and without. After table 1 of "Are You Sure You Want to Use MMAP in Your
//! Database Management System?" (CIDR 2022), which names the systems.
//!
//! Each store (`stores`) is loaded, then runs YCSB's mixes in YCSB's own order, scans, and commits durably, twice: with
//! data larger than the memory of its cgroup, and with data that fits. Process and page cache together get the same
//! memory for every kind of cache; every figure belongs to one class of durability; settings are kept with each trial.
//!
//! The trials of one store follow each other on one database, which the first of them makes. So only one database is on
//! the disk at a time, and every repeat begins with a fresh one. In the mixes each operation is a separate request
//! and opens a read view of the newest commit. Every answer is checked, also against values that were overwritten
//! before the read began (`history`).

mod rules;
mod texts;
mod trial;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trial::{History, Place};

use super::{number, usage, value_bytes};
use crate::config::check::seconds;
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, GIB, MIB, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Context, Description, Experiment, Needs, Plan, Section, Stores, TargetView};
use crate::format::bytes;
use crate::measure::entries::{Data, KEY_BYTES, Zipfian};
use crate::measure::mixes::{MIXES, Mix};
use crate::measure::stores::{self, KINDS, Kind, Room, Start, Store, kind_of};
use crate::measure::{self, Work, Worker, read_loops, unix_ms};
use crate::methods::{Family, Method, methods};
use crate::record::{CacheState, ExperimentId, MemoryLimit, MemoryMethod, Outcome, Params, Skip, Target, TrialSpec};
use crate::show::columns::{self, Sheet};
use crate::show::figures::{Figure, costs, latencies, rates};
use crate::summary::{Basis, Metric, Summary};

/// The variant that fills an empty store.
pub const LOAD: &str = "load";
/// The variant that scans all entries in order, just after loading.
pub const SCAN: &str = "scan";
/// The variant that scans all entries in order, after the mixes.
pub const SCAN_AGED: &str = "scan-aged";
/// The variant with one writer that commits durably, one entry each.
pub const COMMIT: &str = "commit";
/// The variant with many writers that commit durably, one entry each.
pub const COMMIT_MANY: &str = "commit-many";
/// Prefix of the variants running a YCSB mix; the mix's letter follows.
pub const YCSB: &str = "ycsb-";

/// Label of the target with data larger than memory.
pub const LARGER: &str = "file";
/// Label of the target with data that fits in memory.
pub const IN_MEMORY: &str = "in-memory";

/// The order of a store's trials. The mixes follow YCSB's own order: D and E add entries and come last.
const ORDER: [&str; 11] =
    [LOAD, SCAN, "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-f", "ycsb-d", "ycsb-e", SCAN_AGED, COMMIT, COMMIT_MANY];
/// Share of a trial's time in which the store warms up, unmeasured.
const WARM_SHARE: f64 = 1.0 / 3.0;
/// The device's read-ahead under the map without a hint whose evictions are compared with a map told RANDOM: both then read
/// single pages.
const NO_READ_AHEAD: &u64 = &0;
/// Why a store has no figure for durable commits.
const NO_DURABLE_COMMITS: &str = "durable commits: it can make only all of its data durable, by a snapshot";
/// Planned rate of loading, in bytes a second.
const LOAD_BYTES_PER_S: f64 = 60e6;

methods! {
    /// The methods that only this experiment has.
    OWN:
    SQLITE_MMAP = Method::new(stores::SQLITE_MMAP, "SQLite, mmap", Family::Mapped).database();
    ROCKSDB_MMAP = Method::new(stores::ROCKSDB_MMAP, "RocksDB, mmap", Family::Mapped).database();
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("engines");

/// The experiment `engines`, as the registry lists it.
pub(crate) struct Engines;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 4,
    in_quick: false,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    contributions: &[("random-hint-forgets-hot-pages", rules::forgets)],
    evidence: rules::EVIDENCE,
    // A store's own cache can only be filled through the store.
    warms_itself: true,
    less_memory: |target| Some(if target.label == IN_MEMORY { "--set engines.fit_data_bytes=BYTES" } else { "--size" }),
    more_memory: |target| if target.label == IN_MEMORY { "--set engines.fit_memory_bytes=BYTES" } else { "--memory" },
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Engines {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, config: &Config) -> Needs {
        let engines: Parameters = config.params();
        let stores = Stores {
            data_bytes: engines.data_bytes,
            memory_bytes: engines.memory_bytes,
            data_bytes_max: engines.data_bytes.max(engines.fit_data_bytes),
        };
        Needs { stores: Some(stores), ..Needs::default() }
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis::by(Metric::OpsPerS)
    }

    fn overview(&self, summary: &Summary<'_>) -> Vec<Figure> {
        texts::overviews(summary)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        let (groups, title) = (section.by_family(), texts::place_title(section.variant, section.target));
        let mut figures = Vec::new();
        figures.extend(rates(&groups, &title, Metric::OpsPerS, "operations per second"));
        if texts::worth_detail(section.variant) {
            figures.extend(costs(&groups, &title, Metric::CpuPerOp, "CPU time per operation"));
            figures.extend(latencies(&groups, &title, "op", "operation"));
        }
        figures
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        let columns = texts::columns(place.summary, place.target, &columns::title(self.id(), place.target));
        vec![Sheet::new(columns).with_below(texts::stores_not_built(place.file))]
    }
}

/// Plans the trials of every store compiled in. Skips the other stores, with the name of the feature that each
/// needs.
fn plan(config: &Config, available: &Available) -> Plan {
    let engines: Parameters = config.params();
    let mut plan = Plan { repeats: Some(engines.repeats), together: true, ..Plan::default() };
    let wanted = |kind: &&Kind| engines.stores.is_empty() || engines.stores.iter().any(|id| id == kind.id);
    for kind in KINDS.iter().filter(wanted) {
        if !kind.is_built() {
            let how = format!("{} (cargo run --release --features {} -- lab engines)", kind.not_built(), kind.feature);
            plan.skips.push(skip("", kind.id, how).because(kind.why_not_built()));
        }
    }
    let built: Vec<&Kind> = KINDS.iter().filter(wanted).filter(|kind| kind.is_built()).collect();
    let takes = |kind: &&Kind| engines.value_bytes <= kind.value_bytes_max;
    for kind in &built {
        if !takes(kind) {
            let why = format!("values of {} bytes: it takes at most {}", engines.value_bytes, kind.value_bytes_max);
            plan.skips.push(skip("", kind.id, why));
        } else if !kind.commits_durably {
            plan.skips.push(skip(LARGER, kind.id, NO_DURABLE_COMMITS.into()));
        }
    }
    let stores: Vec<&Kind> = built.into_iter().filter(takes).collect();
    let limit = available.stores_memory(ID);
    if let Err(why) = limit {
        plan.skips.push(skip(LARGER, "", format!("data larger than memory: {why}")));
    }
    let larger = limit.ok();
    // Without a way to limit memory, data that would fit within the limit fits in memory anyway.
    let method = larger.map_or(MemoryMethod::None, |limit| limit.method);
    let by_group = matches!(method, MemoryMethod::CgroupV1 | MemoryMethod::CgroupV2);
    let fits = match by_group {
        true => MemoryLimit { method, bytes: engines.fit_memory_bytes },
        false => MemoryLimit::default(),
    };
    if !available.root && !config.read_ahead_kb.is_empty() && larger.is_some() {
        for kind in stores.iter().filter(|kind| kind.reads_ahead) {
            let why = "other values of read_ahead_kb: setting it needs root; run with sudo".into();
            plan.skips.push(skip(LARGER, kind.id, why));
        }
    }
    for (label, limit) in [(LARGER, larger), (IN_MEMORY, Some(fits))] {
        let Some(limit) = limit else { continue };
        for kind in &stores {
            let measured = |variant: &&str| (label == LARGER || fits_in(variant)) && can(kind, variant);
            for variant in ORDER.into_iter().filter(measured) {
                let plain = trial(config, available, label, limit, kind, variant);
                let again =
                    if label == LARGER { with_other_read_ahead(config, available, kind, &plain) } else { Vec::new() };
                plan.trials.push(plain);
                plan.trials.extend(again);
            }
        }
    }
    plan
}

/// Returns copies of a trial for each other value of the device's read-ahead. Only for trials in which read-ahead
/// decides the rate of a map: read-only work on data larger than memory.
fn with_other_read_ahead(config: &Config, available: &Available, kind: &Kind, plain: &TrialSpec) -> Vec<TrialSpec> {
    if !available.root || !kind.reads_ahead || ![SCAN, "ycsb-c"].contains(&plain.variant.as_str()) {
        return Vec::new();
    }
    let with = |kib: &u64| {
        let mut spec = plain.clone();
        spec.params.extra.insert("read_ahead_kb".into(), kib.to_string());
        spec
    };
    // A map that is not told RANDOM reads at random best from a device that reads nothing ahead.
    let off = Some(NO_READ_AHEAD).filter(|_| plain.variant == rules::ZIPFIAN);
    config.read_ahead_kb.iter().chain(off).map(with).collect()
}

/// Whether a store can run a variant: one that commits durably needs a store that can.
fn can(kind: &Kind, variant: &str) -> bool {
    kind.commits_durably || ![COMMIT, COMMIT_MANY].contains(&variant)
}

/// Whether a variant is also measured with all data in memory. The rates of the other variants depend on the disk in
/// any case.
fn fits_in(variant: &str) -> bool {
    variant == LOAD || variant == SCAN || variant.starts_with(YCSB)
}

fn skip(target: &str, method: &str, reason: String) -> Skip {
    Skip::new(ID, target, method, reason)
}

fn trial(
    config: &Config,
    available: &Available,
    label: &str,
    memory: MemoryLimit,
    kind: &Kind,
    variant: &str,
) -> TrialSpec {
    let engines: Parameters = config.params();
    let larger = label == LARGER;
    let data_bytes = if larger { engines.data_bytes } else { engines.fit_data_bytes };
    let threads = match variant {
        COMMIT_MANY => engines.writers,
        variant if !variant.starts_with(YCSB) => 1,
        _ if larger => engines.threads,
        _ => engines.fit_threads,
    };
    let durable = [LOAD, COMMIT, COMMIT_MANY].contains(&variant);
    let extra = [
        ("fit", if larger { "larger" } else { "in-memory" }.to_owned()),
        ("durability", if durable { "sync" } else { "deferred" }.to_owned()),
        ("memory", budget(&engines, memory, larger).to_string()),
    ];
    let target = Target {
        label: label.into(),
        paths: vec![available.stores_folder(ID)],
        data_bytes,
        content_seed: Some(config.seed),
    };
    TrialSpec {
        variant: variant.into(),
        params: Params {
            threads,
            depth: 1,
            block_bytes: KEY_BYTES as u64 + u64::from(engines.value_bytes),
            extra: extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        },
        duration_s: if variant == LOAD { data_bytes as f64 / LOAD_BYTES_PER_S + 1.0 } else { engines.cell_s },
        memory,
        cache: if larger || variant == LOAD { CacheState::Cold } else { CacheState::Warm },
        ..TrialSpec::of(ID, config.seed, target, kind.id)
    }
}

/// Returns the bytes of memory by which caches are sized: the setting, or the trial's limit where that is smaller.
fn budget(engines: &Parameters, memory: MemoryLimit, larger: bool) -> u64 {
    match memory.method {
        MemoryMethod::None if !larger => engines.fit_memory_bytes,
        // A ballast or a large file limits one process no more than all processes together.
        _ => memory.bytes.min(if larger { engines.memory_bytes } else { engines.fit_memory_bytes }),
    }
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for unknown variants and parameters, and for a trial without a loaded database; `Unsupported` for a store
/// that was not compiled in; otherwise the store's error.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let kind = stores::kind_of(&spec.method).ok_or_else(|| read_loops::unknown(spec))?;
    if !ORDER.contains(&spec.variant.as_str()) || spec.params.threads == 0 {
        return Err(usage(spec, &format!("nothing is called {}", spec.key())));
    }
    let place = Place::of(spec)?;
    let data = data_of(spec)?;
    let memory_bytes: u64 = number(spec, "memory")?;
    let room = Room {
        cache_bytes: (memory_bytes as f64 * kind.cache_share) as u64,
        write_bytes: memory_bytes / 8,
        data_bytes: data.user_bytes(),
        threads: spec.params.threads,
        value_bytes: u32::try_from(data.value_bytes).unwrap_or(u32::MAX),
    };
    let start = if spec.variant == LOAD { Start::New } else { Start::Old };
    let known = match start {
        Start::New => place.clear().map(|()| 0)?,
        Start::Old => place.entries(spec)?,
    };
    let not_built = || LabError::new(LabErrorKind::Unsupported, format!("{}: {}", kind.id, kind.not_built()));
    let opened = std::time::Instant::now();
    let store = stores::open(kind.id, &place.store(), room, start).ok_or_else(not_built)??;
    let open_s = opened.elapsed().as_secs_f64();

    let mut outcome = match start {
        Start::New => load(spec, context, &*store, data, &place)?,
        Start::Old => used(spec, context, &*store, data, known, &place)?,
    };
    let settling = std::time::Instant::now();
    store.settle()?;
    outcome.figures.insert("settle_s".into(), settling.elapsed().as_secs_f64());
    outcome.figures.insert("open_s".into(), open_s);
    outcome.settings.extend(store.settings()?.into_iter().map(|(name, text)| (name.to_owned(), text)));
    outcome.texts.insert("unequal".into(), store.unequal().into());
    outcome.texts.insert("what".into(), kind.what.into());
    drop(store);
    let (file_bytes, files) = place.size()?;
    outcome.figures.insert("file_bytes".into(), file_bytes as f64);
    let entries = place.entries(spec).unwrap_or(data.count);
    outcome.figures.insert("space_ratio".into(), file_bytes as f64 / (entries * data.entry_bytes()) as f64);
    outcome.texts.insert("files".into(), files);
    Ok(outcome)
}

/// Fills an empty store, and checks some of the loaded entries.
fn load(spec: &TrialSpec, context: &mut Context<'_>, store: &dyn Store, data: Data, place: &Place) -> Result<Outcome> {
    // Only a bound for the case that the device hangs: the trial ends when its work is done.
    let plan = context.lasting(Duration::from_secs(24 * 3600), read_loops::tick_of(spec));
    let works: Vec<Work<'_>> = vec![Box::new(move |worker: &mut Worker<'_>| stores::fill_counted(worker, store, data))];
    let mut outcome = measure::run(&plan, works, &mut *context.on_tick)?;
    // A fixed amount of work has no steady part.
    outcome.steady = None;
    if !outcome.partial {
        outcome.checks = trial::check_loaded(store, data)?;
        place.keep(spec, data.count)?;
    }
    Ok(outcome)
}

/// Measures a work on a loaded store.
fn used(
    spec: &TrialSpec,
    context: &mut Context<'_>,
    store: &dyn Store,
    data: Data,
    known: u64,
    place: &Place,
) -> Result<Outcome> {
    let warm = Duration::from_secs_f64(read_loops::duration_of(spec)?.as_secs_f64() * WARM_SHARE);
    let mut cache_method = String::new();
    if spec.cache == CacheState::Warm {
        let count = trial::read_all(store, data, known)?;
        cache_method = format!("all {count} entries read through the store");
    }
    // Some stores never fill the memory, so every store reaches its steady state by warming up for a time.
    let plan = context.lasting(read_loops::duration_of(spec)? - warm, read_loops::tick_of(spec));
    // Higher than any change number of an earlier trial, even at a million changes of a key each millisecond.
    let history = History::new(data, known, unix_ms() << 20);
    let cancel = context.cancel;
    let mut works: Vec<Work<'_>> = Vec::new();
    let mix = mix_of(&spec.variant);
    let zipfian = mix.map(|_| Zipfian::new(data.count, 0));
    for thread in 0..spec.params.threads {
        let (history, seed) =
            (&history, crate::measure::entries::mix(spec.seed) ^ crate::measure::entries::mix(u64::from(thread)));
        works.push(match (mix, &zipfian) {
            (Some(mix), Some(zipfian)) => Box::new(move |worker| {
                let chooser = crate::measure::mixes::Chooser::new(mix, data.count, zipfian, seed);
                trial::mix(worker, store, history, chooser, warm, cancel)
            }),
            _ if spec.variant == COMMIT || spec.variant == COMMIT_MANY => {
                Box::new(move |worker| trial::commit(worker, store, history, seed, warm, cancel))
            }
            _ => Box::new(move |worker| trial::scan(worker, store, data, known)),
        });
    }
    let outcome = measure::run(&plan, works, &mut *context.on_tick);
    // Also after a failure, because inserted entries stay in the store.
    place.keep(spec, history.known())?;
    let mut outcome = outcome?;
    outcome.cache_method = cache_method;
    Ok(outcome)
}

fn mix_of(variant: &str) -> Option<Mix> {
    let letter = variant.strip_prefix(YCSB)?;
    MIXES.into_iter().find(|mix| mix.id == letter)
}

fn data_of(spec: &TrialSpec) -> Result<Data> {
    let value_bytes = value_bytes(spec)?;
    let seed = spec.target.content_seed.ok_or_else(|| usage(spec, "the data has no seed"))?;
    Ok(Data::of_bytes(spec.target.data_bytes, value_bytes, seed))
}

/// Returns a variant's name for headings.
pub fn title(variant: &str) -> String {
    match variant {
        LOAD => "loading sorted entries, durable at the end".into(),
        SCAN => "full scan after loading".into(),
        SCAN_AGED => "full scan after the mixes".into(),
        COMMIT => "durable commits of one writer".into(),
        COMMIT_MANY => "durable commits of many writers".into(),
        other => mix_of(other).map_or(other.to_owned(), |mix| format!("YCSB {}, commits deferred", mix.name)),
    }
}

/// Parameters of `engines`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial in seconds, warming up included.
    pub(crate) cell_s: f64,
    /// How often each store is measured. The lab loads the store again each time.
    pub(crate) repeats: u32,
    /// Bytes of keys and values in the data that must exceed memory.
    pub(crate) data_bytes: u64,
    /// Memory limit in bytes, page cache included, of the processes whose data must exceed memory.
    pub(crate) memory_bytes: u64,
    /// Bytes of keys and values in the data that must fit in memory.
    pub(crate) fit_data_bytes: u64,
    /// Memory limit in bytes, page cache included, of the processes whose data must fit in memory.
    pub(crate) fit_memory_bytes: u64,
    /// Bytes of a value; a key has 16.
    pub(crate) value_bytes: u32,
    /// Threads of the mixes where the data exceeds memory.
    pub(crate) threads: u32,
    /// Threads of the mixes where the data fits in memory.
    pub(crate) fit_threads: u32,
    /// Number of writers in the trials of durable commits by many writers.
    pub(crate) writers: u32,
    /// Ids of the stores to measure; all stores when empty.
    #[serde(rename = "contenders")]
    pub(crate) stores: Vec<String>,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::MEMORY_METHOD, &flags::READ_AHEAD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::SIZE, |params: &mut Self, value| value.put_bytes(&mut params.data_bytes))
            .noted(", and of the databases of engines"),
        Use::own(&flags::MEMORY, |params, value| value.put_bytes(&mut params.memory_bytes)),
        Use::own(&flags::THREADS, |params: &mut Self, value| {
            value.put_count(&mut params.threads);
            value.put_count(&mut params.fit_threads);
        })
        .only(|_, value| value.one().is_some(), "a single count for engines, as in --threads 16")
        .noted("; engines takes a single count only"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.6,
            repeats: 2,
            data_bytes: 256 * MIB,
            memory_bytes: 96 * MIB,
            fit_data_bytes: 32 * MIB,
            fit_memory_bytes: 256 * MIB,
            value_bytes: 1000,
            threads: 16,
            fit_threads: 2,
            writers: 16,
            stores: Vec::new(),
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self {
                cell_s: 0.9,
                data_bytes: 512 * MIB,
                memory_bytes: 128 * MIB,
                fit_data_bytes: 64 * MIB,
                fit_memory_bytes: 512 * MIB,
                ..quick
            },
            Preset::Paper => Self {
                cell_s: 90.0,
                repeats: 3,
                data_bytes: 64 * GIB,
                memory_bytes: 8 * GIB,
                fit_data_bytes: 4 * GIB,
                fit_memory_bytes: 16 * GIB,
                ..quick
            },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        if let Some(id) = self.stores.iter().find(|id| kind_of(id).is_none()) {
            let all = KINDS.map(|kind| kind.id).join(", ");
            return Err(format!("engines.contenders: no store is called '{id}'; there are {all}"));
        }
        if self.data_bytes / 2 < self.memory_bytes {
            let (data, memory) = (bytes(self.data_bytes), bytes(self.memory_bytes));
            return Err(format!(
                "engines.data_bytes (--size): {data} of data must be at least twice the {memory} of memory, \
                 engines.memory_bytes (--memory)"
            ));
        }
        seconds("engines.cell_s", &[self.cell_s])?;
        let checks = [
            ((1..=1000).contains(&self.repeats), "repeats must be 1 to 1000"),
            ((8 * MIB..=1 << 50).contains(&self.data_bytes), "data_bytes must be 8 MiB to 2^50"),
            ((MIB..=1 << 50).contains(&self.fit_data_bytes), "fit_data_bytes must be 1 MiB to 2^50"),
            (self.memory_bytes >= 32 * MIB, "memory_bytes must be at least 32 MiB"),
            (
                self.fit_memory_bytes / 4 >= self.fit_data_bytes,
                "fit_memory_bytes must be at least four times fit_data_bytes",
            ),
            (self.fit_memory_bytes >= 64 * MIB, "fit_memory_bytes must be at least 64 MiB"),
            ((16..=1 << 20).contains(&self.value_bytes), "value_bytes must be 16 to 1048576"),
            ((1..=512).contains(&self.threads), "threads must be 1 to 512"),
            ((1..=512).contains(&self.fit_threads), "fit_threads must be 1 to 512"),
            ((2..=512).contains(&self.writers), "writers must be 2 to 512"),
        ];
        match checks.into_iter().find(|(fine, _)| !fine) {
            Some((_, what)) => Err(format!("engines.{what}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
