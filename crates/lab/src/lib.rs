//! Measures what paging a database with mmap costs on this machine, and reports it.

pub mod config;
pub mod machine;
pub mod record;
