//! The stores compared under a fault. Each runs in a subject process and returns the bytes of a page or an
//! error. The lab, not the store, judges whether the bytes are right.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};
use nofault::blocking::{Db, Table};
use nofault::mmap::{self, Protocol, WriteBack};
use nofault::settings::Settings;
use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection, SyncMode};
use serde::{Deserialize, Serialize};

use super::{ENGINE_DIRTY, MMAP_GUARDED, MMAP_GUARDED_CHECKED, MMAP_READONLY, PREAD_DIRECT_CHECKED, SHADOW_CHECKED};
use crate::child::{Orders, Running, send, this_program};
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::workload::PAGE_BYTES;
use crate::methods;
use crate::paths::shown;

/// Name of the file with the pages of the stores that keep plain pages, in the trial's folder.
const PLAIN: &str = "pages";
/// Name of the file with the pages of the engine, or of its tree over a map, in the trial's folder.
pub(super) const ENGINE: &str = "data";
/// Length in bytes of a value in the engine's table: of each page of test data the experiment stores its beginning as a
/// value.
const VALUE_BYTES: usize = 1024;
const TABLE: &str = "pages";

/// The ways of storing pages, one for each method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A readable and writable shared map, accessed without guard or checksums.
    Map,
    /// A read-only shared map, accessed without guard or checksums.
    MapReadOnly,
    /// A shared map behind a guard that turns SIGBUS into an error. No checksums.
    MapGuarded,
    /// A guarded shared map that verifies a page's checksum on every access.
    MapChecked,
    /// Read calls into private memory. No checksums.
    Calls,
    /// Read calls into private memory; a page's checksum is verified when it is loaded.
    CallsChecked,
    /// The engine, with its buffer pool and checksums.
    Engine,
    /// The engine; a stray write hits a page that was changed and is not written yet.
    EngineDirty,
    /// The engine's tree over a map, by one protocol for durable changes; the flag says whether every access verifies
    /// the page's checksum.
    Mapped(Protocol, bool),
}

const WAYS: [(&str, Way); 15] = [
    (methods::MMAP.id, Way::Map),
    (MMAP_READONLY.id, Way::MapReadOnly),
    (MMAP_GUARDED.id, Way::MapGuarded),
    (MMAP_GUARDED_CHECKED.id, Way::MapChecked),
    (methods::PREAD_DIRECT.id, Way::Calls),
    (PREAD_DIRECT_CHECKED.id, Way::CallsChecked),
    (methods::ENGINE.id, Way::Engine),
    (ENGINE_DIRTY.id, Way::EngineDirty),
    (methods::OS_COW.id, Way::Mapped(Protocol::OsCow, false)),
    (methods::USER_COW.id, Way::Mapped(Protocol::UserCow(WriteBack::Map), false)),
    (methods::USER_COW_PWRITE.id, Way::Mapped(Protocol::UserCow(WriteBack::Call), false)),
    (methods::MAPPED_LOG.id, Way::Mapped(Protocol::MappedLog, false)),
    (methods::SHADOW.id, Way::Mapped(Protocol::Shadow(WriteBack::Call), false)),
    (methods::SHADOW_WRITEMAP.id, Way::Mapped(Protocol::Shadow(WriteBack::Map), false)),
    (SHADOW_CHECKED.id, Way::Mapped(Protocol::Shadow(WriteBack::Call), true)),
];

impl Way {
    pub(super) fn of(method: &str) -> Option<Self> {
        WAYS.iter().find(|(id, _)| *id == method).map(|(_, way)| *way)
    }

    fn has_tree(self) -> bool {
        matches!(self, Self::Engine | Self::EngineDirty | Self::Mapped(..))
    }

