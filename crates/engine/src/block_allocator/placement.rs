//! Counts of how near to its wanted place the allocator puts a page.

/// Counts of page placements, by distance from the wanted place, since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Pages that were rewritten in the group of their old block.
    pub same_group: u64,
    /// Pages that were rewritten in a group near their old block's.
    pub near_group: u64,
    /// Pages that were rewritten far from their old block because no near group had space: each costs a later scan one
    /// more read.
    pub far: u64,
    /// New pages, which had no old block.
    pub fresh: u64,
}
