//! A check of the checks: builds the engine with one planted fault at a time and reports which tests notice it.
//!
//! The faults stand in `xtask/mutants.toml`, each as a text to find in one source file and the text to put in its place. They are
//! applied to a copy of the repository in `target/mutants/tree`, never to the files being worked on, and built in a target
//! folder of their own. A text to find that the file does not have exactly once is an error, and an ordinary test of this crate
//! ([`Mutant::apply`] over all of them) fails then: a change of the engine that moves the text has to update its faults.
//!
//! A test run that fails or hangs kills the mutant. One that passes lets it survive; the list says why that is accepted, or the
//! command fails.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

const LIST: &str = "xtask/mutants.toml";
/// Time for the tests of one mutant, build included. The unchanged engine takes a fifth of it on two cores.
const RUN_MAX: Duration = Duration::from_secs(15 * 60);
/// Share of mutants that must be killed, in percent.
const KILLED_PERCENT_MIN: usize = 95;

pub(crate) const HELP: &str = "\
cargo xtask mutants [NAME...] [--list] [--all-tests] [--skip-baseline]

  NAME             only these planted faults; without one, all of xtask/mutants.toml
  --list           print them and stop
  --all-tests      go on after the first test program that fails, to see every test that notices the fault
  --skip-baseline  do not run the tests on the unchanged engine first
";

/// One planted fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    name: String,
    /// The fault, in a sentence.
    fault: String,
    /// Path from the root of the repository.
    file: String,
    find: String,
    replace: String,
    /// Why no test can notice it, or why that is accepted.
    survives_because: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

/// The result of the tests of a mutant.
enum Outcome {
    Killed { by: Vec<String>, seconds: u64 },
    Hung { seconds: u64 },
    Survived { seconds: u64 },
}

impl Mutant {
    /// The text of its file with the fault in it.
    fn apply(&self, text: &str) -> Result<String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            count => bail!("mutant {}: its text stands {count} times in {}, not once", self.name, self.file),
        }
    }
}

/// Reads the list, and checks that names are unique and every fault applies to the repository at `root`.
fn read_list(root: &Path) -> Result<Vec<Mutant>> {
    let text = fs::read_to_string(root.join(LIST)).context(LIST)?;
    let List { mutant: mutants } = toml::from_str(&text).context(LIST)?;
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for mutant in &mutants {
        if !names.insert(&mutant.name) {
            wrong.push(format!("mutant {} stands twice", mutant.name));
        }
        let applied = fs::read_to_string(root.join(&mutant.file))
            .with_context(|| format!("mutant {}: {}", mutant.name, mutant.file))
            .and_then(|text| mutant.apply(&text));
        wrong.extend(applied.err().map(|error| format!("{error:#}")));
    }
    if wrong.is_empty() { Ok(mutants) } else { bail!("{LIST}:\n  {}", wrong.join("\n  ")) }
}

/// Runs the command with its arguments.
///
/// # Errors
/// A wrong argument, a fault that does not apply or does not compile, tests that fail without any fault, or fewer mutants
/// killed than [`KILLED_PERCENT_MIN`].
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let known = ["--list", "--all-tests", "--skip-baseline"];
    let (flags, names): (Vec<&String>, Vec<&String>) = arguments.iter().partition(|text| text.starts_with('-'));
    if let Some(unknown) = flags.iter().find(|flag| !known.contains(&flag.as_str())) {
        bail!("unknown flag '{unknown}'\n\n{HELP}");
    }
    let all = read_list(root)?;
    if let Some(name) = names.iter().find(|name| !all.iter().any(|mutant| mutant.name == ***name)) {
        bail!("there is no mutant '{name}' in {LIST}: cargo xtask mutants --list shows them");
    }
    let chosen: Vec<&Mutant> = all.iter().filter(|mutant| names.is_empty() || names.contains(&&mutant.name)).collect();
    if flag("--list") {
        chosen.iter().for_each(|mutant| println!("{:44} {}", mutant.name, mutant.fault));
        return Ok(());
    }
    let bench = Bench::new(root, flag("--all-tests"))?;
    if !flag("--skip-baseline") {
        println!("xtask: the tests without any fault");
        match bench.test("baseline")? {
            Outcome::Survived { seconds } => println!("xtask: all passed, {seconds} s"),
            Outcome::Killed { by, .. } => bail!("tests fail without any fault: {}", by.join(", ")),
            Outcome::Hung { seconds } => bail!("the tests hang without any fault ({seconds} s)"),
        }
    }
    let (mut table, mut killed, mut unexplained) = (String::new(), 0, Vec::new());
    for (number, mutant) in chosen.iter().enumerate() {
        let outcome = bench.with(mutant, || bench.test(&mutant.name))?;
        let verdict = match &outcome {
            Outcome::Killed { by, seconds } => format!("killed in {seconds} s by {}", by.join(", ")),
            Outcome::Hung { seconds } => format!("killed: the tests hang ({seconds} s)"),
            Outcome::Survived { seconds } => {
                let why = mutant.survives_because.as_deref();
                if why.is_none() {
                    unexplained.push(mutant.name.as_str());
                }
                format!("SURVIVED {seconds} s: {}", why.unwrap_or("not explained"))
            }
        };
        killed += usize::from(!matches!(outcome, Outcome::Survived { .. }));
        println!("xtask: {}/{} {}: {verdict}", number + 1, chosen.len(), mutant.name);
        let _ = writeln!(table, "| {} | {} | {verdict} |", mutant.name, mutant.fault);
    }
    println!("\n| mutant | fault | outcome |\n|---|---|---|\n{table}\n{killed} of {} killed", chosen.len());
    if killed * 100 < chosen.len() * KILLED_PERCENT_MIN || !unexplained.is_empty() {
        bail!("at least {KILLED_PERCENT_MIN} % must be killed, and survivors explained: {}", unexplained.join(", "));
    }
    Ok(())
}

