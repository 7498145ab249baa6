//! Everything that reads records, tried on records that no machine made.

mod browser;
mod files;
mod pages;
mod synthetic;
