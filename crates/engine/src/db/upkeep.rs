//! What a database does for its files by itself: frees dropped tables, removes expired entries, merges sparse leaves, puts pages in order,
//! trains dictionaries, shrinks the file.

pub(in crate::db) mod background_compaction;
pub(in crate::db) mod deferred_free;
pub(in crate::db) mod dictionaries;
pub(in crate::db) mod expiry_removal;
pub(in crate::db) mod order;
pub(in crate::db) mod parts;
pub(in crate::db) mod repack;
pub(in crate::db) mod shrink;
pub(in crate::db) mod sparse_leaves;