    /// Returns the name of the file holding the store's pages.
    pub(super) fn file(self) -> &'static str {
        if self.has_tree() { ENGINE } else { PLAIN }
    }

    /// Writes `count` pages to a new store in `folder`, durably.
    pub(super) fn make(self, folder: &Path, seed: u64, count: u64) -> Result<()> {
        if let Self::Mapped(protocol, checksums) = self {
            let mut batch = mmap::Batch::new();
            for number in 0..count {
                batch.put(number.to_be_bytes(), value(seed, number));
            }
            // SAFETY: the trial's folder is new, and no other process uses it yet.
            let store = unsafe { mmap::Store::create(folder, &mapped_settings(protocol, checksums)) }?;
            store.write(&batch)?;
            return Ok(store.checkpoint()?);
        }
        if self.has_tree() {
            let db = Db::create(folder, &settings())?;
            let table = db.create_table(TABLE)?;
            table.bulk_load((0..count).map(|number| (number.to_be_bytes(), value(seed, number))))?;
            db.checkpoint()?;
            return Ok(());
        }
        let path = folder.join(PLAIN);
        let mut bytes = vec![0; PAGE_BYTES * count as usize];
        for (page, number) in bytes.chunks_exact_mut(PAGE_BYTES).zip(0..) {
            fill(page, seed, number);
        }
        let written =
            File::create_new(&path).and_then(|file| file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()));
        written.map_err(|error| LabError::system(format!("write {}", shown(&path)), &error))
    }

    /// Opens the store in `folder`.
    pub(super) fn open(self, folder: &Path) -> Result<Box<dyn Store>> {
        let path = folder.join(PLAIN);
        let checked = matches!(self, Self::MapChecked | Self::CallsChecked);
        match self {
            Self::Engine | Self::EngineDirty => Ok(Box::new(EngineStore::open(folder)?)),
            Self::Mapped(protocol, checksums) => {
                // SAFETY: the requirement that no other process changes the files is broken on purpose: that is the
                // fault, in a process made for it.
                let store = unsafe { mmap::Store::open(folder, &mapped_settings(protocol, checksums)) }?;
                Ok(Box::new(store))
            }
            Self::Calls | Self::CallsChecked => Ok(Box::new(CallStore::open(&path, checked)?)),
            _ => {
                let writes = if self == Self::MapReadOnly { Protection::ReadOnly } else { Protection::Shared };
                // SAFETY: the requirement that no other process truncates the file is broken on purpose: that is the
                // fault, in a process made for it.
                let map = unsafe { MappedFile::open(&path, writes) }?;
                map.advise(Advice::Random, 0..map.len_bytes())?;
                let guarded = matches!(self, Self::MapGuarded | Self::MapChecked);
                Ok(Box::new(MapStore { map, guarded, checked }))
            }
        }
    }
}

/// A store as the subject process uses it.
pub(super) trait Store {
    /// Returns the bytes of a page, or the error that the store itself detected.
    fn read(&mut self, number: u64) -> Result<Vec<u8>>;

    /// Rewrites a page with the same content, so that its version in memory is newer than on disk.
    fn change(&mut self, seed: u64, number: u64) -> Result<()> {
        let _ = (seed, number);
        Err(LabError::new(LabErrorKind::Unsupported, "this store changes no pages"))
    }

    /// Writes to disk all data that the store would write sooner or later.
    fn sync(&mut self) -> Result<()>;
}

fn damaged(number: u64) -> LabError {
    LabError::new(LabErrorKind::Damaged, format!("page {number}: its checksum does not match"))
}

struct MapStore {
    map: MappedFile,
    guarded: bool,
    checked: bool,
}

impl Store for MapStore {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        let at = number as usize * PAGE_BYTES;
        let range = at..at + PAGE_BYTES;
        let page = match self.guarded {
            true => self.map.guarded(range, <[u8]>::to_vec)?,
            false => self.map.bytes()[range].to_vec(),
        };
        if self.checked && !is_whole(&page, number) {
            return Err(damaged(number));
        }
        Ok(page)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.map.sync(0..self.map.len_bytes(), SyncMode::Wait)?)
    }
}

