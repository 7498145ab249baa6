//! Databases damaged at every place, and salvaged: each entry comes out as it was, or is listed as lost.

use std::collections::BTreeMap;
use std::ops::Range;

use nofault_sim::content::{Content, Rows};
use nofault_sim::depth::{by_depth, sample as share};
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};
use proptest::prelude::*;

use super::source::Source;
use super::{SalvageProgress, SalvageReport, Watch, run};
use crate::blocking::{Db, UnfinishedDb};
use crate::codec::HAS_ZSTD;
use crate::db::api::load::write_anew;
use crate::db::calls::loads::IterEntries;
use crate::db::tests::content;
use crate::error::{ErrorKind, Result};
use crate::format::{CommitSeq, Moment, PAGES_START_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use crate::settings::{Compression, Settings};

fn value(number: u32) -> Vec<u8> {
    let len = [20, 90, 100, 300, 2000][number as usize % 5];
    let text = format!("value {number}, stock {:x}; ", number.wrapping_mul(2_654_435_761));
    text.into_bytes().into_iter().cycle().take(len).collect()
}

/// A closed database, with its content after each of the commits since its last checkpoint.
struct Sample {
    world: SimWorld,
    states: Vec<(CommitSeq, Content)>,
}

impl Sample {
    /// Creates a database with values of every kind, a dropped table, and changes in the log only.
    fn new(compression: Compression) -> Self {
        let world = SimWorld::new(4, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &Settings { compression, ..Settings::tiny(3) }).unwrap();
        let loaded = db.create_table("loaded").unwrap();
        loaded.bulk_load((0..200_u32).map(|number| (number.to_be_bytes(), value(number)))).unwrap();
        let put = db.create_table("put").unwrap();
        for number in 0..120_u32 {
            put.put((number * 7919 % 120).to_be_bytes(), value(number)).unwrap();
        }
        put.put("long", vec![7; 40_000]).unwrap();
        db.create_table("empty").unwrap();
        db.create_table("gone").unwrap().put("k", "v").unwrap();
        db.checkpoint().unwrap();
        let mut states = vec![(db.stats().visible_commit, content(&db).unwrap())];
        // Dropping a table is a commit, and so is each step that frees its pages.
        let mut note = || {
            let first = states.last().map_or(0, |(commit, _): &(CommitSeq, Content)| commit.0) + 1;
            states.push((CommitSeq(first), content(&db).unwrap()));
            states.push((db.stats().visible_commit, content(&db).unwrap()));
        };
        for number in (0..200_u32).step_by(37) {
            loaded.put(number.to_be_bytes(), "later").unwrap();
            note();
        }
        put.delete(5_u32.to_be_bytes()).unwrap();
        note();
        db.drop_table("gone").unwrap();
        note();
        let again = db.create_table("gone").unwrap();
        note();
        again.put("new", "row").unwrap();
        note();
        put.put(3_u32.to_be_bytes(), vec![9; 3000]).unwrap();
        note();
        db.sync().unwrap();
        drop((loaded, put, again, db));
        Self { world, states }
    }

    /// Creates a database with a table that a load has rewritten, where nothing of the content before is freed yet.
    fn written_anew(compression: Compression) -> Self {
        let world = SimWorld::new(4, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &Settings { compression, ..Settings::tiny(3) }).unwrap();
        for (name, rows) in [("large", 300), ("small", 3)] {
            let table = db.create_table(name).unwrap();
            table.bulk_load((0..rows).map(|number: u32| (number.to_be_bytes(), value(number)))).unwrap();
            let run = (100..400_u32).map(|number| Ok((number.to_be_bytes(), value(number + 1), Moment::NEVER)));
            write_anew(table.as_ref(), &mut IterEntries::new(run), &Default::default()).unwrap();
            (0..400_u32).step_by(3).for_each(|number| table.delete(number.to_be_bytes()).unwrap());
        }
        db.checkpoint().unwrap();
        let states = vec![(db.stats().visible_commit, content(&db).unwrap())];
        drop(db);
        Self { world, states }
    }

    fn data_bytes(&self) -> u64 {
        self.world.read_file("data").unwrap().len() as u64
    }

    /// Salvages the database as it is now. Returns the report and the content of the new database.
    fn salvage(&self, include_unsure: bool) -> Result<(SalvageReport, Content)> {
        let before = ["data", "log"].map(|name| self.world.read_file(name).unwrap());
        let directory = self.world.directory();
        let source = Source::of(&*directory)?;
        let new = SimWorld::new(5, SimOptions::calm()).directory();
        let create = |page_bytes| UnfinishedDb::create_in(&new, &Settings { page_bytes, ..Settings::tiny(3) });
        let mut go_on = |_: &SalvageProgress| true;
        let mut watch = Watch { call: &mut go_on, progress: SalvageProgress::default(), is_stopped: false };
        let report = run(&source, create, include_unsure, &mut watch)?;
        let db = Db::open_in(&new, &Settings::tiny(3))?;
        assert!(db.verify()?.is_clean());
        assert!(before == ["data", "log"].map(|name| self.world.read_file(name).unwrap()), "the source has changed");
        Ok((report, content(&db)?))
    }

    /// Salvages the damaged database, and checks that every entry is exact, or listed as lost.
    fn check(&self, what: &str) -> SalvageReport {
        let (report, found) = self.salvage(false).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.compare(&report, &found, what);
        report
    }

    fn compare(&self, report: &SalvageReport, found: &Content, what: &str) {
        let at = self.states.iter().rposition(|(commit, _)| *commit <= report.commit);
        let (_, state) = &self.states[at.unwrap_or(0)];
        if report.history_cut.is_none() {
            assert_eq!(at, Some(self.states.len() - 1), "{what}: the state is of commit {}: {report:?}", report.commit);
        }
        let is_unsure = |name: &str| report.tables.iter().any(|table| table.name == name && table.is_unsure);
        let is_lost = |table: &str, key: &[u8]| {
            let in_range = report.lost_ranges.iter().any(|range| range.table == table && range.contains(key));
            in_range || report.lost_values.iter().any(|value| value.table == table && value.key == key)
        };
        for (name, rows) in found.iter().filter(|(name, _)| !is_unsure(name)) {
            let is_exact = |state: &Rows| rows.iter().all(|(key, value)| state.get(key) == Some(value));
            if name.starts_with("unnamed-") {
                assert!(!report.lost_names.is_empty(), "{what}: {name}: {report:?}");
                assert!(state.values().any(is_exact), "{what}: {name} has wrong entries");
                continue;
            }
            let Some(state) = state.get(name) else { panic!("{what}: there was no table {name}: {report:?}") };
            for (key, value) in rows {
                assert!(state.get(key) == Some(value), "{what}: {name}: wrong value of {key:?}: {report:?}");
            }
            let lost = state.keys().filter(|key| !rows.contains_key(*key)).find(|key| !is_lost(name, key));
            assert_eq!(lost, None, "{what}: {name}: a key is missing and not listed: {report:?}");
        }
        for name in state.keys().filter(|name| !found.contains_key(*name)) {
            let says_so = !report.lost_names.is_empty() || found.contains_key(&format!("{name}~unsure"));
            assert!(says_so, "{what}: the table {name} is missing and not listed: {report:?}");
        }
    }

    /// Damages a range of the data file in one of several ways.
    fn damage(&self, file: &str, range: Range<u64>, way: u64) {
        match way % 4 {
            0 => self.world.zero_range(file, range),
            1 => self.world.garbage_range(file, range),
            2 => self.world.flip_bit(file, range.start + (range.end - range.start) / 2, 3),
            // The content of another block: whole, and in the wrong place.
            _ => {
                let other = if range.start > PAGES_START_BYTES { PAGES_START_BYTES } else { range.end };
                self.world.misplace(file, other..other + (range.end - range.start), range.start)
            }
        }
        .unwrap();
    }
}

fn each_compression() -> impl Iterator<Item = Compression> {
    let small = HAS_ZSTD.then_some(Compression::Small);
    [Compression::None, Compression::Fast].into_iter().chain(small)
}

#[test]
fn a_sound_database_is_salvaged_completely() {
    for compression in each_compression() {
        let sample = Sample::new(compression);
        let report = sample.check("sound");
        assert!(report.is_complete() && report.damage.is_empty(), "{report:?}");
        assert!(report.commits_replayed > 10, "{report:?}");
    }
}

#[test]
fn the_content_that_a_table_had_before_a_load_does_not_come_back() {
    for compression in each_compression() {
        let sample = Sample::written_anew(compression);
        assert!(sample.check("sound").is_complete());
        let saved = sample.world.snapshot_file("data").unwrap();
        for (number, block) in
            (PAGES_START_BYTES / 512..sample.data_bytes() / 512).step_by(by_depth(149, 37)).enumerate()
        {
            let range = block * 512..(block + 1) * 512;
            sample.damage("data", range.clone(), number as u64);
            sample.check(&format!("{compression:?}, block {block}"));
            sample.world.restore_range("data", &saved, range).unwrap();
        }
    }
}

#[test]
fn a_database_damaged_at_any_block_gives_exact_entries_and_lists_the_others() {
    for compression in each_compression() {
        let sample = Sample::new(compression);
        let saved = sample.world.snapshot_file("data").unwrap();
        let (mut lossy, mut complete) = (0, 0);
        // Every block takes minutes: an environment variable asks for all of them.
        let step = if std::env::var_os("NOFAULT_EVERY_BLOCK").is_some() { 1 } else { by_depth(71, 7) };
        for (number, block) in (PAGES_START_BYTES / 512..sample.data_bytes() / 512).step_by(step).enumerate() {
            let range = block * 512..(block + 1) * 512;
            sample.damage("data", range.clone(), number as u64);
            let report = sample.check(&format!("{compression:?}, block {block}"));
            *(if report.is_complete() { &mut complete } else { &mut lossy }) += 1;
            sample.world.restore_range("data", &saved, range).unwrap();
        }
        // Inner nodes, free blocks, and nothing else can be damaged without a loss.
        let [loss, sound] = by_depth([1, 0], [5, 2]);
        assert!(lossy > loss && complete > sound, "{compression:?}: {lossy} with losses, {complete} without");
    }
}

#[test]
fn a_log_damaged_at_any_block_gives_the_state_before_the_damage() {
    let sample = Sample::new(Compression::None);
    let saved = sample.world.snapshot_file("log").unwrap();
    let blocks = sample.world.read_file("log").unwrap().len() as u64 / 4096;
    let mut cuts = 0;
    for block in share(0..blocks, 5) {
        sample.damage("log", block * 4096..(block + 1) * 4096, block % 3);
        let report = sample.check(&format!("block {block} of the log"));
        cuts += u64::from(report.history_cut.is_some());
        assert!(report.lost_ranges.is_empty() && report.lost_values.is_empty(), "{report:?}");
        sample.world.restore_range("log", &saved, block * 4096..(block + 1) * 4096).unwrap();
    }
    assert!(cuts > by_depth(0, 5), "{cuts}");
    sample.world.directory().remove("log").unwrap();
    let directory = sample.world.directory();
    let source = Source::of(&*directory).unwrap();
    assert_eq!(source.log.as_ref().unwrap_err().kind(), ErrorKind::NotFound);
}

/// Such a failure says nothing about the data: another attempt may read it.
#[test]
fn a_salvage_that_lacks_resources_or_rights_says_so_and_makes_no_database() {
    let damage_pages = |sample: &Sample| {
        let data = sample.world.read_file("data").unwrap();
        let nodes = (PAGES_START_BYTES / 512..data.len() as u64 / 512)
            .filter(|block| &data[*block as usize * 512 + 8..][..4] == b"NFpt");
        nodes.for_each(|block| sample.damage("data", block * 512..(block + 1) * 512, 1));
    };
    for (errno, expected, damage) in [
        (libc::EMFILE, ErrorKind::NoResources, None),
        (libc::ENOMEM, ErrorKind::NoResources, Some(damage_pages)),
        (libc::EACCES, ErrorKind::NoPermission, None),
    ] {
        let whole = Sample::new(Compression::Fast);
        if let Some(damage) = damage {
            damage(&whole);
        }
        let mut failed = 0;
        for (call, file, step) in
            [(Call::Read, "data", 97), (Call::Read, "log", 1), (Call::Open, "data", 1), (Call::Open, "log", 1)]
        {
            for skip in (0..).step_by(step) {
                let sample = Sample { world: whole.world.restart(skip), states: whole.states.clone() };
                sample.world.inject(Fault::new(call, Effect::Errno(errno)).on(file).after(skip).times(u64::MAX));
                let outcome = sample.salvage(false);
                if sample.world.stats().error_count == 0 {
                    break;
                }
                failed += 1;
                match outcome {
                    Err(error) if error.kind() == expected => {}
                    other => panic!("{call:?} {skip} of {file}, {errno}: {:?}", other.map(|(report, _)| report)),
                }
            }
        }
        assert!(failed > 20, "{failed}");
    }
}

#[test]
fn one_superblock_stands_in_for_the_other_and_without_both_the_pages_tell_the_file_apart() {
    for compression in each_compression() {
        let sample = Sample::new(compression);
        let saved = sample.world.snapshot_file("data").unwrap();
        let wipe = |slot: usize| {
            let offset = SUPERBLOCK_OFFSETS[slot];
            sample.world.zero_range("data", offset..offset + SUPERBLOCK_BYTES as u64).unwrap();
        };
        for slot in [0, 1] {
            wipe(slot);
            assert!(sample.check("one superblock").is_complete());
            sample.world.restore_file("data", &saved).unwrap();
        }
        wipe(0);
        wipe(1);
        // The pages of this database are smaller than any looked for.
        let error = sample.salvage(false).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("superblock A"), "{error}");
    }
}

