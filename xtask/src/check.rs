//! `cargo xtask check`: everything that a change must pass, in an order that finds cheap mistakes first.
//!
//! The test programs come from `cargo test`, and each is started as cargo starts it. Two of them run at a time, and the documentation is
//! built at the same time: many tests wait for a disk, a clock or a process, and leave CPUs idle when they run alone.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{STEP_LIMITS, cargo, cargo_command, root, step, tidy, wait};

/// The test programs that take longest, the longest first. One that begins last would run alone for minutes.
const LONGEST: [&str; 4] = [
    "crates/lab/src/lib.rs",
    "crates/engine/src/lib.rs",
    "crates/engine/tests/integration/main.rs",
    "crates/engine/tests/torture/main.rs",
];

/// Number of slow tests that are named.
const SLOWEST: usize = 20;

/// Runs all checks: format first, as it is the quickest to mend; tests before docs, as they find more.
pub(crate) fn run() -> Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], &[])?;
    step("tidy", || tidy::run(&root()))?;
    let mut jobs = VecDeque::new();
    step("cargo test --no-run", || {
        jobs.extend(test_programs()?);
        Ok(())
    })?;
    // Cargo's come one after the other from the end of the list, since cargo builds one thing at a time.
    jobs.push_back(Job::cargo(&["test", "--doc"]));
    let mut documentation = Job::cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    documentation.command.env("RUSTDOCFLAGS", "-D warnings");
    jobs.push_back(documentation);
    // The fuzz targets are not in the workspace; they are compiled without building the fuzzer.
    let targets = ["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--no-default-features"];
    jobs.push_back(Job::cargo(&[&targets[..], &["--target-dir", "target"]].concat()));
    // Without features, too: tests turn them on.
    jobs.push_back(Job::cargo(&["clippy", "-p", "nofault", "--quiet", "--", "-D", "warnings"]));
    let mut times = side_by_side(jobs, &folder()?)?;
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("xtask: the slowest tests");
    times.iter().take(SLOWEST).for_each(|time| println!("{:8.1} s  {}", time.seconds, time.test));
    println!("xtask: all checks passed");
    Ok(())
}

/// A command that needs no other of the same list to have run.
struct Job {
    name: String,
    command: Command,
}

impl Job {
    fn cargo(arguments: &[&str]) -> Self {
        Self { name: format!("cargo {}", arguments.join(" ")), command: cargo_command(arguments) }
    }

    /// Runs the command with its output in the file `log`. Returns whether it succeeded.
    fn run(&mut self, log: &Path) -> Result<bool> {
        let output = File::create(log).with_context(|| log.display().to_string())?;
        let errors = output.try_clone().context("share the log of a job")?;
        self.command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = self.command.spawn().with_context(|| format!("start {}", self.name))?;
        Ok(wait(child, Some(STEP_LIMITS))?.success())
    }
}

/// A line of `cargo --message-format=json`, with the fields that a built test program has.
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    src_path: PathBuf,
}

/// Builds the test programs of `cargo test` and returns them, the longest first. The examples are no test programs; clippy has compiled them.
fn test_programs() -> Result<Vec<Job>> {
    let targets = ["--lib", "--bins", "--tests"];
    let mut build = cargo_command(&["test", "--no-run", "--message-format=json-render-diagnostics"]);
    build.args(targets);
    let messages = folder()?.join("messages.json");
    build.stdout(File::create(&messages).with_context(|| messages.display().to_string())?);
    if !wait(build.spawn().context("cargo could not be started")?, Some(STEP_LIMITS))?.success() {
        bail!("the tests do not compile");
    }
    programs(&fs::read_to_string(&messages).with_context(|| messages.display().to_string())?, &root())
}

/// The test programs among the messages of a build, each as a job in the folder of its package.
fn programs(messages: &str, root: &Path) -> Result<Vec<Job>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).with_context(|| format!("a message of cargo: {line}"))?;
        let is_test = message.reason == "compiler-artifact" && message.profile.is_some_and(|profile| profile.test);
        let (Some(program), Some(manifest), Some(target)) =
            (message.executable.filter(|_| is_test), message.manifest_path, message.target)
        else {
            continue;
        };
        let folder = manifest.parent().unwrap_or(root);
        let source = target.src_path.strip_prefix(root).unwrap_or(&target.src_path);
        let mut command = Command::new(program);
        // The times of tests are an option of unstable libraries, and wanted for the list of slow ones.
        command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder).env("RUSTC_BOOTSTRAP", "1");
        command.args(["-Z", "unstable-options", "--report-time"]);
        programs.push(Job { name: format!("tests of {}", source.display()), command });
    }
    if programs.is_empty() {
        bail!("cargo names no test program");
    }
    // Cargo's order is that in which it has built them, which differs from run to run.
    programs.sort_by_key(|job| LONGEST.iter().position(|source| job.name.ends_with(source)).unwrap_or(LONGEST.len()));
    Ok(programs)
}

/// A test that has run, with its program.
#[derive(Debug, PartialEq)]
struct TestTime {
    test: String,
    seconds: f64,
}

