//! Settings and helpers that several test programs share.

use nofault::settings::Settings;

/// Settings for reproducible tests: every size minimal, and no threads, so that the same calls lead to the same steps.
pub(crate) fn tiny() -> Settings {
    Settings {
        page_bytes: 512,
        cache_bytes: 656 << 10,
        log_bytes: 1 << 20,
        background_threads: false,
        ..Settings::with_small_pages()
    }
}
