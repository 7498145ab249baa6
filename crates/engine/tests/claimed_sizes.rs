//! Tests of data files that claim more pages than they hold: opening, checking and using such a file takes memory and
//! time for the pages that are there, not for the pages that it claims. Also tests the memory that a bulk load takes
//! in addition to its page table.
//!
//! A global allocator counts the bytes that all threads allocate. So these tests are a separate program and run one at a time.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crc_fast::{CrcAlgorithm, Digest};
use nofault::blocking::{Db, Table};
use nofault::settings::Settings;
use nofault::{Batch, Durability};

/// An allocator that passes calls on to the system's and counts the bytes in use.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static MOST_BYTES: AtomicUsize = AtomicUsize::new(0);

fn count(layout: Layout) {
    let live = LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
    MOST_BYTES.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: each call goes to `System` with the same arguments, so this allocator keeps the contract that `System` keeps.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, and `System` asks for nothing else.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Takes the lock that each test holds while it runs, so that memory of other tests is not counted.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the most bytes allocated at a time during `work`.
fn most_allocated(work: impl FnOnce()) -> usize {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    MOST_BYTES.store(before, Ordering::Relaxed);
    work();
    MOST_BYTES.load(Ordering::Relaxed) - before
}

const PAGE: usize = 4096;
const PER_NODE: u64 = ((PAGE - 40) / 8) as u64;
const TAG_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes at the beginning of the data file that contain all superblocks.
const HEAD_BYTES: usize = 128 << 10;

fn put_all(db: &Db, table: &Table, count: u64) {
    let mut batch = Batch::new();
    for number in 0..count {
        batch.put(table, number.to_be_bytes(), vec![count as u8; 200]);
    }
    db.write(batch, Durability::Sync).unwrap();
}

/// Creates a database with a hundred entries, checkpoints it and closes it.
fn small_database(folder: &Path) -> PathBuf {
    let path = folder.join("db");
    let db = Db::create(&path, &Settings::small(4, 1)).unwrap();
    let table = db.create_table("t").unwrap();
    put_all(&db, &table, 100);
    db.checkpoint().unwrap();
    path
}

/// Computes the checksum of a page, node or superblock as `docs/format.md` defines it.
fn checksum(file_id: u64, place: u64, content: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&[file_id.to_le_bytes(), place.to_le_bytes()].concat());
    digest.update(content);
    digest.finalize()
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Gives a database a forged page table, which claims more pages than there are.
struct Forger {
    file: File,
    file_id: u64,
    /// The offsets of all superblocks, current and older, each with the slot number that its checksum is computed for.
    superblocks: Vec<(usize, u64)>,
    newest: Vec<u8>,
    next_block: u64,
}

impl Forger {
    fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path.join("data")).unwrap();
        let mut head = vec![0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0).unwrap();
        let (mut superblocks, mut newest) = (Vec::new(), Vec::new());
        for at in (0..HEAD_BYTES).step_by(4096) {
            let sector = &head[at..at + 4096];
            let place =
                (0..64).find(|place| checksum(number(sector, 16), *place, &sector[..4088]) == number(sector, 4088));
            let Some(place) = place.filter(|_| sector.starts_with(b"nofault\x01")) else { continue };
            superblocks.push((at, place));
            if newest.is_empty() || number(&newest, 24) < number(sector, 24) {
                newest = sector.to_vec();
            }
        }
        let file_id = number(&newest, 16);
        let next_block = file.metadata().unwrap().len() / PAGE as u64;
        Self { file, file_id, superblocks, newest, next_block }
    }

    /// Writes a node to a block. Returns its entry for the node above, and its checksum.
    fn write_node(&self, block: u64, level: u32, index: u64, entries: &[(u64, u64)]) -> (u64, u64) {
        let mut node = vec![0; PAGE];
        node[8..12].copy_from_slice(b"NFpt");
        node[12..16].copy_from_slice(&level.to_le_bytes());
        node[16..24].copy_from_slice(&index.to_le_bytes());
        for (child, entry) in entries {
            let at = 40 + (child % PER_NODE) as usize * 8;
            node[at..at + 8].copy_from_slice(&entry.to_le_bytes());
        }
        let sum = checksum(self.file_id, 1 << 63 | u64::from(level) << 56 | index, &node[8..]);
        node[..8].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&node, block * PAGE as u64).unwrap();
        (1 << 62 | block << 22 | sum.wrapping_mul(TAG_FACTOR) >> 42, sum)
    }

    fn read_node(&self, block: u64) -> Vec<u8> {
        let mut node = vec![0; PAGE];
        self.file.read_exact_at(&mut node, block * PAGE as u64).unwrap();
        node
    }

    /// Writes a new page table for `page_count` pages, and makes every superblock refer to it. With `far` the last of
    /// these pages exists: a copy of the catalog's root in block `far`, to which nothing refers.
    fn claim(mut self, page_count: u64, far: Option<u64>) {
        let old_root = self.read_node(number(&self.newest, 64));
        assert_eq!(&old_root[8..16], b"NFpt\0\0\0\0", "a table with one leaf");
        let entries = (0..PER_NODE).map(|at| (at, number(&old_root, 40 + at as usize * 8)));
        let mut nodes = vec![(0, entries.filter(|(_, entry)| *entry != 0).collect::<Vec<_>>())];
        if let Some(block) = far {
            let page = page_count - 1;
            let mut content = self.read_node(nodes[0].1[0].1 >> 22 & ((1 << 40) - 1));
            content[8..16].copy_from_slice(&page.to_le_bytes());
            let sum = checksum(self.file_id, page, &content[8..]);
            content[..8].copy_from_slice(&sum.to_le_bytes());
            self.file.write_all_at(&content, block * PAGE as u64).unwrap();
            nodes.push((page / PER_NODE, vec![(page, 1 << 62 | block << 22 | sum.wrapping_mul(TAG_FACTOR) >> 42)]));
        }
        let mut level = 0;
        let mut count = page_count.div_ceil(PER_NODE);
        let root = loop {
            let mut above: Vec<(u64, Vec<(u64, u64)>)> = Vec::new();
            let mut root = (0, 0);
            for (index, entries) in &nodes {
                let block = self.next_block;
                self.next_block += 1;
                let (entry, sum) = self.write_node(block, level, *index, entries);
                root = (block, sum);
                match above.last_mut().filter(|(above, _)| *above == index / PER_NODE) {
                    Some((_, children)) => children.push((*index, entry)),
                    None => above.push((index / PER_NODE, vec![(*index, entry)])),
                }
            }
            if count == 1 {
                break root;
            }
            (count, level, nodes) = (count.div_ceil(PER_NODE), level + 1, above);
        };
        let mut superblock = self.newest.clone();
        superblock[44..48].copy_from_slice(&(level + 1).to_le_bytes());
        superblock[56..64].copy_from_slice(&page_count.to_le_bytes());
        superblock[64..72].copy_from_slice(&root.0.to_le_bytes());
        superblock[72..80].copy_from_slice(&root.1.to_le_bytes());
        for (at, place) in &self.superblocks {
            // The older superblocks are overwritten too, so that opening cannot fall back to them.
            let mut sector = vec![0; 4096];
            let mut old = vec![0; 4096];
            self.file.read_exact_at(&mut old, *at as u64).unwrap();
            if number(&old, 24) == number(&superblock, 24) {
                sector.copy_from_slice(&superblock);
                let sum = checksum(self.file_id, *place, &sector[..4088]);
                sector[4088..].copy_from_slice(&sum.to_le_bytes());
            }
            self.file.write_all_at(&sector, *at as u64).unwrap();
        }
        self.file.sync_all().unwrap();
    }
}

