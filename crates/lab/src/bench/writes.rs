//! Works that write: bulk load, batches, opening after a crash, and how files grow.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use nofault::settings::Settings;

use super::data::Data;
use super::reads::{peers_of, rewrite};
use super::row::{ENGINE, Limit, Row};
use super::store::{Engine, PEERS, peer};
use super::{Bench, cpu_seconds, device, not_built, values};
use crate::error::{LabError, LabErrorKind, Result};
use crate::format::{self, Unit};

/// Entries of a batch.
const BATCH: u64 = 1000;
/// Keys that are changed to fill the log. They lie in so few pages that the blocks left behind never make a checkpoint
/// due.
const HOT_KEYS: u64 = 10_000;

/// The work `bulk-load` of [`super::WORKS`].
pub(super) fn bulk_load(bench: &mut Bench<'_>) -> Result<()> {
    for value_bytes in bench.options.value_bytes.clone() {
        let data = bench.large(value_bytes);
        let settings = bench.small_pool();
        let mut row = Row::new("bulk-load", values(value_bytes), Unit::BytesPerSecond);
        for _ in bench.rounds() {
            bench.go_on()?;
            if bench.has_part(ENGINE) {
                let engine = Engine::create(&bench.place("engine")?, &settings)?;
                let (started, cpu) = (Instant::now(), cpu_seconds());
                engine.table.bulk_load(data.entries())?;
                row.add(ENGINE, data.user_bytes() as f64 / started.elapsed().as_secs_f64());
                let gb = data.user_bytes() as f64 / 1e9;
                row.notes.retain(|note| !note.starts_with("last run: "));
                row.note(format!("last run: {} of CPU a GB", Unit::Seconds.show((cpu_seconds() - cpu) / gb)));
                drop(engine);
                bench.place("engine")?;
                row.add("device", device::sequential_write(&bench.place("raw")?, data.user_bytes())?);
                bench.place("raw")?;
            }
            for name in PEERS.into_iter().filter(|name| bench.has_part(name)) {
                let place = bench.place(name)?;
                let started = Instant::now();
                let Some(store) = peer(name, &place, data, settings.cache_bytes as u64).transpose()? else { continue };
                row.add(name, data.user_bytes() as f64 / started.elapsed().as_secs_f64());
                row.note(store.unequal());
                drop(store);
                bench.place(name)?;
            }
        }
        row.limit = Some(Limit::AtLeast(1e9));
        row.compare("device", None);
        peers_of(&mut row, &not_built(), None, None);
        bench.rows.push(row);
    }
    Ok(())
}

/// The work `put-batch` of [`super::WORKS`].
pub(super) fn put_batch(bench: &mut Bench<'_>) -> Result<()> {
    for value_bytes in bench.options.value_bytes.clone() {
        let data = bench.large(value_bytes);
        let mut row = Row::new("put-batch", values(value_bytes), Unit::PerSecond);
        bench.each_store(data, |bench, store| {
            let mut chance = fastrand::Rng::with_seed(bench.options.seed);
            for _ in bench.rounds() {
                bench.go_on()?;
                let (started, mut puts) = (Instant::now(), 0);
                while started.elapsed() < bench.options.time {
                    let batch: Vec<_> =
                        (0..BATCH).map(|_| data.changed(chance.u64(0..data.count), chance.u64(..))).collect();
                    store.write(&batch, true)?;
                    puts += BATCH;
                }
                row.add(store.name(), puts as f64 / started.elapsed().as_secs_f64());
            }
            row.note(store.unequal());
            let mut reader = store.reader()?;
            for _ in 0..1000 {
                let number = chance.u64(0..data.count);
                reader.get(&data.key(number), &mut |value| data.check(store.name(), number, value))?;
            }
            Ok(())
        })?;
        peers_of(&mut row, &not_built(), Some(1.5), Some(1.5));
        bench.rows.push(row);
    }
    Ok(())
}

/// The work `reopen` of [`super::WORKS`].
pub(super) fn reopen(bench: &mut Bench<'_>) -> Result<()> {
    let value_bytes = bench.options.value_bytes.first().copied().unwrap_or(100);
    let data = Data { count: bench.options.memory_keys, value_bytes, seed: bench.options.seed };
    // A checkpoint is made when the log is half full: with this size it never is.
    let log_bytes = bench.options.log_bytes * 4;
    let settings = Settings { log_bytes, ..bench.large_pool(data) };
    let place = bench.place("engine")?;
    let engine = Engine::load(&place, data, &settings)?;
    let hot = Data { count: data.count.min(HOT_KEYS), ..data };
    let (mut log_bytes, mut puts) = (0, 0);
    while log_bytes < bench.options.log_bytes {
        rewrite(&engine, hot, 10 * BATCH, bench)?;
        engine.db.sync()?;
        puts += 10 * BATCH;
        let live_bytes = engine.db.stats().log.live_bytes;
        if live_bytes < log_bytes {
            let why = "a checkpoint was made before the log was full: it would never be";
            return Err(LabError::new(LabErrorKind::System, why));
        }
        log_bytes = live_bytes;
    }
    let mut row = Row::new("reopen", format!("{} of log", format::bytes(log_bytes)), Unit::Seconds);
    row.note(format!("{puts} puts of {} keys in batches of {BATCH}", hot.count));
    for _ in bench.rounds() {
        bench.go_on()?;
        // A copy of the files while they are open equals the files that a killed process leaves.
        let copy = bench.place("copy")?;
        copy_files(&place, &copy)?;
        let started = Instant::now();
        let opened = Engine::open(&copy, &settings)?;
        row.add(ENGINE, started.elapsed().as_secs_f64());
        for number in (0..data.count).step_by(17) {
            data.check(ENGINE, number, opened.table.get(data.key(number))?.as_deref())?;
        }
    }
    row.limit = Some(Limit::AtMost(5.0 * log_bytes as f64 / (256 << 20) as f64));
    row.note("the limit is 5 s for 256 MiB of log; opened with a pool that holds all");
    bench.rows.push(row);
    Ok(())
}

