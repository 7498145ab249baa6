//! Transactions are strictly serializable: known cases one by one, and a checker over histories of many threads and tasks, over
//! kills of the process as well.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

mod events;
mod graph;
mod hermitage;
mod histories;
mod killed;