/// Pages in private memory, loaded by read calls: the simplest buffer pool.
struct CallStore {
    file: File,
    path: PathBuf,
    checked: bool,
    frames: std::collections::BTreeMap<u64, IoBuf>,
}

impl CallStore {
    fn open(path: &Path, checked: bool) -> Result<Self> {
        let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = match open(libc::O_DIRECT) {
            // Without direct I/O on this file system, buffered calls take its place.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
            other => other,
        };
        let file = file.map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
        Ok(Self { file, path: path.to_path_buf(), checked, frames: Default::default() })
    }
}

impl Store for CallStore {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        if let Some(frame) = self.frames.get(&number) {
            return Ok(frame.to_vec());
        }
        let mut frame = IoBuf::zeroed(PAGE_BYTES, PageKind::Small)?;
        let action = || format!("read page {number} of {}", shown(&self.path));
        let count = self
            .file
            .read_at(&mut frame, number * PAGE_BYTES as u64)
            .map_err(|error| LabError::system(action(), &error))?;
        if count < PAGE_BYTES {
            let message = format!("{}: {count} of {PAGE_BYTES} bytes: the file is shorter than it was", action());
            return Err(LabError::new(LabErrorKind::Damaged, message));
        }
        if self.checked && !is_whole(&frame, number) {
            return Err(damaged(number));
        }
        let page = frame.to_vec();
        self.frames.insert(number, frame);
        Ok(page)
    }

    fn sync(&mut self) -> Result<()> {
        // The store's pages are never written, so there is no data to sync.
        Ok(())
    }
}

struct EngineStore {
    db: Db,
    table: Table,
}

fn settings() -> Settings {
    // Without background threads, memory and disk change only through the requested operations.
    Settings { cache_bytes: 32 << 20, log_bytes: 4 << 20, background_threads: false, ..Settings::default() }
}

fn value(seed: u64, number: u64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    fill(&mut value, seed, number);
    value
}

impl EngineStore {
    fn open(folder: &Path) -> Result<Self> {
        let db = Db::open(folder, &settings())?;
        let table = db.table(TABLE)?;
        Ok(Self { db, table })
    }
}

impl Store for EngineStore {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        // A missing key counts as wrong bytes, not as an error: the program got no sign of it.
        Ok(self.table.get(number.to_be_bytes())?.unwrap_or_default())
    }

    fn change(&mut self, seed: u64, number: u64) -> Result<()> {
        Ok(self.table.put(number.to_be_bytes(), value(seed, number))?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.db.checkpoint()?)
    }
}

/// As [`settings`], with a map no larger than needed, because the lab searches all of it.
fn mapped_settings(protocol: Protocol, checksums: bool) -> mmap::Settings {
    let background_thread = false;
    mmap::Settings {
        map_bytes: 16 << 20,
        log_bytes: 4 << 20,
        checksums,
        background_thread,
        ..mmap::Settings::new(protocol)
    }
}

impl Store for mmap::Store {
    fn read(&mut self, number: u64) -> Result<Vec<u8>> {
        Ok(self.get(&number.to_be_bytes())?.unwrap_or_default())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.checkpoint()?)
    }
}

// The subject: the process in which a fault happens, and the handle by which the lab watches it. A subject may die of
// the fault, which is a result.
//
// The command `nofault lab subject` reads one `Order` and then `Ask`s, one JSON line each, and answers each `Ask` with
// `Answers`. The death of a subject is recognised by the end of its answers and its exit status; a hanging subject is
// killed.
//
// Kept true by: a subject dies with its watcher (`child`), leaves no core, and only ever works in the folder of its
// trial.

/// Name of the test that a test binary runs as the subject, because it has no command `nofault lab subject`.
const SUBJECT_TEST: &str = "experiments::errors::tests::the_subject_of_other_tests";
/// Longest wait for an answer, so that a page that never arrives is a result and does not stop the lab.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of memory that the search for a page reads at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The subject's task: the store to open, and its content.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    /// Id of the store's method.
    pub(super) store: String,
    #[serde(with = "crate::paths::field")]
    pub(super) folder: PathBuf,
    pub(super) seed: u64,
}

