//! The configuration of a run, as plain data: the values that all experiments share, and a section for each experiment.
//! The effective set is stored in the record, and `nofault lab --config records.ndjson` runs it again. Presets and
//! checks are in `settings`, which knows the experiments.

pub(crate) mod check;
mod experiment_id;
pub mod flags;
pub(crate) mod params;
mod sections;
mod workload;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use experiment_id::ExperimentId;
pub use params::Params;
pub use sections::{Section, Sections};
pub use workload::{WorkloadConfig, YesNo};

use crate::paths;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Every parameter of a run. Sizes in bytes, times in seconds; paths as [`paths::to_text`] writes them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The preset from which the other values started.
    pub preset: Preset,
    /// The experiments to run, in order.
    pub experiments: Vec<ExperimentId>,
    /// Folder for data files: on the file system to be measured.
    #[serde(with = "paths::field")]
    pub dir: PathBuf,
    /// Number of times that each trial is measured; the methods alternate.
    pub repeats: u32,
    /// Seed of the data's content, and of the offsets and the order of reads.
    pub seed: u64,
    /// Size of the data file on the file system.
    pub data_bytes: u64,
    /// Memory that page cache and process may use together in the trials that must not fit.
    pub memory_bytes: u64,
    /// How memory is limited; `auto` takes the best that the rights allow.
    pub memory_method: MemoryChoice,
    /// Whether `auto` may take nearly all memory of the machine for a ballast while trials run.
    #[serde(default)]
    pub memory_ballast: bool,
    /// Whether to make a RAM-backed block device (zram; root).
    pub ram_device: Choice,
    /// Size of the data on the RAM-backed device.
    pub ram_data_bytes: u64,
    /// Memory limit of the trials on the RAM-backed device.
    pub ram_memory_bytes: u64,
    /// Raw block devices to read from, besides the data file.
    #[serde(with = "paths::fields")]
    pub devices: Vec<PathBuf>,
    /// Whether devices that do not carry the lab's marker are read as well. They are never written.
    pub unmarked_devices: bool,
    /// A file of the user's that is read in place of the lab's own data file: none, or one. It is opened for reading only.
    #[serde(default, with = "paths::fields")]
    pub own_file: Vec<PathBuf>,
    /// The recorded accesses of a program of the user's, which are replayed: no file, or one.
    #[serde(default, with = "paths::fields")]
    pub trace: Vec<PathBuf>,
    /// Further folders or devices for the striped scan.
    #[serde(with = "paths::fields")]
    pub stripe_over: Vec<PathBuf>,
    /// Whether fio runs as an outside baseline.
    pub fio: Choice,
    /// Whether the engine's own pool is measured too; its database is made next to the data file.
    pub pool: Choice,
    /// Values to which the read-ahead of the file's device is set in turn (KiB; needs root), for the trials that depend
    /// on it. Empty: the machine's own value is left.
    pub read_ahead_kb: Vec<u64>,
    /// The parameters of each experiment, by its name.
    #[serde(flatten)]
    pub sections: Sections,
    /// The user's description of the workload, on which the verdict is based.
    #[serde(default)]
    pub workload: WorkloadConfig,
}

/// The thoroughness of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A first honest answer in about three minutes.
    #[default]
    Quick,
    /// Sweeps, longer trials, more repeats: about 40 minutes on two CPUs.
    Standard,
    /// The sizes and durations of the paper: hours, and space to match.
    Paper,
}

/// Whether an optional resource is used where available, required, or left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The resource is used where available; its absence is recorded.
    #[default]
    Auto,
    /// The resource is used; its absence is an error.
    Require,
    /// The resource is not used.
    Off,
}

/// How memory is limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryChoice {
    /// The best that the rights allow: cgroup, else ballast where [`Config::memory_ballast`] permits it, else a file
    /// larger than RAM.
    #[default]
    Auto,
    /// A memory cgroup (version 2 or 1) limits the memory of each trial.
    Cgroup,
    /// Memory held by a process of the lab (locked, or touched where there is no swap): kswapd reclaims, as in the
    /// paper.
    Ballast,
    /// By data larger than RAM.
    LargeFile,
}

/// Parses a size for people: `4096`, `512M`, `4GiB`, `1.5g`. Units are powers of 1024.
///
/// # Errors
/// A sentence that describes the form of a size.
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
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("512m"), Ok(512 << 20));
        assert!(parse_bytes("ten").is_err() && parse_bytes("5 parsecs").is_err() && parse_bytes("").is_err());
        assert!(parse_bytes("99999999T").is_err() && parse_bytes("1.2.3G").is_err());
    }
}
