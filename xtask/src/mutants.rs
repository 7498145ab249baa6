//! A check of the checks: builds the engine with planted faults and reports, for each, which tests notice it.
//!
//! The faults stand in `xtask/mutants.toml` ([`list`]), each as texts to find in source files and the texts to put in
//! their places. All of them are planted at once, each behind a switch that an environment variable throws, in a copy
//! of the repository in `target/mutants` ([`mod@bench`]): one build serves them all, and the files being worked on are
//! never touched. A fault whose text is not found exactly once is an error, and an ordinary test of this crate fails
//! then: a change of the engine that moves the text also moves its faults.
//!
//! A fault names the tests that notice it. They run first, and nearly always one of them fails. If they pass, all tests
//! run. A failed test kills the mutant, and so does a test program that is still running at its time limit. A mutant
//! that passes everything survives; the list says why that is accepted, or the command fails.
//!
//! Verdicts are kept in `target/mutants/verdicts.toml` with a digest of the sources and of the fault, so `--resume`
//! repeats none that still holds.

mod bench;
mod list;
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use self::bench::{Bench, Outcome, Programs, Tests};
use self::list::{LIST, Mutant, read_list};

/// The document that ends with the table of all faults.
const DOCS: &str = "docs/mutants.md";
const VERDICTS: &str = "target/mutants/verdicts.toml";
/// Smallest share of mutants that must be killed, in percent.
const KILLED_PERCENT_MIN: usize = 95;
/// Time limit of one test program in minutes, unless `--limit` sets another. Without a fault the slowest program takes
/// a tenth of it on two cores.
const LIMIT_MINUTES: u64 = 10;

pub(crate) const HELP: &str = "\
cargo xtask mutants [--only NAME]... [--list] [--write-docs] [--jobs N] [--limit MINUTES] [--resume] [--all-tests] [--skip-baseline]

  --only NAME      try only this planted fault (may be repeated); without it, all of xtask/mutants.toml
  --list           print them and stop
  --write-docs     write the table of docs/mutants.md anew and stop
  --jobs N         try so many faults at a time (default 1)
  --limit MINUTES  time for one test program (default 10): one that is still running then has hung, which kills the mutant
  --resume         skip faults with a verdict on the sources as they are, from a run that was interrupted or came to its end
  --all-tests      run all tests for each fault, not only those that are known to notice it
  --skip-baseline  do not run the tests without any fault first

A run may be interrupted at any time: it works in a copy, and --resume goes on.
";

/// Arguments of `cargo xtask mutants`.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    only: Vec<String>,
    list: bool,
    write_docs: bool,
    jobs: usize,
    limit_minutes: u64,
    resume: bool,
    all_tests: bool,
    skip_baseline: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            only: Vec::new(),
            list: false,
            write_docs: false,
            jobs: 1,
            limit_minutes: LIMIT_MINUTES,
            resume: false,
            all_tests: false,
            skip_baseline: false,
        }
    }
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{argument} takes a value\n\n{HELP}"));
            let count = |text: &String| {
                let count = text.parse::<u64>().ok().filter(|count| *count > 0);
                count.with_context(|| format!("{argument} takes a number from 1 on\n\n{HELP}"))
            };
            match argument.as_str() {
                "--only" => options.only.push(value()?.clone()),
                "--jobs" => options.jobs = count(value()?)? as usize,
                "--limit" => options.limit_minutes = count(value()?)?,
                "--list" => options.list = true,
                "--write-docs" => options.write_docs = true,
                "--resume" => options.resume = true,
                "--all-tests" => options.all_tests = true,
                "--skip-baseline" => options.skip_baseline = true,
                unknown => bail!("unknown argument '{unknown}'\n\n{HELP}"),
            }
        }
        Ok(options)
    }
}

/// The stored verdict on one mutant.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Verdict {
    /// Digest of the sources and of the fault, for which the verdict holds.
    digest: String,
    is_killed: bool,
    text: String,
}

/// The verdicts by name of the fault, and the file to which each new verdict is written.
struct Verdicts {
    path: PathBuf,
    of: Mutex<BTreeMap<String, Verdict>>,
}

impl Verdicts {
    fn read(root: &Path) -> Self {
        let path = root.join(VERDICTS);
        let known = fs::read_to_string(&path).ok().and_then(|text| toml::from_str(&text).ok());
        Self { path, of: Mutex::new(known.unwrap_or_default()) }
    }

    /// The stored verdict on a fault; `None` if it was reached with another digest.
    fn get(&self, name: &str, digest: &str) -> Option<Verdict> {
        let of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.get(name).filter(|verdict| verdict.digest == digest).cloned()
    }