/// A request to the subject.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Read pages `from` to `to`.
    Read { from: u64, to: u64 },
    /// Make a page newer in memory than on disk.
    Change { page: u64 },
    /// Flip a bit of a page in memory, as through a stray pointer.
    Stray { page: u64 },
    /// Write to disk all data that the store still holds in memory.
    Sync,
    /// Close the store and open it again.
    Reopen,
}

/// The subject's counts for one request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answers {
    /// Number of pages, or of places in memory, with the expected content.
    pub(super) right: u64,
    /// Number of pages that the store returned as good although their bytes differ from the written bytes.
    pub(super) wrong: u64,
    /// Number of errors that the store returned.
    pub(super) errors: u64,
    /// Message of the first error; empty without one.
    pub(super) first_error: String,
}

impl Answers {
    fn note(&mut self, result: Result<bool>) {
        match result {
            Ok(true) => self.right += 1,
            Ok(false) => self.wrong += 1,
            Err(error) => {
                self.errors += 1;
                if self.first_error.is_empty() {
                    self.first_error = error.to_string();
                }
            }
        }
    }
}

/// Runs the command `nofault lab subject`: opens the store that the order names, then answers requests until the input
/// ends.
///
/// # Errors
/// `Usage` when the input is no order; the error of opening the store. Later failures are answers.
pub fn serve(input: impl Read, mut output: impl Write) -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let mut orders = Orders::new(input, "nofault lab subject");
    // The call may be refused; then a core file may be left.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let order: Order = orders.first()?;
    let way = Way::of(&order.store).ok_or_else(|| orders.usage(&format!("unknown store '{}'", order.store)))?;
    let mut store = Some(way.open(&order.folder)?);
    send(&mut output, &Answers::default())?;
    while let Some(ask) = orders.next()? {
        let mut seen = Answers::default();
        match (ask, &mut store) {
            (Ask::Reopen, _) => {
                // The old store's lock must be released before the new one asks for it.
                drop(store.take());
                match way.open(&order.folder) {
                    Ok(opened) => store = Some(opened),
                    Err(error) => seen.note(Err(error)),
                }
            }
            (_, None) => seen.note(Err(LabError::new(LabErrorKind::Usage, "the store is not open"))),
            (Ask::Read { from, to }, Some(store)) => {
                (from..to).for_each(|page| seen.note(judge(&mut **store, &order, page)))
            }
            (Ask::Change { page }, Some(store)) => seen.note(store.change(order.seed, page).map(|()| true)),
            (Ask::Stray { page }, _) => seen = stray(order.seed, page),
            (Ask::Sync, Some(store)) => seen.note(store.sync().map(|()| true)),
        }
        send(&mut output, &seen)?;
    }
    Ok(())
}

fn judge(store: &mut dyn Store, order: &Order, page: u64) -> Result<bool> {
    let bytes = store.read(page)?;
    Ok(is_right(&bytes, order.seed, page))
}

/// Finds all copies of a page in this process's memory and flips one bit in each, as a stray pointer would in one of
/// them. `right` is the number of copies hit.
fn stray(seed: u64, page: u64) -> Answers {
    let mut seen = Answers::default();
    // Kept inverted, so that the search does not find its own pattern.
    let inverted = pattern(seed, page).map(|byte| !byte);
    for address in places_in_memory(&inverted) {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: none, on purpose. This is the fault: a write to memory that other code owns. The address was mapped a
        // moment ago; no other code runs in this process, which exists to be damaged and whose answers are judged from
        // outside.
        unsafe { at.write_volatile(at.read_volatile() ^ 1) };
        seen.note(Ok(true));
    }
    seen
}

