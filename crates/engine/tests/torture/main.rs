//! Hard tests of the whole database, through its public calls only: with a model to compare with, on a simulated disk.
//!
//! Each test draws everything it does from a seed. A failure prints the seed and the line that repeats it.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

mod catalog;
mod damage;
mod faults;
mod futures;
mod hostile;
mod power_cuts;
mod repeat;
mod serializable;
mod story;
mod threads;
