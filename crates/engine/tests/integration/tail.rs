//! Tails: a copy that applies the events of a tail has, at each commit, the source's content – whatever is committed at the
//! same time, wherever the tail is left and begun again, and after a power cut at any moment.

mod closing;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::common::tiny;
use fastrand::Rng;
use nofault::blocking::{ChangeApplier, Db, Snapshot, Tail};
use nofault::clock::ManualClock;
use nofault::db::{Change, Position, TailEvent};
use nofault::error::ErrorKind;
use nofault::settings::{Compression, Settings};
use nofault::{Batch, CommitSeq, Durability};
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

/// The rows of a table with the times at which they expire.
pub(crate) type DatedRows = BTreeMap<Vec<u8>, (Vec<u8>, Option<SystemTime>)>;

fn settings(background_threads: bool) -> Settings {
    Settings { cache_bytes: 4 << 20, log_bytes: 1 << 20, background_threads, ..tiny() }
}

pub(crate) fn dated_rows(snapshot: &Snapshot, name: &str) -> DatedRows {
    let mut range = snapshot.range::<&[u8]>(&snapshot.table(name).unwrap(), ..).unwrap();
    let mut rows = DatedRows::new();
    while let Some((key, value)) = range.next().transpose().unwrap() {
        rows.insert(key, (value, range.expiry()));
    }
    rows
}

fn content(snapshot: &Snapshot) -> BTreeMap<String, DatedRows> {
    let names = snapshot.table_names().unwrap();
    names.into_iter().map(|name| (name.clone(), dated_rows(snapshot, &name))).collect()
}

/// A copy of a database, kept up to date by a tail.
struct Copy {
    db: Db,
    applier: ChangeApplier,
    position: Position,
    time: Option<SystemTime>,
    loads: u32,
}

impl Copy {
    /// Copies a snapshot.
    fn of(snapshot: &Snapshot, position: Position, seed: u64) -> Self {
        let db = Db::create_in(&SimWorld::new(seed, SimOptions::calm()).directory(), &settings(false)).unwrap();
        let mut applier = ChangeApplier::new(&db);
        for name in snapshot.table_names().unwrap() {
            let source = snapshot.table(&name).unwrap();
            let table = db.create_table(&name).unwrap();
            let mut range = snapshot.range::<&[u8]>(&source, ..).unwrap();
            while let Some((key, value)) = range.next().transpose().unwrap() {
                match range.expiry() {
                    Some(expiry) => table.put_with_expiry(key, value, expiry).unwrap(),
                    None => table.put(key, value).unwrap(),
                }
            }
            applier.learn(source.id(), &table);
        }
        Self { db, applier, position, time: None, loads: 0 }
    }

    fn take(&mut self, event: TailEvent, position: Position) {
        assert_eq!(event.commit(), position.commit());
        assert!(event.commit() > self.position.commit(), "{:?} after {:?}", event.commit(), self.position);
        assert!(event.time() >= self.time, "the time went back");
        (self.position, self.time) = (position, event.time());
        match event {
            TailEvent::Commit { changes, .. } => self.applier.apply(&changes).unwrap(),
            TailEvent::Loaded { .. } => self.loads += 1,
            other => panic!("{other:?}"),
        }
    }

    /// Applies all commits up to `commit`, which is durable.
    fn follow(&mut self, tail: &mut Tail, commit: CommitSeq) {
        while self.position.commit() < commit {
            let event = tail.next().unwrap().unwrap();
            self.take(event, tail.reached());
        }
    }

    fn check(&self, source: &Snapshot, what: &str) {
        assert_eq!(self.position.commit(), source.commit(), "{what}");
        assert!(content(&self.db.snapshot()) == content(source), "{what}: the copy differs at {:?}", self.position);
    }
}

