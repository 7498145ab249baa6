//! The file of the log becomes shorter after a record larger than the log.

use nofault_sim::{Caching, Call, Effect, Fault};

use super::*;
use crate::format::decode_group;

/// Options of a log of the smallest size that settings allow.
const SMALL: LogOptions = LogOptions { log_bytes: 4 * 32768, ..OPTIONS };
/// Number of segments that the setting asks for, and of those reserved for the next checkpoint.
const SLOTS: u64 = 4 + 4;
const LARGE: usize = 600_000;
const EIO: i32 = 5;

/// The state that a data file would keep for the log: where recovery begins, and which records it must find.
struct Story {
    random: fastrand::Rng,
    anchor: Anchor,
    /// The commit of the last checkpoint.
    after: u64,
    last: u64,
    acknowledged: u64,
    records: BTreeMap<u64, Vec<u8>>,
}

fn open(disk: &Arc<dyn Disk>, recovered: RecoveredLog) -> Result<Log> {
    Log::open_to_grow(&**disk, disk, SMALL, recovered)
}

fn begin(world: &SimWorld, seed: u64) -> Result<(Log, Story)> {
    let directory = world.directory();
    let failed = |error| Error::from_io("create", error);
    let disk = directory.create("log").map_err(failed)?;
    let (anchor, recovered) = create_log(&*disk, &SMALL)?;
    directory.sync().map_err(failed)?;
    let random = fastrand::Rng::with_seed(seed);
    let story = Story { random, anchor, after: 0, last: 0, acknowledged: 0, records: BTreeMap::new() };
    Ok((open(&disk, recovered)?, story))
}

impl Story {
    fn append(&mut self, log: &Log, len_bytes: usize) -> Result<LogPosition> {
        self.last += 1;
        let bytes: Vec<u8> = (0..len_bytes).map(|at| (self.last as usize * 31 + at) as u8).collect();
        let position = super::append(log, self.last, &bytes);
        self.records.insert(self.last, bytes);
        position
    }

    fn commit(&mut self, log: &Log, len_bytes: usize) -> Result<()> {
        let position = self.append(log, len_bytes)?;
        log.durable(position).wait()?;
        self.acknowledged = self.last;
        Ok(())
    }

    fn checkpoint(&mut self, log: &Log) -> Result<()> {
        log.check()?;
        let commit = log.durable_commit();
        (self.anchor, self.after) = (log.anchor_after(commit), commit.0);
        log.recycle(self.anchor);
        Ok(())
    }

    /// Makes the log grow: appends a record larger than the log, makes a checkpoint, and appends commits that lie in
    /// `spread` segments; the last commit is not written yet. Only with a `spread` of 1 does the log continue in a
    /// segment behind the new end of the file. With a `spread` of 2 the segment before it lies there.
    fn grow(&mut self, log: &Log, spread: usize) -> Result<()> {
        self.commit(log, 100)?;
        self.commit(log, LARGE)?;
        self.checkpoint(log)?;
        for _ in 1..spread {
            let len = self.random.usize(20_000..30_000);
            self.commit(log, len)?;
        }
        self.append(log, 50).map(drop)
    }

    /// Opens a log again and compares the records found with the acknowledged ones. Returns the log, to which later
    /// calls append.
    fn reopen(&mut self, world: &SimWorld) -> Result<Log> {
        let disk = disk(world)?;
        let (recovered, records) = read_log(&*disk, &SMALL, self.anchor, CommitSeq(self.after))?;
        let mut found = self.after;
        for record in records {
            let (commit, bytes) = record?;
            found += 1;
            assert_eq!(commit.0, found, "{world}");
            assert!(self.records[&found] == bytes, "record {found}: {world}");
        }
        assert!(found >= self.acknowledged, "found {found}, acknowledged {}: {world}", self.acknowledged);
        (self.last, self.acknowledged) = (found, found);
        open(&disk, recovered)
    }
}

fn slots_of(world: &SimWorld) -> u64 {
    world.read_file("log").unwrap().len() as u64 / SMALL.segment_bytes
}

#[test]
fn after_a_checkpoint_the_file_is_as_short_as_its_setting_and_later_commits_are_there() {
    for spread in 1..5 {
        let world = SimWorld::new(spread as u64, SimOptions::default());
        let (log, mut story) = begin(&world, 1).unwrap();
        story.grow(&log, spread).unwrap();
        assert!(slots_of(&world) > LARGE as u64 / SMALL.segment_bytes);
        log.shrink();
        assert_eq!(slots_of(&world), SLOTS, "{spread}");
        assert_eq!(log.stats().file_bytes, SLOTS * SMALL.segment_bytes);
        // One call is enough: the next call has nothing to do.
        let events = world.events();
        log.shrink();
        assert_eq!(world.events(), events);
        for _ in 0..40 {
            story.commit(&log, 9_000).unwrap();
            if log.wants_checkpoint() {
                story.checkpoint(&log).unwrap();
                log.shrink();
            }
            assert_eq!(slots_of(&world), SLOTS, "an ordinary log does not grow");
        }
        drop(log);
        let log = story.reopen(&world).unwrap();
        story.grow(&log, 2).unwrap();
        assert!(slots_of(&world) > SLOTS);
        log.shrink();
        assert_eq!(slots_of(&world), SLOTS);
    }
}

