//! Bulk loads of entries that expire: into empty and filled tables, from every face, and over power cuts.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nofault::blocking::{Db, Table};
use nofault::db::BulkEntry;
use nofault::error::{Error, ErrorKind};
use nofault::settings::{CompactionMode, Settings};
use nofault_io::disk::Directory;
use nofault_sim::content::key;
use nofault_sim::depth::by_depth;
use nofault_sim::{SimOptions, SimWorld};

use super::{disk, time, tiny};

/// Entries of which every third lasts, and the others expire after a second and after two.
fn entries(numbers: impl Iterator<Item = u32>) -> impl Iterator<Item = ([u8; 4], [u8; 60], Option<SystemTime>)> {
    numbers.map(|number| (key(number), [number as u8; 60], expiry_of(number)))
}

fn expiry_of(number: u32) -> Option<SystemTime> {
    let seconds = number % 3;
    (seconds > 0).then(|| time(1000 * i64::from(seconds)))
}

/// An error of the application.
#[derive(Debug, PartialEq)]
struct Refusal(String);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// Returns the number of entries in the leaves, also of those that have expired.
fn stored(table: &Table) -> u64 {
    table.approximate_len::<&[u8]>(..).unwrap()
}

#[test]
fn loaded_entries_expire_at_their_times_and_are_removed_from_empty_and_filled_tables() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(1), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    assert_eq!(table.bulk_load(entries(0..3000)).unwrap(), 3000);
    assert_eq!((table.expiry(key(1)).unwrap(), table.expiry(key(3)).unwrap()), (Some(time(1000)), None));
    // Replaces entries that last by ones that expire, and the reverse.
    let moved = (2000..5000).map(|number| (key(number), [1; 60], expiry_of(number + 1)));
    assert_eq!(table.bulk_load(moved).unwrap(), 3000);
    // A short run is an ordinary commit.
    assert_eq!(table.bulk_load(entries(9000..9003)).unwrap(), 3);
    let expected = |ms| {
        let expiries = (0..2000).map(expiry_of).chain((2001..5001).map(expiry_of)).chain((9000..9003).map(expiry_of));
        expiries.filter(|expiry| expiry.is_none_or(|expiry| expiry > time(ms))).count() as u64
    };
    for ms in [0, 999, 1000, 1999, 2000] {
        clock.set(time(ms));
        assert_eq!(table.len().unwrap(), expected(ms), "after {ms} ms");
    }
    clock.set(time(10_000));
    assert_eq!(db.remove_expired().unwrap(), 5003 - expected(2000));
    assert_eq!(table.delete_range::<&[u8]>(..).unwrap(), expected(2000));
    assert_eq!(stored(&table), 0, "an expired entry is left");
    let found = db.verify().unwrap();
    assert!(found.is_clean(), "{found:?}");
}

#[test]
fn a_load_without_times_leaves_the_format_as_it_is_and_a_later_one_keeps_the_times_of_entries() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(2), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..1000).map(|number| (key(number), [1; 60], None))).unwrap();
    assert_eq!(table.bulk_load(entries(1000..2000)).unwrap(), 1000);
    table.bulk_load((2000..3000).map(|number| (key(number), [1; 60]))).unwrap();
    clock.set(time(10_000));
    let lasting = 2000 + (1000..2000_u32).filter(|number| number.is_multiple_of(3)).count() as u64;
    assert_eq!((table.len().unwrap(), db.remove_expired().unwrap()), (lasting, 3000 - lasting));
}