#[test]
fn a_lost_page_table_leaves_unsure_entries_apart_unless_they_are_accepted() {
    let sample = Sample::new(Compression::None);
    // Nodes of the page table begin with their checksum and these letters.
    let data = sample.world.read_file("data").unwrap();
    let nodes: Vec<u64> = (PAGES_START_BYTES / 512..data.len() as u64 / 512)
        .filter(|block| &data[*block as usize * 512 + 8..][..4] == b"NFpt")
        .collect();
    for block in &nodes {
        sample.damage("data", block * 512..(block + 1) * 512, 1);
    }
    let report = sample.check("no page table");
    assert!(!report.is_complete() && report.tables.iter().any(|table| table.is_unsure), "{report:?}");
    let (_, found) = sample.salvage(true).unwrap();
    // Nothing else is damaged, and no page has an older version of the same commit, so all of it is there.
    let (_, state) = sample.states.last().unwrap();
    for (name, rows) in state {
        let there = rows.iter().filter(|(key, value)| found.get(name).and_then(|rows| rows.get(*key)) == Some(value));
        assert!(there.count() * 10 >= rows.len() * 9, "{name}: {} entries", found.get(name).map_or(0, BTreeMap::len));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::salvage::tests::cases()))]
    #[test]
    fn several_damaged_places_give_exact_entries_and_list_the_others(
        compression in 0..3_usize,
        places in proptest::collection::vec((any::<u64>(), any::<u64>(), 1..4_u64), 1..12),
        cut in proptest::option::of(any::<u64>()),
    ) {
        thread_local! {
            static SAMPLES: Vec<Sample> = each_compression().map(Sample::new).collect();
        }
        SAMPLES.with(|samples| {
            let sample = &samples[compression % samples.len()];
            let saved = sample.world.snapshot_file("data").unwrap();
            let blocks = sample.data_bytes() / 512;
            let first = PAGES_START_BYTES / 512;
            for (place, way, count) in &places {
                let block = first + place % (blocks - first - count);
                sample.damage("data", block * 512..(block + count) * 512, *way);
            }
            if let Some(cut) = cut {
                let block = blocks / 2 + cut % (blocks / 2);
                sample.world.set_len("data", block * 512).unwrap();
            }
            sample.check(&format!("{places:?}, cut {cut:?}"));
            sample.world.restore_file("data", &saved).unwrap();
        });
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(by_depth(6, 24))
}

#[test]
fn the_durable_writes_of_a_salvage_do_not_grow_with_the_tables() {
    let steps = |tables: u32| {
        let world = SimWorld::new(4, SimOptions::calm());
        let directory = world.directory();
        let db = Db::create_in(&directory, &Settings::tiny(3)).unwrap();
        for number in 0..tables {
            db.create_table(&format!("{number}")).unwrap().put("k", "v").unwrap();
        }
        drop(db);
        let new = SimWorld::new(5, SimOptions::calm());
        let directory = new.directory();
        let create = |page_bytes| UnfinishedDb::create_in(&directory, &Settings { page_bytes, ..Settings::tiny(3) });
        let mut go_on = |_: &SalvageProgress| true;
        let mut watch = Watch { call: &mut go_on, progress: SalvageProgress::default(), is_stopped: false };
        let report = run(&Source::of(&*world.directory()).unwrap(), create, false, &mut watch).unwrap();
        assert_eq!(report.tables.len(), tables as usize);
        let stats = new.stats();
        (stats.durable_write_count, stats.sync_count, stats.directory_sync_count)
    };
    assert_eq!(steps(2), steps(50));
}
