//! Where there is no Linux: compiling gives one error, and it says what is missing.

use std::process::Command;

const LIB: &str = include_str!("../src/lib.rs");
const MANIFEST: &str = include_str!("../Cargo.toml");

#[test]
fn on_another_system_the_only_error_is_the_sentence_that_says_so() {
    let scratch = tempfile::tempdir().expect("a folder");
    let lib = scratch.path().join("lib.rs");
    // As a compiler for another system takes it. Every module is behind the same condition, so none is looked for.
    std::fs::write(&lib, LIB.replace("target_os = \"linux\"", "target_os = \"none\"")).expect("a file");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let run = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--out-dir"])
        .args([scratch.path(), &lib])
        .output()
        .expect("the compiler that has compiled this test");
    let said = String::from_utf8_lossy(&run.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error")).collect();
    assert!(!run.status.success());
    let [sentence, aborting] = errors[..] else { panic!("one sentence, and how many errors there are: {said}") };
    assert!(sentence.starts_with("error: nofault runs on Linux only: ") && sentence.contains("O_DIRECT"), "{said}");
    assert!(aborting.contains("aborting due to 1 previous error"), "{said}");
}

#[test]
fn no_dependency_that_needs_linux_is_asked_for_elsewhere() {
    let (_, everywhere) = MANIFEST.split_once("[dependencies]\n").expect("a section");
    let everywhere: Vec<&str> = everywhere.lines().take_while(|line| !line.is_empty()).collect();
    assert!(everywhere.iter().all(|line| !line.contains("io-uring") && !line.contains("rustix")), "{everywhere:?}");
}