/// Copies the files of a database, which must not be written meanwhile.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let copy = || -> std::io::Result<()> {
        std::fs::create_dir(to)?;
        for name in ["data", "log"] {
            std::fs::copy(from.join(name), to.join(name))?;
            std::fs::File::open(to.join(name))?.sync_all()?;
        }
        Ok(())
    };
    copy().map_err(|error| LabError::system(format_args!("copy {}", from.display()), &error))
}

/// The work `space` of [`super::WORKS`].
pub(super) fn space(bench: &mut Bench<'_>) -> Result<()> {
    for value_bytes in bench.options.value_bytes.clone() {
        let data = bench.large(value_bytes);
        let place = bench.place("engine")?;
        let engine = Engine::load(&place, data, &bench.small_pool())?;
        let used = engine.used_bytes();
        let mut row = Row::new("space", values(value_bytes), Unit::Ratio);
        row.add(ENGINE, used as f64 / data.user_bytes() as f64);
        let on_disk = |name: &str| std::fs::metadata(place.join(name)).map_or(0, |file| file.blocks() * 512);
        row.note(format!(
            "blocks in use for {} of keys and values; on disk: data file {}, log {}",
            format::bytes(data.user_bytes()),
            format::bytes(on_disk("data")),
            format::bytes(on_disk("log"))
        ));
        row.limit = Some(Limit::AtMost(1.05));
        bench.rows.push(row);
        let mut row = Row::new("space", format!("{}, after as many random updates", values(value_bytes)), Unit::Ratio);
        rewrite(&engine, data, data.count, bench)?;
        // The first checkpoint refers to the new blocks; once the second is durable the old ones are free.
        engine.db.checkpoint()?;
        engine.db.checkpoint()?;
        row.add(ENGINE, engine.used_bytes() as f64 / data.user_bytes() as f64);
        drop(engine);
        row.note(format!("data file {} on disk", format::bytes(on_disk("data"))));
        bench.rows.push(row);
    }
    Ok(())
}

/// The work `long-reader` of [`super::WORKS`].
pub(super) fn long_reader(bench: &mut Bench<'_>) -> Result<()> {
    let value_bytes = bench.options.value_bytes.first().copied().unwrap_or(100);
    let data = Data { count: 10_000, value_bytes, seed: bench.options.seed };
    let updates = (bench.options.memory_keys * 5).min(1_000_000);
    let mut row = Row::new(
        "long-reader",
        format!("{}, {updates} updates of {} keys", values(value_bytes), data.count),
        Unit::Ratio,
    );
    for with_reader in [false, true] {
        let engine = Engine::load(&bench.place("engine")?, data, &bench.large_pool(data))?;
        let before = engine.used_bytes();
        let held = with_reader.then(|| engine.db.snapshot());
        rewrite(&engine, data, updates, bench)?;
        engine.db.checkpoint()?;
        engine.db.checkpoint()?;
        let stats = engine.db.stats();
        let after = stats.pool.blocks_used * engine.db.page_bytes() as u64;
        // An old image lies in a block, in a frame that may be evicted, or in both: it counts as one image all the
        // same.
        let kept = stats.pool.snapshot_bytes;
        let grown = (after as f64 - before as f64).max(kept as f64) / before as f64;
        row.add(if with_reader { ENGINE } else { "no reader" }, grown.max(0.0));
        row.note(format!(
            "{} reader: file {} before, {} after; old images kept, on disk or in memory: {}",
            if with_reader { "with a" } else { "without a" },
            format::bytes(before),
            format::bytes(after),
            format::bytes(kept)
        ));
        let Some(held) = held else { continue };
        let mut value = Vec::new();
        for number in 0..data.count {
            data.fill(number, 0, &mut value);
            if held.get(&engine.table, data.key(number))?.as_ref() != Some(&value) {
                let why = format!("{ENGINE}: the reader no longer sees key {number} as it was");
                return Err(LabError::new(LabErrorKind::WrongData, why));
            }
        }
    }
    row.compare("no reader", None);
    // One image of every page besides the newest, and some space for the pages between checkpoints.
    row.limit = Some(Limit::AtMost(1.1));
    row.note("growth of the file, or old images kept if that is more, as a share of what there was: one image a page is 1.00×");
    bench.rows.push(row);
    Ok(())
}
