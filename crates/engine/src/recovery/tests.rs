//! Power cuts, faults and damage, at the level of pages: no tree, so that a failure here is one of storage.

use std::sync::Arc;

use nofault_io::disk::Directory;
use nofault_sim::{Rates, SimOptions, SimWorld};

use super::*;
use crate::format::{HEADER_BYTES, PageId};
use crate::pages::{
    Attempt, CommitLog as _, Durability, Host, LogPosition, PageCopies as _, Pages as _, Store as _, Ticket as _, Wait,
};
use crate::recovery::verify::verify_blocks;
use crate::sync::semaphore::Permit;

mod changed;
mod creation;
mod moments;
mod page_table;
mod read_only;
mod superblocks;

const PAGE: usize = 512;
/// Number of pages that a history changes: many more than fit in memory.
const KEYS: u64 = 90;

fn settings() -> Settings {
    Settings {
        // 40 frames or so, and the log's buffers.
        cache_bytes: (64 << 10) + (512 << 10) + (48 << 10) + 40 * 752,
        log_bytes: 64 << 10,
        // Two simulated disks with the same history hold the same bytes.
        ..Settings::tiny(1)
    }
}

fn creation(file_id: u64) -> Creation {
    Creation { file_id, purpose: Purpose::Use, stripes: None, signed: None }
}

/// A database of numbered pages. Page `k + 1` holds the number that commit records set for key `k`.
struct Numbers {
    opened: OpenedParts,
    next: u64,
}

fn run<T>(pool: &BufferPool, mut attempt: impl FnMut() -> Attempt<T>) -> Result<T> {
    // All that an attempt needs is kept, as an operation keeps it that makes no progress otherwise.
    let mut held = Vec::new();
    loop {
        match attempt() {
            Ok(answer) => return Ok(answer),
            Err(Wait::Failed(error)) => return Err(error),
            Err(wait) => {
                let mut ticket = pool.request(&[wait], Permit::any());
                ticket.wait()?;
                held.push(ticket);
            }
        }
    }
}

fn encode(sets: &[(u64, u64)]) -> Vec<u8> {
    sets.iter().flat_map(|(key, value)| [key.to_le_bytes(), value.to_le_bytes()].concat()).collect()
}

fn decode(record: &[u8]) -> Vec<(u64, u64)> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    record.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..]))).collect()
}

/// Shows commits as soon as they are durable.
struct ShowingPool(BufferPool);

impl Host for ShowingPool {
    fn commits_durable(&self, newest: CommitSeq) {
        self.0.set_visible(newest);
    }
}

impl Numbers {
    fn open(world: &SimWorld) -> Result<Self> {
        Self::open_in(&world.directory())
    }

    fn open_in(directory: &Arc<dyn Directory>) -> Result<Self> {
        let mut opened = open(directory, &settings(), Purpose::Use, None)?;
        opened.log.set_host(Arc::new(ShowingPool(opened.pool.clone())));
        let mut next = opened.base.0 + 1;
        for record in opened.records.by_ref() {
            let (commit, record) = record?;
            assert_eq!(commit.0, next, "commits come in order");
            apply(&opened.pool, commit, &decode(&record))?;
            opened.pool.set_visible(commit);
            next += 1;
        }
        Ok(Self { opened, next })
    }

    fn commit(&mut self, sets: &[(u64, u64)]) -> Result<LogPosition> {
        let record = encode(sets);
        let commit = CommitSeq(self.next);
        let position = loop {
            match self.opened.log.append(commit, &[&record], Some(Durability::Sync)) {
                Ok(position) => break position,
                Err(Wait::LogFull { len_bytes }) => {
                    if !self.opened.log.grow_for(len_bytes)? {
                        self.opened.checkpointer.checkpoint()?;
                    }
                }
                Err(Wait::Failed(error)) => return Err(error),
                Err(other) => panic!("{other:?}"),
            }
        };
        self.next += 1;
        apply(&self.opened.pool, commit, sets)?;
        Ok(position)
    }

