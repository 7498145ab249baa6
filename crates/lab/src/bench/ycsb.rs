//! YCSB's six mixes, on all stores alike: threads that read and write single entries, zipfian but for D.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::data::{Data, Zipfian, mix};
use super::reads::{panicked, peers_of};
use super::row::Row;
use super::store::{Engine, PEERS, Store, peer};
use super::{Bench, values};
use crate::error::Result;
use crate::format::Unit;

const THREADS: u64 = 2;
/// Entries a scan asks for at most.
const SCAN_MAX: usize = 100;
/// Operations between two looks at the clock.
const OPS_A_LOOK: u64 = 16;

/// Shares of the operations, in percent; what is left are reads.
struct Mix {
    name: &'static str,
    update: u64,
    insert: u64,
    scan: u64,
    read_change_write: u64,
    latest: bool,
}

const NONE: Mix = Mix { name: "", update: 0, insert: 0, scan: 0, read_change_write: 0, latest: false };
const MIXES: [Mix; 6] = [
    Mix { name: "A: half updates", update: 50, ..NONE },
    Mix { name: "B: 5 % updates", update: 5, ..NONE },
    Mix { name: "C: reads", ..NONE },
    Mix { name: "D: reads of the latest, 5 % inserts", insert: 5, latest: true, ..NONE },
    Mix { name: "E: scans, 5 % inserts", scan: 95, insert: 5, ..NONE },
    Mix { name: "F: half read-modify-write", read_change_write: 50, ..NONE },
];

/// See [`super::WORKS`].
pub(super) fn ycsb(bench: &mut Bench<'_>) -> Result<()> {
    let value_bytes = bench.options.value_bytes.last().copied().unwrap_or(1000);
    let data = Data::of_bytes(bench.options.data_bytes, value_bytes, bench.options.seed);
    let settings = bench.small_pool();
    for mix in &MIXES {
        let mut stores: Vec<Box<dyn Store>> = vec![Box::new(Engine::load(&bench.place("engine")?, data, &settings)?)];
        let mut missing = Vec::new();
        for name in PEERS {
            match peer(name, &bench.place(name)?, data, settings.cache_bytes as u64) {
                Some(store) => stores.push(store?),
                None => missing.push(name),
            }
        }
        let mut row = Row::new("ycsb", format!("{}, {}", mix.name, values(value_bytes)), Unit::PerSecond);
        let counts: Vec<_> = stores.iter().map(|_| AtomicU64::new(data.count)).collect();
        for round in bench.rounds() {
            for (store, count) in stores.iter().zip(&counts) {
                bench.go_on()?;
                row.add(store.name(), run(&**store, mix, data, count, bench.options.time, u64::from(round))?);
                row.note(store.unequal());
            }
        }
        row.note("one commit a write, not synced in any store; reads and writes of single entries");
        if mix.read_change_write > 0 {
            row.note("read-modify-write is a get and a put, not one transaction, in any store");
        }
        peers_of(&mut row, &missing, None, None);
        bench.rows.push(row);
    }
    Ok(())
}

/// Operations a second, of all threads together.
fn run(store: &dyn Store, mix_of: &Mix, data: Data, count: &AtomicU64, time: Duration, seed: u64) -> Result<f64> {
    // Inserted and visible: readers may ask for keys below this. Inserts take turns through it.
    let inserting = std::sync::Mutex::new(());
    let work = |thread: u64| -> Result<f64> {
        let mut chance = fastrand::Rng::with_seed(mix(seed) ^ mix(thread));
        let mut zipfian = Zipfian::new(data.count, chance.u64(..));
        let (started, mut ops) = (Instant::now(), 0_u64);
        while started.elapsed() < time {
            for _ in 0..OPS_A_LOOK {
                let known = count.load(Ordering::Acquire);
                let rank = zipfian.next();
                // Popular keys lie everywhere, not side by side.
                let number = if mix_of.latest { known - 1 - rank } else { mix(rank) % data.count };
                let mut share = chance.u64(0..100);
                let mut is = |percent: u64| {
                    let hit = share < percent;
                    share = if hit { u64::MAX } else { share.saturating_sub(percent) };
                    hit
                };
                if is(mix_of.insert) {
                    let _turn = inserting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let next = count.load(Ordering::Acquire);
                    store.write(&[data.changed(next, 0)], false)?;
                    count.store(next + 1, Ordering::Release);
                } else if is(mix_of.update) {
                    store.write(&[data.changed(number, chance.u64(..))], false)?;
                } else if is(mix_of.scan) {
                    let wanted = chance.usize(1..=SCAN_MAX);
                    let mut next = number;
                    store.reader()?.scan(&data.key(number), wanted, &mut |_, value| {
                        data.check(store.name(), next, Some(value))?;
                        next += 1;
                        Ok(())
                    })?;
                } else {
                    store.reader()?.get(&data.key(number), &mut |value| data.check(store.name(), number, value))?;
                    if is(mix_of.read_change_write) {
                        store.write(&[data.changed(number, chance.u64(..))], false)?;
                    }
                }
            }
            ops += OPS_A_LOOK;
        }
        Ok(ops as f64 / started.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().map(|worker| worker.join().map_err(panicked)?).sum()
    })
}
