//! Random histories with a clock of the test's: all calls agree with a map about which entries there are.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use nofault::blocking::{Db, Snapshot, Table, Transaction};
use nofault::clock::ManualClock;
use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::depth::by_depth;

use super::{disk, time, tiny};

/// The time at which an entry expires that does not.
const NEVER: i64 = i64::MAX;

/// All entries, also those that have expired: the value and the time at which it expires.
type Entries = BTreeMap<Vec<u8>, (Vec<u8>, i64)>;

/// The entries as of one moment.
#[derive(Debug, Clone, Default)]
struct Model {
    entries: Entries,
    now: i64,
}

impl Model {
    fn visible(&self) -> BTreeMap<&[u8], (&[u8], i64)> {
        let all = self.entries.iter().filter(|(_, (_, expiry))| *expiry > self.now);
        all.map(|(key, (value, expiry))| (&key[..], (&value[..], *expiry))).collect()
    }

    fn get(&self, key: &[u8]) -> Option<(Vec<u8>, i64)> {
        self.entries.get(key).filter(|(_, expiry)| *expiry > self.now).cloned()
    }

    fn put(&mut self, key: &[u8], value: &[u8], expiry: i64) {
        self.entries.insert(key.to_vec(), (value.to_vec(), expiry));
    }
}

fn key_of(number: u32) -> Vec<u8> {
    format!("key-{number:03}{}", "x".repeat(number as usize % 7 * 5)).into_bytes()
}

struct History {
    db: Db,
    table: Table,
    model: Model,
    clock: ManualClock,
    settings: Settings,
    directory: Arc<dyn Directory>,
    snapshots: Vec<(Snapshot, Model)>,
    transactions: Vec<(Transaction, Model)>,
    rng: Rng,
    keys: u32,
}

impl History {
    fn begin(seed: u64) -> Self {
        let (clock, settings) = tiny();
        let directory = disk(seed);
        let db = Db::create_in(&directory, &settings).unwrap();
        let table = db.create_table("t").unwrap();
        let mut rng = Rng::with_seed(seed);
        let keys = [8, 40, 200][rng.usize(..3)];
        let (snapshots, transactions) = (Vec::new(), Vec::new());
        Self { db, table, model: Model::default(), clock, settings, directory, snapshots, transactions, rng, keys }
    }

    fn key(&mut self) -> Vec<u8> {
        key_of(self.rng.u32(..self.keys))
    }

    fn value(&mut self) -> Vec<u8> {
        // In the leaf, over several pages of values, and in overflow pages; some of the same length, one after the other.
        let len = [0, 5, 30, 30, 100, 150, 400, 400, 9000][self.rng.usize(..9)];
        vec![self.rng.u8(..); len]
    }

    /// A time that has passed, or comes soon, or late.
    fn expiry(&mut self) -> i64 {
        self.model.now + [self.rng.i64(-20..1), self.rng.i64(1..50), self.rng.i64(1..5000)][self.rng.usize(..3)]
    }

    fn step(&mut self) -> Result<()> {
        match self.rng.u32(..25) {
            0..3 => {
                let (key, value) = (self.key(), self.value());
                self.table.put(&key, &value)?;
                self.model.put(&key, &value, NEVER);
            }
            3..8 => {
                let (key, value, expiry) = (self.key(), self.value(), self.expiry());
                self.table.put_with_expiry(&key, &value, time(expiry))?;
                self.model.put(&key, &value, expiry);
            }
            8 => {
                let key = self.key();
                self.table.delete(&key)?;
                self.model.entries.remove(&key);
            }
            9 => {
                let (key, value) = (self.key(), self.value());
                let before = self.model.get(&key);
                let is_removal = self.rng.u8(..4) == 0;
                let after = self.table.update(&key, |found| {
                    assert_eq!(found, before.as_ref().map(|(value, _)| &value[..]), "update");
                    (!is_removal).then(|| value.clone())
                })?;
                assert_eq!(after.is_none(), is_removal);
                match before {
                    _ if is_removal => drop(self.model.entries.remove(&key)),
                    Some((_, expiry)) => self.model.put(&key, &value, expiry),
                    None => self.model.put(&key, &value, NEVER),
                }
            }
            10 => {
                let (key, value) = (self.key(), self.value());
                let before = self.model.get(&key).map(|(value, _)| value);
                let found = self.table.get_or_insert_with(&key, || value.clone())?;
                assert_eq!(found, before.clone().unwrap_or_else(|| value.clone()), "get_or_insert_with");
                if before.is_none() {
                    self.model.put(&key, &value, NEVER);
                }
            }
            11 => {
                let first =
                    self.model.visible().first_key_value().map(|(key, (value, _))| (key.to_vec(), value.to_vec()));
                assert_eq!(self.table.pop_first()?, first, "pop_first");
                first.into_iter().for_each(|(key, _)| drop(self.model.entries.remove(&key)));
            }
            12 => {
                let mut bounds = [self.key(), self.key()];
                bounds.sort();
                let [from, to] = bounds;
                let gone: Vec<_> =
                    self.model.visible().range(&from[..]..&to[..]).map(|(key, _)| key.to_vec()).collect();
                assert_eq!(self.table.delete_range(&from[..]..&to[..])?, gone.len() as u64, "delete_range");
                gone.iter().for_each(|key| drop(self.model.entries.remove(key)));
            }
            13 => {
                let (mut batch, mut after) = (Batch::new(), self.model.clone());
                for _ in 0..self.rng.usize(1..30) {
                    let (key, value) = (self.key(), self.value());
                    match self.rng.u8(..3) {
                        0 => {
                            batch.delete(&self.table, &key);
                            after.entries.remove(&key);
                        }
                        1 => {
                            batch.put(&self.table, &key, &value);
                            after.put(&key, &value, NEVER);
                        }
                        _ => {
                            let expiry = self.expiry();
                            batch.put_with_expiry(&self.table, &key, &value, time(expiry));
                            after.put(&key, &value, expiry);
                        }
                    }
                }
                self.db.write(batch, Durability::Deferred)?;
                self.model = after;
            }
            14 => {
                let change = self.db.begin();
                self.model = self.transact(&change)?;
                change.commit(Durability::Sync)?;
            }
            15..18 => {
                let by = [0, 1, 30, 2000][self.rng.usize(..4)];
                self.clock.advance(Duration::from_millis(by));
                self.model.now += by as i64;
            }
            18 => drop(self.db.remove_expired()?),
            19 if self.snapshots.len() < 3 => self.snapshots.push((self.db.snapshot(), self.model.clone())),
            20 if self.transactions.len() < 3 => self.transactions.push((self.db.begin(), self.model.clone())),
            21 => self.check_old()?,
            22 if self.rng.u8(..4) == 0 => self.reopen()?,
            23 => self.load()?,
            _ => self.check()?,
        }
        Ok(())
    }

