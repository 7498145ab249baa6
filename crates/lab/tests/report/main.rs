//! Everything that reads records, tried on records that no machine made.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod browser;
mod claimed;
mod files;
mod pages;
mod synthetic;
