//! `nofault db check`: tells whether a backup or a dump is whole, and leaves it byte for byte as it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use nofault::blocking::Db;
use nofault::settings::Settings;
use nofault_sim::depth::is_deep;

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

/// Flips a bit in a leaf of the catalog: the last but one in the data file, whose pages of 4 KiB begin with checksum
/// and number, and whose nodes name level and table.
fn damage_a_leaf_of_the_catalog(path: &Path) -> (u64, u64) {
    let mut data = std::fs::read(path.join("data")).expect("a data file");
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"));
    let is_leaf = |at: &usize| {
        let is_node = data[at + 40] == 1 && data[at + 41] == 0;
        is_node && number(at + 8) > 0 && number(at + 56) == 0 && &data[at + 8..at + 12] != b"NFpt"
    };
    let at = (131_072..data.len()).step_by(4096).filter(is_leaf).nth(1).expect("several leaves");
    let page = number(at + 8);
    data[at + 100] ^= 1;
    std::fs::write(path.join("data"), data).expect("a file that can be written");
    (page, at as u64)
}

#[test]
fn a_damaged_page_of_the_catalog_hides_the_tables_that_it_names_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    let names: Vec<String> =
        (0..200).map(|number| format!("{number:03}: a table with a name of some length")).collect();
    let mut create = vec!["create", "shop"];
    names.iter().for_each(|name| create.extend(["--table", name]));
    said(&run(&create), 0);
    if is_deep() {
        for name in &names {
            said(&run(&["put", "shop", "key", "value", "--table", name]), 0);
        }
    } else {
        let shop = Db::open(folder.path().join("shop"), &Settings::default()).unwrap();
        for name in &names {
            shop.table(name).unwrap().put("key", "value").unwrap();
        }
    }
    let (page, at) = damage_a_leaf_of_the_catalog(&folder.path().join("shop"));
    let place = format!("the catalog (the table of tables) is damaged: page {page}: at byte {at} of the data file");

    let output = run(&["stat", "shop", "--json"]);
    said(&output, 6);
    let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (listed, hidden): (Vec<_>, Vec<_>) = names.iter().partition(|name| stat["tables"].get(name).is_some());
    assert!(listed.len() > 100 && hidden.len() > 10, "{stat}");
    assert!(stat["problems"][0].as_str().unwrap().contains(&place), "{stat}");
    let output = run(&["stat", "shop", "--count"]);
    assert!(said(&output, 6).contains(&place), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("{} (1)", listed[0])), "{output:?}");

    assert_eq!(said(&run(&["get", "shop", "key", "--table", listed[0]]), 0), "value\n");
    assert!(said(&run(&["get", "shop", "key", "--table", hidden[0]]), 6).contains(&place));
    assert!(said(&run(&["get", "shop", "key", "--table", "000"]), 2).contains("and those that damage hides"));

    let output = run(&["verify", "shop", "--json"]);
    said(&output, 6);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["sound_tables"], serde_json::json!(listed));
    assert_eq!((&found["catalog_pages_damaged"], &found["damaged_tables"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(found["unnamed_tables"].as_array().unwrap().len(), hidden.len(), "{found}");
    let output = run(&["verify", "shop"]);
    said(&output, 6);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("sound tables: {}, ", listed[0])), "{text}");
    assert!(text.contains("1 pages of the catalog") && text.contains("name unknown"), "{text}");

    let output = run(&["dump", "shop", "-q"]);
    assert!(said(&output, 6).contains(&place));
    let lines = String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains("value")).count();
    assert_eq!(lines, listed.len());
}
