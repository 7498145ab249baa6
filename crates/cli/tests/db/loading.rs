//! `nofault db load --create`: a database with all entries of the input, or nothing.

use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;

use super::{db, db_with, interrupted, said};

#[test]
fn a_failed_load_into_a_new_database_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let is_there = |name: &str| folder.path().join(name).exists();
    let load = |arguments: &[&str], input: &[u8]| {
        said(&db_with(folder.path(), &[&["load"], arguments, &["--create"][..]].concat(), input), 2)
    };
    assert!(load(&["d"], b"nonsense").contains("line 1") && !is_there("d"));
    let long = format!("{{\"key\":\"{}\",\"value\":\"\"}}\n", "k".repeat(5000));
    assert!(load(&["d"], long.as_bytes()).contains("key") && !is_there("d"));
    assert!(load(&["d", "missing"], b"").contains("there is no file missing") && !is_there("d"));
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert!(load(&["d", "folder"], b"").contains("is a folder") && !is_there("d"));
    assert!(load(&["no/such/folder"], b"").contains("no/such") && !is_there("no"));
    // An empty folder stays, and one with other files stays as it is.
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    load(&["empty"], b"nonsense");
    assert_eq!(std::fs::read_dir(folder.path().join("empty")).unwrap().count(), 0);
    std::fs::write(folder.path().join("folder/note"), "text").unwrap();
    assert!(load(&["folder"], b"").contains("note"));
    assert_eq!(std::fs::read_dir(folder.path().join("folder")).unwrap().count(), 1);
    // A database that is there is not touched.
    said(&db_with(folder.path(), &["load", "d", "--create"], b"{\"key\":\"a\",\"value\":\"1\"}\n"), 0);
    assert!(load(&["d"], b"nonsense").contains("already"));
    assert_eq!(said(&db(folder.path(), &["scan", "d"]), 0), "a\t1\n");
}

#[test]
fn a_load_into_a_new_database_that_is_stopped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let input = b"{\"key\":\"a\",\"value\":\"1\"}\n";
    let (code, told) = interrupted(folder.path(), &["load", "d", "--create", "--batch", "1"], input);
    assert_eq!(code, Some(130), "{told}");
    assert!(!folder.path().join("d").exists() && told.contains("removed"), "{told}");
}

#[test]
fn a_load_that_fills_the_disk_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
        .arg(&full)
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("left out: this process may not mount a tmpfs");
        return;
    }
    let rows: String = (0..60_000).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"{n:0300}\"}}\n")).collect();
    let outputs = [&["load", "full/d", "--create", "-q"][..], &["load", "full/d", "--create", "-q", "--sorted"]]
        .map(|arguments| (db_with(folder.path(), arguments, rows.as_bytes()), full.join("d").exists()));
    let unmounted = std::process::Command::new("umount").arg(&full).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    for (output, is_there) in outputs {
        said(&output, 4);
        assert!(!is_there);
    }
}

#[test]
fn a_dump_has_the_time_at_which_an_entry_expires_and_a_load_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    let lines = "{\"table\":\"t\"}\n\
        {\"table\":\"t\",\"key\":\"expires\",\"value\":\"1\",\"expires_ms\":4102444800123}\n\
        {\"table\":\"t\",\"key\":\"lasts\",\"value\":\"2\"}\n";
    let with_expired = format!("{lines}{{\"table\":\"t\",\"key\":\"gone\",\"value\":\"3\",\"expires_ms\":1000}}\n");
    said(&db_with(folder.path(), &["load", "d", "--create"], with_expired.as_bytes()), 0);
    assert_eq!(said(&run(&["dump", "d", "-q"]), 0), lines);
    // Neither a dump nor a load leaves the time out silently.
    let told = said(&run(&["dump", "d", "-q", "--format", "lines", "--table", "t"]), 2);
    assert!(told.contains("table t expire"), "{told}");
    said(&db_with(folder.path(), &["load", "e", "--create", "--sorted"], with_expired.as_bytes()), 2);
    said(&db_with(folder.path(), &["load", "e", "--create", "--sorted"], lines.as_bytes()), 0);
    assert_eq!(said(&run(&["dump", "e", "-q"]), 0), lines);
}

