//! Measures what paging a database with mmap costs on this machine, and reports it.

pub mod compare;
pub mod config;
pub mod error;
pub mod findings;
pub mod format;
pub mod latency;
pub mod listing;
pub mod literature;
pub mod measure;
pub mod record;
pub mod report;
pub mod summary;
pub mod table;
