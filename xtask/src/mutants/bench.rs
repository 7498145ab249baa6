//! A copy of the repository with all faults in it, each behind a switch, and its test programs.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::list::{Mutant, SWITCH, planted};
use super::tests::{PACKAGES, Program, Test};

/// The tests of one run, which stops after the first program with a failure.
pub(super) enum Tests {
    Named(Vec<Test>),
    All,
}

/// How a run of tests ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Tests failed, or a test program was ended by a signal.
    Failed {
        by: Vec<String>,
        seconds: u64,
    },
    /// A test program was still running at its time limit.
    Hung {
        by: String,
        seconds: u64,
    },
    Passed {
        seconds: u64,
    },
}

/// The copy of the repository with the planted faults, and the folder in which it is built.
pub(super) struct Bench {
    folder: PathBuf,
    tree: PathBuf,
    /// Time limit of one test program.
    limit: Duration,
    /// Digest of the sources before any fault is planted.
    pub(super) digest: u64,
}

/// The built test programs with their paths.
pub(super) struct Programs(BTreeMap<Program, PathBuf>);

impl Bench {
    /// Copies every file of the repository that git does not ignore, and plants the faults. A file that has not changed
    /// keeps its time, so that it is not built again.
    pub(super) fn new(root: &Path, mutants: &[Mutant], limit: Duration) -> Result<Self> {
        let folder = root.join("target/mutants");
        let tree = folder.join("tree");
        let mut planted = planted(root, mutants)?;
        let mut digest = DefaultHasher::new();
        for name in tracked(root)? {
            let (from, to) = (root.join(&name), tree.join(&name));
            let Ok(content) = fs::read(&from) else {
                // Deleted, but the deletion is not yet committed.
                let _ = fs::remove_file(&to);
                continue;
            };
            if PACKAGES.iter().any(|(_, folder)| name.starts_with(folder)) {
                (&name, &content).hash(&mut digest);
            }
            let content = planted.remove(Path::new(&name)).map_or(content, String::into_bytes);
            if fs::read(&to).is_ok_and(|there| there == content) {
                continue;
            }
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
            }
            fs::write(&to, content).with_context(|| format!("write {}", to.display()))?;
        }
        Ok(Self { folder, tree, limit, digest: digest.finish() })
    }

    /// Builds the programs of the given tests.
    pub(super) fn build(&self, tests: &Tests) -> Result<Programs> {
        let mut programs = BTreeMap::new();
        for (package, _) in PACKAGES {
            let mut arguments = vec!["test", "--no-run", "-p", package];
            if package == "nofault" {
                // The other packages ask for the features that they test.
                arguments.extend(["--features", "zstd,tracing"]);
            }
            match tests {
                Tests::All => arguments.extend(["--lib", "--tests"]),
                Tests::Named(tests) => {
                    let mut wanted: Vec<&Program> = tests.iter().map(|test| &test.program).collect();
                    wanted.retain(|program| program.package == package);
                    wanted.sort();
                    wanted.dedup();
                    if wanted.is_empty() {
                        continue;
                    }
                    for program in wanted {
                        match &program.target {
                            None => arguments.push("--lib"),
                            Some(target) => arguments.extend(["--test", target]),
                        }
                    }
                }
            }
            let built = self.cargo(&arguments).output().context("start cargo")?;
            let printed = String::from_utf8_lossy(&built.stderr);
            if !built.status.success() {
                bail!("the tests do not compile with the faults in them:\n{printed}");
            }
            for (target, path) in executables(&printed) {
                programs.insert(Program { package: package.to_owned(), target }, self.tree.join(path));
            }
        }
        Ok(Programs(programs))
    }

    /// Runs tests with one fault switched on by its number, or without a fault for `None`. `name` is the name of the
    /// log with the output.
    pub(super) fn run(&self, programs: &Programs, name: &str, number: Option<usize>, tests: &Tests) -> Result<Outcome> {
        let started = Instant::now();
        let seconds = || started.elapsed().as_secs();
        let log = self.folder.join(format!("{name}.log"));
        let runs: Vec<(&Program, Vec<&str>)> = match tests {
            Tests::All => programs.0.keys().map(|program| (program, Vec::new())).collect(),
            Tests::Named(tests) => by_program(tests).into_iter().collect(),
        };
        for (program, names) in runs {
            let path = programs.0.get(program).with_context(|| format!("there is no test program {program}"))?;
            let folder = self.tree.join(program.folder().unwrap_or_default());
            let output = fs::File::create(&log).with_context(|| log.display().to_string())?;
            let errors = output.try_clone().context("share the log of a test run")?;
            let mut command = Command::new(path);
            // Without names `--exact` filters nothing.
            command
                .arg("--exact")
                .args(&names)
                .current_dir(&folder)
                .env("CARGO_MANIFEST_DIR", &folder)
                .env("NOFAULT_DEEP", "1");
            if let Some(number) = number {
                command.env(SWITCH, number.to_string());
            }
            command.stdin(Stdio::null()).stdout(output).stderr(errors);
            let child = command.spawn().with_context(|| format!("start {}", path.display()))?;
            let Ok(status) = crate::wait(child, Some(crate::Limits { report: self.limit, stop: self.limit })) else {
                return Ok(Outcome::Hung { by: program.to_string(), seconds: seconds() });
            };
            let text = String::from_utf8_lossy(&fs::read(&log).context("read the log of a test run")?).into_owned();
            if !status.success() {
                let mut by: Vec<String> = failed_tests(&text).map(|test| format!("{program} {test}")).collect();
                if by.is_empty() && status.code().is_none() {
                    by.push(format!("{program}, ended by a signal"));
                }
                if by.is_empty() {
                    bail!("{program} failed, but none of its tests: see {}", log.display());
                }
                return Ok(Outcome::Failed { by, seconds: seconds() });
            }
            if let Some(missing) = names.iter().find(|name| !text.contains(&format!("test {name} ... "))) {
                bail!("there is no test {missing} in {program}");
            }
        }
        Ok(Outcome::Passed { seconds: seconds() })
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).current_dir(&self.tree).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", self.folder.join("build")).env("CARGO_TERM_COLOR", "never");
        // Faulty code causes warnings, which are allowed; debug information is not needed.
        command.env("RUSTFLAGS", "-A warnings").env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }
}