/// Opens a database of a hundred sound entries, then verifies, reads, writes, checkpoints and compacts it, and opens it again.
fn use_it(path: &Path) {
    let db = Db::open(path, &Settings::small(4, 1)).unwrap();
    let found = db.verify().unwrap();
    assert!(found.is_clean(), "{:?}", found.problems);
    let table = db.table("t").unwrap();
    assert_eq!(table.range::<&[u8]>(..).map(Result::unwrap).count(), 100);
    put_all(&db, &table, 300);
    db.checkpoint().unwrap();
    db.compact(nofault::db::Pace::Full, |_| true).unwrap();
    drop((table, db));
    let db = Db::open(path, &Settings::small(4, 1)).unwrap();
    assert_eq!(db.table("t").unwrap().range::<&[u8]>(..).map(Result::unwrap).count(), 300);
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Memory that a false claim may cost in addition to [`most_of_small`]: more than its few nodes and chunks take, and far less than a page table of
/// the claimed size would.
const ALLOWED_BYTES: usize = 256 << 10;

#[test]
fn a_page_count_without_pages_takes_no_memory() {
    let _turn = turn();
    let most = [1_000, 100_000_000, 1 << 32].map(|page_count| {
        let folder = folder();
        let path = small_database(folder.path());
        Forger::open(&path).claim(page_count, None);
        most_allocated(|| use_it(&path))
    });
    println!("most bytes allocated: {most:?}");
    assert!(most.iter().all(|most| *most < most_of_small() + ALLOWED_BYTES), "{most:?}");
}

#[test]
fn a_page_with_a_large_number_takes_no_memory_for_those_before_it() {
    let _turn = turn();
    let most = [1_000, 100_000_000, 1 << 32].map(|page_count| {
        let folder = folder();
        let path = small_database(folder.path());
        let forger = Forger::open(&path);
        let block = forger.next_block + 20;
        forger.claim(page_count, Some(block));
        most_allocated(|| use_it(&path))
    });
    println!("most bytes allocated: {most:?}");
    assert!(most.iter().all(|most| *most < most_of_small() + ALLOWED_BYTES), "{most:?}");
}

#[test]
fn a_sparse_file_takes_memory_for_its_pages_and_not_for_its_length() {
    let _turn = turn();
    // The last length is the longest that ext4 allows.
    let most = [1 << 20, 1 << 30, 1 << 40, (16 << 40) - (1 << 30)].map(|length: u64| {
        let folder = folder();
        let path = small_database(folder.path());
        let forger = Forger::open(&path);
        let before = forger.file.metadata().unwrap().len();
        if let Err(error) = forger.file.set_len(before + length) {
            println!("SKIPPED at {length} bytes: the file system here keeps no such file: {error}");
            return 0;
        }
        let last = (before + length) / PAGE as u64 - 1;
        forger.claim(1_000, Some(last));
        most_allocated(|| use_it(&path))
    });
    println!("most bytes allocated: {most:?}");
    assert!(most.iter().all(|most| *most < most_of_small() + ALLOWED_BYTES), "{most:?}");
}

/// Measures the memory that the same work takes on a database without a false claim.
fn most_of_small() -> usize {
    let folder = folder();
    let path = small_database(folder.path());
    most_allocated(|| use_it(&path))
}

#[test]
fn a_load_takes_memory_for_its_page_table_and_no_list_of_its_pages() {
    let _turn = turn();
    // Four of these values to a page.
    const PAGES: [u64; 2] = [4_000, 24_000];
    let most = PAGES.map(|pages| {
        let folder = folder();
        let db = Db::create(folder.path().join("db"), &Settings::small(4, 1)).unwrap();
        let table = db.create_table("t").unwrap();
        let rows = (0..pages * 4).map(|row| (row.to_be_bytes(), [row as u8; 900]));
        most_allocated(|| assert_eq!(table.bulk_load(rows).unwrap(), pages * 4))
    });
    let a_page = (most[1] - most[0]) as f64 / (PAGES[1] - PAGES[0]) as f64;
    println!("{most:?}: {a_page:.1} bytes a page");
    // The page table takes eight bytes as it is used and eight as it was last written.
    assert!(a_page < 16.0 + 3.0, "{a_page:.1} bytes a page");
}
