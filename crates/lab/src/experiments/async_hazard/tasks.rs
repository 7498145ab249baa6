//! Runs a task for each file on one single-threaded executor, with the 1 ms ticker among the tasks.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::task::LocalSet;

use super::work::{Job, Means, Order, STRETCH_BYTES, StepResult};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::BLOCK_BYTES;
use crate::measure::Worker;
use crate::paths::shown;
use crate::ticker::Ticker;

/// Runs all jobs as tasks; returns when the last task is done.
pub(super) fn run(worker: &mut Worker<'_>, jobs: Vec<Job>, means: Means, yields: bool) -> Result<()> {
    on_executor(worker, move |notes| {
        Ok(jobs.into_iter().map(move |job| {
            let notes = Rc::clone(&notes);
            async move {
                match (means, &job.order) {
                    (Means::Map | Means::TouchedMap, _) => touch_map(job, &notes, yields).await,
                    (Means::Read, Order::Touches(_)) => read_touches(job, &notes).await,
                    (Means::Read, Order::Sequential { .. }) => read_stream(job, &notes).await,
                }
            }
        }))
    })
}

/// Results of finished steps, stored until they are passed to the worker, because a task cannot borrow the worker
/// across an `await`.
#[derive(Default)]
pub(super) struct Notes {
    done: RefCell<Vec<StepResult>>,
    stop: Cell<bool>,
}

impl Notes {
    /// Stores the result of a step.
    pub(super) fn keep(&self, done: StepResult) {
        self.done.borrow_mut().push(done);
    }

    /// Returns whether the user has stopped the run.
    pub(super) fn stopped(&self) -> bool {
        self.stop.get()
    }
}

/// Runs the ticker and the tasks of `make` on a single-threaded executor, from the common start of all workers until
/// the last task's end.
pub(super) fn on_executor<T: Future<Output = Result<()>> + 'static, I: Iterator<Item = T>>(
    worker: &mut Worker<'_>,
    make: impl FnOnce(Rc<Notes>) -> Result<I>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LabError::system("start an executor", &error))?;
    let notes = Rc::new(Notes::default());
    let local = LocalSet::new();
    let ticker = local.block_on(&runtime, async {
        let ticker = Rc::new(Ticker::prepare()?);
        let tasks: Vec<_> = make(Rc::clone(&notes))?.collect();
        worker.start();
        ticker.start()?;
        let ticking = tokio::task::spawn_local({
            let ticker = Rc::clone(&ticker);
            async move { ticker.run().await }
        });
        let running: Vec<_> = tasks.into_iter().map(tokio::task::spawn_local).collect();
        for task in running {
            // The worker's counters are updated as tasks end: fixed work needs no finer series.
            let ended = task.await.map_err(|error| LabError::new(LabErrorKind::System, format!("a task: {error}")))?;
            notes.done.borrow_mut().drain(..).for_each(|done| done.note(worker));
            notes.stop.set(!worker.running());
            ended?;
        }
        // Ticks that were due before the end count even if the executor did not run them.
        ticker.collect();
        ticking.abort();
        Ok::<_, LabError>(ticker)
    })?;
    ticker.lateness().into_iter().for_each(|late| worker.latency("ticker", late));
    Ok(())
}

/// Touches pages of a map: the published measurement's "async mmap". A touch blocks the thread, also inside an async
/// function.
async fn touch_map(mut job: Job, notes: &Notes, yields: bool) -> Result<()> {
    while let Some(done) = job.step()? {
        notes.keep(done);
        if notes.stopped() {
            break;
        }
        if yields {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Reads each page with `pread` on tokio's blocking thread pool, as tokio's own file type does.
async fn read_touches(mut job: Job, notes: &Notes) -> Result<()> {
    let file = job.file().ok_or_else(|| LabError::new(LabErrorKind::Usage, "async: the file was not opened"))?;
    let mut buffer = vec![0; BLOCK_BYTES];
    while let Some(range) = job.next_range() {
        let (started, position) = (Instant::now(), job.position(range.start));
        let (file, path) = (Arc::clone(&file), job.path.clone());
        let (back, result) = tokio::task::spawn_blocking(move || {
            let result = super::work::read_exact(&file, &mut buffer, position, &path);
            (buffer, result)
        })
        .await
        .map_err(|error| LabError::new(LabErrorKind::System, format!("the blocking pool: {error}")))?;
        result?;
        buffer = back;
        notes.keep(StepResult { elapsed: started.elapsed(), ..job.content.check(&buffer, range.start, &job.order) });
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}

/// Reads through `tokio::fs` with a buffer of 64 KiB: the published measurement's "async read".
async fn read_stream(mut job: Job, notes: &Notes) -> Result<()> {
    let failed = |error: &std::io::Error| LabError::system(format!("read {}", shown(&job.path)), error);
    let mut file = tokio::fs::File::open(&job.path).await.map_err(|error| failed(&error))?;
    file.set_max_buf_size(STRETCH_BYTES as usize);
    file.seek(std::io::SeekFrom::Start(job.position(0))).await.map_err(|error| failed(&error))?;
    let mut buffer = vec![0; STRETCH_BYTES as usize];
    while let Some(range) = job.next_range() {
        let started = Instant::now();
        let len = (range.end - range.start) as usize * BLOCK_BYTES;
        file.read_exact(&mut buffer[..len])
            .await
            .map_err(|error| LabError::system(format!("read {}", shown(&job.path)), &error))?;
        notes.keep(StepResult {
            elapsed: started.elapsed(),
            ..job.content.check(&buffer[..len], range.start, &job.order)
        });
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}
