//! Calls that make no sense: each ends with its own exit code and a message of one line, and harms nothing.

use std::process::{Command, Output, Stdio};

use super::{db, db_with, said};

/// Checks that a call was refused: no panic, no signal, and a message without control characters.
fn refused(output: &Output, what: &str) -> String {
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(matches!(code, Some(1..=9)), "{what}: {output:?}");
    assert!(!told.trim().is_empty() && !told.contains("panicked"), "{what}: {told}");
    assert!(!told.chars().any(|c| c.is_control() && c != '\n'), "{what}: {told:?}");
    told
}

#[test]
fn a_path_that_is_no_database_is_refused_by_every_command_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), "text").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("folder/data"), "text").unwrap();
    std::fs::create_dir_all(at("folders/data")).unwrap();
    std::fs::create_dir_all(at("folders/log")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    let long = "x".repeat(300);
    let commands: [&[&str]; 19] = [
        &["stat"],
        &["table", "list"],
        &["table", "create", "PATH", "t"],
        &["table", "drop", "PATH", "t", "-y"],
        &["table", "clear", "PATH", "t", "-y"],
        &["get", "PATH", "k"],
        &["put", "PATH", "k", "v"],
        &["delete", "PATH", "k"],
        &["scan"],
        &["load"],
        &["dump"],
        &["verify"],
        &["check"],
        &["salvage", "PATH", "new"],
        &["compact"],
        &["compression"],
        &["backup", "PATH", "new"],
        &["top"],
        &["create", "PATH/no/such/folder"],
    ];
    for path in
        ["/dev/null", "/dev/full", "/proc/self/mem", "file", "folder", "folders", "loop", "", "no/such/folder", &long]
    {
        for command in commands {
            let mut arguments: Vec<String> = command.iter().map(|word| word.replace("PATH", path)).collect();
            if !command.iter().any(|word| word.contains("PATH")) {
                arguments.push(path.to_owned());
            }
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            refused(&db(folder.path(), &arguments), &format!("{arguments:?}"));
            assert!(!at("new").exists(), "{arguments:?}");
        }
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"text");
    assert_eq!(std::fs::read(at("folder/data")).unwrap(), b"text");
    assert_eq!(std::fs::read_dir(at("folder")).unwrap().count(), 1);
}

#[test]
fn impossible_keys_names_and_sizes_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d"]), 0);
    said(&run(&["put", "d", "k", "v"]), 0);
    let before = said(&run(&["dump", "d", "-q"]), 0);
    let (long, wild) = ("k".repeat(5000), "\x1b[2J\u{9b}31m");
    let calls: &[&[&str]] = &[
        &["put", "d", &long, "v"],
        &["put", "d", "k", "v", "--table", ""],
        &["put", "d", "k", "v", "--table", "", "--create-table"],
        &["get", "d", "k", "--table", wild],
        &["table", "create", "d", ""],
        &["table", "create", "d", "new", &long],
        &["table", "create", "d"],
        &["table", "drop", "d", wild, "-y"],
        &["table"],
        &["create", "e", "--table", ""],
        &["create", "e", "--table", "t", "--table", "t"],
        &["create", "e", "--page", "5000"],
        &["create", "e", "--page", "128KiB"],
        &["create", "e", "--cache", "1"],
        &["create", "e", "--cache", "99999999EiB"],
        &["get", "d", "k", "--cache", "-1"],
        &["get", "d", "zz", "--hex"],
        &["get", "d", "k", "--hex", "--key-encoding", "text"],
        &["get", "d", "k", "--raw", "--json"],
        &["get", "d"],
        &["scan", "d", "--limit", "-1"],
        &["scan", "d", "--prefix", "a", "--from", "b"],
        &["load", "d", "--batch", "0"],
        &["load", "d", "--format", "xml"],
        &["load", "d", "d"],
        &["load", "d", "nowhere"],
        &["dump", "d", "--out", "d"],
        &["dump", "d", "--out", "/dev/null"],
        &["dump", "d", "--out", "no/such/file"],
        &["dump", "d", "--table", "nowhere"],
        &["backup", "d", "d"],
        &["backup", "d", "/dev/null"],
        &["salvage", "d", "d"],
        &["compression", "d", "huge"],
        &["nothing", "d"],
        &[],
    ];
    for call in calls {
        let told = refused(&run(call), &format!("{call:?}"));
        assert!(told.len() < 12_000, "{call:?}: {told}");
    }
    assert!(!folder.path().join("e").exists());
    assert_eq!(said(&run(&["dump", "d", "-q"]), 0), before);
    said(&run(&["verify", "d"]), 0);
}

#[test]
fn output_that_cannot_be_written_has_the_code_of_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..3000).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"{n:090}\"}}\n")).collect();
    said(&db_with(folder.path(), &["load", "d", "--create", "-q"], rows.as_bytes()), 0);
    for call in
        [&["scan", "d"][..], &["dump", "d", "-q"], &["get", "d", "00000001"], &["stat", "d"], &["table", "list", "d"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_nofault"))
            .arg("db")
            .args(call)
            .current_dir(folder.path())
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(4), "{call:?}: {output:?}");
    }
}
