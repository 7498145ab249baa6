//! Measures the cost of paging a database with mmap on this machine, and reports it.
//!
//! [`run`] executes a [`config`] and writes [`record`]s; [`report`] and the modules below it read the records.

mod child;
pub mod config;
pub mod error;
mod experiment;
pub mod experiments;
pub mod format;
mod judge;
pub mod latency;
pub mod lines;
pub mod machine;
pub mod measure;
pub mod methods;
pub mod paths;
pub mod progress;
mod read_trials;
pub mod record;
pub mod report;
pub mod run;
pub mod settings;
mod show;
pub mod summary;
pub mod trace;