    fn put(&self, name: &str, verdict: Verdict) -> Result<()> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.insert(name.to_owned(), verdict);
        let text = toml::to_string(&*of).context("write verdicts down")?;
        fs::write(&self.path, text).with_context(|| self.path.display().to_string())
    }
}

/// Runs `cargo xtask mutants` with its arguments.
///
/// # Errors
/// A wrong argument, a fault that does not apply or does not compile, tests that fail without any fault, fewer mutants killed than
/// [`KILLED_PERCENT_MIN`], or a survivor without an explanation.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    let all = read_list(root)?;
    if let Some(name) = options.only.iter().find(|name| !all.iter().any(|mutant| mutant.name == **name)) {
        bail!("there is no mutant '{name}' in {LIST}: cargo xtask mutants --list shows them");
    }
    let is_chosen = |mutant: &Mutant| options.only.is_empty() || options.only.contains(&mutant.name);
    // Switches are numbered from 1 on.
    let chosen: Vec<(usize, &Mutant)> = (1..).zip(&all).filter(|(_, mutant)| is_chosen(mutant)).collect();
    if options.list {
        chosen.iter().for_each(|(_, mutant)| println!("{:48} {}", mutant.name, mutant.fault));
        return Ok(());
    }
    if options.write_docs {
        let path = root.join(DOCS);
        let text = fs::read_to_string(&path).context(DOCS)?;
        return fs::write(&path, with_table(&text, &all)?).context(DOCS);
    }
    let bench = Bench::new(root, &all, Duration::from_secs(60 * options.limit_minutes))?;
    let verdicts = Verdicts::read(root);
    let digest = |mutant: &Mutant| mutant.digest(bench.digest);
    let mut open = chosen.clone();
    open.retain(|(_, mutant)| !options.resume || verdicts.get(&mutant.name, &digest(mutant)).is_none());
    println!("xtask: {} faults, {} of them to be tried", chosen.len(), open.len());

    let mut wrong = Vec::new();
    let (named, mut left): (Vec<_>, Vec<_>) =
        open.into_iter().partition(|(_, mutant)| !mutant.killed_by.is_empty() && !options.all_tests);
    if !named.is_empty() {
        let tests = Tests::Named(named.iter().flat_map(|(_, mutant)| &mutant.killed_by).cloned().collect());
        let programs = prepared(&bench, &tests, &options)?;
        let tried = in_parallel(options.jobs, &named, |number, mutant| {
            let tests = Tests::Named(mutant.killed_by.clone());
            let outcome = bench.run(&programs, &mutant.name, Some(number), &tests)?;
            let passed = matches!(outcome, Outcome::Passed { .. });
            if passed {
                println!("xtask: {}: the tests that should notice it pass; all others come at the end", mutant.name);
            } else {
                verdicts.put(&mutant.name, announced(mutant, &outcome, digest(mutant)))?;
            }
            Ok(passed)
        });
        for (mutant, passed) in tried {
            match passed {
                Ok(true) => left.push(mutant),
                Ok(false) => {}
                Err(error) => wrong.push(format!("{}: {error:#}", mutant.1.name)),
            }
        }
    }
    if !left.is_empty() {
        let programs = prepared(&bench, &Tests::All, &options)?;
        let tried = in_parallel(options.jobs, &left, |number, mutant| {
            let outcome = bench.run(&programs, &mutant.name, Some(number), &Tests::All)?;
            verdicts.put(&mutant.name, announced(mutant, &outcome, digest(mutant)))
        });
        wrong.extend(
            tried.into_iter().filter_map(|(mutant, done)| Some(format!("{}: {:#}", mutant.1.name, done.err()?))),
        );
    }

    let (mut table, mut killed) = (String::new(), 0);
    for (_, mutant) in &chosen {
        let Some(verdict) = verdicts.get(&mutant.name, &digest(mutant)) else { continue };
        killed += usize::from(verdict.is_killed);
        let _ = writeln!(table, "| {} | {} | {} |", mutant.name, mutant.fault, verdict.text);
        if !verdict.is_killed && mutant.survives_because.is_none() {
            wrong.push(format!("{} survives, and {LIST} does not say why", mutant.name));
        }
    }
    println!("\n| mutant | fault | outcome |\n|---|---|---|\n{table}\n{killed} of {} killed", chosen.len());
    if options.only.is_empty() && killed * 100 < chosen.len() * KILLED_PERCENT_MIN {
        wrong.push(format!("fewer than {KILLED_PERCENT_MIN} % were killed"));
    }
    if wrong.is_empty() { Ok(()) } else { bail!("\n  {}", wrong.join("\n  ")) }
}

