//! Whole databases on a simulated disk: damaged in any way, forged, or used in any order.

use std::sync::OnceLock;

use nofault_sim::content::Rows;
use nofault_sim::{SimOptions, SimWorld};

use super::{FILE_ID, Input};
use crate::blocking::{Db, Snapshot, Table};
use crate::error::{Error, ErrorKind};
use crate::format::{
    BlockId, Location, NodeId, PageId, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, Tag, encode_node,
    entries_per_node, page_commit, seal_page,
};
use crate::settings::Settings;
use crate::{Batch, Durability};

/// Page size of the databases that are damaged or forged: the smallest, for a large tree in few bytes.
const PAGE_BYTES: usize = 512;

fn settings(page_bytes: usize) -> Settings {
    Settings {
        page_bytes,
        cache_bytes: (656 << 10) + (page_bytes - 512) * 80,
        log_bytes: 64 << 10,
        ..Settings::tiny(FILE_ID)
    }
}

/// Opens both files of a database with changes that the bytes describe, with stale or recomputed checksums, or files
/// that are the bytes alone. The database opens or returns an error, and each call on it returns a result or an error.
pub fn open(bytes: &[u8]) {
    let mut input = Input(bytes);
    let world = match input.u8() {
        0 => arbitrary(&mut input),
        2 => forged(&mut input),
        _ => changed(&mut input),
    };
    let directory = world.directory();
    let Ok(db) = Db::open_in(&directory, &settings(PAGE_BYTES)) else { return };
    let _ = db.verify();
    for name in db.table_names().unwrap_or_default() {
        let Ok(table) = db.table(&name) else { continue };
        let _ = table.get("key-01");
        let _ = table.range::<&[u8]>(..).take(2000).last();
        let _ = table.range::<&[u8]>(..).rev().take(2000).last();
        let _ = table.put("key-01", "value");
        let _ = table.delete("key-02");
    }
    let _ = db.checkpoint();
}

fn arbitrary(input: &mut Input<'_>) -> SimWorld {
    let world = SimWorld::new(1, SimOptions::calm());
    let directory = world.directory();
    let split = usize::from(input.u16());
    for (name, content) in [("data", input.bytes(split)), ("log", input.0)] {
        drop(directory.create(name).expect("a new file"));
        world.set_len(name, content.len() as u64).expect("a file that exists");
        world.overwrite(name, 0, content).expect("a file that is as long");
    }
    world
}

/// Returns a database with a table, long values, an overwritten log and two checkpoints. It is made once.
fn sound() -> &'static SimWorld {
    static SOUND: OnceLock<SimWorld> = OnceLock::new();
    SOUND.get_or_init(|| {
        let world = SimWorld::new(1, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &settings(PAGE_BYTES)).expect("a new database");
        let table = db.create_table("t").expect("a new table");
        for round in 0..3u8 {
            for number in 0..60u8 {
                let len = if number % 20 == 7 { 1500 } else { 40 };
                table.put(format!("key-{number:02}"), vec![round ^ number; len]).expect("a put");
            }
            if round < 2 {
                db.checkpoint().expect("a checkpoint");
            }
        }
        drop((table, db));
        world
    })
}

fn changed(input: &mut Input<'_>) -> SimWorld {
    let world = sound().restart(1);
    while !input.is_empty() {
        let kind = input.u8();
        let name = ["data", "log"][usize::from(kind & 1)];
        let len = world.read_file(name).map_or(0, |content| content.len() as u64);
        let block = if kind & 2 == 0 { 512 } else { 4096 };
        // Beginnings of blocks are where the structure is; a wrong offset is refused, which is fine.
        let at = u64::from(input.u16()) * block % len.max(1) + u64::from(if kind & 4 == 0 { 0 } else { input.u8() });
        let _ = match kind >> 3 & 3 {
            0 => world.overwrite(name, at, input.bytes(8)),
            1 => world.swap_ranges(name, at / block * block, u64::from(input.u16()) * block % len.max(1), block),
            2 => world.zero_range(name, at..at + u64::from(input.u8())),
            _ => world.set_len(name, at),
        };
    }
    world
}

