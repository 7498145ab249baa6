//! Makes "larger than memory" true, by the best means that the rights allow: a memory cgroup, ballast, or data larger
//! than RAM. Page cache counts in all three.
//!
//! [`choose`] picks the means and gives its reasons; [`Limit::enforce`] puts it in place and returns a guard. Each
//! trial runs in a child process that [`Limit::add_pid`] puts under the limit before it works.

mod ballast;
mod cgroup;

pub use ballast::Ballast;
pub use cgroup::{CgroupGuard, Usage, remove_leftovers};

use super::system::{human_bytes, meminfo_bytes};
use crate::config::MemoryChoice;
use crate::error::{LabError, LabErrorKind, Result};
use crate::record::{MemoryLimit, MemoryMethod};

/// Smallest memory limit in bytes: below it a process has no room for its own stacks and buffers.
const LIMIT_BYTES_MIN: u64 = 16 << 20;
/// Bounds of the memory that a ballast leaves, which is a 32nd of RAM: every process of the machine must run in it, and
/// the kernel kills the ballast's holder when they cannot.
const BALLAST_LEAVES_MIN: std::ops::RangeInclusive<u64> = 384 << 20..=1 << 30;

/// The chosen way to limit memory, with the reasons why better ways are not possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The memory limit, in the form that records store.
    pub limit: MemoryLimit,
    /// Bytes of data that the limit needs: more than requested only where the data must be larger than RAM.
    pub data_bytes: u64,
    /// Reasons why better means are not possible here, and effects of the chosen means that a reader of the report must
    /// know.
    pub notes: Vec<String>,
}

/// The memory limit that a run requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement {
    /// The means of limiting memory that the user chose, or automatic choice.
    pub choice: MemoryChoice,
    /// Whether the automatic choice may be a ballast, which takes nearly all memory of the machine.
    pub ballast_allowed: bool,
    /// Bytes of memory that page cache and processes may use together.
    pub memory_bytes: u64,
    /// Bytes of the data that must not fit into that memory.
    pub data_bytes: u64,
    /// Largest size in bytes to which the data may be enlarged when no other means works; equal to `data_bytes` where
    /// the size is fixed.
    pub data_bytes_max: u64,
}

/// Memory and rights of a machine, on which the choice of the limit depends. A separate value, so that tests can
/// decide for other machines than theirs.
#[derive(Debug, Clone)]
struct Facts {
    /// The kind of cgroup that can be made, or the reason why none can.
    cgroup: Result<MemoryMethod>,
    /// Bytes that may be locked (RLIMIT_MEMLOCK); `u64::MAX` without a bound.
    lock_bytes_max: u64,
    /// Bytes of swap: the kernel can swap out touched memory of a ballast, never locked memory.
    swap_bytes: u64,
    /// Bytes of memory that this process could still get.
    available_bytes: u64,
    /// Bytes of RAM, or the limit of the container around this process.
    total_bytes: u64,
}

impl Facts {
    /// Reads the memory and rights of this machine. Where a cgroup may be chosen, the function really makes one and
    /// removes it again; it only looks up the rest.
    fn here(required: &Requirement) -> Self {
        let wants_cgroup = matches!(required.choice, MemoryChoice::Auto | MemoryChoice::Cgroup);
        let cgroup = match wants_cgroup {
            true => CgroupGuard::create(required.memory_bytes).map(|guard| guard.limit().method),
            false => Err(LabError::new(LabErrorKind::Usage, "not asked for")),
        };
        Self {
            cgroup,
            lock_bytes_max: Ballast::lock_bytes_max(),
            swap_bytes: meminfo_bytes("SwapTotal").unwrap_or(0),
            available_bytes: available_bytes(),
            total_bytes: total_bytes(),
        }
    }
}

/// Picks the best means for the required memory limit.
///
/// # Errors
/// `Usage` when the data would fit in the memory; `NoPermission` when no means is possible, with the reason for each
/// and the right that would make it possible.
pub fn choose(required: &Requirement) -> Result<Plan> {
    let invalid = |message: String| Err(LabError::new(LabErrorKind::Usage, message));
    let (memory, data) = (human_bytes(required.memory_bytes), human_bytes(required.data_bytes));
    if required.memory_bytes < LIMIT_BYTES_MIN {
        let least = human_bytes(LIMIT_BYTES_MIN);
        return invalid(format!("a memory limit of {memory} is too small to run in: ask for {least}"));
    }
    if required.data_bytes <= required.memory_bytes {
        return invalid(format!(
            "{data} of data fit in {memory} of memory, so nothing would be evicted: ask for more data or less memory"
        ));
    }
    decide(required, &Facts::here(required))
}