/// Reads the times of tests from the output of their program.
fn test_times(program: &str, output: &str) -> impl Iterator<Item = TestTime> {
    output.lines().filter_map(move |line| {
        let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let seconds = outcome.split_once('<')?.1.split_once("s>")?.0.parse().ok()?;
        Some(TestTime { test: format!("{program}: {name}"), seconds })
    })
}

/// Makes the folder for the output of jobs.
fn folder() -> Result<PathBuf> {
    let folder = root().join("target/check");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Runs the jobs on two threads, one of which begins with the first and the other with the last. Prints the output of a job when it ends;
/// until then it is in a file in the folder `logs`. After a failure no job is started. Returns the times of the tests.
fn side_by_side(jobs: VecDeque<Job>, logs: &Path) -> Result<Vec<TestTime>> {
    let (jobs, failed, times) = (Mutex::new(jobs), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let take_turns = |name: &str, next: fn(&mut VecDeque<Job>) -> Option<Job>| {
        let log = logs.join(name);
        while locked(&failed).is_empty() {
            let Some(mut job) = next(&mut locked(&jobs)) else { return };
            println!("xtask: {}", job.name);
            let started = Instant::now();
            let outcome = job.run(&log);
            let mut out = std::io::stdout().lock();
            // Output that cannot be shown changes no result.
            let _ = writeln!(out, "xtask: {}: {:.0} s", job.name, started.elapsed().as_secs_f64());
            let output = fs::read(&log).unwrap_or_default();
            let _ = out.write_all(&output);
            locked(&times).extend(test_times(&job.name, &String::from_utf8_lossy(&output)));
            match outcome {
                Ok(true) => {}
                Ok(false) => locked(&failed).push(format!("{} failed", job.name)),
                Err(error) => locked(&failed).push(format!("{}: {error:#}", job.name)),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| take_turns("first.log", VecDeque::pop_front));
        scope.spawn(|| take_turns("last.log", VecDeque::pop_back));
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(times.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_programs_of_a_build_are_found_with_the_folders_of_their_packages() {
        let artifact = |test: bool, executable: &str, source: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"p","manifest_path":"/r/crates/a/Cargo.toml","target":{{"kind":["lib"],"name":"a",
                "src_path":"/r/crates/a/{source}"}},"profile":{{"opt_level":"0","test":{test}}},"executable":{executable},"fresh":true}}"#
            )
            .replace('\n', "")
        };
        let messages = [
            artifact(false, "null", "src/lib.rs"),
            artifact(false, r#""/t/a""#, "src/main.rs"),
            "running 1 test".to_owned(),
            artifact(true, r#""/t/deps/a-1""#, "src/lib.rs"),
            artifact(true, r#""/t/deps/b-2""#, "tests/b/main.rs"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = programs(&messages.join("\n"), Path::new("/r")).unwrap();
        let found: Vec<_> =
            found.iter().map(|job| (&*job.name, job.command.get_program(), job.command.get_current_dir())).collect();
        let folder = Some(Path::new("/r/crates/a"));
        let expected =
            [("tests of crates/a/src/lib.rs", "/t/deps/a-1"), ("tests of crates/a/tests/b/main.rs", "/t/deps/b-2")];
        assert_eq!(found, expected.map(|(name, program)| (name, program.as_ref(), folder)));
        assert!(programs("", Path::new("/r")).is_err());
        let long = artifact(true, r#""/t/deps/long""#, "../engine/src/lib.rs").replace("a/../", "");
        let found =
            programs(&[artifact(true, r#""/t/deps/a-1""#, "src/lib.rs"), long].join("\n"), Path::new("/r")).unwrap();
        assert_eq!(found[0].command.get_program(), "/t/deps/long");
        assert!(LONGEST.iter().all(|source| root().join(source).exists()), "a test program that takes long has moved");
    }

    #[test]
    fn the_times_of_tests_are_read_from_the_output_of_their_program() {
        let output = "running 3 tests\ntest a::b ... ok <1.250s>\ntest c ... FAILED <0.003s>\ntest d ... ignored\n";
        let read: Vec<_> = test_times("p", output).map(|time| (time.test, time.seconds)).collect();
        assert_eq!(read, [("p: a::b".to_owned(), 1.25), ("p: c".to_owned(), 0.003)]);
    }

    #[test]
    fn a_job_that_fails_is_named_and_stops_those_that_have_not_begun() {
        let job = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Job { name: name.to_owned(), command }
        };
        let folder = std::env::temp_dir().join(format!("nofault-check-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let touch = |name: &str| format!("touch {}", folder.join(name).display());
        let all = ["a", "b", "c"].map(|name| job(name, &touch(name)));
        assert_eq!(side_by_side(all.into(), &folder).unwrap(), []);
        assert!(["a", "b", "c"].iter().all(|name| folder.join(name).exists()));
        let failing = [job("bad", "exit 3"), job("late", &touch("late")), job("slow", "sleep 2")];
        assert_eq!(side_by_side(failing.into(), &folder).unwrap_err().to_string(), "bad failed");
        assert!(!folder.join("late").exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
