//! Keeps the list of the databases that this process has open, so that opening a database that is being closed waits
//! until it is closed, and creating one where an unfinished one is being removed waits until it is gone.
//!
//! A database is closed when its last handle has gone and the large commits that outlive their callers have ended.
//! Between these two moments no handle is left through which the database could be closed: an opening would be refused
//! for a reason that the caller cannot see, and waits instead.
//!
//! Kept true by: an opening waits only while nothing but such commits, or the closing itself, keeps the database; each
//! of them ends, and notifies `changed` when it has. A forked child begins with an empty list: nothing of its parent's ends there.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use nofault_io::process::PerProcess;

use crate::db::calls::commit::Keep;
use crate::error::{ErrorKind, Result};
use crate::sync::background;

/// What is open or being removed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Id {
    /// A data file: its device and inode.
    File(u64, u64),
    /// A name for a database's folder in the folder with this device and inode. The name may stand for another folder by now.
    Name(u64, u64, OsString),
}

static OPEN: PerProcess<Openings> = PerProcess::new();

#[derive(Default)]
struct Openings {
    of_files: Mutex<BTreeMap<Id, State>>,
    /// Notified when the list changes in a way that may end a wait.
    changed: Condvar,
}

impl Openings {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, State>> {
        self.of_files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct State {
    /// Distinguishes this opening from a later one of the same file.
    number: u64,
    /// The owner of the database; `None` while it is being opened, and where it will never be closed.
    owner: Option<Weak<dyn Any + Send + Sync>>,
    /// Number of guards that keep the database open without being handles.
    outliving: usize,
}

impl State {
    /// Returns whether no handle is left. No handle can be made from then on.
    fn is_closing(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.strong_count() <= self.outliving)
    }
}

/// An open database of this process. Dropped when it is closed, after its locks.
pub(in crate::db) struct Opening {
    id: Option<Id>,
    number: u64,
}

impl Opening {
    /// Notes that the file is being opened. `None` stands for a database without a file, for which nothing is noted.
    pub(in crate::db) fn register(file: Option<(u64, u64)>) -> Self {
        Self::of(file.map(|(device, inode)| Id::File(device, inode)))
    }

    fn of(id: Option<Id>) -> Self {
        static NEWEST: AtomicU64 = AtomicU64::new(0);
        let number = NEWEST.fetch_add(1, Ordering::Relaxed);
        if let Some(id) = id.clone() {
            OPEN.get().lock().insert(id, State { number, owner: None, outliving: 0 });
        }
        Self { id, number }
    }

    /// Notes that the database in a folder is being closed and removed, until this is dropped.
    pub(in crate::db) fn removal(folder: &Path) -> Self {
        let opening = Self::of(name_of(folder));
        // No handle is left.
        opening.belongs_to(Weak::<()>::new());
        opening
    }

    /// Registers the owner of the database, which is dropped with the last handle.
    pub(in crate::db) fn belongs_to(&self, owner: Weak<dyn Any + Send + Sync>) {
        change(self.id.as_ref(), self.number, |state| state.owner = Some(owner));
    }

    /// Returns a function that makes guards: each keeps the database open without being a handle.
    pub(in crate::db) fn outliving(&self, owner: Weak<dyn Any + Send + Sync>) -> Keep {
        let (id, number) = (self.id.clone(), self.number);
        Box::new(move || {
            let owner = owner.upgrade()?;
            change(id.as_ref(), number, |state| state.outliving += 1);
            Some(Box::new(Outliving { id: id.clone(), number, owner: Some(owner) }))
        })
    }

    /// Returns a function to be called when the database can never be closed, so that later openings of the same
    /// database do not wait for it.
    pub(in crate::db) fn stays_open(&self) -> impl FnOnce() + use<> {
        let (id, number) = (self.id.clone(), self.number);
        move || change(id.as_ref(), number, |state| state.owner = None)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let Some(id) = &self.id else { return };
        let open = OPEN.get();
        let mut of_files = open.lock();
        if of_files.get(id).is_some_and(|state| state.number == self.number) {
            of_files.remove(id);
        }
        open.changed.notify_all();
    }
}

/// Keeps a database open that may have no handle left.
struct Outliving {
    id: Option<Id>,
    number: u64,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Drop for Outliving {
    fn drop(&mut self) {
        // Dropping the owner may close the database. It comes before the decrement: the other way round an opening
        // would conclude in between that a handle is left.
        drop(self.owner.take());
        change(self.id.as_ref(), self.number, |state| state.outliving -= 1);
    }
}

fn change(id: Option<&Id>, number: u64, change: impl FnOnce(&mut State)) {
    let Some(id) = id else { return };
    let open = OPEN.get();
    if let Some(state) = open.lock().get_mut(id).filter(|state| state.number == number) {
        change(state);
    }
    open.changed.notify_all();
}

/// Opens a database with `open`, and tries again whenever that was refused because this process was about to close the
/// database. Blocks until it is closed, except on a thread of a database, for which the closing may have to wait.
///
/// # Errors
/// The error of `open`.
pub(in crate::db) fn once_closed<T>(data: &Path, open: impl Fn() -> Result<T>) -> Result<T> {
    let mut was_open = true;
    loop {
        let refused = match open() {
            Err(error) if error.kind() == ErrorKind::Busy && !background::is_here() => error,
            result => return result,
        };
        let Ok(file) = std::fs::symlink_metadata(data) else { return Err(refused) };
        match wait_closed(&Id::File(file.dev(), file.ino())) {
            Some(closed) if closed => was_open = true,
            // The database may have been closed between `open` and `wait_closed`.
            None if was_open => was_open = false,
            _ => return Err(refused),
        }
    }
}

/// Waits until this process has removed the database in a folder, if it is about to. Does not wait on a thread of a database, for which
/// the removal may have to wait.
pub(in crate::db) fn once_removed(folder: &Path) {
    if !background::is_here()
        && let Some(name) = name_of(folder)
    {
        wait_closed(&name);
    }
}

/// Returns the name of a folder; `None` for one that exists in any case, such as `..`.
fn name_of(folder: &Path) -> Option<Id> {
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = std::fs::metadata(parent).ok()?;
    Some(Id::Name(above.dev(), above.ino(), folder.file_name()?.to_owned()))
}

/// Waits until this process has closed the database of this file, if it is about to. Returns true after the closing,
/// false when a handle is left, and `None` when this process does not have the file open.
fn wait_closed(id: &Id) -> Option<bool> {
    let open = OPEN.get();
    let mut of_files = open.lock();
    let number = of_files.get(id)?.number;
    loop {
        match of_files.get(id) {
            Some(state) if state.number == number && state.is_closing() => {}
            Some(state) if state.number == number => return Some(false),
            _ => return Some(true),
        }
        of_files = open.changed.wait(of_files).unwrap_or_else(PoisonError::into_inner);
    }
}
