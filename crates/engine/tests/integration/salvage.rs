//! Salvages databases that earlier builds wrote, sound and damaged.

use crate::old_databases::{FIXTURES, files_in, put_into, unpacked};
use nofault::blocking::Db;
use nofault::salvage::{SalvageOptions, salvage};
use nofault::settings::Settings;
use nofault_sim::content::Content;

fn content(db: &Db) -> Content {
    let rows = |name: &str| -> nofault::error::Result<_> { db.table(name)?.range::<&[u8]>(..).collect() };
    let rows = |name: &str| rows(name).expect("a sound table");
    db.table_names().expect("a sound catalog").into_iter().map(|name| (name.clone(), rows(&name))).collect()
}

#[test]
fn databases_of_earlier_formats_are_salvaged_as_they_are_opened_and_stay_as_they_are() {
    for (version, name, fixture) in FIXTURES {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        std::fs::create_dir(&old).unwrap();
        let files = unpacked(fixture);
        put_into(&old, &files);
        let report = salvage(&old, &new, &SalvageOptions::new(Settings::small(16, 4)), |_| true).unwrap();
        assert!(report.is_complete(), "format {version}, {name}: {report:?}");
        assert!(files_in(&old) == files, "format {version}, {name}: the old database has changed");
        let opened = content(&Db::open(&old, &Settings::small(16, 4)).unwrap());
        assert!(content(&Db::open(&new, &Settings::small(16, 4)).unwrap()) == opened, "format {version}, {name}");
    }
}

#[test]
fn databases_of_earlier_formats_that_are_damaged_give_exact_entries_and_list_the_others() {
    for (version, name, fixture) in FIXTURES {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        std::fs::create_dir(&old).unwrap();
        let files = unpacked(fixture);
        put_into(&old, &files);
        let expected = content(&Db::open(&old, &Settings::small(16, 4)).unwrap());
        // Every block in turn would take minutes: a few, and both superblocks.
        let blocks = nofault_sim::depth::sample((32..files[0].len() / 4096).step_by(61), 4).chain([0, 16]);
        for block in blocks {
            let mut damaged = files.clone();
            damaged[0][block * 4096..(block + 1) * 4096].fill(0xA5);
            put_into(&old, &damaged);
            let report = salvage(&old, &new, &SalvageOptions::new(Settings::small(16, 4)), |_| true).unwrap();
            let what = format!("format {version}, {name}, block {block}: {report:?}");
            let found = content(&Db::open(&new, &Settings::small(16, 4)).unwrap());
            std::fs::remove_dir_all(&new).unwrap();
            if report.history_cut.is_some() {
                // The superblocks took turns, and one of them may have been newer.
                assert!([0, 16].contains(&block), "{what}");
                continue;
            }
            let is_lost = |table: &str, key: &[u8]| {
                report.lost_ranges.iter().any(|range| range.table == table && range.contains(key))
                    || report.lost_values.iter().any(|value| value.table == table && value.key == key)
            };
            for (table, rows) in &expected {
                let Some(found) = found.get(table) else {
                    assert!(!report.lost_names.is_empty(), "{what}");
                    continue;
                };
                assert!(found.iter().all(|(key, value)| rows.get(key) == Some(value)), "{what}");
                let missing = rows.keys().find(|key| !found.contains_key(*key) && !is_lost(table, key));
                assert_eq!(missing, None, "{what}");
            }
        }
    }
}
