//! Counters of the kernel: CPU, faults, TLB shootdowns, reclaim, device traffic, pressure. No PMU; nearly no
//! privilege.
//!
//! A [`Watch`] opens the files once; a [`Snapshot`] reads them again from position zero; the difference of two is a
//! [`Delta`]. Nothing here interprets: a counter that this kernel does not have is `None`, never zero.
//!
//! ```
//! use nofault_io::counters::{Snapshot, Watch};
//! let watch = Watch::new();
//! let before = Snapshot::take(&watch);
//! let work: Vec<u8> = vec![1; 1 << 20];
//! let delta = Snapshot::take(&watch).since(&before);
//! println!("{} minor faults, {:?} shootdowns", delta.minor_faults, delta.tlb_shootdowns);
//! # drop(work);
//! ```
//!
//! Kept true by: the parsers ([`parse`]) are pure functions over text that accept anything, so a kernel with more, fewer
//! or odd lines loses single counters and nothing else.
//!
//! Limits of the counters, as found by measuring: The TLB line undercounts on virtual machines with paravirtual flushes
//! and counts one interrupt for a batch of pages. Reclaim inside a memory cgroup raises only `pgscan_file` and
//! `pgsteal_file`, not the `direct` counters. A minor fault may map 16 pages or a whole folio; a major fault is charged
//! only to the thread that started the read. Daemon CPU comes in clock ticks (mostly 10 ms).

mod cachestat;
mod delta;
pub mod device;
pub mod parse;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use cachestat::{CacheStat, cachestat};
pub use delta::Delta;

use crate::error::{Error, ErrorKind, Result};
use device::BlockDevice;

/// The files to read for each [`Snapshot`], opened once. Shared freely between threads.
#[derive(Debug)]
pub struct Watch {
    stat: Option<File>,
    interrupts: Option<File>,
    vmstat: Option<File>,
    meminfo: Option<File>,
    own_io: Option<File>,
    pressure: [Option<File>; 3],
    kswapd: Vec<File>,
    kdamond: Vec<File>,
    devices: Vec<(BlockDevice, File)>,
    cgroup: Option<CgroupFiles>,
    ticks_per_s: f64,
    text: Mutex<Vec<u8>>,
}

#[derive(Debug)]
struct CgroupFiles {
    path: PathBuf,
    memory_stat: Option<File>,
    memory_used: Option<File>,
    /// `memory.events` (v2: the line `max`) or `memory.failcnt` (v1: a number alone).
    memory_limit_hits: Option<File>,
    cpu: Option<File>,
    memory_pressure: Option<File>,
}

impl Watch {
    /// Watches this process and the whole machine; no device and no cgroup yet. Looks through `/proc` once for the
    /// reclaim daemons (a few milliseconds with thousands of processes).
    ///
    /// Never fails: a source that cannot be opened (a container hides kernel threads, a kernel has no PSI) is not
    /// counted.
    pub fn new() -> Self {
        let open = |path: &str| File::open(path).ok();
        let (kswapd, kdamond) = reclaim_daemons();
        Self {
            stat: open("/proc/stat"),
            interrupts: open("/proc/interrupts"),
            vmstat: open("/proc/vmstat"),
            meminfo: open("/proc/meminfo"),
            own_io: open("/proc/self/io"),
            pressure: ["/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io"].map(open),
            kswapd,
            kdamond,
            devices: Vec::new(),
            cgroup: None,
            ticks_per_s: rustix::param::clock_ticks_per_second().max(1) as f64,
            text: Mutex::new(Vec::with_capacity(32 << 10)),
        }
    }

    /// Watches also the block device under `path` (a file, a folder, or the device itself). Several devices add up;
    /// one named twice counts once. On a stacked device (LVM, RAID, dm-crypt) the upper one counts: the requests of
    /// the file system, without the copies below. Of a btrfs over several devices only the one in the mount table
    /// counts: name the others too.
    ///
    /// # Errors
    /// `NotFound` or `NoPermission` for the path; `Unsupported` where no block device lies under it (tmpfs,
    /// overlayfs, network file systems), or where it has no counters.
    pub fn device_of(mut self, path: &Path) -> Result<Self> {
        let found = BlockDevice::under(path)?;
        if !self.devices.iter().any(|(known, _)| *known == found) {
            let stat = found.sysfs().join("stat");
            let file =
                File::open(&stat).map_err(|error| Error::from_io("open the device's counters", &error).at(&stat))?;
            self.devices.push((found, file));
        }
        Ok(self)
    }

