//! `nofault lab verdict`: what the user says of the workload, by flags or asked for in a terminal, and the answer.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::summary::Summary;
use nofault_lab::verdict::{Workload, judge};
use nofault_lab::{listing, run, table};

use crate::lab::{print, serde_text, width};

/// The flags of `nofault lab verdict`.
#[derive(Debug, Args)]
pub(crate) struct VerdictArguments {
    /// A result folder, or a records.ndjson; the newest result in nofault-lab by default.
    result: Option<PathBuf>,
    /// The database is only ever read.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    read_only: Option<bool>,
    /// All that is used of it fits in memory.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    fits_in_memory: Option<bool>,
    /// Threads that use it at the same time.
    #[arg(long, help_heading = "The workload", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// A slow answer now and then is a problem.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    latency_matters: Option<bool>,
    /// Several changes must happen together or not at all, and survive a crash.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    needs_transactions: Option<bool>,
    /// Ask nothing: what no flag says is assumed, and named.
    #[arg(long)]
    no_questions: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Judges a result.
pub(crate) fn verdict(arguments: &VerdictArguments) -> Result<ExitCode> {
    let result = match &arguments.result {
        Some(result) => result.clone(),
        None => newest(Path::new("nofault-lab"))?,
    };
    let records = run::read(&result)?;
    let mut workload = Workload {
        read_only: arguments.read_only,
        fits_in_memory: arguments.fits_in_memory,
        threads: arguments.threads,
        latency_matters: arguments.latency_matters,
        needs_transactions: arguments.needs_transactions,
    };
    let in_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if in_terminal && !arguments.no_questions && !arguments.json {
        ask(&mut workload)?;
    }
    let verdict = judge(&records, &Summary::of(&records), workload);
    print(&if arguments.json { serde_text(&verdict)? } else { table::verdict_text(&verdict, false, width()) })?;
    Ok(ExitCode::SUCCESS)
}

/// The newest readable result in a folder.
fn newest(folder: &Path) -> Result<PathBuf> {
    let mut results = listing::results(folder)?;
    results.retain(|entry| matches!(entry.state, listing::State::Readable { .. }));
    results.pop().map(|entry| entry.folder).ok_or_else(|| {
        let message = format!("there is no result in {}; `nofault lab` makes one, or name one", folder.display());
        LabError::new(LabErrorKind::Usage, message).into()
    })
}

/// Asks for what no flag said. An empty answer, or the end of the input, leaves a question open.
fn ask(workload: &mut Workload) -> Result<()> {
    let questions: [(&str, &mut Option<bool>); 3] = [
        ("Does all that is used of the database fit in memory?", &mut workload.fits_in_memory),
        ("Is it only ever read?", &mut workload.read_only),
        ("Is a slow answer now and then a problem?", &mut workload.latency_matters),
    ];
    for (question, answer) in questions {
        if answer.is_none() {
            *answer = yes_or_no(question)?;
        }
    }
    if workload.needs_transactions.is_none() && workload.read_only != Some(true) {
        workload.needs_transactions =
            yes_or_no("Must several changes happen together or not at all, and survive a crash?")?;
    }
    if workload.threads.is_none() {
        workload.threads = line("How many threads use it at the same time? [number, empty: unknown] ")?.parse().ok();
    }
    Ok(())
}

fn yes_or_no(question: &str) -> Result<Option<bool>> {
    loop {
        match line(&format!("{question} [y/n, empty: unknown] "))?.to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(Some(true)),
            "n" | "no" => return Ok(Some(false)),
            "" => return Ok(None),
            _ => {}
        }
    }
}

fn line(question: &str) -> Result<String> {
    let mut told = std::io::stderr();
    let _ = write!(told, "{question}");
    let _ = told.flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("read an answer")?;
    Ok(answer.trim().to_owned())
}
