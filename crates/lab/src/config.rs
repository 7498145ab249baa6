//! What a run does: three presets, every parameter of which a TOML file or a flag can change. The effective set is stored
//! in the record, and `nofault lab --config records.ndjson` runs it again.

mod assign;
mod check;
mod claims;
pub(crate) mod engines;
mod eviction;
mod faults;
mod safety;
mod translate;
mod workload;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use claims::ClaimsConfig;
pub use engines::EnginesConfig;
pub use faults::{ErrorsConfig, StallsConfig};
pub use safety::SafetyConfig;

use crate::error::{LabError, LabErrorKind, Result};

pub use eviction::EvictionConfig;
pub use translate::TranslateConfig;
pub use workload::{Said, WorkloadConfig};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Every parameter of a run. Sizes in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The preset that the other values started from.
    pub preset: Preset,
    /// Which experiments, in order.
    pub experiments: Vec<ExperimentId>,
    /// Folder for data files: on the file system to be measured.
    pub dir: PathBuf,
    /// How often each cell is measured; contenders are interleaved.
    pub repeats: u32,
    /// Seed of content, offsets and order.
    pub seed: u64,
    /// Size of the data on the file system.
    pub data_bytes: u64,
    /// Memory that page cache and process may use together in the cells that must not fit.
    pub memory_bytes: u64,
    /// How memory is limited; `auto` takes the best that the rights allow.
    pub memory_method: MemoryChoice,
    /// Whether to make a RAM-backed block device (zram; root).
    pub ram_device: Choice,
    /// Size of the data on the RAM-backed device.
    pub ram_data_bytes: u64,
    /// Memory limit of the cells on the RAM-backed device.
    pub ram_memory_bytes: u64,
    /// Raw block devices to read from as well.
    pub devices: Vec<PathBuf>,
    /// Read devices that do not carry the lab's marker (never written either way).
    pub unmarked_devices: bool,
    /// Further folders or devices for the striped scan.
    pub stripe_over: Vec<PathBuf>,
    /// Whether fio runs as an outside baseline.
    pub fio: Choice,
    /// Whether the engine's own pool takes part in `random`, `scan` and `async`: its database is made beside the data file.
    pub pool: Choice,
    /// Set the read-ahead of the file's device to these values (KiB, root) in turn, for the cells that depend on it; empty
    /// leaves it as it is.
    pub read_ahead_kb: Vec<u64>,
    /// Experiment `random`.
    pub random: RandomConfig,
    /// Experiment `scan`.
    pub scan: ScanConfig,
    /// Experiment `async`.
    #[serde(rename = "async")]
    pub async_: AsyncConfig,
    /// Experiment `access`.
    pub access: AccessConfig,
    /// Experiment `safety`.
    #[serde(default)]
    pub safety: SafetyConfig,
    /// Experiment `errors`.
    pub errors: ErrorsConfig,
    /// Experiment `engines`.
    pub engines: EnginesConfig,
    /// Experiment `eviction`.
    pub eviction: EvictionConfig,
    /// Experiment `translate`.
    pub translate: TranslateConfig,
    /// Experiment `stalls`.
    pub stalls: StallsConfig,
    /// Experiment `claims`.
    #[serde(default)]
    pub claims: ClaimsConfig,
    /// What the user says of the database that the verdict is about.
    #[serde(default)]
    pub workload: WorkloadConfig,
}

/// The experiments, by the names of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExperimentId {
    /// Random reads from data larger than memory.
    Random,
    /// Sequential scan, one device and several.
    Scan,
    /// Does `await` help when the file is mapped?
    Async,
    /// One thread, random reads and overwrites, syncs.
    Access,
    /// What making a mapped file safe costs.
    Safety,
    /// Can one work around the stalls of a mapping?
    Stalls,
    /// What happens when I/O fails.
    Errors,
    /// Whole databases, with a map and without.
    Engines,
    /// What holds up the eviction of mapped pages.
    Eviction,
    /// From a page's id to its bytes, in memory.
    Translate,
    /// What others say of mmap, where the experiments above do not decide it.
    Claims,
}

impl ExperimentId {
    /// All of them, in the order they run and are reported.
    pub const ALL: [Self; 11] = [
        Self::Random,
        Self::Scan,
        Self::Async,
        Self::Access,
        Self::Safety,
        Self::Stalls,
        Self::Errors,
        Self::Eviction,
        Self::Translate,
        Self::Engines,
        Self::Claims,
    ];

