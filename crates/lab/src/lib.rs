//! Measures the cost of paging a database with mmap on this machine, and reports it.
//!
//! [`run`] executes a [`config`] and writes [`record`]s; everything else reads the records.

mod child;
pub mod claims;
pub mod compare;
pub mod config;
mod entries;
pub mod error;
mod experiment;
pub mod experiments;
pub mod findings;
pub mod format;
mod judge;
pub mod latency;
pub mod lines;
pub mod listing;
pub mod literature;
pub mod machine;
pub mod measure;
pub mod methods;
mod mixes;
pub mod paths;
pub mod progress;
pub mod read_loops;
mod read_trials;
pub mod record;
pub mod report;
pub mod run;
pub mod settings;
pub mod share;
mod show;
mod stores;
pub mod summary;
pub mod table;
mod ticker;
pub mod trace;
pub mod verdict;
pub mod workload;