    fn value(&self, key: u64) -> Result<u64> {
        if self.opened.pool.visible() == CommitSeq(0) {
            return Ok(0);
        }
        run(&self.opened.pool, || self.opened.pool.latest().page(PageId(key + 1)).map(number))
    }

    fn state(&self) -> Result<Vec<u64>> {
        (0..KEYS).map(|key| self.value(key)).collect()
    }
}

fn number(body: &[u8]) -> u64 {
    assert_eq!(body.len(), PAGE - HEADER_BYTES);
    u64::from_le_bytes(body[..8].try_into().unwrap())
}

/// Applies a commit: the first one creates the pages, each sets some of them.
fn apply(pool: &BufferPool, commit: CommitSeq, sets: &[(u64, u64)]) -> Result<()> {
    if commit == CommitSeq(1) {
        // In chunks, as a commit larger than the pool would be.
        for chunk in 0..KEYS / 10 {
            run(pool, || {
                let mut copies = pool.copies();
                copies.reserve(10)?;
                for key in chunk * 10..chunk * 10 + 10 {
                    let (page, body) = copies.allocate(PageId(key))?;
                    body.fill(0);
                    assert_eq!(page, PageId(key + 1));
                }
                pool.publish(copies, commit);
                Ok(())
            })?;
        }
    }
    run(pool, || {
        let mut copies = pool.copies();
        copies.reserve(sets.len())?;
        for (key, value) in sets {
            copies.edit(PageId(key + 1))?[..8].copy_from_slice(&value.to_le_bytes());
        }
        pool.publish(copies, commit);
        Ok(())
    })
}

/// The commits that a history reported as durable, and the state after each commit.
#[derive(Default)]
struct Promises {
    created: bool,
    acknowledged: u64,
    /// The state after each attempted commit.
    states: Vec<Vec<u64>>,
}

