//! A database compared with a map that does the same. The body is in `nofault::fuzzing`, where the ordinary tests run it
//! as well.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nofault::fuzzing::operations(bytes));
