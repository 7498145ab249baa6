//! Ships a nofault database to object storage while it is used, and restores it to any point in time.
//!
//! ```
//! use std::sync::Arc;
//!
//! use nofault::{Db, settings::Settings};
//! use nofault_ship::{Point, Ship, ShipOptions, restore, verify};
//! use object_store::memory::InMemory;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
//! let db = Db::create(folder.path().join("shop"), &settings).await?;
//! let stock = db.create_table("stock").await?;
//! stock.put("apples", "12").await?;
//!
//! // Any store of the crate `object_store`: S3, Google, Azure, a folder, memory.
//! let store = Arc::new(InMemory::new());
//! let ship = Ship::start(&db, store.clone(), ShipOptions::new("shop")).await?;
//! stock.put("apples", "11").await?;
//! // From here on the store has it, whatever happens to this machine.
//! let before = ship.durable().await?;
//! stock.delete("apples").await?;
//! ship.close().await?;
//! assert!(verify(store.clone(), "shop").await?.is_clean());
//!
//! // The deletion was a mistake.
//! let restored = restore(store, "shop", Point::Commit(before), folder.path().join("again"), &settings).await?;
//! assert_eq!(restored.commit, before);
//! let db = Db::open(folder.path().join("again"), &settings).await?;
//! assert_eq!(db.table("stock").await?.get("apples").await?, Some(b"11".to_vec()));
//! # Ok(())
//! # }
//! ```
//!
//! The promises, with the faults under which they hold, stand in `docs/decisions/0026-shipping-to-object-storage.md`: a restore gives the
//! state after some commit, with all commits before it and none after it; and after [`Ship::durable`] has returned, that commit is
//! one that the call covers, or a later one.

#![warn(missing_debug_implementations)]

mod address;
mod assembly;
mod base;
mod clock;
mod error;
mod fetch;
#[cfg(feature = "folder")]
mod folder;
mod history;
mod increment;
mod label;
mod manifest;
mod names;
mod newest;
mod object;
mod options;
mod rebuild;
mod remote;
mod replica;
mod restore;
mod shipper;
mod upkeep;
mod verify;
mod writer;

pub use address::Address;
pub use error::{Error, ErrorKind, Result};
pub use history::{ClockStep, Span, history};
pub use options::ShipOptions;
pub use rebuild::{Rebuilt, rebuild};
pub use replica::{Lag, PromotedReplica, Replica, ReplicaOptions, ReplicaSnapshot};
pub use restore::{Point, RestoreProgress, RestoredPoint, restore, restore_into, restore_with_progress};
pub use shipper::{Ship, ShipStats};
pub use verify::{Verification, verify};