    /// The name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Scan => "scan",
            Self::Async => "async",
            Self::Access => "access",
            Self::Safety => "safety",
            Self::Stalls => "stalls",
            Self::Errors => "errors",
            Self::Engines => "engines",
            Self::Eviction => "eviction",
            Self::Translate => "translate",
            Self::Claims => "claims",
        }
    }

    /// Whether it is part of a quick run that names no experiments; it still runs short when it is named.
    pub fn in_quick(self) -> bool {
        !matches!(self, Self::Eviction | Self::Engines)
    }

    /// Whether its cells read data that must not fit in memory.
    pub fn needs_limit(self) -> bool {
        !matches!(self, Self::Async | Self::Safety | Self::Errors | Self::Translate | Self::Engines | Self::Claims)
    }

    /// Whether it reads the large data file.
    pub fn needs_file(self) -> bool {
        !matches!(self, Self::Async | Self::Safety | Self::Translate | Self::Engines | Self::Claims)
    }

    /// Whether it has cells on a RAM-backed device where there is one. Of `async` only the source's open questions do.
    pub fn uses_ram_device(self) -> bool {
        matches!(self, Self::Random | Self::Scan | Self::Access | Self::Eviction)
    }
}

impl fmt::Display for ExperimentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ExperimentId {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|id| id.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|id| id.name()).collect();
            format!("unknown experiment '{name}'; the experiments are {}", known.join(", "))
        })
    }
}

/// How thorough a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A first honest answer in less than three minutes.
    #[default]
    Quick,
    /// Sweeps, longer cells, more repeats: about an hour.
    Standard,
    /// The sizes and durations of the paper: hours, and space to match.
    Paper,
}

/// Something that is used where it can be, or insisted on, or left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Where it can be had; its absence is recorded.
    #[default]
    Auto,
    /// Its absence is an error.
    Require,
    /// Left out.
    Off,
}

/// How memory is limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryChoice {
    /// The best that the rights allow: cgroup, else ballast, else a file larger than RAM.
    #[default]
    Auto,
    /// A memory cgroup (version 2 or 1).
    Cgroup,
    /// Memory held by a process of the lab (locked, or touched where there is no swap): kswapd reclaims, as in the paper.
    Ballast,
    /// Data larger than RAM.
    LargeFile,
}

/// Parameters of `random`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RandomConfig {
    /// Length of a cell.
    pub cell_s: f64,
    /// Length of a cell on the RAM-backed device.
    pub ram_cell_s: f64,
    /// Thread counts of the synchronous contenders.
    pub threads: Vec<u32>,
    /// Queue depths of the ring contenders (one thread).
    pub depths: Vec<u32>,
    /// Thread counts on the RAM-backed device.
    pub ram_threads: Vec<u32>,
    /// Bytes of one read.
    pub block_bytes: u64,
}

/// Parameters of `scan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScanConfig {
    /// Length of a cell.
    pub cell_s: f64,
    /// Threads of the mapped contenders, each on its own stripe at a time.
    pub map_threads: Vec<u32>,
    /// Bytes of a thread's stripe, as mmapbench has it.
    pub map_stripe_bytes: u64,
    /// Queue depths of the direct contenders (one thread).
    pub depths: Vec<u32>,
    /// Bytes of one direct read.
    pub block_bytes: u64,
    /// Bytes of a stripe over several files or devices.
    pub raid_stripe_bytes: u64,
    /// RAM-backed devices to stripe over, besides one: 2 adds the pair.
    pub ram_devices: u32,
}

/// Parameters of `async`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AsyncConfig {
    /// Files, each read by one task.
    pub files: u32,
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Random 4 KiB touches in each file.
    pub touches: u32,
    /// Runs of each configuration: one dot each in the strip plot.
    pub runs: u32,
    /// Also the source's sequential sum.
    pub sequential: bool,
    /// Also the source's open questions: madvise options, read-ahead, prefetch instructions, device kinds.
    pub open_questions: bool,
}

/// Parameters of `access`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AccessConfig {
    /// Length of a cell.
    pub cell_s: f64,
    /// Batch sizes of the ring contender.
    pub batches: Vec<u32>,
    /// Overwrites between two syncs.
    pub writes_per_sync: u32,
    /// Rates of the open-loop cells, as shares of the closed-loop rate of the same contender.
    pub open_loop_shares: Vec<f64>,
    /// Also ring set-ups: registered buffers, DEFER_TASKRUN, SQPOLL.
    pub ring_setups: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self::preset(Preset::Quick)
    }
}

