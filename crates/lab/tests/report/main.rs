//! Tests of everything that reads records, with synthetic records.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod browser;
mod claimed;
mod files;
mod grids;
mod pages;
mod synthetic;
