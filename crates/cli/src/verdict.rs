//! `nofault lab verdict`: the description of the workload, from flags or from questions in a terminal, and the verdict.

use std::io::{BufRead, IsTerminal as _, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nofault_lab::config::WorkloadConfig;
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::paths::shown;
use nofault_lab::report::verdict::{Workload, judge};
use nofault_lab::report::{listing, table};
use nofault_lab::run;
use nofault_lab::summary::Summary;

use crate::output::{ANSWER_BYTES_MAX, print, serde_text, width};

/// Flags that describe the workload, for a run's own verdict and for `nofault lab verdict`.
#[derive(Debug, Args)]
pub(crate) struct WorkloadFlags {
    /// The database is only read, never written.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    read_only: Option<bool>,
    /// The part of the data in use fits in memory.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    fits_in_memory: Option<bool>,
    /// An occasional slow answer is a problem.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    latency_matters: Option<bool>,
    /// Several changes must happen together or not happen, and survive a crash.
    #[arg(long, help_heading = "The workload", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    needs_transactions: Option<bool>,
    /// Threads that use your database at the same time. The flags of this group change only the verdict.
    #[arg(long, help_heading = "The workload", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    workload_threads: Option<u32>,
}

impl WorkloadFlags {
    /// Replaces the answers in `workload` by the answers that the flags give.
    pub(crate) fn replace_answers(&self, workload: &mut WorkloadConfig) {
        let answers = [
            (self.read_only, &mut workload.read_only),
            (self.fits_in_memory, &mut workload.fits_in_memory),
            (self.latency_matters, &mut workload.latency_matters),
            (self.needs_transactions, &mut workload.needs_transactions),
        ];
        for (answer, stated) in answers {
            if let Some(answer) = answer {
                *stated = answer.into();
            }
        }
        workload.threads = self.workload_threads.unwrap_or(workload.threads);
    }
}

/// The flags of `nofault lab verdict`.
#[derive(Debug, Args)]
pub(crate) struct VerdictArguments {
    /// A result folder, or a records.ndjson; the newest result in nofault-lab by default.
    result: Option<PathBuf>,
    #[command(flatten)]
    stated: WorkloadFlags,
    /// Ask no questions; where no flag gives an answer, the verdict assumes one and names it.
    #[arg(long)]
    no_questions: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the verdict on a result.
pub(crate) fn verdict(arguments: &VerdictArguments) -> Result<ExitCode> {
    let result = match &arguments.result {
        Some(result) => result.clone(),
        None => newest(Path::new("nofault-lab"))?,
    };
    let records = run::read(&result)?;
    // The run's own answers hold unless a flag overrides them.
    let mut stated = records.run.config.workload;
    arguments.stated.replace_answers(&mut stated);
    let mut workload = Workload::from(stated);
    let in_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if in_terminal && !arguments.no_questions && !arguments.json {
        ask(&mut workload, &mut std::io::stdin().lock(), &mut std::io::stderr())?;
    }
    let verdict = judge(&records, &Summary::of(&records), workload);
    print(&if arguments.json { serde_text(&verdict)? } else { table::verdict_text(&verdict, false, width()) })?;
    Ok(ExitCode::SUCCESS)
}

/// Finds the newest readable result in a folder.
fn newest(folder: &Path) -> Result<PathBuf> {
    let mut results = listing::results(folder)?;
    results.retain(|entry| matches!(entry.state, listing::State::Readable { .. }));
    results.pop().map(|entry| entry.folder).ok_or_else(|| {
        let message = format!("there is no result in {}; `nofault lab` makes one, or name one", shown(&folder));
        LabError::new(LabErrorKind::Usage, message).into()
    })
}

/// Asks the questions that no flag has answered. An empty answer leaves a question open; the end of the input leaves
/// all remaining questions open.
fn ask(workload: &mut Workload, from: &mut impl BufRead, to: &mut impl Write) -> Result<()> {
    let mut asked = Questions { from, to, ended: false };
    let questions: [(&str, &mut Option<bool>); 3] = [
        ("Does the part of the database in use fit in memory?", &mut workload.fits_in_memory),
        ("Is it only read, never written?", &mut workload.read_only),
        ("Is a slow answer now and then a problem?", &mut workload.latency_matters),
    ];
    for (question, answer) in questions {
        if answer.is_none() {
            *answer = asked.yes_or_no(question)?;
        }
    }
    if workload.needs_transactions.is_none() && workload.read_only != Some(true) {
        workload.needs_transactions =
            asked.yes_or_no("Must several changes happen together or not at all, and survive a crash?")?;
    }
    if workload.threads.is_none() {
        workload.threads = asked.count("How many threads use it at the same time?")?;
    }
    Ok(())
}

/// Asks questions on an output and reads the answers from an input.
struct Questions<'a, R, W> {
    from: &'a mut R,
    to: &'a mut W,
    /// Whether the input has ended: no further question is asked then.
    ended: bool,
}

impl<R: BufRead, W: Write> Questions<'_, R, W> {
    fn yes_or_no(&mut self, question: &str) -> Result<Option<bool>> {
        self.answer(question, "y or n", |answer| match answer.to_ascii_lowercase().as_str() {
            "y" | "yes" => Some(true),
            "n" | "no" => Some(false),
            _ => None,
        })
    }

    fn count(&mut self, question: &str) -> Result<Option<u32>> {
        self.answer(question, "a number from 1 on", |answer| answer.parse().ok().filter(|count| *count > 0))
    }

    /// Asks a question again until the answer is valid or empty.
    fn answer<T>(&mut self, question: &str, kind: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>> {
        while !self.ended {
            // An error of the output is ignored: an open question leads to an assumption, which the verdict names.
            let _ = write!(self.to, "{question} [{kind}; empty: unknown] ").and_then(|()| self.to.flush());
            let mut line = String::new();
            let read = self.from.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line);
            // After the end of the input or an error, the next output starts on a new line.
            if !matches!(read, Ok(1..)) {
                let _ = writeln!(self.to);
            }
            if read.map_err(|error| LabError::system("read an answer", &error))? == 0 {
                self.ended = true;
                break;
            }
            match line.trim() {
                "" => return Ok(None),
                answer => match parse(answer) {
                    Some(answer) => return Ok(Some(answer)),
                    None => {
                        let _ = writeln!(self.to, "'{answer}' is not {kind}.");
                    }
                },
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(mut workload: Workload, answers: &str) -> (Workload, String) {
        let mut printed = Vec::new();
        ask(&mut workload, &mut answers.as_bytes(), &mut printed).unwrap();
        (workload, String::from_utf8(printed).unwrap())
    }

    #[test]
    fn each_question_has_its_answer_and_empty_means_unknown() {
        let (workload, printed) = answered(Workload::default(), "y\nNo\n\nyes\n8\n");
        let expected = Workload {
            fits_in_memory: Some(true),
            read_only: Some(false),
            latency_matters: None,
            needs_transactions: Some(true),
            threads: Some(8),
        };
        assert_eq!(workload, expected);
        assert_eq!(printed.matches("empty: unknown").count(), 5, "{printed}");
    }

    #[test]
    fn a_question_that_a_flag_or_another_answer_settles_is_not_asked() {
        let stated = Workload { fits_in_memory: Some(false), threads: Some(2), ..Workload::default() };
        let (workload, printed) = answered(stated, "y\nn\n");
        assert_eq!((workload.read_only, workload.latency_matters), (Some(true), Some(false)));
        assert_eq!(printed.matches('?').count(), 2, "a database that is only read needs no transactions: {printed}");
    }

    #[test]
    fn an_invalid_answer_is_asked_again_and_the_end_of_the_input_ends_the_questions() {
        let (workload, printed) = answered(Workload::default(), "perhaps\nn\ny\nn\n0\nmany\n4\n");
        assert_eq!((workload.fits_in_memory, workload.threads), (Some(false), Some(4)));
        for words in ["'perhaps' is not y or n.", "'0' is not a number from 1 on.", "'many' is not"] {
            assert!(printed.contains(words), "{printed}");
        }
        let (workload, printed) = answered(Workload::default(), "y\n");
        assert_eq!(workload, Workload { fits_in_memory: Some(true), ..Workload::default() });
        assert_eq!(printed.matches('?').count(), 2, "no question follows the end of the input: {printed}");
        assert!(printed.ends_with('\n'));
    }
}
