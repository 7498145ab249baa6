//! Random histories of a database, run on a model (a map in memory) as well. All tests here consist of them.
//!
//! Kept true by: `Book::states` holds the contents that the database may show after a crash. The first is known to be
//! durable; each that follows was attempted and not acknowledged as durable. Commits are made one after the other, so a
//! crash always leaves one of these states, whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use nofault::blocking::{Db, Snapshot, Table};
use nofault::clock::ManualClock;
use nofault::db::Pace;
use nofault::error::{Error, ErrorKind, Result};
use nofault::settings::{Compression, Settings, TierUse};
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;

pub(crate) type Rows = BTreeMap<Vec<u8>, Arc<[u8]>>;
/// The content of a database: all tables by name.
pub(crate) type Model = BTreeMap<String, Arc<Rows>>;

/// Prints the seed and how to repeat it when the test holding this panics.
pub(crate) struct Seed {
    pub(crate) seed: u64,
    test: &'static str,
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "repeat with: NOFAULT_SEED={} cargo test -p nofault-tests --test torture {}",
                self.seed, self.test
            );
        }
    }
}

/// Runs `body` for each of `seeds`, or for the one in `NOFAULT_SEED`.
pub(crate) fn for_each_seed(test: &'static str, seeds: impl IntoIterator<Item = u64>, mut body: impl FnMut(u64)) {
    let chosen = std::env::var("NOFAULT_SEED").ok().map(|seed| seed.parse().expect("NOFAULT_SEED is a number"));
    let seeds: Vec<u64> = chosen.map_or_else(|| seeds.into_iter().collect(), |seed| vec![seed]);
    for seed in seeds {
        let named = Seed { seed, test };
        body(named.seed);
    }
}

/// Settings for reproducible tests: every size minimal, no threads and no private randomness.
pub(crate) fn tiny() -> Settings {
    tiny_with(512)
}

/// As [`tiny`] with another page size, and about as many pages in memory. Blocks of compressed pages stay in memory where
/// there is room: the pool's own judgement depends on times.
pub(crate) fn tiny_with(page_bytes: usize) -> Settings {
    Settings {
        page_bytes,
        cache_bytes: (656 << 10) + (page_bytes - 512) * 100,
        log_bytes: 64 << 10,
        background_threads: false,
        seed: Some(0x5EED),
        // It stands still: entries expire long before, or long after.
        clock: ManualClock::at(UNIX_EPOCH + Duration::from_secs(1000)).into(),
        ..Settings::with_small_pages().with_tier(TierUse::Always)
    }
}

/// The content that the database should have, and the contents that it may have after a crash.
#[derive(Debug, Clone)]
pub(crate) struct Book {
    states: Vec<Model>,
}

impl Book {
    pub(crate) fn new() -> Self {
        Self { states: vec![Model::new()] }
    }

    /// The content that a reader sees after the last commit was acknowledged.
    pub(crate) fn newest(&self) -> &Model {
        self.states.last().unwrap()
    }

    /// Notes that a commit leading to `after` is about to be attempted.
    pub(crate) fn attempt(&mut self, after: Model) {
        self.states.push(after);
    }

    /// Notes that the last commit was refused entirely.
    pub(crate) fn refused(&mut self) {
        self.states.pop();
    }

    /// Notes that everything so far is durable.
    pub(crate) fn durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    /// Notes the content found after a restart: it must be one of the allowed ones, and is durable from now on.
    pub(crate) fn survived(&mut self, found: Model, what: &str) {
        if !self.states.contains(&found) {
            let floor = difference(&self.states[0], &found);
            let top = difference(self.newest(), &found);
            panic!(
                "{what}: shows none of the {} states it may; against the durable one {floor}; against the newest {top}",
                self.states.len()
            );
        }
        self.states = vec![found];
    }
}

