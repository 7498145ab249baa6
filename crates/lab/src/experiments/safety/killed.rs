//! Kills a process while it commits, to find the state that it leaves. A separate process commits to the store and
//! reports each acknowledged commit, until SIGKILL ends it; afterwards every reported commit must be in the store.
//!
//! Kept true by: a commit is reported only after it has returned, and in one write to a pipe, so that every report that
//! arrived was acknowledged. A commit whose report was lost may be there or not.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::content::Content;
use super::stores::{self, Size, Subject};
use crate::child::{Orders, Running, send, this_program};
use crate::error::{LabError, LabErrorKind, Result};

/// Name of the test that a test binary runs as the writing process, because it has no command `nofault lab writer`.
const WRITER_TEST: &str = "experiments::safety::tests::the_writer_of_other_tests";
/// Longest time that opening the store and its first commit may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a report before the time is checked again.
const GLANCE: Duration = Duration::from_millis(20);

/// The task of the process that will be killed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// Id of the store's method.
    pub(super) store: String,
    #[serde(with = "crate::paths::field")]
    pub(super) folder: PathBuf,
    pub(super) size: Size,
    pub(super) content: Content,
    pub(super) writers: u64,
    pub(super) seed: u64,
    /// A stamp larger than the stamps of all commits so far.
    pub(super) first_stamp: u64,
}

/// The report of one acknowledged commit.
#[derive(Debug, Serialize, Deserialize)]
struct AcknowledgedCommit {
    pair: u64,
    stamp: u64,
}

/// Runs the command `nofault lab writer`: commits to the store that the order names, until the process is killed.
///
/// # Errors
/// `Usage` when the input is no order; the store's error; `System` when the parent has closed the pipe.
pub fn serve(input: impl Read, output: impl Write + Send) -> Result<()> {
    let order: Order = Orders::new(input, "nofault lab writer").first()?;
    let store = stores::open(&order.store, &order.folder, order.size, false)?;
    let (output, failed) = (Mutex::new(output), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (store, order, output, failed) = (&*store, &order, &output, &failed);
        let writers: Vec<_> = (0..order.writers)
            .map(|number| {
                scope.spawn(move || {
                    let result = commit_on(store, order, number, output, failed);
                    failed.store(true, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        let panicked = |_| Err(LabError::new(LabErrorKind::System, "a writer panicked"));
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(panicked))
    })
}

fn commit_on<W: Write>(
    store: &dyn Subject,
    order: &Order,
    number: u64,
    output: &Mutex<W>,
    failed: &AtomicBool,
) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(order.seed ^ number << 32 ^ order.first_stamp);
    let mut stamp = order.first_stamp;
    while !failed.load(Ordering::Relaxed) {
        let pair = order.content.pair_of(&mut chance, number, order.writers);
        store.commit(&order.content.write(pair, stamp))?;
        send(&mut *output.lock().unwrap_or_else(PoisonError::into_inner), &AcknowledgedCommit { pair, stamp })?;
        stamp += 1;
    }
    Ok(())
}

/// The reports of the killed process: the newest acknowledged commit of each pair, and the number of commits.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    pub(super) newest: HashMap<u64, u64>,
    pub(super) commits: u64,
}

impl Acknowledgements {
    fn note(&mut self, line: &str) {
        // The test harness prints lines, too, and the last line may be cut off.
        if let Ok(AcknowledgedCommit { pair, stamp }) = serde_json::from_str(line) {
            let newest = self.newest.entry(pair).or_default();
            *newest = stamp.max(*newest);
            self.commits += 1;
        }
    }
}

/// Starts a writing process with an order, and kills it when the time `after` has passed since its first commit.
///
/// # Errors
/// `System` when the process cannot be started, commits nothing, or ends by itself; the message contains its error
/// output.
pub(super) fn kill_in_work(order: &Order, after: Duration, cancel: &AtomicBool) -> Result<Acknowledgements> {
    let mut child = Running::start(this_program("writer", WRITER_TEST)?.stderr(Stdio::piped()))?;
    let (lines, words) = (child.lines(), child.complaints());
    child.send(order)?;
    let mut acknowledged = Acknowledgements::default();
    let mut end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || cancel.load(Ordering::Relaxed) {
            break;
        }
        match lines.recv_timeout(left.min(GLANCE)) {
            Ok(line) => {
                let is_first = acknowledged.commits == 0;
                acknowledged.note(&line);
                if is_first && acknowledged.commits > 0 {
                    end = Instant::now() + after;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let ended = |how: String| {
        let output: Vec<String> = words.iter().take(20).collect();
        let message = format!("{}: the process that was to be killed {how}: {}", order.store, output.join(" / "));
        LabError::new(LabErrorKind::System, message)
    };
    // The kill fails only when the process has already ended, which its status then shows.
    let _ = child.0.kill();
    let status = child.wait().map_err(|error| ended(format!("cannot be waited for ({error})")))?;
    if status.signal() != Some(libc::SIGKILL) {
        return Err(ended(format!("ended by itself ({status})")));
    }
    // Take the reports that were still in the pipe.
    lines.iter().for_each(|line| acknowledged.note(&line));
    if acknowledged.commits == 0 && !cancel.load(Ordering::Relaxed) {
        return Err(ended("committed nothing".into()));
    }
    Ok(acknowledged)
}
