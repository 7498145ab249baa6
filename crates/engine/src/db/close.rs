//! Closes a database: makes the last checkpoint, so that opening has nothing to replay, and ends its threads.

use super::Db;
use crate::background;
use crate::driver::block_on;
use crate::error::{Error, ErrorKind, Result};

/// Closes a database, as [`Db::close`] documents. Blocks.
pub(super) fn close(db: Db) -> Result<()> {
    if background::is_here() {
        let what = "a database cannot be closed by its own thread, in a waker that it has called: do it elsewhere";
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    // A checkpoint is made before it is known whether this is the last handle: when another is left, the outcome of
    // this save is all that the call can report.
    let saved = db.owner.save().or_else(|_| block_on(db.sync()));
    let Db { core, owner, .. } = db;
    drop(core);
    match owner.into_owner() {
        Some(owner) => saved.and(owner.close()),
        None => {
            let what = "everything is durable, but the database stays open: drop its other handles, tables, snapshots, ranges and transactions";
            saved.and(Err(Error::new(ErrorKind::Busy, what)))
        }
    }
}