/// Names of all files that git does not ignore, sorted.
fn tracked(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let listed = String::from_utf8(git.output().context("git ls-files")?.stdout);
    let listed = listed.context("names of files that are not Unicode")?;
    let mut names: Vec<String> = listed.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// Groups the names of tests by their programs.
fn by_program(tests: &[Test]) -> BTreeMap<&Program, Vec<&str>> {
    let mut programs: BTreeMap<&Program, Vec<&str>> = BTreeMap::new();
    for test in tests {
        let names = programs.entry(&test.program).or_default();
        if !names.contains(&&*test.name) {
            names.push(&test.name);
        }
    }
    programs
}

/// The test programs that cargo prints at the end of a build: for each the name of the integration test, or `None` for
/// unit tests, and the path.
fn executables(printed: &str) -> impl Iterator<Item = (Option<String>, &str)> {
    printed.lines().filter_map(|line| {
        let (source, path) = line.trim_start().strip_prefix("Executable ")?.split_once(" (")?;
        // The sources of a package of tests stand in its folder itself.
        let source = (!source.starts_with("unittests ")).then(|| source.strip_prefix("tests/").unwrap_or(source));
        let target = source.and_then(|source| source.split(['/', '.']).next());
        Some((target.map(str::to_owned), path.strip_suffix(')')?))
    })
}

/// The names of failed tests in the output of a test program.
fn failed_tests(output: &str) -> impl Iterator<Item = &str> {
    let outcomes = output.lines().filter_map(|line| line.strip_prefix("test "));
    let failed = outcomes.filter_map(|test| test.strip_suffix(" ... FAILED"));
    failed.map(|test| test.strip_suffix(" - should panic").unwrap_or(test))
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn failed_tests_are_named() {
        let output = "test one ... ok\ntest two::x ... FAILED\ntest y - should panic ... FAILED\nerror: test failed\n";
        assert!(failed_tests(output).eq(["two::x", "y"]));
    }

    #[test]
    fn test_programs_are_found_in_the_words_of_cargo() {
        let printed = "   Compiling nofault v0.1.0\n  Executable unittests src/lib.rs (/b/nofault-1)\n  \
                       Executable tests/panics.rs (/b/panics-2)\n  Executable tests/torture/main.rs (/b/torture-3)\n  \
                       Executable closing.rs (/b/closing-4)\n  Executable mmap/main.rs (/b/mmap-5)\n";
        let found: Vec<_> = executables(printed).collect();
        let target = |name: &str| Some(name.to_owned());
        assert_eq!(found[..2], [(None, "/b/nofault-1"), (target("panics"), "/b/panics-2")]);
        let rest =
            [(target("torture"), "/b/torture-3"), (target("closing"), "/b/closing-4"), (target("mmap"), "/b/mmap-5")];
        assert_eq!(found[2..], rest);
    }
}
