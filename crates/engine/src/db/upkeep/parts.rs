//! The parts of upkeep, together.

use std::sync::Arc;

use super::deferred_free::DroppedTables;
use super::dictionaries::DictionaryTrainer;
use super::expiry_removal::ExpiryRemover;
use super::order::TableOrder;
use super::repack::Repacker;
use super::shrink::Shrinker;
use super::sparse_leaves::SparseLeaves;
use crate::buffer_pool::BufferPool;
use crate::wal::Log;

/// The work by which the data file of a database stays short and in order.
pub(in crate::db) struct Upkeep {
    /// Frees the pages of dropped tables.
    pub(in crate::db) dropped: Arc<DroppedTables<BufferPool, Log>>,
    /// Removes entries that have expired.
    pub(in crate::db) expiry: Arc<ExpiryRemover>,
    /// Merges sparse leaves.
    pub(in crate::db) leaves: Arc<SparseLeaves<BufferPool, Log>>,
    /// Puts tables in order.
    pub(in crate::db) order: Arc<TableOrder>,
    /// Trains the dictionaries of compressed tables.
    pub(in crate::db) trainer: Arc<DictionaryTrainer>,
    /// Packs compressed pages anew.
    pub(in crate::db) repacker: Arc<Repacker>,
    /// Makes the file shorter.
    pub(in crate::db) shrinker: Arc<Shrinker>,
}