/// Makes a random commit of any kind, but for a bulk load.
fn commit(db: &Db, rng: &mut Rng) {
    let names = db.table_names().unwrap();
    let name = || format!("table {}", Rng::with_seed(rng.clone().u64(..)).u32(..6));
    let (name, other) = (name(), format!("other {}", rng.u32(..4)));
    if !names.contains(&name) || (rng.u32(..40) == 0 && names.len() < 8) {
        let _ = db.create_table(&name);
        return;
    }
    let table = db.table(&name).unwrap();
    let key = |rng: &mut Rng| rng.u16(..200).to_be_bytes().to_vec();
    let value = |rng: &mut Rng| vec![rng.u8(..); if rng.u8(..30) == 0 { rng.usize(..5000) } else { rng.usize(..60) }];
    match rng.u32(..40) {
        0 => db.drop_table(&name).unwrap(),
        1 => drop(db.rename_table(&name, &other)),
        2 => db.set_compression(&name, [Compression::None, Compression::Fast][rng.usize(..2)]).unwrap(),
        3 => db.checkpoint().unwrap(),
        4..8 => {
            let expiry = db.now() + Duration::from_secs(3600 + rng.u64(..100));
            table.put_with_expiry(key(rng), value(rng), expiry).unwrap();
        }
        8..14 => table.delete(key(rng)).unwrap(),
        14..20 => table.put(key(rng), value(rng)).unwrap(),
        kind => {
            let count = if kind == 20 { rng.usize(300..600) } else { rng.usize(1..12) };
            let mut batch = Batch::new();
            for _ in 0..count {
                if rng.bool() {
                    batch.put(&table, key(rng), value(rng));
                } else {
                    batch.delete(&table, key(rng));
                }
            }
            db.write(batch, [Durability::Sync, Durability::Deferred][rng.usize(..2)]).unwrap();
        }
    }
}

#[test]
fn a_copy_that_follows_has_the_content_of_the_source_whatever_is_committed() {
    for seed in sample(0..12, 3) {
        let mut rng = Rng::with_seed(seed);
        let world = SimWorld::new(seed, SimOptions::default());
        let settings = settings(seed % 2 == 0);
        let mut db = Db::create_in(&world.directory(), &settings).unwrap();
        (0..rng.u32(..40)).for_each(|_| commit(&db, &mut rng));
        let (snapshot, mut tail) = db.begin_tail().unwrap();
        let mut copy = Copy::of(&snapshot, tail.reached(), seed + 100);
        drop(snapshot);
        for round in 0..25 {
            let what = format!("seed {seed}, round {round}");
            (0..rng.u32(..60)).for_each(|_| commit(&db, &mut rng));
            db.sync().unwrap();
            let snapshot = db.snapshot();
            match rng.u32(..6) {
                // Read a part, and go on from there, with or without another opening.
                0 | 1 => {
                    for _ in 0..rng.u32(..20) {
                        if copy.position.commit() < snapshot.commit() {
                            let event = tail.next().unwrap().unwrap();
                            copy.take(event, tail.reached());
                        }
                    }
                    let is_closed = rng.bool();
                    if is_closed {
                        // Closing keeps little of the log for a tail that is not there.
                        copy.follow(&mut tail, snapshot.commit());
                    }
                    let position = Position::from_bytes(&copy.position.to_bytes()).unwrap();
                    drop((snapshot, tail));
                    if is_closed {
                        drop(db);
                        db = Db::open_in(&world.directory(), &settings).unwrap();
                    }
                    tail = db.tail(&position).unwrap_or_else(|error| panic!("{what}: {error}"));
                    let newest = db.snapshot();
                    copy.follow(&mut tail, newest.commit());
                    copy.check(&newest, &what);
                }
                _ => {
                    copy.follow(&mut tail, snapshot.commit());
                    copy.check(&snapshot, &what);
                }
            }
            if rng.bool() {
                tail.release(&copy.position);
            }
        }
        assert_eq!(copy.loads, 0);
    }
}

