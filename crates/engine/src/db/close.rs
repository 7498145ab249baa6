//! Closing a database: the last checkpoint, so that opening has nothing to replay, and then the end of its threads.

use std::sync::Arc;

use super::Db;
use super::open::Threads;
use crate::background;
use crate::checkpoint::Checkpointer;
use crate::driver::block_on;
use crate::error::{Error, ErrorKind, Result};

/// See [`Db::close`]. Blocks.
pub(super) fn close(db: Db) -> Result<()> {
    if background::is_here() {
        let what = "a database cannot be closed by its own thread, in a waker that it has called: do it elsewhere";
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    // Saved before the last handle is known: when another is left, the outcome of this save is all that the call
    // can report.
    let saved = db.owner.save().or_else(|_| block_on(db.sync()));
    let Db { core, owner } = db;
    drop(core);
    match Arc::into_inner(owner) {
        Some(owner) => saved.and(owner.close()),
        None => {
            let what = "everything is durable, but the database stays open: drop its other handles, tables, snapshots, ranges and transactions";
            saved.and(Err(Error::new(ErrorKind::Busy, what)))
        }
    }
}

/// Ends the threads of a database, in this order: first the thread that frees pages, which needs room in the log, which
/// checkpoints make; then the checkpoint thread, so that the last checkpoint is the only one; last the log, which keeps
/// the commits that the checkpoint could not take over.
///
/// # Errors
/// The error of the checkpoint. The threads end all the same.
pub(super) fn end_threads(threads: Threads, checkpointer: &Checkpointer) -> Result<()> {
    let Threads { freer, checkpoints, log, pool } = threads;
    drop(freer);
    drop(checkpoints);
    let outcome = checkpointer.checkpoint_before_closing();
    drop(log);
    // Now that no thread writes to the log.
    checkpointer.shrink_log();
    drop(pool);
    outcome
}
