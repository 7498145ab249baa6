//! The replay by threads: each makes the accesses of one recorded thread, through a map or by calls, and waits for each.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};

use super::Way;
use super::steps::{Step, Steps};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::BLOCK_BYTES;
use crate::measure::{Work, Worker};
use crate::read_loops::overwrite::{WritableFile, fill, pages};
use crate::read_loops::pace;
use crate::read_loops::sync::{Files, Means};
use crate::trace::Op;
use crate::workload::{Layout, first_word};

/// Most written blocks of a recorded thread that are read back: of the latest ones.
const READ_BACK: usize = 64;

/// The work of a trial.
pub(super) struct Job<'a> {
    pub(super) layout: &'a Layout,
    pub(super) steps: &'a Steps,
    pub(super) content_seed: u64,
    /// Offsets of written blocks, filled when the recorded threads have ended.
    pub(super) written: &'a Mutex<Vec<u64>>,
}

impl Job<'_> {
    /// Whether the accesses are due at their recorded times.
    pub(super) fn is_timed(&self) -> bool {
        self.steps.is_timed
    }

    /// Notes the blocks that a recorded thread has written, to be read back.
    pub(super) fn note_written(&self, history: &History) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&history.blocks);
    }
}

/// The latest blocks that a recorded thread has written.
#[derive(Default)]
pub(super) struct History {
    blocks: Vec<u64>,
    count: usize,
}

impl History {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::with_capacity(READ_BACK), count: 0 }
    }

    pub(super) fn note(&mut self, step: &Step) {
        if step.op != Op::Write {
            return;
        }
        let (from, _) = step.blocks();
        match self.blocks.get_mut(self.count % READ_BACK) {
            Some(slot) => *slot = from,
            None => self.blocks.push(from),
        }
        self.count += 1;
    }
}

/// The open file of a trial, which its threads share.
pub(super) enum Subject {
    /// A shared map.
    Map(WritableFile),
    /// A file for read calls, and the same for write calls.
    Calls {
        files: Files,
        writer: WritableFile,
        /// Whether calls move whole blocks, as direct I/O must.
        whole: bool,
    },
}

impl Subject {
    /// Opens the file.
    ///
    /// # Errors
    /// The error of opening or mapping; `Usage` for a ring, which has its own loop.
    pub(super) fn open(layout: &Layout, path: &Path, way: Way) -> Result<Self> {
        match way {
            Way::Map(advice) => Ok(Self::Map(WritableFile::map(path, advice)?)),
            Way::Calls(means) => Ok(Self::Calls {
                files: Files::open(layout, means)?,
                writer: WritableFile::calls(path, means)?,
                whole: means == Means::Direct,
            }),
            Way::Ring => Err(LabError::new(LabErrorKind::Usage, "replay: a ring does not wait for each access")),
        }
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Self::Map(file) | Self::Calls { writer: file, .. } => file.sync(None),
        }
    }

    /// Makes one access. The buffer has room for the step's blocks, and for a write their content. Returns whether the content that
    /// was read is right; `None` where nothing could be checked.
    fn make(&self, job: &Job<'_>, step: &Step, buffer: &mut [u8]) -> Result<Option<bool>> {
        let (from, len) = step.blocks();
        let inner = (step.offset_bytes - from) as usize..(step.offset_bytes - from) as usize + step.len_bytes;
        match (self, step.op) {
            (_, Op::Sync) => self.sync()?,
            (Self::Map(file), Op::Read) => {
                let mut right = None;
                file.look(step.offset_bytes, step.len_bytes, |at, bytes| {
                    right = both(right, is_right_part(job.layout, at, bytes));
                })?;
                return Ok(right);
            }
            (Self::Map(file), Op::Write) => file.write(step.offset_bytes, &buffer[inner], false)?,
            (Self::Calls { files, whole: true, .. }, Op::Read) => {
                files.read(job.layout, 0, from, &mut buffer[..len])?;
                return Ok(job.layout.is_right(&buffer[..len], from));
            }
            (Self::Calls { files, whole: false, .. }, Op::Read) => {
                files.read(job.layout, 0, step.offset_bytes, &mut buffer[inner.clone()])?;
                let parts = pages(step.offset_bytes, step.len_bytes);
                let read = &buffer[inner];
                return Ok(
                    parts.fold(None, |right, (at, part)| both(right, is_right_part(job.layout, at, &read[part])))
                );
            }
            (Self::Calls { writer, whole: true, .. }, Op::Write) => writer.write(from, &buffer[..len], false)?,
            (Self::Calls { writer, whole: false, .. }, Op::Write) => {
                writer.write(step.offset_bytes, &buffer[inner], false)?;
            }
        }
        Ok(None)
    }
}

