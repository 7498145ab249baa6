//! How a database grows while it is updated: once without readers, once with one that stays from before the first update to
//! after the last. "Readers are free" says that this makes no difference.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nofault::blocking::Db;
use nofault::settings::Settings;
use nofault::{Batch, Durability};

use super::{folder_of, number, run_fixed};
use crate::contender::unknown;
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::scratch::Scratch;
use crate::measure::{Work, Worker};
use crate::record::{CellSpec, Outcome};

/// The stores that were built in.
pub(super) const BUILT: &[&str] = &["engine"];
/// Those that were not, and what builds them.
pub(super) const NOT_BUILT: &[(&str, &str)] = &[];

/// Updates in one durable commit, the same for all.
const COMMIT_UPDATES: u64 = 500;
const VALUE_BYTES: usize = 100;

/// Measures one store. Figures: `used_before_bytes`, `used_after_bytes`, `grown_bytes`, `memory_bytes` (old versions held in
/// memory; part of the growth), `file_bytes`.
pub(super) fn execute(spec: &CellSpec, context: &mut Context<'_>) -> Result<Outcome> {
    if spec.contender != "engine" {
        return Err(unknown(spec));
    }
    let (updates, keys) = (number(spec, "updates")?, number(spec, "keys")?);
    let held = spec.params.extra.get("reader").is_some_and(|reader| reader == "held");
    if keys == 0 {
        return Err(LabError::new(LabErrorKind::Usage, format!("{}: no keys", spec.key())));
    }
    let scratch = Scratch::make(&folder_of(spec), "claims")?;
    let folder = scratch.path().join("engine");
    let seed = spec.seed;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let settings = Settings { cache_bytes: 64 << 20, ..Settings::default() };
        let db = Db::create(&folder, &settings)?;
        let table = db.create_table("main")?;
        table.bulk_load((0..keys).map(|key| (key.to_be_bytes(), value(key, 0))))?;
        db.checkpoint()?;
        let used = || {
            let stats = db.stats();
            (stats.pool.blocks_used * db.page_bytes() as u64, stats.pool.snapshot_bytes)
        };
        let (before, _) = used();
        let snapshot = held.then(|| db.snapshot());
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut version = 0;
        worker.start();
        while version < updates && worker.running() {
            let mut batch = Batch::new();
            let count = COMMIT_UPDATES.min(updates - version);
            for _ in 0..count {
                version += 1;
                let key = chance.u64(0..keys);
                batch.put(&table, key.to_be_bytes(), value(key, version));
            }
            db.write(batch, Durability::Sync)?;
            worker.done(count, count * (8 + VALUE_BYTES as u64));
        }
        // Twice: blocks freed by the first are known to be free after the second.
        db.checkpoint()?;
        db.checkpoint()?;
        let (after, memory) = used();
        if let Some(snapshot) = &snapshot {
            for key in 0..keys {
                worker.verified(snapshot.get(&table, key.to_be_bytes())?.as_ref() == Some(&value(key, 0)));
            }
        } else {
            for key in 0..keys {
                let now = table.get(key.to_be_bytes())?;
                worker.verified(now.is_some_and(|now| is_value_of(key, &now)));
            }
        }
        worker.figure("used_before_bytes", before as f64);
        worker.figure("used_after_bytes", (after + memory) as f64);
        worker.figure("grown_bytes", (after + memory).saturating_sub(before) as f64);
        worker.figure("memory_bytes", memory as f64);
        worker.figure("file_bytes", file_bytes(&folder) as f64);
        Ok(())
    });
    let outcome = run_fixed(work, context);
    scratch.remove()?;
    outcome
}

/// A key's value in one of its versions: every byte follows from both.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mut value = version.to_le_bytes().to_vec();
    let mut chance = fastrand::Rng::with_seed(key ^ version.rotate_left(32));
    value.extend(std::iter::repeat_with(|| chance.u8(..)).take(VALUE_BYTES - 8));
    value
}

/// Whether these bytes are the key's value in any version.
fn is_value_of(key: u64, bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|version| value(key, u64::from_le_bytes(*version)) == bytes)
}

/// Bytes that the files of a folder take on the disk.
fn file_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}
