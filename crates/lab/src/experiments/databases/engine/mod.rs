//! Compares the engine with the raw device and with other databases, all in one run: `nofault db bench`.
//!
//! A work (`works`) has rows of results. A row is a variant on one set of data, measured for the engine, the raw device
//! and other databases, with the quantities to compare and the project's aims. A trial (`execute`, `trial`) finds its
//! database in the lab's folder or makes it (`place`), so that the user can measure any work alone, in any order.
//!
//! Kept true by: every value that is read is verified in full while it is timed. The engine and the device take turns,
//! so that a drift of the machine affects both. Where memory is limited, one store runs at a time and may use all of
//! the limit.

mod reads;
mod rules;
mod texts;
mod trial;
mod works;
mod writes;

use std::path::Path;

use serde::{Deserialize, Serialize};
use trial::{Place, State, Trial};
use works::{
    GET_TASKS, GROWTH, LOAD_RANDOM, LONG_READER, PEERS, PUT_BATCH, READ_WRITE, REOPEN, Row, SPACE_DELETED,
    SPACE_RANDOM, SPACE_UPDATED, Scope, WORKS, Work,
};

use super::{number, usage, value_bytes};
use crate::config::check::{at_least, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, GIB, MIB, Preset};
use crate::error::Result;
use crate::experiment::{
    Available, Command, Context, Description, Experiment, Needs, Plan, Section, Stores, TargetView,
};
use crate::format::bytes;
use crate::machine::ram;
use crate::measure::entries::Data;
use crate::measure::read_loops;
use crate::measure::stores::kind_of;
use crate::methods::{self, Family, Method, NOFAULT, methods};
use crate::record::{CacheState, ExperimentId, MemoryLimit, MemoryMethod, Outcome, Params, Skip, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::show::literature::{Counterparts, LiteratureRow, LiteratureTable};
use crate::summary::{Basis, Metric, Summary};

methods! {
    /// The methods that only this experiment has.
    OWN:
    NOFAULT_POLLER = Method::new("nofault-poller", "nofault, executor's poller", Family::Pool).toned("t2").database();
    NOFAULT_BEFORE_TASK = Method::new("nofault-before-task", "nofault, before a task", Family::Pool).toned("t2").database();
    NO_READER = Method::new("no-reader", "nofault, no reader", Family::Pool).toned("t2").database();
    DEVICE = Method::new("device", "device", Family::Ring).huge().ready();
    DEVICE_BATCHES = Method::new("device-batches", "device, batches", Family::Ring).toned("t3").huge().ready();
    DEVICE_OVERWRITE = Method::new("device-overwrite", "device, overwrites", Family::Ring).huge().ready();
    IDLE_EXECUTOR = Method::new("idle-executor", "idle executor", Family::Baseline);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("engine");

/// The experiment `engine`, as the registry lists it.
pub(crate) struct Engine;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 10,
    methods: OWN,
    findings: rules::find,
    // A store's own cache can only be filled through the store.
    warms_itself: true,
    less_memory: |_| Some("--size, --memory-keys, --cache"),
    more_memory: |_| "--memory, or --limit of db bench",
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Engine {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn command(&self) -> Option<Command> {
        Some(Command {
            name: "db bench",
            parts: || works::WORKS.iter().map(|work| (work.name, works::described(work))).collect(),
        })
    }

    fn needs(&self, config: &Config) -> Needs {
        let engine: Parameters = config.params();
        let stores = Stores {
            data_bytes: engine.data_bytes,
            memory_bytes: engine.limit(),
            data_bytes_max: data_bytes_max(&engine),
        };
        Needs { stores: Some(stores), ..Needs::default() }
    }

    fn preparation_s(&self, spec: &TrialSpec) -> f64 {
        preparation_s(spec)
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        let quantity = works::row_of(&spec.variant).and_then(|row| row.quantities.first());
        Basis::by(quantity.map_or(Metric::OpsPerS, |quantity| quantity.metric))
    }

    fn overview(&self, summary: &Summary<'_>) -> Vec<Figure> {
        texts::overview(summary)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(section)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        texts::sheets(place)
    }

    fn counterparts<'g, 'a>(&self, _: &LiteratureTable, _: &LiteratureRow, _: &'g Summary<'a>) -> Counterparts<'g, 'a> {
        Counterparts { groups: vec![None], on_file: false }
    }
}

/// Bytes of memory that a process needs besides 1.3 times its cache, by the engine's own rule.
const BESIDE_CACHE_BYTES: u64 = 64 << 20;
/// Least cache in bytes with which a database works without constant eviction.
const CACHE_BYTES_MIN: u64 = MIB;

/// Parameters of `engine`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Names of the works to measure; all works when empty.
    pub(crate) works: Vec<String>,
    /// Length in seconds of a trial without a fixed amount of work; loading and warming come on top.
    pub(crate) cell_s: f64,
    /// Bytes of keys and values in the data that exceeds the cache.
    pub(crate) data_bytes: u64,
    /// Number of entries in the data that fits in memory.
    pub(crate) memory_keys: u64,
    /// Cache in bytes of the databases whose data exceeds their cache; 0 takes an eighth of the data, and at least 1
    /// MiB.
    pub(crate) cache_bytes: u64,
    /// Memory limit in bytes of the processes whose data exceeds their cache, page cache included; 0 takes the least
    /// that is allowed: 1.3 times the cache plus 64 MiB.
    pub(crate) limit_bytes: u64,
    /// Sizes of a value in bytes; a key has 16.
    pub(crate) value_bytes: Vec<u32>,
    /// Bytes of log that a crashed database has to replay when it is opened again.
    pub(crate) log_bytes: u64,
}

impl Parameters {
    /// Cache in bytes of the databases whose data exceeds their cache.
    pub(crate) fn cache(&self) -> u64 {
        if self.cache_bytes > 0 { self.cache_bytes } else { (self.data_bytes / 8).max(CACHE_BYTES_MIN) }
    }

    /// Memory limit in bytes of the processes whose data exceeds their cache.
    pub(crate) fn limit(&self) -> u64 {
        if self.limit_bytes > 0 { self.limit_bytes } else { self.limit_min() }
    }

    /// The least memory limit in bytes under which a process with this cache is not killed.
    fn limit_min(&self) -> u64 {
        let cache = self.cache();
        cache.saturating_add(cache.div_ceil(10).saturating_mul(3)).saturating_add(BESIDE_CACHE_BYTES)
    }
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::SIZE, |params: &mut Self, value| value.put_bytes(&mut params.data_bytes))
            .noted(", and of the databases of engine"),
        Use::own(&flags::MEMORY, |params, value| value.put_bytes(&mut params.limit_bytes)),
        Use::shared(&flags::MEMORY_METHOD),
        Use::none(&flags::THREADS, "each work of engine has its own number of threads"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            works: Vec::new(),
            cell_s: 0.5,
            data_bytes: 128 * MIB,
            memory_keys: 200_000,
            cache_bytes: 0,
            limit_bytes: 0,
            value_bytes: vec![100, 1000],
            log_bytes: 16 * MIB,
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => {
                Self { cell_s: 2.0, data_bytes: GIB, memory_keys: 1_000_000, log_bytes: 64 * MIB, ..quick }
            }
            Preset::Paper => Self {
                cell_s: 10.0,
                data_bytes: 8 * GIB,
                memory_keys: 1_000_000,
                cache_bytes: 736 * MIB,
                limit_bytes: GIB,
                log_bytes: 256 * MIB,
                ..quick
            },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        let names = || WORKS.iter().map(|work| work.name);
        if let Some(unknown) = self.works.iter().find(|name| names().all(|known| known != *name)) {
            let known: Vec<&str> = names().collect();
            return Err(format!("engine.works: no work is called '{unknown}'; there are {}", known.join(", ")));
        }
        seconds("engine.cell_s (--seconds)", &[self.cell_s])?;
        at_least("engine.data_bytes (--size)", self.data_bytes, 64 << 10)?;
        at_least("engine.log_bytes (--log)", self.log_bytes, 64 << 10)?;
        at_least("engine.cache_bytes (--cache)", self.cache(), CACHE_BYTES_MIN)?;
        if !(1..=1 << 40).contains(&self.memory_keys) {
            return Err(format!("engine.memory_keys = {}: must be 1 to 2^40", self.memory_keys));
        }
        match self.value_bytes.iter().find(|size| !(16..=65536).contains(*size)) {
            Some(size) => return Err(format!("engine.value_bytes = {size}: must be 16 to 65536")),
            None if self.value_bytes.is_empty() => return Err("engine.value_bytes: at least one is needed".into()),
            None => {}
        }
        if (1..self.value_bytes.len()).any(|at| self.value_bytes[..at].contains(&self.value_bytes[at])) {
            return Err("engine.value_bytes: a size is named twice".into());
        }
        if self.limit() < self.limit_min() {
            let (limit, cache, least) = (bytes(self.limit()), bytes(self.cache()), bytes(self.limit_min()));
            return Err(format!(
                "engine.limit_bytes: a limit of {limit} is too small for a cache of {cache}: with 1.3 times the cache and \
                 64 MiB, {least}, nothing is killed"
            ));
        }
        Ok(())
    }
}

