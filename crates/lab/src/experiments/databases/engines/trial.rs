//! The measurement of a trial of `engines`, method by method.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::Folder;
use crate::error::{LabError, LabErrorKind, Result};
use crate::format;
use crate::measure::Worker;
use crate::measure::entries::{Data, Key, mix as spread};
use crate::measure::mixes::{Chooser, Op};
use crate::measure::stores::Store;
use crate::paths::shown;
use crate::record::{Checks, TrialSpec};

// The timed work of one thread on a store. Every answer is checked.

/// Number of entries that a scan reads before the thread checks whether to stop.
const PORTION: usize = 512;
/// One durable commit in this many is read back, and also the last commit.
const COMMITS_PER_CHECK: u64 = 16;
/// Number of loaded entries checked after a load.
const LOADED_CHECKS: u64 = 500;

/// Checks [`LOADED_CHECKS`] random entries of a loaded store, and the first and the last entry.
pub(super) fn check_loaded(store: &dyn Store, data: Data) -> Result<Checks> {
    let mut checks = Checks::default();
    let some = (0..LOADED_CHECKS).map(|check| spread(check ^ data.seed) % data.count).chain([0, data.count - 1]);
    for number in some {
        let mut right = false;
        store.reader()?.get(&data.key(number), &mut |value| {
            right = value.is_some_and(|value| data.is_right(number, value));
            Ok(())
        })?;
        checks.verified += 1;
        checks.wrong += u64::from(!right);
    }
    Ok(checks)
}

/// Reads every entry once, to warm the store up; returns the number of entries. The values are checked only by later,
/// timed reads.
pub(super) fn read_all(store: &dyn Store, data: Data, known: u64) -> Result<usize> {
    let count = usize::try_from(known).unwrap_or(usize::MAX);
    store.reader()?.scan(&data.key(0), count, &mut |_, _| Ok(()))
}

/// Executes operations of a mix: unmeasured for `warm`, then for as long as the trial runs.
pub(super) fn mix(
    worker: &mut Worker<'_>,
    store: &dyn Store,
    history: &History,
    mut chooser: Chooser,
    warm: Duration,
    cancel: &AtomicBool,
) -> Result<()> {
    let warm_until = Instant::now() + warm;
    while Instant::now() < warm_until && !cancel.load(Ordering::Relaxed) {
        one(store, history, chooser.next(history.known()))?;
    }
    worker.start();
    // Execute at least one operation: a trial without an answer proves nothing.
    loop {
        let op = chooser.next(history.known());
        let started = Instant::now();
        let done = one(store, history, op)?;
        worker.latency("op", started.elapsed());
        worker.done(1, done.bytes);
        if let Some(right) = done.right {
            worker.verified(right);
        }
        if !worker.running() {
            return Ok(());
        }
    }
}

/// What one operation (get, put or scan) transferred and returned.
struct OpResult {
    /// Bytes of keys and values read or written.
    bytes: u64,
    /// Whether the returned value was right; `None` for an operation without one.
    right: Option<bool>,
}

fn one(store: &dyn Store, history: &History, op: Op) -> Result<OpResult> {
    match op {
        Op::Read(number) => {
            let right = get(store, history, number)?;
            Ok(OpResult { bytes: history.entry_bytes(), right: Some(right) })
        }
        Op::Update(number) => {
            put(store, history, number, false)?;
            Ok(OpResult { bytes: history.entry_bytes(), right: None })
        }
        Op::ReadChangeWrite(number) => {
            let right = get(store, history, number)?;
            put(store, history, number, false)?;
            Ok(OpResult { bytes: 2 * history.entry_bytes(), right: Some(right) })
        }
        Op::Insert => {
            let (turn, entry) = history.insert();
            store.write(&[entry], false)?;
            history.inserted(turn);
            Ok(OpResult { bytes: history.entry_bytes(), right: None })
        }
        Op::Scan(number, wanted) => {
            let known = history.known();
            let (seen, right) = range(store, history.data(), number, wanted)?;
            // The scan must find all entries known before it began.
            let enough = seen as u64 >= (wanted as u64).min(known - number);
            Ok(OpResult { bytes: seen as u64 * history.entry_bytes(), right: Some(right && enough) })
        }
    }
}

