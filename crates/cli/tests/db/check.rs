//! `nofault db check`: tells whether a backup or a dump is whole, and leaves it byte for byte as it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::{db, db_with, said};

/// The files of a folder, but for folders in it, with their bytes and their times of change.
fn files(folder: &Path) -> BTreeMap<String, (Vec<u8>, std::time::SystemTime)> {
    let entries = std::fs::read_dir(folder)
        .expect("the system does it")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_file());
    let file = |entry: std::fs::DirEntry| {
        let modified = entry.metadata().expect("the system does it").modified().expect("the system does it");
        (
            entry.file_name().into_string().expect("the system does it"),
            (std::fs::read(entry.path()).expect("the system does it"), modified),
        )
    };
    entries.map(file).collect()
}

fn rows(count: u64) -> Vec<u8> {
    (0..count).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"{n:090}\"}}\n")).collect::<String>().into_bytes()
}

#[test]
fn a_backup_is_checked_without_a_byte_of_it_changing() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&db_with(folder.path(), &["load", "d", "--create", "-q"], &rows(5000)), 0);
    said(&run(&["backup", "d", "copy"]), 0);
    let copy = folder.path().join("copy");
    let before = files(&copy);
    let output = run(&["check", "copy"]);
    said(&output, 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("5001 entries"), "{output:?}");
    let json: serde_json::Value = serde_json::from_str(&said(&run(&["check", "copy", "--json"]), 0)).unwrap();
    assert_eq!((&json["clean"], &json["entries"]), (&true.into(), &5001.into()));
    assert!(files(&copy) == before);

    // A page, then a superblock, then the log.
    let data = &before["data"].0;
    let broken = |at: usize| {
        let mut data = data.clone();
        data[at] ^= 1;
        std::fs::write(copy.join("data"), data).unwrap();
        let before = files(&copy);
        let output = run(&["check", "copy"]);
        assert!(files(&copy) == before);
        (said(&output, 6), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let leaf =
        (40..data.len() / 4096).find(|block| data[block * 4096..][..4096].windows(8).any(|key| key == b"00000400"));
    let (told, printed) = broken(leaf.unwrap() * 4096 + 3000);
    assert!(told.contains("salvage") && printed.contains("page") && printed.contains("table main"), "{told}{printed}");
    let (told, printed) = broken(1000);
    assert!(told.contains("another backup") && printed.contains("would repair: superblock A at 0"), "{told}{printed}");
    std::fs::write(copy.join("data"), data).unwrap();
    std::fs::remove_file(copy.join("log")).unwrap();
    assert!(said(&run(&["check", "copy"]), 6).contains("«log» is missing"));
    assert!(said(&run(&["check", "nowhere"]), 2).contains("no database in nowhere"));
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    assert!(said(&run(&["check", "empty"]), 2).contains("no database"));
}

#[test]
fn a_database_that_was_killed_is_checked_with_its_log_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    said(&db_with(folder.path(), &["load", "d", "--create", "-q"], &rows(100)), 0);
    let mut child = Command::new(env!("CARGO_BIN_EXE_nofault"))
        .args(["db", "load", "d", "-q", "--batch", "100"])
        .current_dir(folder.path())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, &rows(20_000)).unwrap();
    // The pipe is shorter than the input, so most of it has been loaded by now.
    assert_eq!(said(&db(folder.path(), &["check", "d"]), 5).lines().count(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = files(&folder.path().join("d"));
    for _ in 0..2 {
        let json: serde_json::Value =
            serde_json::from_str(&said(&db(folder.path(), &["check", "d", "--json"]), 0)).unwrap();
        assert!(json["entries"].as_u64() > Some(1000), "{json}");
    }
    assert!(files(&folder.path().join("d")) == before);
    said(&db(folder.path(), &["verify", "d"]), 0);
}

#[test]
fn a_backup_on_media_that_cannot_be_written_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    said(&db_with(folder.path(), &["load", "d", "--create", "-q"], &rows(500)), 0);
    std::fs::create_dir(folder.path().join("media")).unwrap();
    let mount = |arguments: &[&str]| {
        let done = Command::new("mount").args(arguments).current_dir(folder.path()).output();
        done.is_ok_and(|output| output.status.success())
    };
    if !mount(&["--bind", "d", "media"]) {
        println!("left out: this process may not mount");
        return;
    }
    let is_read_only = mount(&["-o", "remount,bind,ro", "media"]);
    let (checked, opened) = (db(folder.path(), &["check", "media"]), db(folder.path(), &["verify", "media"]));
    let unmounted = Command::new("umount").arg("media").current_dir(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    if !is_read_only {
        println!("left out: this process may not make a mount read-only");
        return;
    }
    said(&checked, 0);
    assert_eq!(opened.status.code(), Some(3), "{opened:?}");
}

#[test]
fn a_dump_is_checked_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&db_with(folder.path(), &["load", "d", "--create", "-q"], &rows(50)), 0);
    said(&run(&["dump", "d", "--out", "dump", "-q"]), 0);
    assert!(String::from_utf8_lossy(&run(&["check", "dump"]).stderr).contains("50 entries of 1 tables"));
    let mut bytes = std::fs::read(folder.path().join("dump")).unwrap();
    bytes.truncate(bytes.len() - 10);
    std::fs::write(folder.path().join("dump"), &bytes).unwrap();
    assert!(said(&run(&["check", "dump"]), 6).contains("dump, line 51"));
    let json = run(&["check", "dump", "--json"]);
    said(&json, 6);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&json.stdout).unwrap()["clean"], false);
    assert!(said(&run(&["check", "d/data"]), 2).contains("check its folder, d"));
    assert!(said(&run(&["check", "/dev/null"]), 2).contains("/dev/null"));
}
