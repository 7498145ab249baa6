//! Tests of the public calls that share one process: a program linked once, and in which no CPU waits for the last test of each
//! file.
//!
//! A test has a separate program, next to this folder, when it needs the process for itself: it counts the memory of the process or
//! sees its panics or events (`claimed_sizes`, `closing`, `panics`, `tracing`), measures the delays of a thread (`tasks`), mounts
//! file systems (`full_disk`), maps files that are cut (`mmap`), or runs its own program again (`isolation`, `processes`, `torture`).

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "../common/blocks.rs"]
mod blocks;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/full_disk.rs"]
mod full_disk;
#[path = "../common/old_databases.rs"]
mod old_databases;

mod axum_example;
mod changes_since;
mod commits;
mod compressed;
mod database;
mod examples;
mod expiry;
mod folders;
mod formats;
mod full;
mod full_disk_changes;
mod habits;
mod indexed;
mod large;
mod log_size;
mod many_keys;
mod ordering;
mod outgrown;
mod programs;
mod reopening;
mod salvage;
mod scans;
mod shrinking;
mod surroundings;
mod table_calls;
mod tables;
mod tail;
mod transactions;
mod typed;
mod watch;