fn history(world: &SimWorld, seed: u64, steps: usize, promises: &mut Promises) -> Result<()> {
    create(&world.directory(), &settings(), creation(seed | 1))?;
    promises.created = true;
    promises.states = vec![vec![0; KEYS as usize]];
    let mut numbers = Numbers::open(world)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut snapshots = Vec::new();
    for _ in 0..steps {
        let sets: Vec<(u64, u64)> = (0..random.usize(1..6)).map(|_| (random.u64(0..KEYS), random.u64(1..))).collect();
        let mut state = promises.states.last().unwrap().clone();
        sets.iter().for_each(|(key, value)| state[*key as usize] = *value);
        promises.states.push(state);
        let commit = numbers.next;
        let position = numbers.commit(&sets)?;
        if random.u32(0..3) > 0 {
            numbers.opened.log.durable(position).wait()?;
            promises.acknowledged = commit;
        }
        match random.u32(0..12) {
            0 => drop(numbers.opened.checkpointer.checkpoint()?),
            1 => {
                let key = random.u64(0..KEYS);
                let expected = promises.states[numbers.opened.pool.visible().0 as usize][key as usize];
                assert_eq!(numbers.value(key)?, expected, "{world}");
            }
            2 if snapshots.len() < 3 => snapshots.push(numbers.opened.pool.snapshot()),
            3 => drop(snapshots.pop()),
            4 if random.u32(0..4) == 0 => {
                snapshots.clear();
                drop(numbers);
                numbers = Numbers::open(world)?;
                // Records in memory were lost with the handle; those that were not acknowledged may be gone.
                promises.states.truncate(numbers.next as usize);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens the database on a disk after a power cut, and checks every commit reported as durable. Returns false
/// when no database was ever complete.
fn check_promises(world: &SimWorld, promises: &Promises) -> bool {
    let numbers = match Numbers::open(world) {
        Ok(numbers) => numbers,
        Err(error) if error.kind() == ErrorKind::NotFound && !promises.created => return false,
        Err(error) => panic!("{error}: {world}"),
    };
    let survived = numbers.next - 1;
    assert!(survived >= promises.acknowledged, "{survived} of {} commits: {world}", promises.acknowledged);
    if promises.created {
        assert!((survived as usize) < promises.states.len(), "commit {survived} was never tried: {world}");
        let state = numbers.state().unwrap_or_else(|error| panic!("{error}: {world}"));
        assert!(state == promises.states[survived as usize], "commit {survived} is not what it was: {world}");
    }
    let report = verify_blocks(&numbers.opened.pool, &*numbers.opened.disk, &mut |_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}: {world}", report.problems);
    true
}

#[test]
fn a_history_without_cuts_keeps_every_promise() {
    for seed in 0..6 {
        let world = SimWorld::new(seed, SimOptions::adversarial());
        let mut promises = Promises::default();
        history(&world, seed, 150, &mut promises).unwrap_or_else(|error| panic!("{error}: {world}"));
        assert!(check_promises(&world, &promises));
    }
}

fn cut_everywhere(seeds: std::ops::Range<u64>, steps: usize, stride: u64) -> u64 {
    let mut cuts = 0;
    for seed in seeds {
        let whole = SimWorld::new(seed, SimOptions::adversarial());
        history(&whole, seed, steps, &mut Promises::default()).unwrap_or_else(|error| panic!("{error}: {whole}"));
        for event in (1 + seed % stride..=whole.events()).step_by(stride as usize) {
            let world = SimWorld::new(seed, SimOptions::adversarial());
            world.cut_after(event);
            let mut promises = Promises::default();
            let _ = history(&world, seed, steps, &mut promises);
            let after = world.restart(event);
            check_promises(&after, &promises);
            // A second cut, somewhere in the recovery.
            if event % 3 == 0 {
                let again = world.restart(event);
                again.cut_after(1 + event % 60);
                let _ = Numbers::open(&again);
                check_promises(&again.restart(event + 1), &promises);
            }
            cuts += 1;
        }
    }
    cuts
}

#[test]
fn a_power_cut_at_any_event_keeps_every_promise() {
    let cuts = cut_everywhere(0..6, 30, 3);
    assert!(cuts > 500, "only {cuts} cuts");
}

#[test]
#[ignore = "takes minutes; the same as above, every event, more seeds"]
fn a_power_cut_at_any_event_of_many_histories_keeps_every_promise() {
    println!("{} cuts", cut_everywhere(100..160, 60, 1));
}

/// Creates a database with a checkpoint, a log tail and unused old blocks. Returns the content that it must show.
fn settled_world(seed: u64) -> (SimWorld, Vec<u64>) {
    let world = SimWorld::new(seed, SimOptions::calm());
    let mut promises = Promises::default();
    history(&world, seed, 40, &mut promises).unwrap();
    let mut numbers = Numbers::open(&world).unwrap();
    numbers.opened.checkpointer.checkpoint().unwrap();
    let position = numbers.commit(&[(3, 33), (50, 55)]).unwrap();
    numbers.opened.log.durable(position).wait().unwrap();
    let state = numbers.state().unwrap();
    (world, state)
}

/// Reads everything after damage: each value must be right, or the error must report corruption. Returns the number of
/// values read.
fn right_or_corrupt(world: &SimWorld, state: &[u64]) -> usize {
    let numbers = match Numbers::open(world) {
        Ok(numbers) => numbers,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}: {world}");
            return state.len();
        }
    };
    let mut corrupt = 0;
    for (key, expected) in state.iter().enumerate() {
        match numbers.value(key as u64) {
            Ok(value) => assert_eq!(value, *expected, "a wrong value for {key}: {world}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}: {world}");
                assert_eq!(error.page(), Some(PageId(key as u64 + 1)), "{error}: {world}");
                corrupt += 1;
            }
        }
    }
    let report = verify_blocks(&numbers.opened.pool, &*numbers.opened.disk, &mut |_, _| {}).unwrap();
    assert!(corrupt == 0 || !report.problems.is_empty(), "verify missed what reading found: {world}");
    corrupt
}

#[test]
fn flipped_zeroed_and_garbage_blocks_are_found_wherever_they_are() {
    let (world, state) = settled_world(5);
    let blocks = world.read_file("data").unwrap().len() / PAGE;
    let mut found = 0;
    for block in (0..blocks as u64).filter(|block| *block < 8 || *block >= 256) {
        let range = block * PAGE as u64..(block + 1) * PAGE as u64;
        let damaged = world.restart(block);
        match block % 3 {
            0 => damaged.flip_bit("data", range.start + block * 7 % PAGE as u64, (block % 8) as u32).unwrap(),
            1 => damaged.zero_range("data", range).unwrap(),
            _ => damaged.garbage_range("data", range).unwrap(),
        }
        found += usize::from(right_or_corrupt(&damaged, &state) > 0);
        if block > 700 {
            break;
        }
    }
    assert!(found > 20, "only {found} damaged blocks mattered");
}

#[test]
fn swapped_and_stale_pages_are_found_although_their_checksums_are_right() {
    let (world, state) = settled_world(6);
    let places: Vec<u64> = {
        let numbers = Numbers::open(&world).unwrap();
        let metadata = numbers.opened.pool.metadata().lock();
        metadata.map.pages_in_memory().skip(1).map(|(_, at)| at.block.0 * PAGE as u64).collect()
    };
    let bytes = world.read_file("data").unwrap();
    for pair in places.windows(2).step_by(7) {
        let swapped = world.restart(pair[0]);
        swapped.swap_ranges("data", pair[0], pair[1], PAGE as u64).unwrap();
        assert!(right_or_corrupt(&swapped, &state) >= 1, "{swapped}");
    }
    // An older version of the same page, whole and with a valid checksum, where the newer one should be: a lost write.
    let mut stale = 0;
    for place in &places {
        let id_of = |at: usize| u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap());
        let page = id_of(*place as usize);
        let older = (131_072..bytes.len() - PAGE).step_by(PAGE).find(|at| {
            *at as u64 != *place
                && id_of(*at) == page
                && bytes[*at..*at + 8] != bytes[*place as usize..*place as usize + 8]
        });
        if let Some(older) = older {
            let lost = world.restart(*place);
            lost.overwrite("data", *place, &bytes[older..older + PAGE]).unwrap();
            assert!(right_or_corrupt(&lost, &state) >= 1, "page {page}: {lost}");
            stale += 1;
        }
    }
    assert!(stale > 5, "only {stale} old versions lay about");
}

