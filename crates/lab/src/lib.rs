//! Measures what paging a database with mmap costs on this machine, and reports it.

pub mod config;
pub mod error;
pub mod latency;
pub mod measure;
pub mod record;
