//! Describes this machine ([`describe`]) and its sources of bias ([`Survey::biases`]): each in a plain sentence, with
//! the lab's countermeasure. Made once, at the start of a run; about a second.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nofault_io::counters::{Watch, device::BlockDevice};
use nofault_io::probe::{DeviceFacts, Probe};

use super::calibrate::Costs;
use super::system::{self, human_bytes, meminfo_bytes, read_number, read_text};
use crate::paths::shown;
use crate::record::MachineInfo;

/// Linux's default read-ahead in KiB, which most machines have.
const READ_AHEAD_KB_USUAL: u64 = 128;
/// How long the survey watches the idle machine for stolen CPU time and device traffic.
const WATCH: Duration = Duration::from_millis(300);

/// A machine and its sources of bias.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survey {
    /// The description of the machine.
    pub machine: MachineInfo,
    /// The machine's sources of bias.
    pub biases: Vec<Bias>,
}

/// A source of bias of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bias {
    /// What was found, as a sentence without its full stop.
    pub found: String,
    /// What the lab does about it, or the user can do, in sentences.
    pub measure: String,
}

impl std::fmt::Display for Bias {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}. {}", self.found, self.measure)
    }
}

/// Describes the machine, seen from the folder (or device) to be measured.
pub fn describe(path: &Path) -> MachineInfo {
    survey(path).machine
}

/// Describes the machine and its biases, seen from the folder (or device) to be measured. Never fails: a value
/// that the kernel does not provide stays empty.
pub fn survey(path: &Path) -> Survey {
    let seen = Observations::look(path);
    Survey { machine: seen.machine(), biases: seen.biases() }
}

/// Finds the path of fio; `None` where fio is not installed.
pub fn find_fio() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("fio")).find(|file| file.is_file())
}

/// Name of the cost of a page of a mapped file that comes without a device.
pub(crate) const FILE_FAULT: &str = "fault_of_a_file_page";
/// Name of the cost of a page of a mapped file that goes without a device.
pub(crate) const FILE_EVICTION: &str = "eviction_of_a_file_page";

/// All raw observations of the machine; its description and its biases are derived from them alone.
#[derive(Debug, Default)]
struct Observations {
    cpu: String,
    cpu_count: u32,
    memory_bytes: u64,
    swap_bytes: u64,
    kernel: String,
    hypervisor: Option<String>,
    file_system: String,
    device: String,
    device_facts: Option<DeviceFacts>,
    read_ahead_kb: Option<u64>,
    root: bool,
    huge_pages: Option<String>,
    multi_gen_lru: Option<String>,
    governor: Option<String>,
    load: Option<f64>,
    steal_percent: Option<f64>,
    foreign_io_bytes_per_s: Option<f64>,
    damon_pageout: Vec<String>,
    has_fio: bool,
    costs: Costs,
}

