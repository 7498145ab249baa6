//! A database much larger than memory: a sparse file, in which only the page table was written. It opens in little
//! memory, and serves gets, puts and checkpoints.
//!
//! The pages that the table names are never read. Each leaf has free ids, so new pages are spread over all of it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use nofault_sim::content::key;

use crate::blocking::Db;
use crate::format::{
    BlockId, Location, NodeId, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, Tag, decode_node, encode_node,
    entries_per_node, levels_for, node_location, nodes_on_level,
};
use crate::settings::Settings;

const PAGE: usize = 4096;
const LEAF: u64 = 507;
/// Entries of each leaf that name no page.
const FREE_IDS: u64 = 3;

fn read_block(data: &File, block: u64, page_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; page_bytes];
    data.read_exact_at(&mut bytes, block * page_bytes as u64).unwrap();
    bytes
}

/// Makes the page table of a closed database so large that it has `leaves` leaves. Its own pages, which must be in the
/// first one, stay.
fn enlarge(folder: &Path, leaves: u64) {
    let data = OpenOptions::new().read(true).write(true).open(folder.join("data")).unwrap();
    let slots = SUPERBLOCK_OFFSETS.map(|offset| {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        data.read_exact_at(&mut sector, offset).unwrap();
        sector
    });
    let old = Superblock::decode(0, &slots[0]).unwrap();
    assert_eq!((old.table_levels, entries_per_node(PAGE)), (1, LEAF));
    let own = decode_node(
        old.file_id,
        NodeId { level: 0, index: 0 },
        node_location(old.table_root, old.table_checksum),
        &read_block(&data, old.table_root.0, PAGE),
    )
    .unwrap();
    let file_blocks = data.metadata().unwrap().len().div_ceil(PAGE as u64).next_multiple_of(256);
    let page_count = leaves * LEAF;
    let levels = levels_for(page_count, PAGE);
    let nodes: u64 = (0..levels).map(|level| nodes_on_level(page_count, level, PAGE)).sum();
    // The nodes first, then the pages, a run of blocks for each leaf.
    let (mut next_node, pages) = (file_blocks, file_blocks + nodes);
    data.set_len((pages + leaves * LEAF) * PAGE as u64).unwrap();
    let mut words: Vec<u64> = Vec::new();
    let mut root = (BlockId(0), 0);
    for level in 0..levels {
        let mut above = Vec::new();
        let mut together = Vec::new();
        let first = next_node;
        for index in 0..nodes_on_level(page_count, level, PAGE) {
            let entries: Vec<u64> = if level > 0 {
                words.iter().skip((index * LEAF) as usize).take(LEAF as usize).copied().collect()
            } else if index == 0 {
                own.clone()
            } else {
                let at = |entry| Location::of_whole(BlockId(pages + index * LEAF + entry), Tag::of(entry)).to_word();
                (0..LEAF).map(|entry| if entry < LEAF - FREE_IDS { at(entry) } else { 0 }).collect()
            };
            let mut block = vec![0; PAGE];
            let sum = encode_node(old.file_id, NodeId { level, index }, entries.into_iter(), &mut block);
            root = (BlockId(next_node), sum);
            above.push(node_location(BlockId(next_node), sum).to_word());
            together.extend_from_slice(&block);
            next_node += 1;
            if together.len() >= 1 << 20 || index + 1 == nodes_on_level(page_count, level, PAGE) {
                let at = next_node * PAGE as u64 - together.len() as u64;
                assert!(at >= first * PAGE as u64);
                data.write_all_at(&together, at).unwrap();
                together.clear();
            }
        }
        words = above;
    }
    let new = Superblock { page_count, table_levels: levels, table_root: root.0, table_checksum: root.1, ..old };
    for (slot, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        new.encode(slot, &mut sector);
        data.write_all_at(&sector, offset).unwrap();
    }
    data.sync_all().unwrap();
}

fn value(row: u32) -> Vec<u8> {
    vec![row as u8; 1000]
}

/// Works with a database of so many leaves, with so much memory, and returns the seconds that opening took and the most
/// memory that the database said it took.
fn work(leaves: u64, cache_bytes: usize, rows: u32) -> (f64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    let settings = Settings { cache_bytes, log_bytes: 16 << 20, ..Settings::default() };
    let db = Db::create(&path, &settings).unwrap();
    let table = db.create_table("rows").unwrap();
    table.put(key(0), value(0)).unwrap();
    drop(table);
    db.close().unwrap();
    enlarge(&path, leaves);
    let began = Instant::now();
    let db = Db::open(&path, &settings).unwrap();
    let seconds = began.elapsed().as_secs_f64();
    let mut most = 0;
    let mut look = |db: &Db| {
        let stats = db.stats();
        let in_memory = stats.pool.table_leaves_in_memory;
        assert!(in_memory < stats.pool.table_leaves / 2, "{stats:?}");
        assert!(in_memory <= stats.pool.table_leaves_max + 300, "{stats:?}");
        most = most.max(stats.memory_bytes);
    };
    look(&db);
    let table = db.table("rows").unwrap();
    for row in 0..rows {
        table.put(key(row), value(row)).unwrap();
        if row % (rows / 4) == 0 {
            db.checkpoint().unwrap();
            look(&db);
        }
    }
    let snapshot = db.snapshot();
    for row in (0..rows).step_by(3) {
        table.delete(key(row)).unwrap();
    }
    db.checkpoint().unwrap();
    look(&db);
    assert_eq!(snapshot.get(&table, key(3)).unwrap(), Some(value(3)));
    drop((snapshot, table));
    db.close().unwrap();
    let db = Db::open(&path, &settings).unwrap();
    let table = db.table("rows").unwrap();
    let found = table.get_many(&(0..rows).map(key).collect::<Vec<_>>()).unwrap();
    assert!((0..rows).zip(found).all(|(row, found)| found == (row % 3 != 0).then(|| value(row))));
    look(&db);
    (seconds, most)
}

#[test]
fn a_database_a_thousand_times_larger_than_its_memory_opens_and_serves() {
    // 10 GB of pages: 43 MB of page table, if all of it were in memory.
    let (leaves, cache_bytes) = (5_000, 10 << 20);
    let (seconds, most) = work(leaves, cache_bytes, 900);
    let all = leaves * LEAF * 16;
    println!("{} MB of page table, {} MB of memory in all, opened in {seconds:.2} s", all >> 20, most >> 20);
    assert!(most < cache_bytes as u64 + (cache_bytes as u64 / 8), "{most} bytes");
    assert!(all > 3 * cache_bytes as u64);
}

/// Runs with a database of a terabyte, in 64 MiB, when `NOFAULT_LARGE=1`: 2.2 GB of files, which `TMPDIR` has to take.
#[test]
fn a_terabyte_opens_and_serves_in_64_mebibytes() {
    if std::env::var_os("NOFAULT_LARGE").is_none() {
        println!(
            "skipped: run it with NOFAULT_LARGE=1 cargo test -p nofault --lib --release a_terabyte -- --nocapture"
        );
        return;
    }
    let status = |field: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let (seconds, most) = work((1 << 40) / PAGE as u64 / LEAF, 64 << 20, 4_000);
    // The builder's own memory, the process and its stacks come on top; they are small in comparison with the 4 GB of the table.
    println!("opened in {seconds:.1} s; {} MB counted, {} MB resident at most", most >> 20, status("VmHWM") >> 20);
    assert!(most <= 64 << 20, "{most} bytes");
}
