//! The power is cut at each step of a node's storage: what was acknowledged is there, and log, vote and state are as of one
//! moment.
//!
//! Kept true by: `Moments` holds the content after each call. Calls commit in order, so after a power cut the content is that
//! after one of them: the last acknowledged as durable, or a later one.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "../examples/cluster/app.rs"]
mod app;
#[path = "power_cuts/greetings.rs"]
mod greetings;
#[path = "power_cuts/starts.rs"]
mod starts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use nofault::settings::Settings;
use nofault::{Db, ErrorKind};
use nofault_raft::{LogStore, StateMachine, StateReader};
use nofault_sim::content::Rows;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{
    CommittedLeaderId, Entry, EntryPayload, LogId, Membership, RaftLogReader, RaftSnapshotBuilder, Snapshot, Vote,
};

use crate::app::{Request, Types, VALUES, Values};

type Log = LogStore<Types>;
type State = StateMachine<Types, Values>;

/// All that a node has stored.
#[derive(Debug, Clone, Default, PartialEq)]
struct Content {
    vote: Option<Vote<u64>>,
    committed: Option<LogId<u64>>,
    purged: Option<LogId<u64>>,
    log: BTreeMap<u64, Entry<Types>>,
    applied: Option<LogId<u64>>,
    members: Option<LogId<u64>>,
    rows: Rows,
}

impl Content {
    fn apply(&mut self, entry: &Entry<Types>) {
        self.applied = Some(entry.log_id);
        match &entry.payload {
            EntryPayload::Normal(Request::Append { key, more }) => {
                self.rows.entry(key.clone().into_bytes()).or_default().extend(more);
            }
            EntryPayload::Normal(Request::Put { key, value }) => {
                self.rows.insert(key.clone().into_bytes(), value.clone());
            }
            EntryPayload::Normal(Request::Delete { key }) => {
                self.rows.remove(key.as_bytes());
            }
            EntryPayload::Membership(_) => self.members = Some(entry.log_id),
            EntryPayload::Normal(Request::Name { .. }) | EntryPayload::Blank => {}
        }
    }

    /// The last entry that the log lacks once openraft has started: it purges a log that ends before the state.
    fn gone(&self) -> Option<LogId<u64>> {
        let last = self.log.values().next_back().map(|entry| entry.log_id).or(self.purged);
        if last < self.applied { self.applied } else { self.purged }
    }
}

/// The contents that the node may show after a power cut: the first is known to be durable.
#[derive(Debug)]
struct Moments {
    contents: Vec<Content>,
    /// Number of contents that are not kept any more, as a later one is durable.
    passed: usize,
}

impl Moments {
    fn newest(&self) -> Content {
        self.contents.last().unwrap().clone()
    }

    /// Notes that a call leading to this content is about to be made. Returns its number.
    fn attempt(&mut self, content: Content) -> usize {
        self.contents.push(content);
        self.passed + self.contents.len() - 1
    }

    fn durable(&mut self, number: usize) {
        self.contents.drain(..number.saturating_sub(self.passed));
        self.passed = self.passed.max(number);
    }

    fn survived(&mut self, found: Content, what: &str) {
        let (first, last) = (&self.contents[0], self.newest());
        assert!(
            self.contents.contains(&found),
            "{what}: after the power cut {found:?}\nis none of {} contents from {first:?}\nto {last:?}",
            self.contents.len()
        );
        *self = Self { contents: vec![found], passed: 0 };
    }
}

fn settings() -> Settings {
    Settings { cache_bytes: 2 << 20, log_bytes: 256 << 10, ..Settings::default() }
}

fn log_id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

/// Another leader's snapshot, to be installed, with the content that it leads to.
struct ForeignSnapshot {
    _folder: tempfile::TempDir,
    snapshot: Snapshot<Types>,
    content: Content,
}