#[test]
fn after_a_power_cut_at_any_moment_a_tail_goes_on_and_nothing_that_it_returned_is_lost() {
    let run = |world: &SimWorld, copy: &mut Option<Copy>| -> Result<(), nofault::Error> {
        let db = Db::create_in(&world.directory(), &settings(false))?;
        let mut rng = Rng::with_seed(7);
        let table = db.create_table("t")?;
        let (snapshot, mut tail) = db.begin_tail()?;
        let copy = copy.insert(Copy::of(&snapshot, tail.reached(), 5));
        drop(snapshot);
        for round in 0..40_u32 {
            let mut batch = Batch::new();
            let count = if round % 13 == 12 { 300 } else { rng.u32(1..8) };
            for key in 0..count {
                batch.put(&table, (key * 7 % 50).to_be_bytes(), vec![round as u8; rng.usize(..900)]);
            }
            let is_durable = rng.bool();
            db.write(batch, if is_durable { Durability::Sync } else { Durability::Deferred })?;
            if round % 9 == 8 {
                db.checkpoint()?;
            }
            if is_durable && rng.bool() {
                while copy.position.commit() < db.snapshot().commit() {
                    let Some(event) = tail.next().transpose()? else { break };
                    copy.take(event, tail.reached());
                }
                if rng.bool() {
                    tail.release(&copy.position);
                }
            }
        }
        drop((tail, table));
        db.close()
    };
    let whole = SimWorld::new(3, SimOptions::default());
    run(&whole, &mut None).unwrap();
    let (mut went_on, events) = (0, whole.events());
    for cut in sample((1..=events).step_by(if events > 400 { events as usize / 400 } else { 1 }), 5) {
        let world = SimWorld::new(3, SimOptions::default());
        world.cut_after(cut);
        let mut copy = None;
        let _ = run(&world, &mut copy);
        let Some(mut copy) = copy else { continue };
        let after = world.restart(cut);
        let db = Db::open_in(&after.directory(), &settings(false)).unwrap();
        let newest = db.snapshot();
        assert!(newest.commit() >= copy.position.commit(), "cut {cut}: {newest:?} after {:?}", copy.position);
        // The part that was not released is there, as the database was open all the time before.
        let mut tail = db.tail(&copy.position).unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        copy.follow(&mut tail, newest.commit());
        copy.check(&newest, &format!("cut {cut}"));
        db.table("t").unwrap().put("more", "1").unwrap();
        copy.follow(&mut tail, db.snapshot().commit());
        copy.check(&db.snapshot(), &format!("cut {cut}, one more"));
        went_on += 1;
    }
    assert!(went_on > by_depth(20, 100), "{went_on} of {events}");
}

/// Writes `bytes` bytes of log.
fn write_log(db: &Db, bytes: u64) {
    let table = db.open_or_create_table("filler").unwrap();
    let before = db.stats().log.bytes_written;
    while db.stats().log.bytes_written < before + bytes {
        table.put("key", vec![1; 3000]).unwrap();
    }
}

#[test]
fn a_tail_keeps_the_log_up_to_its_limit_and_no_commit_waits_for_it() {
    let world = SimWorld::new(1, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings(false)).unwrap();
    let (snapshot, tail) = db.begin_tail().unwrap();
    let mut tail = tail.bytes_max(6 << 20);
    let mut copy = Copy::of(&snapshot, tail.reached(), 2);
    drop(snapshot);
    // Five times the size of the log.
    write_log(&db, 5 << 20);
    db.checkpoint().unwrap();
    assert!(tail.kept_bytes() >= 5 << 20 && db.stats().log.file_bytes >= 5 << 20, "{:?}", db.stats().log);
    copy.follow(&mut tail, CommitSeq(db.snapshot().commit().0 / 2));
    let half = copy.position;
    copy.follow(&mut tail, db.snapshot().commit());
    copy.check(&db.snapshot(), "all of it was kept");
    // While it catches up nothing is moved in the file, for which commits would wait.
    tail.release(&half);
    let file_bytes = db.stats().log.file_bytes;
    db.checkpoint().unwrap();
    assert_eq!(db.stats().log.file_bytes, file_bytes);
    tail.release(&copy.position);
    db.checkpoint().unwrap();
    assert!(db.stats().log.file_bytes <= 3 << 20, "{:?}", db.stats().log);
    copy.follow(&mut tail, db.snapshot().commit());
    write_log(&db, 7 << 20);
    let error = tail.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TailTooOld, "{error}");
    assert_eq!(db.tail(&copy.position).unwrap_err().kind(), ErrorKind::TailTooOld);
    db.checkpoint().unwrap();
    assert!(db.stats().log.file_bytes <= 3 << 20, "{:?}", db.stats().log);
    let (snapshot, mut tail) = db.begin_tail().unwrap();
    let mut copy = Copy::of(&snapshot, tail.reached(), 2);
    write_log(&db, 1 << 20);
    copy.follow(&mut tail, db.snapshot().commit());
    copy.check(&db.snapshot(), "the next one");
}