    /// Watches also a control group, given as its folder (`/sys/fs/cgroup/…`), of either version. In version 1 that is
    /// the folder in the memory hierarchy.
    ///
    /// # Errors
    /// `NotFound` when the folder has none of the files of a cgroup with a memory controller.
    pub fn cgroup(mut self, folder: &Path) -> Result<Self> {
        let open = |name: &str| File::open(folder.join(name)).ok();
        let files = CgroupFiles {
            path: folder.to_path_buf(),
            memory_stat: open("memory.stat"),
            memory_used: open("memory.current").or_else(|| open("memory.usage_in_bytes")),
            memory_limit_hits: open("memory.events").or_else(|| open("memory.failcnt")),
            cpu: open("cpu.stat"),
            memory_pressure: open("memory.pressure"),
        };
        if files.memory_stat.is_none() {
            return Err(Error::new(ErrorKind::NotFound, "watch a cgroup", "no readable memory.stat in it").at(folder));
        }
        self.cgroup = Some(files);
        Ok(self)
    }

    /// Returns the watched block devices.
    pub fn devices(&self) -> impl Iterator<Item = &BlockDevice> {
        self.devices.iter().map(|(device, _)| device)
    }

    /// Returns the folder of the watched cgroup; `None` when no cgroup is watched.
    pub fn cgroup_path(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(|files| files.path.as_path())
    }