async fn foreign_snapshot(rng: &mut Rng, from: &Content) -> ForeignSnapshot {
    let (folder, _world, db) = calm_home(rng.u64(..));
    let (_log, mut state) = open(&db, folder.path()).await.unwrap();
    let index = from.log.keys().next_back().copied().or(from.purged.map(|id| id.index)).unwrap_or(0) + 5;
    let term = from.vote.map_or(1, |vote| vote.leader_id().term);
    let mut content = Content { rows: Rows::new(), ..from.clone() };
    let entries: Vec<Entry<Types>> = (0..4).map(|at| entry(rng, term, index + at)).collect();
    content.members = None;
    entries.iter().for_each(|entry| content.apply(entry));
    state.apply(entries).await.unwrap();
    let snapshot = state.get_snapshot_builder().await.build_snapshot().await.unwrap();
    ForeignSnapshot { _folder: folder, snapshot, content }
}

fn entry(rng: &mut Rng, term: u64, index: u64) -> Entry<Types> {
    let key = format!("k{}", rng.u8(..6));
    let mut bytes = vec![0; [3, 40, 3000][rng.usize(..3)]];
    rng.fill(&mut bytes);
    let payload = match rng.u8(..10) {
        0 => EntryPayload::Blank,
        1 => EntryPayload::Membership(Membership::new(vec![[1, 2, 3].into()], ())),
        2 => EntryPayload::Normal(Request::Delete { key }),
        3..6 => EntryPayload::Normal(Request::Put { key, value: bytes }),
        _ => EntryPayload::Normal(Request::Append { key, more: bytes }),
    };
    Entry { log_id: log_id(term, index), payload }
}

/// Runs a test, or one life of it, on this thread.
fn block_on<T>(life: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(life)
}

/// Makes a folder for snapshots, and a database in a world without faults.
fn calm_home(seed: u64) -> (tempfile::TempDir, SimWorld, Db) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let world = SimWorld::new(seed, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings()).unwrap();
    (folder, world, db)
}

async fn open(db: &Db, folder: &Path) -> nofault_raft::Result<(Log, State)> {
    nofault_raft::open(db, "group", &[VALUES], folder.join("snapshots"), Values).await
}

/// Reads all that a node has stored.
async fn content(log: &mut Log, state: &mut State) -> Content {
    let entries = log.try_get_log_entries(..).await.unwrap();
    let found = log.get_log_state().await.unwrap();
    let last = entries.last().map(|entry| entry.log_id).or(found.last_purged_log_id);
    assert_eq!(found.last_log_id, last);
    let (applied, members) = state.applied_state().await.unwrap();
    Content {
        // Each opening resets the flag.
        vote: log.read_vote().await.unwrap().map(|vote| Vote { committed: false, ..vote }),
        committed: log.read_committed().await.unwrap(),
        purged: found.last_purged_log_id,
        log: entries.into_iter().map(|entry| (entry.log_id.index, entry)).collect(),
        applied,
        members: *members.log_id(),
        rows: rows(&state.reader()).await,
    }
}

async fn rows(reader: &StateReader) -> Rows {
    let view = reader.view();
    let mut range = view.snapshot().iter(view.tables().table(VALUES).unwrap()).unwrap();
    let mut rows = Rows::new();
    while let Some((key, value)) = range.next().await.unwrap() {
        rows.insert(key, value);
    }
    rows
}