// Plans the trials: the methods to measure on each set of data, their order, and the parameters that each trial
// carries.

/// Number of entries in the small set of data.
const SMALL_KEYS: u64 = 10_000;
/// Updates while a reader is held: the largest number, and the number for each entry of the data in memory.
const UPDATES_MAX: u64 = 1_000_000;
const UPDATES_PER_KEY: u64 = 5;
/// Number of polls after which the executor looks at its timers and descriptors: tokio's default, and a smaller number
/// for programs with tight timers.
const EVENT_INTERVAL: u64 = 61;
const EVENT_INTERVAL_SHORT: u64 = 8;
/// Planned rate of loading in bytes a second, and planned rate of warming in reads a second.
const LOAD_BYTES_PER_S: f64 = 200e6;
const WARM_READS_PER_S: f64 = 30e3;
/// Planned rate in bytes a second of works with a fixed amount of work.
const WORK_BYTES_PER_S: f64 = 200e6;

/// Names of the trial's parameters among [`Params::extra`].
const KEYS: &str = "keys";
const CACHE: &str = "cache_bytes";
const LOG: &str = "log_bytes";
const UPDATES: &str = "updates";
const INTERVAL: &str = "event_interval";

/// Sizes of values of the sets of data whose size no parameter changes.
const SIZED: [u32; 2] = [10_000, 100_000];
/// Fewest entries in such a set.
const SIZED_KEYS_MIN: u64 = 20;
/// The beginning of the label of a set on a RAM-backed device.
const IN_RAM: &str = "ram-";

