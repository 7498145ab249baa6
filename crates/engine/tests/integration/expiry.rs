//! Entries that expire: what reads show of them against a model, their removal, and the format.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

mod loads;
mod model;
mod passing;
mod removal;
mod surroundings;
mod threads;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nofault::clock::ManualClock;
use nofault::settings::Settings;
use nofault_io::disk::Directory;
use nofault_sim::{SimOptions, SimWorld};

/// Returns the time `ms` milliseconds after the beginning of each test.
fn time(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_000_000_u64.strict_add_signed(ms))
}

/// A clock at the beginning of a test, and the settings of a small database using it, without threads.
fn tiny() -> (ManualClock, Settings) {
    let clock = ManualClock::at(time(0));
    let settings = Settings {
        page_bytes: 512,
        cache_bytes: 656 << 10,
        log_bytes: 1 << 20,
        background_threads: false,
        seed: Some(1),
        clock: clock.clone().into(),
        ..Settings::with_small_pages()
    };
    (clock, settings)
}

fn disk(seed: u64) -> Arc<dyn Directory> {
    SimWorld::new(seed, SimOptions::calm()).directory()
}