/// Returns the sound database with changes in superblock, page table and pages, and all checksums recomputed: only the
/// checks of the content itself can refuse them.
fn forged(input: &mut Input<'_>) -> SimWorld {
    let world = sound().restart(1);
    let data = world.read_file("data").expect("a file that exists");
    let place_of = |slot: usize| {
        let start = SUPERBLOCK_OFFSETS[slot] as usize;
        start..start + SUPERBLOCK_BYTES
    };
    let both = [0, 1].map(|slot| Superblock::decode(slot, &data[place_of(slot)]).expect("a sound superblock"));
    let slot = usize::from(both[1].sequence > both[0].sequence);
    let mut superblock = both[slot];
    let mut forger = Forger { data, met: Vec::new() };
    forger.seal(&mut superblock);
    let blocks = std::mem::take(&mut forger.met);
    let end = blocks.iter().max().map_or(0, |block| block.0 as usize + 1) * PAGE_BYTES;
    forger.data.truncate(end);
    while !input.is_empty() {
        let kind = input.u8();
        let block = blocks[usize::from(input.u8()) % blocks.len()];
        let body = &mut forger.data[block.0 as usize * PAGE_BYTES..][..PAGE_BYTES];
        match kind % 8 {
            0 => superblock.table_levels = u32::from(input.u8() % 10),
            // Bounded, so that not every such run ends because the page table would take too much memory.
            1 => superblock.page_count = u64::from(input.u16()) << (input.u8() % 7),
            2 => superblock.table_root = block,
            3 => {
                let words = entries_per_node(PAGE_BYTES) as usize;
                let [from, to] = [input.u8(), input.u8()].map(|word| PAGE_BYTES - 8 * (1 + usize::from(word) % words));
                (0..8).for_each(|byte| body.swap(from + byte, to + byte));
            }
            _ => {
                let at = usize::from(input.u16()) % PAGE_BYTES;
                let given = input.bytes((1 + usize::from(kind >> 3) % 8).min(PAGE_BYTES - at));
                body[at..at + given.len()].copy_from_slice(given);
            }
        }
    }
    forger.seal(&mut superblock);
    superblock.encode(slot, &mut forger.data[place_of(slot)]);
    // Without the other one, which leads to a sound table.
    forger.data[place_of(1 - slot)].fill(0);
    world.overwrite("data", 0, &forger.data).expect("a file that is longer");
    world
}

/// Recomputes the tags and checksums of a page table and its pages, so that changed ones pass the checks.
struct Forger {
    data: Vec<u8>,
    /// Blocks reached so far. After 2,000 no more are visited, as the entries may lead in circles.
    met: Vec<BlockId>,
}

impl Forger {
    /// Recomputes the checksums of a superblock's page table, and updates its root's checksum in the superblock.
    fn seal(&mut self, superblock: &mut Superblock) {
        if let Some(level) = superblock.table_levels.checked_sub(1)
            && let Some(checksum) = self.node(NodeId { level, index: 0 }, superblock.table_root)
        {
            superblock.table_checksum = checksum;
        }
    }

    /// Recomputes the checksums of everything below a node, then the node's own. Returns the node's; `None` when the block
    /// lies outside the file or is not visited.
    fn node(&mut self, node: NodeId, block: BlockId) -> Option<u64> {
        let start = self.meet(block)?;
        let entries = entries_per_node(PAGE_BYTES);
        let first = start + PAGE_BYTES - 8 * entries as usize;
        let words: Vec<u64> = (0..entries)
            .map(|at| {
                let (words, _) = self.data[first..start + PAGE_BYTES].as_chunks::<8>();
                let word = u64::from_le_bytes(words[at as usize]);
                self.entry(node.level, node.index * entries + at, word).unwrap_or(word)
            })
            .collect();
        Some(encode_node(FILE_ID, node, words.into_iter(), &mut self.data[start..start + PAGE_BYTES]))
    }

    /// Recomputes the checksum of the node or page that an entry refers to. Returns the entry with the new tag.
    fn entry(&mut self, level: u32, index: u64, word: u64) -> Option<u64> {
        let at = Location::from_word(word)?;
        let tag = match level.checked_sub(1) {
            Some(level) => Tag::of(self.node(NodeId { level, index }, at.block)?),
            None => {
                let start = self.meet(at.block)?;
                let page = &mut self.data[start..start + PAGE_BYTES];
                seal_page(FILE_ID, PageId(index), page_commit(page), page)
            }
        };
        Some(Location { tag, ..at }.to_word())
    }

    /// Returns the offset at which a block begins; `None` outside the file, and after so many blocks that the
    /// references must form a cycle.
    fn meet(&mut self, block: BlockId) -> Option<usize> {
        let start = usize::try_from(block.0).ok()?.checked_mul(PAGE_BYTES)?;
        self.met.push(block);
        (self.met.len() < 2000 && start + PAGE_BYTES <= self.data.len()).then_some(start)
    }
}

