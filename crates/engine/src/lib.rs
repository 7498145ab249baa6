//! The nofault engine: an embedded, transactional, ordered key-value store on its own buffer pool.
//!
//! The buffer pool knows which pages are in memory. A read that must wait for the disk is a value that the caller can
//! await, so it never stalls a thread. The async calls in [`db`] run on any executor; [`blocking`] has the same calls
//! for threads.
//!
//! ```
//! use nofault::{Batch, Db, Durability, settings::Settings};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), nofault::error::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("shop");
//! let db = Db::create(&path, &Settings { cache_bytes: 32 << 20, ..Settings::default() }).await?;
//! let stock = db.create_table("stock").await?;
//! let mut batch = Batch::new();
//! batch.put(&stock, "apples", "12").put(&stock, "pears", "3").delete(&stock, "plums");
//! db.write(batch, Durability::Sync).await?;
//!
//! let before = db.snapshot();
//! stock.put("pears", "2").await?;
//! assert_eq!(before.get(&stock, "pears").await?, Some(b"3".to_vec()));
//! assert_eq!(stock.get_many(&["pears", "plums"]).await?, [Some(b"2".to_vec()), None]);
//!
//! let mut range = stock.range("a".."b");
//! while let Some((name, count)) = range.next().await? {
//!     assert_eq!((name, count), (b"apples".to_vec(), b"12".to_vec()));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where to go on: [`Db`] has the calls on a whole database, [`Table`] those on one ordered map, [`Transaction`] and
//! [`Snapshot`] those that read one moment; [`TypedTable`] is a table of typed keys and values; [`blocking`] has the same for threads. [`settings::Settings`] are the options of
//! a database, [`error::ErrorKind`] the reactions to its errors, [`db::Stats`] its counters.
//!
//! Features: `mmap` adds the same tree over a memory-mapped file, made safe in the ways that other databases do it, for
//! comparison; `stream` makes streams of ranges and watches; `serde`, `uuid` and `zerocopy` add types of keys and values ([`typed`]);
//! `zstd` compresses tables with Zstandard; `tokio` lets a runtime take completions by itself ([`Db::complete_on_tokio`]); `tracing`
//! makes events and spans ([`events`]). Encryption does not exist; bytes are reserved for it.

#![warn(missing_debug_implementations)]

mod block_allocator;
pub mod blocking;
mod blocks;
mod btree;
mod buffer_pool;
mod checkpoint;
pub mod clock;
mod codec;
pub mod db;
pub mod error;
pub mod events;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod histogram;
mod ids;
#[cfg(feature = "mmap")]
pub mod mmap;
mod pages;
mod readers;
mod recovery;
pub mod salvage;
pub mod settings;
mod sync;
mod transaction;
pub mod typed;
mod wal;

/// Compiles the programs of the pages beginning with one.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/guide.md")]
#[doc = include_str!("../README.md")]
struct FirstPages;

pub use db::{Batch, Db, Range, Snapshot, Table, Transaction, TypedTable};
pub use error::{Error, ErrorKind};
pub use ids::{BlockId, CommitSeq, PageId, TableId};
/// The disks below a database: what [`Db::create_in`] and [`Db::open_in`] take.
pub use nofault_io as io;
pub use pages::Durability;