/// A copy of the repository in which faults are planted.
struct Bench {
    root: PathBuf,
    tree: PathBuf,
    all_tests: bool,
}

impl Bench {
    /// Copies every file that git tracks or would track. An unchanged file keeps its time, so that it is not built again.
    fn new(root: &Path, all_tests: bool) -> Result<Self> {
        let tree = root.join("target/mutants/tree");
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("git ls-files")?;
        let listed = String::from_utf8(listed.stdout).context("names of files that are not Unicode")?;
        for name in listed.split('\0').filter(|name| !name.is_empty()) {
            let (from, to) = (root.join(name), tree.join(name));
            // Deleted and not yet committed.
            let Ok(content) = fs::read(&from) else { continue };
            if fs::read(&to).is_ok_and(|there| there == content) {
                continue;
            }
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
            }
            fs::write(&to, content).with_context(|| format!("write {}", to.display()))?;
        }
        Ok(Self { root: root.to_path_buf(), tree, all_tests })
    }

    /// Runs `work` while the fault is in the copy.
    fn with(&self, mutant: &Mutant, work: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
        let path = self.tree.join(&mutant.file);
        let text = fs::read_to_string(&path).with_context(|| mutant.file.clone())?;
        fs::write(&path, mutant.apply(&text)?).with_context(|| mutant.file.clone())?;
        let outcome = work();
        fs::write(&path, text).with_context(|| mutant.file.clone())?;
        outcome
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).current_dir(&self.tree).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", self.root.join("target/mutants/build")).env("CARGO_TERM_COLOR", "never");
        // A fault often leaves code unused.
        command.env("RUSTFLAGS", "-A warnings");
        command
    }

    /// Builds and runs the tests of the engine and of the layer below it.
    fn test(&self, name: &str) -> Result<Outcome> {
        let started = Instant::now();
        let mut arguments = vec!["test", "--quiet", "-p", "nofault-io", "-p", "nofault", "--lib", "--tests"];
        let built = self.cargo(&[&arguments[..], &["--no-run"]].concat()).output().context("start cargo")?;
        if !built.status.success() {
            bail!("mutant {name} does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
        }
        arguments.remove(1);
        if self.all_tests {
            arguments.push("--no-fail-fast");
        }
        let log = self.root.join(format!("target/mutants/{name}.log"));
        let output = fs::File::create(&log).with_context(|| log.display().to_string())?;
        let errors = output.try_clone().context("share the log of a test run")?;
        let child = self.cargo(&arguments).stdout(output).stderr(errors).spawn().context("start cargo")?;
        let status = super::wait(child, Some(RUN_MAX));
        let seconds = started.elapsed().as_secs();
        let text = String::from_utf8_lossy(&fs::read(&log).context("read the log of a test run")?).into_owned();
        let by = failed_tests(&text);
        Ok(match status {
            Err(_) => Outcome::Hung { seconds },
            Ok(status) if status.success() => Outcome::Survived { seconds },
            Ok(_) if by.is_empty() => {
                bail!("the test run of {name} failed without a failed test: see {}", log.display())
            }
            Ok(_) => Outcome::Killed { by, seconds },
        })
    }
}

/// Finds the names of failed tests in the output of `cargo test`, and of test programs that were ended by a signal.
fn failed_tests(output: &str) -> Vec<String> {
    let mut failed = Vec::new();
    let mut program = "";
    for line in output.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("Running ") {
            program = rest.split(" (").next().unwrap_or(rest);
        } else if let Some(rest) = line.strip_prefix("test ")
            && let Some(test) =
                rest.strip_suffix(" ... FAILED").or_else(|| rest.strip_suffix(" - should panic ... FAILED"))
        {
            failed.push(test.to_owned());
        } else if line.contains("process didn't exit successfully") && line.contains("signal") {
            failed.push(format!("{program} (ended by a signal)"));
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_fault_applies_to_the_code_as_it_is() {
        read_list(&crate::root()).unwrap();
    }

    #[test]
    fn a_fault_is_planted_where_its_text_stands_once() {
        let mutant = Mutant {
            name: "m".into(),
            fault: String::new(),
            file: "f".into(),
            find: "b".into(),
            replace: "x".into(),
            survives_because: None,
        };
        assert_eq!(mutant.apply("abc").unwrap(), "axc");
        assert!(mutant.apply("abcb").unwrap_err().to_string().contains("2 times"));
        assert!(mutant.apply("ac").is_err());
    }

    #[test]
    fn failed_tests_and_killed_programs_are_named() {
        let output = "     Running tests/a.rs (target/a)\ntest one ... ok\ntest two::x ... FAILED\n\
                      error: test failed\n  process didn't exit successfully: `a` (signal: 6, SIGABRT)\n";
        assert_eq!(failed_tests(output), ["two::x", "tests/a.rs (ended by a signal)"]);
    }
}
