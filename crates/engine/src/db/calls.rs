//! How a call is carried out, over any store and any log: [`wait`] says how it waits, [`loader`] repeats an attempt until all pages that it
//! needs are in memory; [`reader`], [`many`] and [`scan`] read, [`commit`] and [`large`] write, [`bulk`] loads past the log, [`transaction`] notes what was
//! read. [`core`] puts the parts together.

pub(in crate::db) mod bounds;
pub(in crate::db) mod bulk;
pub(in crate::db) mod catalog;
pub(in crate::db) mod commit;
pub(in crate::db) mod commit_error;
pub(in crate::db) mod commit_pages;
pub(in crate::db) mod core;
pub(in crate::db) mod expiry;
pub(in crate::db) mod expiry_rows;
pub(in crate::db) mod large;
pub(in crate::db) mod loader;
pub(crate) mod loads;
pub(in crate::db) mod many;
pub(in crate::db) mod overflow;
pub(in crate::db) mod pins;
pub(in crate::db) mod reader;
pub(in crate::db) mod reservations;
pub(in crate::db) mod scan;
pub(in crate::db) mod structure;
pub(in crate::db) mod tables;
pub(in crate::db) mod thread;
pub(in crate::db) mod transaction;
pub(in crate::db) mod wait;
pub(in crate::db) mod write_key;
pub(in crate::db) mod write_set;
