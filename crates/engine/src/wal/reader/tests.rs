//! Logs with segments larger than the window through which they are read, and logs that grow as they are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nofault_io::disk::Directory as _;
use nofault_io::overlay::Overlay;
use nofault_sim::{Hooks, SimOptions, SimWorld};

use super::super::{Log, create_log};
use super::*;
use crate::format::{COUNTED_MAX, FRAGMENT_HEADER_BYTES, FragmentHeader, GROUP_HEADER_BYTES, encode_group};
use crate::pages::{CommitLog as _, Durability, Ticket as _, Wait};

/// Options with segments of the size that an ordinary database has.
const OPTIONS: LogOptions = LogOptions {
    file_id: 5,
    segment_bytes: 4 << 20,
    log_bytes: 64 << 20,
    buffer_bytes: 1 << 20,
    seed: None,
    purpose: LogPurpose::Write,
};

fn create(seed: u64) -> (SimWorld, Log, Anchor) {
    create_with(seed, OPTIONS)
}

fn create_with(seed: u64, options: LogOptions) -> (SimWorld, Log, Anchor) {
    let world = SimWorld::new(seed, SimOptions::calm());
    let disk = world.directory().create("log").unwrap();
    world.directory().sync().unwrap();
    let (anchor, recovered) = create_log(&*disk, &options).unwrap();
    let log = Log::open(&*disk, options, recovered).unwrap();
    (world, log, anchor)
}

type SeenRecords = Vec<(CommitSeq, Vec<u8>)>;

/// Returns all records, and the largest number of bytes of the log in memory at a time.
fn read(world: &SimWorld, anchor: Anchor) -> Result<(SeenRecords, usize)> {
    let disk = world.directory().open("log").unwrap();
    let (_, mut records) = read_log(&*disk, &OPTIONS, anchor, CommitSeq(0))?;
    let seen = records.by_ref().collect::<Result<_>>()?;
    Ok((seen, records.chain.file.window.len()))
}

#[test]
fn a_log_of_large_segments_is_read_through_a_small_window() {
    let (world, log, anchor) = create(12);
    let mut random = fastrand::Rng::with_seed(12);
    let mut written = Vec::new();
    // Groups of all lengths, so that some lie across every edge of the window.
    for commit in 1..=120 {
        let bytes = vec![commit as u8; [100, 5_000, 70_000, 110_000][random.usize(..4)]];
        let position = log.append(CommitSeq(commit), &[&bytes], Some(Durability::Sync)).ok().unwrap();
        if random.bool() || commit % 4 == 0 {
            log.durable(position).wait().unwrap();
        }
        written.push((CommitSeq(commit), bytes));
    }
    log.flush().unwrap();
    assert!(log.stats().bytes_written > OPTIONS.segment_bytes, "all in one segment: {:?}", log.stats());
    drop(log);
    let (seen, window_bytes) = read(&world, anchor).unwrap();
    assert!(seen == written, "{} of {} records", seen.len(), written.len());
    assert!(window_bytes <= GROUPS_IN_FLIGHT_BYTES, "{window_bytes} bytes, of a segment of {}", OPTIONS.segment_bytes);
    // Damage anywhere but in the last group is found.
    for at in (LOG_BLOCK_BYTES as u64..4 << 20).step_by(700_000) {
        let damaged = world.restart(at);
        damaged.garbage_range("log", at..at + 2 * LOG_BLOCK_BYTES as u64).unwrap();
        assert_eq!(read(&damaged, anchor).unwrap_err().kind(), ErrorKind::Corrupt, "damage at {at}");
    }
}

#[test]
fn the_first_group_of_a_segment_in_the_slot_of_another_does_not_end_the_log() {
    let options = LogOptions { segment_bytes: 64 << 10, log_bytes: 1 << 20, ..OPTIONS };
    let world = SimWorld::new(3, SimOptions::calm());
    let disk = world.directory().create("log").unwrap();
    world.directory().sync().unwrap();
    let (first, recovered) = create_log(&*disk, &options).unwrap();
    let log = Log::open(&*disk, options, recovered).unwrap();
    let written: Vec<_> = (1..=100).map(|commit| (CommitSeq(commit), vec![commit as u8; 1000])).collect();
    for (commit, bytes) in &written {
        let position = loop {
            match log.append(*commit, &[bytes], Some(Durability::Sync)) {
                Ok(position) => break position,
                Err(Wait::LogFull { len_bytes }) => log.await_space(len_bytes).wait().unwrap(),
                Err(other) => panic!("{other:?}"),
            }
        };
        log.durable(position).wait().unwrap();
    }
    drop((log, disk));
    let read = |world: &SimWorld, anchor| -> Result<_> {
        let disk = world.directory().open("log").unwrap();
        let (recovered, records) = read_log(&*disk, &options, anchor, CommitSeq(0))?;
        Ok((recovered, records.collect::<Result<SeenRecords>>()?))
    };
    let (recovered, seen) = read(&world, first).unwrap();
    assert_eq!(seen, written);
    let slots = recovered.slots.len() as u64;
    let begins = recovered.marks.iter().map(|mark| mark.anchor);
    let begins: Vec<_> = begins.filter(|anchor| anchor.position.is_multiple_of(options.segment_bytes)).collect();
    assert!(slots > 4 && begins.len() > 4, "{begins:?} in {slots} slots");
    // A log beginning at a checkpoint, of which the first group is the first of its segment.
    for anchor in begins {
        let whole = read(&world, anchor).unwrap().1;
        for (one, other) in (0..slots).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let world = world.restart(one);
            let at = |slot| slot * options.segment_bytes;
            world.swap_ranges("log", at(one), at(other), LOG_BLOCK_BYTES as u64).unwrap();
            match read(&world, anchor) {
                Ok((_, seen)) => {
                    assert!(seen == whole, "slots {one} and {other}: {} records of {}", seen.len(), whole.len())
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "slots {one} and {other}: {error}"),
            }
        }
    }
}