    /// Loads a run past the log, or, where it is short, in an ordinary commit.
    fn load(&mut self) -> Result<()> {
        let mut run = Entries::new();
        for _ in 0..self.rng.u32(..self.keys) {
            let expiry = if self.rng.bool() { NEVER } else { self.expiry() };
            run.insert(self.key(), (self.value(), expiry));
        }
        let entries = run.iter().map(|(key, (value, expiry))| (key, value, time_of(*expiry)));
        assert_eq!(self.table.bulk_load(entries)?, run.len() as u64);
        self.model.entries.append(&mut run);
        Ok(())
    }

    /// Reads and writes in a transaction that has just begun, and returns the model after it.
    fn transact(&mut self, change: &Transaction) -> Result<Model> {
        let mut after = self.model.clone();
        for _ in 0..self.rng.usize(1..8) {
            let (key, value) = (self.key(), self.value());
            let expected = after.get(&key);
            assert_eq!(change.get(&self.table, &key)?, expected.as_ref().map(|(value, _)| value.clone()));
            assert_eq!(change.contains_key(&self.table, &key)?, expected.is_some());
            assert_eq!(change.expiry(&self.table, &key)?, expected.and_then(|(_, expiry)| time_of(expiry)));
            match self.rng.u8(..3) {
                0 => {
                    change.delete(&self.table, &key)?;
                    after.entries.remove(&key);
                }
                1 => {
                    change.put(&self.table, &key, &value)?;
                    after.put(&key, &value, NEVER);
                }
                _ => {
                    let (expiry, savepoint) = (self.expiry(), change.savepoint()?);
                    change.put_with_expiry(&self.table, &key, &value, time(expiry))?;
                    if self.rng.u8(..4) == 0 {
                        change.roll_back_to(savepoint)?;
                    } else {
                        after.put(&key, &value, expiry);
                    }
                }
            }
        }
        let mut range = change.range::<&[u8]>(&self.table, ..)?;
        for (key, (value, expiry)) in after.visible() {
            assert_eq!(range.next().transpose()?, Some((key.to_vec(), value.to_vec())), "in a transaction");
            assert_eq!(range.expiry(), time_of(expiry), "in a transaction");
        }
        assert!(range.next().is_none());
        Ok(after)
    }

    fn reopen(&mut self) -> Result<()> {
        (self.snapshots, self.transactions) = (Vec::new(), Vec::new());
        // Without threads, deferred commits are lost otherwise.
        self.db.sync()?;
        let (other, settings) = tiny();
        let placeholder = Db::create_in(&disk(0), &settings)?;
        self.table = placeholder.create_table("t")?;
        // A clock that has stopped, as the database's does when it is closed.
        drop(other);
        self.db = placeholder;
        self.db = Db::open_in(&self.directory, &self.settings)?;
        self.table = self.db.table("t")?;
        assert!(self.db.verify()?.is_clean());
        Ok(())
    }