/// Returns the addresses at which the pattern lies in this process's memory. The pattern is given inverted. The
/// addresses include freed copies on the heap, which are harmless.
fn places_in_memory(inverted: &[u8; PATTERN_BYTES]) -> Vec<usize> {
    let is_there =
        |bytes: &[u8]| bytes.len() >= inverted.len() && bytes.iter().zip(inverted).all(|(byte, other)| *byte == !other);
    let Ok(memory) = std::fs::File::open("/proc/self/mem") else { return Vec::new() };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let (mut found, mut mapped) = (Vec::new(), None);
    let mut piece = vec![0; PIECE_BYTES + inverted.len()];
    let zeroes = vec![0; piece.len()];
    let own = piece.as_ptr() as usize..piece.as_ptr() as usize + piece.len();
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with('r'))) {
        // Copies on the stack are no pages of the store, and the kernel's own mappings must be left alone.
        if line.ends_with("[stack]") || line.contains("[v") {
            continue;
        }
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range.and_then(|(start, end)| {
            Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        }) else {
            continue;
        };
        for at in (start..end).step_by(PIECE_BYTES) {
            let wanted = piece.len().min(end - at);
            let Ok(count) = memory.read_at(&mut piece[..wanted], at as u64) else { continue };
            if piece[..count] == zeroes[..count] {
                continue;
            }
            let places = places_of(!inverted[0], &piece[..count], is_there).into_iter().map(|place| at + place);
            let places: Vec<usize> = places.filter(|place| !own.contains(place) && !found_twice(*place, at)).collect();
            match line.split(' ').nth(1) {
                // One pointer hits one map of a page, even when the page is mapped several times: a shared one where
                // there is one.
                Some(rights) if line.contains('/') && (mapped.is_none() || rights.ends_with('s')) => {
                    mapped = places.first().copied().or(mapped);
                }
                Some(_) if line.contains('/') => {}
                _ => found.extend(places),
            }
        }
    }
    found.extend(mapped);
    found
}

/// Whether a place lies in the overlap with the next piece, whose search finds it again.
fn found_twice(place: usize, piece_at: usize) -> bool {
    place >= piece_at + PIECE_BYTES
}

/// A subject's reply to a request, or the way in which it ended instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// The subject answered.
    Answers(Answers),
    /// A signal killed the subject.
    Killed(i32),
    /// The subject ended by itself, with this message.
    Ended(String),
    /// The subject did not answer in time, and was killed.
    Hung,
}

/// A running subject. Dropping the handle kills the process and waits for its end.
pub(super) struct Subject {
    child: Running,
    answers: mpsc::Receiver<String>,
    words: mpsc::Receiver<String>,
}

impl Subject {
    /// Starts a subject, and waits until its store is open.
    ///
    /// # Errors
    /// `System` when the process cannot be started. A failure to open its store is a reply.
    pub(super) fn start(order: &Order) -> Result<(Self, Reply)> {
        let mut child = Running::start(this_program("subject", SUBJECT_TEST)?.stderr(Stdio::piped()))?;
        let (answers, words) = (child.lines(), child.complaints());
        let mut subject = Self { child, answers, words };
        subject.child.send(order)?;
        let reply = subject.reply();
        Ok((subject, reply))
    }

