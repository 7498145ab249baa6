//! `nofault completions` and `nofault man`: made from the flags, and accepted by the shells that are there.

use std::process::{Command, Output, Stdio};

fn nofault(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nofault")).args(arguments).output().expect("the program starts")
}

#[test]
fn each_shell_gets_completions_that_it_can_read() {
    for (shell, check) in [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let output = nofault(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("salvage") && script.contains("stripe-over"), "{shell}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        match Command::new(shell).args(check).arg(file.path()).stderr(Stdio::piped()).output() {
            Ok(checked) => assert!(checked.status.success(), "{shell}: {checked:?}"),
            Err(error) => println!("left out: {shell} does not run here: {error}"),
        }
    }
    assert_eq!(nofault(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_page_of_the_manual() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("man1");
    let page = nofault(&["man"]);
    assert!(page.status.success() && String::from_utf8_lossy(&page.stdout).contains(".TH nofault 1"), "{page:?}");
    assert!(nofault(&["man", "--dir", dir.to_str().unwrap()]).status.success());
    for name in ["nofault.1", "nofault-db.1", "nofault-db-salvage.1", "nofault-db-table-drop.1", "nofault-lab.1"] {
        let text = std::fs::read_to_string(dir.join(name)).unwrap();
        assert!(text.starts_with(".ie") || text.contains(".TH"), "{name}");
    }
    let salvage = std::fs::read_to_string(dir.join("nofault-db-salvage.1")).unwrap();
    assert!(salvage.contains("nofault db salvage broken rescued"), "{salvage}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_ne!(nofault(&["man", "--dir", file.to_str().unwrap()]).status.code(), Some(0));
}
