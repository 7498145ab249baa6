//! `nofault db … --read-only`: next to a program with the database open, and of a backup.

use nofault::blocking::Db;
use nofault::settings::Settings;

use super::{db, db_with, said};

#[test]
fn commands_that_only_read_work_beside_a_running_application() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    let rows: String = (0..5000).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"{n:090}\"}}\n")).collect();
    said(&db_with(folder.path(), &["load", "d", "--create", "-q"], rows.as_bytes()), 0);
    let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
    let open = Db::open(folder.path().join("d"), &settings).unwrap();
    open.table("main").unwrap().put("fresh", "1").unwrap();

    said(&run(&["get", "d", "fresh"]), 5);
    assert_eq!(said(&run(&["get", "d", "fresh", "--read-only"]), 0).trim(), "1");
    said(&run(&["get", "d", "absent", "--read-only"]), 1);
    let last = said(&run(&["scan", "d", "--reverse", "--limit", "2", "--keys-only", "--read-only"]), 0);
    assert_eq!(last.lines().collect::<Vec<_>>(), ["fresh", "00004999"]);
    let json = |arguments: &[&str]| -> serde_json::Value { serde_json::from_str(&said(&run(arguments), 0)).unwrap() };
    assert_eq!(json(&["stat", "d", "--count", "--json", "--read-only"])["tables"]["main"], 5001);
    assert_eq!(json(&["verify", "d", "--json", "--read-only"])["clean"], true);
    let dumped = said(&run(&["dump", "d", "-q", "--read-only"]), 0);
    assert_eq!(dumped.lines().filter(|line| line.contains("\"key\":")).count(), 5001);
    assert_eq!(json(&["table", "list", "d", "--json", "--read-only"])["tables"][0]["name"], "main");
    said(&run(&["backup", "d", "beside", "--read-only"]), 0);
    assert_eq!(said(&run(&["get", "beside", "fresh"]), 0).trim(), "1");
    said(&run(&["put", "d", "k", "v", "--read-only"]), 2);

    // The application was not held up, and the next command sees its new writes.
    open.table("main").unwrap().put("fresh", "2").unwrap();
    assert_eq!(said(&run(&["get", "d", "fresh", "--read-only"]), 0).trim(), "2");
    drop(open);
    said(&run(&["backup", "d", "copy"]), 0);
    assert_eq!(said(&run(&["get", "copy", "fresh", "--read-only"]), 0).trim(), "2");
    assert!(said(&run(&["get", "nowhere", "k", "--read-only"]), 2).contains("no database"));
}
