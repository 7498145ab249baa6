//! Ids are types, so that a page cannot be taken for a block.

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
    /// The table of tables.
    pub const CATALOG: Self = Self(0);
}

impl CommitSeq {
    /// The commit after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
