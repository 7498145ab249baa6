//! Settings and helpers that several test programs share.

use nofault::settings::Settings;

/// As little of everything as there can be, and no threads: the same steps do the same things.
pub(crate) fn tiny() -> Settings {
    Settings {
        page_bytes: 512,
        cache_bytes: 656 << 10,
        log_bytes: 1 << 20,
        background_threads: false,
        ..Settings::default()
    }
}
