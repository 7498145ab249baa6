//! Commits that change the shape of a tree and nothing that a reader sees: freeing the pages of a dropped table, and
//! merging leaves.
//!
//! Their records are empty, and they take a commit number each. A power cut takes back those that no checkpoint has
//! seen, each of them whole.

use std::sync::Arc;

use super::loader::Loader;
use super::pins::PinBudget;
use super::reservations::BlockReservations;
use super::wait::LogWaits;
use crate::error::{Error, ErrorKind, Result};
use crate::format::CommitSeq;
use crate::pages::{Attempt, CommitLog, Durability, ReservationKind, Store, Wait};
use crate::transaction::Commits;

/// Most pages of the catalog that one note there changes.
pub(in crate::db) const CATALOG_PAGES: usize = 8;

/// Makes commits that no record describes.
pub(in crate::db) struct StructureCommits<S: Store, L: CommitLog> {
    loader: Arc<Loader<S>>,
    commits: Arc<Commits<S, L>>,
    waits: Arc<LogWaits<S, L>>,
    reservations: Arc<BlockReservations<S, L>>,
}

impl<S: Store, L: CommitLog> StructureCommits<S, L> {
    pub(in crate::db) fn new(
        loader: Arc<Loader<S>>,
        commits: Arc<Commits<S, L>>,
        waits: Arc<LogWaits<S, L>>,
        reservations: Arc<BlockReservations<S, L>>,
    ) -> Arc<Self> {
        Arc::new(Self { loader, commits, waits, reservations })
    }

    /// Returns the newest commit.
    pub(in crate::db) fn newest(&self) -> CommitSeq {
        self.commits.last().seq
    }

    /// Executes `change` on private copies and publishes them as one commit, which changes at most `pages` pages. Attempts
    /// that miss a page are repeated: the change needs few pages at once. Returns when the commit is visible.
    ///
    /// # Errors
    /// `NoSpace`; the errors of reading and of the log.
    pub(in crate::db) async fn commit<R>(
        &self,
        pages: usize,
        change: impl FnMut(&mut S::Copies<'_>) -> Attempt<R>,
    ) -> Result<R> {
        let committed = self.commit_or_give_up(pages, change, |_| false).await?;
        committed.ok_or_else(|| Error::new(ErrorKind::Bug, "a commit was given up that could not be"))
    }

    /// Executes and publishes a change as [`StructureCommits::commit`] does; `None`, with nothing changed, when the change needs
    /// more pages at once than one operation can pin, and the pool evicts the others again. It must be made in smaller parts.
    ///
    /// # Errors
    /// As [`StructureCommits::commit`].
    pub(in crate::db) async fn commit_if_small<R>(
        &self,
        pages: usize,
        change: impl FnMut(&mut S::Copies<'_>) -> Attempt<R>,
    ) -> Result<Option<R>> {
        self.commit_or_give_up(pages, change, PinBudget::is_exceeded).await
    }

    async fn commit_or_give_up<R>(
        &self,
        pages: usize,
        mut change: impl FnMut(&mut S::Copies<'_>) -> Attempt<R>,
        gives_up: impl Fn(&PinBudget<S::Ticket>) -> bool,
    ) -> Result<Option<R>> {
        let mut pins = PinBudget::default();
        // Blocks of the data file. While it waits for others it reserves none, or it would take them from the commit
        // that is first.
        let mut reservation = None;
        loop {
            let turn = match self.commits.turn().try_acquire(1) {
                Some(turn) => turn,
                None => {
                    // The commit with the turn may need the permits.
                    pins.release();
                    reservation = None;
                    self.commits.turn().acquire(1).await
                }
            };
            reservation = reservation.take().or_else(|| self.reservations.try_reserve(pages, ReservationKind::Reserve));
            if reservation.is_none() {
                pins.release();
                reservation = Some(self.reservations.reserve(pages, ReservationKind::Reserve).await?);
            }
            let mut section = self.commits.occupy(turn)?;
            match section.edit_and_append(&mut change) {
                Ok((position, result)) => {
                    section.take_effect_unseen(Durability::Deferred, position);
                    drop(section);
                    // Visible from then on, so the next step sees the tree that this one left.
                    self.waits.durable(position).await?;
                    return Ok(Some(result));
                }
                Err(Wait::LogFull { len_bytes }) => {
                    drop(section);
                    reservation = None;
                    self.waits.await_space(len_bytes).await?;
                }
                Err(wait) => {
                    drop(section);
                    self.loader.load(&mut pins, &[wait]).await?;
                    if gives_up(&pins) {
                        return Ok(None);
                    }
                }
            }
        }
    }
}
