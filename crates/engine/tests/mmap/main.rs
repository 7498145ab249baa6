//! The stores over mapped files: one body of tests over every protocol.
//!
//! A map cannot be simulated, so power cuts are imitated: a copy of the file as of its last sync and a copy of its
//! later state in the page cache are mixed sector by sector.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

mod crashes;
mod faults;
mod model;
mod sharing;

use std::path::Path;

use nofault::error::Result;
use nofault::mmap::{Protocol, Settings, Store, WriteBack};
use nofault_sim::content::Rows;

const PROTOCOLS: [Protocol; 6] = [
    Protocol::OsCow,
    Protocol::UserCow(WriteBack::Map),
    Protocol::UserCow(WriteBack::Call),
    Protocol::MappedLog,
    Protocol::Shadow(WriteBack::Map),
    Protocol::Shadow(WriteBack::Call),
];

/// Settings with small pages, little log and few private pages, so that rare events happen often.
fn tiny(protocol: Protocol) -> Settings {
    Settings {
        page_bytes: 512,
        map_bytes: 4 << 20,
        log_bytes: 256 << 10,
        private_bytes_max: 64 << 10,
        background_thread: false,
        ..Settings::new(protocol)
    }
}

fn create(path: &Path, settings: &Settings) -> Result<Store> {
    // SAFETY: no other code knows the folder.
    unsafe { Store::create(path, settings) }
}

fn open(path: &Path, settings: &Settings) -> Result<Store> {
    // SAFETY: as above; tests that damage the file do so on purpose, to test the effect.
    unsafe { Store::open(path, settings) }
}

fn content(store: &Store) -> Rows {
    store.snapshot().range(b"", None).map(Result::unwrap).collect()
}

/// Creates a temporary folder on the file system of the sources, which is not tmpfs.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
