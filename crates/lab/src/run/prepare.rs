//! The resources of a run: first looked up, so that a plan can be shown and refused without any change to the machine;
//! then made; then removed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nofault_io::uring::UringDisk;

use super::show_limit;
use crate::config::{Choice, Config, MemoryChoice};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Needs, PoolBytes, Reclaim, ReclaimBytes, SmallFiles, Stores, StoresPlace};
use crate::experiments;
use crate::format;
use crate::machine::data::{self, DataSpec};
use crate::machine::device_rate::DeviceRate;
use crate::machine::memory::Requirement;
use crate::machine::pool::{self, PoolData};
use crate::machine::ram::{self, RamDevice};
use crate::machine::scratch::Scratch;
use crate::machine::survey::{self, Survey};
use crate::machine::workdir::WorkDir;
use crate::machine::{self, device, memory, own_file, system};
use crate::paths::shown;
use crate::progress::Progress;
use crate::record::{ExperimentId, MemoryLimit, Target};
use crate::trace::Trace;

/// Planned speed of making data files, in bytes a second.
const MAKING_BYTES_PER_S: f64 = 1e9;
/// Bytes of the pool's memory in trials without a limit.
const UNLIMITED_POOL_BYTES: u64 = 256 << 20;

/// Planned speed of reading data files through once, in bytes a second.
const READING_BYTES_PER_S: f64 = 2e9;
/// Largest total of the files read through once before the first trial, in bytes. Beyond it no host has memory
/// for them either.
const READ_THROUGH_BYTES_MAX: u64 = 64 << 30;

/// Reason for skipping reclaim by kswapd where the user has not allowed a ballast.
const NO_BALLAST: &str =
    "a ballast would hold nearly all memory of this machine while trials run; allow that with --memory-ballast";

/// Bytes on the disk that are planned for the logs of a store.
const STORE_LOGS_BYTES: u64 = 512 << 20;

/// The resources of a run: looked up at first, then made. Dropping the value removes them.
pub(super) struct RunResources {
    // Devices are dropped before the folder: they do not depend on each other, and a hang of the folder must not keep
    // the devices.
    ram_devices: Vec<RamDevice>,
    stores: Vec<Scratch>,
    pool: Option<PoolData>,
    dirs: Vec<WorkDir>,
    available: Available,
    notes: Vec<String>,
    wanted: Vec<Making>,
    ram_count: u32,
    ram_wanted: DataSpec,
    keep_data: bool,
    no_limit: Option<String>,
}

/// Data to be made before the first trial: a file, several files, a database, or space for databases.
enum Making {
    File {
        path: PathBuf,
        wanted: DataSpec,
    },
    /// Space for databases that trials make themselves, one at a time. The folder of the databases is named after the
    /// experiment.
    Stores {
        folder: PathBuf,
        experiment: ExperimentId,
        bytes: u64,
    },
    Files {
        folder: PathBuf,
        name: &'static str,
        count: u32,
        wanted: DataSpec,
    },
    Pool {
        folder: PathBuf,
        wanted: DataSpec,
    },
}

impl Making {
    fn bytes(&self) -> u64 {
        match self {
            Self::Stores { bytes, .. } => *bytes,
            Self::File { wanted, .. } | Self::Pool { wanted, .. } => wanted.data_bytes,
            Self::Files { count, wanted, .. } => wanted.data_bytes.saturating_mul(u64::from(*count)),
        }
    }

    /// Returns the file whose present length reduces the needed space: the one file, or the first of several.
    fn place(&self) -> PathBuf {
        match self {
            Self::File { path, .. } => path.clone(),
            Self::Stores { folder, .. } => folder.join("store"),
            Self::Files { folder, name, .. } => data::file_names(folder, name, 1).remove(0),
            Self::Pool { folder, .. } => folder.join("pool.db"),
        }
    }
}

