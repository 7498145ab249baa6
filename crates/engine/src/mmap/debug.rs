//! `Debug` for the handles of a mapped store: their names, and no page of the store.

use std::fmt::{Debug, Formatter, Result};

use super::{LeafScan, Range, Snapshot, Store};

impl Debug for Store {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Debug for Snapshot<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.debug_struct("Snapshot").field("commit", &self.commit).finish_non_exhaustive()
    }
}

impl Debug for Range<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.debug_struct("Range").finish_non_exhaustive()
    }
}

impl Debug for LeafScan<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.debug_struct("LeafScan").finish_non_exhaustive()
    }
}
