//! Finds the pages that a commit will touch, and loads the missing ones, before the commit enters its section.
//!
//! Other commits may publish at the same time, so that some of the pages found are new and some old; apparent damage is then
//! checked again while nothing is published.

use std::sync::Arc;

use super::loader::Loader;
use super::overflow;
use super::pins::PinBudget;
use super::tables::{NEWEST, Tables};
use crate::error::{Error, Result};
use crate::pages::{BlockReservation, CommitLog, Store, Wait};
use crate::transaction::{CommitContext, Commits, Op};

/// Attempts to list the pages of long values before a commit occupies the commit section.
const LIST_ATTEMPTS_MAX: usize = 8;

/// Whether other commits may run while a commit looks for its pages.
pub(in crate::db) enum Others<'a> {
    /// Other commits may publish at any moment. A commit waiting for them gives up its reservation of blocks.
    MayCommit(&'a mut Option<BlockReservation>),
    /// Other commits wait: this commit occupies the commit section.
    Wait,
}

/// The outcome of loading the pages that a commit needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum PrefetchOutcome {
    /// All pages were in memory.
    WasThere,
    /// Some pages were missing; they have been loaded, though some may have been evicted again.
    Loaded,
    /// A long value cannot be listed. While other commits run, it is not known whether it is damaged or was replaced.
    Unclear,
    /// The pages are more than can be pinned at once, and other operations keep evicting them.
    TooMany,
}

/// Finds and loads the pages that commits will touch.
pub(in crate::db) struct CommitPages<S: Store, L: CommitLog> {
    pub(in crate::db) loader: Arc<Loader<S>>,
    pub(in crate::db) tables: Arc<Tables>,
    pub(in crate::db) commits: Arc<Commits<S, L>>,
}

impl<S: Store, L: CommitLog> CommitPages<S, L> {
    /// Loads the leaves that `ops` will touch, as far as the window of pins goes, and lists the pages of long values that
    /// will be replaced.
    pub(in crate::db) async fn prefetch(
        &self,
        ops: &[Op],
        context: &mut CommitContext,
        pins: &mut PinBudget<S::Ticket>,
        mut others: Others<'_>,
    ) -> Result<PrefetchOutcome> {
        let mut waits = Vec::new();
        let mut outcome = PrefetchOutcome::WasThere;
        // How often a value could not be listed, and the newest commit when that happened last.
        let (mut failures, mut failed_at) = (0, None);
        let most = self.loader.window();
        loop {
            waits.clear();
            let mut long = self.commits.gather(ops, context, most, &mut waits);
            if let (true, Others::MayCommit(reservation)) = (long.is_err(), &mut others) {
                // Another commit may have been publishing, so that some of the pages were new and some old.
                waits.clear();
                let Some(again) = self.commits.gather_undisturbed(ops, context, most, &mut waits) else {
                    // The commit with the turn may need the permits.
                    pins.release();
                    **reservation = None;
                    drop(self.commits.turn().acquire(1).await);
                    continue;
                };
                long = again;
            }
            let long = long.map_err(|error| self.explain(ops, error))?;
            if long.is_none() && waits.is_empty() {
                return Ok(outcome);
            }
            outcome = PrefetchOutcome::Loaded;
            if let Some(value) = long {
                let listed = overflow::list(&self.loader, || self.commits.last().seq, value, pins).await;
                let is_quiet = || failed_at.is_some_and(|seq| self.commits.is_quiet_since(seq));
                match listed {
                    Ok(listed) => drop(context.replaced.insert(value.root, listed)),
                    Err(error) if matches!(others, Others::Wait) || is_quiet() => return Err(error),
                    // Another commit may have replaced the value since it was found: its pages may then hold anything.
                    Err(_) if failures + 1 < LIST_ATTEMPTS_MAX => {
                        (failures, failed_at) = (failures + 1, Some(self.commits.last().seq));
                    }
                    Err(_) => return Ok(PrefetchOutcome::Unclear),
                }
            } else {
                self.loader.load(pins, &waits).await?;
                if pins.is_exceeded() {
                    return Ok(PrefetchOutcome::TooMany);
                }
            }
        }
    }

    /// Loads a page that a change needs beyond the pages that the search found. An unreadable page is noted first and an
    /// error only the second time: it may be a neighbouring node, which the change does not need.
    pub(in crate::db) async fn load_encountered(
        &self,
        wait: Wait,
        context: &mut CommitContext,
        pins: &mut PinBudget<S::Ticket>,
    ) -> Result<()> {
        let loaded = self.loader.load(pins, &[wait]).await;
        let failed = loaded.as_ref().err().and_then(Error::page);
        match failed.filter(|page| !context.unreadable.contains(page)) {
            Some(page) => context.unreadable.push(page),
            None => return loaded,
        }
        Ok(())
    }

    /// Returns the error that the caller gets for `error`: damage in a table of `ops` that was dropped is no damage.
    pub(in crate::db) fn explain(&self, ops: &[Op], error: Error) -> Error {
        ops.iter().fold(error, |error, op| self.tables.explain(op.target().0, NEWEST, error))
    }
}
