//! The tests of shipping, in one program: linked once, and no CPU waits for the last test of a file.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/shipped.rs"]
mod shipped;

mod around;
mod folder;
mod increments;
mod readers;
mod replica;
mod ship;