/// Names of the files in a folder that begin with `start`.
fn names(folder: &Path, start: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(start)).collect()
}

fn many_rows() -> String {
    (0..20_000).map(|number| format!("{{\"key\":\"{number}\",\"value\":\"some value\"}}\n")).collect()
}

#[test]
fn a_dump_that_fails_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    let line = "{\"key\":\"k\",\"value\":\"v\",\"expires_ms\":4102444800123}\n";
    said(&db_with(folder.path(), &["load", "d", "--create"], line.as_bytes()), 0);
    said(&run(&["dump", "d", "--out", "o", "--format", "lines", "--table", "main"]), 2);
    assert!(names(folder.path(), "o").is_empty());
    // A file system of 64 KiB, which only root can mount.
    said(&db_with(folder.path(), &["load", "many", "--create"], many_rows().as_bytes()), 0);
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&small).output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        println!("left out: this process may not mount a tmpfs");
        return;
    }
    let output = run(&["dump", "many", "--out", "small/o"]);
    let left = names(&small, "");
    assert!(std::process::Command::new("umount").arg(&small).status().is_ok_and(|status| status.success()));
    said(&output, 4);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_dump_that_is_stopped_leaves_no_file_and_a_killed_one_leaves_a_part_under_another_name() {
    let folder = tempfile::tempdir().unwrap();
    said(&db_with(folder.path(), &["load", "d", "--create"], many_rows().as_bytes()), 0);
    let expected = said(&db(folder.path(), &["dump", "d", "-q"]), 0);
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_nofault"))
            .args(["db", "dump", "d", "--out", "o", "-q"])
            .current_dir(folder.path())
            .spawn()
            .unwrap();
        while names(folder.path(), "o").is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        // Where the dump was faster than the signal, all of it is there.
        match (signal, names(folder.path(), "o").as_slice()) {
            (_, [name]) if name == "o" => {
                assert!(std::fs::read_to_string(folder.path().join("o")).unwrap() == expected, "{status}");
            }
            (Signal::KILL, [name]) if name == "o.nofault-unfinished" => {
                let told = said(&db(folder.path(), &["dump", "d", "--out", "o"]), 2);
                assert!(told.contains("o.nofault-unfinished") && told.contains("was killed"), "{told}");
            }
            (_, names) => assert!(names.is_empty() && status.code() == Some(130), "{signal:?}, {status}: {names:?}"),
        }
        names(folder.path(), "o").iter().for_each(|name| std::fs::remove_file(folder.path().join(name)).unwrap());
    }
}

#[test]
fn a_dump_replaces_no_file_and_a_wrong_path_is_a_wrong_call() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d"]), 0);
    std::fs::write(folder.path().join("o"), "precious").unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    for (out, why) in [
        ("o", "there is o already"),
        ("link", "there is link already"),
        ("d", "there is d already"),
        ("missing/o", "create missing/o"),
        ("o/o", "create o/o"),
        ("..", "no name of a file"),
    ] {
        let told = said(&run(&["dump", "d", "--out", out]), 2);
        assert!(told.contains(why), "{out}: {told}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("o")).unwrap(), "precious");
    assert_eq!(names(folder.path(), "").len(), 3);
}

#[test]
fn a_line_that_is_no_json_object_is_refused_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "d"]), 0);
    for line in ["[\"t\",\"a\",null,\"1\",null,null]", "[{\"key\":\"a\",\"value\":\"1\"}]", "\"a\"", "null", "[]"] {
        let input = format!("{{\"key\":\"first\",\"value\":\"1\"}}\n\n{line}\n");
        for flags in [&["load", "d", "-q"][..], &["load", "new", "-q", "--create", "--sorted"]] {
            let told = said(&db_with(folder.path(), flags, input.as_bytes()), 2);
            assert!(told.contains("line 3: not an entry: write one JSON object in a line"), "{line}: {told}");
        }
        std::fs::write(folder.path().join("dump"), &input).unwrap();
        assert!(said(&db(folder.path(), &["check", "dump"]), 6).contains("line 3"));
    }
    assert!(said(&db(folder.path(), &["table", "list", "d"]), 0).contains("main"));
    assert!(!folder.path().join("new").exists());
}
