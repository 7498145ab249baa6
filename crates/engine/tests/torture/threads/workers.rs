//! The threads using one database at a time. Each takes random steps until it has done enough or a call fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;
use nofault::blocking::{Db, Snapshot, Table};
use nofault::db::Pace;
use nofault::error::{Error, ErrorKind, Result};
use nofault::{Batch, Durability};

use super::check::{LISTS, MARKS, SHARED, View, apply, is_loaded, loaded, own};
use super::history::{History, Write, value};
use crate::story::{Model, Rows, key_of};

/// Number of keys in a writer's own table, and in the tables of loaders.
const OWN_KEYS: u32 = 400;
/// Number of keys that all writers set.
const SHARED_KEYS: u32 = 12;
const LIST_COUNT: u32 = 4;
/// Number of tables that a loader creates and drops.
pub(crate) const LOADED_TABLES: u32 = 2;

/// The state that the threads of one life share.
pub(crate) struct Shared {
    pub(crate) history: History,
    /// The contents of snapshots that were read.
    pub(crate) views: Mutex<Vec<View>>,
    /// Set when the writers have finished.
    pub(crate) done: AtomicBool,
    /// Errors that ended a thread.
    pub(crate) errors: Mutex<Vec<(String, Error)>>,
}

impl Shared {
    /// Runs a thread's steps and keeps the error that ends them.
    pub(crate) fn run(&self, name: &str, steps: impl FnOnce() -> Result<()>) {
        if let Err(error) = steps() {
            self.errors.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), error));
        }
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