fn get(store: &dyn Store, history: &History, number: u64) -> Result<bool> {
    let before = history.before(number);
    let mut right = false;
    store.reader()?.get(&history.data().key(number), &mut |value| {
        right = history.is_right(number, before, value);
        Ok(())
    })?;
    Ok(right)
}

fn put(store: &dyn Store, history: &History, number: u64, durable: bool) -> Result<()> {
    let change = history.change(number);
    store.write(std::slice::from_ref(&change.entry), durable)?;
    history.committed(change);
    Ok(())
}

/// Reads up to `wanted` entries in order; returns their number, and whether each had the next key and its right value.
fn range(store: &dyn Store, data: Data, from: u64, wanted: usize) -> Result<(usize, bool)> {
    let (mut next, mut right) = (from, true);
    let seen = store.reader()?.scan(&data.key(from), wanted, &mut |key, value| {
        right &= key == data.key(next) && data.is_right(next, value);
        next += 1;
        Ok(())
    })?;
    Ok((seen, right))
}

/// Scans all entries in order, again and again, for as long as the trial runs.
pub(super) fn scan(worker: &mut Worker<'_>, store: &dyn Store, data: Data, known: u64) -> Result<()> {
    worker.start();
    let mut next = 0;
    loop {
        let wanted = PORTION.min(usize::try_from(known - next).unwrap_or(PORTION));
        let (seen, right) = range(store, data, next, wanted)?;
        worker.done(seen as u64, seen as u64 * data.entry_bytes());
        worker.verified(right && seen == wanted);
        next = if next + wanted as u64 >= known { 0 } else { next + wanted as u64 };
        if !worker.running() {
            return Ok(());
        }
    }
}

/// Makes durable commits of one entry each: unmeasured for `warm`, then for as long as the trial runs.
pub(super) fn commit(
    worker: &mut Worker<'_>,
    store: &dyn Store,
    history: &History,
    seed: u64,
    warm: Duration,
    cancel: &AtomicBool,
) -> Result<()> {
    let data = history.data();
    let mut chance = fastrand::Rng::with_seed(seed);
    let warm_until = Instant::now() + warm;
    while Instant::now() < warm_until && !cancel.load(Ordering::Relaxed) {
        put(store, history, chance.u64(0..data.count), true)?;
    }
    worker.start();
    let mut commits = 0;
    loop {
        let number = chance.u64(0..data.count);
        let started = Instant::now();
        put(store, history, number, true)?;
        worker.latency("op", started.elapsed());
        worker.done(1, data.entry_bytes());
        commits += 1;
        let last = !worker.running();
        if last || commits % COMMITS_PER_CHECK == 0 {
            worker.verified(get(store, history, number)?);
        }
        if last {
            return Ok(());
        }
    }
}

// The values that a read may return while other threads write: each value carries the number of its change. A read
// that began after a change was committed must not return an older value, nor a value whose change no thread has
// begun.
//
// Kept true by: changes of one key are made under a lock, so that they are committed in the order of their numbers.

/// Number of locks that the keys share: enough that writers of different keys hardly ever wait for each other.
const STRIPES: usize = 1 << 14;

/// The changes that one trial makes to each key. Changes of earlier trials have smaller numbers.
pub(super) struct History {
    data: Data,
    base: u64,
    began: Vec<AtomicU32>,
    done: Vec<AtomicU32>,
    stripes: Vec<Mutex<()>>,
    /// Number of entries that are inserted and may be read.
    known: AtomicU64,
    inserting: Mutex<()>,
}

/// A change in progress, which excludes other changes of its key. Pass it to [`History::committed`] once it is
/// committed.
pub(super) struct Change<'a> {
    pub(super) entry: (Key, Vec<u8>),
    number: u64,
    version: u32,
    _turn: MutexGuard<'a, ()>,
}

