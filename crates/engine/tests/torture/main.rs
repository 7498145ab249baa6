//! Hard tests of the whole database, through its public face only: a model beside it, a simulated disk beneath it.
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