#[test]
fn on_a_full_disk_a_tail_gives_way_to_commits() {
    for background_threads in [false, true] {
        let world = SimWorld::new(1, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &settings(background_threads)).unwrap();
        let (_, mut tail) = db.begin_tail().unwrap();
        write_log(&db, 3 << 20);
        world.inject(Fault::new(Call::Allocate, Effect::Errno(28)).on("log").times(1000));
        write_log(&db, 4 << 20);
        let error = loop {
            match tail.next().unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TailTooOld, "{error}");
    }
}

#[test]
fn a_bulk_load_is_reported_for_what_it_is() {
    let world = SimWorld::new(1, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings(false)).unwrap();
    let table = db.create_table("t").unwrap();
    let (_, mut tail) = db.begin_tail().unwrap();
    table.bulk_load((0..500_u32).map(|key| (key.to_be_bytes(), "value"))).unwrap();
    let loaded = db.snapshot().commit();
    table.put("after", "it").unwrap();
    let position = tail.reached();
    let check = |tail: &mut Tail| {
        let mut events: Vec<TailEvent> = Vec::new();
        while tail.reached().commit() < db.snapshot().commit() {
            events.push(tail.next().unwrap().unwrap());
        }
        assert!(
            matches!(&events[0], TailEvent::Loaded { commit, table: of, .. } if *commit == loaded && *of == table.id())
        );
        let TailEvent::Commit { changes, .. } = &events[1] else { panic!("{events:?}") };
        assert!(matches!(&changes[..], [Change::Put { key, .. }] if key == b"after"), "{changes:?}");
    };
    check(&mut tail);
    check(&mut db.tail(&position).unwrap());
    // Replaying the log changes nothing by the marker.
    let after = world.restart(1);
    let db = Db::open_in(&after.directory(), &settings(false)).unwrap();
    assert_eq!(db.table("t").unwrap().len().unwrap(), 501);
}

/// A load that fails after the log has announced it must not leave those waiting that follow the log: its number is used up.
#[test]
fn a_load_that_fails_after_it_was_announced_is_a_commit_without_changes() {
    let (mut failed, mut announced) = (0, 0);
    for after in 0..40 {
        let world = SimWorld::new(after, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &settings(false)).unwrap();
        let table = db.create_table("t").unwrap();
        if after % 2 == 0 {
            table.put("before", "it").unwrap();
        }
        db.checkpoint().unwrap();
        let (snapshot, mut tail) = db.begin_tail().unwrap();
        let mut copy = Copy::of(&snapshot, tail.reached(), 3);
        world.inject(Fault::new(Call::Write, Effect::Errno(28)).on("data").after(after / 2));
        // More entries than a load into a table with others makes an ordinary commit of.
        let loaded = table.bulk_load((0..4200_u32).map(|key| (key.to_be_bytes(), "value")));
        let what = format!("write {after}: {loaded:?}");
        if loaded.as_ref().is_err_and(|error| error.kind() == ErrorKind::Poisoned) {
            continue;
        }
        // The announced load is visible without another commit.
        db.sync().unwrap();
        let newest = db.snapshot();
        while copy.position.commit() < newest.commit() {
            let event = tail.next().unwrap().unwrap();
            copy.take(event, tail.reached());
        }
        match loaded {
            Ok(_) => assert_eq!(copy.loads, 1, "{what}"),
            Err(_) => {
                failed += 1;
                announced += copy.loads;
                copy.check(&newest, &what);
                table.put("after", "it").unwrap();
                copy.follow(&mut tail, db.snapshot().commit());
                copy.check(&db.snapshot(), &what);
                // Replay has the same commits.
                let restarted = world.restart(1);
                let again = Db::open_in(&restarted.directory(), &settings(false)).unwrap();
                assert_eq!(again.snapshot().commit(), db.snapshot().commit(), "{what}");
                assert!(content(&again.snapshot()) == content(&db.snapshot()), "{what}");
            }
        }
    }
    assert!(failed > 4 && announced > 0, "{failed} loads failed, {announced} of them were announced");
}