impl Config {
    /// The values of a preset.
    pub fn preset(preset: Preset) -> Self {
        let quick = Self {
            preset,
            experiments: ExperimentId::ALL.into_iter().filter(|id| id.in_quick()).collect(),
            dir: PathBuf::from("nofault-lab"),
            repeats: 2,
            seed: 1,
            data_bytes: 4 * GIB,
            memory_bytes: 256 * MIB,
            memory_method: MemoryChoice::Auto,
            ram_device: Choice::Auto,
            ram_data_bytes: GIB,
            ram_memory_bytes: 128 * MIB,
            devices: Vec::new(),
            unmarked_devices: false,
            stripe_over: Vec::new(),
            fio: Choice::Auto,
            pool: Choice::Auto,
            read_ahead_kb: Vec::new(),
            random: RandomConfig {
                cell_s: 1.2,
                ram_cell_s: 0.8,
                threads: vec![16],
                depths: vec![64],
                ram_threads: vec![2],
                block_bytes: 4096,
            },
            scan: ScanConfig {
                cell_s: 0.7,
                map_threads: vec![4],
                map_stripe_bytes: 128 * MIB,
                depths: vec![8],
                block_bytes: MIB,
                raid_stripe_bytes: MIB,
                ram_devices: 2,
            },
            async_: AsyncConfig {
                files: 8,
                file_bytes: 64 * MIB,
                touches: 512,
                runs: 3,
                sequential: false,
                open_questions: false,
            },
            access: AccessConfig {
                cell_s: 0.4,
                batches: vec![8, 64],
                writes_per_sync: 64,
                open_loop_shares: vec![0.5],
                ring_setups: false,
            },
            safety: SafetyConfig::preset(preset),
            errors: ErrorsConfig::preset(preset),
            engines: EnginesConfig::preset(preset),
            eviction: EvictionConfig::quick(),
            translate: TranslateConfig::quick(),
            stalls: StallsConfig::preset(preset),
            claims: ClaimsConfig::quick(),
            workload: WorkloadConfig::default(),
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => quick.standard(),
            Preset::Paper => quick.standard().paper(),
        }
    }

    fn standard(mut self) -> Self {
        self.experiments = ExperimentId::ALL.to_vec();
        self.repeats = 3;
        // Twenty times the memory, as in the paper. No more memory, because it must fill in a part of a cell.
        self.data_bytes = 5 * GIB;
        self.memory_bytes = 256 * MIB;
        self.ram_data_bytes = 3 * GIB;
        self.ram_memory_bytes = 512 * MIB;
        self.random.cell_s = 3.5;
        self.random.ram_cell_s = 2.0;
        self.random.threads = vec![1, 16, 100];
        self.random.depths = vec![1, 32, 128];
        self.random.ram_threads = vec![1, 2, 16];
        self.scan.cell_s = 1.5;
        self.scan.map_threads = vec![1, 20];
        self.scan.depths = vec![4, 32];
        self.async_.file_bytes = 256 * MIB;
        self.async_.touches = 2048;
        self.async_.runs = 8;
        self.async_.sequential = true;
        self.async_.open_questions = true;
        self.access.cell_s = 0.8;
        self.access.batches = vec![1, 4, 16, 64, 128];
        self.access.open_loop_shares = vec![0.5, 0.8];
        self.access.ring_setups = true;
        self.eviction = EvictionConfig::standard();
        self.translate = TranslateConfig::standard();
        self.claims = ClaimsConfig::standard();
        // Linux's own default, beside whatever this machine has.
        self.read_ahead_kb = vec![128];
        self
    }

    fn paper(mut self) -> Self {
        self.data_bytes = 2000 * GIB;
        self.memory_bytes = 100 * GIB;
        self.memory_method = MemoryChoice::Ballast;
        self.random.cell_s = 300.0;
        self.random.threads = vec![1, 2, 4, 8, 16, 32, 64, 100, 128];
        self.random.depths = vec![1, 2, 4, 8, 16, 32, 64, 128, 256];
        self.scan.cell_s = 200.0;
        self.scan.map_threads = vec![1, 20];
        self.async_.runs = 100;
        self.access.cell_s = 60.0;
        self.access.batches = vec![1, 2, 4, 8, 16, 32, 64, 128];
        self.eviction = EvictionConfig::paper();
        self.translate = TranslateConfig::paper();
        self.claims = ClaimsConfig::paper();
        self
    }

