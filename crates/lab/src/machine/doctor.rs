//! `nofault lab doctor`: checks each ability that the lab needs and prints a line with a verdict and a remedy. Takes
//! some seconds, uses 64 MiB in the folder, leaves no file behind.
//!
//! The figures are a first look with short samples. The measurements of a run are in its records.

use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nofault_io::probe::{Ability, Probe};
use serde::Serialize;

use super::calibrate::Costs;
use super::content::{self, BLOCK_BYTES};
use super::data::{self, DataSpec};
use super::device_rate::read_rate;
use super::memory::{self, CgroupGuard, Requirement};
use super::survey::{self, find_fio};
use super::system;
use super::workdir::WorkDir;
use super::{faulty, ram};
use crate::config::MemoryChoice;
use crate::error::Result;
use crate::paths::shown;

const PROBE_DATA: DataSpec = DataSpec { seed: 0x0d0c, data_bytes: 64 << 20 };
/// Length of each short measurement of the device.
const TRIAL_TIME: Duration = Duration::from_millis(500);
const SYNCS: usize = 40;

/// Verdict of a check: whether a feature is fully, partly or not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The feature is fully available.
    Ok,
    /// The lab works, but a part of the feature is missing.
    Limited,
    /// The feature is not available here.
    No,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "OK",
            Self::Limited => "limited",
            Self::No => "no",
        })
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Short name of the check: `clock`, `memory limit`, `io_uring`.
    pub topic: &'static str,
    /// Whether the feature is available in full, in part or missing.
    pub verdict: Verdict,
    /// The result in words, with units.
    pub found: String,
    /// The remedy, in words; empty where none is needed.
    pub next: String,
    /// The measured figure as name and value, in the unit that the name says; `None` for a check without a figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figure: Option<(&'static str, f64)>,
}

/// The results of all checks on this machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DoctorReport {
    /// The folder whose storage was checked.
    pub dir: String,
    /// The results, in the order of the printed report.
    pub findings: Vec<Finding>,
}

impl DoctorReport {
    /// Finds the result of the check with this short name.
    pub fn finding(&self, topic: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.topic == topic)
    }

    fn add(&mut self, topic: &'static str, verdict: Verdict, found: impl Into<String>, next: impl Into<String>) {
        self.findings.push(Finding { topic, verdict, found: found.into(), next: next.into(), figure: None });
    }

    fn figure(&mut self, name: &'static str, value: f64) {
        if let Some(last) = self.findings.last_mut() {
            last.figure = Some((name, value));
        }
    }

    /// Adds the result of a check of an ability that this machine has or, for a stated reason, has not.
    fn ability(&mut self, topic: &'static str, ability: &Ability, otherwise: Verdict, next: &str) {
        match ability {
            Ability::Yes => self.add(topic, Verdict::Ok, "works", ""),
            Ability::No(reason) => self.add(topic, otherwise, reason.clone(), next),
        }
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "What this machine allows, seen from {}:", self.dir)?;
        for finding in &self.findings {
            writeln!(f, "  {:<7}  {:<16} {}", finding.verdict, finding.topic, finding.found)?;
            if !finding.next.is_empty() {
                writeln!(f, "  {:<7}  {:<16} -> {}", "", "", finding.next)?;
            }
        }
        Ok(())
    }
}

/// Checks every ability that the lab needs. Never fails: a check that cannot be made is reported as a finding.
pub fn doctor(dir: &Path) -> DoctorReport {
    let mut report = DoctorReport { dir: shown(&dir).to_string(), findings: Vec::new() };
    rights(&mut report);
    clock(&mut report, dir);
    memory_limits(&mut report);
    locked_memory(&mut report);
    match WorkDir::open(dir, false) {
        Ok(folder) => {
            report.add("folder", Verdict::Ok, "can be written and locked", "");
            kernel(&mut report, &Probe::of(folder.path()));
            storage(&mut report, &folder);
        }
        Err(error) => report.add("folder", Verdict::No, error.to_string(), "choose another with --dir"),
    }
    match ram::check(2, 512 << 20) {
        Ok(()) => report.add("RAM device", Verdict::Ok, "zram devices can be made", ""),
        Err(error) => report.add("RAM device", Verdict::No, error.to_string(), "runs go on without it"),
    }
    match faulty::check() {
        Ok(()) => report.add("FUSE", Verdict::Ok, "a file system whose reads fail can be mounted, for `errors`", ""),
        Err(error) => report.add("FUSE", Verdict::No, error.to_string(), "`errors` goes on without reads that fail"),
    }
    match find_fio() {
        Some(path) => report.add("fio", Verdict::Ok, shown(&path).to_string(), ""),
        None => report.add(
            "fio",
            Verdict::Limited,
            "not installed: no outside baseline",
            "install it, as with `apt install fio`",
        ),
    }
    // The sources of bias that a run also prints, stores and allows for.
    for bias in survey::survey(dir).biases {
        report.add("bias", Verdict::Limited, bias.found, &bias.measure);
    }
    report
}

