//! Starts the database's own threads, and tells code whether it runs on one of them.
//!
//! These threads call wakers, which are foreign code. A waker that holds the last reference to its task drops everything
//! the task owns, perhaps the last handle of the database; and closing a database waits for its threads. A background
//! thread must therefore not do that waiting itself (`db::open`).

use std::cell::Cell;
use std::thread::{Builder, JoinHandle};

use crate::error::{Error, ErrorKind, Result};

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Starts a background thread of a database. The thread must end before the database is closed.
///
/// # Errors
/// `NoSpace` when the system has no threads left.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let marked = move || {
        IS_BACKGROUND.set(true);
        work();
    };
    let failed = |error| Error::new(ErrorKind::NoSpace, format!("start a background thread: {error}"));
    Builder::new().name(name.into()).spawn(marked).map_err(failed)
}

/// Returns whether the current thread is a background thread of any database.
pub(crate) fn is_here() -> bool {
    IS_BACKGROUND.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_background_threads_are_reported_as_background_threads() {
        let (tell, told) = std::sync::mpsc::channel();
        start("nofault-test", move || tell.send(is_here()).unwrap()).unwrap().join().unwrap();
        assert!(told.recv().unwrap() && !is_here());
    }
}
