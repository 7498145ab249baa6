//! The `nofault` command: glue between the command line and the libraries.

fn main() {}
