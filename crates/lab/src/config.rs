//! What a run does: three presets, every parameter of which a TOML file or a flag can change. The effective set is stored
//! in the record, and `nofault lab --config records.ndjson` runs it again.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Every parameter of a run. Sizes in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
}

impl ExperimentId {
    /// All of them, in the order they run and are reported.
    pub const ALL: [Self; 4] = [Self::Random, Self::Scan, Self::Async, Self::Access];

    /// The name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Scan => "scan",
            Self::Async => "async",
            Self::Access => "access",
        }
    }

    /// The question it answers, in one line.
    pub fn question(self) -> &'static str {
        match self {
            Self::Random => "What do random 4 KiB reads cost when the data is larger than memory?",
            Self::Scan => "How fast can a file be scanned, from one device and from several?",
            Self::Async => "Does `await` help when the file is mapped?",
            Self::Access => "What does one thread get from each way to read, overwrite and sync?",
        }
    }
}

impl fmt::Display for ExperimentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for ExperimentId {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
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
    /// A first honest answer in about two minutes.
    #[default]
    Quick,
    /// Sweeps, longer cells, more repeats: some twenty minutes.
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
    /// Locked memory: kswapd reclaims, as in the paper.
    Ballast,
    /// Data larger than RAM.
    LargeFile,
}

/// Parameters of `random`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
#[serde(default, deny_unknown_fields)]
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
#[serde(default, deny_unknown_fields)]
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
#[serde(default, deny_unknown_fields)]
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

impl Default for RandomConfig {
    fn default() -> Self {
        Config::default().random
    }
}

impl Default for ScanConfig {
    fn default() -> Self {
        Config::default().scan
    }
}

impl Default for AsyncConfig {
    fn default() -> Self {
        Config::default().async_
    }
}

impl Default for AccessConfig {
    fn default() -> Self {
        Config::default().access
    }
}

impl Config {
    /// The values of a preset.
    pub fn preset(preset: Preset) -> Self {
        let quick = Self {
            preset,
            experiments: ExperimentId::ALL.to_vec(),
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
            read_ahead_kb: Vec::new(),
            random: RandomConfig {
                cell_s: 3.0,
                ram_cell_s: 2.0,
                threads: vec![16],
                depths: vec![64],
                ram_threads: vec![2],
                block_bytes: 4096,
            },
            scan: ScanConfig {
                cell_s: 2.0,
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
                runs: 5,
                sequential: true,
                open_questions: false,
            },
            access: AccessConfig {
                cell_s: 1.0,
                batches: vec![1, 8, 64],
                writes_per_sync: 64,
                open_loop_shares: vec![0.5],
                ring_setups: false,
            },
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => quick.standard(),
            Preset::Paper => quick.standard().paper(),
        }
    }

    fn standard(mut self) -> Self {
        self.repeats = 3;
        self.data_bytes = 16 * GIB;
        self.memory_bytes = GIB;
        self.ram_data_bytes = 3 * GIB;
        self.ram_memory_bytes = 512 * MIB;
        self.random.cell_s = 10.0;
        self.random.ram_cell_s = 6.0;
        self.random.threads = vec![1, 16, 100];
        self.random.depths = vec![1, 32, 64, 128];
        self.random.ram_threads = vec![1, 2, 16];
        self.scan.cell_s = 6.0;
        self.scan.map_threads = vec![1, 20];
        self.scan.depths = vec![4, 32];
        self.async_.file_bytes = 256 * MIB;
        self.async_.touches = 2048;
        self.async_.runs = 10;
        self.async_.open_questions = true;
        self.access.cell_s = 4.0;
        self.access.batches = vec![1, 2, 4, 8, 16, 32, 64, 128];
        self.access.open_loop_shares = vec![0.5, 0.8];
        self.access.ring_setups = true;
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
        self
    }
}