    /// Whether a DAMON daemon runs here. It may page out idle, unmapped page cache on its own and so favour maps over
    /// buffered reads: print it next to every figure.
    pub fn has_kdamond(&self) -> bool {
        !self.kdamond.is_empty()
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

/// The values of the counters at one moment. Only differences have a meaning: see [`Snapshot::since`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot(Delta);

impl Snapshot {
    /// Reads everything that `watch` has open: some 15 small reads, well under a millisecond on a machine with few
    /// CPUs (`/proc/interrupts` grows with CPUs times devices). Allocates nothing once warm.
    ///
    /// Never fails: a counter that cannot be read is absent.
    pub fn take(watch: &Watch) -> Self {
        let mut totals = Delta { wall_s: clock_seconds(rustix::time::ClockId::Monotonic), ..Delta::default() };
        add_own_usage(&mut totals);
        // The buffer holds no state between uses, so a panic elsewhere while it was held does no harm.
        let mut guard = watch.text.lock().unwrap_or_else(PoisonError::into_inner);
        let text = &mut *guard;

        if let Some(io) = reread(watch.own_io.as_ref(), text) {
            totals.own_device_read_bytes = parse::field(io, "read_bytes:");
            totals.own_device_write_bytes = parse::field(io, "write_bytes:");
        }
        if let Some(interrupts) = reread(watch.interrupts.as_ref(), text) {
            let found = parse::interrupts(interrupts);
            totals.tlb_shootdowns = found.tlb;
            totals.function_call_interrupts = found.function_call;
            totals.rescheduling_interrupts = found.rescheduling;
        }
        if let Some(vmstat) = reread(watch.vmstat.as_ref(), text) {
            add_vmstat(&mut totals, vmstat);
        }
        if let Some(meminfo) = reread(watch.meminfo.as_ref(), text) {
            let bytes = |name| parse::field(meminfo, name).map(|kib| kib.saturating_mul(1024));
            totals.page_cache_bytes = bytes("Cached:");
            totals.free_bytes = bytes("MemFree:");
            totals.available_bytes = bytes("MemAvailable:");
            totals.dirty_bytes = bytes("Dirty:");
            totals.page_tables_bytes = bytes("PageTables:");
        }
        if let Some(cpu) = reread(watch.stat.as_ref(), text).and_then(parse::cpu_ticks) {
            totals.system_busy_s = Some(cpu.busy as f64 / watch.ticks_per_s);
            totals.iowait_s = Some(cpu.iowait as f64 / watch.ticks_per_s);
            totals.steal_s = cpu.steal.map(|ticks| ticks as f64 / watch.ticks_per_s);
        }
        totals.kswapd_cpu_s = threads_cpu_s(&watch.kswapd, watch.ticks_per_s, text);
        totals.kdamond_cpu_s = threads_cpu_s(&watch.kdamond, watch.ticks_per_s, text);
        add_devices(&mut totals, watch, text);
        for (file, some, full) in [
            (&watch.pressure[0], &mut totals.psi_cpu_some_us, &mut totals.psi_cpu_full_us),
            (&watch.pressure[1], &mut totals.psi_memory_some_us, &mut totals.psi_memory_full_us),
            (&watch.pressure[2], &mut totals.psi_io_some_us, &mut totals.psi_io_full_us),
        ] {
            (*some, *full) = reread(file.as_ref(), text).map_or((None, None), parse::pressure);
        }
        if let Some(files) = &watch.cgroup {
            add_cgroup(&mut totals, files, text);
        }
        Self(totals)
    }

    /// Returns the difference from `earlier` to this. Both must come from one [`Watch`]. A counter that went
    /// backwards (a CPU taken offline, a daemon restarted) shows as zero.
    pub fn since(&self, earlier: &Self) -> Delta {
        self.0.minus(&earlier.0)
    }
}

/// CPU time of the calling thread, user and system together, in seconds. One call without entering the kernel's slow path
/// (about 0.2 µs).
pub fn thread_cpu_seconds() -> f64 {
    clock_seconds(rustix::time::ClockId::ThreadCPUTime)
}

fn clock_seconds(clock: rustix::time::ClockId) -> f64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Reads a kernel file again from its start into `text`. Such files answer a page or so at a time.
fn reread<'a>(file: Option<&File>, text: &'a mut Vec<u8>) -> Option<&'a str> {
    let file = file?;
    let mut len = 0;
    loop {
        if text.len() - len < 4096 {
            text.resize(text.len() + (16 << 10), 0);
        }
        match file.read_at(&mut text[len..], len as u64) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    std::str::from_utf8(&text[..len]).ok()
}

fn add_own_usage(totals: &mut Delta) {
    let own = usage(libc::RUSAGE_SELF);
    let children = usage(libc::RUSAGE_CHILDREN);
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    totals.own_cpu_user_s = seconds(own.ru_utime);
    totals.own_cpu_system_s = seconds(own.ru_stime);
    totals.children_cpu_user_s = seconds(children.ru_utime);
    totals.children_cpu_system_s = seconds(children.ru_stime);
    let count = |value: libc::c_long| u64::try_from(value).unwrap_or(0);
    totals.minor_faults = count(own.ru_minflt);
    totals.major_faults = count(own.ru_majflt);
    totals.voluntary_switches = count(own.ru_nvcsw);
    totals.involuntary_switches = count(own.ru_nivcsw);
}

fn usage(who: libc::c_int) -> libc::rusage {
    // SAFETY: `rusage` is plain integers, for which all zeroes is a value; the kernel fills it. The call fails only for
    // a bad `who` or address, neither of which occurs, and then leaves the zeroes.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    }
}

fn add_vmstat(totals: &mut Delta, vmstat: &str) {
    for (name, value) in parse::pairs(vmstat) {
        let place = match name {
            "nr_tlb_remote_flush" => &mut totals.nr_tlb_remote_flush,
            "nr_tlb_remote_flush_received" => &mut totals.nr_tlb_remote_flush_received,
            "nr_tlb_local_flush_all" => &mut totals.nr_tlb_local_flush_all,
            "nr_tlb_local_flush_one" => &mut totals.nr_tlb_local_flush_one,
            "pgfault" => &mut totals.pgfault,
            "pgmajfault" => &mut totals.pgmajfault,
            "pgpgin" => &mut totals.pgpgin,
            "pgpgout" => &mut totals.pgpgout,
            "pgscan_kswapd" => &mut totals.pgscan_kswapd,
            "pgscan_direct" => &mut totals.pgscan_direct,
            "pgscan_file" => &mut totals.pgscan_file,
            "pgscan_anon" => &mut totals.pgscan_anon,
            "pgsteal_kswapd" => &mut totals.pgsteal_kswapd,
            "pgsteal_direct" => &mut totals.pgsteal_direct,
            "pgsteal_file" => &mut totals.pgsteal_file,
            "pgsteal_anon" => &mut totals.pgsteal_anon,
            "pageoutrun" => &mut totals.pageoutrun,
            "workingset_refault_file" => &mut totals.workingset_refault_file,
            "workingset_activate_file" => &mut totals.workingset_activate_file,
            "thp_fault_alloc" => &mut totals.thp_fault_alloc,
            "thp_fault_fallback" => &mut totals.thp_fault_fallback,
            "thp_collapse_alloc" => &mut totals.thp_collapse_alloc,
            "thp_file_mapped" => &mut totals.thp_file_mapped,
            "thp_split_page" => &mut totals.thp_split_page,
            "compact_stall" => &mut totals.compact_stall,
            // One line a memory zone; before 4.10 a single line.
            name if name.starts_with("allocstall") => {
                totals.allocstall = Some(totals.allocstall.unwrap_or(0).saturating_add(value));
                continue;
            }
            _ => continue,
        };
        *place = Some(value);
    }
}

fn add_devices(totals: &mut Delta, watch: &Watch, text: &mut Vec<u8>) {
    for (_, file) in &watch.devices {
        let Some(seen) = reread(Some(file), text).and_then(parse::device) else { continue };
        for (total, value) in [
            (&mut totals.device_reads, Some(seen.reads)),
            (&mut totals.device_read_bytes, Some(seen.read_bytes)),
            (&mut totals.device_writes, Some(seen.writes)),
            (&mut totals.device_write_bytes, Some(seen.write_bytes)),
            (&mut totals.device_flushes, seen.flushes),
        ] {
            *total = value.map(|value| total.unwrap_or(0).saturating_add(value)).or(*total);
        }
        for (total, value_ms) in
            [(&mut totals.device_busy_s, seen.busy_ms), (&mut totals.device_queue_s, seen.queue_ms)]
        {
            *total = Some(total.unwrap_or(0.0) + value_ms as f64 / 1e3);
        }
    }
}

fn add_cgroup(totals: &mut Delta, files: &CgroupFiles, text: &mut Vec<u8>) {
    if let Some(stat) = reread(files.memory_stat.as_ref(), text) {
        // Version 1 counts a group alone under the plain name, and with its children under `total_`.
        let both = |name: &str, v1: &str| parse::field(stat, v1).or_else(|| parse::field(stat, name));
        totals.cgroup_page_cache_bytes = both("file", "total_cache");
        totals.cgroup_pgfault = both("pgfault", "total_pgfault");
        totals.cgroup_pgmajfault = both("pgmajfault", "total_pgmajfault");
        totals.cgroup_workingset_refault_file = both("workingset_refault_file", "total_workingset_refault_file");
        totals.cgroup_pgscan = parse::field(stat, "pgscan");
        totals.cgroup_pgsteal = parse::field(stat, "pgsteal");
    }
    totals.cgroup_memory_bytes = reread(files.memory_used.as_ref(), text).and_then(parse::number);
    totals.cgroup_limit_hits = reread(files.memory_limit_hits.as_ref(), text)
        .and_then(|text| parse::field(text, "max").or_else(|| parse::number(text)));
    totals.cgroup_cpu_s =
        reread(files.cpu.as_ref(), text).and_then(|stat| parse::field(stat, "usage_usec")).map(|us| us as f64 / 1e6);
    (totals.cgroup_psi_memory_some_us, totals.cgroup_psi_memory_full_us) =
        reread(files.memory_pressure.as_ref(), text).map_or((None, None), parse::pressure);
}

fn threads_cpu_s(threads: &[File], ticks_per_s: f64, text: &mut Vec<u8>) -> Option<f64> {
    if threads.is_empty() {
        return None;
    }
    // A daemon that has ended answers with an error and drops out of the sum.
    let ticks = threads
        .iter()
        .filter_map(|file| reread(Some(file), text).and_then(parse::thread).map(|thread| thread.cpu_ticks))
        .fold(0_u64, u64::saturating_add);
    Some(ticks as f64 / ticks_per_s)
}

/// The `stat` files of the kernel's kswapd and kdamond threads.
fn reclaim_daemons() -> (Vec<File>, Vec<File>) {
    let mut daemons = (Vec::new(), Vec::new());
    let Ok(processes) = std::fs::read_dir("/proc") else { return daemons };
    let mut text = Vec::new();
    for process in processes.flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let Ok(file) = File::open(process.path().join("stat")) else { continue };
        let Some(thread) = reread(Some(&file), &mut text).and_then(parse::thread) else { continue };
        match thread.name {
            name if thread.is_kernel && name.starts_with("kswapd") => daemons.0.push(file),
            name if thread.is_kernel && name.starts_with("kdamond") => daemons.1.push(file),
            _ => {}
        }
    }
    daemons
}
