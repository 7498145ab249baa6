//! The effect of a failure inside the section on the waiters: for the section, and for free log space.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use nofault_sim::{SimOptions, SimWorld};

use super::feed::NextCommits;
use super::*;
use crate::codec::Compression;
use crate::format::Moment;
use crate::pages::Ticket as _;
use crate::pages::memory::{MemoryLog, MemoryStore, Residency};
use crate::sync::budget::{self, STEPS_MAX};
use crate::sync::driver::block_on;
use crate::wal::{Log, LogOptions, LogPurpose, create_log};

/// Pause that lets another thread reach its wait. A slower thread only makes the test weaker, not wrong.
const TO_SLEEP: Duration = Duration::from_millis(50);

fn new_commits<L: CommitLog>(log: impl FnOnce(Arc<Visibility<MemoryStore>>) -> L) -> Arc<Commits<MemoryStore, L>> {
    let store = Arc::new(MemoryStore::new(512, 1000, Residency::Everything));
    create_catalog(&*store).unwrap();
    let visibility = Arc::new(Visibility::new(store.clone(), CommitSeq(0)));
    let log = Arc::new(log(visibility.clone()));
    Arc::new(Commits::new(store, log, visibility, CommitSeq(0), 1 << 20))
}

fn failure() -> Error {
    Error::new(ErrorKind::Io, "a commit was applied only in part")
}

#[test]
fn a_commit_that_waited_for_the_section_while_another_failed_in_it_is_refused() {
    let commits = new_commits(|visible| MemoryLog::new(700, false, Box::new(move |seq| visible.durable(seq))));
    let (tell, told) = mpsc::channel();
    let section = commits.lock();
    let other = commits.clone();
    let waiting = std::thread::spawn(move || {
        let ops = vec![Op::CreateTable { name: b"t".to_vec(), compression: Compression::None }];
        let record = encode(&ops);
        tell.send(()).unwrap();
        other.commit(&Commit::blind(ops, Durability::Sync), &record)
    });
    told.recv().unwrap();
    std::thread::sleep(TO_SLEEP);
    commits.poison(&failure());
    drop(section);
    match waiting.join().unwrap() {
        Err(Refusal::Wait(Wait::Failed(error))) => assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}"),
        other => panic!("on top of half a commit: {other:?}"),
    }
    assert_eq!(commits.last().seq, CommitSeq(0));
}

#[test]
fn no_commit_follows_a_panic_in_the_section() {
    let commits = new_commits(|visible| MemoryLog::new(700, false, Box::new(move |seq| visible.durable(seq))));
    let panics = || {
        let _section = commits.lock();
        panic!("a fault that this test plants");
    };
    std::thread::scope(|scope| assert!(scope.spawn(panics).join().is_err()));
    let ops = vec![Op::CreateTable { name: b"t".to_vec(), compression: Compression::None }];
    let record = encode(&ops);
    for _ in 0..2 {
        match commits.commit(&Commit::blind(ops.clone(), Durability::Sync), &record) {
            Err(Refusal::Wait(Wait::Failed(error))) => assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}"),
            other => panic!("after half a commit: {other:?}"),
        }
    }
    assert_eq!(commits.last().seq, CommitSeq(0));
}

#[test]
fn a_large_commit_that_ends_between_its_record_and_its_last_page_is_the_last() {
    let commits = new_commits(|visible| MemoryLog::new(700, false, Box::new(move |seq| visible.durable(seq))));
    let watched = commits.watch(None);
    let mut section = commits.occupy(block_on(commits.turn().acquire(1))).unwrap();
    assert!(section.append(b"all of it", Some(Durability::Sync)).is_ok());
    drop(section);
    assert_eq!(commits.check_poison().map_err(|error| error.kind()), Err(ErrorKind::Poisoned));
    let next = watched.take();
    assert!(matches!(next, Some(NextCommits::End(_))), "a watch waits for ever: {next:?}");
}

