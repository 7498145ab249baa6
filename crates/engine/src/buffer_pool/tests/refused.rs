//! Tests of reads that complete late, and of reads that the queue refuses.

use std::sync::Mutex;
use std::task::Waker;

use nofault_io::error::{Error as IoError, ErrorKind as IoKind, Result as IoResult};

use super::trouble::deaf_disk;
use super::*;
use crate::pages::{OwnPage, RangeScan as _};

/// Completions of reads at one offset, which are held back and delivered one by one, the oldest first.
#[derive(Default)]
struct Delay {
    /// The offset of the reads whose completions are held back.
    offset: Mutex<Option<u64>>,
    kept: Mutex<Vec<Completion>>,
    /// Number of operations that the queue still has to refuse.
    due: AtomicUsize,
}

impl Delay {
    fn reap(&self, queue: &mut dyn Queue, wait_for: usize, into: &mut Vec<Completion>) -> IoResult<()> {
        let mut done = Vec::new();
        queue.reap(wait_for, &mut done)?;
        let (mut kept, offset) = (self.kept.lock().unwrap(), *self.offset.lock().unwrap());
        for completion in done {
            let is_read = matches!(completion.op.kind, OpKind::Read(_));
            let is_late = is_read && Some(completion.op.offset_bytes) == offset;
            if is_late { kept.push(completion) } else { into.push(completion) }
        }
        let due = self.due.swap(0, Ordering::Relaxed).min(kept.len());
        into.extend(kept.drain(..due));
        Ok(())
    }
}

/// Returns the location of a page that is not in memory.
fn location_of(pool: &BufferPool, page: PageId) -> Location {
    match pool.versions.pages().entry(page) {
        Entry::OnDisk(at) => at,
        other => panic!("{other:?}"),
    }
}

fn evict_all(pool: &BufferPool) {
    for _ in 0..20 {
        pool.evictor.free_frames(64);
    }
}

#[test]
fn a_read_of_an_earlier_page_in_the_same_block_is_not_taken_for_the_one_under_way() {
    let world = SimWorld::new(1, SimOptions::calm());
    let delay = Arc::new(Delay::default());
    let late = Arc::clone(&delay);
    let hooks = Hooks::new().reap(move |queue, wait_for, into| late.reap(queue, wait_for, into));
    let disk = hooks.disk(world.directory().create("data").unwrap());
    let pool = pool_with(&disk, &options(64));
    let page = commit(&pool, 1, &[], &[10], &[]).unwrap()[0];
    pool.set_visible(CommitSeq(1));
    evict_all(&pool);
    let first = location_of(&pool, page);
    *delay.offset.lock().unwrap() = Some(first.block.0 * PAGE as u64);
    let ask = || {
        let mut ticket = pool.request(&[Wait::Miss(Missing { page, at: NEWEST })], Permit::any());
        assert!(ticket.poll(Waker::noop()).is_pending());
        pool.submit();
        ticket
    };
    let mut early = ask();
    assert_eq!(delay.kept.lock().unwrap().len(), 1, "the old bytes are read");

    // The page is freed while it is read. A new page gets its id, and is written to its block.
    commit(&pool, 2, &[], &[], &[page]).unwrap();
    pool.set_visible(CommitSeq(2));
    evict_all(&pool);
    {
        let mut metadata = pool.metadata().lock();
        metadata.allocator.deferred.checkpoint_begins();
        metadata.allocator.checkpoint_durable();
    }
    assert_eq!(commit(&pool, 3, &[], &[20], &[]).unwrap(), [page], "the id is used again");
    pool.set_visible(CommitSeq(3));
    evict_all(&pool);
    let second = location_of(&pool, page);
    assert_eq!(second.block, first.block, "the block is used again");
    assert_ne!(second, first);
    let mut late = ask();
    assert_eq!(delay.kept.lock().unwrap().len(), 2);
    // The new page is an old version from now on, in the block that both reads name.
    let snapshot = pool.snapshot();
    commit(&pool, 4, &[], &[], &[page]).unwrap();
    pool.set_visible(CommitSeq(4));

    for _ in 0..2 {
        delay.due.store(1, Ordering::Relaxed);
        pool.reads.dispatcher().reap(0).unwrap();
    }
    *delay.offset.lock().unwrap() = None;
    assert!(matches!(early.poll(Waker::noop()), std::task::Poll::Ready(Ok(()))), "the first wait is over");
    assert!(matches!(late.poll(Waker::noop()), std::task::Poll::Ready(Ok(()))));
    assert_eq!(run(&pool, || pool.view(&snapshot).page(page).map(value)).unwrap(), 20);
    drop((early, late, snapshot));
    evict_all(&pool);
    assert_eq!(pool.stats().frames_free, 64, "no frame is lost");
}

fn full_although_empty(op: &Op) -> IoError {
    IoError::new(IoKind::Busy, format!("take operation {}", op.token), "the queue is full although it is empty")
}

/// Returns a disk with queues that refuse every operation while a flag is set, even when the queues are empty.
fn refusing(disk: Arc<dyn Disk>, refuses: Arc<AtomicBool>) -> Arc<dyn Disk> {
    let hooks = Hooks::new().push(move |queue, op| match refuses.load(Ordering::Relaxed) {
        true => Err(RefusedOp { error: full_although_empty(&op), op }),
        false => queue.push(op),
    });
    hooks.disk(disk)
}

