//! Page versions that are committed, or about to be, and not in the map yet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::{CommitSeq, PageId};

/// The commit number of a view that sees every version, including versions of commits that are not durable yet.
pub(super) const NEWEST: CommitSeq = CommitSeq(u64::MAX);

type All = HashMap<PageId, Vec<(CommitSeq, Arc<[u8]>)>>;

/// Versions of pages that are not in the data file yet: see the module.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The versions of each page, oldest first.
    all: RwLock<All>,
    /// Number of pages in `all`: at zero, readers need not take the lock.
    pages: AtomicUsize,
}

impl Versions {
    /// Returns the newest version of a page that is not younger than commit `at`.
    pub(super) fn find(&self, id: PageId, at: CommitSeq) -> Option<Arc<[u8]>> {
        // Empty means that the map has everything up to now; versions added afterwards are younger than any `at` of
        // now.
        if self.pages() == 0 {
            return None;
        }
        let all = self.read();
        all.get(&id)?.iter().rev().find(|(commit, _)| *commit <= at).map(|(_, page)| Arc::clone(page))
    }

    /// Returns the number of pages with a version here.
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Ordering::SeqCst)
    }

    /// Adds the pages of a commit younger than all others here.
    pub(super) fn add(&self, commit: CommitSeq, pages: Vec<(PageId, Arc<[u8]>)>) {
        let mut all = self.write();
        for (id, page) in pages {
            all.entry(id).or_default().push((commit, page));
        }
        self.pages.store(all.len(), Ordering::SeqCst);
    }

    /// Removes the pages of the youngest commit, which failed before any reader saw them.
    pub(super) fn take_back(&self, commit: CommitSeq, pages: &[PageId]) {
        let mut all = self.write();
        for id in pages {
            if let Some(versions) = all.get_mut(id) {
                versions.retain(|(at, _)| *at != commit);
                if versions.is_empty() {
                    all.remove(id);
                }
            }
        }
        self.pages.store(all.len(), Ordering::SeqCst);
    }

    /// Returns, in page order, the newest version up to `commit` of each page that has one.
    pub(super) fn up_to(&self, commit: CommitSeq) -> Vec<(PageId, CommitSeq, Arc<[u8]>)> {
        let mut found: Vec<_> = {
            let all = self.read();
            let newest = |versions: &Vec<(CommitSeq, Arc<[u8]>)>| {
                versions.iter().rev().find(|version| version.0 <= commit).map(|(at, page)| (*at, Arc::clone(page)))
            };
            all.iter().filter_map(|(id, versions)| newest(versions).map(|(at, page)| (*id, at, page))).collect()
        };
        found.sort_unstable_by_key(|(id, ..)| *id);
        found
    }

    /// Removes the versions applied to the file, and all older versions of the same pages.
    pub(super) fn applied(&self, pages: &[(PageId, CommitSeq, Arc<[u8]>)]) {
        let mut all = self.write();
        for (id, commit, _) in pages {
            if let Some(versions) = all.get_mut(id) {
                versions.retain(|(at, _)| at > commit);
                if versions.is_empty() {
                    all.remove(id);
                }
            }
        }
        self.pages.store(all.len(), Ordering::SeqCst);
    }

    fn read(&self) -> RwLockReadGuard<'_, All> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, All> {
        self.all.write().unwrap_or_else(PoisonError::into_inner)
    }
}