/// Describes the first differences between two contents.
pub(crate) fn difference(expected: &Model, found: &Model) -> String {
    let mut differences = Vec::new();
    let show = |value: Option<&Arc<[u8]>>| {
        value.map_or("nothing".into(), |value| format!("{} bytes of {:?}", value.len(), value.first()))
    };
    let tables: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    for table in tables {
        let none = Arc::new(Rows::new());
        let (a, b) = (expected.get(table).unwrap_or(&none), found.get(table).unwrap_or(&none));
        if expected.contains_key(table) != found.contains_key(table) {
            differences.push(format!("table {table} there: {}", found.contains_key(table)));
        }
        for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
            if a.get(key) != b.get(key) {
                let key_name = String::from_utf8_lossy(key);
                differences.push(format!("{table}/{key_name}: {} instead of {}", show(b.get(key)), show(a.get(key))));
            }
        }
    }
    let count = differences.len();
    differences.truncate(4);
    format!("{count} differences: {}", differences.join("; "))
}

/// Reads the content of the database by scanning.
///
/// # Errors
/// The first error of a read.
pub(crate) fn content(db: &Db) -> Result<Model> {
    let mut model = Model::new();
    for name in db.table_names()? {
        let rows: Result<Rows> =
            db.table(&name)?.range::<&[u8]>(..).map(|row| row.map(|(k, v)| (k, v.into()))).collect();
        model.insert(name, Arc::new(rows?));
    }
    Ok(model)
}

pub(crate) fn key_of(number: u32) -> Vec<u8> {
    // Some keys are long, and keys share their beginnings.
    format!("key-{:04}{}", number, "x".repeat((number % 11 * 5) as usize)).into_bytes()
}

/// Returns a value of which any part differs from every other value. Some values can be compressed.
pub(crate) fn value_of(stamp: u32, len: usize) -> Arc<[u8]> {
    let run = [3, 3, 20, 90][stamp as usize % 4];
    (0..len).map(|at| (stamp as usize).wrapping_mul(31).wrapping_add(at / run * 7) as u8).collect()
}

/// Parameters that determine the steps of a history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Number of keys that are used.
    pub(crate) keys: u32,
    /// Whether to close and reopen the database now and then.
    pub(crate) reopen: bool,
}

/// A database under test, a model of it, and the random generator.
pub(crate) struct Story {
    pub(crate) db: Db,
    pub(crate) book: Book,
    pub(crate) rng: Rng,
    pub(crate) style: Style,
    directory: Arc<dyn Directory>,
    settings: Settings,
    snapshots: Vec<(Snapshot, Model)>,
    stamp: u32,
    /// Whether a commit was attempted whose outcome is unknown.
    pub(crate) undecided: bool,
}

/// The state of a test after its database has failed.
pub(crate) struct FailedStory {
    pub(crate) book: Book,
    pub(crate) rng: Rng,
    pub(crate) error: Error,
}

impl Story {
    pub(crate) fn new(
        db: Db,
        directory: Arc<dyn Directory>,
        settings: &Settings,
        book: Book,
        rng: Rng,
        style: Style,
    ) -> Self {
        Self {
            db,
            book,
            stamp: 0,
            rng,
            style,
            directory,
            settings: settings.clone(),
            snapshots: Vec::new(),
            undecided: false,
        }
    }

    /// Takes up to `steps` random steps, until one fails.
    pub(crate) fn live(mut self, steps: usize) -> std::result::Result<Self, FailedStory> {
        for _ in 0..steps {
            if let Err(error) = self.step() {
                return Err(self.broken(error));
            }
        }
        Ok(self)
    }

    pub(crate) fn broken(self, error: Error) -> FailedStory {
        FailedStory { book: self.book, rng: self.rng, error }
    }

    /// Takes one random step.
    pub(crate) fn step(&mut self) -> Result<()> {
        match self.rng.u32(..42) {
            0..12 => self.one_write(),
            12..20 => {
                let count = self.rng.usize(1..20);
                self.batch(count)
            }
            20 => {
                let count = self.rng.usize(60..150);
                self.batch(count)
            }
            21..25 => self.transaction(),
            25..28 => self.create_table(),
            28..30 => self.checkpoint(),
            30..32 => self.sync(),
            32 if self.style.reopen => self.reopen(),
            33 => self.bulk_load(),
            34 => {
                if self.snapshots.len() < 2 {
                    self.snapshots.push((self.db.snapshot(), self.book.newest().clone()));
                }
                Ok(())
            }
            35 => self.check_snapshot(),
            36 => self.drop_table(),
            37 => self.compact(),
            38 => self.set_compression(),
            39 => self.rename_table(),
            // Removes entries that no reader sees.
            40 => self.db.remove_expired().map(drop),
            _ => self.read(),
        }
    }