#[test]
fn truncated_emptied_missing_and_foreign_files_give_clear_errors() {
    let (world, _) = settled_world(7);
    let text = |world: &SimWorld| Numbers::open(world).err().expect("it opened").to_string();
    let emptied = world.restart(1);
    emptied.set_len("data", 0).unwrap();
    assert!(text(&emptied).contains("the data file is empty"), "{}", text(&emptied));
    let cut = world.restart(2);
    cut.set_len("data", 140_000).unwrap();
    assert!(text(&cut).contains("behind the end of the data file"), "{}", text(&cut));
    let foreign = world.restart(3);
    foreign.overwrite("data", 0, b"SQLite format 3\0").unwrap();
    foreign.overwrite("data", 65_536, b"SQLite format 3\0").unwrap();
    assert!(text(&foreign).contains("not a nofault database"), "{}", text(&foreign));
    let no_log = world.restart(4);
    no_log.directory().remove("log").unwrap();
    assert!(text(&no_log).contains("«log» is missing"), "{}", text(&no_log));
    let empty_log = world.restart(5);
    empty_log.set_len("log", 0).unwrap();
    assert!(text(&empty_log).contains("the log does not contain group"), "{}", text(&empty_log));
    let other = settled_world(8).0.snapshot_file("log").unwrap();
    let mixed = world.restart(6);
    mixed.restore_file("log", &other).unwrap();
    assert!(text(&mixed).contains("the log does not contain group"), "{}", text(&mixed));
    let directory = world.directory();
    assert_eq!(create(&directory, &settings(), creation(1)).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(
        open(&SimWorld::new(1, SimOptions::calm()).directory(), &settings(), Purpose::Use, None).err().unwrap().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn an_older_data_file_put_back_is_refused() {
    let (world, _) = settled_world(9);
    let old = world.snapshot_file("data").unwrap();
    let mut numbers = Numbers::open(&world).unwrap();
    for round in 0..60 {
        let sets: Vec<(u64, u64)> = (0..5).map(|at| ((round * 7 + at) % KEYS, round + 1)).collect();
        let position = numbers.commit(&sets).unwrap();
        numbers.opened.log.durable(position).wait().unwrap();
        if round % 5 == 0 {
            numbers.opened.checkpointer.checkpoint().unwrap();
        }
    }
    drop(numbers);
    world.restore_file("data", &old).unwrap();
    assert_eq!(Numbers::open(&world).err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn random_faults_never_lose_what_was_reported_as_durable() {
    for seed in 0..60 {
        let world = SimWorld::new(seed, SimOptions::default());
        let mut promises = Promises::default();
        let rate = |of: u64| if seed % 4 == of { 0.01 } else { 0.0 };
        world.set_rates(Rates {
            read_error: rate(0),
            write_error: rate(1),
            sync_error: rate(2) * 10.0,
            flipped_read: rate(3),
            ..Rates::default()
        });
        // The history may end at any point, with an error.
        let _ = history(&world, seed, 60, &mut promises);
        check_promises(&world.restart_with(seed, SimOptions::default()), &promises);
    }
}

#[test]
fn every_call_may_fail_once_and_no_promise_is_broken() {
    use nofault_sim::{Call, Effect, Fault};
    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;
    let calls = [
        (Call::Create, EIO),
        (Call::Open, EIO),
        (Call::Rename, EIO),
        (Call::Remove, EIO),
        (Call::List, EIO),
        (Call::SyncDirectory, EIO),
        (Call::Read, EIO),
        (Call::Write, EIO),
        (Call::Write, ENOSPC),
        (Call::Sync, EIO),
        (Call::Allocate, ENOSPC),
        (Call::Allocate, EIO),
    ];
    let mut failed = 0;
    for (call, errno) in calls {
        for k in 0.. {
            let world = SimWorld::new(k, SimOptions::calm());
            // There are many reads and writes: all of the first ones fail in turn, then fewer and fewer.
            let skip = if k < 20 { k } else { k * k / 20 };
            world.inject(Fault::new(call, Effect::Errno(errno)).after(skip));
            let mut promises = Promises::default();
            let outcome = history(&world, 4, 30, &mut promises);
            if world.stats().error_count == 0 {
                break;
            }
            failed += 1;
            if let Err(error) = &outcome {
                assert_ne!(error.kind(), ErrorKind::Bug, "{call:?} {k}: {error}");
                assert_ne!(error.kind(), ErrorKind::Corrupt, "{call:?} {k}: {error}");
            }
            // Another process opens the files as they are, and as a power cut would have left them.
            let cut = world.restart(k);
            check_promises(&world.restart_with(k, SimOptions::calm()), &promises);
            check_promises(&cut, &promises);
        }
    }
    assert!(failed > 100, "only {failed} calls failed");
}

#[test]
fn a_sync_that_fails_in_a_checkpoint_poisons_commits_and_leaves_reads() {
    use nofault_sim::{Call, Effect, Fault};
    let (world, state) = settled_world(11);
    let mut numbers = Numbers::open(&world).unwrap();
    let position = numbers.commit(&[(1, 10)]).unwrap();
    numbers.opened.log.durable(position).wait().unwrap();
    world.inject(Fault::new(Call::Sync, Effect::Errno(5)).on("data"));
    assert_eq!(numbers.opened.checkpointer.checkpoint().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(numbers.commit(&[(1, 11)]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(numbers.opened.checkpointer.checkpoint().unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(numbers.value(1).unwrap(), 10);
    assert_eq!(numbers.value(2).unwrap(), state[2]);
    drop(numbers);
    let after = Numbers::open(&world.restart(1)).unwrap();
    assert_eq!(after.value(1).unwrap(), 10, "the log still has it");
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("never: {what}");
}

#[test]
fn two_checkpoints_in_succession_free_no_block_that_the_durable_one_names() {
    use nofault_sim::{Call, Effect, Fault};
    let sets = |value: u64| (0..KEYS).step_by(20).map(|key| (key, value)).collect::<Vec<_>>();
    for k in 0.. {
        let world = SimWorld::new(k, SimOptions::calm());
        create(&world.directory(), &settings(), creation(1)).unwrap();
        let mut numbers = Numbers::open(&world).unwrap();
        let position = numbers.commit(&sets(1)).unwrap();
        numbers.opened.log.durable(position).wait().unwrap();
        numbers.opened.checkpointer.checkpoint().unwrap();
        let position = numbers.commit(&sets(2)).unwrap();
        numbers.opened.log.durable(position).wait().unwrap();
        let later = numbers.commit(&sets(3)).unwrap();
        let OpenedParts { pool, log, checkpointer, .. } = &numbers.opened;
        let outcome = std::thread::scope(|scope| {
            // The first checkpoint is of commit 2, and commit 3 is there for the second.
            let metadata = pool.metadata().lock();
            let first = scope.spawn(|| checkpointer.checkpoint());
            wait_until("the first begins", || !pool.readers().is_empty());
            log.durable(later).wait().unwrap();
            // The first checkpoint proceeds until its superblock is durable, and stops before it frees blocks.
            let dead_versions = pool.hold_dead_versions();
            drop(metadata);
            let base = || open(&world.restart(k).directory(), &settings(), Purpose::Use, None).unwrap().base;
            wait_until("the first is durable", || base() == CommitSeq(2));
            // The second fails at its k-th write: at the end that is the superblock.
            world.inject(Fault::new(Call::Write, Effect::Errno(5)).on("data").after(k));
            let second = scope.spawn(|| checkpointer.checkpoint());
            for _ in 0..30 {
                // The second checkpoint should not end before the first.
                if second.is_finished() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            drop(dead_versions);
            assert_eq!(first.join().unwrap().unwrap(), CommitSeq(2), "{world}");
            second.join().unwrap()
        });
        let durable = open(&world.restart(k).directory(), &settings(), Purpose::Use, None).unwrap();
        let (named, metadata) = (durable.pool.metadata().lock(), pool.metadata().lock());
        let pages = named.map.pages_in_memory().map(|(_, at)| at.block);
        for block in pages.chain(named.map.all_nodes().map(|(_, at)| at.block)) {
            assert!(
                metadata.allocator.space.is_used(block),
                "block {block:?} is free, and commit {} names it: {world}",
                durable.base
            );
        }
        drop(metadata);
        // Of a write that failed any sector may be on the disk, and a superblock is one.
        assert!(durable.base == CommitSeq(3) || outcome.is_err() && durable.base == CommitSeq(2), "{world}");
        if outcome.is_ok() {
            assert!(k >= 3, "pages, a node and a superblock are written: {k}");
            break;
        }
    }
}

#[test]
fn on_a_full_disk_commits_fail_and_reads_go_on() {
    for seed in 0..10 {
        let (world, mut state) = settled_world(20 + seed);
        let mut numbers = Numbers::open(&world).unwrap();
        world.set_capacity(Some(world.bytes_used()));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut refused = false;
        for round in 0..300 {
            let sets: Vec<(u64, u64)> = (0..3).map(|_| (random.u64(0..KEYS), round + 1000)).collect();
            match numbers.commit(&sets).and_then(|position| numbers.opened.log.durable(position).wait()) {
                Ok(()) => sets.iter().for_each(|(key, value)| state[*key as usize] = *value),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Poisoned), "{error}: {world}");
                    refused = true;
                    break;
                }
            }
        }
        // The keys of the last commit may have new values or old ones; the others must read as they were.
        let wrong = (0..KEYS).filter(|key| numbers.value(*key).unwrap() != state[*key as usize]).count();
        assert!(wrong <= 3, "{wrong} values differ, refused: {refused}, {world}");
    }
}