    /// Sends a request, and waits for the subject's answer or end, or for the timeout.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<Reply> {
        self.child.send(ask)?;
        Ok(self.reply())
    }

    fn reply(&mut self) -> Reply {
        loop {
            match self.answers.recv_timeout(PATIENCE) {
                // The test harness prints lines, too.
                Ok(line) => {
                    if let Ok(seen) = serde_json::from_str(&line) {
                        return Reply::Answers(seen);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let _ = self.child.0.kill();
                    return Reply::Hung;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return self.ended(),
            }
        }
    }

    fn ended(&mut self) -> Reply {
        let status = self.child.wait();
        if let Some(signal) = status.as_ref().ok().and_then(ExitStatusExt::signal) {
            return Reply::Killed(signal);
        }
        let words: Vec<String> = self.words.iter().take(20).collect();
        Reply::Ended(words.join(" / "))
    }
}

// The pages that `errors` damages. Each contains its number and a checksum. A program with checksums can tell whether
// a page is *whole*; only the lab, which can compute the content, can tell whether it is *right*.

/// Bytes of the part of a page that the lab searches for in memory and on disk, because its content occurs nowhere
/// else.
const PATTERN_BYTES: usize = 32;
/// Position of the searched part within its page, in bytes.
const PATTERN_AT: usize = 64;
const CHECKSUM_BYTES: usize = 8;

/// The checksum of a page's content, by the engine's algorithm.
pub(super) fn checksum(content: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(content);
    digest.finalize()
}

/// Fills `page` with the content of page `number`: a checksum, then random bytes from the seed.
fn fill(page: &mut [u8], seed: u64, number: u64) {
    let mut chance = fastrand::Rng::with_seed(crate::machine::content::tag(seed, number));
    let (sum, content) = page.split_at_mut(CHECKSUM_BYTES.min(page.len()));
    chance.fill(content);
    if let Some(first) = content.first_chunk_mut() {
        *first = number.to_le_bytes();
    }
    let of_content = checksum(content).to_le_bytes();
    sum.copy_from_slice(&of_content[..sum.len()]);
}

/// Whether a program with checksums would accept `page` as page `number`.
fn is_whole(page: &[u8], number: u64) -> bool {
    let Some((sum, content)) = page.split_first_chunk::<CHECKSUM_BYTES>() else { return false };
    content.starts_with(&number.to_le_bytes()) && u64::from_le_bytes(*sum) == checksum(content)
}

/// Whether `page` has its original content, byte by byte.
pub(super) fn is_right(page: &[u8], seed: u64, number: u64) -> bool {
    let mut wanted = vec![0; page.len()];
    fill(&mut wanted, seed, number);
    !page.is_empty() && page == wanted
}

/// Returns the bytes by which page `number` is found in memory or on disk.
pub(super) fn pattern(seed: u64, number: u64) -> [u8; PATTERN_BYTES] {
    let mut page = [0; PATTERN_AT + PATTERN_BYTES];
    fill(&mut page, seed, number);
    let mut pattern = [0; PATTERN_BYTES];
    pattern.copy_from_slice(&page[PATTERN_AT..]);
    pattern
}

/// Returns the positions in `bytes` at which `first` begins something that `is_there` recognises.
pub(super) fn places_of(first: u8, bytes: &[u8], is_there: impl Fn(&[u8]) -> bool) -> Vec<usize> {
    let mut places = Vec::new();
    for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
        // Zeroes fill most of a sparse file.
        if page == &[0; PAGE_BYTES][..page.len()] {
            continue;
        }
        let mut rest = page;
        // A search by the standard library is fast also in a build without optimisation.
        while rest.skip_until(first).is_ok_and(|skipped| skipped > 0) {
            let at = number * PAGE_BYTES + page.len() - rest.len() - 1;
            if bytes[at] == first && is_there(&bytes[at..]) {
                places.push(at);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_and_right_until_a_bit_flips() {
        for len in [1024, PAGE_BYTES] {
            let mut page = vec![0; len];
            fill(&mut page, 7, 3);
            assert!(is_whole(&page, 3) && is_right(&page, 7, 3));
            assert!(!is_whole(&page, 4) && !is_right(&page, 7, 4) && !is_right(&page, 8, 3));
            let pattern = pattern(7, 3);
            let places = places_of(pattern[0], &page, |bytes| bytes.starts_with(&pattern));
            assert_eq!(places, [PATTERN_AT], "the same bytes at every length");
            for at in [0, 8, 64, len - 1] {
                page[at] ^= 1;
                assert!(!is_whole(&page, 3) && !is_right(&page, 7, 3), "byte {at}");
                page[at] ^= 1;
            }
        }
        assert!(!is_whole(&[0; PAGE_BYTES], 0), "zeroes are not a page");
        assert!(!is_whole(&[], 0) && !is_right(&[], 7, 0));
    }
}
