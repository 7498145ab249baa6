//! A table that another call has created and that is not durable yet: calls wait for it, and fail with it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;

use nofault_sim::{Call, Effect, Fault};

use super::*;
use crate::db::open::handle::Db;
use crate::settings::Settings;

const EIO: i32 = 5;

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Counts the times that a task is woken.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Regression: `open_or_create_table` found no table, could not create it, and started again, for ever.
#[test]
fn a_table_that_never_became_durable_is_no_table_and_calls_say_why() {
    for mode in [Mode::Blocking, Mode::Async] {
        let world = SimWorld::new(1, SimOptions::calm());
        let db = Db::create_in(
            &world.directory(),
            &Settings { background_threads: mode == Mode::Async, seed: None, ..Settings::tiny(1) },
        )
        .unwrap();
        mode.run(db.create_table("there")).unwrap();
        db.core.log.flush_acknowledged().unwrap();
        world.inject(Fault::new(Call::Write, Effect::Errno(EIO)).on("log"));
        assert_eq!(kind(mode.run(db.create_table("t"))), Some(ErrorKind::Poisoned));
        assert_eq!(kind(mode.run(db.table("t"))), Some(ErrorKind::NotFound));
        assert_eq!(kind(mode.run(db.create_table("t"))), Some(ErrorKind::Poisoned));
        assert_eq!(kind(mode.run(db.open_or_create_table("t"))), Some(ErrorKind::Poisoned));
        assert_eq!(kind(block_on(db.open_or_create_table("t"))), Some(ErrorKind::Poisoned));
        assert_eq!(kind(mode.run(db.open_or_create_table("u"))), Some(ErrorKind::Poisoned));
        assert_eq!(kind(mode.run(db.rename_table("there", "t"))), Some(ErrorKind::Poisoned));
        assert_eq!(kind(mode.run(db.open_or_create_typed_table::<u32, u32>("t"))), Some(ErrorKind::Poisoned));
        // The earlier table still is there.
        assert_eq!(kind(mode.run(db.open_or_create_table("there"))), None);
    }
}

/// Polls a future for as long as it is woken. Returns its result, if it has one then, and the number of polls.
fn poll_while_woken<F: Future>(future: std::pin::Pin<&mut F>, wakes: &Arc<Wakes>) -> (Poll<F::Output>, u32) {
    const POLLS_MAX: u32 = 1_000;
    let (mut future, waker, mut polls) = (future, Waker::from(Arc::clone(wakes)), 0);
    loop {
        let before = wakes.0.load(Ordering::SeqCst);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        polls += 1;
        if polled.is_ready() || wakes.0.load(Ordering::SeqCst) == before || polls == POLLS_MAX {
            return (polled, polls);
        }
    }
}

/// Regression: some 290 polls, of up to 67 ms each, while another call's creation became durable.
#[test]
fn a_call_that_waits_for_the_creation_of_another_is_not_polled_meanwhile() {
    const POLLS: u32 = 8;
    let db = Db::create_in(
        &SimWorld::new(1, SimOptions::calm()).directory(),
        &Settings { background_threads: true, seed: None, ..Settings::tiny(1) },
    )
    .unwrap();
    let wakes = [Arc::new(Wakes::default()), Arc::default(), Arc::default()];
    let (mut created, mut opened) = (pin!(db.create_table("t")), pin!(db.open_or_create_table("t")));
    let mut refused = pin!(db.create_table("t"));
    let held = db.core.log.hold_writes();
    assert!(poll_while_woken(created.as_mut(), &wakes[0]).0.is_pending());
    let (first, polls) = poll_while_woken(opened.as_mut(), &wakes[1]);
    assert!(first.is_pending() && polls <= POLLS, "{polls} polls");
    let (first, polls) = poll_while_woken(refused.as_mut(), &wakes[2]);
    assert!(first.is_pending() && polls <= POLLS, "{polls} polls");
    drop(held);
    let created = run_task(created).unwrap();
    assert_eq!(run_task(opened).unwrap().id(), created.id());
    assert_eq!(kind(run_task(refused)), Some(ErrorKind::AlreadyExists));
}
