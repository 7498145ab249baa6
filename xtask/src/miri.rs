//! Runs the tests of the unsafe code that Miri can interpret. Miri reports undefined behaviour that an ordinary run does
//! not show: use after free, reads of uninitialized memory, references that alias, data races, wrong alignment.
//!
//! Miri interprets no io_uring, no mapped files and no `ppoll`, so its runs cover the memory that the rings and the
//! pool share ([`RUNS`]): buffers and their pieces, frames, private copies of pages, versions under epoch guards, and the
//! semaphore. The pool's tests run on the simulated disk. It is some thousand times slower than the machine, so tests
//! whose work is their size are skipped, by name.
//!
//! There is no run of ThreadSanitizer. It knows no fences (`atomic::fence`), on which crossbeam-epoch and the pool's own
//! reclamation stand, and reports each use of them as a race; suppressing these would hide the races that matter. Miri
//! does understand fences and checks for races on the interleavings that it tries; `cargo xtask models` checks the
//! protocols between threads on all interleavings, under the memory model of C++.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The rules for references that Miri checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aliasing {
    /// Tree Borrows, the rules expected to become Rust's.
    Tree,
    /// No rules: crossbeam-epoch frees a thread's entry inside a method that borrows it, which both sets of rules
    /// refuse. All other checks apply, races and use after free among them.
    Unchecked,
}

impl Aliasing {
    fn flag(self) -> &'static str {
        match self {
            Self::Tree => "-Zmiri-tree-borrows",
            Self::Unchecked => "-Zmiri-disable-stacked-borrows",
        }
    }
}

/// The tests of one crate that Miri runs.
#[derive(Debug)]
struct Run {
    package: &'static str,
    aliasing: Aliasing,
    /// Parts of names of tests. Each must match a test.
    tests: &'static [&'static str],
    /// Parts of names of tests that take too long. Each must match a test.
    skipped: &'static [&'static str],
}

const RUNS: &[Run] = &[
    Run {
        package: "nofault-io",
        aliasing: Aliasing::Tree,
        tests: &["aligned::tests::"],
        // The first reads /proc. The second unmaps a part of a map, which Miri refuses.
        skipped: &["a_forked_child_does_not_share_pages", "huge_regions_start_at_a_huge_page"],
    },
    Run {
        package: "nofault",
        aliasing: Aliasing::Tree,
        tests: &["sync::semaphore::tests::", "buffer_pool::versions::chunked_queue::"],
        skipped: &[],
    },
    Run {
        package: "nofault",
        aliasing: Aliasing::Unchecked,
        tests: &[
            "buffer_pool::versions::history::",
            "buffer_pool::reads::read::",
            "buffer_pool::tests::dropped",
            "buffer_pool::tests::portions::",
            "buffer_pool::tests::reads::",
            "buffer_pool::tests::refused::a_read_of_an_earlier_page",
        ],
        // The threads read real files, through O_DIRECT. The other works too long: it fills the device's queue.
        skipped: &["buffer_pool::tests::reads::threads::", "no_more_reads_are_under_way"],
    },
];

const TOOLCHAIN: &str = "nightly";

/// Runs every entry of [`RUNS`], one after the other.
///
/// # Errors
/// When Miri is not installed, a name matches no test, or a test fails.
pub(crate) fn run(root: &Path) -> Result<()> {
    ensure_installed()?;
    for run in RUNS {
        check_names(root, run)?;
        let names = run.tests.join(", ");
        println!("xtask: Miri ({}): {} {names}", run.aliasing.flag(), run.package);
        let status = miri(root, run).args(arguments(run)).status().context("cargo miri could not be started")?;
        ensure!(status.success(), "Miri refuses a test of {}: {names}", run.package);
    }
    println!("xtask: Miri found nothing");
    Ok(())
}

fn ensure_installed() -> Result<()> {
    let version = Command::new("rustup").args(["run", TOOLCHAIN, "cargo", "miri", "--version"]).output();
    if !version.as_ref().is_ok_and(|output| output.status.success()) {
        bail!(
            "Miri is not installed: rustup toolchain install {TOOLCHAIN}, then \
             rustup component add --toolchain {TOOLCHAIN} miri rust-src"
        );
    }
    Ok(())
}

/// The command line of a run, up to the arguments of the test program; with a separate build folder.
fn miri(root: &Path, run: &Run) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", TOOLCHAIN, "cargo", "miri", "test", "--quiet", "--target-dir", "target/miri", "--lib"])
        .args(["-p", run.package, "--"])
        .current_dir(root)
        // The tests read clocks and make folders. The pools' background threads may outlive a test, with their memory.
        .env("MIRIFLAGS", format!("-Zmiri-disable-isolation -Zmiri-ignore-leaks {}", run.aliasing.flag()))
        // Properties are tried on few cases: a case takes seconds.
        .env("PROPTEST_CASES", "2")
        // The toolchain of this process must not decide for the toolchain named above.
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn arguments(run: &Run) -> Vec<&'static str> {
    let mut arguments = run.tests.to_vec();
    arguments.extend(run.skipped.iter().flat_map(|name| ["--skip", name]));
    arguments
}

/// Checks that each name of a run matches a test: otherwise a renamed test would be left out without notice.
fn check_names(root: &Path, run: &Run) -> Result<()> {
    let listed = miri(root, run).arg("--list").output().context("cargo miri could not be started")?;
    ensure!(
        listed.status.success(),
        "the tests of {} cannot be built for Miri:\n{}",
        run.package,
        String::from_utf8_lossy(&listed.stderr)
    );
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    for part in run.tests.iter().chain(run.skipped) {
        ensure!(
            names.iter().any(|name| name.contains(part)),
            "no test of {} is called {part}; xtask/src/miri.rs is to be adapted",
            run.package
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_names_tests_and_skips_only_among_them() {
        for run in RUNS {
            assert!(!run.tests.is_empty(), "without a name all tests of {} would run, for days", run.package);
            for part in run.skipped.iter().filter(|part| part.contains("::")) {
                assert!(
                    run.tests.iter().any(|tests| part.starts_with(tests)),
                    "{part} is not chosen in the first place"
                );
            }
        }
    }

    #[test]
    fn the_command_names_toolchain_rules_and_tests() {
        let run = Run { package: "p", aliasing: Aliasing::Tree, tests: &["a::"], skipped: &["b"] };
        let command = miri(Path::new("/"), &run);
        let arguments: Vec<_> = command.get_args().filter_map(|argument| argument.to_str()).collect();
        assert!(arguments.starts_with(&["run", TOOLCHAIN, "cargo", "miri", "test"]), "{arguments:?}");
        let flags = command.get_envs().find(|(name, _)| *name == "MIRIFLAGS").and_then(|(_, value)| value?.to_str());
        assert!(flags.is_some_and(|flags| flags.ends_with(Aliasing::Tree.flag())), "{flags:?}");
        assert_eq!(super::arguments(&run), ["a::", "--skip", "b"]);
    }
}
