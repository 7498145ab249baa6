//! `nofault lab`: starts runs, and has the commands that read results.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use nofault_lab::config::Config;
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::paths::shown;
use nofault_lab::progress::{Progress, Show};
use nofault_lab::record::file::RecordFile;
use nofault_lab::report::{compare, listing, share, table};
use nofault_lab::run::{Launcher, RunOptions, RunOutcome};
use nofault_lab::trace::{Op, Recording};
use nofault_lab::{experiments, machine, run, trace};

use crate::lab_args::{LabArguments, LabCommand, ResultArguments, RunArguments};
use crate::output::{ANSWER_BYTES_MAX, log, print, serde_text, width};
use crate::signals::{STOP, Signals};

/// Runs one command of `nofault lab`, or a run of experiments.
pub(crate) fn run(arguments: LabArguments, signals: &Signals) -> Result<ExitCode> {
    match arguments.command {
        None => measure_chosen(&arguments.run, signals),
        // Children of a lab: it ends them, also where their group gets a signal.
        Some(child @ (LabCommand::Trial | LabCommand::Subject | LabCommand::Writer | LabCommand::MemoryUser)) => {
            signals.heard(|| serve(&child))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(LabCommand::Report { result, figure: Some(figure), svg: Some(svg), .. }) => {
            run::write_picture(&run::read(&result)?, &figure, &svg)?;
            log(&format!("figure: {}", shown(&svg)));
            Ok(ExitCode::SUCCESS)
        }
        Some(LabCommand::Report { result, svgs: Some(folder), .. }) => {
            let paths = run::write_pictures(&run::read(&result)?, &folder)?;
            log(&format!("figures: {} in {}", paths.len(), shown(&folder)));
            Ok(ExitCode::SUCCESS)
        }
        Some(LabCommand::Share { result, out, yes }) => share_result(&result, out.as_deref(), yes),
        Some(LabCommand::Record { of, out, faults, every, command }) => {
            // A signal of the terminal goes to the command too, and its end is the end of the recording.
            let recorded = signals.heard(|| match faults {
                true => trace::faults::record(&command, of.as_deref(), every),
                false => trace::strace::record(&command, of.as_deref()),
            })?;
            write_trace(&recorded, &out)
        }
        Some(LabCommand::Gallery { results, out }) => {
            let count = run::write_gallery(&results, &out)?;
            log(&format!("gallery of {count} results: {}", shown(&out)));
            Ok(ExitCode::SUCCESS)
        }
        Some(LabCommand::Report { result, out, json, verbose, .. }) => remake_report(&result, out, json, verbose),
        Some(LabCommand::Compare { before, after, threshold, json }) => {
            compare_results(&before, &after, threshold, json)
        }
        Some(LabCommand::Verdict(arguments)) => crate::verdict::verdict(&arguments),
        Some(LabCommand::Doctor { dir, json }) => {
            let doctor = machine::doctor::doctor(&dir);
            print(&if json { serde_text(&doctor)? } else { doctor.to_string() })?;
            Ok(ExitCode::SUCCESS)
        }
        Some(LabCommand::List { dir, json }) => {
            let results = listing::results(&dir)?;
            print(&if json { serde_text(&results)? } else { listing::text(&results) })?;
            Ok(ExitCode::SUCCESS)
        }
        Some(LabCommand::PrepareDevice { device, erase, size }) => {
            let mut progress = Progress::new(show(false), true, &STOP);
            signals.heard(|| run::prepare_device(&device, &erase, size, &mut progress, &STOP))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Does the work of a process that the lab starts.
fn serve(child: &LabCommand) -> nofault_lab::error::Result<()> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    match child {
        LabCommand::Subject => nofault_lab::experiments::errors::stores::serve(input, output),
        LabCommand::Writer => nofault_lab::experiments::safety::trial::serve(input, output),
        LabCommand::MemoryUser => nofault_lab::experiments::rss::trial::serve(input, output),
        _ => run::child::serve(input, output, &STOP),
    }
}

fn measure_chosen(arguments: &RunArguments, signals: &Signals) -> Result<ExitCode> {
    let config = arguments.config()?;
    if arguments.print_config {
        print(&config.to_toml()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    measure(config, arguments.keep_data, &arguments.results, signals)
}

/// Runs a configuration, prints its summary and the paths of its result.
pub(crate) fn measure(
    config: Config,
    keep_data: bool,
    results: &ResultArguments,
    signals: &Signals,
) -> Result<ExitCode> {
    let about_maps = experiments::are_about_maps(&config.experiments);
    let program = std::env::current_exe().context("find this program, to start trials with")?;
    let options = RunOptions {
        config,
        out: results.out.clone(),
        keep_data,
        plan_only: results.plan,
        launcher: Launcher::Child { program, abandon: Arc::clone(&signals.hurry) },
    };
    let mut progress = Progress::new(show(results.quiet), results.verbose, &STOP);
    let result = match signals.never_exiting(|| run::run(&options, &mut progress, &STOP))? {
        RunOutcome::Measured(result) => result,
        RunOutcome::Planned(plan) => {
            print(&if results.json { serde_text(&plan)? } else { plan.text(usize::from(width())) })?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    print_summary(&result.records, results.json, results.verbose)?;
    let report = result.folder.join(run::REPORT_NAME);
    match report.exists() {
        true => log(&format!("report:  {}, with {} beside it", shown(&report), run::RECORDS_NAME)),
        false => log(&format!("records: {}", shown(&result.folder.join(run::RECORDS_NAME)))),
    }
    if about_maps {
        log(&format!("your own workload: nofault lab verdict {}", shown(&result.folder)));
    }
    match result.trouble {
        Some(error) => Err(error.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn remake_report(result: &Path, out: Option<PathBuf>, json: bool, verbose: bool) -> Result<ExitCode> {
    let records = run::read(result)?;
    let out = out.unwrap_or_else(|| records.path.with_file_name(run::REPORT_NAME));
    run::write_report(&records, &out)?;
    print_summary(&records, json, verbose)?;
    log(&format!("report: {}", shown(&out)));
    Ok(ExitCode::SUCCESS)
}

/// Shows the shared form of a result, and writes it once the user agrees.
fn share_result(result: &Path, out: Option<&Path>, yes: bool) -> Result<ExitCode> {
    let shared = share::share(&run::read(result)?, &share::Names::of_this_machine())?;
    for (kind, count) in &shared.replaced {
        log(&format!("replaced: {count} {kind}"));
    }
    let Some(out) = out else {
        print(&shared.text)?;
        return Ok(ExitCode::SUCCESS);
    };
    print(&shared.shown)?;
    let size = nofault_lab::format::bytes(shared.text.len() as u64);
    log(&format!(
        "{size} in all; this was the description of the machine and the run, the rest are figures: without --out all of it is printed"
    ));
    let in_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !yes && !in_terminal {
        let message = "nothing was written: without a terminal to ask in, --yes says that the file may be written";
        return Err(LabError::new(LabErrorKind::Usage, message).into());
    }
    if !yes && !agreed(out)? {
        log("nothing was written");
        return Ok(ExitCode::SUCCESS);
    }
    run::write_shared(&shared, out)?;
    log(&format!("shared: {}", shown(&out)));
    Ok(ExitCode::SUCCESS)
}

/// Writes the trace of a command, and describes its content.
fn write_trace(recorded: &Recording, out: &Path) -> Result<ExitCode> {
    let trace = &recorded.trace;
    trace.write_new(out)?;
    let [reads, writes, syncs] = [Op::Read, Op::Write, Op::Sync].map(|op| trace.count(op));
    let threads = trace.threads.len();
    log(&format!(
        "recorded: {reads} reads, {writes} writes, {syncs} syncs by {threads} {} in {:.1} s to {}, in {}",
        if threads == 1 { "thread" } else { "threads" },
        trace.span().1,
        shown(&recorded.file),
        shown(&out)
    ));
    recorded.notes.iter().for_each(|note| log(&format!("note: {note}")));
    log(&format!("replay them: nofault lab --trace {}", shown(&out)));
    Ok(ExitCode::SUCCESS)
}

/// Asks in the terminal whether the file may be written.
fn agreed(out: &Path) -> Result<bool> {
    let _ = write!(std::io::stderr(), "Write {}? [y or n] ", shown(&out)).and_then(|()| std::io::stderr().flush());
    let mut line = String::new();
    let read = std::io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| LabError::system("read an answer", &error))?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn print_summary(records: &RecordFile, json: bool, verbose: bool) -> Result<()> {
    print(&match (json, verbose) {
        (true, _) => table::summary_json(records)?,
        (false, true) => table::summary_table(records, width()),
        (false, false) => table::brief(records, width()),
    })
}

fn compare_results(before: &Path, after: &Path, threshold: f64, json: bool) -> Result<ExitCode> {
    if !(threshold.is_finite() && threshold >= 0.0) {
        let message = format!("--threshold {threshold}: a fraction such as 0.05 is needed");
        return Err(LabError::new(LabErrorKind::Usage, message).into());
    }
    let read = run::read;
    let comparison = compare::compare(&read(before)?, &read(after)?, threshold)?;
    print(&if json { serde_text(&comparison)? } else { table::comparison_table(&comparison, width()) })?;
    Ok(ExitCode::from(comparison.exit_code()))
}

fn show(quiet: bool) -> Show {
    match (quiet, std::io::stderr().is_terminal()) {
        (true, _) => Show::Nothing,
        (false, true) => Show::Bars,
        (false, false) => Show::Lines,
    }
}
