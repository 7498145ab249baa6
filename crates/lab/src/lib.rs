//! Measures what paging a database with mmap costs on this machine, and reports it.

pub mod config;
pub mod contender;
pub mod error;
pub mod experiment;
pub mod latency;
pub mod machine;
pub mod measure;
pub mod record;
pub mod workload;