fn decide(required: &Requirement, facts: &Facts) -> Result<Plan> {
    let means = match required.choice {
        MemoryChoice::Auto => &[MemoryChoice::Cgroup, MemoryChoice::Ballast, MemoryChoice::LargeFile][..],
        MemoryChoice::Cgroup => &[MemoryChoice::Cgroup],
        MemoryChoice::Ballast => &[MemoryChoice::Ballast],
        MemoryChoice::LargeFile => &[MemoryChoice::LargeFile],
    };
    let mut notes = Vec::new();
    for mean in means {
        let (name, answer) = match mean {
            MemoryChoice::Auto | MemoryChoice::Cgroup => ("a memory cgroup", by_cgroup(required, facts)),
            MemoryChoice::Ballast => ("ballast", allowed_ballast(required, facts)),
            MemoryChoice::LargeFile => ("data larger than RAM", by_large_file(required, facts)),
        };
        match answer {
            Ok(mut plan) => {
                notes.append(&mut plan.notes);
                return Ok(Plan { notes, ..plan });
            }
            Err(error) => notes.push(format!("{name} is not possible: {error}")),
        }
    }
    let message = format!("memory cannot be limited here: {}", notes.join("; "));
    Err(LabError::new(LabErrorKind::NoPermission, message))
}

fn by_cgroup(required: &Requirement, facts: &Facts) -> Result<Plan> {
    check_available(required.memory_bytes, facts)?;
    let limit = MemoryLimit { method: facts.cgroup.clone()?, bytes: required.memory_bytes };
    Ok(Plan { limit, data_bytes: required.data_bytes, notes: Vec::new() })
}

/// Plans a limit by ballast where the user has named or allowed it: a ballast that the user does not expect would stop everything
/// else on the machine.
fn allowed_ballast(required: &Requirement, facts: &Facts) -> Result<Plan> {
    let plan = by_ballast(required, facts)?;
    if required.choice == MemoryChoice::Ballast || required.ballast_allowed {
        return Ok(plan);
    }
    let held = human_bytes(facts.available_bytes.saturating_sub(plan.limit.bytes));
    let message = format!(
        "it would hold {held}, nearly all memory of this machine, while trials run; allow that with --memory-ballast"
    );
    Err(LabError::new(LabErrorKind::NoPermission, message))
}

