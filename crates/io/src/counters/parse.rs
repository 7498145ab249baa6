//! Parsers of the kernel's text files. Pure functions that return on any text; sums saturate.

/// Interrupts between CPUs, each summed over all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interrupts {
    /// TLB shootdowns: line `TLB:` (x86 only).
    pub tlb: Option<u64>,
    /// Function-call interrupts: line `CAL:`, or the line described as such.
    pub function_call: Option<u64>,
    /// Rescheduling interrupts: line `RES:`, or the line described as such.
    pub rescheduling: Option<u64>,
}

/// The first line of `/proc/stat`, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTicks {
    /// Time of user, nice, system, interrupts and soft interrupts. Guests are within user.
    pub busy: u64,
    /// Idle time with I/O outstanding.
    pub iowait: u64,
    /// Time that the hypervisor gave to other guests.
    pub steal: Option<u64>,
}

/// The content of a block device's `stat` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Number of reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of writes completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Time with at least one request, in ms.
    pub busy_ms: u64,
    /// Time of all requests added up, in ms.
    pub queue_ms: u64,
    /// Cache flushes completed (since 5.5; whole disks only).
    pub flushes: Option<u64>,
}

/// The content of a `/proc/<pid>/stat` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread<'a> {
    /// Short name of the thread or process.
    pub name: &'a str,
    /// Whether it is a thread of the kernel (`PF_KTHREAD`).
    pub is_kernel: bool,
    /// User and system time together, in clock ticks.
    pub cpu_ticks: u64,
}

/// Parses `/proc/interrupts`. Finds the lines by label (x86) or by description (arm64, RISC-V).
pub fn interrupts(text: &str) -> Interrupts {
    let mut found = Interrupts::default();
    for line in text.lines() {
        let Some((label, rest)) = line.split_once(':') else { continue };
        // Interrupts of devices are numbered; a device's name must not be taken for a description.
        let label = label.trim();
        if label.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let place = match label {
            "TLB" => &mut found.tlb,
            "CAL" => &mut found.function_call,
            "RES" => &mut found.rescheduling,
            _ if rest.ends_with("Function call interrupts") => &mut found.function_call,
            _ if rest.ends_with("Rescheduling interrupts") => &mut found.rescheduling,
            _ => continue,
        };
        let mut counts = rest.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok()).peekable();
        if counts.peek().is_some() {
            *place = Some(counts.fold(0, u64::saturating_add));
        }
    }
    found
}

/// Parses lines of a name and a number (`/proc/vmstat`, `memory.stat`); other lines are passed over.
pub fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        Some((words.next()?, words.next()?.parse().ok()?))
    })
}

/// Returns the number after `name` at the start of a line (`/proc/meminfo`, `/proc/self/io`, `memory.stat`).
pub fn field(text: &str, name: &str) -> Option<u64> {
    pairs(text).find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// Parses a text that is one number.
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Parses the line of `/proc/stat` with the sums over all CPUs.
pub fn cpu_ticks(text: &str) -> Option<CpuTicks> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let mut ticks = line.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    let mut next = || ticks.next();
    let (user, nice, system, _idle, iowait) = (next()?, next()?, next()?, next()?, next()?);
    let (irq, softirq) = (next().unwrap_or(0), next().unwrap_or(0));
    let busy = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
    Some(CpuTicks { busy, iowait, steal: next() })
}

/// Parses `/sys/block/…/stat`: eleven numbers at least, sizes in sectors of 512 bytes on every device.
pub fn device(text: &str) -> Option<Device> {
    let mut numbers = text.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    let mut next = || numbers.next();
    let (reads, _merged, read_sectors, _ms) = (next()?, next()?, next()?, next()?);
    let (writes, _merged, write_sectors, _ms) = (next()?, next()?, next()?, next()?);
    let (_in_flight, busy_ms, queue_ms) = (next()?, next()?, next()?);
    let bytes = |sectors: u64| sectors.saturating_mul(512);
    // Four of discards come first.
    let flushes = numbers.nth(4);
    Some(Device {
        reads,
        read_bytes: bytes(read_sectors),
        writes,
        write_bytes: bytes(write_sectors),
        busy_ms,
        queue_ms,
        flushes,
    })
}

/// Returns the totals of a pressure file in microseconds: (some, full).
pub fn pressure(text: &str) -> (Option<u64>, Option<u64>) {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
    };
    (total("some"), total("full"))
}

/// Parses `/proc/<pid>/stat`. The name stands in brackets and may itself contain brackets and spaces.
pub fn thread(text: &str) -> Option<Thread<'_>> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let (before, after) = text.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let mut words = after.split_ascii_whitespace();
    let flags: u64 = words.nth(6)?.parse().ok()?;
    let user: u64 = words.nth(4)?.parse().ok()?;
    let system: u64 = words.next()?.parse().ok()?;
    Some(Thread { name, is_kernel: flags & PF_KTHREAD != 0, cpu_ticks: user.saturating_add(system) })
}