/// Builds the programs of the given tests, and checks that the tests pass without any fault.
fn prepared(bench: &Bench, tests: &Tests, options: &Options) -> Result<Programs> {
    println!("xtask: build");
    let programs = bench.build(tests)?;
    if !options.skip_baseline {
        println!("xtask: the tests without any fault");
        match bench.run(&programs, "baseline", None, tests)? {
            Outcome::Passed { seconds } => println!("xtask: all passed, {seconds} s"),
            Outcome::Failed { by, .. } => bail!("tests fail without any fault: {}", by.join(", ")),
            Outcome::Hung { by, seconds } => bail!("{by} hangs without any fault ({seconds} s)"),
        }
    }
    Ok(programs)
}

/// Calls `work` for every mutant, on `jobs` threads.
fn in_parallel<'m, T: Send>(
    jobs: usize,
    mutants: &[(usize, &'m Mutant)],
    work: impl Fn(usize, &Mutant) -> Result<T> + Sync,
) -> Vec<((usize, &'m Mutant), Result<T>)> {
    let queue: Mutex<VecDeque<(usize, &Mutant)>> = Mutex::new(mutants.iter().copied().collect());
    let done = Mutex::new(Vec::new());
    let take_turns = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((number, mutant)) = next else { return };
            let tried = work(number, mutant);
            if let Err(error) = &tried {
                println!("xtask: {}: {error:#}", mutant.name);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner).push(((number, mutant), tried));
        }
    };
    std::thread::scope(|scope| {
        (0..jobs).for_each(|_| drop(scope.spawn(take_turns)));
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the outcome for a mutant and returns it as a verdict.
fn announced(mutant: &Mutant, outcome: &Outcome, digest: String) -> Verdict {
    let text = match outcome {
        Outcome::Failed { by, seconds } => format!("killed in {seconds} s by {}", by.join(", ")),
        Outcome::Hung { by, seconds } => format!("killed by the time limit: {by} hangs ({seconds} s)"),
        Outcome::Passed { seconds } => {
            format!("SURVIVED {seconds} s: {}", mutant.survives_because.as_deref().unwrap_or("not explained"))
        }
    };
    println!("xtask: {}: {text}", mutant.name);
    Verdict { digest, is_killed: !matches!(outcome, Outcome::Passed { .. }), text }
}

/// Returns the document with the table of these faults at its end.
fn with_table(docs: &str, mutants: &[Mutant]) -> Result<String> {
    const HEADER: &str = "| fault | noticed by |\n|---|---|\n";
    let (before, _) = docs.split_once(HEADER).with_context(|| format!("{DOCS} has no table of faults"))?;
    let mut text = format!("{before}{HEADER}");
    for mutant in mutants {
        let tests: Vec<String> = mutant.killed_by.iter().map(|test| format!("`{test}`")).collect();
        let by = match &mutant.survives_because {
            Some(why) => format!("no test: {why}"),
            None => tests.join(", "),
        };
        let _ = writeln!(text, "| **{}**: {} | {by} |", mutant.name, mutant.fault);
    }
    Ok(text)
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn the_docs_have_the_table_of_the_list() {
        let root = crate::root();
        let docs = fs::read_to_string(root.join(DOCS)).unwrap();
        let expected = with_table(&docs, &read_list(&root).unwrap()).unwrap();
        assert!(docs == expected, "{DOCS} is not up to date: cargo xtask mutants --write-docs");
    }

    #[test]
    fn arguments_are_read_and_unknown_ones_refused() {
        let parse = |text: &str| Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let expected = Options { only: vec!["a".into(), "b".into()], jobs: 2, resume: true, ..Options::default() };
        assert_eq!(parse("--only a --jobs 2 --only b --resume").unwrap(), expected);
        assert!(["--only", "--jobs 0", "--limit x", "--else", "a"].iter().all(|text| parse(text).is_err()));
    }

    #[test]
    fn a_verdict_holds_for_the_sources_that_it_was_reached_on() {
        let folder = std::env::temp_dir().join(format!("nofault-verdicts-{}", std::process::id()));
        fs::create_dir_all(folder.join("target/mutants")).unwrap();
        let verdict = Verdict { digest: "1".into(), is_killed: true, text: "killed by \"x\" | y".into() };
        Verdicts::read(&folder).put("m", verdict).unwrap();
        let read = Verdicts::read(&folder);
        assert_eq!(read.get("m", "1").map(|verdict| verdict.text).as_deref(), Some("killed by \"x\" | y"));
        assert!(read.get("m", "2").is_none() && read.get("n", "1").is_none());
        fs::remove_dir_all(&folder).unwrap();
    }
}
