//! Tests with databases from `fixtures/`, which earlier builds wrote: this build opens them with all of their content and continues to
//! write them. A database with a part of a version that this build does not know stays unchanged.

use std::collections::BTreeMap;

use crate::old_databases::{FIXTURES, files_in, put_into, unpacked};
use crc_fast::{CrcAlgorithm, Digest};
use nofault::blocking::Db;
use nofault::error::ErrorKind;
use nofault::settings::Settings;

const SLOTS: [usize; 2] = [0, 65_536];

type Rows = BTreeMap<String, String>;

fn settings() -> Settings {
    Settings { cache_bytes: 16 << 20, ..Settings::default() }
}

fn versions(data: &[u8]) -> [u32; 2] {
    SLOTS.map(|slot| u32::from_le_bytes(data[slot + 8..slot + 12].try_into().expect("four bytes")))
}

/// Returns the content of each table of a fixture, as `fixtures/README.md` describes it.
fn expected(kind: &str) -> BTreeMap<String, Rows> {
    let loaded = |rows: u32| -> Rows {
        let len = |row: u32| match row {
            60 => 9000,
            row if row.is_multiple_of(10) => 700,
            _ => 40,
        };
        (0..rows).map(|row| (format!("row-{row:04}"), format!("v{row:03}-").repeat(len(row) / 5))).collect()
    };
    let mut first: Rows = (0..60).step_by(3).map(|row| (format!("key-{row:04}"), format!("first {row}"))).collect();
    first.remove("key-0003");
    let mut changed = loaded(120);
    changed.extend((0..120).step_by(7).map(|row| (format!("row-{row:04}"), format!("changed {row}"))));
    let gone = Rows::from([("k".into(), "v".into())]);
    let mut tables = BTreeMap::from([("first".into(), first), ("gone".into(), gone), ("loaded".into(), changed)]);
    if kind == "killed" {
        tables.insert("second".into(), loaded(50));
        let stream = (0..300).map(|row| (format!("s-{row:05}"), format!("stream {row}"))).collect();
        tables.insert("stream".into(), stream);
    }
    tables
}

fn content(db: &Db) -> BTreeMap<String, Rows> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let rows = |name: &str| -> Rows {
        let range = db.table(name).expect("a table that is there").range::<&[u8]>(..);
        range.map(|entry| entry.map(|(key, value)| (text(&key), text(&value))).expect("a row")).collect()
    };
    db.table_names().expect("its names").into_iter().map(|name| (name.clone(), rows(&name))).collect()
}

#[test]
fn databases_of_earlier_builds_open_with_all_that_is_in_them_and_go_on() {
    for (version, kind, fixture) in FIXTURES {
        let what = format!("format {version}, {kind}");
        let folder = tempfile::tempdir().unwrap();
        let files = unpacked(fixture);
        assert_eq!(versions(&files[0]), [version; 2], "{what}");
        put_into(folder.path(), &files);
        let mut expected = expected(kind);
        for round in 0..3 {
            let db = Db::open(folder.path(), &settings()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(content(&db) == expected, "{what}, opened {round} times before");
            let found = db.verify().unwrap();
            assert!(found.is_clean() && found.repairs.is_empty(), "{what}: {found:?}");
            assert_eq!(versions(&files_in(folder.path())[0]), [3; 2], "{what}");
            match round {
                0 => {
                    db.table("first").unwrap().put("key-new", "new").unwrap();
                    expected.get_mut("first").unwrap().insert("key-new".into(), "new".into());
                    db.drop_table("gone").unwrap();
                    expected.remove("gone");
                }
                1 => {
                    let rows = (0..200).map(|row| (format!("row-{row:04}"), format!("again {row}")));
                    db.create_table("third").unwrap().bulk_load(rows.clone()).unwrap();
                    expected.insert("third".into(), rows.collect());
                    db.checkpoint().unwrap();
                }
                _ => {}
            }
        }
    }
}

#[test]
fn databases_of_earlier_builds_are_read_without_being_converted_and_beside_a_writer_that_has_converted_them() {
    for (version, kind, fixture) in FIXTURES {
        let what = format!("format {version}, {kind}");
        let folder = tempfile::tempdir().unwrap();
        let files = unpacked(fixture);
        put_into(folder.path(), &files);
        let mut expected = expected(kind);
        let read = || Db::open_read_only(folder.path(), &settings()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let readers = [read(), read()];
        for reader in &readers {
            assert!(content(reader) == expected, "{what}");
            assert!(reader.verify().unwrap().is_clean(), "{what}");
        }
        // A build that knows nothing of readers cannot be told of them.
        let error = Db::open(folder.path(), &settings()).expect_err("it opened beside readers");
        assert_eq!(error.kind(), ErrorKind::Busy, "{what}: {error}");
        drop(readers);
        assert!(files_in(folder.path()) == files, "{what}: bytes changed");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "{what}: there is another file");

        let db = Db::open(folder.path(), &settings()).unwrap();
        let mut reader = read();
        assert!(content(&reader) == expected, "{what}, beside a writer");
        db.table("first").unwrap().put("key-new", "new").unwrap();
        expected.get_mut("first").unwrap().insert("key-new".into(), "new".into());
        assert!(reader.refresh().unwrap() && content(&reader) == expected, "{what}, after a commit");
    }
}

/// Changes a superblock and recomputes its checksum.
fn change(data: &mut [u8], slot: usize, change: impl FnOnce(&mut [u8])) {
    let sector = &mut data[SLOTS[slot]..SLOTS[slot] + 4096];
    change(sector);
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&sector[16..24]);
    digest.update(&(slot as u64).to_le_bytes());
    digest.update(&sector[..4088]);
    sector[4088..].copy_from_slice(&digest.finalize().to_le_bytes());
}

#[test]
fn a_later_version_in_either_slot_beside_an_earlier_one_is_refused_and_no_byte_changes() {
    for (version, kind, fixture) in FIXTURES {
        let sound = unpacked(fixture);
        let folder = tempfile::tempdir().unwrap();
        put_into(folder.path(), &sound);
        drop(Db::open(folder.path(), &settings()).unwrap());
        // As the earlier build wrote it, and after this one has opened it.
        for files in [sound, files_in(folder.path())] {
            for slot in 0..2 {
                let mut files = files.clone();
                change(&mut files[0], slot, |sector| sector[8] = 4);
                put_into(folder.path(), &files);
                let error = Db::open(folder.path(), &settings()).expect_err("it opened");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "format {version}, {kind}, slot {slot}: {error}");
                assert!(files_in(folder.path()) == files, "format {version}, {kind}, slot {slot}: bytes changed");
            }
        }
    }
}

#[test]
fn a_damaged_superblock_of_an_earlier_build_is_an_error_that_names_it_and_no_byte_changes() {
    for (version, kind, fixture) in FIXTURES {
        for (slot, name) in ["superblock A at 0", "superblock B at 65536"].into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let mut files = unpacked(fixture);
            files[0][SLOTS[slot] + 300] ^= 8;
            put_into(folder.path(), &files);
            let error = Db::open(folder.path(), &settings()).expect_err("it opened");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "format {version}, {kind}: {error}");
            assert!(error.to_string().contains(name), "format {version}, {kind}: {error}");
            assert!(files_in(folder.path()) == files, "format {version}, {kind}, {name}: bytes changed");
        }
    }
}
