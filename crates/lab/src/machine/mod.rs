//! Describes the machine and prepares it for a run: enforces memory limits, empties page caches, makes verifiable data
//! and RAM-backed devices, and reports how the machine itself distorts figures. Runs no experiment.
//!
//! | module | purpose |
//! |---|---|
//! | [`doctor`] | checks each ability that the lab needs and names the remedy for a missing one |
//! | [`survey`], [`calibrate`] | the machine's description, its sources of bias, the cost of its primitives |
//! | [`content`] | bytes that any reader can verify, and the header that marks a file or device as the lab's own |
//! | [`data`] | files full of that content: made at device speed and reused; a file without the marker is never touched |
//! | [`faulty`] | a file system whose reads fail on demand |
//! | [`pool`] | the same content as a database of the engine |
//! | [`ram`], [`device`] | block devices: of RAM, made and removed by the lab, and real ones, read only |
//! | `own_file` | a file of the user's, read only |
//! | `write_check` | whether a target may be overwritten |
//! | `device_rate` | the rate at which a device gives random reads |
//! | [`workdir`] | the lab's one folder: locked, tidied, left as it was found |
//! | [`scratch`] | folders for the files that a trial makes next to the data files |
//! | [`cache`] | cold and warm page caches, made and checked |
//! | [`memory`] | less memory than data: cgroup, locked ballast, or a file larger than RAM |
//! | `footprint` | the memory of a process by the kernel's counts, and the page cache of files |
//! | [`leftovers`] | stale resources of a killed lab, recorded so that the next start removes them |
//! | [`system`] | small readers of /proc and /sys that the other modules share |
//!
//! Kept true by all modules: a file, folder or device is written, resized or removed only when it carries the lab's
//! marker, and each resource is removed when its guard is dropped, or else by the next start.

pub mod cache;
pub mod calibrate;
pub mod content;
pub mod data;
pub mod device;
pub(crate) mod device_rate;
pub mod doctor;
pub mod faulty;
pub(crate) mod footprint;
pub mod leftovers;
pub mod memory;
pub(crate) mod own_file;
pub mod pool;
pub mod ram;
pub mod read_ahead;
pub mod scratch;
pub mod survey;
pub mod system;
pub mod workdir;
pub(crate) mod write_check;

/// Removes the stale resources of this user's killed labs: cgroups, RAM-backed devices, a changed read-ahead, mounts.
/// To be called at every start of the lab. Returns a sentence for each removal and for each failure.
pub fn remove_leftovers() -> Vec<String> {
    let messages = [
        memory::remove_leftovers(),
        ram::remove_leftovers(),
        read_ahead::restore_leftovers(),
        faulty::remove_leftovers(),
    ];
    messages.into_iter().flat_map(|messages| messages.unwrap_or_else(|error| vec![error.to_string()])).collect()
}

#[cfg(test)]
mod tests;