/// Creates the tables that all runs use.
///
/// # Errors
/// The first error of the engine.
pub(crate) fn create_tables(db: &Db, writers: usize) -> Result<()> {
    let names = [MARKS, LISTS, SHARED].into_iter().map(str::to_owned).chain((0..writers).map(own));
    for name in names {
        match db.create_table(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// A writer: commits to its own table, and together with others to shared tables.
pub(crate) struct Writer<'a> {
    db: &'a Db,
    shared: &'a Shared,
    number: usize,
    rng: Rng,
    tables: BTreeMap<String, Table>,
    /// The content that the writer's own table must have, since no other thread writes there.
    model: Model,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(db: &'a Db, shared: &'a Shared, number: usize, rng: Rng, base: &Model) -> Result<Self> {
        let own = own(number);
        let model = Model::from([(own.clone(), base.get(&own).cloned().unwrap_or_default())]);
        let mut tables = BTreeMap::new();
        for name in [MARKS, LISTS, SHARED, &own] {
            tables.insert(name.to_owned(), db.table(name)?);
        }
        Ok(Self { db, shared, number, rng, tables, model })
    }

    pub(crate) fn work(mut self, steps: usize) -> Result<()> {
        for _ in 0..steps {
            match self.rng.u32(..20) {
                0..10 => {
                    let count = self.rng.usize(1..12);
                    self.batch(count)?;
                }
                // Often the same keys: the larger one makes more changes than a small commit may.
                10 => {
                    let count = [320, 900][self.rng.usize(..2)];
                    self.batch(count)?;
                }
                11..17 => self.transaction()?,
                17 => {
                    let begun = self.shared.history.tick();
                    self.db.sync()?;
                    self.shared.history.synced(begun);
                }
                _ => self.read()?,
            }
        }
        Ok(())
    }

    fn length(&mut self) -> usize {
        match self.rng.u32(..40) {
            0..36 => self.rng.usize(4..60),
            36..39 => self.rng.usize(60..500),
            _ => self.rng.usize(500..9000),
        }
    }

    /// Returns changes of the writer's own keys, and blind writes of shared keys.
    fn writes(&mut self, count: usize) -> Vec<Write> {
        let mut writes = BTreeMap::new();
        for _ in 0..count {
            let is_shared = count < 100 && self.rng.u32(..4) == 0;
            let (table, keys) = if is_shared { (SHARED.to_owned(), SHARED_KEYS) } else { (own(self.number), OWN_KEYS) };
            let key = self.rng.u32(..keys);
            let len = if count < 100 { self.length() } else { self.rng.usize(4..60) };
            let is_delete = self.rng.u32(..4) == 0;
            let write = if is_delete {
                Write::Delete { table: table.clone(), key }
            } else {
                Write::Put { table: table.clone(), key, len }
            };
            writes.insert((table, key), write);
        }
        let mark = Write::Put { table: MARKS.into(), key: self.number as u32, len: 4 };
        writes.into_values().chain([mark]).collect()
    }

    fn durability(&mut self) -> Durability {
        if self.rng.u32(..3) == 0 { Durability::Deferred } else { Durability::Sync }
    }

    fn batch(&mut self, count: usize) -> Result<()> {
        let (id, writes, durability) = (self.shared.history.new_id(), self.writes(count), self.durability());
        let mut batch = Batch::new();
        for write in &writes {
            match write {
                Write::Put { table, key, len } => batch.put(&self.tables[table], key_of(*key), value(id, *len)),
                Write::Delete { table, key } => batch.delete(&self.tables[table], key_of(*key)),
                _ => continue,
            };
        }
        self.shared.history.begin(self.number, id, durability == Durability::Sync, writes);
        self.db.write(batch, durability)?;
        self.acknowledged();
        Ok(())
    }

    fn acknowledged(&mut self) {
        if let Some(op) = self.shared.history.acknowledge(self.number) {
            apply(&mut self.model, &op);
        }
    }

    /// Runs a transaction that reads own keys and lists, appends to lists, and commits, is dropped, or conflicts.
    fn transaction(&mut self) -> Result<()> {
        let count = self.rng.usize(1..6);
        let (id, mut writes, durability) = (self.shared.history.new_id(), self.writes(count), self.durability());
        let transaction = self.db.begin();
        let table = &self.tables[&own(self.number)];
        let rows = &self.model[&own(self.number)];
        let from = key_of(self.rng.u32(..OWN_KEYS));
        let seen: Vec<_> = transaction.range(table, from.clone()..)?.take(5).collect::<Result<_>>()?;
        let expected: Vec<_> = rows.range(from..).take(5).map(|(key, value)| (key.clone(), value.to_vec())).collect();
        assert_eq!(seen, expected, "a transaction of writer {}", self.number);
        for list in 0..LIST_COUNT {
            if self.rng.bool() {
                let key = key_of(list);
                let mut ids = transaction.get(&self.tables[LISTS], &key)?.unwrap_or_default();
                ids.extend(id.to_le_bytes());
                transaction.put(&self.tables[LISTS], &key, ids)?;
                writes.push(Write::Append { list });
            }
        }
        for write in &writes {
            match write {
                Write::Put { table, key, len } => {
                    transaction.put(&self.tables[table], key_of(*key), value(id, *len))?
                }
                Write::Delete { table, key } => transaction.delete(&self.tables[table], key_of(*key))?,
                _ => {}
            }
        }
        if self.rng.u32(..6) == 0 {
            return Ok(());
        }
        self.shared.history.begin(self.number, id, durability == Durability::Sync, writes);
        match transaction.commit(durability) {
            Ok(()) => self.acknowledged(),
            Err(error) if error.kind() == ErrorKind::Conflict => self.shared.history.refuse(self.number),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let keys: Vec<Vec<u8>> = (0..self.rng.usize(1..40)).map(|_| key_of(self.rng.u32(..OWN_KEYS))).collect();
        let rows = &self.model[&own(self.number)];
        let expected: Vec<_> = keys.iter().map(|key| rows.get(key).map(|value| value.to_vec())).collect();
        let found = self.tables[&own(self.number)].get_many(&keys)?;
        assert_eq!(found, expected, "writer {} reads its own keys", self.number);
        Ok(())
    }
}

/// Creates tables, loads them in bulk, reads and drops them.
pub(crate) fn load(db: &Db, shared: &Shared, loader: usize, mut rng: Rng, base: &Model) -> Result<()> {
    let thread = shared.history.writers + loader;
    let mut model: Model =
        base.iter().filter(|(name, _)| is_loaded(name, loader)).map(|(n, r)| (n.clone(), r.clone())).collect();
    while !shared.is_done() {
        let name = format!("bulk-{loader}-{}", rng.u32(..LOADED_TABLES));
        let id = shared.history.new_id();
        let (count, first) = (rng.u32(1..200), rng.u32(..100));
        match model.get(&name) {
            None => {
                shared.history.begin(thread, id, true, vec![Write::Create { table: name.clone() }]);
                db.create_table(&name)?;
            }
            Some(rows) if rows.is_empty() => {
                let table = db.table(&name)?;
                shared.history.begin(thread, id, true, vec![Write::Load { table: name.clone(), first, count }]);
                // Some entries expire, long after the test: their rows in the index of expiry are put among all else.
                let end = UNIX_EPOCH + Duration::from_secs(1 << 33);
                let may_expire = |key: &[u8]| key.len().is_multiple_of(3) && key.len() + 16 <= db.key_bytes_max();
                table.bulk_load(loaded(id, first, count).map(|(key, value)| {
                    let expiry = may_expire(&key).then_some(end);
                    (key, value, expiry)
                }))?;
            }
            Some(rows) if rng.bool() => {
                let found: Result<Rows> =
                    db.table(&name)?.range::<&[u8]>(..).map(|row| row.map(|(k, v)| (k, v.into()))).collect();
                assert!(found? == **rows, "{name} does not hold the rows that were loaded");
                continue;
            }
            Some(_) => {
                shared.history.begin(thread, id, true, vec![Write::Drop { table: name.clone() }]);
                db.drop_table(&name)?;
            }
        }
        if let Some(op) = shared.history.acknowledge(thread) {
            apply(&mut model, &op);
        }
    }
    Ok(())
}

/// Takes snapshots and reads each completely, some of them again later.
pub(crate) fn read(db: &Db, shared: &Shared, tables: &[String], mut rng: Rng) -> Result<()> {
    let mut kept: Vec<(Snapshot, Model)> = Vec::new();
    while !shared.is_done() {
        let from = shared.history.tick();
        let snapshot = db.snapshot();
        let until = shared.history.tick();
        std::thread::yield_now();
        let found = match content(&snapshot, tables) {
            Err(error) if error.kind() == ErrorKind::SnapshotTooOld => continue,
            found => found?,
        };
        let view = View { found: found.clone(), from, until, is_snapshot: true };
        shared.views.lock().unwrap_or_else(PoisonError::into_inner).push(view);
        kept.push((snapshot, found));
        if kept.len() > 2 || rng.bool() {
            let (snapshot, before) = kept.swap_remove(rng.usize(..kept.len()));
            match content(&snapshot, tables) {
                Err(error) if error.kind() == ErrorKind::SnapshotTooOld => {}
                again => assert!(again? == before, "a snapshot shows something else when it is read again"),
            }
        }
    }
    Ok(())
}

/// Reads the content of these tables in a snapshot.
pub(crate) fn content(snapshot: &Snapshot, tables: &[String]) -> Result<Model> {
    let mut model = Model::new();
    for name in tables {
        let table = match snapshot.table(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            table => table?,
        };
        let rows: Result<Rows> =
            snapshot.range::<&[u8]>(&table, ..)?.map(|row| row.map(|(k, v)| (k, v.into()))).collect();
        model.insert(name.clone(), Arc::new(rows?));
    }
    Ok(model)
}

/// Makes checkpoints, compacts, syncs and verifies.
pub(crate) fn maintain(db: &Db, shared: &Shared, mut rng: Rng) -> Result<()> {
    while !shared.is_done() {
        let begun = shared.history.tick();
        match rng.u32(..8) {
            0..3 => db.checkpoint()?,
            3..5 => db.sync()?,
            5..7 => {
                let mut lists = rng.usize(..6);
                let go_on = move |_: &_| {
                    lists = lists.wrapping_sub(1);
                    lists > 0
                };
                db.compact(Pace::Full, go_on)?;
            }
            _ => {
                if let Some(problem) = db.verify()?.problems.into_iter().next() {
                    return Err(problem.error);
                }
                continue;
            }
        }
        shared.history.synced(begun);
        for _ in 0..rng.u32(..20) {
            std::thread::yield_now();
        }
    }
    Ok(())
}