/// Plans a limit by ballast, locked where that is allowed. Without swap the kernel cannot evict anonymous memory, so
/// that the ballast need not be locked.
fn by_ballast(required: &Requirement, facts: &Facts) -> Result<Plan> {
    let least = (facts.total_bytes / 32).clamp(*BALLAST_LEAVES_MIN.start(), *BALLAST_LEAVES_MIN.end());
    let bytes = required.memory_bytes.max(least);
    if required.data_bytes < bytes.saturating_mul(5) / 4 {
        let message = format!(
            "it leaves {} to all processes together, and {} of data are not a quarter more; ask for more data",
            human_bytes(bytes),
            human_bytes(required.data_bytes)
        );
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    check_available(bytes, facts)?;
    let held = facts.available_bytes - bytes;
    let mut notes = Vec::new();
    if held > facts.lock_bytes_max {
        let (size, locked) = (human_bytes(held), human_bytes(facts.lock_bytes_max));
        if facts.swap_bytes > 0 {
            let message = format!(
                "{size} would have to be locked, as there is swap, and only {locked} may be (RLIMIT_MEMLOCK); raise it \
                 (`ulimit -l`, LimitMEMLOCK=), switch swap off or run as root"
            );
            return Err(LabError::new(LabErrorKind::NoPermission, message));
        }
        notes.push(format!(
            "the ballast of about {size} is touched and not locked (only {locked} may be): without swap it stays all the same"
        ));
    }
    if bytes > required.memory_bytes {
        let (bytes, wanted) = (human_bytes(bytes), human_bytes(required.memory_bytes));
        notes.push(format!(
            "the ballast leaves {bytes} and not {wanted}: all processes of the machine have to live in it"
        ));
    }
    let limit = MemoryLimit { method: MemoryMethod::Ballast, bytes };
    Ok(Plan { limit, data_bytes: required.data_bytes, notes })
}

fn by_large_file(required: &Requirement, facts: &Facts) -> Result<Plan> {
    let total = facts.total_bytes;
    let limit = MemoryLimit { method: MemoryMethod::LargeFile, bytes: total };
    // The page cache can hold all memory available now, but that amount changes; RAM does not.
    if required.data_bytes > total {
        return Ok(Plan { limit, data_bytes: required.data_bytes, notes: Vec::new() });
    }
    let enough = total.saturating_add(total / 4).next_multiple_of(1 << 20);
    if required.data_bytes_max >= enough {
        let (total, asked, enough_text) = (human_bytes(total), human_bytes(required.data_bytes), human_bytes(enough));
        let note =
            format!("the data is enlarged from {asked} to {enough_text}, as it must be larger than the {total} of RAM");
        return Ok(Plan { limit, data_bytes: enough, notes: vec![note] });
    }
    let message = format!(
        "{} of data are not more than the {} of RAM; {} would do (--size), on a disk with room for them",
        human_bytes(required.data_bytes),
        human_bytes(total),
        human_bytes(enough)
    );
    Err(LabError::new(LabErrorKind::NoSpace, message))
}

/// Refuses a limit that is not below the memory available now: it would have no effect.
fn check_available(bytes: u64, facts: &Facts) -> Result<()> {
    if bytes < facts.available_bytes {
        return Ok(());
    }
    let message = format!(
        "only {} of memory are available, a limit of {} would limit nothing; ask for less memory",
        human_bytes(facts.available_bytes),
        human_bytes(bytes)
    );
    Err(LabError::new(LabErrorKind::Usage, message))
}

/// Bytes of memory that new processes can get now, droppable page cache included: the machine's, or the remainder of
/// the limit of the container around this process.
fn available_bytes() -> u64 {
    let machine = meminfo_bytes("MemAvailable").unwrap_or(0);
    cgroup::enclosing().map_or(machine, |around| machine.min(around.available_bytes))
}

/// Bytes of RAM, or the limit of the container around this process.
fn total_bytes() -> u64 {
    let machine = meminfo_bytes("MemTotal").unwrap_or(u64::MAX);
    cgroup::enclosing().map_or(machine, |around| machine.min(around.limit_bytes))
}

/// A memory limit in force. It ends when this guard is dropped.
#[derive(Debug)]
pub enum Limit {
    /// No limit is needed, because the data is larger than RAM.
    Nothing,
    /// A memory cgroup that the trial's process joins.
    Cgroup(CgroupGuard),
    /// Memory that is locked or touched, so that less is left to every process of the machine.
    Ballast(Ballast),
}

impl Limit {
    /// Puts a memory limit in force until the guard is dropped.
    ///
    /// # Errors
    /// As [`choose`], when the machine has changed since the choice.
    pub fn enforce(limit: MemoryLimit) -> Result<Self> {
        Ok(match limit.method {
            MemoryMethod::None | MemoryMethod::LargeFile => Self::Nothing,
            MemoryMethod::CgroupV1 | MemoryMethod::CgroupV2 => Self::Cgroup(CgroupGuard::create(limit.bytes)?),
            MemoryMethod::Ballast => Self::Ballast(Ballast::leaving(limit.bytes)?),
        })
    }

    /// Makes sure that the limit still holds; the figures of a trial that ran after its limit ended are invalid.
    ///
    /// # Errors
    /// `NoSpace` when the kernel has killed the process holding the ballast, because memory ran out.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Ballast(ballast) if !ballast.is_held() => {
                let message = "memory ran out and the kernel took the ballast: the trial ran without its limit; leave more (--memory)";
                Err(LabError::new(LabErrorKind::NoSpace, message))
            }
            Self::Nothing | Self::Cgroup(_) | Self::Ballast(_) => Ok(()),
        }
    }

    /// Puts a process under the limit. The process and its later children stay there.
    ///
    /// # Errors
    /// When the kernel refuses, or the process is gone.
    pub fn add_pid(&self, pid: u32) -> Result<()> {
        match self {
            Self::Cgroup(guard) => guard.add_pid(pid),
            Self::Nothing | Self::Ballast(_) => Ok(()),
        }
    }

    /// The cgroup whose counters a trial reads; `None` for other means of limiting memory.
    pub fn cgroup(&self) -> Option<&CgroupGuard> {
        match self {
            Self::Cgroup(guard) => Some(guard),
            Self::Nothing | Self::Ballast(_) => None,
        }
    }
}

/// Bytes of memory that this process may lock; `u64::MAX` without a bound.
pub fn lock_bytes_max() -> u64 {
    Ballast::lock_bytes_max()
}

#[cfg(test)]
mod tests;