impl Observations {
    fn look(path: &Path) -> Self {
        // The folder may not be there yet: then its nearest ancestor is on the same file system.
        let path = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let probe = Probe::of(path);
        let device = BlockDevice::under(path).ok();
        // Watch before the calibration, which is a load itself.
        let load = read_text("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok());
        let (steal_percent, foreign_io_bytes_per_s) = watch(device.as_ref());
        let facts = probe.device.as_ref().ok();
        Self {
            cpu: cpu_model().unwrap_or_else(|| std::env::consts::ARCH.into()),
            cpu_count: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
            memory_bytes: meminfo_bytes("MemTotal").unwrap_or(0),
            swap_bytes: meminfo_bytes("SwapTotal").unwrap_or(0),
            kernel: probe.kernel.clone(),
            hypervisor: hypervisor(),
            file_system: probe.file_system.clone().unwrap_or_default(),
            device: facts.map(|facts| facts.name.clone()).unwrap_or_default(),
            device_facts: facts.cloned(),
            read_ahead_kb: facts.and_then(|facts| facts.read_ahead_kb),
            root: system::is_root(),
            huge_pages: probe.huge_pages.clone(),
            multi_gen_lru: read_text("/sys/kernel/mm/lru_gen/enabled"),
            governor: read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load,
            steal_percent,
            foreign_io_bytes_per_s,
            damon_pageout: damon_pageout(Path::new("/sys/kernel/mm/damon/admin/kdamonds")),
            has_fio: find_fio().is_some(),
            costs: Costs::measure(if path.is_dir() { path } else { Path::new(".") }),
        }
    }

    fn machine(&self) -> MachineInfo {
        let mut facts = BTreeMap::new();
        let mut fact = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                facts.insert(name.to_owned(), value);
            }
        };
        let costs = [
            ("clock_read", Some(self.costs.clock_ns)),
            ("clock_step", Some(self.costs.clock_step_ns)),
            ("system_call", Some(self.costs.syscall_ns)),
            ("minor_fault", self.costs.minor_fault_ns),
            ("first_touch_of_fresh_memory", self.costs.first_touch_ns),
            ("first_touch_of_memory_used_before", self.costs.touch_again_ns),
            ("unmap_one_page", self.costs.unmap_ns),
            ("unmap_one_page_with_remote_tlb_flush", self.costs.unmap_shared_ns),
            (FILE_FAULT, self.costs.file_fault_ns),
            (FILE_EVICTION, self.costs.file_evict_ns),
        ];
        let costs_ns: BTreeMap<String, f64> =
            costs.into_iter().filter_map(|(name, cost_ns)| Some((name.to_owned(), cost_ns?))).collect();
        costs_ns.iter().for_each(|(name, cost_ns)| fact(name, Some(format!("{cost_ns:.0} ns"))));
        fact("huge_pages", self.huge_pages.clone());
        fact("multi_gen_lru", Some(self.multi_gen_lru.clone().unwrap_or_else(|| "not built into the kernel".into())));
        fact("cpu_governor", self.governor.clone());
        fact("load_average", self.load.map(|load| format!("{load:.2}")));
        fact("steal", self.steal_percent.map(|percent| format!("{percent:.1} %")));
        fact("swap", Some(human_bytes(self.swap_bytes)));
        fact("fio", Some(if self.has_fio { "installed" } else { "not installed" }.into()));
        if let Some(device) = &self.device_facts {
            fact("device_model", device.model.clone());
            fact("device_scheduler", device.scheduler.clone());
            fact("device_write_cache", device.write_cache.clone());
            fact("device_rotational", device.rotational.map(|yes| yes.to_string()));
            fact("device_requests_max", device.nr_requests.map(|count| count.to_string()));
            fact("device_segments_max", device.max_segments.map(|count| count.to_string()));
            fact("device_request_max", device.max_sectors_kb.map(|kb| format!("{kb} KiB")));
        }
        MachineInfo {
            cpu: self.cpu.clone(),
            cpu_count: self.cpu_count,
            memory_bytes: self.memory_bytes,
            kernel: self.kernel.clone(),
            virtualization: self.hypervisor.clone().unwrap_or_else(|| "none".into()),
            file_system: self.file_system.clone(),
            device: self.device.clone(),
            read_ahead_kb: self.read_ahead_kb,
            root: self.root,
            facts,
            costs_ns,
        }
    }

    fn biases(&self) -> Vec<Bias> {
        let mut biases = Vec::new();
        let mut add = |found: String, measure: &str| biases.push(Bias { found, measure: measure.into() });
        if let Some(kb) = self.read_ahead_kb
            && !(READ_AHEAD_KB_USUAL / 2..=2 * READ_AHEAD_KB_USUAL).contains(&kb)
        {
            let effect =
                if kb > READ_AHEAD_KB_USUAL { "helps mapped scans and ruins" } else { "slows mapped scans and helps" };
            add(
                format!(
                    "read-ahead of {} is {kb} KiB (usually {READ_AHEAD_KB_USUAL}): it {effect} random reads without MADV_RANDOM",
                    self.device
                ),
                "Left as it is; as root, read_ahead_kb in the configuration measures other values too.",
            );
        }
        for daemon in &self.damon_pageout {
            add(
                format!(
                    "A DAMON daemon ({daemon}) may page out idle memory: page cache that is not mapped shrinks while it waits, \
                     which favours mmap over buffered reads"
                ),
                "Left on, as it belongs to the system; gaps are kept short and residency is recorded.",
            );
        }
        if self.costs.memory_is_lazy() {
            add(
                format!(
                    "First touch of fresh memory takes {:.1} µs for 4 KiB, of memory used before {:.1} µs: the hypervisor hands \
                     memory out when it is touched",
                    self.costs.first_touch_ns.unwrap_or(0.0) / 1000.0,
                    self.costs.touch_again_ns.unwrap_or(0.0) / 1000.0
                ),
                "The start of a trial, while memory fills, may look slower than it is; figures are taken after that.",
            );
        }
        if let Some(name) = &self.hypervisor {
            add(
                format!(
                    "This is a virtual machine ({name}): page faults and interrupts between CPUs cost more than on bare metal, \
                     and the host may throttle the device"
                ),
                "The costs of the primitives are in the record.",
            );
        }
        if let Some(percent) = self.steal_percent.filter(|percent| *percent > 2.0) {
            add(
                format!("{percent:.0} % of CPU time is taken by the hypervisor for others (steal)"),
                "Compare CPU per read rather than throughput, and repeat when it is quieter.",
            );
        }
        if let Some(load) = self.load.filter(|load| *load > 0.5 * f64::from(self.cpu_count)) {
            add(
                format!("The load average is {load:.1} on {} CPUs: others are working here", self.cpu_count),
                "Methods are interleaved so that all suffer alike; for figures worth quoting, repeat when the machine is quiet.",
            );
        }
        if let Some(rate) = self.foreign_io_bytes_per_s.filter(|rate| *rate > 1e6) {
            add(
                format!("Another process moves {:.0} MB/s to or from {}", rate / 1e6, self.device),
                "Ticks in which the device did more than the lab asked for are flagged.",
            );
        }
        if let Some(governor) = self.governor.as_ref().filter(|governor| *governor != "performance") {
            add(
                format!("The CPU frequency governor is '{governor}': short trials may run at a lower clock"),
                "Left as it is.",
            );
        }
        if self.swap_bytes > 0 {
            add(
                format!(
                    "There are {} of swap: locked ballast may push other programs out, which moves the same device",
                    human_bytes(self.swap_bytes)
                ),
                "Trials in a cgroup do not swap.",
            );
        }
        if self.multi_gen_lru.as_deref().is_some_and(|mode| mode != "0x0000" && mode != "n") {
            add(
                "The kernel evicts by multi-generational LRU, which is cheaper than the LRU of the 2022 paper".into(),
                "Left on.",
            );
        }
        match self.huge_pages.as_deref() {
            Some("always") => add(
                "Transparent huge pages are on for everything: anonymous memory is touched 2 MiB at a time".into(),
                "File pages are not concerned.",
            ),
            Some("never") | None => add(
                "Transparent huge pages are off: large direct reads into small pages are split by the device driver and may be \
                 slower than the device".into(),
                "The ceilings are measured with the same buffers.",
            ),
            Some(_) => {}
        }
        if !self.has_fio {
            add(
                "fio is not installed, so no outside baseline checks the lab's own methods".into(),
                "Install it (`apt install fio`).",
            );
        }
        biases
    }
}

