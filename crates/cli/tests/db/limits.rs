//! `nofault db` in a process that may have few descriptors.

use std::path::Path;
use std::process::Command;

use nofault::blocking::Db;
use nofault::settings::Settings;
use nofault_sim::depth::{by_depth, sample};

use super::{db, said};

#[test]
fn a_command_with_too_few_descriptors_names_the_limit_ends_with_a_code_of_its_own_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "there"]), 0);
    // As a process that was killed leaves it: with commits in the log only.
    let open = Db::open(folder.path().join("there"), &Settings::default()).unwrap();
    open.table("main").unwrap().put("key", "value").unwrap();
    std::fs::create_dir(folder.path().join("killed")).unwrap();
    for name in ["data", "log"] {
        std::fs::copy(folder.path().join("there").join(name), folder.path().join("killed").join(name)).unwrap();
    }
    drop(open);
    let (mut made, mut refused) = (0, 0);
    let commands = [
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
    ];
    let cases = (4..40).flat_map(|descriptors| commands.map(|command| (descriptors, command)));
    // The number of commands is no multiple of the step, so each is there with several limits.
    for (descriptors, command) in sample(cases, 9) {
        let run = format!("ulimit -n {descriptors}; exec \"$0\" db {command}");
        let arguments = ["-c", &run, env!("CARGO_BIN_EXE_nofault")];
        let output = Command::new("sh").args(arguments).current_dir(folder.path()).output().expect("the shell starts");
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
    assert!(made > 0 && refused > 0, "{made} and {refused}");
    said(&db(folder.path(), &["get", "there", "a"]), 0);
}

/// Runs a command in a process that may have so many KiB of address space.
fn within(kib: u64, folder: &Path, arguments: &str) -> std::process::Output {
    let command = format!("ulimit -v {kib}; exec \"$0\" {arguments}");
    let mut run = Command::new("sh");
    run.args(["-c", &command, env!("CARGO_BIN_EXE_nofault")]).env_remove("RUST_BACKTRACE");
    run.current_dir(folder).output().expect("the shell starts")
}

#[test]
fn a_command_with_too_little_address_space_names_the_limit_ends_with_a_code_of_its_own_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "there"]), 0);
    // Below that the program cannot be loaded.
    let loads = |kib: &u64| within(*kib, folder.path(), "completions bash").status.success();
    let least = (20_000..).step_by(5_000).find(loads).expect("it can be loaded");
    let (mut made, mut refused) = (0, 0);
    let (step, made_min, refused_min) = by_depth((10_000, 8, 4), (2_000, 40, 20));
    for kib in (least..).step_by(step) {
        for command in ["create new", "put there a 1", "salvage there new -q", "get there a --read-only"] {
            let output = within(kib, folder.path(), &format!("db {command}"));
            let stderr = String::from_utf8_lossy(&output.stderr);
            let new = folder.path().join("new");
            match output.status.code() {
                Some(0 | 1) => made += 1,
                Some(10) => {
                    refused += 1;
                    assert!(stderr.contains("raise `ulimit -v` (RLIMIT_AS), now "), "{command}: {stderr}");
                    assert!(!new.exists(), "{command} leaves it with {kib} KiB");
                }
                code => panic!("{command} with {kib} KiB: {code:?}, {:?}: {stderr}", output.status),
            }
            let _ = std::fs::remove_dir_all(new);
        }
        if made > made_min {
            break;
        }
    }
    assert!(refused > refused_min, "{refused}");
}
