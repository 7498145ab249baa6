//! Parameters of `engine`, with their presets.

use serde::{Deserialize, Serialize};

use super::ID;
use super::works::WORKS;
use crate::config::check::{at_least, seconds};
use crate::config::flags::{self, Use};
use crate::config::{self, ExperimentId, GIB, MIB, Preset};
use crate::format::bytes;

/// Bytes of memory that a process needs besides 1.3 times its cache, by the engine's own rule.
const BESIDE_CACHE_BYTES: u64 = 64 << 20;
/// Least cache in bytes with which a database works without constant eviction.
const CACHE_BYTES_MIN: u64 = MIB;

/// Parameters of `engine`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Params {
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

impl Params {
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

impl config::Params for Params {
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

    fn check(&self) -> Result<(), String> {
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