/// Records whether a task was woken.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn waiters_for_log_space_get_an_error_when_commits_end_and_appended_records_become_durable() {
    const OPTIONS: LogOptions = LogOptions {
        file_id: 5,
        segment_bytes: 32768,
        log_bytes: 1 << 17,
        buffer_bytes: 1 << 16,
        seed: Some(5),
        purpose: LogPurpose::Write,
    };
    let world = SimWorld::new(6, SimOptions::calm());
    let disk = world.directory().create("log").unwrap();
    let log = Log::open(&*disk, OPTIONS, create_log(&*disk, &OPTIONS).unwrap().1).unwrap();
    let commits = new_commits(|_| log.clone());
    let append = |commit: u64, len_bytes: usize| {
        log.await_space(len_bytes).wait().unwrap();
        log.append(CommitSeq(commit), &[&vec![1; len_bytes]], Some(Durability::Sync)).unwrap()
    };
    let mut commit = 1;
    while log.stats().live_bytes + 10_000 <= OPTIONS.log_bytes {
        log.durable(append(commit, 100)).wait().unwrap();
        commit += 1;
    }
    let (tell, told) = mpsc::channel();
    let mut thread = log.await_space(10_000);
    std::thread::spawn(move || tell.send(thread.wait()).unwrap());
    let (mut task, woken) = (log.await_space(10_000), Arc::<WakeFlag>::default());
    assert!(task.poll(&Waker::from(woken.clone())).is_pending());
    std::thread::sleep(TO_SLEEP);
    let appended = append(commit, 10);
    commits.poison(&failure());
    let refused = |outcome: Result<()>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Poisoned);
    refused(told.recv_timeout(Duration::from_secs(60)).expect("a thread waits for room for ever"));
    assert!(woken.0.load(Ordering::SeqCst), "a task waits for room for ever");
    match task.poll(Waker::noop()) {
        Poll::Ready(outcome) => refused(outcome),
        Poll::Pending => panic!("a task that was woken waits on"),
    }
    refused(log.await_space(10_000).wait());
    log.durable(appended).wait().unwrap();
    assert_eq!(log.durable_commit(), CommitSeq(commit));
}

/// Returns the largest number of steps (units of work that a `Budget` counts) that was spent during one hold of the
/// lock of the commit section while `change` ran.
fn largest(change: impl FnOnce()) -> usize {
    budget::take_largest();
    change();
    budget::take_largest()
}

#[test]
fn no_hold_of_the_sections_lock_grows_with_a_commit_or_with_what_a_transaction_has_read() {
    let commits = new_commits(|visible| MemoryLog::new(700, false, Box::new(move |seq| visible.durable(seq))));
    let tree = Tree { root: PageId(77), table: TableId(5) };
    let key = |number: usize| number.to_be_bytes().to_vec();
    // Without an open transaction no keys are noted.
    let _open = commits.open_transaction();
    for size in [1_000, 100_000] {
        let put = |number| Op::Put { tree, key: key(number), value: Vec::new(), expiry: Moment::NEVER };
        let mut commit = Commit::blind((0..size).map(put).collect(), Durability::Deferred);
        let mut reads = ReadSet::new(usize::MAX);
        (0..size).for_each(|number| reads.add_key(TableId(6), &key(number)).unwrap());
        commit.reads = Some((commits.last().seq, reads));
        let section = || commits.occupy_for(block_on(commits.turn().acquire(1)), None).unwrap().unwrap();
        let checked = largest(|| section().check(&commit).unwrap());
        let mut writing = section();
        writing.edit(|_, _| Ok(())).unwrap();
        let noted = largest(|| _ = writing.finish(&commit.ops, Durability::Deferred, LogPosition(1), false));
        // As an ordinary commit, a commit that has read so much is refused as too large.
        let ops = vec![Op::CreateTable { name: b"t".to_vec(), compression: Compression::None }];
        let record = encode(&ops);
        // The reads are as of the newest commit. As of an older one, keys that share a number in the full table would
        // conflict falsely.
        let reads = commit.reads.take().map(|(_, reads)| (commits.last().seq, reads));
        let small = Commit { ops, reads, ..commit };
        let refused =
            largest(|| assert!(matches!(commits.commit(&small, &record), Err(Refusal::TooLarge)) || size < STEPS_MAX));
        println!("{size}: {checked} to check, {noted} to note, {refused} until refused");
        for steps in [checked, noted, refused] {
            assert!(steps > 0 && steps <= STEPS_MAX + 2 * STEPS_TO_NOTE, "{size}: {steps} steps");
        }
    }
}
