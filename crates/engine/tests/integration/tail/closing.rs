//! Tails that end, and those that go on where they have ended: in the same opening of the database, or in the next.

use super::*;

#[test]
fn a_tail_goes_on_after_the_database_was_closed_wherever_in_a_segment_it_has_ended() {
    let world = SimWorld::new(4, SimOptions::calm());
    let segment_bytes = 64 << 10;
    let mut rng = Rng::with_seed(4);
    let mut db = Db::create_in(&world.directory(), &settings(false)).unwrap();
    let (snapshot, mut tail) = db.begin_tail().unwrap();
    let mut copy = Copy::of(&snapshot, tail.reached(), 5);
    drop(snapshot);
    for round in 0..60 {
        let what = format!("round {round}");
        // So the tail ends at any place of a segment.
        let table = db.open_or_create_table("t").unwrap();
        // In some rounds the file of the log grows, and becomes shorter as the database is closed.
        for _ in 0..rng.u32(1..if round % 2 == 0 { 20 } else { 200 }) {
            table.put(rng.u16(..50).to_be_bytes(), vec![1; rng.usize(..5000)]).unwrap();
        }
        copy.follow(&mut tail, db.snapshot().commit());
        let position = copy.position;
        drop(tail);
        // Commits that the tail has not returned: as upkeep makes them while the database is being closed, and more checkpoints.
        for _ in 0..rng.u32(..3) {
            table.put("late", vec![2; rng.usize(..segment_bytes / 8)]).unwrap();
            db.checkpoint().unwrap();
        }
        drop(table);
        db.close().unwrap();
        db = Db::open_in(&world.directory(), &settings(false)).unwrap();
        if rng.bool() {
            db.table("t").unwrap().put("early", vec![3; rng.usize(..segment_bytes / 8)]).unwrap();
            db.checkpoint().unwrap();
        }
        tail = db.tail(&position).unwrap_or_else(|error| panic!("{what}: {error}"));
        copy.follow(&mut tail, db.snapshot().commit());
        copy.check(&db.snapshot(), &what);
    }
}

#[test]
fn a_tail_that_was_dropped_goes_on_although_a_checkpoint_has_begun_behind_it() {
    let world = SimWorld::new(6, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings(false)).unwrap();
    // The file of the log has some segments more than it needs now.
    write_log(&db, 400 << 10);
    db.checkpoint().unwrap();
    let (snapshot, tail) = db.begin_tail().unwrap();
    let mut copy = Copy::of(&snapshot, tail.reached(), 7);
    drop((snapshot, tail));
    for _ in 0..3 {
        write_log(&db, 50 << 10);
        db.checkpoint().unwrap();
    }
    let mut tail = db.tail(&copy.position).unwrap();
    copy.follow(&mut tail, db.snapshot().commit());
    copy.check(&db.snapshot(), "after checkpoints");
}

/// A thread reading for a call whose future was dropped has a handle of the database for a moment longer.
#[test]
fn a_database_can_be_closed_as_soon_as_its_tail_is() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for seed in 0..100 {
        let world = SimWorld::new(seed, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &settings(true)).unwrap();
        let table = db.create_table("t").unwrap();
        runtime.block_on(async {
            let (snapshot, mut tail) = db.asynchronous().begin_tail().await.unwrap();
            drop(snapshot);
            AsRef::<nofault::Table>::as_ref(&table).put("key", "value").await.unwrap();
            {
                let next = std::pin::pin!(tail.next());
                drop(next.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())));
            }
            tail.close().await;
        });
        drop(table);
        db.close().unwrap();
    }
}
