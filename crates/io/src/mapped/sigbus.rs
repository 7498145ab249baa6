//! SIGBUS as an error: the one handler of the process, and the guards under which it acts.
//!
//! A fault in a map is raised on the very thread that touches the page, so the handler needs no registry: it looks at
//! its thread's guards, a list through stack frames with a thread-local head. If the address lies in one of
//! them, it (1) marks the page in the map's [`Faults`], (2) replaces it by an anonymous page (the *stand-in*), and
//! returns; the access is repeated by the CPU and completes. Every other signal goes to the handler that was
//! installed before.
//!
//! Why this is right:
//! 1. Mark before stand-in: any thread that could read the stand-in's zeroes can see the mark afterwards.
//!    `first_within` runs behind a fence after each guarded access, so a thread that read zeroes finds the mark and
//!    discards its result.
//! 2. Marks are never taken back, so the thread and the time at which the file's page is restored do not matter, nor
//!    how often a page faults again on other threads.
//! 3. The handler calls only `mmap` and `sigaction` (system calls without locks or allocation), touches only atomics
//!    and a constant-initialised thread-local without destructor, and keeps `errno`.
//! 4. The compiler keeps the guarded access between setting up and taking down the guard: signal fences stand on both
//!    sides, and the guard's address has escaped through the thread-local.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Once, OnceLock};

use crate::error::{Error, Result};

/// Number of failed pages that are marked one by one; when more fail, the whole map counts as failed (it was truncated,
/// or the device is gone).
const SLOTS: usize = 16;

/// The pages of one map that could not be read.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Page number plus one; zero is free. Filled from the front, never emptied.
    slots: [AtomicUsize; SLOTS],
    all: AtomicBool,
}

impl Faults {
    /// Returns the first failed page among `pages`, in order of page number. Call it after the access that it
    /// validates.
    pub(super) fn first_within(&self, pages: &Range<usize>) -> Option<usize> {
        // Between the access and the look at the marks (rule 1): loads of the access may not move behind it.
        fence(Ordering::SeqCst);
        let marked = self
            .slots
            .iter()
            .map_while(|slot| slot.load(Ordering::SeqCst).checked_sub(1))
            .filter(|page| pages.contains(page))
            .min();
        marked.or_else(|| self.all.load(Ordering::SeqCst).then_some(pages.start))
    }

    /// Marks a page; false when no slot is left and the whole map is marked instead. Async-signal-safe.
    fn mark(&self, page: usize) -> bool {
        for slot in &self.slots {
            match slot.compare_exchange(0, page + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) if other == page + 1 => return true,
                Err(_) => {}
            }
        }
        self.all.store(true, Ordering::SeqCst);
        false
    }
}

/// One guarded access, in the stack frame of [`with_guard`].
struct Guard {
    /// Address of the map, and size of a page: copied here because the handler calls nothing to learn them.
    map_start: usize,
    page_bytes: usize,
    /// Guarded pages of the map.
    pages: Range<usize>,
    faults: *const Faults,
    /// Whether the handler has replaced any page.
    was_hit: AtomicBool,
    /// The page from which on the handler has replaced all guarded pages.
    wholesale_from: AtomicUsize,
    /// The guard around this one on the same thread.
    outer: *mut Guard,
}

thread_local! {
    /// Innermost guard of this thread. Constant and without destructor, so that touching it never allocates or runs code.
    static INNERMOST: AtomicPtr<Guard> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// Runs `access` such that a SIGBUS in `pages` of the map at `map_start` marks the page and lets the access go on. Calls
/// `restore` afterwards for each stretch of pages that got stand-ins, also when `access` panics.
pub(super) fn with_guard<R>(
    map_start: usize,
    page_bytes: usize,
    pages: &Range<usize>,
    faults: &Faults,
    restore: impl Fn(Range<usize>),
    access: impl FnOnce() -> R,
) -> R {
    /// Removes the guard when it is dropped, also during a panic.
    struct TakeDown<'a, F: Fn(Range<usize>)> {
        guard: &'a Guard,
        faults: &'a Faults,
        restore: F,
    }
    impl<F: Fn(Range<usize>)> Drop for TakeDown<'_, F> {
        fn drop(&mut self) {
            // The access ends before this (rule 4).
            compiler_fence(Ordering::SeqCst);
            INNERMOST.with(|innermost| innermost.store(self.guard.outer, Ordering::Relaxed));
            compiler_fence(Ordering::SeqCst);
            if self.guard.was_hit.load(Ordering::Relaxed) {
                for slot in &self.faults.slots {
                    match slot.load(Ordering::SeqCst).checked_sub(1) {
                        Some(page) if self.guard.pages.contains(&page) => (self.restore)(page..page + 1),
                        _ => {}
                    }
                }
                let from = self.guard.wholesale_from.load(Ordering::Relaxed);
                if from < self.guard.pages.end {
                    (self.restore)(from..self.guard.pages.end);
                }
            }
        }
    }

    let guard = Guard {
        map_start,
        page_bytes,
        pages: pages.clone(),
        faults,
        was_hit: AtomicBool::new(false),
        wholesale_from: AtomicUsize::new(usize::MAX),
        outer: INNERMOST.with(|innermost| innermost.load(Ordering::Relaxed)),
    };
    let take_down = TakeDown { guard: &guard, faults, restore };
    INNERMOST.with(|innermost| innermost.store(ptr::from_ref(&guard).cast_mut(), Ordering::Relaxed));
    // The access begins after this (rule 4).
    compiler_fence(Ordering::SeqCst);
    let result = access();
    drop(take_down);
    result
}

