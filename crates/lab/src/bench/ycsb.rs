//! YCSB's six mixes, on all stores alike: threads that read and write single entries, zipfian but for D.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::data::{Data, Zipfian, mix};
use super::reads::{panicked, peers_of};
use super::row::Row;
use super::store::Store;
use super::{Bench, not_built, values};
use crate::error::Result;
use crate::format::Unit;
use crate::mixes::{Chooser, MIXES, Mix, Op};

const THREADS: u64 = 2;
/// Operations between two clock readings.
const OPS_A_LOOK: u64 = 16;

/// The work `ycsb` of [`super::WORKS`].
pub(super) fn ycsb(bench: &mut Bench<'_>) -> Result<()> {
    let value_bytes = bench.options.value_bytes.last().copied().unwrap_or(1000);
    let data = Data::of_bytes(bench.options.data_bytes, value_bytes, bench.options.seed);
    for mix in MIXES {
        let mut row = Row::new("ycsb", format!("{}, {}", mix.name, values(value_bytes)), Unit::PerSecond);
        bench.each_store(data, |bench, store| {
            let count = AtomicU64::new(data.count);
            for round in bench.rounds() {
                bench.go_on()?;
                row.add(store.name(), run(store, mix, data, &count, bench.options.time, u64::from(round))?);
            }
            row.note(store.unequal());
            Ok(())
        })?;
        row.note("one commit a write, not synced in any store; reads and writes of single entries");
        if mix.read_change_write > 0 {
            row.note("read-modify-write is a get and a put, not one transaction, in any store");
        }
        peers_of(&mut row, &not_built(), None, None);
        bench.rows.push(row);
    }
    Ok(())
}

/// Operations a second, of all threads together.
fn run(store: &dyn Store, mix_of: Mix, data: Data, count: &AtomicU64, time: Duration, seed: u64) -> Result<f64> {
    // Number of entries inserted and visible: readers ask for keys below it. The mutex makes inserts take turns.
    let inserting = std::sync::Mutex::new(());
    let work = |thread: u64| -> Result<f64> {
        let mut chance = fastrand::Rng::with_seed(mix(seed) ^ mix(thread));
        let mut chooser = Chooser::new(mix_of, data.count, &Zipfian::new(data.count, 0), chance.u64(..));
        let (started, mut ops) = (Instant::now(), 0_u64);
        while started.elapsed() < time {
            for _ in 0..OPS_A_LOOK {
                let read = |number: u64| {
                    store.reader()?.get(&data.key(number), &mut |value| data.check(store.name(), number, value))
                };
                let mut put = |number: u64| store.write(&[data.changed(number, chance.u64(..))], false);
                match chooser.next(count.load(Ordering::Acquire)) {
                    Op::Read(number) => read(number)?,
                    Op::Update(number) => put(number)?,
                    Op::ReadChangeWrite(number) => {
                        read(number)?;
                        put(number)?;
                    }
                    Op::Insert => {
                        let _turn = inserting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        let next = count.load(Ordering::Acquire);
                        store.write(&[data.changed(next, 0)], false)?;
                        count.store(next + 1, Ordering::Release);
                    }
                    Op::Scan(number, wanted) => {
                        let mut next = number;
                        store.reader()?.scan(&data.key(number), wanted, &mut |_, value| {
                            data.check(store.name(), next, Some(value))?;
                            next += 1;
                            Ok(())
                        })?;
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
