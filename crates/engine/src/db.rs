//! The database.
mod commit;
mod core;
mod scan;
mod thread;
mod transaction;
mod wait;

#[cfg(test)]
mod tests;
