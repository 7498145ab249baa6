//! `nofault db salvage`: readable entries come out, unreadable ones are listed, and the damaged database stays as it
//! is.

use std::path::Path;

use super::{db, db_with, said};

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("the system does it").map(|entry| entry.expect("an entry"));
    let mut files: Vec<_> = entries
        .map(|entry| {
            (
                entry.file_name().into_string().expect("the system does it"),
                std::fs::read(entry.path()).expect("the system does it"),
            )
        })
        .collect();
    files.sort();
    files
}

fn rows(count: u64) -> String {
    (0..count).map(|n| format!("{{\"table\":\"main\",\"key\":\"{n:08}\",\"value\":\"{n:090}\"}}\n")).collect()
}

#[test]
fn a_damaged_leaf_costs_its_keys_and_they_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&db_with(folder.path(), &["load", "d", "--create", "-q", "--sorted"], rows(5000).as_bytes()), 0);
    said(&run(&["salvage", "d", "whole", "-q"]), 0);
    assert_eq!(said(&run(&["dump", "whole", "-q"]), 0), said(&run(&["dump", "d", "-q"]), 0));
    assert!(said(&run(&["salvage", "d", "whole"]), 2).contains("already"));
    assert!(said(&run(&["salvage", "d", "d/inside"]), 2).contains("must not change"));
    assert!(said(&run(&["salvage", "nowhere", "x"]), 2).contains("no database in nowhere"));
    assert!(!folder.path().join("x").exists());

    let path = folder.path().join("d/data");
    let mut data = std::fs::read(&path).unwrap();
    let leaf = |key: &[u8]| {
        (40..data.len() / 4096).find(|block| data[block * 4096..][..4096].windows(8).any(|found| found == key)).unwrap()
    };
    let at = leaf(b"00000400") * 4096;
    data[at..at + 4096].fill(0);
    std::fs::write(&path, data).unwrap();
    let before = files(&folder.path().join("d"));
    let output = run(&["salvage", "d", "new"]);
    let told = said(&output, 6);
    assert!(told.contains("reading all pages") && told.contains("listed above"), "{told}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("lost in table main: keys from «") && printed.contains("only zeroes"), "{printed}");
    assert!(files(&folder.path().join("d")) == before);
    let json: serde_json::Value =
        serde_json::from_slice(&run(&["salvage", "d", "json", "--json", "-q"]).stdout).unwrap();
    let lost = &json["lost_ranges"][0];
    let (from, to) = (lost["from"].as_str().unwrap(), lost["to"].as_str().unwrap());
    assert!(from < "00000400" && "00000400" < to && json["complete"] == false, "{json}");
    let scan = |name: &str| said(&run(&["scan", name, "--json"]), 0);
    let expected: String = rows(5000)
        .lines()
        .filter(|line| !(from..to).contains(&&line[23..31]))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(expected.lines().count() < 5000 && scan("new") == expected && scan("json") == expected);
    said(&run(&["verify", "new"]), 0);
}

#[test]
fn a_database_without_superblocks_or_page_table_gives_its_entries_as_unsure_ones() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    for compression in ["none", "fast", "small"] {
        let load = ["load", "d", "--create", "-q", "--sorted", "--compression", compression];
        said(&db_with(folder.path(), &load, rows(5000).as_bytes()), 0);
        let path = folder.path().join("d/data");
        let mut data = std::fs::read(&path).unwrap();
        data[..4096].fill(0);
        data[65_536..65_536 + 4096].fill(0);
        std::fs::write(&path, data).unwrap();
        assert!(said(&run(&["get", "d", "00000001"]), 6).contains("superblock"));
        let output = run(&["salvage", "d", "new", "-q"]);
        said(&output, 6);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(printed.contains("table main~unsure: 5000 entries, which may be outdated"), "{printed}");
        assert!(printed.contains("lost commits: both superblocks are lost"), "{printed}");
        said(&run(&["salvage", "d", "accepted", "-q", "--unsure"]), 6);
        assert!(said(&run(&["scan", "accepted", "--json"]), 0) == rows(5000), "{compression}");
        ["d", "new", "accepted"].iter().for_each(|name| std::fs::remove_dir_all(folder.path().join(name)).unwrap());
    }
}

#[test]
fn a_striped_database_that_was_killed_is_salvaged_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d", "--stripe-over", "second"]), 0);
    said(&db_with(folder.path(), &["load", "d", "-q", "--sorted"], rows(15_000).as_bytes()), 0);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_nofault"))
        .args(["db", "load", "d", "-q", "--batch", "10", "--table", "late"])
        .current_dir(folder.path())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let late: String = (0..4000).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"late\"}}\n")).collect();
    std::io::Write::write_all(&mut stdin, late.as_bytes()).unwrap();
    let busy = said(&run(&["salvage", "d", "new"]), 5);
    assert!(busy.contains(&child.id().to_string()) && !folder.path().join("new").exists(), "{busy}");
    child.kill().unwrap();
    child.wait().unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&said(&run(&["salvage", "d", "new", "--json", "-q"]), 0)).unwrap();
    assert!(json["commits_replayed"].as_u64() > Some(10), "{json}");
    assert!(said(&run(&["dump", "new", "-q"]), 0) == said(&run(&["dump", "d", "-q"]), 0));
}

#[test]
fn a_salvage_that_fails_or_is_stopped_leaves_no_new_database() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&db_with(folder.path(), &["load", "d", "--create", "-q"], rows(100).as_bytes()), 0);
    std::fs::write(folder.path().join("d/data"), vec![7; 1 << 20]).unwrap();
    let told = said(&run(&["salvage", "d", "new"]), 6);
    assert!(told.contains("no two whole pages") && !folder.path().join("new").exists(), "{told}");
    std::fs::write(folder.path().join("d/data"), "").unwrap();
    said(&run(&["salvage", "d", "new"]), 6);
    std::fs::remove_file(folder.path().join("d/data")).unwrap();
    assert!(said(&run(&["salvage", "d", "new"]), 6).contains("«data» is missing"));
    for nonsense in ["/dev/null", "d/log"] {
        said(&run(&["salvage", nonsense, "new"]), 2);
    }
    assert!(!folder.path().join("new").exists());
}