type Refuse = fn(Arc<dyn Disk>, Arc<AtomicBool>) -> Arc<dyn Disk>;

/// Two kinds of refusal, each with its error text: a queue that takes operations but can neither send nor wait for
/// them, and a queue that takes no operation.
const REFUSALS: [(Refuse, &str); 2] = [(deaf_disk, "no completions arrive"), (refusing, "full although it is empty")];

/// Creates a pool with some pages on disk and a queue that refuses reads from now on.
fn pool_that_is_refused(refuse: Refuse, frames: usize) -> (BufferPool, Vec<PageId>, Arc<AtomicBool>) {
    let world = SimWorld::new(1, SimOptions::calm());
    let refuses = Arc::new(AtomicBool::new(false));
    let disk = refuse(world.directory().create("data").unwrap(), Arc::clone(&refuses));
    let pool = pool_with(&disk, &options(frames));
    let pages = commit(&pool, 1, &[], &[10, 11, 12, 13], &[]).unwrap();
    pool.set_visible(CommitSeq(1));
    evict_all(&pool);
    refuses.store(true, Ordering::Relaxed);
    (pool, pages, refuses)
}

fn ask_for(pool: &BufferPool, pages: &[PageId]) -> Ticket {
    let waits: Vec<Wait> = pages.iter().map(|page| Wait::Miss(Missing { page: *page, at: NEWEST })).collect();
    pool.request(&waits, Permit::any())
}

/// Checks that after the refusals all pages can be read, and no frame and no read is lost.
fn recovers(pool: &BufferPool, pages: &[PageId], refuses: &AtomicBool) {
    refuses.store(false, Ordering::Relaxed);
    for (page, wanted) in pages.iter().zip(10..) {
        assert_eq!(run(pool, || pool.latest_published().page(*page).map(value)).unwrap(), wanted);
    }
    pool.reads.dispatcher().reap(0).unwrap();
    evict_all(pool);
    let stats = pool.stats();
    assert_eq!(
        (stats.frames_free, pool.reads.scheduler().in_flight()),
        (stats.frames, 0),
        "the late reads have ended and returned their frames"
    );
    for (page, wanted) in pages.iter().zip(10..) {
        assert_eq!(run(pool, || pool.latest_published().page(*page).map(value)).unwrap(), wanted);
    }
}

/// Polls a ticket, and submits reads, until the wait is over.
fn poll_to_the_end(pool: &BufferPool, ticket: &mut Ticket) -> Result<()> {
    let told = (0..60_000).find_map(|_| {
        pool.submit();
        std::thread::sleep(std::time::Duration::from_millis(1));
        match ticket.poll(Waker::noop()) {
            std::task::Poll::Ready(outcome) => Some(outcome),
            std::task::Poll::Pending => None,
        }
    });
    told.expect("the wait does not end")
}

#[test]
fn tasks_get_an_error_when_the_queue_refuses_their_reads_again_and_again() {
    for (refuse, said) in REFUSALS {
        let (pool, pages, refuses) = pool_that_is_refused(refuse, 64);
        for _ in 0..2 {
            let mut tickets = [ask_for(&pool, &pages[..1]), ask_for(&pool, &pages)];
            for ticket in &mut tickets {
                let error = poll_to_the_end(&pool, ticket).unwrap_err();
                assert!(error.to_string().contains(said), "{error}");
            }
        }
        recovers(&pool, &pages, &refuses);
    }
}

#[test]
fn threads_that_leave_refused_reads_to_the_pool_get_an_error() {
    for (refuse, said) in REFUSALS {
        let (pool, pages, refuses) = pool_that_is_refused(refuse, 64);
        let threads = pool.start_background_threads(|_| {}).unwrap();
        // As long as a task waits, a thread of the pool takes completions.
        pool.reads.demand().begin_task();
        let (tell, told) = std::sync::mpsc::channel();
        let (waiting, wanted) = (pool.clone(), pages.clone());
        std::thread::spawn(move || {
            let outcome = ask_for(&waiting, &wanted).wait();
            let _ = tell.send(outcome);
        });
        let outcome = told.recv_timeout(std::time::Duration::from_secs(120)).expect("the wait does not end");
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        refuses.store(false, Ordering::Relaxed);
        drop(threads);
        recovers(&pool, &pages, &refuses);
    }
}

#[test]
fn a_scan_whose_runs_are_refused_does_not_wait_for_them_for_ever() {
    for (refuse, _) in REFUSALS {
        let (pool, pages, refuses) = pool_that_is_refused(refuse, 1100);
        let snapshot = pool.snapshot();
        let mut scan = pool.begin_range_scan();
        scan.be_alone_from(0);
        assert_eq!(scan.read(&mut pages.clone(), snapshot.seq()), pages.len());
        let mut tickets: Vec<Ticket> = pages.iter().filter_map(|page| scan.request(*page)).collect();
        assert_eq!(tickets.len(), pages.len());
        for ticket in &mut tickets {
            poll_to_the_end(&pool, ticket).unwrap();
        }
        assert!(scan.request(pages[0]).is_none() && scan.page(pages[0]) == Some(OwnPage::Refused));
        drop((scan, snapshot, tickets));
        recovers(&pool, &pages, &refuses);
        assert!(!pool.reads.has_runs_of_scans(), "memory is lost");
    }
}
