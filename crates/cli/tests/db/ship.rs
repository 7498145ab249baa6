//! `nofault ship` and `nofault restore` from a user's point of view: the program is run, and its output and exit code are
//! checked.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use nofault_sim::depth::by_depth;

fn nofault(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nofault"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("the program starts")
}

/// Both outputs of a command, after checking that it ended with the exit code `code`.
fn said(output: &Output, code: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

#[test]
fn a_database_is_shipped_to_a_folder_and_restored_to_the_end_a_commit_and_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| nofault(folder.path(), arguments);
    let json = |arguments: &[&str]| -> serde_json::Value { serde_json::from_slice(&run(arguments).stdout).unwrap() };
    std::fs::create_dir(folder.path().join("backups")).unwrap();
    said(&run(&["db", "create", "shop", "--table", "stock"]), 0);
    said(&run(&["db", "put", "shop", "apples", "12", "--table", "stock"]), 0);
    let first = json(&["ship", "shop", "backups/shop", "--json", "-q"]);
    assert_eq!(first["bases"], 1);
    let spans = json(&["restore", "backups/shop", "--list", "--json"]);
    let (first_time, commit) = (spans[0]["last_time"].to_string(), first["commit"].to_string());
    said(&run(&["db", "put", "shop", "apples", "13", "--table", "stock"]), 0);
    let told = said(&run(&["ship", "shop", "backups/shop/"]), 0);
    assert!(told.contains("has everything up to commit"), "{told}");

    said(&run(&["restore", "backups/shop", "again"]), 0);
    let value = |of: &str| said(&run(&["db", "get", of, "apples", "--table", "stock"]), 0).trim().to_owned();
    assert_eq!(value("again"), "13");
    said(&run(&["restore", "backups/shop", "by-commit", "--commit", &commit]), 0);
    said(&run(&["restore", "backups/shop", "by-time", "--time", &first_time, "-q"]), 0);
    assert_eq!((&*value("by-commit"), &*value("by-time")), ("12", "12"));
    let listed = said(&run(&["restore", "backups/shop", "--list"]), 0);
    assert!(listed.contains(" commits ") && listed.contains("Z to 20"), "{listed}");

    let checked = said(&run(&["restore", "backups/shop", "--check"]), 0);
    assert!(checked.contains("copies of the whole"), "{checked}");
    for (arguments, code) in [
        (&["restore", "backups/shop", "again"][..], 2),
        (&["restore", "backups/shop", "early", "--time", "1000"], 2),
        (&["restore", "backups/shop", "early", "--time", "1500d"], 2),
        (&["restore", "backups/nothing", "there"], 2),
        (&["restore", "nowhere/shop", "there"], 2),
        (&["restore", "ftp://there/shop", "there"], 7),
        (&["restore", "backups/shop"], 2),
        (&["ship", "nothing", "backups/shop"], 2),
    ] {
        let told = said(&run(arguments), code);
        // Errors name times and databases as they are to be typed.
        assert!(!arguments.contains(&"early") || told.contains("of 20"), "{told}");
        assert!(!arguments.contains(&"backups/nothing") || told.contains("'nothing'"), "{told}");
    }
    assert!(!folder.path().join("there").exists() && !folder.path().join("early").exists());

    // A bit of a copy of the whole.
    let base = folder.path().join("backups/shop/base");
    let part = std::fs::read_dir(base).unwrap().flat_map(|found| std::fs::read_dir(found.unwrap().path()).unwrap());
    let part = part.map(|file| file.unwrap().path()).last().unwrap();
    let mut bytes = std::fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let told = said(&run(&["restore", "backups/shop", "--check"]), 6);
    assert!(told.contains("base") && told.contains("ship --whole"), "{told}");
    said(&run(&["ship", "shop", "backups/shop"]), 0);
    said(&run(&["restore", "backups/shop", "of-damage"]), 6);
    let told = said(&run(&["ship", "shop", "backups/shop", "--whole"]), 0);
    assert!(told.contains("the whole database was shipped"), "{told}");
    said(&run(&["restore", "backups/shop", "of-damage"]), 0);
    assert_eq!(value("of-damage"), "13");
    // An object that the manifest names is gone: damage for both, and no wrong call.
    std::fs::remove_dir_all(folder.path().join("backups/shop/base")).unwrap();
    for arguments in [&["restore", "backups/shop", "of-nothing"][..], &["restore", "backups/shop", "--check"]] {
        let told = said(&run(arguments), 6);
        assert!(told.contains("is gone"), "{told}");
    }
}