/// Makes random calls, as openraft would, until one fails or `steps` are done. Returns whether none failed.
async fn live(log: &mut Log, state: &mut State, moments: &mut Moments, rng: &mut Rng, steps: usize) -> bool {
    let mut in_flight = Vec::new();
    for _ in 0..steps {
        let mut next = moments.newest();
        let last = next.log.keys().next_back().copied().or(next.purged.map(|id| id.index));
        let term = next.vote.map_or(1, |vote| vote.leader_id().term);
        let applied = next.applied.map_or(0, |id| id.index + 1);
        let is_done = match rng.u8(..16) {
            0..7 => {
                let begin = last.map_or(0, |last| last + 1);
                let entries: Vec<_> = (begin..begin + rng.u64(1..6)).map(|index| entry(rng, term, index)).collect();
                next.log.extend(entries.iter().map(|entry| (entry.log_id.index, entry.clone())));
                let number = moments.attempt(next);
                match log.append_entries(entries).await {
                    Ok(durable) => in_flight.push((number, durable)),
                    Err(_) => return false,
                }
                // Some acknowledgements are awaited at once, others with later ones.
                if rng.bool() {
                    for (number, durable) in in_flight.drain(..) {
                        if durable.await.is_err() {
                            return false;
                        }
                        moments.durable(number);
                    }
                }
                true
            }
            7 => {
                let vote = Vote::new_committed(term + 1, rng.u64(1..4));
                next.vote = Some(Vote { committed: false, ..vote });
                let number = moments.attempt(next);
                let saved = log.save_vote(&vote).await.is_ok();
                if saved {
                    moments.durable(number);
                }
                saved
            }
            8 => {
                // Only entries that are not applied may conflict.
                let Some(last) = last.filter(|last| *last >= applied) else { continue };
                let from = rng.u64(applied..=last);
                let Some(conflict) = next.log.get(&from).map(|entry| entry.log_id) else { continue };
                next.log.split_off(&from);
                moments.attempt(next);
                log.truncate(conflict).await.is_ok()
            }
            9 => {
                let Some(upto) = next.applied.filter(|id| next.log.contains_key(&id.index)) else { continue };
                next.purged = Some(upto);
                next.log = next.log.split_off(&(upto.index + 1));
                moments.attempt(next);
                log.purge(upto).await.is_ok()
            }
            10..14 => {
                let entries: Vec<_> = next.log.range(applied..).take(rng.usize(1..5)).map(|(_, e)| e.clone()).collect();
                let Some(upto) = entries.last().map(|entry| entry.log_id) else { continue };
                next.committed = Some(upto);
                moments.attempt(next.clone());
                if log.save_committed(Some(upto)).await.is_err() {
                    return false;
                }
                entries.iter().for_each(|entry| next.apply(entry));
                moments.attempt(next);
                state.apply(entries).await.is_ok()
            }
            14 => {
                let built = state.get_snapshot_builder().await.build_snapshot().await;
                let shown = built.as_ref().map(|snapshot| snapshot.meta.last_log_id);
                shown.is_ok_and(|shown| shown == next.applied)
            }
            _ => {
                let ForeignSnapshot { snapshot, content, _folder } = foreign_snapshot(rng, &next).await;
                // Filling the new tables changes nothing that shows; one commit does.
                let upto = content.applied.unwrap();
                let purged = Content { purged: content.applied, log: BTreeMap::new(), ..content.clone() };
                let entries: Vec<_> = (1..3).map(|at| entry(rng, term, upto.index + at)).collect();
                let more = entries.iter().map(|entry| (entry.log_id.index, entry.clone())).collect();
                let installed = moments.attempt(content);
                moments.attempt(purged.clone());
                let number = moments.attempt(Content { log: more, ..purged });
                // openraft has the log purged, and writes the entries behind, while another task installs the snapshot.
                let writes = async {
                    log.purge(upto).await.map_err(drop)?;
                    log.append_entries(entries).await.map_err(drop)?.await.map_err(drop)
                };
                let installs = async {
                    state.install_snapshot(&snapshot.meta, snapshot.snapshot).await.map_err(drop)?;
                    moments.durable(installed);
                    Ok(())
                };
                let are_done = tokio::try_join!(writes, installs).is_ok();
                if are_done {
                    moments.durable(number);
                }
                are_done
            }
        };
        if !is_done {
            return false;
        }
    }
    for (number, durable) in in_flight {
        if durable.await.is_err() {
            return false;
        }
        moments.durable(number);
    }
    true
}

/// Opens the node after a power cut, checks its state, and that it may offer its complete snapshot.
async fn reopened(db: &Db, folder: &Path, moments: &mut Moments, what: &str) -> (Log, State) {
    let (mut log, mut state) = open(db, folder).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = content(&mut log, &mut state).await;
    if let Some(snapshot) = state.get_current_snapshot().await.unwrap() {
        assert!(snapshot.meta.last_log_id <= found.applied, "{what}: {} is ahead of the state", snapshot.meta);
        assert!(snapshot.meta.last_log_id >= found.gone(), "{what}: the log does not follow {}", snapshot.meta);
    }
    moments.survived(found, what);
    (log, state)
}

