//! Checks of this repository, in one command: `cargo xtask check`.

fn main() {}