impl RunResources {
    /// Opens the folder, removes the stale resources of killed labs, and looks up the available resources. Makes none
    /// yet.
    ///
    /// # Errors
    /// Any reason why the run is impossible: a folder that cannot be used, a device in use, no way to limit
    /// memory, a required resource that is missing.
    pub(super) fn look(config: &Config, keep_data: bool) -> Result<Self> {
        let mut notes = machine::remove_leftovers();
        // Data of an earlier run stays until this one begins: a plan, or a refused call, removes no file.
        let dir = WorkDir::open(&config.dir, true)?;
        notes.extend(dir.cleaned().iter().cloned());
        let needs: Vec<(ExperimentId, Needs)> =
            config.chosen().map(|experiment| (experiment.id(), experiment.needs(config))).collect();
        let ram_wanted = DataSpec { seed: config.seed, data_bytes: whole_blocks(config.ram_data_bytes) };
        let mut prepared = Self {
            available: Available {
                fio: fio_version(config)?,
                memory_available_bytes: system::meminfo_bytes("MemAvailable"),
                root: system::is_root(),
                no_ring: UringDisk::ring_refused().map(|refused| refused.to_string()),
                folder: dir.path().to_path_buf(),
                pool_bytes: UNLIMITED_POOL_BYTES,
                ..Available::default()
            },
            ram_devices: Vec::new(),
            stores: Vec::new(),
            pool: None,
            dirs: vec![dir],
            notes,
            wanted: Vec::new(),
            ram_count: 0,
            ram_wanted,
            keep_data,
            no_limit: None,
        };
        if needs.iter().any(|(_, needs)| needs.file) {
            prepared.plan_file(config, needs.iter().any(|(_, needs)| needs.stripe))?;
        }
        if needs.iter().any(|(_, needs)| needs.small_files != SmallFiles::Nothing) {
            prepared.plan_small_files(config);
        }
        for (experiment, stores) in needs.iter().filter_map(|(id, needs)| Some((*id, needs.stores.as_ref()?))) {
            prepared.plan_stores(config, experiment, stores)?;
        }
        prepared.plan_pool(config, &needs);
        prepared.plan_ram(config, needs.iter().map(|(_, needs)| needs.ram_devices).max().unwrap_or(0))?;
        for reclaim in needs.iter().filter_map(|(_, needs)| needs.reclaim.as_ref()) {
            prepared.plan_reclaim(config, reclaim);
        }
        for (path, label) in config.devices.iter().zip(device_labels(&config.devices)) {
            let target = device::target(path, config.unmarked_devices)?;
            prepared.available.devices.push(Target { label, ..target });
        }
        Ok(prepared)
    }

    /// Takes the user's own file as the data file. Nothing is made, and nothing is removed at the end.
    fn plan_own_file(&mut self, config: &Config, path: &Path) -> Result<()> {
        self.available.file = own_file::target(path)?;
        let data_bytes = self.available.file.data_bytes;
        let required = Requirement {
            choice: config.memory_method,
            ballast_allowed: config.memory_ballast,
            memory_bytes: own_file::memory_bytes(data_bytes, config.memory_bytes),
            data_bytes,
            data_bytes_max: 0,
        };
        match memory::choose(&required) {
            Ok(limit) => {
                self.available.memory = limit.limit;
                self.notes.extend(limit.notes);
            }
            Err(error) if config.memory_method == MemoryChoice::Auto && error.kind() != LabErrorKind::Usage => {
                self.no_limit = Some(error.to_string());
            }
            Err(error) => return Err(error),
        }
        self.available.stripe.push(self.available.file.clone());
        self.notes.push(own_file::note(data_bytes));
        Ok(())
    }

