//! Measures the growth of a database under updates: once without readers, and once with a reader that stays from before
//! the first update until after the last. The claim "readers are free" says that this makes no difference. Growth
//! counts the file, and for the engine, which keeps some old versions in memory, the memory as well.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nofault::mmap;
use nofault::settings::Settings;

use super::{folder_of, number, run_fixed};
use crate::entries::{Data, Key};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::scratch::Scratch;
use crate::measure::{Work, Worker};
use crate::methods;
use crate::read_loops::unknown;
use crate::record::{Outcome, TrialSpec};
use crate::stores::{self, Engine, Room, Start, Store};

/// The stores whose versions share pages, so that a reader keeps old pages from being freed; some may be missing from
/// this build. `shadow` has LMDB's design over the engine's tree, all in one file, and is always compiled in.
pub(super) const STORES: [&str; 4] = [methods::NOFAULT.id, methods::SHADOW.id, methods::LMDB.id, methods::REDB.id];

/// Number of updates in one durable commit, the same for all stores.
const COMMIT_UPDATES: u64 = 500;
const VALUE_BYTES: usize = 100;
/// Cache of each store in bytes: more than any store needs for so little data.
const CACHE_BYTES: u64 = 64 << 20;

/// Returns why a store cannot be measured in this build; `None` where it can.
pub(super) fn not_built(id: &str) -> Option<String> {
    stores::kind_of(id).filter(|kind| !kind.is_built()).map(stores::Kind::not_built)
}

/// Measures the growth of one store under updates. Figures: `used_before_bytes`, `used_after_bytes`, `grown_bytes`, and
/// `memory_bytes` (old versions in memory, which are part of the growth).
pub(super) fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    if !STORES.contains(&spec.method.as_str()) || not_built(&spec.method).is_some() {
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
    let method = spec.method.clone();
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let grown = match method.as_str() {
            id if id == methods::NOFAULT.id => engine(worker, &folder, data, updates, held)?,
            id if id == methods::SHADOW.id => shadow(worker, &folder, data, updates, held)?,
            rival_id => rival(worker, rival_id, &folder, data, updates, held)?,
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

/// Bytes in use before and after the updates, and bytes of old versions in memory.
struct Growth {
    before_bytes: u64,
    after_bytes: u64,
    memory_bytes: u64,
}

fn engine(worker: &mut Worker<'_>, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Growth> {
    let engine = Engine::load(folder, data, &Settings { cache_bytes: CACHE_BYTES as usize, ..Settings::default() })?;
    engine.settle()?;
    // Counts blocks in use, because the file itself grows in large steps.
    let before_bytes = engine.used_bytes();
    let snapshot = held.then(|| engine.db.snapshot());
    update(worker, data, updates, |entries| engine.write(entries, true))?;
    // Twice, because blocks freed by the first checkpoint can be used only after the second.
    engine.settle()?;
    engine.settle()?;
    let grown =
        Growth { before_bytes, after_bytes: engine.used_bytes(), memory_bytes: engine.db.stats().pool.snapshot_bytes };
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

fn shadow(worker: &mut Worker<'_>, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Growth> {
    // The size is address space, as for LMDB: with a reader every update may cost a copy of each level of the tree.
    let map_bytes = (data.user_bytes() * 8 + (4 << 30)).next_multiple_of(1 << 20);
    let settings = mmap::Settings { map_bytes, ..mmap::Settings::new(mmap::Protocol::Shadow(mmap::WriteBack::Call)) };
    // SAFETY: the folder is the trial's own, so no other process opens its files.
    let store = unsafe { mmap::Store::create(folder, &settings) }?;
    let write = |entries: &[(Key, Vec<u8>)]| -> Result<()> {
        let mut batch = mmap::Batch::new();
        for (key, value) in entries {
            batch.put(key.to_vec(), value.clone());
        }
        Ok(store.write(&batch)?)
    };
    let all: Vec<_> = data.entries().collect();
    all.chunks(COMMIT_UPDATES as usize).try_for_each(&write)?;
    let before_bytes = store.stats().file_bytes;
    let snapshot = held.then(|| store.snapshot());
    update(worker, data, updates, write)?;
    let grown = Growth { before_bytes, after_bytes: store.stats().file_bytes, memory_bytes: 0 };
    for number in 0..data.count {
        let key = data.key(number);
        worker.verified(match &snapshot {
            Some(snapshot) => is_first(data, number, snapshot.get(&key)?.as_deref()),
            None => store.get(&key)?.is_some_and(|value| data.is_right(number, &value)),
        });
    }
    Ok(grown)
}

fn rival(worker: &mut Worker<'_>, id: &str, folder: &Path, data: Data, updates: u64, held: bool) -> Result<Growth> {
    // The size is address space for LMDB: every update may cost a copy of each level of the tree.
    let data_bytes = data.user_bytes() * 8 + (4 << 30);
    let room = Room {
        cache_bytes: CACHE_BYTES,
        write_bytes: CACHE_BYTES / 8,
        data_bytes,
        threads: 4,
        value_bytes: VALUE_BYTES as u32,
    };
    let opened = stores::open(id, folder, room, Start::New);
    let store = opened.unwrap_or_else(|| Err(LabError::new(LabErrorKind::Unsupported, stores::not_built("peers"))))?;
    store.fill(&mut data.entries())?;
    store.settle()?;
    let before_bytes = file_bytes(folder);
    let mut reader = if held { Some(store.reader()?) } else { None };
    update(worker, data, updates, |entries| store.write(entries, true))?;
    store.settle()?;
    let grown = Growth { before_bytes, after_bytes: file_bytes(folder), memory_bytes: 0 };
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

fn update(
    worker: &mut Worker<'_>,
    data: Data,
    updates: u64,
    write: impl Fn(&[(Key, Vec<u8>)]) -> Result<()>,
) -> Result<()> {
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
        write(&entries)?;
        worker.done(count, count * data.entry_bytes());
    }
    Ok(())
}

/// Whether a value is the value from before the first update.
fn is_first(data: Data, number: u64, value: Option<&[u8]>) -> bool {
    let mut first = Vec::new();
    data.fill(number, 0, &mut first);
    value == Some(&first)
}

/// Returns the bytes that the files of a folder occupy on the disk.
fn file_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}