#[test]
fn loads_of_typed_tables_and_of_tasks_take_times_and_errors_end_them() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(3), &settings).unwrap();
    let typed = db.create_typed_table::<u32, String>("typed").unwrap();
    typed.bulk_load((0..1000u32).map(|number| (number, number.to_string(), expiry_of(number)))).unwrap();
    assert_eq!((typed.expiry(&4).unwrap(), typed.get(&4).unwrap()), (Some(time(1000)), Some("4".to_owned())));

    let table = db.create_table("t").unwrap();
    let broken = entries(0..900).map(Ok).chain([Err(Refusal("no more".into()))]);
    assert_eq!(table.try_bulk_load(broken).unwrap_err(), Refusal("no more".into()));
    let long = |len: usize| [(vec![b'k'; len], "v", Some(time(5)))];
    let longest = (1..512).rev().find(|len| table.put_with_expiry(vec![b'k'; *len], "v", time(5)).is_ok()).unwrap();
    table.clear().unwrap();
    assert_eq!(table.bulk_load(long(longest + 1)).unwrap_err().kind(), ErrorKind::InvalidCall);
    assert!(table.is_empty().unwrap());
    table.bulk_load(long(longest)).unwrap();

    // An entry of the application's own.
    struct Session(u32);
    impl BulkEntry for Session {
        type Key = [u8; 4];
        type Value = &'static str;

        fn into_parts(self) -> ([u8; 4], &'static str, Option<SystemTime>) {
            (key(self.0), "session", Some(time(3000)))
        }
    }
    let sessions = db.create_table("sessions").unwrap();
    assert_eq!(sessions.bulk_load((0..1000).map(Session)).unwrap(), 1000);

    let of_tasks = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        // Tasks need the threads of the database; nothing is removed by itself.
        let settings = Settings {
            page_bytes: 4096,
            cache_bytes: 8 << 20,
            log_bytes: 4 << 20,
            background_threads: true,
            compaction: CompactionMode::Manual,
            ..settings.clone()
        };
        let db = nofault::Db::create_in(&disk(4), &settings).unwrap();
        let table = db.create_table("t").await.unwrap();
        table.bulk_load(entries(0..2000)).await.unwrap();
        table.try_bulk_load(entries(1000..3000).map(Ok::<_, Error>)).await.unwrap();
        clock.set(time(10_000));
        (table.len().await.unwrap(), db.remove_expired().await.unwrap())
    });
    assert_eq!(of_tasks, (1000, 2000));
    assert_eq!((typed.len().unwrap(), sessions.len().unwrap()), (334, 0));
    assert_eq!(db.remove_expired().unwrap(), 666 + 1 + 1000);
}

#[test]
fn the_note_of_a_load_into_a_table_that_is_dropped_is_forgotten() {
    let (clock, settings) = tiny();
    let directory = disk(5);
    let db = Db::create_in(&directory, &settings).unwrap();
    let (table, other) = (db.create_table("t").unwrap(), db.create_table("u").unwrap());
    table.bulk_load(entries(0..2000)).unwrap();
    other.bulk_load(entries(0..2000)).unwrap();
    db.drop_table("t").unwrap();
    clock.set(time(10_000));
    assert_eq!(db.remove_expired().unwrap(), 1333);
    assert_eq!(other.clear().unwrap(), 667);
    assert_eq!(stored(&other), 0);
    assert_eq!(db.remove_expired().unwrap(), 0);
    assert_eq!(db.table_names().unwrap(), ["u"], "a note is no table");
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn after_a_power_cut_at_any_moment_no_expired_entry_of_a_load_stays() {
    no_expired_entry_stays_after_a_power_cut_in_a_load_into(0);
}

#[test]
fn after_a_power_cut_at_any_moment_no_expired_entry_of_a_load_into_a_filled_table_stays() {
    no_expired_entry_stays_after_a_power_cut_in_a_load_into(900);
}

fn no_expired_entry_stays_after_a_power_cut_in_a_load_into(filled: u32) {
    let story = |world: &SimWorld| -> nofault::error::Result<bool> {
        let (_, settings) = tiny();
        let db = Db::create_in(&world.directory(), &settings)?;
        let table = db.create_table("t")?;
        if filled > 0 {
            table.bulk_load((0..filled).map(|number| (key(number), [1; 60])))?;
        }
        table.bulk_load(entries(600..1500))?;
        db.remove_expired()?;
        db.sync()?;
        Ok(true)
    };
    let world = SimWorld::new(6, SimOptions::calm());
    assert!(story(&world).unwrap());
    let (events, mut loaded, mut pending) = (world.events(), 0, 0);
    for cut in (1..=events).step_by(if std::env::var_os("NOFAULT_EVERY_EVENT").is_some() { 1 } else { by_depth(60, 3) })
    {
        let world = SimWorld::new(6, SimOptions::calm());
        world.cut_after(cut);
        let _ = story(&world);
        let (clock, settings) = tiny();
        let directory: Arc<dyn Directory> = world.restart(cut).directory();
        let Ok(db) = Db::open_in(&directory, &settings) else { continue };
        let Ok(table) = db.table("t") else { continue };
        let len = table.len().unwrap();
        let whole = if filled > 0 { 1500 } else { 900 };
        assert!([0, u64::from(filled), whole].contains(&len), "cut after {cut}: {len} entries");
        clock.advance(Duration::from_secs(10));
        let removed = db.remove_expired().unwrap();
        if len == whole {
            loaded += 1;
            assert_eq!(removed, 600, "cut after {cut}");
        }
        pending += u32::from(removed > 0);
        let left = table.clear().unwrap();
        assert_eq!((left + removed, stored(&table)), (len, 0), "cut after {cut}: an expired entry is left");
        assert!(db.verify().unwrap().is_clean(), "cut after {cut}");
    }
    let least = by_depth(0, 3);
    assert!(loaded > least && pending > least, "{loaded} cuts after the load, of {events} events");
}