/// Checks the bound on locked memory (RLIMIT_MEMLOCK): rings pin their buffers, some methods lock their mapping, and a
/// ballast locks nearly all memory.
fn locked_memory(report: &mut DoctorReport) {
    match memory::lock_bytes_max() {
        u64::MAX => report.add("locked memory", Verdict::Ok, "not limited", ""),
        bytes => {
            let found = format!("{} may be locked (RLIMIT_MEMLOCK)", system::human_bytes(bytes));
            let next = "raise it (ulimit -l) or run as root: where it is too small, buffers are not registered and mlock is left out";
            report.add("locked memory", Verdict::Limited, found, next);
            report.figure("lock_bytes_max", bytes as f64);
        }
    }
}

fn rights(report: &mut DoctorReport) {
    if system::is_root() {
        report.add("rights", Verdict::Ok, "root: caches can be dropped, devices of RAM made, read-ahead varied", "");
    } else {
        let found = "not root: cold caches by advice for each file, no devices of RAM, read-ahead as it is";
        report.add("rights", Verdict::Limited, found, "run as root for these");
    }
}

fn clock(report: &mut DoctorReport, dir: &Path) {
    let costs = Costs::measure(dir);
    let found = format!("{:.0} ns to read, steps of {:.0} ns", costs.clock_ns, costs.clock_step_ns);
    let source =
        system::read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default();
    // Compared with a cached read, about half a microsecond.
    if costs.clock_ns < 100.0 {
        report.add("clock", Verdict::Ok, format!("{found} ({source})"), "");
    } else {
        let next = "latencies under a microsecond are blurred; boot with clocksource=tsc where the machine allows";
        report.add("clock", Verdict::Limited, format!("{found} ({source})"), next);
    }
    report.figure("clock_read_ns", costs.clock_ns);
}

fn memory_limits(report: &mut DoctorReport) {
    match CgroupGuard::create(64 << 20) {
        Ok(guard) => {
            let found = format!("a group can be made below {}", shown(guard.path().parent().unwrap_or(guard.path())));
            report.add("memory cgroup", Verdict::Ok, found, "");
        }
        Err(error) => {
            report.add("memory cgroup", Verdict::No, error.to_string(), "ballast or a large file serve instead")
        }
    }
    let (choice, memory_bytes, data_bytes) = (MemoryChoice::Ballast, 1 << 30, 1 << 50);
    let whole = Requirement { choice, ballast_allowed: true, memory_bytes, data_bytes, data_bytes_max: 0 };
    match memory::choose(&whole) {
        Ok(plan) => {
            let text = plan.notes.first().map_or("nearly all memory may be locked", String::as_str);
            report.add("ballast", Verdict::Ok, text, "a run takes it only with --memory-ballast")
        }
        Err(error) => report.add("ballast", Verdict::No, error.to_string(), "a cgroup or a large file serve instead"),
    }
}

fn kernel(report: &mut DoctorReport, probe: &Probe) {
    report.ability("io_uring", &probe.io_uring, Verdict::No, "its methods are skipped; allow it to measure them");
    if probe.io_uring.is_yes() {
        let flags = [&probe.single_issuer, &probe.defer_taskrun, &probe.registered_buffers];
        match flags.into_iter().find_map(Ability::reason) {
            None => report.add("ring set-ups", Verdict::Ok, "DEFER_TASKRUN and registered buffers work", ""),
            Some(reason) => {
                report.add("ring set-ups", Verdict::Limited, reason, "the ring works without, a little slower")
            }
        }
    }
    let next = "choose a folder on ext4 or XFS with --dir: without it the page cache is in every figure";
    report.ability("O_DIRECT", &probe.direct_io, Verdict::No, next);
    report.ability("durable writes", &probe.durable_write, Verdict::Limited, "fdatasync serves instead");
    report.ability("cachestat", &probe.cachestat, Verdict::Limited, "mincore serves instead, where the file is ours");
}

