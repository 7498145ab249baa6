//! Secondary indexes: exact after any history, with other writers at work, and after a power cut at any moment.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::BTreeSet;

use crate::common::tiny;
use fastrand::Rng;
use nofault::Durability;
use nofault::blocking::{Db, IndexedTable, TypedTable};
use nofault::error::Result;
use nofault::settings::Settings;
use nofault_sim::{SimOptions, SimWorld};

type People = IndexedTable<u32, String>;
type ByWord = TypedTable<(String, u32), ()>;
type ByLength = TypedTable<(u64, u32), ()>;

/// The words of a text, each once for each row, and the length of the text.
fn open(db: &Db) -> Result<(People, ByWord, ByLength)> {
    let rows = db.open_or_create_typed_table("rows")?;
    let (by_word, by_len) = (db.open_or_create_typed_table("by word")?, db.open_or_create_typed_table("by length")?);
    let words = |_: &u32, text: &String| text.split(' ').map(String::from).collect::<Vec<_>>();
    // Empty texts have no entry.
    let len = |_: &u32, text: &String| Some(text.len() as u64).filter(|len| *len > 0);
    let people = IndexedTable::new(&rows).with_index(&by_word, words).with_index(&by_len, len);
    Ok((people, by_word, by_len))
}

/// Checks both indexes against the rows.
fn check(db: &Db, what: &str) {
    let (people, by_word, by_len) = open(db).unwrap();
    let (mut words, mut lens) = (BTreeSet::new(), BTreeSet::new());
    for row in people.rows().iter() {
        let (number, text) = row.unwrap();
        words.extend(text.split(' ').map(|word| (word.to_string(), number)));
        lens.extend(Some((text.len() as u64, number)).filter(|(len, _)| *len > 0));
    }
    let found: BTreeSet<_> = by_word.iter().map(|entry| entry.unwrap().0).collect();
    assert_eq!(found, words, "{what}");
    let found: BTreeSet<_> = by_len.iter().map(|entry| entry.unwrap().0).collect();
    assert_eq!(found, lens, "{what}");
}

fn text(rng: &mut Rng) -> String {
    let words: Vec<_> = (0..rng.usize(..4)).map(|_| ["a", "a\0", "ab", "c"][rng.usize(..4)]).collect();
    words.join(" ")
}

/// Makes random changes, until one fails.
fn live(db: &Db, seed: u64, steps: u32) -> Result<()> {
    let ((people, ..), mut rng) = (open(db)?, Rng::with_seed(seed));
    for _ in 0..steps {
        let (one, two) = (rng.u32(..12), rng.u32(..12));
        match rng.u32(..4) {
            0 => people.delete(&one)?,
            1 => {
                let mut texts = [text(&mut rng), text(&mut rng)];
                db.transact(Durability::Deferred, |change| {
                    // A row changed twice in one transaction, perhaps.
                    people.put_in(change, &one, &std::mem::take(&mut texts[0]))?;
                    people.delete_in(change, &two)?;
                    people.put_in(change, &two, &std::mem::take(&mut texts[1]))
                })?;
            }
            _ => people.put(&one, &text(&mut rng))?,
        }
    }
    Ok(())
}

#[test]
fn indexes_are_exact_after_any_history_and_beside_other_writers() {
    let directory = SimWorld::new(1, SimOptions::default()).directory();
    let settings = Settings { cache_bytes: 32 << 20, log_bytes: 64 << 20, background_threads: true, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    live(&db, 1, 200).unwrap();
    check(&db, "one writer");
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let db = &db;
            scope.spawn(move || live(db, seed, 100).unwrap());
        }
    });
    check(&db, "four writers");
    // Changes past the index, and the index rebuilt.
    let (people, by_word, _) = open(&db).unwrap();
    people.rows().put(&3, "past the index").unwrap();
    by_word.put(&("of no row", 3), &()).unwrap();
    assert_eq!(people.rebuild().unwrap(), people.rows().len().unwrap());
    check(&db, "made anew");
}

#[test]
fn a_power_cut_at_any_moment_leaves_indexes_exact() {
    let (mut cuts, mut cut) = (0, 400);
    loop {
        let world = SimWorld::new(cut, SimOptions::adversarial());
        let db = Db::create_in(&world.directory(), &tiny()).unwrap();
        open(&db).unwrap();
        let begin = world.events();
        world.cut_after(begin + cut - 400);
        let lived = live(&db, 7, 60);
        drop(db);
        let world = world.restart(cut);
        let db = Db::open_in(&world.directory(), &tiny()).unwrap();
        check(&db, &format!("cut after {cut}"));
        live(&db, cut, 20).unwrap();
        check(&db, &format!("cut after {cut}, and on"));
        if lived.is_ok() {
            break;
        }
        (cuts, cut) = (cuts + 1, cut + 3);
    }
    assert!(cuts > 20, "{cuts} cuts");
}
