//! Tells a process from its forked children, at the price of one load of memory.
//!
//! A forked child has the objects of its parent, but not its threads, not its rings, and no buffers that a device may be
//! writing to. So each object that relies on one of them remembers the process that made it.
//!
//! Kept true by: the number lies in a page that the kernel empties in a forked child (`MADV_WIPEONFORK`), whichever system
//! call forks; where the kernel does not, the C library does at its `fork`. A child that makes objects itself takes the next
//! number, which none of its ancestors has had.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A process, distinct from the process it was forked from and from its forked children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u32);

/// The number of this process where the kernel empties no page.
static IN_ORDINARY_MEMORY: AtomicU32 = AtomicU32::new(0);

impl Process {
    /// Returns the calling process. The first call makes a mapping of one page.
    pub fn current() -> Self {
        /// The number of the last process in this line of ancestors: a child begins with its parent's.
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = number();
        loop {
            match number.load(Ordering::Relaxed) {
                0 => {}
                here => return Self(here),
            }
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // Another thread may be faster: then its number counts.
            let _ = number.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns whether this is the calling process. Costs a load or two, without a system call.
    #[inline]
    pub fn is_here(self) -> bool {
        number().load(Ordering::Relaxed) == self.0
    }

    /// Returns a process that has never been, for tests of objects in a forked child.
    #[cfg(test)]
    pub(crate) fn another() -> Self {
        Self(u32::MAX)
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::current()
    }
}

/// Returns the place of this process's number: zero in a forked child.
#[inline]
fn number() -> &'static AtomicU32 {
    static NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: null, or the address of a number that lives as long as the program.
    if let Some(number) = unsafe { NUMBER.load(Ordering::Acquire).as_ref() } {
        return number;
    }
    let made = emptied_page().unwrap_or_else(emptied_by_the_library);
    // No lock, which a forked child might find locked. Another thread may be faster: then its number counts.
    let address = std::ptr::from_ref(made).cast_mut();
    match NUMBER.compare_exchange(std::ptr::null_mut(), address, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // SAFETY: as above.
        Err(faster) => unsafe { &*faster },
    }
}

/// A value that each process has once, made when it is first used. A forked child begins with a new value: its parent's may have
/// locks held by threads that the child does not have.
///
/// Kept true by: no value is ever dropped, so a reference to one lives as long as the program. A line of ancestors has one
/// value for each fork.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    /// The value made last, by this process or an ancestor; null before the first.
    newest: AtomicPtr<ValueOfProcess<T>>,
}

#[derive(Debug)]
struct ValueOfProcess<T> {
    process: Process,
    value: T,
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// Creates the place of the values, without any.
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> Self {
        Self { newest: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the value of the calling process. Takes no lock.
    pub fn get(&'static self) -> &'static T {
        loop {
            let newest = self.newest.load(Ordering::Acquire);
            // SAFETY: null, or from a box that was given up below.
            if let Some(of_process) = unsafe { newest.as_ref() }
                && of_process.process.is_here()
            {
                return &of_process.value;
            }
            let made = Box::into_raw(Box::new(ValueOfProcess { process: Process::current(), value: T::default() }));
            if self.newest.compare_exchange(newest, made, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: no other thread has seen this address. Another one has been faster, and its value counts.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

/// Maps the page that the kernel empties in a forked child; `None` where it does not.
fn emptied_page() -> Option<&'static AtomicU32> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    if cfg!(miri) {
        return None;
    }
    let len_bytes = rustix::param::page_size();
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists. The advice changes nothing
    // in this process.
    unsafe {
        let page =
            mmap_anonymous(std::ptr::null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                .ok()?;
        if madvise(page, len_bytes, Advice::LinuxWipeOnFork).is_err() {
            let _ = munmap(page, len_bytes);
            return None;
        }
        // SAFETY: mapped, aligned, of zeroes, and never unmapped.
        Some(&*page.cast::<AtomicU32>())
    }
}

/// Has the C library empty a number in ordinary memory at each fork. A program that forks by the bare system call is not
/// noticed then.
fn emptied_by_the_library() -> &'static AtomicU32 {
    extern "C" fn in_the_child() {
        IN_ORDINARY_MEMORY.store(0, Ordering::Relaxed);
    }
    if !cfg!(miri) {
        // SAFETY: the function may be called in a forked child at any point: it stores a number.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    }
    &IN_ORDINARY_MEMORY
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Returns whether `holds` holds in a forked child.
    pub(crate) fn in_a_child(holds: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls nothing but `holds`, which takes no lock but the allocator's, and `_exit`. The C library allows
        // to allocate after a fork.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: ends this process without running anything of it.
            unsafe { libc::_exit(i32::from(!holds())) };
        }
        let mut status = -1;
        // SAFETY: `status` outlives the call, and `child` is a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn a_forked_child_is_another_process_and_so_is_its_own_child() {
        let parent = Process::current();
        assert!(parent.is_here() && parent == Process::current());
        assert!(in_a_child(|| {
            let before = parent.is_here();
            let child = Process::current();
            let grandchild = || !parent.is_here() && !child.is_here() && Process::current().is_here();
            !before && child.is_here() && !parent.is_here() && in_a_child(grandchild)
        }));
        assert!(parent.is_here(), "the parent is the same as before");
    }

    #[test]
    fn a_forked_child_has_a_value_of_its_own_though_a_thread_of_its_parent_holds_the_lock_of_the_parents() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut held = VALUE.get().lock().unwrap();
        *held = 7;
        assert!(in_a_child(|| {
            let is_new = VALUE.get().try_lock().is_ok_and(|mut value| std::mem::replace(&mut *value, 8) == 0);
            is_new && VALUE.get().try_lock().is_ok_and(|value| *value == 8)
        }));
        drop(held);
        assert_eq!(*VALUE.get().lock().unwrap(), 7);
    }

    #[test]
    fn without_such_a_page_the_library_tells_the_child() {
        let number = emptied_by_the_library();
        number.store(7, Ordering::Relaxed);
        assert!(in_a_child(|| number.load(Ordering::Relaxed) == 0));
        assert_eq!(number.load(Ordering::Relaxed), 7);
    }
}