impl History {
    /// Starts the history of a table with `known` entries; `base` must be larger than the number of any change in an
    /// earlier trial.
    pub(super) fn new(data: Data, known: u64, base: u64) -> Self {
        let counters = || (0..data.count).map(|_| AtomicU32::new(0)).collect();
        let stripes = (0..STRIPES).map(|_| Mutex::new(())).collect();
        let (began, done) = (counters(), counters());
        Self { data, base, began, done, stripes, known: AtomicU64::new(known), inserting: Mutex::new(()) }
    }

    /// Number of inserted entries.
    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Acquire)
    }

    /// Begins a change of entry `number`, which must be loaded; waits while another change of the same key is in
    /// progress.
    pub(super) fn change(&self, number: u64) -> Change<'_> {
        let turn = self.stripes[number as usize % STRIPES].lock().unwrap_or_else(PoisonError::into_inner);
        let version = match self.began.get(number as usize) {
            Some(began) => began.fetch_add(1, Ordering::AcqRel).wrapping_add(1),
            None => 0,
        };
        let entry = self.data.changed(number, self.base + u64::from(version));
        Change { entry, number, version, _turn: turn }
    }

    /// Records that a change was committed.
    fn committed(&self, change: Change<'_>) {
        if let Some(done) = self.done.get(change.number as usize) {
            done.store(change.version, Ordering::Release);
        }
    }

    /// Returns the next entry to insert, and a lock that excludes other inserts; [`History::inserted`] makes the entry
    /// known.
    pub(super) fn insert(&self) -> (MutexGuard<'_, ()>, (Key, Vec<u8>)) {
        let turn = self.inserting.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.data.changed(self.known(), self.base);
        (turn, entry)
    }

    /// Records that the next entry was inserted, and lets other inserts proceed.
    fn inserted(&self, turn: MutexGuard<'_, ()>) {
        self.known.fetch_add(1, Ordering::AcqRel);
        drop(turn);
    }

    /// Returns the number of a key's latest committed change, to be taken before a read and passed to
    /// [`History::is_right`].
    pub(super) fn before(&self, number: u64) -> u32 {
        self.done.get(number as usize).map_or(0, |done| done.load(Ordering::Acquire))
    }

    /// Whether a read may return this value: it must be whole, of this key, and not overwritten before the read began.
    fn is_right(&self, number: u64, before: u32, value: Option<&[u8]>) -> bool {
        let Some(value) = value.filter(|value| self.data.is_right(number, value)) else { return false };
        let version = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let Some(of_trial) = version.checked_sub(self.base).filter(|of_trial| *of_trial > 0) else {
            return before == 0;
        };
        let began = self.began.get(number as usize).map_or(0, |began| began.load(Ordering::Acquire));
        (u64::from(before)..=u64::from(began)).contains(&of_trial)
    }

    /// Returns the keys and values of the table.
    pub(super) fn data(&self) -> Data {
        self.data
    }

    /// Bytes of a key and its value.
    pub(super) fn entry_bytes(&self) -> u64 {
        self.data.entry_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Data = Data { count: 10, value_bytes: 64, seed: 1 };

    #[test]
    fn a_value_older_than_the_last_commit_or_not_yet_begun_is_wrong() {
        let history = History::new(DATA, 10, 1000);
        let loaded = DATA.changed(3, 0).1;
        assert!(history.is_right(3, history.before(3), Some(&loaded)));
        assert!(!history.is_right(4, history.before(4), Some(&loaded)), "of another key");
        assert!(!history.is_right(3, history.before(3), None), "lost");
        assert!(!history.is_right(3, 0, Some(&DATA.changed(3, 1001).1)), "of the future");

        let before_the_change = history.before(3);
        let change = history.change(3);
        let changed = change.entry.1.clone();
        assert!(history.is_right(3, history.before(3), Some(&loaded)) && history.is_right(3, 0, Some(&changed)));
        history.committed(change);
        assert!(!history.is_right(3, history.before(3), Some(&loaded)), "overwritten before the read began");
        assert!(history.is_right(3, before_the_change, Some(&loaded)), "the read began before");
        assert!(history.is_right(3, history.before(3), Some(&changed)));
        assert!(!history.is_right(3, 0, Some(&changed[1..])), "not whole");
    }

    #[test]
    fn inserted_entries_become_known_one_by_one() {
        let history = History::new(DATA, 12, 1000);
        let (turn, entry) = history.insert();
        assert_eq!(entry.0, DATA.key(12));
        assert_eq!(history.known(), 12);
        history.inserted(turn);
        assert_eq!(history.known(), 13);
        assert!(history.is_right(12, history.before(12), Some(&entry.1)));
    }
}

