//! The nofault engine: an embedded, transactional, ordered key-value store on its own buffer pool.
//!
//! Under construction: so far the contracts between its parts stand, and nothing can be stored yet.
//!
//! | module | what it is for |
//! |---|---|
//! | `pages` | the contract between those who use pages and those who keep them |
//! | `format` | what is on disk, as types |
//! | [`error`] | the one error |

mod bell;
pub mod blocking;
mod blocks;
mod checkpoint;
pub mod db;
pub mod error;
mod format;
mod gate;
mod pager;
mod pages;
mod recovery;
pub mod settings;
mod space;
mod tree;
mod txn;
mod verify;
mod wal;

pub use db::{Batch, Db, Range, Snapshot, Table, Transaction};
pub use format::{BlockId, CommitSeq, PageId, TableId};
pub use pages::Durability;