#[test]
fn a_file_that_is_longer_than_the_setting_of_this_opening_shrinks_after_a_checkpoint() {
    let world = SimWorld::new(1, SimOptions::default());
    let (log, mut story) = begin(&world, 1).unwrap();
    story.grow(&log, 1).unwrap();
    drop(log);
    let log = story.reopen(&world).unwrap();
    log.shrink();
    assert!(slots_of(&world) > SLOTS, "no checkpoint has freed anything in this opening");
    story.commit(&log, 10).unwrap();
    story.checkpoint(&log).unwrap();
    log.shrink();
    assert_eq!(slots_of(&world), SLOTS);
}

#[test]
fn the_file_keeps_its_length_while_a_record_is_under_way() {
    let world = SimWorld::new(1, SimOptions::default());
    let (log, mut story) = begin(&world, 1).unwrap();
    story.grow(&log, 1).unwrap();
    let before = slots_of(&world);
    log.append(CommitSeq(story.last + 1), &[&[1; 100]], None).ok().unwrap();
    log.shrink();
    assert_eq!(slots_of(&world), before);
    log.append(CommitSeq(story.last + 1), &[&[1; 100]], Some(Durability::Sync)).ok().unwrap();
    log.shrink();
    assert_eq!(slots_of(&world), SLOTS);
}

#[test]
fn a_segment_that_nothing_needs_and_that_cannot_be_read_does_not_keep_the_file_long() {
    let world = SimWorld::new(1, SimOptions::default());
    let (log, mut story) = begin(&world, 1).unwrap();
    story.grow(&log, 1).unwrap();
    // Everything needed lies in the segments from the anchor's on.
    let segment_bytes = SMALL.segment_bytes;
    let log_bytes = world.read_file("log").unwrap();
    for (slot, bytes) in (0..).zip(log_bytes.chunks_exact(segment_bytes as usize)) {
        let segment = decode_group(SMALL.file_id, segment_bytes, bytes).map(|group| group.position / segment_bytes);
        if segment.is_some_and(|segment| segment < story.anchor.position / segment_bytes) {
            world.zero_range("log", slot * segment_bytes + 4096..(slot + 1) * segment_bytes).unwrap();
        }
    }
    log.shrink();
    assert_eq!(slots_of(&world), SLOTS);
    story.commit(&log, 100).unwrap();
    drop(log);
    story.reopen(&world).unwrap();
}

/// A way to make the file shorter, with the number of segments that it leaves when no record needs more.
type Way = (fn(&Log), u64);
/// The length of the setting, and the least one, to which an idle database shrinks its log.
const WAYS: [Way; 2] = [(Log::shrink, SLOTS), (Log::shrink_to_least, LEAST_SLOTS)];
/// Number of segments of the least log.
const LEAST_SLOTS: u64 = 4;

/// Shrinks a log between commits. Returns the number of disk events before that, and the state that recovery must find.
fn shrinking(world: &SimWorld, seed: u64, shrink: fn(&Log)) -> (u64, Option<Story>) {
    let Ok((log, mut story)) = begin(world, seed) else { return (0, None) };
    let grown = story.grow(&log, 1 + seed as usize % 3);
    let events = world.events();
    let _ = grown.and_then(|()| {
        shrink(&log);
        story.commit(&log, 300)?;
        story.append(&log, 20_000)?;
        story.commit(&log, 20_000)
    });
    (events, Some(story))
}

#[test]
fn a_power_cut_at_any_event_of_shrinking_and_of_the_opening_that_follows_loses_nothing() {
    let mut cuts = 0;
    for (seed, (shrink, slots)) in (0..6).flat_map(|seed| WAYS.map(|way| (seed, way))) {
        let whole = SimWorld::new(seed, SimOptions::adversarial());
        let (begins, _) = shrinking(&whole, seed, shrink);
        // The records after it may need a fifth segment.
        assert!((slots..=slots.max(5)).contains(&slots_of(&whole)), "{} segments", slots_of(&whole));
        for event in begins..=whole.events() {
            let world = SimWorld::new(seed, SimOptions::adversarial());
            world.cut_after(event);
            let mut story = shrinking(&world, seed, shrink).1.unwrap();
            for cut in 0..3 {
                // Cuts the power a second time, in the opening that follows.
                let again = world.restart(cut);
                again.cut_after(1 + (event * 7 + cut) % 40);
                let acknowledged = story.acknowledged;
                let _ = story.reopen(&again);
                story.acknowledged = acknowledged;
                let after = again.restart(cut);
                let log = story.reopen(&after).unwrap_or_else(|error| panic!("{error}: {after}"));
                let mut next = Story { random: story.random.clone(), records: story.records.clone(), ..story };
                story.acknowledged = acknowledged;
                next.commit(&log, 3000).unwrap();
                next.checkpoint(&log).unwrap();
                shrink(&log);
                assert_eq!(slots_of(&after), slots, "{after}");
                next.commit(&log, 3000).unwrap();
                drop(log);
                next.reopen(&after.restart(cut)).unwrap_or_else(|error| panic!("{error}: {after}"));
                cuts += 1;
            }
        }
    }
    assert!(cuts > 300, "only {cuts} cuts");
}

