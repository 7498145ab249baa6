//! The subject: the process in which a fault happens, and the handle by which the lab watches it. A subject may die of
//! the fault, which is a result.
//!
//! The command `nofault lab subject` reads one `Order` and then `Ask`s, one JSON line each, and answers each `Ask` with
//! `Answers`. The death of a subject is recognised by the end of its answers and its exit status; a hanging subject is
//! killed.
//!
//! Kept true by: a subject dies with its watcher (`child`), leaves no core, and only ever works in the folder of its
//! trial.

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pages::{self, PATTERN_BYTES};
use super::stores::{Store, Way};
use crate::child::{Orders, Running, send, this_program};
use crate::error::{LabError, LabErrorKind, Result};

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
    Ok(pages::is_right(&bytes, order.seed, page))
}

/// Finds all copies of a page in this process's memory and flips one bit in each, as a stray pointer would in one of
/// them. `right` is the number of copies hit.
fn stray(seed: u64, page: u64) -> Answers {
    let mut seen = Answers::default();
    // Kept inverted, so that the search does not find its own pattern.
    let inverted = pages::pattern(seed, page).map(|byte| !byte);
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
            let places = pages::places_of(!inverted[0], &piece[..count], is_there).into_iter().map(|place| at + place);
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