/// Watches the machine for [`WATCH`] while the lab does nothing. Returns the percentage of CPU time stolen and the
/// traffic of the device in bytes a second.
fn watch(device: Option<&BlockDevice>) -> (Option<f64>, Option<f64>) {
    let sectors = || -> Option<u64> {
        let stat = read_text(device?.sysfs().join("stat"))?;
        let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(fields.get(2)? + fields.get(6)?)
    };
    let cpu = || -> Option<(u64, u64)> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let fields: Vec<u64> =
            text.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        // The first eight sum up to all time; guest time is part of user time.
        Some((*fields.get(7)?, fields.iter().take(8).sum()))
    };
    let (sectors_before, cpu_before, started) = (sectors(), cpu(), Instant::now());
    std::thread::sleep(WATCH);
    let elapsed_s = started.elapsed().as_secs_f64();
    let steal = cpu_before.zip(cpu()).map(|((steal_0, all_0), (steal_1, all_1))| {
        100.0 * steal_1.saturating_sub(steal_0) as f64 / all_1.saturating_sub(all_0).max(1) as f64
    });
    let traffic =
        sectors_before.zip(sectors()).map(|(before, after)| after.saturating_sub(before) as f64 * 512.0 / elapsed_s);
    (steal, traffic)
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name") || line.starts_with("Processor"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the name of the hypervisor; `None` on a machine without one, or when its name cannot be found.
fn hypervisor() -> Option<String> {
    if let Some(kind) = read_text("/sys/hypervisor/type") {
        return Some(kind);
    }
    let product =
        ["sys_vendor", "product_name"].map(|name| read_text(format!("/sys/class/dmi/id/{name}")).unwrap_or_default());
    let product = product.join(" ").trim().to_owned();
    let is_virtual = fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
        text.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor"))
    });
    let known = ["QEMU", "KVM", "VMware", "VirtualBox", "Virtual Machine", "Amazon EC2", "Google Compute", "Xen"];
    match (is_virtual, product.is_empty()) {
        (true, true) => Some(cpuid_name().unwrap_or_else(|| "unnamed hypervisor".into())),
        (true, false) => Some(product),
        // arm64 has no such flag; the maker's name gives it away.
        (false, _) => known.iter().any(|name| product.contains(name)).then_some(product),
    }
}