impl Guard {
    /// Marks the page at `address` and puts a stand-in there; false when the kernel has no memory for it.
    /// Async-signal-safe.
    fn absorb(&self, address: usize) -> bool {
        let page = (address - self.map_start) / self.page_bytes;
        // SAFETY: `with_guard` borrows the marks for as long as this guard is on the thread's list.
        let one = unsafe { (*self.faults).mark(page) };
        // Replaced page by page, a truncated map would reach the limit of mappings per process; so the rest is replaced
        // in one piece.
        let end = if one { page + 1 } else { self.pages.end };
        // SAFETY: the pages are guarded pages of a map that outlives the guard. They are replaced by private zeroes,
        // in place: addresses stay valid, and the faulting access, repeated, completes. Bytes change only where the
        // file's own are no longer available, and the mark set above shows this to every reader.
        let stand_in = unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(self.map_start + page * self.page_bytes),
                (end - page) * self.page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if stand_in == libc::MAP_FAILED {
            return false;
        }
        self.was_hit.store(true, Ordering::Relaxed);
        if !one {
            self.wholesale_from.fetch_min(page, Ordering::Relaxed);
        }
        true
    }

    fn covers(&self, address: usize) -> bool {
        let at = |page: usize| self.map_start + page * self.page_bytes;
        (at(self.pages.start)..at(self.pages.end)).contains(&address)
    }
}

/// The SIGBUS action installed before this one.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once for the process. Another library that installs its own later and does not pass signals on
/// takes the guards out of service.
pub(super) fn install() -> Result<()> {
    static INSTALL: Once = Once::new();
    static ERRNO: OnceLock<i32> = OnceLock::new();
    INSTALL.call_once(|| {
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: plain structures of the C interface, for which all zeroes is a value. The old handler is known before
        // the new one can run. SA_ONSTACK: the thread's signal stack is used where it has one (Rust threads do), which
        // keeps std's report of stack overflows working when we pass on to it.
        let failed = unsafe {
            let asked = libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr());
            let _ = PREVIOUS.set(previous.assume_init());
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            asked != 0 || libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0
        };
        if failed {
            let _ = ERRNO.set(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
    });
    match ERRNO.get() {
        Some(errno) => Err(Error::from_errno("install the SIGBUS handler", *errno)),
        None => Ok(()),
    }
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `info`; `si_addr` is set for the two codes under which it is used. The location of
    // errno is the thread's own.
    let absorbed = unsafe {
        let errno = *libc::__errno_location();
        // A page that could not be read, or one with failed memory: never a signal sent by kill().
        let is_fault = matches!((*info).si_code, libc::BUS_ADRERR | libc::BUS_MCEERR_AR);
        let absorbed = is_fault && absorb_on_this_thread((*info).si_addr() as usize);
        *libc::__errno_location() = errno;
        absorbed
    };
    if !absorbed {
        pass_on(signal, info, context);
    }
}

fn absorb_on_this_thread(address: usize) -> bool {
    let mut guard: *const Guard = INNERMOST.with(|innermost| innermost.load(Ordering::Relaxed));
    // SAFETY: the list holds only guards with a `with_guard` call that is still on this thread's stack: each takes
    // itself off before it returns, and the handler runs on that same thread.
    while let Some(active) = unsafe { guard.as_ref() } {
        if active.covers(address) {
            return active.absorb(address);
        }
        guard = active.outer;
    }
    false
}

/// Passes a foreign signal to the previous handler; the default action ends the process. Async-signal-safe.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: `PREVIOUS` came from sigaction, so a handler in it has the form that its flags tell. `siginfo` is valid as the
    // kernel gave it. Setting the default action and returning repeats the access, which then ends the process; a signal
    // sent by someone has no access to repeat and is raised again, to arrive when this handler has returned.
    unsafe {
        let sent_by_kill = (*info).si_code <= 0;
        match PREVIOUS.get() {
            Some(previous) if previous.sa_sigaction == libc::SIG_IGN && sent_by_kill => {}
            Some(previous) if previous.sa_sigaction != libc::SIG_DFL && previous.sa_sigaction != libc::SIG_IGN => {
                let handler = previous.sa_sigaction;
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                    std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context);
                } else {
                    std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal);
                }
            }
            _ => {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, ptr::null_mut());
                if sent_by_kill {
                    libc::raise(signal);
                }
            }
        }
    }
}
