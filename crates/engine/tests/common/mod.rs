//! Settings and helpers that several test programs share.

use nofault::settings::Settings;

/// Settings with every size minimal and no threads, but with the choices of an ordinary database: without a seed.
pub(crate) fn tiny() -> Settings {
    Settings { seed: None, ..Settings::tiny(0) }
}