/// One set of data: its entries, and the cache and memory of the databases holding it.
struct Set {
    label: String,
    scope: Scope,
    data: Data,
    cache_bytes: u64,
    memory: MemoryLimit,
    cache: CacheState,
}

/// Returns the sets of data: one in memory, a small one, and one larger than the cache for each value size, first those that
/// the user chose. The labels of sets that lie in RAM say so.
fn sets(engine: &Parameters, seed: u64, limit: MemoryLimit, in_ram: bool) -> Vec<Set> {
    let first = engine.value_bytes.first().copied().unwrap_or(100);
    let fits = |label: String, scope, count| {
        let data = Data { count, value_bytes: first as usize, seed };
        let cache_bytes = data.user_bytes() * 2 + (64 << 20);
        Set { label, scope, data, cache_bytes, memory: MemoryLimit::default(), cache: CacheState::Warm }
    };
    let mut sets = vec![
        fits(format!("memory-{first}B"), Scope::Memory, engine.memory_keys),
        fits(format!("small-{first}B"), Scope::Small, SMALL_KEYS),
    ];
    let larger = |size: u32, scope, data| Set {
        label: format!("{size}B"),
        scope,
        data,
        cache_bytes: engine.cache(),
        memory: limit,
        cache: CacheState::Cold,
    };
    let chosen = engine.value_bytes.iter();
    sets.extend(
        chosen.map(|size| larger(*size, Scope::Larger, Data::of_bytes(engine.data_bytes, *size as usize, seed))),
    );
    sets.extend(SIZED.into_iter().map(|size| {
        let data = Data { count: 1, value_bytes: size as usize, seed };
        let count = (engine.data_bytes / data.entry_bytes()).max(SIZED_KEYS_MIN);
        larger(size, Scope::Sized(size), Data { count, ..data })
    }));
    if in_ram {
        sets.iter_mut().for_each(|set| set.label.insert_str(0, IN_RAM));
    }
    sets
}

/// Returns the bytes of data in the largest set.
fn data_bytes_max(engine: &Parameters) -> u64 {
    let sets = sets(engine, 0, MemoryLimit::default(), false);
    sets.iter().map(|set| set.data.user_bytes()).max().unwrap_or(0)
}

