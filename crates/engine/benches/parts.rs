//! Times the small parts of the engine when nothing waits for a disk: `cargo bench -p nofault-benches --bench parts`.
//!
//! One thread, one million keys of 16 B with values of 100 B, all in the pool, so that the time is spent in the engine's
//! own work and of its accesses to memory. Criterion repeats each part until its spread is known, and compares with the
//! run before: this is where a change of a few per cent shows. It says nothing about disks or other databases; `nofault
//! db bench` measures both in the same run.

use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nofault::blocking::{Db, Table};
use nofault::settings::Settings;
use nofault::{Batch, Durability};

/// Number of keys in the table.
const KEYS: u64 = 1_000_000;

/// Length of each value, in bytes.
const VALUE_BYTES: usize = 100;

/// A database in a temporary folder removed when this is dropped.
struct Fixture {
    db: Db,
    table: Table,
    /// Dropped last, after the files in it are closed.
    _folder: tempfile::TempDir,
}

/// Returns the key of entry `number`. Keys are in the order of their numbers.
fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key-............";
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Creates a database with [`KEYS`] entries, all in the buffer pool.
fn fixture() -> Fixture {
    let folder = tempfile::tempdir().expect("a folder for the database");
    let settings = Settings { cache_bytes: 512 << 20, ..Settings::default() };
    let db = Db::create(folder.path().join("db"), &settings).expect("a new database");
    let table = db.create_table("entries").expect("a new table");
    table.bulk_load((0..KEYS).map(|number| (key(number), [number as u8; VALUE_BYTES]))).expect("a load");
    for entry in table.range::<&[u8]>(..) {
        entry.expect("an entry just loaded");
    }
    Fixture { db, table, _folder: folder }
}

/// Measures reads that find all pages in the pool.
fn reads(criterion: &mut Criterion) {
    let Fixture { db, table, _folder } = &fixture();
    let mut random = fastrand::Rng::with_seed(7);
    let mut group = criterion.benchmark_group("read");
    group.bench_function("get", |bench| {
        bench.iter(|| table.get(key(random.u64(..KEYS))).expect("a read").map(black_box));
    });
    group.bench_function("get_with, no copy", |bench| {
        bench.iter(|| table.get_with(key(random.u64(..KEYS)), |value| value.map(<[u8]>::len)).expect("a read"));
    });
    group.bench_function("get of a key that is not there", |bench| {
        bench.iter(|| table.get(key(KEYS + random.u64(..KEYS))).expect("a read").map(black_box));
    });
    for count in [16, 256] {
        group.throughput(Throughput::Elements(count));
        group.bench_with_input(BenchmarkId::new("get_many", count), &count, |bench, &count| {
            bench.iter_batched(
                || (0..count).map(|_| key(random.u64(..KEYS))).collect::<Vec<_>>(),
                |keys| table.get_many(&keys).expect("a read"),
                BatchSize::SmallInput,
            );
        });
    }
    for count in [10, 1000] {
        group.throughput(Throughput::Elements(count));
        group.bench_with_input(BenchmarkId::new("range, next_ref", count), &count, |bench, &count| {
            bench.iter(|| {
                let from = random.u64(..KEYS - count);
                let mut range = table.range(key(from)..key(from + count));
                let mut bytes = 0;
                while let Some((_, value)) = range.next_ref().expect("a read") {
                    bytes += value.len();
                }
                assert_eq!(bytes, count as usize * VALUE_BYTES);
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("snapshot, made and dropped", |bench| bench.iter(|| drop(black_box(db.snapshot()))));
    group.finish();
}

/// Measures writes with deferred durability: the work of the tree and the log, while background threads use the other
/// CPU.
fn writes(criterion: &mut Criterion) {
    let Fixture { db, table, _folder } = &fixture();
    let mut random = fastrand::Rng::with_seed(7);
    let mut group = criterion.benchmark_group("write, deferred");
    for count in [1, 100] {
        group.throughput(Throughput::Elements(count));
        group.bench_with_input(BenchmarkId::new("batch of random puts", count), &count, |bench, &count| {
            bench.iter_batched(
                || {
                    let mut batch = Batch::new();
                    for _ in 0..count {
                        batch.put(table, key(random.u64(..KEYS)), [0; VALUE_BYTES]);
                    }
                    batch
                },
                |batch| db.write(batch, Durability::Deferred).expect("a commit"),
                BatchSize::SmallInput,
            );
        });
    }
    group.throughput(Throughput::Elements(1));
    let next = Cell::new(KEYS);
    group.bench_function("batch of one put at the end", |bench| {
        bench.iter(|| {
            let mut batch = Batch::new();
            batch.put(table, key(next.replace(next.get() + 1)), [0; VALUE_BYTES]);
            db.write(batch, Durability::Deferred).expect("a commit");
        });
    });
    group.bench_function("transaction: read a key, write it", |bench| {
        bench.iter(|| {
            let key = key(random.u64(..KEYS));
            db.transact(Durability::Deferred, |change| {
                let value = change.get(table, key)?.unwrap_or_default();
                change.put(table, key, value)
            })
            .expect("a commit");
        });
    });
    group.finish();
}

criterion_group! {
    name = parts;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = reads, writes
}
criterion_main!(parts);
