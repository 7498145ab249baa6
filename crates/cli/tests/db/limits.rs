//! `nofault db` in a process that may have few descriptors.

use std::process::Command;

use nofault::blocking::Db;
use nofault::settings::Settings;

use super::{db, said};

#[test]
fn a_command_with_too_few_descriptors_names_the_limit_ends_with_a_code_of_its_own_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "there"]), 0);
    // As a process that was killed leaves it: with commits that are in the log only.
    let open = Db::open(folder.path().join("there"), &Settings::default()).unwrap();
    open.table("main").unwrap().put("key", "value").unwrap();
    std::fs::create_dir(folder.path().join("killed")).unwrap();
    for name in ["data", "log"] {
        std::fs::copy(folder.path().join("there").join(name), folder.path().join("killed").join(name)).unwrap();
    }
    drop(open);
    let (mut made, mut refused) = (0, 0);
    for descriptors in 4..40 {
        let run = |arguments: &str| {
            let command = format!("ulimit -n {descriptors}; exec \"$0\" db {arguments}");
            let arguments = ["-c", &command, env!("CARGO_BIN_EXE_nofault")];
            Command::new("sh").args(arguments).current_dir(folder.path()).output().expect("the shell starts")
        };
        for command in [
            "create new",
            "put there a 1",
            "get there a --read-only",
            "salvage killed new",
            "check killed",
            "verify there",
            "verify killed --read-only",
            "stat there --count",
            "backup there new",
            "dump there --out new",
            "compact there",
        ] {
            let output = run(command);
            let stderr = String::from_utf8_lossy(&output.stderr);
            match output.status.code() {
                Some(0 | 1) => made += 1,
                Some(10) => {
                    refused += 1;
                    let remedy = format!("raise `ulimit -n` (RLIMIT_NOFILE), now {descriptors}");
                    assert!(stderr.contains(&remedy) && !stderr.contains("free some space"), "{command}: {stderr}");
                    assert!(!folder.path().join("new").exists(), "{command} leaves it with {descriptors} descriptors");
                }
                code => panic!("{command} with {descriptors} descriptors: {code:?}: {stderr}"),
            }
            let new = folder.path().join("new");
            let _ = if new.is_dir() { std::fs::remove_dir_all(new) } else { std::fs::remove_file(new) };
        }
    }
    assert!(made > 0 && refused > 0, "{made} and {refused}");
    said(&db(folder.path(), &["get", "there", "a"]), 0);
}
