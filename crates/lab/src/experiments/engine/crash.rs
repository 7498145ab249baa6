//! Makes the files that a killed process of the engine leaves.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use nofault::settings::Settings;

use super::updates::rewrite;
use crate::entries::Data;
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::shown;
use crate::stores::Engine;

/// Number of keys changed over and over to fill the log. They lie in so few pages that the pages' obsolete
/// blocks never make a checkpoint due.
const HOT_KEYS: u64 = 10_000;
/// Number of updates between two checks of the log's size.
const ROUND: u64 = 10_000;

/// Makes a database in `folder` as a killed process leaves it, with at least `wanted_bytes` of log that no checkpoint
/// covers. Returns the bytes of that log.
pub(super) fn crashed(
    folder: &Path,
    settings: &Settings,
    data: Data,
    wanted_bytes: u64,
    cancel: &AtomicBool,
) -> Result<u64> {
    let open = folder.with_extension("open");
    let removed = std::fs::remove_dir_all(&open);
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(LabError::system(shown(&open), &error));
    }
    let engine = Engine::load(&open, data, settings)?;
    let hot = Data { count: data.count.min(HOT_KEYS), ..data };
    let mut log_bytes = 0;
    while log_bytes < wanted_bytes {
        rewrite(&engine, hot, ROUND, data.seed, cancel)?;
        engine.db.sync()?;
        let live_bytes = engine.db.stats().log.live_bytes;
        if live_bytes < log_bytes {
            let why = "a checkpoint was made before the log was full: the log would never fill up";
            return Err(LabError::new(LabErrorKind::System, why));
        }
        log_bytes = live_bytes;
    }
    // A copy of the files while they are open equals the files that a killed process leaves.
    copy_files(&open, folder)?;
    drop(engine);
    std::fs::remove_dir_all(&open).map_err(|error| LabError::system(shown(&open), &error))?;
    Ok(log_bytes)
}

/// Copies the files of a database, which must not be written during the copying.
pub(super) fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let copy = || -> std::io::Result<()> {
        std::fs::create_dir(to)?;
        for name in ["data", "log"] {
            std::fs::copy(from.join(name), to.join(name))?;
            std::fs::File::open(to.join(name))?.sync_all()?;
        }
        Ok(())
    };
    copy().map_err(|error| LabError::system(format_args!("copy {}", shown(&from)), &error))
}
