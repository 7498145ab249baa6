//! Databases on real files, used by processes that are killed, or that come second.
//!
//! A child is this same program, told by an environment variable to run one ignored test.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

mod forked;
mod kept;
mod kill;
mod limits;
mod many;
mod memory;
#[path = "../common/read_by_another.rs"]
mod read_by_another;
mod read_only;
mod readers;
mod resident;
mod second_process;

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Environment variable with the folder of the child's database.
const FOLDER: &str = "NOFAULT_CHILD_FOLDER";

/// Starts the ignored test `name` in a process of its own, with these environment variables.
fn child(name: &str, folder: &Path, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Creates a temporary folder on the file system of the sources, which is not tmpfs.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