/// Whether the set with this label lies on a RAM-backed device.
fn is_in_ram(label: &str) -> bool {
    label.starts_with(IN_RAM)
}

/// Returns the label of a set in words: `100 B, in memory` for `memory-100B`.
fn data_title(label: &str) -> String {
    if let Some(rest) = label.strip_prefix(IN_RAM) {
        return format!("{}, on a RAM-backed device", data_title(rest));
    }
    let (size, place) = match label.split_once('-') {
        Some(("memory", size)) => (size, ", in memory"),
        Some(("small", size)) => (size, ", few keys"),
        _ => (label, ""),
    };
    format!("{} B{place}", size.trim_end_matches('B'))
}

/// Plans every chosen work on each of its sets of data. On one set the trials of the engine and the device come first,
/// row by row, then the trials of one other database after the other. Trials that only read come before trials that
/// write, as far as the order of the works allows, so that they share a database.
fn plan(config: &Config, available: &Available) -> Plan {
    let engine: Parameters = config.params();
    let mut plan = Plan { together: true, ..Plan::default() };
    let skip = |method: &str, reason: String| Skip::new(ID, "", method, reason);
    let chosen = |work: &&Work| match engine.works.is_empty() {
        true => work.is_default,
        false => engine.works.iter().any(|name| name == work.name),
    };
    let rows: Vec<&Row> = ORDER
        .iter()
        .filter_map(|name| WORKS.iter().find(|work| work.name == *name))
        .filter(chosen)
        .flat_map(|work| work.rows)
        .collect();
    let missing = |peer: &str| kind_of(peer).filter(|kind| !kind.is_built());
    for peer in PEERS.iter().filter(|peer| rows.iter().any(|row| row.has(peer))) {
        if let Some(kind) = missing(peer) {
            let how =
                format!("{} (cargo build --release -p nofault-cli --features {})", kind.not_built(), kind.feature);
            plan.skips.push(skip(peer, how).because(kind.why_not_built()));
        }
    }
    let limit = available.stores_memory(ID);
    if let Err(why) = limit
        && rows.iter().any(|row| !matches!(row.data, Scope::Memory | Scope::Small))
    {
        plan.skips.push(skip("", format!("the limit of memory; databases may lie in the page cache: {why}")));
    }
    let limit = limit.unwrap_or_default();
    let last = engine.value_bytes.last().copied().unwrap_or(0) as usize;
    let peers: Vec<&str> = PEERS.iter().copied().filter(|peer| missing(peer).is_none()).collect();
    let in_ram = ram::holds(Path::new(&available.stores_folder(ID)));
    for set in sets(&engine, config.seed, limit, in_ram) {
        let on_set = |row: &&&Row| match row.data {
            Scope::LargerLast => set.scope == Scope::Larger && set.data.value_bytes == last,
            scope => scope == set.scope,
        };
        let own: Vec<&Row> = rows.iter().filter(on_set).copied().collect();
        for row in &own {
            let methods = row.methods.iter().filter(|method| !PEERS.contains(&method.id));
            let specs = methods.flat_map(|method| {
                let plain = trial(config, &engine, available, &set, row, method.id);
                let short = [NOFAULT, NOFAULT_POLLER].contains(method) && row.variant == GET_TASKS;
                let other = short.then(|| with(&plain, INTERVAL, EVENT_INTERVAL_SHORT));
                [Some(plain), other].into_iter().flatten()
            });
            // File sizes are the same in each repeat.
            if row.quantities.iter().all(|quantity| is_exact(quantity.metric)) {
                plan.once.extend(specs);
            } else {
                plan.trials.extend(specs);
            }
        }
        let value_bytes = set.data.value_bytes;
        for peer in &peers {
            let of_peer = own.iter().filter(|row| row.has(peer));
            let specs: Vec<_> = of_peer.map(|row| trial(config, &engine, available, &set, row, peer)).collect();
            let most = kind_of(peer).map_or(u32::MAX, |kind| kind.value_bytes_max);
            if u64::from(most) >= value_bytes as u64 {
                plan.trials.extend(specs);
            } else if !specs.is_empty() {
                plan.skips.push(skip(peer, format!("values of {value_bytes} bytes: it takes at most {most}")));
            }
        }
    }
    plan
}

