//! Checks of this repository, in one command: `cargo xtask check`. The same words locally and in CI.

mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};

const HELP: &str = "\
cargo xtask <command>

  check   everything a change must pass: format, clippy, tidy, tests, docs
  tidy    the house rules only: direction of imports, dead files, file length, paths that do not belong here
  sim     power cuts on the simulated disk with fresh seeds, in release: --minutes N (default 1)
";

fn main() -> ExitCode {
    let command = std::env::args().nth(1).unwrap_or_default();
    let result = match command.as_str() {
        "check" => check(),
        "tidy" => tidy::run(&root()),
        "sim" => sim(),
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

/// Format first, as it is the quickest to mend; tests before docs, as they say more.
fn check() -> Result<()> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], &[])?;
    step("tidy", || tidy::run(&root()))?;
    cargo(&["test"], &[])?;
    // A module's header may name its private parts: it is written for who reads the source.
    let strict = "-D warnings -A rustdoc::private_intra_doc_links";
    cargo(&["doc", "--workspace", "--no-deps", "--quiet"], &[("RUSTDOCFLAGS", strict)])?;
    println!("xtask: all checks passed");
    Ok(())
}

/// The same body as the ordinary test of power cuts, for as long as asked.
fn sim() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let minutes = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => "1",
        ["--minutes", minutes] if minutes.parse::<f64>().is_ok_and(|minutes| minutes > 0.0) => minutes,
        _ => bail!("cargo xtask sim takes --minutes N\n\n{HELP}"),
    };
    let test = ["test", "--release", "-p", "nofault", "--test", "torture", "--"];
    let which = ["power_cuts_for_minutes", "--ignored", "--nocapture"];
    cargo(&[&test[..], &which].concat(), &[("NOFAULT_SIM_MINUTES", minutes)])
}

fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    step(&format!("cargo {}", arguments.join(" ")), || {
        let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(root())
            .status()
            .context("cargo could not be started")?;
        if !status.success() {
            bail!("cargo {} failed", arguments.join(" "));
        }
        Ok(())
    })
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