/// Writes a group with the record of one commit directly after the anchor, which is the first group.
fn forge_group(world: &SimWorld, anchor: Anchor, commit: CommitSeq, content: &[u8]) {
    let header = GroupHeader {
        sequence: 2,
        position: LOG_BLOCK_BYTES as u64,
        durable_sequence: 1,
        previous: anchor.checksum,
        slots: 2,
        opening: 0,
        time_ms: 0,
        payload_bytes: (FRAGMENT_HEADER_BYTES + content.len()) as u32,
        checksum: 0,
    };
    let fragment = FragmentHeader { commit, len_bytes: content.len() as u32, first: true, last: true };
    let mut block = vec![0; header.len_bytes()];
    block[GROUP_HEADER_BYTES..][..FRAGMENT_HEADER_BYTES].copy_from_slice(&fragment.encode());
    block[GROUP_HEADER_BYTES + FRAGMENT_HEADER_BYTES..][..content.len()].copy_from_slice(content);
    encode_group(OPTIONS.file_id, &header, &mut block);
    world.overwrite("log", LOG_BLOCK_BYTES as u64, &block).unwrap();
}

#[test]
fn a_group_longer_than_the_window_is_read_whole() {
    let (world, log, anchor) = create(13);
    drop(log);
    // No version of the engine writes such long groups, but the format allows them.
    let content = vec![9; GROUPS_IN_FLIGHT_BYTES + 100_000];
    forge_group(&world, anchor, CommitSeq(1), &content);
    let (seen, _) = read(&world, anchor).unwrap();
    assert!(seen == [(CommitSeq(1), content)], "{} records", seen.len());
}

#[test]
fn a_commit_number_that_no_other_could_follow_is_damage() {
    let (world, log, anchor) = create(14);
    drop(log);
    forge_group(&world, anchor, CommitSeq(COUNTED_MAX - 1), b"x");
    assert_eq!(read(&world, anchor).unwrap().0.len(), 1);
    for commit in [COUNTED_MAX, u64::MAX] {
        forge_group(&world, anchor, CommitSeq(commit), b"x");
        assert_eq!(read(&world, anchor).unwrap_err().kind(), ErrorKind::Corrupt, "{commit}");
    }
}

/// A log with a writer that never rests: it makes three commits before every few reads, up to a number.
struct RestlessWriter {
    log: Log,
    made: AtomicU64,
    most: u64,
    reads: AtomicU64,
    every: u64,
}

impl std::fmt::Debug for RestlessWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RestlessWriter({:?} commits)", self.made)
    }
}

impl RestlessWriter {
    /// Makes so many commits, and begins to make further ones before each `every`th read.
    fn begin(log: Log, commits: u64, every: u64) -> Arc<Self> {
        let writer = Self { log, made: AtomicU64::new(0), most: commits + 20_000, reads: AtomicU64::new(0), every };
        (0..commits).for_each(|_| writer.commit());
        Arc::new(writer)
    }

    fn commit(&self) {
        let commit = self.made.load(Ordering::Relaxed) + 1;
        if commit <= self.most {
            self.made.store(commit, Ordering::Relaxed);
            assert!(self.log.grow_for(size_of::<u64>()).unwrap());
            let position = self.log.append(CommitSeq(commit), &[&commit.to_le_bytes()], Some(Durability::Sync));
            self.log.durable(position.ok().unwrap()).wait().unwrap();
        }
    }

    fn before_read(&self) {
        if self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every) {
            (0..3).for_each(|_| self.commit());
        }
    }
}

