//! The examples that need nothing but a folder: each checks its own results.

#[path = "../examples/batch_reader.rs"]
mod batch_reader;
#[path = "../examples/secondary_index.rs"]
mod secondary_index;
#[path = "../examples/typed.rs"]
mod typed;
#[path = "../examples/watch.rs"]
mod watch;

#[test]
fn the_example_of_reading_many_records_runs() {
    batch_reader::main().unwrap();
}

#[test]
fn the_example_of_typed_tables_runs() {
    typed::main().unwrap();
}

#[test]
fn the_example_of_secondary_indexes_runs() {
    secondary_index::main().unwrap();
}

#[test]
fn the_example_of_watching_runs() {
    watch::main().unwrap();
}