    /// Whether a chosen experiment reads the data file in less memory than it has bytes.
    pub fn limits_file(&self) -> bool {
        let reads_uncached = |id| id == ExperimentId::Claims && self.claims.thorough;
        self.experiments.iter().any(|id| id.needs_limit() || reads_uncached(*id))
    }

    /// Reads a TOML file's text. What it does not say comes from the preset it names (`quick` where it names none).
    ///
    /// # Errors
    /// `Usage` with line and reason for bad TOML, unknown names and values of the wrong type.
    pub fn from_toml(text: &str) -> Result<Self> {
        let usage = |error: &dyn fmt::Display| LabError::new(LabErrorKind::Usage, format!("configuration: {error}"));
        let given: toml::Table = text.parse().map_err(|error| usage(&error))?;
        let preset = match given.get("preset") {
            Some(name) => name.clone().try_into().map_err(|error| usage(&error))?,
            None => Preset::Quick,
        };
        let mut all = toml::Table::try_from(Self::preset(preset)).map_err(|error| usage(&error))?;
        merge(&mut all, given, "")?;
        all.try_into().map_err(|error| usage(&error))
    }

    /// The whole set as TOML, ready to be edited and given back.
    ///
    /// # Errors
    /// `Usage` when a value has no TOML form (an integer beyond 2^63).
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| LabError::new(LabErrorKind::Usage, format!("configuration: {error}")))
    }
}

/// Puts `given` over `base`, table by table. A name that `base` does not have is a mistake of the writer's.
fn merge(base: &mut toml::Table, given: toml::Table, inside: &str) -> Result<()> {
    for (name, value) in given {
        match (base.get_mut(&name), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(value)) => merge(inner, value, &format!("{name}."))?,
            (Some(old), value) => *old = value,
            (None, _) => {
                let known: Vec<&str> = base.keys().map(String::as_str).collect();
                let message = format!("configuration: unknown name '{inside}{name}'; known: {}", known.join(", "));
                return Err(LabError::new(LabErrorKind::Usage, message));
            }
        }
    }
    Ok(())
}

/// Reads a size for people: `4096`, `512M`, `4GiB`, `1.5g`. Units are powers of 1024.
///
/// # Errors
/// A sentence that says what a size looks like.
pub fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write a number with K, M, G or T, as in 512M or 4GiB");
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| wrong())?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number * (1_u64 << shift) as f64;
    if bytes.is_finite() && bytes < (1_u64 << 60) as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_and_survives_toml() {
        for preset in [Preset::Quick, Preset::Standard, Preset::Paper] {
            let config = Config::preset(preset);
            config.validate().unwrap();
            assert_eq!(Config::from_toml(&config.to_toml().unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn a_file_changes_only_what_it_names() {
        let config = Config::from_toml("preset = 'standard'\n[random]\nthreads = [7]\n").unwrap();
        let mut expected = Config::preset(Preset::Standard);
        expected.random.threads = vec![7];
        assert_eq!(config, expected);
        let config = Config::from_toml("[workload]\nread_only = 'yes'\nthreads = 4\n").unwrap();
        let said = WorkloadConfig { read_only: Said::Yes, threads: 4, ..WorkloadConfig::default() };
        assert_eq!(config, Config { workload: said, ..Config::default() });
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused =
            |text: &str| Config::from_toml(text).and_then(|config| config.validate()).unwrap_err().to_string();
        assert!(refused("[random]\nthread = [7]").contains("thread"));
        assert!(refused("[workload]\nread_only = 'perhaps'").contains("perhaps"));
        assert!(refused("experiments = ['nothing']").contains("nothing"));
        assert!(refused("[random]\ncell_s = -1.0").contains("random.cell_s"));
        assert!(refused("memory_bytes = 4294967296").contains("data_bytes"));
        assert!(refused("[scan]\nblock_bytes = 5000").contains("scan.block_bytes"));
        assert!(refused("this is not toml").contains("configuration"));
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("512m"), Ok(512 << 20));
        assert!(parse_bytes("ten").is_err() && parse_bytes("5 parsecs").is_err() && parse_bytes("").is_err());
        assert!(parse_bytes("99999999T").is_err() && parse_bytes("1.2.3G").is_err());
    }
}
