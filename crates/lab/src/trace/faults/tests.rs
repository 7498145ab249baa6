//! The choice of the file, the notes and the errors; and a program reading a mapped database, recorded where perf works.

use nofault_sim::depth::{by_depth, sample};
use rusqlite::Connection;

use super::*;

const TEXT: &str = "71/71 100.0: PERF_RECORD_COMM exec: reader:71/71
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x10000(0x90000) @ 0 fe:00 7 0]: r-xp /usr/lib/libc.so.6
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0xa0000(0x10000) @ 0 fe:00 8 0]: r--p /etc/ld.so.cache
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0xb0000(0x10000) @ 0 fe:00 9 0]: r--s /x/small
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0xc0000(0x10000) @ 0 fe:00 9 0]: rw-s /x/db
71/71 100.2: minor-faults:  10000
71/71 100.2: minor-faults:  11000
71/71 100.2: minor-faults:  12000
71/71 100.2: minor-faults:  a0000
71/71 100.2: minor-faults:  a1000
71/71 100.2: minor-faults:  a2000
71/71 100.3: minor-faults:  b0000
71/72 100.4: major-faults:  c1000
71/71 100.5: major-faults:  c2000
";

fn recorded(text: &str, of: Option<&str>, every: u32) -> Result<Recording> {
    let mut reader = Reader::new(4096, 10);
    reader.read(text.as_bytes()).unwrap();
    taken(reader, &["reader".to_owned()], of.map(Path::new), every)
}

#[test]
fn the_file_with_most_faults_other_than_libraries_is_taken_or_the_one_that_is_named() {
    let db = recorded(TEXT, None, 1).unwrap();
    assert!(db.file == Path::new("/x/db") && !db.trace.is_cut, "{db:?}");
    assert_eq!(
        db.trace.csv(),
        "offset,length,op,thread,time\n4096,4096,read,72,0.400000\n8192,4096,read,71,0.500000\n"
    );
    assert_eq!(db.trace.block_bytes(), 4096);
    assert!(
        db.notes.len() == 1 && db.notes[0].contains("2 major") && db.notes[0].contains("0 minor"),
        "{:?}",
        db.notes
    );
    let library = recorded(TEXT, Some("/usr/lib/libc.so.6"), 1);
    assert!(library.is_ok_and(|library| library.trace.accesses.len() == 3));
    let error = recorded(TEXT, Some("/y"), 1).unwrap_err();
    assert!(error.kind() == LabErrorKind::Usage && error.to_string().contains("/x/db"), "{error}");
}

#[test]
fn notes_say_which_faults_are_missing_and_why() {
    let more = "71/71 100.6: PERF_RECORD_LOST lost 70\n71/71 100.7: minor-faults:u:  f0000000\n71/71 100.7: minor-faults:u:  f0001000\n";
    let notes = recorded(&format!("{TEXT}{more}"), Some("/x/small"), 10).unwrap().notes.join("\n");
    for part in
        ["0 major", "1 minor", "64 KiB", "one of 10", "lost 70 events", "--every 100", "2 faults", "mremap", "as root"]
    {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn a_list_of_faults_has_a_bound_and_its_trace_says_that_it_is_cut() {
    let mut text = TEXT.to_owned();
    for _ in 0..12 {
        text.push_str("71/71 100.3: minor-faults:  b0000\n");
    }
    let small = recorded(&text, None, 1).unwrap();
    assert!(small.file == Path::new("/x/small") && small.trace.accesses.len() == 10 && small.trace.is_cut);
    assert!(small.notes.iter().any(|note| note.contains("the first 10 faults of 13")), "{:?}", small.notes);
}

#[test]
fn errors_name_the_next_step() {
    let nothing = recorded("71/71 100.0: PERF_RECORD_COMM exec: true:71/71\n", None, 1).unwrap_err();
    assert!(nothing.kind() == LabErrorKind::Usage && nothing.to_string().contains("without --faults"), "{nothing}");
    let named = recorded("71/71 100.0: PERF_RECORD_COMM exec: true:71/71\n", Some("/y"), 1).unwrap_err();
    assert!(named.to_string().contains("no access to /y: no page fault"), "{named}");
    let absent = recorded("", None, 1).unwrap_err();
    assert!(absent.to_string().contains("is 'reader' there?"), "{absent}");
    let rights =
        refused("Error:\nAccess to performance monitoring and observability operations is limited.\nConsider more.\n");
    assert!(
        rights.kind() == LabErrorKind::NoPermission && rights.to_string().contains("perf_event_paranoid"),
        "{rights}"
    );
    let other = refused("WARNING: perf not found for kernel 9.1\n");
    assert!(other.kind() == LabErrorKind::Unsupported && other.to_string().contains("linux-perf"), "{other}");
    let missing = not_started(&std::io::ErrorKind::NotFound.into());
    assert!(missing.kind() == LabErrorKind::Unsupported && missing.to_string().contains("linux-tools"), "{missing}");
}

/// The variable that makes this program the reader of a mapped database, with the path.
const READER: &str = "NOFAULT_TEST_MAPPED_READER";

/// Reads each row of a database of SQLite through its map, where the variable names one.
#[test]
fn reads_the_mapped_database_that_it_is_given() {
    let Some(path) = std::env::var_os(READER) else { return };
    let connection = Connection::open(path).unwrap();
    connection.pragma_update(None, "mmap_size", 1 << 30).unwrap();
    let sum: i64 = connection.query_row("SELECT sum(length(value)) FROM main", [], |row| row.get(0)).unwrap();
    println!("read {sum} bytes");
}

#[test]
fn the_faults_of_a_command_in_its_mapped_file_are_recorded_where_perf_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("data");
    let connection = Connection::open(&path).unwrap();
    connection.execute("CREATE TABLE main (value BLOB)", []).unwrap();
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
                INSERT INTO main SELECT zeroblob(3000) FROM n";
    connection.execute(rows, [by_depth(500, 2000)]).unwrap();
    drop(connection);
    let length_bytes = std::fs::metadata(&path).unwrap().len();
    let test = std::env::current_exe().unwrap();
    let [path_text, test] = [&path, &test].map(|path| path.to_str().unwrap().to_owned());
    let command = |variable: &str| {
        let test_name = "trace::faults::tests::reads_the_mapped_database_that_it_is_given";
        ["env", variable, &test, "--exact", test_name].map(str::to_owned)
    };
    let recorded = match record(&command(&format!("{READER}={path_text}")), None, 1) {
        Err(error) if matches!(error.kind(), LabErrorKind::Unsupported | LabErrorKind::NoPermission) => {
            return eprintln!("skipped: {error}");
        }
        recorded => recorded.unwrap(),
    };
    assert_eq!(recorded.file, path);
    let accesses = &recorded.trace.accesses;
    let page_bytes = rustix::param::page_size() as u64;
    assert!(accesses.iter().all(|access| access.offset_bytes % page_bytes == 0 && access.offset_bytes < length_bytes));
    // The scan goes over the file in order, so the faults do.
    assert!(accesses.last().is_some_and(|last| last.offset_bytes > length_bytes / 2), "{accesses:?}");
    assert!(accesses.iter().all(|access| access.length_bytes == page_bytes && (0.0..60.0).contains(&access.at_s)));

    for (command, of, word) in
        sample([("no-such-command-of-a-test", None, "did not start"), ("true", Some(&*path), "")], 2)
    {
        let refused = record(&[command.to_owned()], of, 1).unwrap_err();
        assert!(refused.kind() == LabErrorKind::Usage && refused.to_string().contains(word), "{refused}");
    }
}