/// Names of the works in the order of their measurement; works that only read mostly come first.
const ORDER: [&str; 19] = [
    "get-memory",
    "bulk-load",
    "get-one",
    "get-many",
    "get-threads",
    "get-after-task",
    "get-tasks",
    "scan",
    "get-zipf",
    "values-10k",
    "values-100k",
    "space",
    "load-random",
    "put-batch",
    "read-write",
    "ycsb",
    "commit",
    "long-reader",
    "reopen",
];

/// Whether a metric does not depend on chance, so that one trial decides.
fn is_exact(metric: Metric) -> bool {
    metric == Metric::SpaceRatio || metric == Metric::Figure(GROWTH)
}

fn with(spec: &TrialSpec, name: &str, value: u64) -> TrialSpec {
    let mut spec = spec.clone();
    spec.params.extra.insert(name.into(), value.to_string());
    spec
}

fn trial(config: &Config, engine: &Parameters, available: &Available, set: &Set, row: &Row, method: &str) -> TrialSpec {
    let single = PEERS.contains(&method) || [DEVICE_OVERWRITE.id, IDLE_EXECUTOR.id].contains(&method);
    let checks = PEERS.contains(&method)
        || [NOFAULT.id, NOFAULT_POLLER.id, NO_READER.id, NOFAULT_BEFORE_TASK.id].contains(&method);
    let mut extra = vec![(KEYS, set.data.count), (CACHE, set.cache_bytes)];
    match row.variant {
        REOPEN => extra.push((LOG, engine.log_bytes)),
        LONG_READER => {
            extra.push((UPDATES, (engine.memory_keys * UPDATES_PER_KEY).min(UPDATES_MAX)));
        }
        _ => {}
    }
    let target = Target {
        label: set.label.clone(),
        paths: vec![available.stores_folder(ID)],
        data_bytes: set.data.user_bytes(),
        // The blocks that the raw device reads have no content that the lab knows.
        content_seed: checks.then_some(set.data.seed),
    };
    TrialSpec {
        variant: row.variant.into(),
        params: Params {
            threads: if method == DEVICE.id { 1 } else { row.threads },
            // The device has as many requests in flight as all threads together.
            depth: match single {
                _ if method == DEVICE.id => row.depth * row.threads,
                true => 1,
                false => row.depth,
            },
            block_bytes: set.data.entry_bytes(),
            extra: extra.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect(),
        },
        duration_s: if row.fixed { 0.1 + fixed_bytes(engine, set, row) / WORK_BYTES_PER_S } else { engine.cell_s },
        memory: set.memory,
        cache: set.cache,
        ..TrialSpec::of(ID, config.seed, target, method)
    }
}

/// Returns the bytes that a row with a fixed amount of work reads or writes, for the planned time.
fn fixed_bytes(engine: &Parameters, set: &Set, row: &Row) -> f64 {
    let bytes = match row.variant {
        REOPEN => engine.log_bytes * 4,
        SPACE_UPDATED | SPACE_RANDOM | SPACE_DELETED | LOAD_RANDOM => set.data.user_bytes() * 8,
        LONG_READER => set.data.entry_bytes() * UPDATES_MAX,
        _ => set.data.user_bytes(),
    };
    bytes as f64
}

/// Planned seconds of loading and warming before the clock of a trial starts. Trials that only read share a load.
fn preparation_s(spec: &TrialSpec) -> f64 {
    let load_s = spec.target.data_bytes as f64 / LOAD_BYTES_PER_S;
    let is_larger = |scope| matches!(scope, Scope::Larger | Scope::LargerLast | Scope::Sized(_));
    let writes = |variant: &str| [PUT_BATCH, READ_WRITE].contains(&variant) || variant.starts_with(works::YCSB);
    let reads = |row: &Row| !row.fixed && is_larger(row.data) && !writes(row.variant);
    if !works::row_of(&spec.variant).is_some_and(reads) {
        return load_s;
    }
    let is_engine = [NOFAULT.id, NOFAULT_POLLER.id].contains(&spec.method.as_str());
    let cache_pages = number(spec, CACHE).unwrap_or(0) as f64 / 4096.0;
    load_s / 4.0 + if is_engine { 0.3 + cache_pages / WARM_READS_PER_S } else { 0.0 }
}