    fn table(&mut self) -> Result<Option<(String, Table)>> {
        let names: Vec<String> = self.book.newest().keys().cloned().collect();
        match self.rng.choice(names) {
            None => Ok(None),
            Some(name) => self.db.table(&name).map(|table| Some((name, table))),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        key_of(self.rng.u32(..self.style.keys))
    }

    /// Returns a new value for a key; `None` deletes the key.
    fn value(&mut self) -> Option<Arc<[u8]>> {
        self.stamp += 1;
        let len = match self.rng.u32(..40) {
            0..12 => return None,
            12..36 => self.rng.usize(..60),
            36..38 => self.rng.usize(60..500),
            // Some of the same length: they are overwritten where they lie.
            38 => [150, 400, 1500][self.rng.usize(..3)],
            _ => self.rng.usize(500..9000),
        };
        Some(value_of(self.stamp, len))
    }

    /// Returns what a commit puts for a new value of a key: some entries expire, in the future; and to put one that has expired
    /// is a way to delete. `None` deletes the key.
    fn put_of(&mut self, key: &[u8], value: Option<&Arc<[u8]>>) -> Option<(Arc<[u8]>, Option<SystemTime>)> {
        // The key of an entry that expires may have sixteen bytes fewer.
        let expires = self.rng.u8(..4) == 0 && key.len() <= self.db.key_bytes_max() - 16;
        match value {
            Some(value) => Some((value.clone(), expires.then_some(UNIX_EPOCH + Duration::from_secs(2000)))),
            None if expires => {
                let len = [0, 20, 300, 1500, 9000][self.rng.usize(..5)];
                Some((value_of(self.stamp, len), Some(UNIX_EPOCH + Duration::from_secs(500))))
            }
            None => None,
        }
    }

    fn durability(&mut self) -> Durability {
        if self.rng.u32(..4) == 0 { Durability::Deferred } else { Durability::Sync }
    }

    /// Attempts a commit that leads to the content `after`.
    fn commit(&mut self, after: Model, durability: Durability, work: impl FnOnce(&Db) -> Result<()>) -> Result<()> {
        self.book.attempt(after);
        self.undecided = true;
        work(&self.db)?;
        self.undecided = false;
        if durability == Durability::Sync {
            self.book.durable();
        }
        Ok(())
    }

    fn one_write(&mut self) -> Result<()> {
        let Some((name, table)) = self.table()? else { return self.create_table() };
        let (key, value) = (self.key(), self.value());
        let mut after = self.book.newest().clone();
        change(&mut after, &name, &key, value.as_ref());
        let put = self.put_of(&key, value.as_ref());
        self.commit(after, Durability::Sync, |_| match put {
            Some((value, Some(expiry))) => table.put_with_expiry(&key, value, expiry),
            Some((value, None)) => table.put(&key, value),
            None => table.delete(&key),
        })
    }

    fn batch(&mut self, count: usize) -> Result<()> {
        let mut batch = Batch::new();
        let mut after = self.book.newest().clone();
        for _ in 0..count {
            let Some((name, table)) = self.table()? else { return self.create_table() };
            let (key, value) = (self.key(), self.value());
            change(&mut after, &name, &key, value.as_ref());
            match self.put_of(&key, value.as_ref()) {
                Some((value, Some(expiry))) => batch.put_with_expiry(&table, &key, value, expiry),
                Some((value, None)) => batch.put(&table, &key, value),
                None => batch.delete(&table, &key),
            };
        }
        let durability = self.durability();
        self.commit(after, durability, |db| db.write(batch, durability))
    }

    /// Runs a transaction that reads, writes, reads its own writes, and commits or is dropped.
    fn transaction(&mut self) -> Result<()> {
        let Some((name, table)) = self.table()? else { return self.create_table() };
        let mut after = self.book.newest().clone();
        let transaction = self.db.begin();
        for _ in 0..self.rng.usize(1..8) {
            let (key, value) = (self.key(), self.value());
            assert_eq!(transaction.get(&table, &key)?, value_in(&after, &name, &key), "in a transaction");
            match self.put_of(&key, value.as_ref()) {
                Some((value, Some(expiry))) => transaction.put_with_expiry(&table, &key, value, expiry)?,
                Some((value, None)) => transaction.put(&table, &key, value)?,
                None => transaction.delete(&table, &key)?,
            }
            change(&mut after, &name, &key, value.as_ref());
        }
        let from = self.key();
        let seen: Vec<_> = transaction.range(&table, from.clone()..)?.take(5).collect::<Result<_>>()?;
        let expected: Vec<_> = after[&name].range(from..).take(5).map(|(k, v)| (k.clone(), v.to_vec())).collect();
        assert_eq!(seen, expected, "a range in a transaction");
        if self.rng.u32(..4) == 0 {
            return Ok(());
        }
        let durability = self.durability();
        self.commit(after, durability, |_| transaction.commit(durability))
    }

    fn create_table(&mut self) -> Result<()> {
        let name = format!("table-{}", self.rng.u32(..3));
        if self.book.newest().contains_key(&name) {
            let refused = self.db.create_table(&name).expect_err("it exists");
            return if refused.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(refused) };
        }
        let mut after = self.book.newest().clone();
        after.insert(name.clone(), Arc::default());
        self.commit(after, Durability::Sync, |db| db.create_table(&name).map(drop))
    }

