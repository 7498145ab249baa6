//! Damage in one page of a database with many tables: the other pages are sound, and each table reached without that page is
//! listed and read.

use std::collections::BTreeSet;

use nofault::blocking::Db;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault_sim::{SimOptions, SimWorld};

use crate::story;

const PAGE: usize = 512;
const TABLES: u32 = 240;
/// Offset of the first block for pages and page-table nodes.
const FIRST_BLOCK: usize = 131_072 / PAGE;

/// Settings with a log so large that no checkpoint is made.
fn tiny() -> Settings {
    Settings { log_bytes: 1 << 20, ..story::tiny() }
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn name(number: u32) -> String {
    // In no order of their creation, and long enough for a catalog of three levels.
    format!("{:04}: one of many tables", number * 7919 % 10_000)
}

fn rows(number: u32) -> Rows {
    let count = if number.is_multiple_of(10) { 60 } else { number % 4 };
    let value = |row: u32| vec![number as u8; if row == 2 { 1500 } else { 20 }];
    (0..count).map(|row| (row.to_be_bytes().to_vec(), value(row))).collect()
}

fn many_tables() -> SimWorld {
    let world = SimWorld::new(3, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &tiny()).unwrap();
    for number in 0..TABLES {
        db.create_table(&name(number)).unwrap().bulk_load(rows(number)).unwrap();
    }
    db.close().unwrap();
    world
}

/// The header fields of a page and of the node in it.
struct PageFound {
    page: u64,
    is_node: bool,
    level: u8,
    table: u64,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Decodes a page or a node as `docs/format.md` describes it, without the engine's code.
fn parse(block: &[u8]) -> PageFound {
    let (page, body) = (number(block, 8, 8), &block[40..]);
    let (lower_len, upper_len) = (number(body, 6, 2) as usize, number(body, 8, 2) as usize);
    let is_node = body[0] == 1;
    let (mut lower, mut upper) = (Vec::new(), None);
    if is_node {
        lower = body[body.len() - lower_len..].to_vec();
        upper = (body[10] & 1 == 1).then(|| body[body.len() - lower_len - upper_len..body.len() - lower_len].to_vec());
    }
    PageFound { page, is_node, level: body[1], table: number(body, 16, 8), lower, upper }
}

fn open(world: &SimWorld) -> nofault::error::Result<Db> {
    Db::open_in(&world.directory(), &tiny())
}

fn read(db: &Db, name: &str) -> nofault::error::Result<Rows> {
    db.table(name)?.range::<&[u8]>(..).collect()
}

#[test]
fn damage_of_any_page_leaves_all_other_pages_sound_and_hides_no_table_that_is_reached_without_it() {
    let world = many_tables();
    let data = world.read_file("data").unwrap();
    let names: BTreeSet<String> = (0..TABLES).map(name).collect();
    let (mut of_catalog, mut of_tables, mut refused) = ([0; 3], 0, 0);
    for block in FIRST_BLOCK..data.len() / PAGE {
        let bytes = &data[block * PAGE..(block + 1) * PAGE];
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let is_table_node = &bytes[8..12] == b"NFpt";
        let found = parse(bytes);
        let is_catalog = !is_table_node && found.is_node && found.table == 0;
        // Each page of the catalog, and some of the others.
        if !is_catalog && !block.is_multiple_of(13) {
            continue;
        }
        let world = world.restart(block as u64);
        world.flip_bit("data", (block * PAGE + 60) as u64, 3).unwrap();
        let what = format!("block {block}, page {} of table {}, level {}", found.page, found.table, found.level);
        let db = match open(&world) {
            Ok(db) => db,
            Err(error) => {
                assert!(is_table_node && error.kind() == ErrorKind::Corrupt, "{what}: {error}");
                refused += 1;
                continue;
            }
        };
        let verified = db.verify().unwrap();
        if verified.is_clean() {
            // An older version, which nothing refers to any more.
            continue;
        }
        for problem in &verified.problems {
            assert_eq!(problem.error.page().map(|page| page.0), Some(found.page), "{what}: {problem:?}");
        }
        let is_below = |name: &String| {
            name.as_bytes() >= found.lower.as_slice()
                && found.upper.as_ref().is_none_or(|upper| name.as_bytes() < upper.as_slice())
        };
        let hidden: BTreeSet<String> = names.iter().filter(|name| is_catalog && is_below(name)).cloned().collect();
        let listed = db.list_tables().unwrap();
        let others: Vec<_> = names.difference(&hidden).cloned().collect();
        assert_eq!(listed.names, others, "{what}");
        assert_eq!(db.table_names().map_err(|error| error.page()).is_ok(), !is_catalog, "{what}");
        assert_eq!(listed.damage.len() as u64, u64::from(is_catalog), "{what}: {:?}", listed.damage);
        assert_eq!(verified.catalog_pages_damaged, u64::from(is_catalog), "{what}");
        assert_eq!(verified.unnamed_tables.len(), hidden.len(), "{what}: {:?}", verified.unnamed_tables);
        assert_eq!(verified.damaged_tables.len(), usize::from(!is_catalog), "{what}: {:?}", verified.damaged_tables);
        let (mut told, mut damaged) = (verified.sound_tables.clone(), 0);
        told.extend(verified.damaged_tables.iter().cloned());
        told.sort_unstable();
        assert_eq!(told, others, "{what}");
        for of in 0..TABLES {
            let name = name(of);
            match read(&db, &name) {
                Ok(found) => assert!(!hidden.contains(&name) && found == rows(of), "{what}: {name}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                    assert_eq!(error.page().map(|page| page.0), Some(found.page), "{what}: {error}");
                    let text = error.to_string();
                    assert!(text.contains(&format!("at byte {} of the data file", block * PAGE)), "{what}: {text}");
                    assert_eq!(text.contains("the catalog"), is_catalog, "{what}: {text}");
                    damaged += usize::from(!hidden.contains(&name));
                }
            }
        }
        assert_eq!(damaged, usize::from(!is_catalog), "{what}");
        if is_catalog {
            of_catalog[usize::from(found.level)] += 1;
        } else {
            of_tables += 1;
        }
    }
    println!("damaged: {of_catalog:?} pages of the catalog by level, {of_tables} of tables; {refused} refused");
    assert!(
        of_catalog[0] > 5 && of_catalog[1] > 1 && of_catalog[2] == 1 && of_tables > 10,
        "{of_catalog:?} {of_tables}"
    );
}

/// Adds commits that no checkpoint contains: puts, created tables, and dropped and renamed ones.
fn with_log(world: &SimWorld) -> SimWorld {
    let db = open(world).unwrap();
    for of in (0..TABLES).step_by(6) {
        db.table(&name(of)).unwrap().put("new", "row").unwrap();
    }
    for of in (1..TABLES).step_by(30) {
        db.drop_table(&name(of)).unwrap();
        db.create_table(&format!("{}, again", name(of))).unwrap();
    }
    for of in (3..TABLES).step_by(15) {
        // To a name that is far from the old one, and so mostly in another page of the catalog.
        db.rename_table(&name(of), &format!("{:04}: renamed", (of * 7919 + 5000) % 10_000)).unwrap();
    }
    db.table(&name(2)).unwrap().put("last", "row").unwrap();
    db.sync().unwrap();
    world.restart(1)
}

#[test]
fn records_of_hidden_tables_stay_in_the_log_and_the_others_are_replayed() {
    let settled = many_tables();
    let data = settled.read_file("data").unwrap();
    let world = with_log(&settled);
    let whole = open(&world.restart(0)).unwrap();
    let expected: Vec<(String, Rows)> =
        whole.table_names().unwrap().into_iter().map(|name| (name.clone(), read(&whole, &name).unwrap())).collect();
    drop(whole);
    let (mut stopped, mut went_on) = (0, 0);
    for block in FIRST_BLOCK..data.len() / PAGE {
        let bytes = &data[block * PAGE..(block + 1) * PAGE];
        let found = parse(bytes);
        if &bytes[8..12] == b"NFpt" || !found.is_node || found.table != 0 {
            continue;
        }
        let what = format!("block {block}, page {} of the catalog, level {}", found.page, found.level);
        let damaged = world.restart(block as u64);
        damaged.flip_bit("data", (block * PAGE + 60) as u64, 3).unwrap();
        let db = open(&damaged).unwrap_or_else(|error| panic!("{what}: {error}"));
        let listed = db.list_tables().unwrap();
        if listed.damage.is_empty() {
            continue;
        }
        for (name, rows) in &expected {
            match read(&db, name) {
                Ok(found) => assert!(found == *rows && listed.names.contains(name), "{what}: {name}"),
                Err(error) => {
                    assert!(!listed.names.contains(name), "{what}: {name}: {error}");
                    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("the catalog"), "{error}");
                }
            }
        }
        assert!(listed.names.iter().all(|name| expected.iter().any(|(known, _)| known == name)), "{what}");
        match db.table(&listed.names.first().cloned().unwrap_or_default()).and_then(|table| table.put("more", "rows")) {
            Ok(()) => went_on += 1,
            Err(error) if listed.names.is_empty() => assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Poisoned, "{what}: {error}");
                assert!(error.to_string().contains("the catalog"), "{what}: {error}");
                assert_eq!(db.checkpoint().unwrap_err().kind(), ErrorKind::Poisoned, "{what}");
                stopped += 1;
                drop(db);
                // Once the page is back, for which a copy of the file may be at hand, nothing is lost.
                damaged.flip_bit("data", (block * PAGE + 60) as u64, 3).unwrap();
                let db = open(&damaged).unwrap();
                assert!(expected.iter().all(|(name, rows)| read(&db, name).unwrap() == *rows), "{what}");
                assert_eq!(db.table_names().unwrap().len(), expected.len(), "{what}");
            }
        }
    }
    println!("{stopped} databases take no commits any more, {went_on} do");
    assert!(stopped > 5, "{stopped} {went_on}");
}
