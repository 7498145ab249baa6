//! The parts of a database over any store and any log, put together. Each part owns its data and locks; a call names
//! the part that it needs.

use std::sync::Arc;

use super::catalog::Catalog;
use super::commit::Committer;
use super::commit_pages::CommitPages;
use super::expiry::Expiries;
use super::loader::Loader;
use super::reader::Reader;
use super::reservations::BlockReservations;
use super::structure::StructureCommits;
use super::tables::{TableCounts, Tables};
use super::wait::LogWaits;
use crate::pages::{CommitLog, Store};
use crate::transaction::Commits;

/// The shared parts of an open database.
pub(crate) struct Core<S: Store, L: CommitLog> {
    pub(in crate::db) store: Arc<S>,
    pub(in crate::db) log: Arc<L>,
    /// The history: the commit section, and the order of commits.
    pub(in crate::db) commits: Arc<Commits<S, L>>,
    pub(in crate::db) tables: Arc<Tables>,
    pub(in crate::db) reader: Reader<S>,
    pub(in crate::db) catalog: Catalog<S>,
    pub(in crate::db) waits: Arc<LogWaits<S, L>>,
    pub(in crate::db) reservations: Arc<BlockReservations<S, L>>,
    pub(in crate::db) committer: Arc<Committer<S, L>>,
    pub(in crate::db) expiries: Expiries<S, L>,
    /// Commits that change where entries are, and no entry.
    pub(in crate::db) structure: Arc<StructureCommits<S, L>>,
    /// The changed keys of each table.
    pub(in crate::db) changes: Arc<TableCounts>,
    /// Memory that a transaction may take for its read set, in bytes.
    pub(in crate::db) read_set_bytes_max: usize,
}

impl<S: Store, L: CommitLog> Core<S, L> {
    /// Creates the core from its parts. The catalog must exist in the store.
    pub(crate) fn new(store: Arc<S>, log: Arc<L>, commits: Arc<Commits<S, L>>, read_set_bytes_max: usize) -> Self {
        let (loader, tables) = (Arc::new(Loader::new(store.clone())), Arc::new(Tables::default()));
        let reader = Reader { loader: loader.clone(), tables: tables.clone(), scanned: Arc::default() };
        let catalog = Catalog::new(loader.clone(), tables.clone());
        let waits = Arc::new(LogWaits::new(log.clone(), commits.clone()));
        let reservations = BlockReservations::new(store.clone(), commits.clone());
        let pages = CommitPages { loader, tables: tables.clone(), commits: commits.clone() };
        let changes = Arc::new(TableCounts::default());
        let committer = Committer::new(pages, log.clone(), waits.clone(), reservations.clone(), Arc::clone(&changes));
        let structure =
            StructureCommits::new(reader.loader.clone(), commits.clone(), waits.clone(), reservations.clone());
        let expiries = Expiries::new(Catalog::new(reader.loader.clone(), tables.clone()), committer.clone());
        Self {
            store,
            log,
            commits,
            tables,
            reader,
            catalog,
            waits,
            reservations,
            committer,
            expiries,
            structure,
            changes,
            read_set_bytes_max,
        }
    }
}