/// Before, a lost manifest made the next `ship` remove all history, and a damaged one had no way out.
#[test]
fn a_lost_or_damaged_manifest_is_refused_and_rebuild_and_whole_lead_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| nofault(folder.path(), arguments);
    let manifest = folder.path().join("backups/shop/manifest");
    std::fs::create_dir(folder.path().join("backups")).unwrap();
    said(&run(&["db", "create", "shop", "--table", "stock"]), 0);
    for key in ["a", "b", "c"] {
        said(&run(&["db", "put", "shop", key, "1", "--table", "stock"]), 0);
        said(&run(&["ship", "shop", "backups/shop", "-q"]), 0);
    }
    let spans = said(&run(&["restore", "backups/shop", "--list"]), 0);
    let sound = std::fs::read(&manifest).unwrap();
    assert!(said(&run(&["restore", "backups/shop", "--rebuild"]), 2).contains("sound"));
    for damage in [None, Some(&sound[..sound.len() - 10])] {
        match damage {
            None => std::fs::remove_file(&manifest).unwrap(),
            Some(bytes) => std::fs::write(&manifest, bytes).unwrap(),
        }
        for arguments in [
            &["ship", "shop", "backups/shop"][..],
            &["restore", "backups/shop", "--list"],
            &["restore", "backups/shop", "again"],
            &["restore", "backups/shop", "--check"],
        ] {
            let told = said(&run(arguments), 6);
            assert!(told.contains("restore --rebuild") && told.contains("ship --whole"), "{told}");
        }
        let told = said(&run(&["restore", "backups/shop", "--rebuild"]), 0);
        assert!(told.contains("a manifest was made of copy number") && told.contains(&spans), "{told}");
        said(&run(&["ship", "shop", "backups/shop"]), 0);
    }
    said(&run(&["restore", "backups/shop", "--check"]), 0);
    // An older one instead: readers say so, and restore only a commit asked for by its number.
    said(&run(&["db", "put", "shop", "d", "1", "--table", "stock"]), 0);
    said(&run(&["ship", "shop", "backups/shop", "-q"]), 0);
    std::fs::write(&manifest, &sound).unwrap();
    for arguments in [
        &["restore", "backups/shop", "--check"][..],
        &["restore", "backups/shop", "--list"],
        &["restore", "backups/shop", "older"],
        &["ship", "shop", "backups/shop"],
    ] {
        let told = said(&run(arguments), 6);
        assert!(told.contains("was set back") && told.contains("restore --rebuild"), "{told}");
    }
    let told = said(&run(&["restore", "backups/shop", "older", "--commit", "4"]), 0);
    assert!(told.contains("was set back") && !told.contains("no later one"), "{told}");
    assert!(said(&run(&["restore", "backups/shop", "--rebuild"]), 0).contains("a manifest was made of copy number"));
    said(&run(&["restore", "backups/shop", "newest"]), 0);
    assert_eq!(said(&run(&["db", "get", "newest", "d", "--table", "stock"]), 0).trim(), "1");
    std::fs::write(&manifest, "damaged").unwrap();
    let told = said(&run(&["ship", "shop", "backups/shop", "--whole"]), 0);
    assert!(told.contains("it leads to commit") && told.contains("the whole database was shipped"), "{told}");
    let listed = said(&run(&["restore", "backups/shop", "--list"]), 0);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    said(&run(&["restore", "backups/shop", "again"]), 0);
    assert_eq!(said(&run(&["db", "get", "again", "c", "--table", "stock"]), 0).trim(), "1");
}

#[test]
fn another_database_takes_a_name_over_only_when_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| nofault(folder.path(), arguments);
    std::fs::create_dir(folder.path().join("backups")).unwrap();
    for (name, table) in [("shop", "stock"), ("other", "x")] {
        said(&run(&["db", "create", name, "--table", table]), 0);
    }
    said(&run(&["ship", "shop", "backups/shop"]), 0);
    for arguments in [&["ship", "other", "backups/shop"][..], &["ship", "other", "backups/shop", "--whole"]] {
        let told = said(&run(arguments), 2);
        assert!(told.contains("another database") && told.contains("--take-over"), "{told}");
    }
    said(&run(&["restore", "backups/shop", "first"]), 0);
    assert!(said(&run(&["db", "table", "list", "first"]), 0).contains("stock"));
    said(&run(&["ship", "other", "backups/shop", "--take-over"]), 0);
    said(&run(&["restore", "backups/shop", "second"]), 0);
    assert!(said(&run(&["db", "table", "list", "second"]), 0).contains('x'));
}