#[test]
fn a_call_that_is_dropped_at_any_time_loses_no_commit() {
    let world = SimWorld::new(1, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings(true)).unwrap();
    let table = db.create_table("t").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (_, mut tail) = runtime.block_on(db.asynchronous().begin_tail()).unwrap();
    let (first, count) = (db.snapshot().commit(), 400);
    let writer = std::thread::spawn(move || (0..count).for_each(|_: u64| table.put("key", "value").unwrap()));
    let mut rng = Rng::with_seed(5);
    let (mut seen, mut patient) = (first, 0);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while seen.0 < first.0 + count {
        assert!(std::time::Instant::now() < end, "after {seen} nothing is returned, {patient} calls were not dropped");
        // Long calls, too: the last event must come without another commit.
        let pause = Duration::from_micros(if rng.u8(..8) == 0 { 20_000 } else { rng.u64(..100) });
        if let Ok(event) = runtime.block_on(async { tokio::time::timeout(pause, tail.next()).await }) {
            let commit = event.unwrap().commit();
            assert_eq!(commit.0, seen.0 + 1);
            seen = commit;
            patient += 1;
        }
    }
    writer.join().unwrap();
}

#[test]
fn commits_have_the_time_of_the_clock_of_the_database() {
    let clock = ManualClock::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    let world = SimWorld::new(1, SimOptions::calm());
    let settings = Settings { clock: clock.clone().into(), ..settings(false) };
    let db = Db::create_in(&world.directory(), &settings).unwrap();
    let (_, mut tail) = db.begin_tail().unwrap();
    let table = db.create_table("t").unwrap();
    let mut expected = vec![(db.snapshot().commit(), db.now())];
    for second in 1..20 {
        clock.advance(Duration::from_secs(second));
        table.put("key", second.to_be_bytes()).unwrap();
        expected.push((db.snapshot().commit(), db.now()));
    }
    for (commit, time) in expected {
        let event = tail.next().unwrap().unwrap();
        assert_eq!((event.commit(), event.time()), (commit, Some(time)));
    }
}

#[test]
fn a_position_of_another_database_or_of_a_history_that_was_taken_back_is_too_old() {
    let worlds = [1, 2].map(|seed| SimWorld::new(seed, SimOptions::calm()));
    let [one, two] = worlds.each_ref().map(|world| Db::create_in(&world.directory(), &settings(false)).unwrap());
    let (_, tail) = one.begin_tail().unwrap();
    assert_eq!(two.tail(&tail.reached()).unwrap_err().kind(), ErrorKind::TailTooOld);
    drop((tail, two));
    // A copy of the files, and then different commits in both.
    let table = one.create_table("t").unwrap();
    one.sync().unwrap();
    let copied = worlds[0].restart(1);
    let other = Db::open_in(&copied.directory(), &settings(false)).unwrap();
    let (_, mut tail) = one.begin_tail().unwrap();
    // Two commits of one group. Behind the first of them a tail begins with the group before, which both histories have.
    for text in ["one", "one more"] {
        let mut batch = Batch::new();
        batch.put(&table, "in", text);
        one.write(batch, Durability::Deferred).unwrap();
    }
    one.sync().unwrap();
    table.put("in", "one after").unwrap();
    let mut positions = Vec::new();
    while tail.reached().commit() < one.snapshot().commit() {
        tail.next().unwrap().unwrap();
        positions.push(tail.reached());
    }
    assert_eq!(positions.len(), 3);
    let of_other = other.table("t").unwrap();
    for _ in 0..4 {
        // Shorter than the other history at first, then as long, and longer.
        for position in &positions {
            let refused = other.tail(position).map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TailTooOld, "{position:?}");
        }
        of_other.put("in", "other").unwrap();
    }
    table.put("in", "one again").unwrap();
    for position in &positions {
        let next = one.tail(position).unwrap().next().unwrap().unwrap();
        assert!(next.commit() > position.commit(), "{position:?}");
    }
}