#[test]
fn one_bad_read_ends_no_log_of_which_a_segment_has_moved_in_a_file_that_kept_its_length() {
    let world = SimWorld::new(1, SimOptions::default());
    let (log, mut story) = begin(&world, 1).unwrap();
    story.grow(&log, 1).unwrap();
    world.inject(Fault::new(Call::Truncate, Effect::Errno(EIO)));
    log.shrink();
    assert!(slots_of(&world) > SLOTS);
    // This commit lies in the copy only, and no later group states that it is durable.
    story.commit(&log, 100).unwrap();
    drop(log);
    let (acknowledged, last) = (story.acknowledged, story.last);
    // The copy is in one of the first slots. One sector in eight has the header by which it is found.
    for read in 0..SLOTS {
        for seed in 0..60 {
            let after = world.restart(seed);
            after.inject(Fault::new(Call::Read, Effect::ZeroedSector).after(read));
            story.reopen(&after).unwrap_or_else(|error| panic!("read {read}: {error}: {after}"));
            (story.acknowledged, story.last) = (acknowledged, last);
        }
    }
}

#[test]
fn a_failed_write_of_a_first_block_which_may_be_on_the_disk_stops_the_log() {
    let mut poisoned = 0;
    for k in 0..4 {
        for seed in 0..4 {
            // The bytes of a failed durable write are in the page cache, for reads and perhaps for the device.
            let world = SimWorld::new(seed, SimOptions { caching: Caching::Buffered, ..SimOptions::default() });
            let (log, mut story) = begin(&world, 3).unwrap();
            story.grow(&log, 1).unwrap();
            world.inject(Fault::new(Call::Write, Effect::Errno(EIO)).after(k));
            log.shrink();
            poisoned += u64::from(log.check().is_err());
            for _ in 0..3 {
                let _ = story.commit(&log, 500);
            }
            drop(log);
            let (acknowledged, last) = (story.acknowledged, story.last);
            for after in [world.clone(), world.restart(seed)] {
                story.reopen(&after).unwrap_or_else(|error| panic!("write {k}: {error}: {after}"));
                (story.acknowledged, story.last) = (acknowledged, last);
            }
        }
    }
    assert!(poisoned > 0, "no write was one of a first block");
}

#[test]
fn nothing_is_lost_when_any_call_fails_while_the_log_shrinks() {
    let (mut poisoned, mut kept) = (0, 0);
    for call in [Call::Read, Call::Write, Call::Sync, Call::Truncate] {
        for effect in [Effect::Errno(EIO), Effect::FlippedBit] {
            for k in 0..12 {
                let times = [1, u64::MAX].into_iter().flat_map(|times| [(times, 1), (times, 2)]);
                for ((times, spread), (shrink, slots)) in times.flat_map(|times| WAYS.map(|way| (times, way))) {
                    let world = SimWorld::new(k, SimOptions::default());
                    let (log, mut story) = begin(&world, 3).unwrap();
                    story.grow(&log, spread).unwrap();
                    log.flush().unwrap();
                    story.acknowledged = story.last;
                    if call != Call::Read && effect == Effect::FlippedBit {
                        // Damage on the disk is a matter of recovery.
                        continue;
                    }
                    world.inject(Fault::new(call, effect).after(k).times(times));
                    shrink(&log);
                    kept += u64::from(slots_of(&world) > slots);
                    poisoned += u64::from(log.check().is_err());
                    // The fault may still be pending.
                    assert!(story.commit(&log, 500).is_ok() || log.check().is_err());
                    drop(log);
                    for cut in 0..3 {
                        let after = world.restart(cut);
                        let acknowledged = (story.acknowledged, story.last);
                        story
                            .reopen(&after)
                            .unwrap_or_else(|error| panic!("{call:?} {effect:?} {k}: {error}: {after}"));
                        (story.acknowledged, story.last) = acknowledged;
                    }
                }
            }
        }
    }
    assert!(poisoned > 0 && kept > poisoned, "{poisoned} logs were poisoned, {kept} kept their length");
}
