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

/// Starts the ignored test `name` in a dedicated process, with these environment variables.
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

/// Runs the ignored test `name` in a dedicated process, and checks that it has passed.
fn passes_in_a_child(name: &str, folder: &Path) {
    let ended = child(name, folder, &[]).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && text.contains("1 passed"), "{text}");
}

/// Creates a temporary folder on the file system of the sources, which is not tmpfs.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
