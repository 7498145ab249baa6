//! The database's own threads: started in one way, and known for what they are to whatever runs on them.
//!
//! They call wakers, which are somebody else's code. One that is the last to hold its task drops all that the task holds, perhaps the
//! last handle of the database; and closing a database waits for its threads. So none of them may be the one that waits (`db::open`).

use std::cell::Cell;
use std::thread::{Builder, JoinHandle};

use crate::error::{Error, ErrorKind, Result};

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread that ends before its database is closed.
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

/// Whether this thread is such a one, of whichever database.
pub(crate) fn is_here() -> bool {
    IS_BACKGROUND.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_background_thread_knows_what_it_is_and_others_do_not() {
        let (tell, told) = std::sync::mpsc::channel();
        start("nofault-test", move || tell.send(is_here()).unwrap()).unwrap().join().unwrap();
        assert!(told.recv().unwrap() && !is_here());
    }
}
