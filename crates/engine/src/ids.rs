//! The id types: each kind of number has its own type, so that a page id cannot be used as a block id.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A page for as long as it exists, wherever its bytes are: the index into the page table. Ids are dense, and
    /// below 2^48 ([`PageId::LIMIT`]).
    ///
    /// ```
    /// use nofault::PageId;
    ///
    /// assert!(PageId(4711) < PageId(PageId::LIMIT) && PageId::CATALOG_ROOT == PageId(0));
    /// assert_eq!(PageId(4711).to_string(), "4711");
    /// ```
    PageId
}

id! {
    /// A place in the data file: its position in bytes divided by the page size.
    ///
    /// ```
    /// let block = nofault::BlockId(131_072 / 4096);
    /// assert_eq!(block.to_string(), "32");
    /// ```
    BlockId
}

id! {
    /// The number of a commit. Commits are numbered from 1 in the order in which they take effect; 0 is the empty database.
    ///
    /// ```
    /// use nofault::CommitSeq;
    ///
    /// assert!(CommitSeq(7).next() == CommitSeq(8) && CommitSeq(7) < CommitSeq(8));
    /// ```
    CommitSeq
}

id! {
    /// A table for as long as it exists. 0 is the catalog.
    ///
    /// ```
    /// assert_eq!(nofault::TableId::CATALOG, nofault::TableId(0));
    /// ```
    TableId
}

impl PageId {
    /// The root of the catalog: the first page allocated in a new database, and never freed.
    pub const CATALOG_ROOT: Self = Self(0);
    /// Every id is below this: nodes keep ids in six bytes.
    pub const LIMIT: u64 = 1 << 48;
}

impl TableId {
    /// The id of the catalog, the table of tables.
    pub const CATALOG: Self = Self(0);
}

impl CommitSeq {
    /// Returns the number of the next commit.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Page numbers in the order they were added, stored as ascending ranges of sixteen bytes each.
#[derive(Debug, Default)]
pub(crate) struct PageRuns(Vec<std::ops::Range<u64>>);

impl PageRuns {
    pub(crate) fn push(&mut self, page: PageId) {
        match self.0.last_mut() {
            Some(run) if run.end == page.0 => run.end += 1,
            _ => self.0.push(page.0..page.0 + 1),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.0.iter().cloned().flatten().map(PageId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_runs_return_the_added_pages_in_as_few_runs_as_possible() {
        let pages = [5, 6, 7, 3, 4, 4, 5, 9].map(PageId);
        let mut runs = PageRuns::default();
        pages.into_iter().for_each(|page| runs.push(page));
        assert_eq!(runs.iter().collect::<Vec<_>>(), pages);
        assert_eq!(runs.0, [5..8, 3..5, 4..6, 9..10]);
    }
}