/// Returns the size and number of the entries of the database that a trial uses, from its parameters.
///
/// # Errors
/// `Usage` for parameters that no plan contains.
fn data_of(spec: &TrialSpec) -> Result<Data> {
    let value_bytes = value_bytes(spec)?;
    let count = number(spec, KEYS)?;
    if count == 0 {
        return Err(usage(spec, "the data has no keys"));
    }
    Ok(Data { count, value_bytes, seed: spec.seed })
}

// Measures a trial: calls the function for its variant and method.

/// Measures one trial.
///
/// # Errors
/// `Usage` for unknown variants, methods and parameters; `Unsupported` for a store that was not compiled in;
/// `Interrupted` when the user stops the run before the trial's clock starts; otherwise the error of the store or the
/// system.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let row = works::row_of(&spec.variant).filter(|row| row.has(&spec.method));
    let row = row.ok_or_else(|| read_loops::unknown(spec))?;
    let mut trial = Trial { spec, context, place: Place::of(spec)?, data: data_of(spec)?, row };
    let mut outcome = run(&mut trial)?;
    if row.fixed {
        // A fixed amount of work has no steady part.
        outcome.steady = None;
    }
    if spec.memory.method == MemoryMethod::None && spec.target.data_bytes > number(spec, CACHE)? {
        outcome.warnings.push("memory was not limited: data that exceeds the cache may lie in the page cache".into());
    }
    Ok(outcome)
}

fn run(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let method = methods::find(OWN, &trial.spec.method).ok_or_else(|| read_loops::unknown(trial.spec))?;
    let variant = trial.spec.variant.as_str();
    match (method, variant) {
        (&IDLE_EXECUTOR, _) => reads::idle(trial),
        (&DEVICE_OVERWRITE, _) => writes::overwrites(trial),
        (&DEVICE, works::BULK_LOAD) => writes::written(trial),
        (&DEVICE, works::SCAN | works::SCAN_REWRITTEN | works::SCAN_10K) => writes::sequential(trial),
        (&DEVICE | &DEVICE_BATCHES, _) => writes::random_reads(trial, *method == DEVICE_BATCHES),
        (&NOFAULT | &NOFAULT_POLLER, works::GET_TASKS) => reads::gets_by_tasks(trial, *method == NOFAULT_POLLER),
        (&NOFAULT, works::GET_ONE) => reads::one(trial),
        (&NOFAULT, _) if works::GET_MANY.contains(&variant) => reads::many(trial, false),
        (&NOFAULT | &NOFAULT_BEFORE_TASK, works::GET_MANY_AFTER_TASK) => reads::many(trial, *method == NOFAULT),
        (&NOFAULT, works::SCAN | works::SCAN_10K) => reads::scan(trial, State::Loaded),
        (&NOFAULT, works::SCAN_REWRITTEN) => reads::scan(trial, State::Rewritten),
        (_, works::SCAN_10K) => reads::scan_of_peer(trial),
        (&NOFAULT, _) if variant == works::COMMIT[0] => writes::commits(trial),
        (&NOFAULT, _) if works::COMMIT.contains(&variant) => reads::commits_by_tasks(trial),
        (&NOFAULT, works::SPACE) => writes::load(trial),
        (&NOFAULT, works::SPACE_UPDATED) => writes::updated(trial),
        (_, works::SPACE_RANDOM) => writes::random_load(trial),
        (&NOFAULT, works::SPACE_DELETED) => writes::deleted(trial),
        (&NOFAULT, works::REOPEN) => writes::reopen(trial),
        (_, works::LONG_READER) => writes::long_reader(trial, *method == NOFAULT),
        (_, works::BULK_LOAD) => writes::load(trial),
        (_, works::LOAD_RANDOM) => writes::durable(trial),
        (_, works::READ_WRITE) => reads::beside_puts(trial),
        (_, works::PUT_BATCH) => writes::put_batch(trial),
        (_, variant) if variant.starts_with(works::YCSB) => reads::run(trial),
        (_, works::GET_THREADS) => reads::gets_by_threads(trial),
        (_, variant) if variant.starts_with(works::GET_ZIPF) => reads::gets_by_threads(trial),
        _ if matches!(trial.row.data, Scope::Sized(_)) => reads::gets_by_threads(trial),
        // Gets in memory, and the single gets compared with batches.
        _ => reads::random(trial),
    }
}

#[cfg(test)]
mod tests;
