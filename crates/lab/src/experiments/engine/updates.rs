//! Makes random updates of a store, and stops when the user stops the run.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::entries::Data;
use crate::error::{LabError, Result};
use crate::stores::Store;

/// Returns an error when the user has stopped the run.
pub(super) fn go_on(cancel: &AtomicBool) -> Result<()> {
    if cancel.load(Ordering::Relaxed) { Err(LabError::interrupted()) } else { Ok(()) }
}

/// Rewrites `count` random entries in batches whose commits are not synced.
pub(super) fn rewrite(store: &dyn Store, data: Data, count: u64, seed: u64, cancel: &AtomicBool) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed ^ 1);
    let mut left = count;
    while left > 0 {
        go_on(cancel)?;
        let batch: Vec<_> = (0..left.min(1000)).map(|_| data.changed(chance.u64(0..data.count), left)).collect();
        left -= batch.len() as u64;
        store.write(&batch, false)?;
    }
    Ok(())
}
