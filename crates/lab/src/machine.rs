//! Knows the machine and prepares it: what it is and how it distorts figures, memory that is really limited, caches
//! that are really cold, data that can be verified, devices of RAM. Measures no experiment.
//!
//! | module | what it is for |
//! |---|---|
//! | [`doctor`] | what this machine allows, and what to do where it does not |
//! | [`survey`], [`calibrate`] | what the machine is, how it distorts figures, what its primitives cost |
//! | [`content`] | bytes that any reader can verify, and the header that marks a file or device as the lab's own |
//! | [`data`] | files full of that content: made at device speed, reused, never somebody else's |
//! | [`faulty`] | a file system whose reads fail on demand |
//! | [`pool`] | the same content as a database of the engine |
//! | [`ram`], [`device`] | block devices: of RAM, made and removed by the lab, and real ones, read only |
//! | [`workdir`] | the lab's one folder: locked, tidied, left as it was found |
//! | [`scratch`] | folders for what a cell makes beside the data files |
//! | [`cache`] | cold and warm page caches, made and checked |
//! | [`memory`] | less memory than data: cgroup, locked ballast, or a file larger than RAM |
//! | [`leftovers`] | what a killed lab left behind, for the next start to remove |
//! | [`system`] | small readers of /proc and /sys that the others share |
//!
//! Kept true by all of it: nothing is written, resized or removed unless it carries the lab's marker, and whatever was
//! made is removed when its guard is dropped, or else by the next start.

pub mod cache;
pub mod calibrate;
pub mod content;
pub mod data;
pub mod device;
pub mod doctor;
pub mod faulty;
pub mod leftovers;
pub mod memory;
pub mod pool;
pub mod ram;
pub mod read_ahead;
pub mod scratch;
pub mod survey;
pub mod system;
pub mod workdir;

/// Removes what killed labs of this user left behind: cgroups, devices of RAM, a changed read-ahead, mounts. To be called at
/// every start; answers what was done and what could not be, in words.
pub fn remove_leftovers() -> Vec<String> {
    let told = [
        memory::remove_leftovers(),
        ram::remove_leftovers(),
        read_ahead::restore_leftovers(),
        faulty::remove_leftovers(),
    ];
    told.into_iter().flat_map(|told| told.unwrap_or_else(|error| vec![error.to_string()])).collect()
}

#[cfg(test)]
mod tests;