// The folder with the database of one store's trials. A file next to the database describes its content, so that a
// trial after a failed load, or in another store's folder, ends with an error instead of a wrong figure.

/// The folder of the trials' database, whose note describes its content.
pub(super) struct Place(Folder);

/// Description of a database's content, stored next to the database.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Description {
    method: String,
    data_bytes: u64,
    entry_bytes: u64,
    seed: Option<u64>,
    entries: u64,
}

impl Description {
    fn of(spec: &TrialSpec, entries: u64) -> Self {
        Self {
            method: spec.method.clone(),
            data_bytes: spec.target.data_bytes,
            entry_bytes: spec.params.block_bytes,
            seed: spec.target.content_seed,
            entries,
        }
    }
}

impl Place {
    /// Returns the folder that a trial works in.
    ///
    /// # Errors
    /// `Usage` when the trial's target is not exactly one folder.
    pub(super) fn of(spec: &TrialSpec) -> Result<Self> {
        Folder::of(spec, "held.json").map(Self)
    }

    /// Returns the folder of the store's own files.
    pub(super) fn store(&self) -> PathBuf {
        self.0.store()
    }

    /// Removes an existing database and its description.
    pub(super) fn clear(&self) -> Result<()> {
        for removed in [fs::remove_file(&self.0.note), fs::remove_dir_all(self.store())] {
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(LabError::system(format!("empty {}", shown(&self.0.path)), &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the description of the database's present content.
    pub(super) fn keep(&self, spec: &TrialSpec, entries: u64) -> Result<()> {
        self.0.write_note(&Description::of(spec, entries))
    }

    /// Returns the number of entries in the database that a trial needs.
    ///
    /// # Errors
    /// `Usage` when the folder holds another database or none, because its load failed or was left out.
    pub(super) fn entries(&self, spec: &TrialSpec) -> Result<u64> {
        match self.0.note::<Description>() {
            Some(held) if held == Description::of(spec, held.entries) => Ok(held.entries),
            _ => {
                let message = format!("{}: its database was not loaded, or the load failed", spec.method);
                Err(LabError::new(LabErrorKind::Usage, message))
            }
        }
    }

    /// Returns the bytes that the store's files occupy on disk, and the largest files in words.
    pub(super) fn size(&self) -> Result<(u64, String)> {
        let files = crate::machine::cache::files_of(&self.store());
        let mut sizes = Vec::new();
        for file in files {
            use std::os::unix::fs::MetadataExt;
            // Blocks are counted, because a file may have holes. A file that a background thread has just removed
            // counts as zero.
            let bytes = fs::metadata(&file).map_or(0, |meta| meta.blocks() * 512);
            let name = shown(file.strip_prefix(self.store()).unwrap_or(&file)).to_string();
            sizes.push((bytes, name));
        }
        sizes.sort_by(|a, b| b.cmp(a));
        let shown: Vec<String> =
            sizes.iter().take(3).map(|(bytes, name)| format!("{name} {}", format::bytes(*bytes))).collect();
        let more = if sizes.len() > 3 { format!(" and {} more", sizes.len() - 3) } else { String::new() };
        Ok((sizes.iter().map(|(bytes, _)| bytes).sum(), shown.join(", ") + &more))
    }
}
