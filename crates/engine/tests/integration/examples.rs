//! The examples that need nothing but a folder: each checks its own results.

#[path = "../../examples/batch_reader.rs"]
mod batch_reader;
#[path = "../../examples/secondary_index.rs"]
mod secondary_index;
#[path = "../../examples/typed.rs"]
mod typed;
#[path = "../../examples/watch.rs"]
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

/// Each cell of nofault's in the table of features links a test: its file, and its name as the fragment.
#[test]
fn the_tests_that_the_table_of_features_links_exist() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs");
    let table = std::fs::read_to_string(format!("{docs}/features.md")).unwrap();
    // The section after the table has another one.
    let (table, _) = table.split_once("\n## Three programs").unwrap();
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |")) {
        let ours = row.split('|').nth(2).unwrap().trim();
        let Some((_, link)) = ours.split_once("([test](") else {
            assert!(ours == "–" || row.starts_with("| language"), "no test: {row}");
            continue;
        };
        let (file, test) =
            link.trim_end_matches(')').split_once('#').unwrap_or_else(|| panic!("a file and a test: {row}"));
        let text = std::fs::read_to_string(format!("{docs}/{file}")).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(&format!("fn {test}(")), "{file} has no {test}");
        named += 1;
    }
    assert!(named >= 30, "{named}");
}
