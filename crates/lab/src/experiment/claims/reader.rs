//! How a database grows while it is updated: once without readers, once with one that stays from before the first update to
//! after the last. "Readers are free" says that this makes no difference. Growth counts the file, and for the engine, which keeps
//! some old versions in memory, the memory as well.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nofault::settings::Settings;

use super::{folder_of, number, run_fixed};
use crate::contender::unknown;
use crate::entries::{Data, Key};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::scratch::Scratch;
use crate::measure::{Work, Worker};
use crate::record::{CellSpec, Outcome};
use crate::stores::{self, ENGINE, Engine, Room, Start, Store};

/// The stores that share pages between versions, so that a reader holds some back; built or not.
pub(super) const STORES: [&str; 3] = [ENGINE, "lmdb", "redb"];

/// Updates in one durable commit, the same for all.
const COMMIT_UPDATES: u64 = 500;
const VALUE_BYTES: usize = 100;
/// More than all stores need for so little data.
const CACHE_BYTES: u64 = 64 << 20;

/// Why a store cannot be measured in this build; `None` where it can.
pub(super) fn not_built(id: &str) -> Option<String> {
    stores::kind_of(id).filter(|kind| !kind.is_built()).map(stores::Kind::not_built)
}

/// Measures one store. Figures: `used_before_bytes`, `used_after_bytes`, `grown_bytes`, `memory_bytes` (old versions in memory;
/// part of the growth).
pub(super) fn execute(spec: &CellSpec, context: &mut Context<'_>) -> Result<Outcome> {
    if !STORES.contains(&spec.contender.as_str()) || not_built(&spec.contender).is_some() {
        return Err(unknown(spec));
    }
    let (updates, keys) = (number(spec, "updates")?, number(spec, "keys")?);
    let held = spec.params.extra.get("reader").is_some_and(|reader| reader == "held");
    if keys == 0 {
        return Err(LabError::new(LabErrorKind::Usage, format!("{}: no keys", spec.key())));
    }
    let scratch = Scratch::make(&folder_of(spec), "claims")?;
    let folder = scratch.path().join("data");
    let data = Data { count: keys, value_bytes: VALUE_BYTES, seed: spec.seed };
    let contender = spec.contender.clone();
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let grown = if contender == ENGINE {
            engine(worker, &folder, data, updates, held)?
        } else {
            rival(worker, &contender, &folder, data, updates, held)?
        };
        let after = grown.after_bytes + grown.memory_bytes;
        worker.figure("used_before_bytes", grown.before_bytes as f64);
        worker.figure("used_after_bytes", after as f64);
        worker.figure("grown_bytes", after.saturating_sub(grown.before_bytes) as f64);
        worker.figure("memory_bytes", grown.memory_bytes as f64);
        Ok(())
    });
    let outcome = run_fixed(work, context);
    scratch.remove()?;
    outcome
}

/// What a store took before and after.
struct Grown {
    before_bytes: u64,
    after_bytes: u64,
    memory_bytes: u64,
}

fn engine(worker: &mut Worker<'_>, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Grown> {
    let engine = Engine::load(folder, data, &Settings { cache_bytes: CACHE_BYTES as usize, ..Settings::default() })?;
    engine.settle()?;
    // Blocks in use: the file itself is made in large steps.
    let before_bytes = engine.used_bytes();
    let snapshot = held.then(|| engine.db.snapshot());
    update(worker, &engine, data, updates)?;
    // Twice: blocks freed by the first are known to be free after the second.
    engine.settle()?;
    engine.settle()?;
    let grown =
        Grown { before_bytes, after_bytes: engine.used_bytes(), memory_bytes: engine.db.stats().pool.snapshot_bytes };
    let table = &engine.table;
    for number in 0..data.count {
        let key = data.key(number);
        match &snapshot {
            Some(snapshot) => worker.verified(is_first(data, number, snapshot.get(table, key)?.as_deref())),
            None => worker.verified(table.get(key)?.is_some_and(|value| data.is_right(number, &value))),
        }
    }
    Ok(grown)
}

fn rival(worker: &mut Worker<'_>, id: &str, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Grown> {
    // Address space for LMDB: every update may cost a copy of each level of the tree.
    let data_bytes = data.user_bytes() * 8 + (4 << 30);
    let room = Room { cache_bytes: CACHE_BYTES, write_bytes: CACHE_BYTES / 8, data_bytes, threads: 4 };
    let opened = stores::open(id, folder, room, Start::New);
    let store = opened.unwrap_or_else(|| Err(LabError::new(LabErrorKind::Unsupported, stores::NOT_BUILT)))?;
    store.fill(&mut data.entries())?;
    store.settle()?;
    let before_bytes = file_bytes(folder);
    let mut reader = if held { Some(store.reader()?) } else { None };
    update(worker, &*store, data, updates)?;
    store.settle()?;
    let grown = Grown { before_bytes, after_bytes: file_bytes(folder), memory_bytes: 0 };
    let mut now = if held { None } else { Some(store.reader()?) };
    for number in 0..data.count {
        let key = data.key(number);
        let mut right = false;
        if let Some(reader) = &mut reader {
            reader.get(&key, &mut |value| {
                right = is_first(data, number, value);
                Ok(())
            })?;
        } else if let Some(now) = &mut now {
            now.get(&key, &mut |value| {
                right = value.is_some_and(|value| data.is_right(number, value));
                Ok(())
            })?;
        }
        worker.verified(right);
    }
    Ok(grown)
}

fn update(worker: &mut Worker<'_>, store: &dyn Store, data: Data, updates: u64) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(data.seed);
    let mut version = 0;
    worker.start();
    while version < updates && worker.running() {
        let count = COMMIT_UPDATES.min(updates - version);
        let mut entry = || -> (Key, Vec<u8>) {
            version += 1;
            data.changed(chance.u64(0..data.count), version)
        };
        let entries: Vec<_> = (0..count).map(|_| entry()).collect();
        store.write(&entries, true)?;
        worker.done(count, count * data.entry_bytes());
    }
    Ok(())
}

/// Whether this is the value from before the first update.
fn is_first(data: Data, number: u64, value: Option<&[u8]>) -> bool {
    let mut first = Vec::new();
    data.fill(number, 0, &mut first);
    value == Some(&first)
}

/// Bytes that the files of a folder take on the disk.
fn file_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}
