//! Brings leaves of the page table into memory for threads that may block: checkpoints, verification, relocation.
//!
//! A leaf is read past the read queue, into a buffer of the caller, and stays in memory while a [`PinnedLeaf`] lives.
//! Such a thread needs few leaves at a time, so a table of any size is walked in little memory.

use std::sync::Arc;

use nofault_io::disk::Disk;

use super::Versions;
use crate::blocks::read_once;
use crate::blocks::reread::RepeatedReads;
use crate::buffer_pool::page_table::{Entry, LeafPlace, PageChange, Replacement};
use crate::error::{ErrorKind, Result};
use crate::format::{Location, NodeId, PageId, decode_node};

/// Reads leaves of the page table of one pool.
#[derive(Clone)]
pub(crate) struct LeafLoads {
    versions: Arc<Versions>,
    disk: Arc<dyn Disk>,
}

/// A leaf of the page table, which stays in memory until this is dropped.
pub(crate) struct PinnedLeaf {
    versions: Arc<Versions>,
    leaf: u64,
}

impl Drop for PinnedLeaf {
    fn drop(&mut self) {
        self.versions.pages().words().0.unpin(std::iter::once(self.leaf));
        self.versions.trim_leaves();
    }
}

impl LeafLoads {
    pub(crate) fn new(versions: &Arc<Versions>, disk: &Arc<dyn Disk>) -> Self {
        Self { versions: Arc::clone(versions), disk: Arc::clone(disk) }
    }

    /// Brings a leaf into memory and keeps it there; `None` when there is no such leaf. Blocks.
    ///
    /// # Errors
    /// `Corrupt` when the node on disk is damaged, after it was read three times; the message names it. The error of the
    /// disk.
    pub(crate) fn pin(&self, leaf: u64) -> Result<Option<PinnedLeaf>> {
        loop {
            let at = {
                let locked = self.versions.pages().leaf(leaf);
                match locked.place() {
                    LeafPlace::Nowhere => return Ok(None),
                    LeafPlace::InMemory => {
                        locked.pin();
                        return Ok(Some(PinnedLeaf { versions: Arc::clone(&self.versions), leaf }));
                    }
                    LeafPlace::Cold(at) => at,
                }
            };
            let read = self.read(leaf, at);
            let locked = self.versions.pages().leaf(leaf);
            // An error does not count when the leaf has come into memory, or was written elsewhere, since.
            match read {
                Ok(entries) => drop(locked.install(at, entries)),
                Err(error) if locked.place() == LeafPlace::Cold(at) => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Reads the entries of a leaf from its node on disk. Blocks.
    ///
    /// # Errors
    /// As [`LeafLoads::pin`].
    pub(crate) fn read(&self, leaf: u64, at: Location) -> Result<Vec<u64>> {
        let page_bytes = self.versions.frames().page_bytes();
        let node = NodeId { level: 0, index: leaf };
        RepeatedReads::on(&*self.disk).until_whole(|_| {
            let block = read_once(&*self.disk, page_bytes, at.block.0 * page_bytes as u64)?;
            decode_node(self.versions.file_codec().file_id, node, at, &block)
        })
    }

    /// Brings the leaves with the entries of these pages into memory, in order and each once, and keeps them there.
    /// Blocks.
    ///
    /// # Errors
    /// As [`LeafLoads::pin`].
    pub(crate) fn pin_all(&self, pages: impl Iterator<Item = PageId>) -> Result<Vec<PinnedLeaf>> {
        let mut leaves: Vec<u64> = pages.map(|page| self.versions.pages().words().0.leaf_of(page)).collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves.into_iter().filter_map(|leaf| self.pin(leaf).transpose()).collect()
    }

    /// Returns the first leaf from `leaf` on that is in memory or on disk.
    pub(crate) fn next(&self, leaf: u64) -> Option<u64> {
        let in_memory = self.versions.pages().words().0.next_leaf(leaf);
        let on_disk = self.versions.metadata().lock().map.leaves_from(leaf).next().map(|(leaf, _)| leaf);
        in_memory.into_iter().chain(on_disk).min()
    }

    /// Frees the pages that commits have freed while the leaves with their entries were not in memory, and lists free
    /// page ids when few are left. For a checkpoint, before it takes over what commits have changed. Blocks.
    ///
    /// # Errors
    /// The error of the disk: the pages that are left are freed by the next call.
    pub(crate) fn catch_up(&self) -> Result<()> {
        let pages = self.versions.metadata().take_cold_frees();
        for (done, freed) in pages.iter().enumerate() {
            match self.pin_all(std::iter::once(freed.page)) {
                Ok(_pinned) => self.free_late(*freed),
                // Nothing can be learnt of the pages of a damaged leaf any more: they stay in use.
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => {
                    self.versions.metadata().lock().cold_frees.extend_from_slice(&pages[done..]);
                    return Err(error);
                }
            }
        }
        if !pages.is_empty() {
            // Their versions can be dropped now, not only after the next commit.
            self.versions.history().drop_superseded();
        }
        self.list_ids()
    }

    /// Frees a page that a commit has freed while the leaf with its entry was not in memory. It is now.
    fn free_late(&self, freed: PageChange) {
        if let Replacement::Superseded(old) = self.versions.pages().places().replace(freed, Entry::Free, None) {
            self.versions.note_published(freed.seq, &[freed.page], vec![old]);
        }
    }

    fn list_ids(&self) -> Result<()> {
        loop {
            let Some(leaf) = self.versions.metadata().lock().ids.leaf_to_list() else { return Ok(()) };
            match self.pin(leaf) {
                Ok(_pinned) => self.versions.pages().leaf(leaf).list_ids(),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let pages = self.versions.pages().words().0.pages_of(leaf);
                    self.versions.metadata().lock().ids.avoid(pages);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl PinnedLeaf {
    /// Returns the pages of the leaf that exist.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> + '_ {
        let words = self.versions.pages().words().0;
        words.pages_of(self.leaf).filter(|page| self.versions.pages().entry(*page) != Entry::Free)
    }
}