    /// Drops a table, and checks that its handle returns an error from then on.
    fn drop_table(&mut self) -> Result<()> {
        let Some((name, table)) = self.table()? else { return Ok(()) };
        let mut after = self.book.newest().clone();
        after.remove(&name);
        self.commit(after, Durability::Sync, |db| db.drop_table(&name))?;
        let refused = table.get(self.key()).expect_err("it was dropped");
        if refused.kind() == ErrorKind::NotFound { Ok(()) } else { Err(refused) }
    }

    /// Renames a table, and checks that its handle still reads it.
    fn rename_table(&mut self) -> Result<()> {
        let Some((name, table)) = self.table()? else { return Ok(()) };
        let to = format!("table-{}", self.rng.u32(..4));
        if to == name {
            // Nothing is committed, so no deferred commit becomes durable.
            return self.db.rename_table(&name, &to);
        }
        let mut after = self.book.newest().clone();
        if after.contains_key(&to) {
            let refused = self.db.rename_table(&name, &to).expect_err("it exists");
            return if refused.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(refused) };
        }
        let rows = after.remove(&name).unwrap_or_default();
        after.insert(to.clone(), rows.clone());
        self.commit(after, Durability::Sync, |db| db.rename_table(&name, &to))?;
        let key = self.key();
        assert_eq!(table.get(&key)?, rows.get(&key).map(|value| value.to_vec()), "by a handle from before");
        Ok(())
    }

    fn set_compression(&mut self) -> Result<()> {
        let Some((name, _)) = self.table()? else { return Ok(()) };
        let all = [Compression::None, Compression::Fast, Compression::Small, Compression::Small];
        let compression = all[self.rng.usize(..4)];
        let after = self.book.newest().clone();
        self.commit(after, Durability::Sync, |db| db.set_compression(&name, compression))
    }

    fn bulk_load(&mut self) -> Result<()> {
        let name = format!("bulk-{}", self.rng.u32(..2));
        if !self.book.newest().contains_key(&name) {
            let mut after = self.book.newest().clone();
            after.insert(name.clone(), Arc::default());
            self.commit(after, Durability::Sync, |db| db.create_table(&name).map(drop))?;
        }
        let table = self.db.table(&name)?;
        let count = self.rng.u32(1..self.style.keys.min(120));
        let mut numbers: Vec<u32> = (0..count).map(|_| self.rng.u32(..self.style.keys)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut after = self.book.newest().clone();
        let mut rows = Rows::clone(&after[&name]);
        let mut entries = Vec::new();
        for key in numbers.into_iter().map(key_of) {
            let value = self.value();
            // Where a batch would delete the key, the entry is an empty one, or has expired already.
            let (loaded, expiry) = self.put_of(&key, value.as_ref()).unwrap_or_default();
            if value.is_none() && expiry.is_some() {
                rows.remove(&key);
            } else {
                rows.insert(key.clone(), loaded.clone());
            }
            entries.push((key, loaded, expiry));
        }
        after.insert(name, Arc::new(rows));
        self.commit(after, Durability::Sync, |_| table.bulk_load(entries).map(drop))
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.db.checkpoint()?;
        self.book.durable();
        Ok(())
    }

    /// Compacts the database, completely or only its first scattered pages.
    fn compact(&mut self) -> Result<()> {
        let mut lists = self.rng.usize(..6);
        self.db.compact(Pace::Full, |_| {
            lists = lists.wrapping_sub(1);
            lists > 0
        })?;
        // It begins with a checkpoint.
        self.book.durable();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.db.sync()?;
        self.book.durable();
        Ok(())
    }

    fn reopen(&mut self) -> Result<()> {
        self.snapshots.clear();
        // The old one is closed before the new one is opened: it would go on writing to the same files.
        let other = nofault_sim::SimWorld::new(0, nofault_sim::SimOptions::calm());
        self.db = Db::create_in(&other.directory(), &self.settings)?;
        // Twice: one fault must not keep the database shut.
        self.db = Db::open_in(&self.directory, &self.settings).or_else(|error| {
            assert!(!blames_the_data(&error), "closed and opened again: {error:?}");
            Db::open_in(&self.directory, &self.settings)
        })?;
        let found = content(&self.db).or_else(|_| content(&self.db))?;
        self.book.survived(found, "closed and opened again");
        Ok(())
    }

    fn check_snapshot(&mut self) -> Result<()> {
        let Some((snapshot, model)) = self.snapshots.pop() else { return Ok(()) };
        for (name, rows) in &model {
            let table = snapshot.table(name)?;
            let keys: Vec<Vec<u8>> = (0..10).map(|_| self.key()).collect();
            let expected: Vec<_> = keys.iter().map(|key| rows.get(key).map(|value| value.to_vec())).collect();
            assert_eq!(snapshot.get_many(&table, &keys)?, expected, "get_many in a snapshot of {name}");
        }
        Ok(())
    }

    /// Reads some keys or ranges and compares them with the model.
    fn read(&mut self) -> Result<()> {
        let Some((name, table)) = self.table()? else { return Ok(()) };
        let rows = self.book.newest()[&name].clone();
        match self.rng.u32(..3) {
            0 => {
                let key = self.key();
                assert_eq!(table.get(&key)?, rows.get(&key).map(|value| value.to_vec()), "get");
            }
            1 => {
                let keys: Vec<Vec<u8>> = (0..self.rng.usize(..30)).map(|_| self.key()).collect();
                let expected: Vec<_> = keys.iter().map(|key| rows.get(key).map(|value| value.to_vec())).collect();
                assert_eq!(table.get_many(&keys)?, expected, "get_many");
            }
            _ => {
                let from = self.key();
                let seen: Vec<_> = table.range(from.clone()..).rev().take(10).collect::<Result<_>>()?;
                let expected: Vec<_> =
                    rows.range(from..).rev().take(10).map(|(key, value)| (key.clone(), value.to_vec())).collect();
                assert_eq!(seen, expected, "a reverse range");
            }
        }
        Ok(())
    }

    /// Checks that the content equals the model, and that nothing is damaged.
    ///
    /// # Errors
    /// The error of a read.
    pub(crate) fn check(&mut self) -> Result<()> {
        let found = content(&self.db)?;
        assert!(found == *self.book.newest(), "{}", difference(self.book.newest(), &found));
        verify(&self.db)
    }
}

/// Returns whether an error blames damaged files or a bug.
pub(crate) fn blames_the_data(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Bug | ErrorKind::NotFound | ErrorKind::InvalidCall)
}

/// Verifies the database and expects no damage.
///
/// # Errors
/// The error of the disk.
pub(crate) fn verify(db: &Db) -> Result<()> {
    let problems = db.verify()?.problems;
    match problems.iter().find(|problem| !blames_the_data(&problem.error)) {
        Some(problem) => Err(problem.error.clone()),
        None if problems.is_empty() => Ok(()),
        None => panic!("verify finds {problems:?}"),
    }
}

pub(crate) fn change(model: &mut Model, table: &str, key: &[u8], value: Option<&Arc<[u8]>>) {
    let rows = Arc::make_mut(model.get_mut(table).unwrap());
    match value {
        Some(value) => rows.insert(key.to_vec(), value.clone()),
        None => rows.remove(key),
    };
}

fn value_in(model: &Model, table: &str, key: &[u8]) -> Option<Vec<u8>> {
    model[table].get(key).map(|value| value.to_vec())
}