/// Returns the hypervisor's name as CPUID reports it: `KVMKVMKVM`, `Microsoft Hv`, `VMwareVMware`.
#[cfg(target_arch = "x86_64")]
fn cpuid_name() -> Option<String> {
    /// CPUID leaf in which a hypervisor reports its name.
    const HYPERVISOR_LEAF: u32 = 0x4000_0000;
    let answer = std::arch::x86_64::__cpuid(HYPERVISOR_LEAF);
    let bytes: Vec<u8> = [answer.ebx, answer.ecx, answer.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    let name = String::from_utf8(bytes).ok()?.trim_end_matches('\0').trim().to_owned();
    let name = if name.starts_with("KVMKVM") { "KVM".to_owned() } else { name };
    Some(name).filter(|name| !name.is_empty() && name.chars().all(|letter| letter.is_ascii_graphic() || letter == ' '))
}

/// Returns `None`: other processors have no instruction naming the hypervisor.
#[cfg(not(target_arch = "x86_64"))]
fn cpuid_name() -> Option<String> {
    None
}

/// Returns the names of the running DAMON daemons that page memory out; users other than root only learn whether a
/// daemon runs.
fn damon_pageout(folder: &Path) -> Vec<String> {
    if fs::read_dir(folder).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
        let runs = Watch::new().has_kdamond();
        return runs.then(|| "kdamond, whose action only root may see".to_owned()).into_iter().collect();
    }
    let children = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let pages_out = |daemon: &PathBuf| {
        children(daemon.join("contexts"))
            .flat_map(|context| children(context.join("schemes")))
            .any(|scheme| read_text(scheme.join("action")).as_deref() == Some("pageout"))
    };
    let is_on = |daemon: &PathBuf| {
        read_text(daemon.join("state")).is_none_or(|state| state == "on")
            && read_number(daemon.join("pid")).is_none_or(|pid| pid > 0)
    };
    let name = |daemon: PathBuf| format!("kdamond {}", shown(&daemon.file_name().unwrap_or_default()));
    children(folder.to_path_buf()).filter(is_on).filter(pages_out).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_described_also_for_a_folder_that_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let survey = survey(&folder.path().join("not/yet"));
        let machine = &survey.machine;
        assert!(machine.cpu_count > 0 && machine.memory_bytes > 1 << 20 && !machine.kernel.is_empty(), "{machine:?}");
        assert!(!machine.file_system.is_empty());
        assert!(machine.facts.contains_key("system_call"), "{:?}", machine.facts);
        survey.biases.iter().for_each(|bias| eprintln!("{bias}"));
    }

    #[test]
    fn each_bias_is_reported_exactly_when_present() {
        let quiet = Observations {
            cpu_count: 2,
            read_ahead_kb: Some(128),
            huge_pages: Some("madvise".into()),
            load: Some(0.1),
            steal_percent: Some(0.0),
            foreign_io_bytes_per_s: Some(0.0),
            governor: Some("performance".into()),
            has_fio: true,
            ..Observations::default()
        };
        assert_eq!(quiet.biases(), []);
        let odd = Observations {
            device: "vda".into(),
            read_ahead_kb: Some(8192),
            huge_pages: Some("never".into()),
            load: Some(7.0),
            steal_percent: Some(12.0),
            foreign_io_bytes_per_s: Some(5e7),
            governor: Some("powersave".into()),
            swap_bytes: 1 << 30,
            multi_gen_lru: Some("0x0007".into()),
            hypervisor: Some("KVM".into()),
            damon_pageout: vec!["kdamond 0".into()],
            costs: Costs { first_touch_ns: Some(5400.0), touch_again_ns: Some(1700.0), ..Costs::default() },
            cpu_count: 2,
            ..Observations::default()
        };
        let biases: String = odd.biases().iter().map(|bias| format!("{bias}\n")).collect();
        for part in [
            "8192 KiB",
            "DAMON",
            "5.4 µs",
            "KVM",
            "12 %",
            "load average is 7.0",
            "50 MB/s",
            "powersave",
            "1 GiB of swap",
            "multi-generational",
            "huge pages are off",
            "fio is not installed",
        ] {
            assert!(biases.contains(part), "{part}: {biases}");
        }
    }

    #[test]
    fn a_kdamond_that_pages_out_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for (number, state, action) in [("0", "on", "pageout"), ("1", "off", "pageout"), ("2", "on", "stat")] {
            let scheme = folder.path().join(number).join("contexts/0/schemes/0");
            fs::create_dir_all(&scheme).unwrap();
            fs::write(scheme.join("action"), action).unwrap();
            fs::write(folder.path().join(number).join("state"), state).unwrap();
        }
        assert_eq!(damon_pageout(folder.path()), ["kdamond 0"]);
        assert_eq!(damon_pageout(Path::new("/nowhere")), Vec::<String>::new());
    }
}
