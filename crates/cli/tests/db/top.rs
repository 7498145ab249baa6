//! `nofault db top`: the counters of a database that another process has open.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::{db, db_with, said};

/// Starts a load that runs until its input ends, and waits until it serves its counters.
fn loading(folder: &std::path::Path) -> (Child, ChildStdin) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nofault"))
        .args(["db", "load", "d", "-q", "--batch", "1"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .spawn()
        .expect("the system does it");
    let mut stdin = child.stdin.take().expect("the system does it");
    (0..50).for_each(|n| writeln!(stdin, "{{\"key\":\"{n}\",\"value\":\"v\"}}").expect("the system does it"));
    while !folder.join("d/stats.nofault/socket").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    (child, stdin)
}

#[test]
fn a_running_database_shows_its_counters_and_a_closed_one_says_that_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d"]), 0);
    let not_open = said(&run(&["top", "d"]), 2);
    assert!(not_open.contains("it is not open") && not_open.contains("stats_socket"), "{not_open}");
    let (mut child, mut stdin) = loading(folder.path());
    let look = || serde_json::from_str::<serde_json::Value>(&said(&run(&["top", "d", "--json"]), 0)).unwrap();
    let mut now = look();
    while now["commits_durable"].as_u64() < Some(50) {
        now = look();
    }
    assert_eq!(now["process"].as_u64(), Some(u64::from(child.id())), "{now}");
    assert!(now["memory_bytes"].as_u64() > Some(1 << 16) && now["page_bytes"] == 4096, "{now}");
    let buckets = now["commit_ns"].as_array().unwrap().iter();
    assert!(buckets.map(|bucket| bucket[1].as_u64().unwrap()).sum::<u64>() >= 50, "{now}");
    let lines = said(&run(&["top", "d", "-n", "3", "--interval", "0.05"]), 0);
    assert!(
        lines.lines().count() == 4 && lines.starts_with("    open  commits/s") && !lines.contains('\x1b'),
        "{lines}"
    );
    assert_eq!(said(&run(&["top", "d", "-n", "2", "-i", "0.05", "--json"]), 0).lines().count(), 2);
    let mode = std::fs::metadata(folder.path().join("d/stats.nofault")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    // It ends with the database, and the folder is as it was.
    let watching = Command::new(env!("CARGO_BIN_EXE_nofault"))
        .args(["db", "top", "d", "-i", "0.05"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(stdin, "{{\"key\":\"last\",\"value\":\"v\"}}").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let seen = watching.wait_with_output().unwrap();
    // Unless the database was closed before the first look.
    assert!(matches!(seen.status.code(), Some(0 | 2)), "{seen:?}");
    assert!(!folder.path().join("d/stats.nofault").exists());
    said(&run(&["top", "nowhere"]), 2);
    said(&run(&["top", "d/data"]), 2);
    for wrong in ["0", "-1", "nan", "1e9", "x"] {
        said(&run(&["top", "d", "--interval", wrong]), 2);
    }
}

#[test]
fn what_a_killed_process_leaves_confuses_neither_top_nor_the_next_opening() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d"]), 0);
    let (mut child, _stdin) = loading(folder.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(folder.path().join("d/stats.nofault/socket").exists());
    assert!(said(&run(&["top", "d"]), 2).contains("it is not open"));
    said(&run(&["verify", "d"]), 0);
    assert!(!folder.path().join("d/stats.nofault").exists(), "the opening has replaced it, and removed it at its end");
    let (mut child, stdin) = loading(folder.path());
    drop(stdin);
    child.wait().unwrap();
    // A failed creation removes the socket's folder as well.
    said(&db_with(folder.path(), &["load", "new", "--create"], b"nonsense"), 2);
    assert!(!folder.path().join("new").exists());
}