/// Executes writes, reads, snapshots, checkpoints and restarts as the input says, and compares with a map.
pub fn operations(bytes: &[u8]) {
    let mut input = Input(bytes);
    let settings = settings([512, 1024, 4096][usize::from(input.u8() % 3)]);
    let world = SimWorld::new(u64::from(input.u8()), SimOptions::default());
    let directory = world.directory();
    let mut db = Db::create_in(&directory, &settings).expect("a new database");
    let mut table = db.create_table("t").expect("a new table");
    let mut model = Rows::new();
    let mut snapshots: Vec<(Snapshot, Rows)> = Vec::new();
    while !input.is_empty() {
        match input.u8() % 16 {
            0..6 => {
                let mut batch = Batch::new();
                for _ in 0..=input.u8() % 24 {
                    change(&mut input, &mut batch, &table, &mut model);
                }
                let durability = if input.u8() % 2 == 0 { Durability::Sync } else { Durability::Deferred };
                db.write(batch, durability).expect("a batch");
            }
            6..8 => {
                let key = key(&mut input);
                assert_eq!(table.get(&key).expect("a get"), model.get(&key).cloned(), "get {key:?}");
            }
            8 => {
                let keys: Vec<_> = (0..input.u8() % 30).map(|_| key(&mut input)).collect();
                let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
                assert_eq!(table.get_many(&keys).expect("a get_many"), expected);
            }
            9 => {
                let from = key(&mut input);
                let seen: Vec<_> = table.range(from.clone()..).take(9).map(|row| row.expect("a row")).collect();
                let expected: Vec<_> = model.range(from..).take(9).map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(seen, expected, "a range");
            }
            10 => {
                let to = key(&mut input);
                let seen: Vec<_> = table.range(..to.clone()).rev().take(9).map(|row| row.expect("a row")).collect();
                let expected: Vec<_> = model.range(..to).rev().take(9).map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(seen, expected, "a reverse range");
            }
            11 if snapshots.len() < 3 => snapshots.push((db.snapshot(), model.clone())),
            11 => drop(snapshots.remove(usize::from(input.u8() % 3))),
            12 => {
                for (snapshot, model) in &snapshots {
                    same(snapshot, &table, model);
                }
            }
            13 => transaction(&mut input, &db, &table, &mut model),
            14 => db.checkpoint().expect("a checkpoint"),
            _ => {
                db.sync().expect("a sync");
                snapshots.clear();
                drop((db, table));
                db = Db::open_in(&directory, &settings).expect("a database");
                table = db.table("t").expect("a table");
            }
        }
    }
    same(&db.snapshot(), &table, &model);
    let found = db.verify().expect("a verification");
    assert!(found.is_clean(), "{:?}", found.problems);
}

fn key(input: &mut Input<'_>) -> Vec<u8> {
    let number = input.u8();
    [&b"key-"[..], &[number], &b"abcdefghijklmnop"[..usize::from(number % 17)]].concat()
}

fn value(input: &mut Input<'_>) -> Option<Vec<u8>> {
    let stamp = input.u8();
    let len = match stamp % 16 {
        0..4 => return None,
        4..14 => usize::from(stamp),
        14 => usize::from(input.u8()) * 3,
        _ => usize::from(input.u16() % 6000),
    };
    Some(vec![stamp; len])
}

fn change(input: &mut Input<'_>, batch: &mut Batch, table: &Table, model: &mut Rows) {
    let key = key(input);
    match value(input) {
        Some(value) => {
            batch.put(table, &key, &value);
            model.insert(key, value);
        }
        None => {
            batch.delete(table, &key);
            model.remove(&key);
        }
    }
}

/// Runs two transactions concurrently: the second must conflict when it read a key that the first wrote.
fn transaction(input: &mut Input<'_>, db: &Db, table: &Table, model: &mut Rows) {
    let (first, second) = (db.begin(), db.begin());
    let (read, written) = (key(input), key(input));
    assert_eq!(second.get(table, &read).expect("a get"), model.get(&read).cloned());
    second.put(table, "second", [input.u8()]).expect("a put");
    let value = value(input).unwrap_or_default();
    first.put(table, &written, &value).expect("a put");
    first.commit(Durability::Sync).expect("no commit was before it");
    model.insert(written.clone(), value);
    let outcome = second.commit(Durability::Sync).map_err(|error: Error| error.kind());
    let expected = if read == written { Err(ErrorKind::Conflict) } else { Ok(()) };
    assert_eq!(outcome, expected, "read {read:?}, another wrote {written:?}");
    if outcome.is_ok() {
        let value = table.get("second").expect("a get").expect("what was put");
        model.insert(b"second".to_vec(), value);
    }
}

fn same(snapshot: &Snapshot, table: &Table, model: &Rows) {
    let range = snapshot.range::<&[u8]>(table, ..).expect("a table of this database");
    let found: Rows = range.map(|row| row.expect("a row")).collect();
    assert!(found == *model, "{} rows instead of {}", found.len(), model.len());
}
