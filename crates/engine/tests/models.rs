//! Exhaustive models of what the pool and the log do between threads: every interleaving, and every reordering that the
//! memory model allows. Each model is the protocol of one module, cut down to what can go wrong.
//!
//! Built only for `cargo xtask models`, because it takes the model checker along.
#![cfg(nofault_models)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// `pager::frames`: a frame's bytes and description are written before its number is stored (release), read after the number
/// was loaded (acquire), and written again only when nobody who was pinned while it could be found is left.
#[test]
fn a_frame_is_never_written_while_a_reader_may_look_at_it() {
    struct Frame {
        commit: AtomicU64,
        bytes: UnsafeCell<u64>,
    }
    struct Pool {
        entry: AtomicUsize,
        pinned: AtomicUsize,
        frames: [Frame; 2],
    }
    loom::model(|| {
        let frame = |commit: u64| Frame { commit: AtomicU64::new(commit), bytes: UnsafeCell::new(commit * 10) };
        let pool =
            Arc::new(Pool { entry: AtomicUsize::new(0), pinned: AtomicUsize::new(0), frames: [frame(1), frame(0)] });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    // What pinning an epoch guard promises.
                    pool.pinned.fetch_add(1, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                    let frame = &pool.frames[pool.entry.load(Ordering::Acquire)];
                    let commit = frame.commit.load(Ordering::Relaxed);
                    let bytes = frame.bytes.with(|bytes| {
                        // SAFETY: what this model is about; the checker reports a race if it is wrong.
                        unsafe { *bytes }
                    });
                    assert_eq!(bytes, commit * 10, "a page of two minds");
                    pool.pinned.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        // The writer publishes commit 2 in the free frame, and uses the old one again if it may.
        pool.frames[1].commit.store(2, Ordering::Relaxed);
        pool.frames[1].bytes.with_mut(|bytes| {
            // SAFETY: nobody has been told of this frame yet.
            unsafe { *bytes = 20 }
        });
        pool.entry.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if pool.pinned.load(Ordering::SeqCst) == 0 {
            pool.frames[0].commit.store(9, Ordering::Relaxed);
            pool.frames[0].bytes.with_mut(|bytes| {
                // SAFETY: as above.
                unsafe { *bytes = 90 }
            });
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// Explores interleavings with up to three preemptions: enough to find every bug known of this kind, and it ends.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// `pager::lane` and `pager::ticket`: many who miss one page share one read; whoever has the queue completes it for all, and
/// hands the queue on; the page is born pinned for those who wait and cannot be evicted before they have gone.
#[test]
fn one_read_serves_all_who_wait_and_its_page_stays_until_they_have_gone() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Entry {
        OnDisk,
        Loading,
        Resident,
    }
    #[derive(Default)]
    struct Waiter {
        state: Mutex<(bool, bool)>,
        changed: Condvar,
    }
    struct Core {
        entry: Mutex<(Entry, usize, Vec<Arc<Waiter>>)>,
        queue: Mutex<usize>,
        followers: Mutex<Vec<Arc<Waiter>>>,
    }
    fn complete(core: &Core) {
        let mut page = core.entry.lock().unwrap();
        if page.0 == Entry::Loading {
            page.0 = Entry::Resident;
            let waiting = std::mem::take(&mut page.2);
            page.1 += waiting.len();
            for waiter in waiting {
                waiter.state.lock().unwrap().0 = true;
                waiter.changed.notify_all();
            }
        }
    }
    fn load(core: &Core) {
        let waiter = Arc::new(Waiter::default());
        {
            let mut page = core.entry.lock().unwrap();
            if page.0 == Entry::Resident {
                page.1 += 1;
                waiter.state.lock().unwrap().0 = true;
            } else {
                page.0 = Entry::Loading;
                page.2.push(Arc::clone(&waiter));
            }
        }
        while !waiter.state.lock().unwrap().0 {
            let mut queue = core.queue.try_lock();
            if queue.is_err() {
                core.followers.lock().unwrap().push(Arc::clone(&waiter));
                queue = core.queue.try_lock();
            }
            match queue {
                Ok(mut turns) => {
                    *turns += 1;
                    complete(core);
                }
                Err(_) => {
                    let mut state = waiter.state.lock().unwrap();
                    while !state.0 && !state.1 {
                        state = waiter.changed.wait(state).unwrap();
                    }
                    state.1 = false;
                }
            }
        }
        loop {
            let Some(next) = core.followers.lock().unwrap().pop() else { break };
            let mut state = next.state.lock().unwrap();
            if !state.0 {
                state.1 = true;
                next.changed.notify_all();
                break;
            }
        }
    }
    model(|| {
        let core = Arc::new(Core {
            entry: Mutex::new((Entry::OnDisk, 0, Vec::new())),
            queue: Mutex::new(0),
            followers: Mutex::new(Vec::new()),
        });
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let core = Arc::clone(&core);
                thread::spawn(move || {
                    load(&core);
                    let mut page = core.entry.lock().unwrap();
                    assert_eq!(page.0, Entry::Resident, "evicted under a ticket");
                    page.1 -= 1;
                })
            })
            .collect();
        // The clock's hand comes by.
        let mut page = core.entry.lock().unwrap();
        if page.0 == Entry::Resident && page.1 == 0 {
            page.0 = Entry::OnDisk;
        }
        drop(page);
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(core.entry.lock().unwrap().1, 0, "a pin was lost");
    });
}

/// `wal`: committers append, then one of them writes for all. Nobody sleeps for good, nobody is told before its bytes are
/// written.
#[test]
fn no_committer_sleeps_through_the_write_that_makes_it_durable() {
    #[derive(Default)]
    struct State {
        appended: u64,
        durable: u64,
        rounds: u64,
    }
    struct Log {
        state: Mutex<State>,
        changed: Condvar,
        writer: Mutex<u64>,
    }
    fn commit(log: &Log) {
        let position = {
            let mut state = log.state.lock().unwrap();
            state.appended += 1;
            state.appended
        };
        loop {
            let rounds = {
                let state = log.state.lock().unwrap();
                if state.durable >= position {
                    break;
                }
                state.rounds
            };
            if let Ok(mut written) = log.writer.try_lock() {
                let taken = log.state.lock().unwrap().appended;
                assert!(taken >= *written, "the log went back");
                *written = taken;
                log.state.lock().unwrap().durable = taken;
                drop(written);
                let mut state = log.state.lock().unwrap();
                state.rounds += 1;
                log.changed.notify_all();
                continue;
            }
            let state = log.state.lock().unwrap();
            if state.rounds == rounds {
                drop(log.changed.wait(state).unwrap());
            }
        }
    }
    model(|| {
        let log = Arc::new(Log { state: Mutex::default(), changed: Condvar::new(), writer: Mutex::new(0) });
        let other = {
            let log = Arc::clone(&log);
            thread::spawn(move || commit(&log))
        };
        commit(&log);
        other.join().unwrap();
        assert_eq!(log.state.lock().unwrap().durable, 2);
    });
}
