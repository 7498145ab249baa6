//! Makes "larger than memory" true, by the best means that the rights allow: a memory cgroup, locked ballast, or a file
//! larger than RAM. Page cache counts in all three.
//!
//! [`choose`] decides and explains; [`Plan::enforce`] does it and gives a guard. Each cell runs in a child process that
//! [`Limit::add_pid`] puts under the limit before it works.

mod ballast;
mod cgroup;

pub use ballast::Ballast;
pub use cgroup::{CgroupGuard, Usage, remove_leftovers};

use super::system::{human_bytes, meminfo_bytes};
use crate::config::MemoryChoice;
use crate::error::{LabError, LabErrorKind, Result};
use crate::record::{MemoryLimit, MemoryMethod};

/// Less than this and a process has no room for its own stacks and buffers.
const LIMIT_BYTES_MIN: u64 = 16 << 20;

/// How memory will be limited, and why not otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// For the records.
    pub limit: MemoryLimit,
    /// Why better means are not possible here, in words; what a reader must know about the chosen one.
    pub notes: Vec<String>,
}

/// Picks the best means to leave `wanted_bytes` of memory to cells that read `data_bytes`. Tries a cgroup for real (and
/// removes it again), looks only for the others.
///
/// # Errors
/// `Usage` when the data would fit in the memory or the memory is more than the machine has; `NoPermission` when no
/// means is possible, with the reason for each and what would make it possible.
pub fn choose(choice: MemoryChoice, wanted_bytes: u64, data_bytes: u64) -> Result<Plan> {
    let invalid = |message: String| Err(LabError::new(LabErrorKind::Usage, message));
    if wanted_bytes < LIMIT_BYTES_MIN {
        let least = human_bytes(LIMIT_BYTES_MIN);
        return invalid(format!(
            "a memory limit of {} is too small to run in: ask for {least}",
            human_bytes(wanted_bytes)
        ));
    }
    if data_bytes <= wanted_bytes {
        return invalid(format!(
            "{} of data fit in {} of memory, so nothing would be evicted: ask for more data or less memory",
            human_bytes(data_bytes),
            human_bytes(wanted_bytes)
        ));
    }
    let means = match choice {
        MemoryChoice::Auto => &[MemoryChoice::Cgroup, MemoryChoice::Ballast, MemoryChoice::LargeFile][..],
        MemoryChoice::Cgroup => &[MemoryChoice::Cgroup],
        MemoryChoice::Ballast => &[MemoryChoice::Ballast],
        MemoryChoice::LargeFile => &[MemoryChoice::LargeFile],
    };
    let mut notes = Vec::new();
    for mean in means {
        let (name, answer) = match mean {
            MemoryChoice::Auto | MemoryChoice::Cgroup => ("a memory cgroup", try_cgroup(wanted_bytes)),
            MemoryChoice::Ballast => ("locked ballast", try_ballast(wanted_bytes)),
            MemoryChoice::LargeFile => ("a file larger than RAM", try_large_file(data_bytes)),
        };
        match answer {
            Ok(limit) => return Ok(Plan { limit, notes }),
            Err(error) => notes.push(format!("{name} is not possible: {error}")),
        }
    }
    let message =
        format!("memory cannot be limited here: {}; run as root, or with data larger than RAM", notes.join("; "));
    Err(LabError::new(LabErrorKind::NoPermission, message))
}

fn try_cgroup(bytes: u64) -> Result<MemoryLimit> {
    check_available(bytes)?;
    let guard = CgroupGuard::create(bytes)?;
    Ok(guard.limit())
}

fn try_ballast(bytes: u64) -> Result<MemoryLimit> {
    let available = check_available(bytes)?;
    Ballast::check_rights(available - bytes)?;
    Ok(MemoryLimit { method: MemoryMethod::Ballast, bytes })
}

fn try_large_file(data_bytes: u64) -> Result<MemoryLimit> {
    let total = meminfo_bytes("MemTotal").unwrap_or(u64::MAX);
    // What the page cache can hold is what is available, but that changes; RAM does not.
    if data_bytes > total {
        return Ok(MemoryLimit { method: MemoryMethod::LargeFile, bytes: total });
    }
    let message = format!(
        "{} of data are not more than the {} of RAM; ask for more data",
        human_bytes(data_bytes),
        human_bytes(total)
    );
    Err(LabError::new(LabErrorKind::Usage, message))
}

/// The memory available now, which must be more than what is to be left.
fn check_available(bytes: u64) -> Result<u64> {
    let available = meminfo_bytes("MemAvailable").unwrap_or(0);
    if bytes < available {
        return Ok(available);
    }
    let message = format!(
        "only {} of memory are available, a limit of {} would limit nothing; ask for less memory",
        human_bytes(available),
        human_bytes(bytes)
    );
    Err(LabError::new(LabErrorKind::Usage, message))
}

impl Plan {
    /// No limit: for cells that need none.
    pub fn none() -> Self {
        Self { limit: MemoryLimit::default(), notes: Vec::new() }
    }

    /// Puts the limit in place until the guard is dropped.
    ///
    /// # Errors
    /// As [`choose`], when things have changed since.
    pub fn enforce(&self) -> Result<Limit> {
        Ok(match self.limit.method {
            MemoryMethod::None | MemoryMethod::LargeFile => Limit::Nothing,
            MemoryMethod::CgroupV1 | MemoryMethod::CgroupV2 => Limit::Cgroup(CgroupGuard::create(self.limit.bytes)?),
            MemoryMethod::Ballast => Limit::Ballast(Ballast::leaving(self.limit.bytes)?),
        })
    }
}

/// A limit that is in place. Gone when dropped.
#[derive(Debug)]
pub enum Limit {
    /// Nothing had to be done.
    Nothing,
    /// A group that the working process joins.
    Cgroup(CgroupGuard),
    /// Locked memory; holds for everyone.
    Ballast(Ballast),
}

impl Limit {
    /// Puts a process under the limit. It and what it starts afterwards stay there.
    ///
    /// # Errors
    /// When the kernel refuses, or the process is gone.
    pub fn add_pid(&self, pid: u32) -> Result<()> {
        match self {
            Self::Cgroup(guard) => guard.add_pid(pid),
            Self::Nothing | Self::Ballast(_) => Ok(()),
        }
    }

    /// The cgroup, where the limit is one: for counters.
    pub fn cgroup(&self) -> Option<&CgroupGuard> {
        match self {
            Self::Cgroup(guard) => Some(guard),
            Self::Nothing | Self::Ballast(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