fn options(rng: &mut Rng) -> SimOptions {
    [SimOptions::calm(), SimOptions::default(), SimOptions::adversarial()][rng.usize(..3)]
}

/// Lives a short life on a world with one power cut, and another one after it. Returns whether the first life ended before
/// the cut, and the number of its events.
fn cut_once(seed: u64, cut: u64, steps: usize) -> (bool, u64) {
    block_on(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut rng = Rng::with_seed(seed);
        let world = SimWorld::new(rng.u64(..), options(&mut rng));
        let db = Db::create_in(&world.directory(), &settings()).unwrap();
        let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
        db.sync().await.unwrap();
        let begun = world.events();
        world.cut_after(begun + cut);
        let mut moments = Moments { contents: vec![Content::default()], passed: 0 };
        let whole = live(&mut log, &mut state, &mut moments, &mut rng, steps).await;
        let events = world.events() - begun;
        assert!(whole || world.is_cut(), "seed {seed}: a call failed without a power cut");
        drop((log, state, db));
        let after = world.restart(rng.u64(..));
        let what = format!("seed {seed}, cut after {cut} of {events} events, {after}");
        let db = Db::open_in(&after.directory(), &settings()).unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let (mut log, mut state) = reopened(&db, folder.path(), &mut moments, &what).await;
        // The node continues, and keeps its writes from now on.
        assert!(live(&mut log, &mut state, &mut moments, &mut rng, 6).await, "{what}");
        db.await_durable().await.unwrap();
        let newest = moments.newest();
        assert_eq!(content(&mut log, &mut state).await, newest, "{what}");
        (whole, events)
    })
}

#[test]
fn a_power_cut_at_each_step_keeps_what_was_acknowledged_and_shows_one_moment() {
    for seed in 1..=4 {
        let (mut cut, mut events) = (0, 0);
        loop {
            // One step in nine, from another one on for each seed.
            cut += if cut == 0 { by_depth(seed, 1) } else { by_depth(9, 1) };
            let (whole, of) = cut_once(seed, cut, 24);
            events = events.max(of);
            if whole {
                break;
            }
        }
        println!("seed {seed}: {cut} power cuts in {events} events");
    }
}

#[test]
fn random_lives_end_in_power_cuts_and_go_on() {
    for seed in sample(100..160, 8) {
        let cut = Rng::with_seed(seed).u64(1..600);
        cut_once(seed, cut, 120);
    }
}

/// Fills a log with 400 entries, of which the state has the first `applied`, cuts the power while `change` becomes durable, and
/// returns the indices that are left then, over many lives.
fn left_after(applied: usize, change: impl AsyncFn(&mut Log)) -> BTreeSet<Vec<u64>> {
    let mut left = BTreeSet::new();
    for seed in 0..60 {
        block_on(async {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let world = SimWorld::new(seed, SimOptions::adversarial());
            let db = Db::create_in(&world.directory(), &settings()).unwrap();
            let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
            let entries = (0..400).map(|index| Entry { log_id: log_id(1, index), payload: EntryPayload::Blank });
            state.apply(entries.clone().take(applied)).await.unwrap();
            log.append_entries(entries.collect()).await.unwrap().await.unwrap();
            world.cut_after(world.events() + 1 + seed % 3);
            change(&mut log).await;
            drop(db.await_durable().await);
            drop((log, state, db));
            let db = Db::open_in(&world.restart(seed).directory(), &settings()).unwrap();
            let (mut log, _state) = open(&db, folder.path()).await.unwrap();
            let entries = log.try_get_log_entries(..).await.unwrap();
            left.insert(entries.iter().map(|entry| entry.log_id.index).collect());
        });
    }
    left
}