#[test]
fn a_target_in_the_database_is_refused_and_an_error_that_does_not_pass_ends_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| nofault(folder.path(), arguments);
    let files = |of: &str| std::fs::read_dir(folder.path().join(of)).unwrap().count();
    said(&run(&["db", "create", "shop", "--table", "t"]), 0);
    std::os::unix::fs::symlink("shop", folder.path().join("linked")).unwrap();
    // Opening makes the file of readers.
    said(&run(&["db", "put", "shop", "a", "0", "--table", "t"]), 0);
    let before = files("shop");
    for target in ["shop", "shop/x", "./shop/../shop/x", "linked/x", "linked"] {
        let told = said(&run(&["ship", "shop", target]), 2);
        assert!(told.contains("lies in the database"), "{target}: {told}");
    }
    said(&run(&["ship", "shop", "backup"]), 0);
    for arguments in [&["restore", "backup", "linked/again"][..], &["db", "backup", "shop", "shop/copy"]] {
        let told = said(&run(arguments), 2);
        assert!(told.contains("lies in the database"), "{told}");
    }
    assert_eq!(files("shop"), before);
    // The lock of another shipper is waited for by the time limit, and not by a number of attempts.
    let held = std::fs::File::open(folder.path().join("backup")).unwrap();
    held.lock().unwrap();
    let told = said(&run(&["ship", "shop", "backup", "--timeout", "1s"]), 5);
    assert!(told.contains("holds the lock of this folder"), "{told}");
    drop(held);
    // A file where a folder must be: at once, and not after the time limit.
    std::fs::remove_dir_all(folder.path().join("backup/log")).ok();
    std::fs::write(folder.path().join("backup/log"), "a file").unwrap();
    said(&run(&["db", "put", "shop", "a", "1", "--table", "t"]), 0);
    let told = said(&run(&["ship", "shop", "backup", "--timeout", "30d"]), 9);
    assert!(told.contains("backup/log"), "{told}");
    let told = said(&run(&["ship", "shop", "s3://bucket/shop"]), if cfg!(feature = "s3") { 9 } else { 7 });
    assert!(cfg!(feature = "s3") || told.contains("--features s3"), "{told}");
}

/// A shipped database, and a database, in a folder that every user may write.
fn shipped() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let run = |arguments: &[&str]| nofault(folder.path(), arguments);
    said(&run(&["db", "create", "shop", "--table", "t"]), 0);
    said(&run(&["db", "put", "shop", "a", "1", "--table", "t"]), 0);
    said(&run(&["ship", "shop", "backup"]), 0);
    folder
}

/// Runs the commands under limits; returns how many ended well, and how many with the code for a limit, which is named.
fn under_limits(
    folder: &Path,
    limits: impl Iterator<Item = u32>,
    of: &str,
    run: impl Fn(&str) -> Output,
) -> (u32, u32) {
    let (mut made, mut refused) = (0, 0);
    for limit in limits {
        for command in ["ship shop backup -q --timeout 30s", "restore backup again -q", "restore backup --check"] {
            let output = run(&format!("ulimit -{of} {limit}; exec \"$0\" {command}"));
            let _ = std::fs::remove_dir_all(folder.join("again"));
            let stderr = String::from_utf8_lossy(&output.stderr);
            match output.status.code() {
                Some(0) => made += 1,
                Some(10) => {
                    refused += 1;
                    assert!(stderr.contains(&format!("`ulimit -{of}`")), "{command}: {stderr}");
                    // One error, told once.
                    assert_eq!(stderr.matches("(os error ").count(), 1, "{command}: {stderr}");
                }
                code => panic!("{command} with {limit}: {code:?}: {stderr}"),
            }
        }
    }
    (made, refused)
}

#[test]
fn with_too_few_descriptors_shipping_and_restoring_name_the_limit() {
    let folder = shipped();
    let run = |script: &str| {
        let arguments = ["-c", script, env!("CARGO_BIN_EXE_nofault")];
        Command::new("sh").args(arguments).current_dir(folder.path()).output().expect("the shell starts")
    };
    let (made, refused) = under_limits(folder.path(), (8..48).step_by(by_depth(6, 2)), "n", run);
    assert!(made > 0 && refused > 0, "{made} and {refused}");
}

/// Before, these commands panicked where the first thread could not be started, and waited for ever where a later one could not.
#[test]
fn with_too_few_threads_shipping_and_restoring_name_the_limit() {
    const OTHER_USER: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: the threads of a user with no others are not counted");
        return;
    }
    let folder = shipped();
    // Other users may have no access to the folders above the original.
    let program = folder.path().join("nofault");
    std::fs::copy(env!("CARGO_BIN_EXE_nofault"), &program).unwrap();
    assert!(Command::new("chown").args(["-R", "65534"]).arg(folder.path()).status().unwrap().success());
    let run = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).arg(&program).uid(OTHER_USER).gid(OTHER_USER).current_dir(folder.path());
        command.output().expect("the shell starts")
    };
    // Each thread of another test that runs as this user is one of them.
    let (made, refused) = under_limits(folder.path(), [1, 2, 3, 4, 5, 6, 8, 10, 12, 1000].into_iter(), "u", run);
    assert!(made > 0 && refused > 0, "{made} and {refused}");
}