#[test]
fn a_tail_ends_with_the_error_of_a_log_that_has_failed_when_all_durable_commits_were_returned() {
    let world = SimWorld::new(1, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings(true)).unwrap();
    let table = db.create_table("t").unwrap();
    let (_, mut tail) = db.begin_tail().unwrap();
    table.put("a", "1").unwrap();
    let durable = db.snapshot().commit();
    let waiting = std::thread::spawn(move || {
        let mut commits = Vec::new();
        loop {
            match tail.next().unwrap() {
                Ok(event) => commits.push(event.commit()),
                Err(error) => return (commits, error),
            }
        }
    });
    world.inject(Fault::new(Call::Write, Effect::Errno(5)).on("log"));
    while table.put("b", "2").is_ok() {}
    let (commits, error) = waiting.join().unwrap();
    assert_eq!((commits.first(), error.kind()), (Some(&durable), ErrorKind::Poisoned), "{error}");
}

#[test]
fn many_threads_commit_while_a_tail_follows() {
    let world = SimWorld::new(9, SimOptions::default());
    let db = Db::create_in(&world.directory(), &settings(true)).unwrap();
    let table = db.create_table("t").unwrap();
    table.put("first", "1").unwrap();
    let writers = (0..4_u8).map(|thread| {
        let (db, table) = (db.clone(), table.clone());
        std::thread::spawn(move || {
            let mut rng = Rng::with_seed(thread.into());
            for round in 0..150_u32 {
                let mut batch = Batch::new();
                batch.put(&table, [thread, rng.u8(..20)], round.to_be_bytes()).put(&table, b"all", [thread]);
                db.write(batch, [Durability::Sync, Durability::Deferred][rng.usize(..2)]).unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let (snapshot, mut tail) = db.begin_tail().unwrap();
    let mut copy = Copy::of(&snapshot, tail.reached(), 4);
    drop(snapshot);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    db.sync().unwrap();
    let newest = db.snapshot();
    copy.follow(&mut tail, newest.commit());
    copy.check(&newest, "threads");
}

/// Several groups are in flight at a time here: a tail must not read one before those before it are durable.
#[test]
fn a_power_cut_beside_many_threads_takes_nothing_back_that_a_tail_has_returned() {
    let mut went_on = 0;
    let seeds = by_depth(10, 30);
    for seed in 0..seeds {
        let world = SimWorld::new(seed, SimOptions::default());
        let db = Db::create_in(&world.directory(), &settings(true)).unwrap();
        let table = db.create_table("t").unwrap();
        let (snapshot, mut tail) = db.begin_tail().unwrap();
        let mut copy = Copy::of(&snapshot, tail.reached(), 4);
        drop(snapshot);
        world.cut_after(world.events() + Rng::with_seed(seed).u64(1..400));
        let writers = (0..3_u8).map(|thread| {
            let (db, table) = (db.clone(), table.clone());
            std::thread::spawn(move || {
                let mut rng = Rng::with_seed(seed * 10 + u64::from(thread));
                for round in 0..400_u32 {
                    let mut batch = Batch::new();
                    batch.put(&table, [thread, rng.u8(..20)], vec![round as u8; rng.usize(..20_000)]);
                    if db.write(batch, [Durability::Sync, Durability::Deferred][rng.usize(..2)]).is_err() {
                        return;
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        while let Ok(event) = tail.next().unwrap() {
            copy.take(event, tail.reached());
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        drop((tail, table, db));
        let after = world.restart(seed);
        let db = Db::open_in(&after.directory(), &settings(true)).unwrap();
        let newest = db.snapshot();
        assert!(newest.commit() >= copy.position.commit(), "seed {seed}: {newest:?} after {:?}", copy.position);
        let mut tail = db.tail(&copy.position).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        copy.follow(&mut tail, newest.commit());
        copy.check(&newest, &format!("seed {seed}"));
        went_on += 1;
    }
    assert_eq!(went_on, seeds);
}