#[test]
fn a_power_cut_in_a_long_truncation_leaves_no_hole() {
    let left = left_after(10, async |log| drop(log.truncate(log_id(1, 10)).await));
    for indices in &left {
        assert!(indices.len() >= 10 && indices.iter().copied().eq(0..indices.len() as u64), "{indices:?}");
    }
    assert!(left.len() > 2, "all or nothing was cut");
}

#[test]
fn a_power_cut_in_a_long_purge_leaves_all_or_what_was_to_stay() {
    let left = left_after(400, async |log| drop(log.purge(log_id(1, 389)).await));
    assert_eq!(left, BTreeSet::from([(0..400).collect(), (390..400).collect()]));
}

#[test]
fn what_an_interrupted_installation_has_left_is_removed() {
    block_on(async {
        let (folder, _world, db) = calm_home(7);
        drop(open(&db, folder.path()).await.unwrap());
        let left = db.create_table("group/state/1/values").await.unwrap();
        let other = db.create_table("group2/state/1/values").await.unwrap();
        left.put("a", "b").await.unwrap();
        std::fs::write(folder.path().join("snapshots/part-7"), "cut off").unwrap();
        drop(open(&db, folder.path()).await.unwrap());
        assert_eq!(left.get("a").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(
            db.table_names().await.unwrap(),
            ["group/log", "group/meta", "group/state/0/values", "group2/state/1/values"]
        );
        assert!(std::fs::read_dir(folder.path().join("snapshots")).unwrap().next().is_none());
        drop(other);
    });
}

#[test]
fn a_snapshot_that_is_damaged_is_neither_offered_nor_installed() {
    block_on(async {
        let (folder, _world, db) = calm_home(8);
        let (log, mut state) = open(&db, folder.path()).await.unwrap();
        let mut rng = Rng::with_seed(8);
        state.apply((0..20).map(|index| entry(&mut rng, 1, index)).collect::<Vec<_>>()).await.unwrap();
        let meta = state.get_snapshot_builder().await.build_snapshot().await.unwrap().meta;
        assert_eq!(state.get_current_snapshot().await.unwrap().unwrap().meta, meta);
        let path = folder.path().join("snapshots/snapshot");
        let whole = std::fs::read(&path).unwrap();
        let before = rows(&state.reader()).await;
        for at in (0..whole.len()).step_by(whole.len() / 40) {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            // As another node sends it.
            let mut file = state.begin_receiving_snapshot().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut file, &damaged).await.unwrap();
            tokio::io::AsyncWriteExt::shutdown(&mut file).await.unwrap();
            state.install_snapshot(&meta, file).await.unwrap_err();
            assert_eq!(rows(&state.reader()).await, before);
        }
        drop((log, state));
        for at in (0..whole.len()).step_by(whole.len() / 40) {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            // As this node finds it.
            std::fs::write(&path, &damaged).unwrap();
            let (_log, mut state) = open(&db, folder.path()).await.unwrap();
            assert!(state.get_current_snapshot().await.unwrap().is_none(), "byte {at}");
        }
        std::fs::write(&path, &whole).unwrap();
        let (_log, mut state) = open(&db, folder.path()).await.unwrap();
        assert_eq!(state.get_current_snapshot().await.unwrap().unwrap().meta, meta);
    });
}

#[test]
fn a_snapshot_gets_its_name_only_when_the_row_with_its_id_is_durable() {
    block_on(async {
        let (folder, world, db) = calm_home(11);
        let (log, mut state) = open(&db, folder.path()).await.unwrap();
        let mut rng = Rng::with_seed(11);
        state.apply((0..5).map(|index| entry(&mut rng, 1, index)).collect::<Vec<_>>()).await.unwrap();
        let kept = state.get_snapshot_builder().await.build_snapshot().await.unwrap().meta;
        state.apply((5..9).map(|index| entry(&mut rng, 1, index)).collect::<Vec<_>>()).await.unwrap();
        db.await_durable().await.unwrap();
        let named = || std::fs::read(folder.path().join("snapshots/snapshot")).unwrap();
        let before = named();
        // The power is cut before the row is durable. The file's content is.
        world.cut_after(world.events());
        state.get_snapshot_builder().await.build_snapshot().await.unwrap_err();
        assert_eq!(named(), before);
        drop((log, state, db));
        let db = Db::open_in(&world.restart(1).directory(), &settings()).unwrap();
        let (_log, mut state) = open(&db, folder.path()).await.unwrap();
        assert_eq!(state.applied_state().await.unwrap().0, Some(log_id(1, 8)));
        // The row may be there all the same.
        let offered = state.get_current_snapshot().await.unwrap();
        assert!(offered.is_none_or(|offered| offered.meta == kept));
    });
}