    /// Checks a snapshot and a transaction that began some time ago: the clock has gone on, and entries were removed.
    fn check_old(&mut self) -> Result<()> {
        if let Some((snapshot, model)) = self.snapshots.pop() {
            for number in 0..self.keys {
                let (key, expected) = (key_of(number), model.get(&key_of(number)));
                assert_eq!(snapshot.get(&self.table, &key)?, expected.as_ref().map(|(value, _)| value.clone()));
                assert_eq!(snapshot.expiry(&self.table, &key)?, expected.and_then(|(_, expiry)| time_of(expiry)));
            }
            assert_eq!(snapshot.len(&self.table)?, model.visible().len() as u64);
            let seen: Vec<_> = snapshot.range::<&[u8]>(&self.table, ..)?.collect::<Result<_>>()?;
            let expected = model.visible();
            assert!(
                seen.iter().map(|(key, value)| (&key[..], &value[..])).eq(expected.iter().map(|(k, (v, _))| (*k, *v)))
            );
        }
        if let Some((change, model)) = self.transactions.pop() {
            let keys: Vec<_> = (0..self.keys).map(key_of).collect();
            let expected: Vec<_> = keys.iter().map(|key| model.get(key).map(|(value, _)| value)).collect();
            assert_eq!(change.get_many(&self.table, &keys)?, expected, "a transaction from before");
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        let visible = self.model.visible();
        let expected: Vec<_> = visible.iter().map(|(key, (value, _))| (key.to_vec(), value.to_vec())).collect();
        let keys: Vec<_> = (0..self.keys).map(key_of).collect();
        for key in &keys {
            let entry = visible.get(&key[..]);
            assert_eq!(self.table.get(key)?.as_deref(), entry.map(|(value, _)| *value), "get");
            assert_eq!(self.table.contains_key(key)?, entry.is_some(), "contains_key");
            assert_eq!(self.table.expiry(key)?, entry.and_then(|(_, expiry)| time_of(*expiry)), "expiry");
            self.table.get_with(key, |value| assert_eq!(value, entry.map(|(value, _)| *value), "get_with"))?;
        }
        let values: Vec<_> = keys.iter().map(|key| visible.get(&key[..]).map(|(value, _)| value.to_vec())).collect();
        assert_eq!(self.table.get_many(&keys)?, values, "get_many");
        assert_eq!(self.table.range::<&[u8]>(..).collect::<Result<Vec<_>>>()?, expected, "range");
        let reversed: Vec<_> = self.table.range::<&[u8]>(..).rev().collect::<Result<_>>()?;
        assert!(reversed.iter().rev().eq(&expected), "a reverse range");
        let from_both: Vec<_> = std::iter::successors(Some(self.table.range::<&[u8]>(..)), |_| None)
            .flat_map(|mut range| std::iter::from_fn(move || range.next_back()))
            .collect::<Result<_>>()?;
        assert!(from_both.iter().rev().eq(&expected), "a range from its end");
        let mut range = self.table.range::<&[u8]>(..);
        for (_, expiry) in visible.values() {
            assert!(range.next_ref()?.is_some());
            assert_eq!(range.expiry(), time_of(*expiry), "the expiry of an entry of a range");
        }
        let bounds = (Bound::Excluded(&keys[0][..]), Bound::Unbounded::<&[u8]>);
        let after: Vec<_> = visible.range::<[u8], _>(bounds).map(|(key, _)| key.to_vec()).collect();
        let page: Vec<_> = self.table.prefix("key").after(&keys[0]).limit(3).next_batch(9)?;
        assert!(
            page.iter().map(|(key, _)| key).eq(after.iter().take(page.len()))
                && page.len() == after.len().min(3).min(page.len())
        );
        assert_eq!(self.table.first()?.as_ref(), expected.first(), "first");
        assert_eq!(self.table.last()?.as_ref(), expected.last(), "last");
        assert_eq!(self.table.len()?, expected.len() as u64, "len");
        assert_eq!(self.table.is_empty()?, expected.is_empty(), "is_empty");
        Ok(())
    }
}

fn time_of(expiry: i64) -> Option<std::time::SystemTime> {
    (expiry != NEVER).then(|| time(expiry))
}

#[test]
fn all_calls_agree_with_a_model_about_the_entries_that_there_are() {
    let seeds = std::env::var("NOFAULT_SEED").map_or(1..=by_depth(6, 25), |seed| {
        let seed = seed.parse().expect("NOFAULT_SEED is a number");
        seed..=seed
    });
    for seed in seeds {
        let mut history = History::begin(seed);
        for step in 0..400 {
            let stepped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.step()));
            match stepped {
                Ok(Ok(())) => {}
                Ok(Err(error)) => panic!("step {step} with NOFAULT_SEED={seed}: {error}"),
                Err(_) => panic!("step {step} with NOFAULT_SEED={seed}"),
            }
        }
        history.check().unwrap();
        // In the end nothing is left but what lasts.
        history.clock.advance(Duration::from_secs(3600));
        history.model.now += 3_600_000;
        (history.snapshots, history.transactions) = (Vec::new(), Vec::new());
        history.db.remove_expired().unwrap();
        history.check().unwrap();
        let lasting = history.model.visible().len() as u64;
        let found = history.db.verify().unwrap();
        assert!(found.is_clean(), "{found:?}");
        assert_eq!(history.table.clear().unwrap(), lasting);
        assert_eq!(history.table.approximate_len::<&[u8]>(..).unwrap(), 0, "seed {seed}: an expired entry is left");
    }
}
