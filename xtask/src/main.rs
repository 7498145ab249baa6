//! The checks of this repository in one command, `cargo xtask check`, the same locally and in CI.

mod check;
mod miri;
mod mutants;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The times after which a running step is reported, and stopped. The longest step, a build or a test program, takes a quarter of the
/// first time on two idle cores, and more than all of it next to two busy loops: a slow machine is not a hang.
const STEP_LIMITS: Limits = Limits { report: Duration::from_secs(20 * 60), stop: Duration::from_secs(80 * 60) };

/// The times after which a child process is reported and stopped.
#[derive(Clone, Copy)]
struct Limits {
    /// Time after which the command lines of the child and its descendants are printed once.
    report: Duration,
    /// Time after which the command lines are printed again, and the processes are killed.
    stop: Duration,
}

const HELP: &str = "\
cargo xtask <command>

  check   everything a change must pass: format, clippy, tidy, tests, docs
  deep    `cargo test` with all cases of the long tests, of which an ordinary run takes a share: some ten minutes more
  tidy    the house rules only: direction of imports, dead files, file length, paths in documents that lead nowhere, …
  models  every interleaving of the threads' protocols in pool and log, on models of them, in release
  sim     power cuts on the simulated disk, optimised, on all CPUs, with fresh seeds: --minutes N (default 1), half of it
          histories of one thread, which a seed repeats exactly, half power cuts, kills and failed writes among several
          threads. A failure prints its seed and the line that repeats it, or where files and history are kept and the
          line that checks them again, and ends with exit code 1
  histories
          transactions of threads and tasks beside each other, also while the process is killed, optimised, with fresh
          seeds, checked for strict serializability: --minutes N (default 1). A failure prints where its history is kept
  miri    the tests of unsafe code that Miri can interpret, for undefined behaviour: some seven minutes; needs a nightly
          toolchain with Miri and says how to install it
  mutants plants one fault of xtask/mutants.toml at a time in a copy of the engine and reports which tests notice it: an hour or
          more. --only NAME chooses, --list shows them, --resume continues after an interruption, --help lists all options
";

fn main() -> ExitCode {
    let command = std::env::args().nth(1).unwrap_or_default();
    let result = match command.as_str() {
        "check" => check::run(),
        "deep" => cargo_within(None, &["test"], &[("NOFAULT_DEEP", "1")]),
        "tidy" => tidy::run(&root()),
        "models" => models(),
        "sim" => sim(),
        "histories" => histories(),
        "mutants" if std::env::args().skip(2).any(|argument| argument == "--help") => {
            print!("{}", mutants::HELP);
            Ok(())
        }
        "miri" => miri::run(&root()),
        "mutants" => mutants::run(&root(), &std::env::args().skip(2).collect::<Vec<_>>()),
        "" | "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(anyhow::anyhow!("unknown command '{other}'\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests under the model checker. They build in a separate folder, because their flags differ and
/// everything else would have to be built again.
fn models() -> Result<()> {
    let test = ["test", "--release", "-p", "nofault-tests", "--test", "models", "--target-dir", "target/models"];
    cargo(&test, &[("RUSTFLAGS", "--cfg nofault_models")])
}

/// Runs the tests of power cuts for the minutes given.
fn sim() -> Result<()> {
    let minutes = minutes("sim")? / 2.0;
    for test in ["power_cuts::power_cuts_for_minutes", "threads::threads_for_minutes"] {
        for_minutes("torture", test, minutes)?;
    }
    Ok(())
}

/// Runs the tests of concurrent histories for the minutes given.
fn histories() -> Result<()> {
    for_minutes("isolation", "histories::histories_for_minutes", minutes("histories")?)
}

/// Reads the minutes from the arguments: `--minutes` and a number; 1 without arguments.
fn minutes(command: &str) -> Result<f64> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let minutes = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(1.0),
        ["--minutes", minutes] => minutes.parse().ok().filter(|minutes| *minutes > 0.0),
        _ => None,
    };
    minutes.with_context(|| format!("cargo xtask {command} takes --minutes N\n\n{HELP}"))
}

/// Runs an ignored test that reads its duration in minutes from the environment.
fn for_minutes(target: &str, name: &str, minutes: f64) -> Result<()> {
    let test = ["test", "--profile", "sim", "-p", "nofault-tests", "--test", target, "--"];
    let which = [name, "--exact", "--ignored", "--nocapture"];
    // No limit: the test ends by itself.
    cargo_within(None, &[&test[..], &which].concat(), &[("NOFAULT_SIM_MINUTES", &minutes.to_string())])
}

fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    cargo_within(Some(STEP_LIMITS), arguments, environment)
}

fn cargo_within(limits: Option<Limits>, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    step(&format!("cargo {}", arguments.join(" ")), || {
        let child =
            cargo_command(arguments).envs(environment.iter().copied()).spawn().context("cargo could not be started")?;
        if !wait(child, limits)?.success() {
            bail!("cargo {} failed", arguments.join(" "));
        }
        Ok(())
    })
}

/// The command that runs this cargo in the repository.
fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Waits for a child process. A child that runs too long is killed with all its descendants, and their command lines
/// are printed; the output shows the hanging test as running.
fn wait(mut child: Child, limits: Option<Limits>) -> Result<ExitStatus> {
    let Some(limits) = limits else { return child.wait().context("cargo cannot be waited for") };
    let started = Instant::now();
    let mut is_reported = false;
    loop {
        if let Some(status) = child.try_wait().context("cargo cannot be waited for")? {
            return Ok(status);
        }
        let must_stop = started.elapsed() > limits.stop;
        if must_stop || (!is_reported && started.elapsed() > limits.report) {
            is_reported = true;
            let family = descendants(child.id());
            for (pid, command) in &family {
                eprintln!("xtask: still running after {} min: {pid} {command}", started.elapsed().as_secs() / 60);
            }
            if must_stop {
                let pids = family.iter().map(|(pid, _)| pid.to_string());
                let _ = Command::new("kill").arg("-9").args(pids).status();
                let _ = child.wait();
                bail!("this hangs");
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The descendants of a process, with their command lines.
fn descendants(root: u32) -> Vec<(u32, String)> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // In `/proc/<pid>/stat` the fields follow the program's name, which may contain anything but a last
        // parenthesis: the state, then the parent.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut family = vec![root];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    let command = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    family.iter().map(|pid| (*pid, String::from_utf8_lossy(&command(pid)).replace('\0', " "))).collect()
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("xtask: {name}");
    let started = Instant::now();
    work()?;
    println!("xtask: {name}: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_hangs_is_killed_with_its_descendants() {
        let child = Command::new("sh").args(["-c", "sleep 300 & sleep 301 & wait"]).spawn().unwrap();
        let pid = child.id();
        std::thread::sleep(Duration::from_millis(200));
        let family = descendants(pid);
        assert!(family.iter().any(|(_, command)| command.starts_with("sleep 301")), "{family:?}");
        let at_once = Limits { report: Duration::ZERO, stop: Duration::from_millis(1) };
        assert_eq!(wait(child, Some(at_once)).unwrap_err().to_string(), "this hangs");
        let is_alive = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
        };
        let patience = Instant::now();
        while family.iter().any(|(pid, _)| is_alive(*pid)) && patience.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!family.iter().any(|(pid, _)| is_alive(*pid)), "left running: {family:?}");
        let slow = Command::new("sleep").arg("0.3").spawn().unwrap();
        let reported = Limits { report: Duration::ZERO, stop: Duration::from_secs(60) };
        assert!(wait(slow, Some(reported)).unwrap().success(), "a report does not stop a child");
    }
}
