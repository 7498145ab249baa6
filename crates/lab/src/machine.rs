//! Knows the machine and prepares it: what it is and how it distorts figures, memory that is really limited, caches that
//! are really cold, data that can be verified, devices of RAM. Measures no experiment.
//!
//! | module | what it is for |
//! |---|---|
//! | [`survey`], [`calibrate`] | what the machine is, how it distorts figures, what its primitives cost |
//! | [`content`] | bytes that any reader can verify, and the header that marks a file or device as the lab's own |
//! | [`data`] | files full of that content: made at device speed, reused, never somebody else's |
//! | [`ram`], [`device`] | block devices: of RAM, made and removed by the lab, and real ones, read only |
//! | [`workdir`] | the lab's one folder: locked, tidied, left as it was found |
//! | [`cache`] | cold and warm page caches, made and checked |
//! | [`memory`] | less memory than data: cgroup, locked ballast, or a file larger than RAM |
//! | [`leftovers`] | what a killed lab left behind, for the next start to remove |
//! | [`system`] | small readers of /proc and /sys that the others share |
//!
//! Kept true by all of it: nothing is written, resized or removed unless it carries the lab's marker, and whatever was made
//! is removed when its guard is dropped, or else by the next start.

pub mod cache;
pub mod calibrate;
pub mod content;
pub mod data;
pub mod device;
pub mod leftovers;
pub mod memory;
pub mod ram;
pub mod survey;
pub mod system;
pub mod workdir;