/// Measures the folder's storage with short reads and syncs of a temporary file.
fn storage(report: &mut DoctorReport, folder: &WorkDir) {
    let path = folder.data_file("doctor");
    if let Err(error) = data::ensure_file(&path, PROBE_DATA, &|_, _| (), &AtomicBool::new(false)) {
        return report.add("storage", Verdict::No, error.to_string(), "the device could not be tried");
    }
    match sync_costs(&path) {
        Ok((fdatasync_us, dsync_us)) => {
            let dsync = dsync_us.map_or("not possible".into(), |us| format!("{us:.0} µs"));
            let found = format!("overwrite of 4 KiB and fdatasync {fdatasync_us:.0} µs, RWF_DSYNC {dsync} (medians)");
            report.add("sync", Verdict::Ok, found, "");
            report.figure("fdatasync_us", fdatasync_us);
        }
        Err(error) => report.add("sync", Verdict::No, error.to_string(), "writes cannot be judged here"),
    }
    let probes: [(&'static str, usize, usize, &'static str); 3] = [
        ("device floor", BLOCK_BYTES, 1, "reads_per_s"),
        ("device ceiling", BLOCK_BYTES, 64, "reads_per_s"),
        ("device bandwidth", 1 << 20, 8, "bytes_per_s"),
    ];
    for (topic, block_bytes, depth, unit) in probes {
        match read_rate(&path, PROBE_DATA, (block_bytes, depth), TRIAL_TIME) {
            Ok((reads_per_s, kind)) => {
                let bytes_per_s = reads_per_s * block_bytes as f64;
                let (found, figure) = match unit {
                    "bytes_per_s" => (
                        format!("{:.2} GB/s in reads of 1 MiB, {depth} in flight ({kind})", bytes_per_s / 1e9),
                        bytes_per_s,
                    ),
                    _ => (
                        format!(
                            "{reads_per_s:.0} random reads of 4 KiB a second, {depth} in flight: {:.1} µs each ({kind})",
                            depth as f64 * 1e6 / reads_per_s
                        ),
                        reads_per_s,
                    ),
                };
                report.add(topic, Verdict::Ok, found, "");
                report.figure(unit, figure);
            }
            Err(error) => report.add(topic, Verdict::No, error.to_string(), "the device could not be tried"),
        }
    }
}

/// Measures durable overwrites. Returns the median microseconds of one with fdatasync, and of one with RWF_DSYNC where
/// that is supported.
fn sync_costs(path: &Path) -> Result<(f64, Option<f64>)> {
    let file = data::open_direct(path, false)?;
    let mut block = data::buffer(BLOCK_BYTES)?;
    let mut random = fastrand::Rng::with_seed(PROBE_DATA.seed);
    let mut median = |write: &dyn Fn(&[u8], u64) -> std::io::Result<()>| -> std::io::Result<f64> {
        let mut samples = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            let index = random.u64(0..PROBE_DATA.data_bytes / BLOCK_BYTES as u64);
            content::fill_block(&mut block, PROBE_DATA.seed, index);
            let started = Instant::now();
            write(&block, content::block_offset(index))?;
            samples.push(started.elapsed().as_nanos() as f64 / 1000.0);
        }
        samples.sort_by(f64::total_cmp);
        Ok(samples[SYNCS / 2])
    };
    let fdatasync = median(&|block, at| file.write_all_at(block, at).and_then(|()| file.sync_data()))
        .map_err(|error| system::fail("write", path, &error))?;
    let dsync = median(&|block, at| {
        let parts = [std::io::IoSlice::new(block)];
        match rustix::io::pwritev2(&file, &parts, at, rustix::io::ReadWriteFlags::DSYNC)? {
            BLOCK_BYTES => Ok(()),
            _ => Err(std::io::ErrorKind::WriteZero.into()),
        }
    });
    Ok((fdatasync, dsync.ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_has_a_verdict_and_a_missing_ability_has_a_remedy() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("lab");
        let report = doctor(&dir);
        assert!(!dir.exists(), "nothing stays behind");
        for topic in [
            "rights",
            "clock",
            "memory cgroup",
            "ballast",
            "locked memory",
            "folder",
            "io_uring",
            "O_DIRECT",
            "RAM device",
            "FUSE",
            "fio",
        ] {
            assert!(report.finding(topic).is_some(), "{topic}: {report}");
        }
        for finding in &report.findings {
            assert!(!finding.found.is_empty(), "{finding:?}");
            assert!(finding.verdict == Verdict::Ok || !finding.next.is_empty(), "{finding:?}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["findings"].as_array().unwrap().len(), report.findings.len());
        eprintln!("{report}");
    }

    #[test]
    fn a_folder_in_use_is_a_finding_not_an_error() {
        let outer = tempfile::tempdir().unwrap();
        let _lab = WorkDir::open(outer.path(), false).unwrap();
        let report = doctor(outer.path());
        let folder = report.finding("folder").unwrap();
        assert_eq!(folder.verdict, Verdict::No);
        assert!(folder.found.contains("another lab"), "{folder:?}");
    }
}