    fn plan_file(&mut self, config: &Config, stripe: bool) -> Result<()> {
        if let Some(path) = config.own_file.first() {
            return self.plan_own_file(config, path);
        }
        let place = self.dirs[0].data_file("main");
        // A size that the user chose is kept; the preset's may grow with the machine.
        let is_preset = config.data_bytes == Config::preset(config.preset).data_bytes;
        let room = if is_preset { data::room_bytes(&place)? } else { 0 };
        let (mut data_bytes, mut memory_bytes) = (config.data_bytes, config.memory_bytes);
        if let Some(path) = config.trace.first() {
            let note;
            (data_bytes, memory_bytes, note) =
                own_file::sizes_for_trace(&Trace::read(path)?, data_bytes, memory_bytes, is_preset);
            self.notes.push(note);
        }
        let required = Requirement {
            choice: config.memory_method,
            ballast_allowed: config.memory_ballast,
            memory_bytes,
            data_bytes,
            data_bytes_max: room,
        };
        let chosen = match config.limits_file() {
            true => memory::choose(&required),
            // No trial needs a limit, so the data may all be in memory, and the lack of a limit is no reason to leave
            // the file out.
            false => Ok(memory::Plan { limit: MemoryLimit::default(), data_bytes, notes: Vec::new() }),
        };
        let limit = match chosen {
            Ok(limit) => limit,
            Err(error) if config.memory_method == MemoryChoice::Auto && error.kind() != LabErrorKind::Usage => {
                self.no_limit = Some(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let wanted = DataSpec { seed: config.seed, data_bytes: whole_blocks(limit.data_bytes) };
        self.available.memory = limit.limit;
        self.notes.extend(limit.notes);
        self.available.file = data::target("file", &[&place], wanted);
        self.wanted.push(Making::File { path: place, wanted });
        self.available.stripe.push(self.available.file.clone());
        if !stripe {
            return Ok(());
        }
        for place in &config.stripe_over {
            if place.is_dir() {
                let dir = WorkDir::open(place, true)?;
                let path = dir.data_file("stripe");
                self.available.stripe.push(data::target("file", &[&path], wanted));
                self.wanted.push(Making::File { path, wanted });
                self.dirs.push(dir);
            } else {
                self.available.stripe.push(device::target(place, config.unmarked_devices)?);
            }
        }
        Ok(())
    }

    /// Looks up whether each kind of reclaim (by a cgroup, by kswapd) is available on the file and on a RAM-backed
    /// device, and why not.
    fn plan_reclaim(&mut self, config: &Config, bytes: &ReclaimBytes) {
        // The user who may do anything with the machine has chosen the experiment, whose plan names the ballast.
        let may_fill = self.available.root || config.memory_ballast || config.memory_method == MemoryChoice::Ballast;
        let targets = [(true, self.ram_wanted.data_bytes), (false, self.available.file.data_bytes)];
        for (on_ram, data_bytes) in targets.into_iter().filter(|(_, data_bytes)| *data_bytes > 0) {
            let by_kswapd = match may_fill {
                true => bytes.kswapd.clone(),
                false => Err(NO_BALLAST.to_owned()),
            };
            for (by, choice, memory_bytes) in
                [("cgroup", MemoryChoice::Cgroup, Ok(bytes.cgroup)), ("kswapd", MemoryChoice::Ballast, by_kswapd)]
            {
                let limit = memory_bytes.and_then(|memory_bytes| {
                    let required =
                        Requirement { choice, ballast_allowed: may_fill, memory_bytes, data_bytes, data_bytes_max: 0 };
                    memory::choose(&required).map(|plan| plan.limit).map_err(|error| error.to_string())
                });
                self.available.reclaim.push(Reclaim { by, on_ram, limit });
            }
        }
    }

    /// Plans the small files, which one experiment owns and others share: with its parameters, even if only another
    /// experiment is chosen.
    fn plan_small_files(&mut self, config: &Config) {
        let own = experiments::ALL.into_iter().find_map(|experiment| match experiment.needs(config).small_files {
            SmallFiles::Own { count, file_bytes } => Some((experiment.id().name(), count, file_bytes)),
            SmallFiles::Nothing | SmallFiles::Shared => None,
        });
        let Some((name, count, file_bytes)) = own else { return };
        let wanted = DataSpec { seed: config.seed, data_bytes: whole_blocks(file_bytes) };
        let folder = self.dirs[0].path().to_path_buf();
        let paths = data::file_names(&folder, name, count);
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        self.available.small_files = data::target("file", &paths, wanted);
        self.wanted.push(Making::Files { folder, name, count, wanted });
    }

    fn plan_stores(&mut self, config: &Config, experiment: ExperimentId, stores: &Stores) -> Result<()> {
        let required = Requirement {
            choice: config.memory_method,
            ballast_allowed: config.memory_ballast,
            memory_bytes: stores.memory_bytes,
            data_bytes: stores.data_bytes,
            data_bytes_max: 0,
        };
        let memory = match memory::choose(&required) {
            Ok(limit) => {
                self.notes.extend(limit.notes);
                Ok(limit.limit)
            }
            Err(error) if config.memory_method == MemoryChoice::Auto => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        self.available.stores.push(StoresPlace { experiment, folder: PathBuf::new(), memory });
        // Copy-on-write trees and LSM trees hold the data twice for a while; logs come on top.
        let bytes = stores.data_bytes_max.saturating_mul(3).saturating_add(STORE_LOGS_BYTES);
        self.wanted.push(Making::Stores { folder: self.dirs[0].path().to_path_buf(), experiment, bytes });
        Ok(())
    }

    /// Plans the engine's database, with as much data as the largest trial reads from it.
    fn plan_pool(&mut self, config: &Config, needs: &[(ExperimentId, Needs)]) {
        let bytes = needs.iter().map(|(_, needs)| match needs.pool {
            PoolBytes::Bytes(bytes) => bytes,
            PoolBytes::OfFile if self.no_limit.is_none() => self.available.file.data_bytes,
            PoolBytes::OfFile | PoolBytes::Nothing => 0,
        });
        let data_bytes = whole_blocks(bytes.max().unwrap_or(0));
        let wanted = DataSpec { seed: config.seed, data_bytes };
        let unasked = !config.own_file.is_empty() && config.pool != Choice::Require;
        if config.pool == Choice::Off || unasked || wanted.data_bytes == 0 {
            return;
        }
        let folder = self.dirs[0].path().to_path_buf();
        self.available.pool = Some(pool::target(&folder, wanted));
        self.wanted.push(Making::Pool { folder, wanted });
    }

    fn plan_ram(&mut self, config: &Config, count: u32) -> Result<()> {
        if config.ram_device == Choice::Off || count == 0 {
            return Ok(());
        }
        let required = Requirement {
            choice: config.memory_method,
            ballast_allowed: config.memory_ballast,
            memory_bytes: config.ram_memory_bytes,
            data_bytes: config.ram_data_bytes,
            data_bytes_max: 0,
        };
        let limit = ram::check(count, self.ram_wanted.data_bytes).and_then(|()| memory::choose(&required));
        match limit {
            Ok(limit) => {
                self.available.ram_memory = limit.limit;
                self.ram_count = count;
                // The device's name is known once it is made; the plan only needs its existence.
                self.available.ram = vec![data::target("ram", &[Path::new("")], self.ram_wanted); count as usize];
                Ok(())
            }
            Err(error) if config.ram_device == Choice::Require => Err(error),
            Err(error) => {
                self.notes.push(format!("no RAM-backed device, so the software's own ceiling stays unseen: {error}"));
                Ok(())
            }
        }
    }

    /// Makes the planned data files and devices.
    ///
    /// # Errors
    /// `NoSpace`, `Interrupted`, or the system's error; unfinished files are removed.
    pub(super) fn make(&mut self, progress: &mut Progress, cancel: &AtomicBool) -> Result<()> {
        self.dirs.iter_mut().for_each(|dir| dir.keep_data(self.keep_data));
        for making in &self.wanted {
            match making {
                Making::File { path, wanted } => {
                    progress.begin_bytes("make the data file", making.bytes());
                    let bar = &*progress;
                    data::ensure_file(path, *wanted, &|done, _| bar.at_bytes(done), cancel)?;
                }
                Making::Stores { folder, experiment, .. } => {
                    let scratch = Scratch::make(folder, experiment.name())?;
                    let mut places = self.available.stores.iter_mut();
                    if let Some(place) = places.find(|place| place.experiment == *experiment) {
                        place.folder = scratch.path().to_path_buf();
                    }
                    self.stores.push(scratch);
                }
                Making::Files { folder, name, count, wanted } => {
                    progress.begin_bytes(&format!("make the files of `{name}`"), making.bytes());
                    let bar = &*progress;
                    data::ensure_files(folder, name, *count, *wanted, &|done, _| bar.at_bytes(done), cancel)?;
                }
                Making::Pool { folder, wanted } => {
                    progress.begin_bytes("make the engine's database", making.bytes());
                    let bar = &*progress;
                    self.pool = Some(PoolData::make(folder, *wanted, &|done, _| bar.at_bytes(done), cancel)?);
                }
            }
        }
        self.read_through(progress, cancel)?;
        self.calibrate_device();
        if self.ram_count > 0 {
            let total = self.ram_wanted.data_bytes.saturating_mul(u64::from(self.ram_count));
            progress.begin_bytes("make RAM-backed devices", total);
            let bar = &*progress;
            self.ram_devices =
                RamDevice::create_many(self.ram_count, self.ram_wanted, &|done, _| bar.at_bytes(done), cancel)?;
            self.available.ram = self.ram_devices.iter().map(RamDevice::target).collect();
        }
        Ok(())
    }

    /// Measures the device under the data file, so that trials can be planned by its rate. Where it cannot be read past the
    /// page cache, they are planned without.
    fn calibrate_device(&mut self) {
        let file = self.wanted.iter().find_map(|making| match making {
            Making::File { path, wanted } => Some((path, *wanted)),
            _ => None,
        });
        self.available.device_rate = file.and_then(|(path, wanted)| DeviceRate::measure(path, wanted).ok());
    }

    /// The rate of the device under the data file, in words for the record; `None` where it was not measured.
    pub(super) fn device_note(&self) -> Option<String> {
        let rate = self.available.device_rate?;
        let [alone, most] = [rate.alone_per_s, rate.most_per_s].map(|per_s| format::Unit::PerSecond.show(per_s));
        Some(format!(
            "the device under the data file gives {alone} random reads of 4 KiB one at a time and {most} at most; trials of `random` last long \
             enough for a thousand reads"
        ))
    }

    /// Reads every file that will be compared once, so that all files have passed through the host's caches.
    fn read_through(&self, progress: &mut Progress, cancel: &AtomicBool) -> Result<()> {
        let files = self.wanted.iter().flat_map(|making| match making {
            Making::File { path, .. } => vec![path.clone()],
            Making::Files { folder, name, count, .. } => data::file_names(folder, name, *count),
            Making::Pool { .. } => self.available.pool.iter().flat_map(|pool| &pool.paths).map(PathBuf::from).collect(),
            Making::Stores { .. } => Vec::new(),
        });
        if self.compared_bytes() > READ_THROUGH_BYTES_MAX {
            return Ok(());
        }
        progress.begin_bytes("read each file once", self.compared_bytes());
        let mut before = 0;
        for path in files {
            let bar = &*progress;
            let last = AtomicU64::new(0);
            let at = |done, _| {
                last.fetch_max(done, Ordering::Relaxed);
                bar.at_bytes(before + done);
            };
            data::read_through(&path, &at, cancel)?;
            before += last.into_inner();
        }
        Ok(())
    }

    /// Bytes of all files compared with each other.
    fn compared_bytes(&self) -> u64 {
        self.wanted.iter().filter(|making| !matches!(making, Making::Stores { .. })).map(Making::bytes).sum()
    }

    /// Removes every resource of the run, and reports the first failure.
    ///
    /// # Errors
    /// The first thing that could not be removed.
    pub(super) fn close(self) -> Result<()> {
        let Self { ram_devices, stores, pool, dirs, .. } = self;
        drop(ram_devices);
        // A trial killed while it served a file system could not unmount it, and the mount lies in one of the
        // folders.
        let _ = machine::faulty::remove_leftovers();
        drop(pool);
        // Remove and close all of them, also when one fails.
        let removed: Vec<Result<()>> = stores.into_iter().map(Scratch::remove).collect();
        let closed: Vec<Result<()>> = dirs.into_iter().map(WorkDir::close).collect();
        closed.into_iter().chain(removed).collect()
    }

    pub(super) fn available(&self) -> &Available {
        &self.available
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The reason why memory cannot be limited here; `None` when it can.
    pub(super) fn no_limit(&self) -> Option<&str> {
        self.no_limit.as_deref()
    }

    /// The folder of results and data.
    pub(super) fn folder(&self) -> &Path {
        self.dirs[0].path()
    }

    /// Describes the machine and finds its biases. Takes a second or two of calibrations.
    pub(super) fn survey(&self) -> Survey {
        survey::survey(self.folder())
    }

    /// Planned time for making the data, in seconds.
    pub(super) fn making_s(&self, config: &Config) -> f64 {
        let ram = config.ram_data_bytes as f64 * f64::from(self.ram_count);
        let reading = if self.compared_bytes() > READ_THROUGH_BYTES_MAX { 0 } else { self.compared_bytes() };
        (self.disk_bytes() as f64 + ram) / MAKING_BYTES_PER_S + reading as f64 / READING_BYTES_PER_S
    }

    fn disk_bytes(&self) -> u64 {
        self.wanted.iter().map(Making::bytes).sum()
    }

    /// Describes the needed and the usable bytes on disk for the plan; an error when the data does not fit.
    pub(super) fn show_space(&self, config: &Config) -> Result<String> {
        for making in &self.wanted {
            data::check_space(&making.place(), making.bytes())?;
        }
        let usable = data::usable_bytes(self.folder())?;
        let own = self.wanted.iter().filter(|making| making.place().starts_with(self.folder()));
        let (needed, held) = own.fold((0, 0), |(needed, held), making| {
            (needed + making.bytes(), held + std::fs::metadata(making.place()).map_or(0, |meta| meta.len()))
        });
        if needed > usable.saturating_add(held) {
            let message = format!(
                "{} are needed in {} and {} may be used there (a tenth of the disk, at most 4 GiB, stays free): ask for \
                 less with --size, or choose another folder with --dir",
                format::bytes(needed),
                shown(&config.dir),
                format::bytes(usable)
            );
            return Err(LabError::new(LabErrorKind::NoSpace, message));
        }
        let (needed, usable) = (format::bytes(needed), format::bytes(usable));
        Ok(format!("{needed} of data in {} ({usable} may be used), removed at the end", shown(&config.dir)))
    }

    /// Describes the RAM-backed devices for the plan; `None` without any.
    pub(super) fn show_ram(&self, config: &Config) -> Option<String> {
        let size = format::bytes(config.ram_data_bytes);
        let limit = show_limit(&self.available.ram_memory);
        let devices = if self.ram_count == 1 { "zram device" } else { "zram devices" };
        (self.ram_count > 0).then(|| format!("{} {devices} of {size}; memory {limit}", self.ram_count))
    }
}

/// Puts the lab's marker and data on a raw device, which erases it.
///
/// # Errors
/// `Usage` when `confirmed` is not the device's own path; `Busy` when it is mounted, in use or carries a file system.
pub fn prepare_device(
    device: &Path,
    confirmed: &Path,
    size_bytes: Option<u64>,
    progress: &mut Progress,
    cancel: &AtomicBool,
) -> Result<()> {
    let size = whole_blocks(size_bytes.unwrap_or(0));
    progress.begin_bytes("write the lab's data to the device", size);
    let bar = &*progress;
    device::prepare_device(device, confirmed, Config::default().seed, size, &|done, _| bar.at_bytes(done), cancel)?;
    progress.finish();
    Ok(())
}

/// The version of fio; `None` where fio is not installed or switched off.
fn fio_version(config: &Config) -> Result<Option<String>> {
    if config.fio == Choice::Off {
        return Ok(None);
    }
    let found =
        std::process::Command::new("fio").arg("--version").output().ok().filter(|output| output.status.success());
    match found.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) {
        None if config.fio == Choice::Require => {
            let message = "fio is not installed; install it (Debian: apt-get install fio) or leave out --fio require";
            Err(LabError::new(LabErrorKind::Unsupported, message))
        }
        found => Ok(found),
    }
}

fn whole_blocks(bytes: u64) -> u64 {
    let block = crate::machine::content::BLOCK_BYTES as u64;
    bytes / block * block
}

/// Labels of raw devices in records. Several devices get a label each, so that their figures do not pass for repeats of
/// one.
fn device_labels(devices: &[PathBuf]) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match devices {
        [_] => vec!["device".into()],
        several => several.iter().map(|path| format!("device-{}", name(path))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_raw_devices_are_told_apart() {
        let labels = |paths: &[&str]| device_labels(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(labels(&["/dev/vdb"]), ["device"]);
        assert_eq!(labels(&["/dev/vdb", "/dev/nvme0n1"]), ["device-vdb", "device-nvme0n1"]);
        assert!(labels(&[]).is_empty());
    }
}
