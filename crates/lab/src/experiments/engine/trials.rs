//! Plans the trials: the methods to measure on each set of data, their order, and the parameters that each trial
//! carries.

use std::path::Path;

use super::works::{
    self, GET_TASKS, GROWTH, LOAD_RANDOM, LONG_READER, PEERS, PUT_BATCH, READ_WRITE, REOPEN, Row, SPACE_DELETED,
    SPACE_RANDOM, SPACE_UPDATED, Scope, WORKS, Work,
};
use super::{DEVICE, DEVICE_OVERWRITE, ID, IDLE_EXECUTOR, NO_READER, NOFAULT_BEFORE_TASK, NOFAULT_POLLER, params};
use crate::config::Config;
use crate::entries::{Data, KEY_BYTES};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Plan};
use crate::machine::ram;
use crate::methods::NOFAULT;
use crate::record::{CacheState, MemoryLimit, Params, Skip, Target, TrialSpec};
use crate::stores::kind_of;
use crate::summary::Metric;

/// Number of entries in the small set of data.
const SMALL_KEYS: u64 = 10_000;
/// Updates while a reader is held: the largest number, and the number for each entry of the data in memory.
const UPDATES_MAX: u64 = 1_000_000;
const UPDATES_PER_KEY: u64 = 5;
/// Number of polls after which the executor looks at its timers and descriptors: tokio's default, and a smaller number
/// for programs with tight timers.
pub(super) const EVENT_INTERVAL: u64 = 61;
const EVENT_INTERVAL_SHORT: u64 = 8;
/// Planned rate of loading in bytes a second, and planned rate of warming in reads a second.
const LOAD_BYTES_PER_S: f64 = 200e6;
const WARM_READS_PER_S: f64 = 30e3;
/// Planned rate in bytes a second of works with a fixed amount of work.
const WORK_BYTES_PER_S: f64 = 200e6;

/// Names of the trial's parameters among [`Params::extra`].
pub(super) const KEYS: &str = "keys";
pub(super) const CACHE: &str = "cache_bytes";
pub(super) const LOG: &str = "log_bytes";
pub(super) const UPDATES: &str = "updates";
pub(super) const INTERVAL: &str = "event_interval";

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
fn sets(engine: &params::Params, seed: u64, limit: MemoryLimit, in_ram: bool) -> Vec<Set> {
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
pub(super) fn data_bytes_max(engine: &params::Params) -> u64 {
    let sets = sets(engine, 0, MemoryLimit::default(), false);
    sets.iter().map(|set| set.data.user_bytes()).max().unwrap_or(0)
}

/// Whether the set with this label lies on a RAM-backed device.
pub(super) fn is_in_ram(label: &str) -> bool {
    label.starts_with(IN_RAM)
}

/// Returns the label of a set in words: `100 B, in memory` for `memory-100B`.
pub(super) fn data_title(label: &str) -> String {
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
pub(super) fn plan(config: &Config, available: &Available) -> Plan {
    let engine: params::Params = config.params();
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
pub(super) fn is_exact(metric: Metric) -> bool {
    metric == Metric::SpaceRatio || metric == Metric::Figure(GROWTH)
}

fn with(spec: &TrialSpec, name: &str, value: u64) -> TrialSpec {
    let mut spec = spec.clone();
    spec.params.extra.insert(name.into(), value.to_string());
    spec
}

fn trial(
    config: &Config,
    engine: &params::Params,
    available: &Available,
    set: &Set,
    row: &Row,
    method: &str,
) -> TrialSpec {
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
fn fixed_bytes(engine: &params::Params, set: &Set, row: &Row) -> f64 {
    let bytes = match row.variant {
        REOPEN => engine.log_bytes * 4,
        SPACE_UPDATED | SPACE_RANDOM | SPACE_DELETED | LOAD_RANDOM => set.data.user_bytes() * 8,
        LONG_READER => set.data.entry_bytes() * UPDATES_MAX,
        _ => set.data.user_bytes(),
    };
    bytes as f64
}

/// Planned seconds of loading and warming before the clock of a trial starts. Trials that only read share a load.
pub(super) fn preparation_s(spec: &TrialSpec) -> f64 {
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
pub(super) fn data_of(spec: &TrialSpec) -> Result<Data> {
    let usage = |what: &str| LabError::new(LabErrorKind::Usage, format!("engine: {what}"));
    let value_bytes = spec.params.block_bytes.checked_sub(KEY_BYTES as u64).filter(|bytes| *bytes >= 16);
    let value_bytes = value_bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let value_bytes = value_bytes.ok_or_else(|| usage("values have at least 16 bytes"))?;
    let count = number(spec, KEYS)?;
    if count == 0 {
        return Err(usage("the data has no keys"));
    }
    Ok(Data { count, value_bytes, seed: spec.seed })
}

/// Parses a number among the trial's extra parameters.
///
/// # Errors
/// `Usage` when the parameter is missing or no number.
pub(super) fn number(spec: &TrialSpec, name: &str) -> Result<u64> {
    let text = spec.params.extra.get(name).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| LabError::new(LabErrorKind::Usage, format!("engine: {name} = '{text}' is no number")))
}
