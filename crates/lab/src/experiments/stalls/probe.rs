//! Measures probing: a thread with many requests checks for each page whether it is in memory, passes absent pages to
//! helper threads, and continues with the next request. The thread stalls only when a page is evicted between check and
//! access.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::time::Instant;

use nofault_io::mapped::MappedFile;

use super::ahead::{open, touch};
use super::{MMAP_MINCORE, MMAP_NOWAIT, OWN, measurement, number};
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::measure::{self, Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::read_loops::{self, order_seed};
use crate::record::{Outcome, TrialSpec};
use crate::workload::{self, Layout, Order, PAGE_BYTES, Place};

/// Ids of the methods, one for each call that tells whether a page is in memory.
pub(super) const METHODS: [&str; 2] = [MMAP_MINCORE.id, MMAP_NOWAIT.id];

/// A queue of pages for the helper threads to touch; closed when the trial ends.
#[derive(Default)]
struct PageQueue {
    places: Mutex<(VecDeque<Place>, bool)>,
    changed: Condvar,
}

impl PageQueue {
    fn push(&self, place: Place) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(place);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<Place> {
        let mut held = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match (held.0.pop_front(), held.1) {
                (_, true) => return None,
                (Some(place), false) => return Some(place),
                (None, false) => held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Measures one method of probing.
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, PAGE_BYTES as u64)?;
    let plan = measurement(spec, context)?;
    let helpers = number(spec, "helpers")?.max(1);
    let map = open(&layout)?;
    let path = &layout.paths[0];
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    let nowait = match methods::find(OWN, &spec.method) {
        Some(&MMAP_NOWAIT) => true,
        Some(&MMAP_MINCORE) => false,
        _ => return Err(read_loops::unknown(spec)),
    };
    let is_resident = |place: Place| if nowait { answers_at_once(&file, place) } else { is_in_core(&map, place) };
    let wanted = PageQueue::default();
    let (fetched, arrivals) = mpsc::channel();
    let mut outcome = std::thread::scope(|scope| {
        for _ in 0..helpers {
            let (map, layout, wanted, fetched) = (&map, &layout, &wanted, fetched.clone());
            scope.spawn(move || {
                while let Some(place) = wanted.pop() {
                    // An error is ignored: the measured thread meets it at the same page, and reports it.
                    let _ = touch(map, layout, place);
                    if fetched.send(place).is_err() {
                        return;
                    }
                }
            });
        }
        let arrivals = Mutex::new(arrivals);
        let work: Work<'_> = Box::new(|worker| {
            let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            serve(worker, spec, &layout, &map, &is_resident, &wanted, &arrivals)
        });
        let outcome = measure::run(&plan, vec![work], &mut *context.on_tick);
        wanted.close();
        outcome
    })?;
    outcome.figures.insert("extra_threads".into(), helpers as f64);
    Ok(outcome)
}

fn serve(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    map: &MappedFile,
    is_resident: &(dyn Fn(Place) -> Result<bool> + Send + Sync),
    wanted: &PageQueue,
    arrivals: &mpsc::Receiver<Place>,
) -> Result<()> {
    let mut order = Order::random(layout, order_seed(spec), 0);
    let mut away = 0;
    worker.start();
    while worker.running() {
        // Fetched pages are accessed first, because they may be evicted again.
        let ready = match away >= spec.params.depth {
            true => {
                let before = Instant::now();
                let place = arrivals.recv().ok();
                worker.latency("wait", before.elapsed());
                place
            }
            false => arrivals.try_recv().ok(),
        };
        let started = Instant::now();
        let right = match ready {
            Some(place) => {
                away -= 1;
                touch(map, layout, place)?
            }
            None => {
                let place = layout.place(order.next_block());
                if !is_resident(place)? {
                    wanted.push(place);
                    away += 1;
                    worker.latency("probe", started.elapsed());
                    continue;
                }
                touch(map, layout, place)?
            }
        };
        worker.latency("op", started.elapsed());
        worker.verified(right);
        worker.done(1, PAGE_BYTES as u64);
    }
    Ok(())
}

/// Whether the page can be read without waiting, tested by reading its first byte with `RWF_NOWAIT`.
fn answers_at_once(file: &File, place: Place) -> Result<bool> {
    let mut byte = [0_u8];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    match rustix::io::preadv2(file.as_fd(), &mut into, place.offset_bytes, rustix::io::ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(count == 1),
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        Err(errno) => Err(LabError::system("probe with RWF_NOWAIT", &errno.into())),
    }
}

/// Whether the page is in memory according to `mincore`.
fn is_in_core(map: &MappedFile, place: Place) -> Result<bool> {
    let mut told = 0_u8;
    let start = map.bytes().as_ptr().wrapping_add(place.offset_bytes as usize);
    // SAFETY: one page of a map that lives, and room for one answer; the call changes nothing else.
    match unsafe { libc::mincore(start.cast_mut().cast(), PAGE_BYTES, &raw mut told) } {
        0 => Ok(told & 1 == 1),
        _ => Err(LabError::system("ask mincore", &std::io::Error::last_os_error())),
    }
}
