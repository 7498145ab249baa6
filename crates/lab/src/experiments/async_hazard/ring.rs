//! Runs a task for each file; the tasks read through one ring. The executor itself polls the ring's descriptor, so no
//! other thread takes part.
//!
//! A read is pushed at its first poll; one flush, scheduled behind the tasks that are ready, submits all pushed reads.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, FileOptions, Queue, QueueOptions};
use nofault_io::uring::{UringDisk, UringOptions};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::tasks::{Notes, on_executor};
use super::work::{Job, Order, STRETCH_BYTES, StepResult};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::BLOCK_BYTES;
use crate::measure::Worker;

/// Runs all jobs as tasks, with one ring for each file or device.
pub(super) fn run(worker: &mut Worker<'_>, jobs: Vec<Job>) -> Result<()> {
    on_executor(worker, move |notes| {
        let mut reactors: HashMap<PathBuf, Rc<Reactor>> = HashMap::new();
        for job in &jobs {
            if !reactors.contains_key(&job.path) {
                reactors.insert(job.path.clone(), Reactor::open(&job.path)?);
            }
        }
        Ok(jobs.into_iter().map(move |job| {
            let (notes, reactor) = (Rc::clone(&notes), reactors.get(&job.path).cloned());
            async move {
                let missing = || LabError::new(LabErrorKind::System, "no ring for the file");
                read_all(job, &notes, &*reactor.ok_or_else(missing)?).await
            }
        }))
    })
}

async fn read_all(mut job: Job, notes: &Notes, reactor: &Reactor) -> Result<()> {
    let len = match job.order {
        Order::Touches(_) => BLOCK_BYTES,
        Order::Sequential { .. } => STRETCH_BYTES as usize,
    };
    let mut buffer = IoBuf::zeroed(len, PageKind::Small)?;
    while let Some(range) = job.next_range() {
        let started = Instant::now();
        let wanted = (range.end - range.start) as usize * BLOCK_BYTES;
        let (piece, rest) = buffer.split_at(wanted);
        let piece = reactor.read(piece, job.position(range.start)).await?;
        notes.keep(StepResult { elapsed: started.elapsed(), ..job.content.check(&piece, range.start, &job.order) });
        buffer = match piece.join(rest) {
            Ok(whole) => whole,
            Err((piece, _)) => piece,
        };
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}

/// A ring, and the channels on which tasks wait for their completions, all on one thread.
struct Reactor {
    ready: AsyncFd<OwnedFd>,
    queue: RefCell<Box<dyn Queue>>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Completion>>>,
    next_token: Cell<u64>,
    flush_planned: Cell<bool>,
}

impl Reactor {
    fn open(path: &Path) -> Result<Rc<Self>> {
        let options = FileOptions { direct: DirectIo::Prefer, write: false, create: false };
        let disk = UringDisk::open(path, &options)?;
        // Not `single_thread`: with DEFER_TASKRUN completions are posted only when the ring is entered, and a poller
        // would have to enter it to see them.
        // A dedicated ring with its file registered, as the other methods with a ring have.
        let queue = disk.queue_with(&QueueOptions::default(), &UringOptions::default())?;
        let descriptor = queue
            .ready_fd()
            .ok_or_else(|| LabError::new(LabErrorKind::Unsupported, "this ring cannot be polled"))?
            .try_clone_to_owned()
            .map_err(|error| LabError::system("watch a ring", &error))?;
        let ready = crate::ticker::watch(descriptor)?;
        let reactor = Rc::new(Self {
            ready,
            queue: RefCell::new(Box::new(queue)),
            waiting: RefCell::default(),
            next_token: Cell::new(0),
            flush_planned: Cell::new(false),
        });
        // The task ends when the executor is dropped with its tasks.
        let own = Rc::clone(&reactor);
        tokio::task::spawn_local(async move {
            while let Ok(mut ready) = own.ready.readable().await {
                ready.clear_ready();
                drop(ready);
                own.reap();
            }
        });
        Ok(reactor)
    }

    /// Reads from `position` of the file until the buffer is full.
    async fn read(&self, buffer: IoBuf, position: u64) -> Result<IoBuf> {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().insert(token, sender);
        let pushed = self.queue.borrow_mut().push(Op::new(token, position, OpKind::Read(buffer)));
        if let Err(refused) = pushed {
            self.waiting.borrow_mut().remove(&token);
            return Err(refused.error.into());
        }
        if !self.flush_planned.replace(true) {
            // Yield once, so that the tasks that are ready now add their reads first.
            tokio::task::yield_now().await;
            self.flush_planned.set(false);
            self.queue.borrow_mut().submit()?;
            self.reap();
        }
        let completion =
            receiver.await.map_err(|_| LabError::new(LabErrorKind::System, "the ring closed under a read"))?;
        completion.result.clone()?;
        completion
            .into_buffer()
            .ok_or_else(|| LabError::new(LabErrorKind::System, "a read came back without its buffer"))
    }

    fn reap(&self) {
        let mut done = Vec::new();
        // An error of the ring itself shows when its readers' channels close.
        if self.queue.borrow_mut().reap(0, &mut done).is_err() {
            self.waiting.borrow_mut().clear();
        }
        for completion in done {
            if let Some(waiter) = self.waiting.borrow_mut().remove(&completion.op.token) {
                // The reader may be gone; its result is then dropped.
                let _ = waiter.send(completion);
            }
        }
    }
}