#[test]
fn appends_in_flight_share_a_write_and_are_readable_before_it() {
    block_on(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let db = Db::create(folder.path().join("db"), &settings()).await.unwrap();
        let (mut log, _state) = open(&db, folder.path()).await.unwrap();
        let mut rng = Rng::with_seed(9);
        // A busy machine may take so long between two appends that each is written by itself: not each time.
        let mut rounds = Vec::new();
        for round in 0..100 {
            let before = db.stats().log;
            let (mut in_flight, mut waits) = (Vec::new(), 0);
            for index in round * 64..(round + 1) * 64 {
                let entries = vec![entry(&mut rng, 1, index)];
                {
                    let mut append = std::pin::pin!(log.append_entries(entries));
                    let first = append.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    waits += usize::from(first.is_pending());
                    in_flight.push(match first {
                        Poll::Ready(appended) => appended.unwrap(),
                        Poll::Pending => append.await.unwrap(),
                    });
                }
                assert_eq!(log.try_get_log_entries(index..).await.unwrap().len(), 1);
            }
            for durable in in_flight {
                durable.await.unwrap();
            }
            let after = db.stats().log;
            assert_eq!(after.records_durable - before.records_durable, 64);
            let groups = after.groups_written - before.groups_written;
            if waits <= 2 && groups < 32 {
                return;
            }
            rounds.push((waits, groups));
        }
        panic!("of 64 appends so many did not return at once, and they took so many writes of the log: {rounds:?}");
    });
}

#[test]
fn entries_behind_a_snapshot_that_is_being_installed_wait_for_it_and_votes_do_not() {
    block_on(async {
        let (folder, world, db) = calm_home(10);
        let (mut log, mut state) = open(&db, folder.path()).await.unwrap();
        let mut rng = Rng::with_seed(10);
        let entries =
            |rng: &mut Rng, range: std::ops::Range<u64>| range.map(|at| entry(rng, 1, at)).collect::<Vec<_>>();
        log.append_entries(entries(&mut rng, 0..5)).await.unwrap().await.unwrap();
        let ForeignSnapshot { snapshot, content: newest, _folder } =
            foreign_snapshot(&mut rng, &content(&mut log, &mut state).await).await;
        let upto = newest.applied.unwrap();
        log.purge(upto).await.unwrap();
        // An entry that counts as removed is not seen any more, and still there after a power cut.
        let found = log.get_log_state().await.unwrap();
        assert_eq!((found.last_purged_log_id, found.last_log_id), (Some(upto), Some(upto)));
        assert!(log.try_get_log_entries(..).await.unwrap().is_empty());
        let after = world.restart(1);
        let other = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (mut old_log, _state) =
            open(&Db::open_in(&after.directory(), &settings()).unwrap(), other.path()).await.unwrap();
        assert_eq!(old_log.try_get_log_entries(..).await.unwrap().len(), 5);

        let mut more = log.clone();
        let mut append = std::pin::pin!(more.append_entries(entries(&mut rng, upto.index + 1..upto.index + 3)));
        assert!(append.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        log.save_vote(&Vote::new(2, 3)).await.unwrap();
        assert!(append.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        state.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();
        append.await.unwrap().await.unwrap();
        assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), 2);

        // A state machine that has stopped will not install another one.
        log.purge(log_id(1, upto.index + 9)).await.unwrap();
        drop(state);
        let refused = log.append_entries(entries(&mut rng, upto.index + 10..upto.index + 11)).await;
        assert!(matches!(refused.map(drop), Err(nofault_raft::Error::Stopped(_))));
    });
}
