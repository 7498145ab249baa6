//! The times of groups, by which a restore as of a time ends.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;
use crate::clock::Moment;

/// A clock that appends a commit in another thread when it is read first, and holds until that would be done.
struct SlowClock {
    log: Log,
    asked: Arc<Mutex<Option<Receiver<LogPosition>>>>,
}

impl Host for SlowClock {
    fn now(&self) -> Moment {
        let mut asked = self.asked.lock().unwrap();
        if asked.is_none() {
            let ((done, is_done), log) = (channel(), self.log.clone());
            std::thread::spawn(move || done.send(append(&log, 2, b"two").unwrap()));
            // No longer than this, as the commit is not to be appended before.
            std::thread::sleep(Duration::from_millis(100));
            let early = is_done.try_recv();
            assert!(early.is_err(), "appended while the clock was read: {early:?}");
            *asked = Some(is_done);
        }
        Moment(1)
    }
}

/// Regression: the clock was read before the group was taken, so a commit appended in between had a time before its
/// beginning.
#[test]
fn no_commit_is_appended_between_the_reading_of_the_clock_and_the_group_that_it_dates() {
    let world = SimWorld::new(1, SimOptions::calm());
    let (log, _) = create(&world).unwrap();
    let asked: Arc<Mutex<Option<Receiver<LogPosition>>>> = Arc::default();
    log.set_host(Arc::new(SlowClock { log: log.clone(), asked: Arc::clone(&asked) }));
    let position = append(&log, 1, b"one").unwrap();
    log.durable(position).wait().unwrap();
    let position = asked.lock().unwrap().take().unwrap().recv().unwrap();
    log.durable(position).wait().unwrap();
    assert_eq!(log.durable_commit(), CommitSeq(2));
}