/// Whether two parts are both right; a part that cannot be checked says nothing.
fn both(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a && b),
        (one, other) => one.or(other),
    }
}

/// Whether a part of a page, which lies at an offset of the file, has the expected content: by its first word, or by its last one.
/// `None` for a part that has neither; a byte of it is loaded all the same.
fn is_right_part(layout: &Layout, offset_bytes: u64, part: &[u8]) -> Option<bool> {
    let within = (offset_bytes % BLOCK_BYTES as u64) as usize;
    let page = offset_bytes - within as u64;
    if within == 0 && part.len() >= 8 {
        return Some(layout.is_right_word(std::hint::black_box(first_word(part)), page));
    }
    match part.last_chunk() {
        Some(last) if within + part.len() == BLOCK_BYTES => {
            Some(layout.is_right_word(u64::from_le_bytes(std::hint::black_box(*last)), page))
        }
        _ => {
            std::hint::black_box(part.first());
            None
        }
    }
}

/// Records a finished access.
pub(super) fn note(
    worker: &mut Worker<'_>,
    step: &Step,
    right: Option<bool>,
    (due, began): (Option<Instant>, Instant),
) {
    let ended = Instant::now();
    worker.latency(step.op.name(), ended - began);
    if let Some(due) = due {
        worker.latency("open_loop", ended.saturating_duration_since(due));
    }
    if let Some(right) = right {
        worker.verified(right);
    }
    if step.op != Op::Sync {
        worker.latency("op", ended - began);
        worker.done(1, step.len_bytes as u64);
    }
}

/// The workers of a trial: one for each recorded thread.
pub(super) fn works<'a>(job: &'a Job<'a>, subject: &'a Subject) -> Vec<Work<'a>> {
    let work = |thread: &'a Vec<Step>| -> Work<'a> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut buffer = IoBuf::zeroed(job.steps.block_bytes_max(), PageKind::Small)?;
            buffer.fill(0);
            let mut history = History::new();
            let timed = job.is_timed();
            if timed {
                pace::exact_timer();
            }
            worker.start();
            let started = worker.started();
            let mut count = 0;
            // Without times the recorded thread begins again when it has ended.
            for step in thread.iter().cycle().take(if timed { thread.len() } else { usize::MAX }) {
                if step.op == Op::Write {
                    let (from, len) = step.blocks();
                    fill(&mut buffer[..len], job.content_seed, from);
                }
                let due = timed.then(|| started + step.due);
                let goes_on = match due {
                    Some(due) => pace::wait_until(worker, due, Duration::ZERO),
                    None => worker.running(),
                };
                if !goes_on {
                    break;
                }
                let began = Instant::now();
                let right = subject.make(job, step, &mut buffer)?;
                note(worker, step, right, (due, began));
                history.note(step);
                count += 1;
            }
            if timed {
                worker.figure("accesses_due", thread.len() as f64);
                worker.figure("accesses_started", f64::from(count));
            }
            job.note_written(&history);
            Ok(())
        })
    };
    job.steps.threads.iter().map(work).collect()
}