/// Returns the log as a reader's overlay shows it: with the length that it had when it was opened.
fn growing_log(world: &SimWorld, writer: &Arc<RestlessWriter>) -> Arc<dyn Disk> {
    let disk = world.directory().open("log").unwrap();
    let (len_bytes, writer) = (disk.len_bytes().unwrap(), Arc::clone(writer));
    let hooks = Hooks::new().len_bytes(move |_| Ok(len_bytes)).push(move |queue, op| {
        writer.before_read();
        match op.kind {
            // The reader's own files keep its writes.
            OpKind::Read(_) => queue.push(op),
            _ => queue.push(Op::new(op.token, op.offset_bytes, OpKind::Sync)),
        }
    });
    hooks.disk(disk)
}

#[test]
fn a_log_that_grows_with_each_read_is_read_up_to_some_group_that_was_written_meanwhile() {
    for (before, every) in [0, 1, 40, 300].into_iter().flat_map(|before| (1..7).map(move |every| (before, every))) {
        let (world, log, anchor) = create(15 + before);
        let writer = RestlessWriter::begin(log, before, every);
        let disk = growing_log(&world, &writer);
        let options = LogOptions { purpose: LogPurpose::ReadBesideWriter, ..OPTIONS };
        let read = Chain::open(&*disk, &options, anchor).and_then(|mut chain| {
            let mut found = 0;
            loop {
                match chain.next()? {
                    Some(_) => found += 1,
                    None if chain.end()?.is_some() => return Ok(found),
                    None => {}
                }
            }
        });
        let (found, made) = (read.unwrap(), writer.made.load(Ordering::Relaxed));
        assert!(found >= before && made < before + 1000, "every {every}: {found} groups found of {before} and {made}");
    }
}

#[test]
fn a_log_whose_file_becomes_longer_while_it_is_read_is_not_taken_for_one_that_was_cut_short() {
    let options = LogOptions { segment_bytes: 64 << 10, log_bytes: 256 << 20, ..OPTIONS };
    let reading = LogOptions { purpose: LogPurpose::ReadBesideWriter, ..options };
    let mut grown = 0;
    for (before, every) in [0, 1, 40, 300].into_iter().flat_map(|before| (1..7).map(move |every| (before, every))) {
        let (world, log, anchor) = create_with(30 + before, options);
        let writer = RestlessWriter::begin(log, before, every);
        let disk = growing_log(&world, &writer);
        let (recovered, records) = read_log(&*disk, &reading, anchor, CommitSeq(0))
            .unwrap_or_else(|error| panic!("{before} commits, every {every}: {error}"));
        grown += u64::from(disk.extent_bytes().unwrap() > disk.len_bytes().unwrap());
        let (seen, last) = (records.map(|record| record.unwrap().0.0), recovered.commit.0);
        assert!(last >= before && seen.eq(1..=last), "{before} commits, every {every}: up to {last}");
    }
    assert!(grown > 0, "it was long enough from the start");

    let (world, log, anchor) = create_with(40, options);
    drop(RestlessWriter::begin(log, 100, 1));
    let disk = world.directory().open("log").unwrap();
    disk.truncate(disk.len_bytes().unwrap() - options.segment_bytes).unwrap();
    let error = read_log(&*disk, &reading, anchor, CommitSeq(0)).err().unwrap();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("cut short"), "{error}");
}

#[test]
fn a_log_that_is_only_read_is_not_written() {
    for purpose in [LogPurpose::Read, LogPurpose::ReadBesideWriter] {
        let (world, log, anchor) = create(17);
        let position = log.append(CommitSeq(1), &[b"last"], Some(Durability::Sync)).ok().unwrap();
        log.durable(position).wait().unwrap();
        // An overlay with memory for no byte refuses every write.
        let disk = Overlay::in_memory(world.directory(), 0).open("log").unwrap();
        let (recovered, _) = read_log(&*disk, &LogOptions { purpose, ..OPTIONS }, anchor, CommitSeq(0)).unwrap();
        assert_eq!(recovered.commit, CommitSeq(1));
        // No later group says that the last one is durable, so a process that appends to it writes it again.
        let error = read_log(&*disk, &OPTIONS, anchor, CommitSeq(0)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    }
}

#[test]
fn damage_beside_a_writer_is_damage() {
    let (world, log, anchor) = create(16);
    for commit in 1..=20_u64 {
        let position = log.append(CommitSeq(commit), &[&commit.to_le_bytes()], Some(Durability::Sync)).ok().unwrap();
        log.durable(position).wait().unwrap();
    }
    let options = LogOptions { purpose: LogPurpose::ReadBesideWriter, ..OPTIONS };
    world.garbage_range("log", 7 * LOG_BLOCK_BYTES as u64..8 * LOG_BLOCK_BYTES as u64).unwrap();
    let disk = world.directory().open("log").unwrap();
    let error = read_log(&*disk, &options, anchor, CommitSeq(0)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
