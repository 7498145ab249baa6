//! The summary for a terminal: a table for each experiment and target, then the main findings; everything else is in
//! the report. The same in some forty lines: `brief`; as JSON for programs: `json`.

mod brief;
mod json;

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

use crate::experiment::TargetView;
use crate::experiments;
use crate::format::Unit;
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, Skip, SkipCause};
use crate::report::claims::{Answer, Outcome, answers, counted};
use crate::report::compare;
use crate::report::findings::{Finding, Kind, findings, headlines};
use crate::report::verdict::{Verdict, Workload, judge};
use crate::summary::{Summary, target_title};
pub use brief::brief;
pub use json::summary_json;

/// Most lines of one kind (findings, warnings, claims) below the tables; the report has all of them.
const WARNINGS_MAX: usize = 6;
/// Most main findings below the tables.
const HEADLINES_MAX: usize = 5;

/// Formats the summary of a run: a table for each experiment and target with the best setting of each method, the
/// headline findings, warnings by kind, and skipped measurements. No line is wider than `width` columns (at least 40).
/// Plain text, no colours; ends with a line break.
pub fn summary_table(file: &RecordFile, width: u16) -> String {
    let width = usize::from(width.max(40));
    let summary = Summary::of(file);
    let mut text = tables(file, &summary, width);
    if summary.groups.is_empty() {
        text.push_str("Nothing was measured.\n");
    }
    let findings = findings(file, &summary);
    for finding in headlines(&findings, HEADLINES_MAX) {
        push(&mut text, "=>", &finding.text, width);
    }
    undecided(&findings, width, &mut text);
    let warnings: Vec<&Finding> = findings.iter().filter(|finding| finding.kind == Kind::Warning).collect();
    for finding in warnings.iter().take(WARNINGS_MAX) {
        push(&mut text, " !", &finding.text, width);
    }
    if !file.run.biases.is_empty() {
        let biases = format!("{} biases of this machine were found; the report names them.", file.run.biases.len());
        push(&mut text, " !", &biases, width);
    }
    if warnings.len() > WARNINGS_MAX {
        let rest = match warnings.len() - WARNINGS_MAX {
            1 => "One more reason for care is in the report.".to_owned(),
            more => format!("{more} more reasons for care are in the report."),
        };
        push(&mut text, " !", &rest, width);
    }
    for id in experiments::ALL.map(|experiment| experiment.id()) {
        let skips: Vec<&Skip> = file.skips.iter().filter(|skip| skip.experiment == id).collect();
        let whole = skips.iter().find(|skip| skip.method.is_empty() && skip.target.is_empty());
        if let Some(skip) = whole.filter(|_| summary.places(id).is_empty()) {
            // The reason why a whole experiment was skipped is printed here, so that no report has to be opened for it.
            push(&mut text, " !", &format!("Not measured: {id}: {}.", skip.reason.trim_end_matches('.')), width);
        } else if !skips.is_empty() {
            let _ = writeln!(text, "{}", skipped(id, &skips, width));
        }
    }
    if !experiments::are_about_maps(&file.run.config.experiments) {
        return text;
    }
    claims_lines(&answers(file, &summary), width, &mut text);
    text.push_str(&verdict_lines(file, &summary, u16::try_from(width).unwrap_or(u16::MAX)));
    text
}

/// Formats the verdict on the run's own workload in short, below a heading.
fn verdict_lines(file: &RecordFile, summary: &Summary<'_>, width: u16) -> String {
    let verdict = judge(file, summary, Workload::of_run(file));
    format!("\nVerdict\n{}", verdict_text(&verdict, true, width))
}

/// Names the gaps of a run in few sentences: the experiments of which nothing was measured, with the reason, and the
/// number of the other measurements that this machine left out. Measurements of a larger preset are no gap.
fn gaps(file: &RecordFile, summary: &Summary<'_>) -> Vec<String> {
    let mut whole: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut others = 0;
    for skip in file.skips.iter().filter(|skip| skip.cause != Some(SkipCause::LargerPreset)) {
        let is_whole = skip.method.is_empty() && skip.target.is_empty();
        if !is_whole || summary.of_experiment(skip.experiment).next().is_some() {
            others += 1;
            continue;
        }
        match whole.iter_mut().find(|(reason, _)| *reason == skip.reason) {
            Some((_, names)) => names.push(skip.experiment.name()),
            None => whole.push((&skip.reason, vec![skip.experiment.name()])),
        }
    }
    let named = whole
        .iter()
        .map(|(reason, names)| format!("Not measured: {}: {}.", names.join(", "), reason.trim_end_matches('.')));
    let counted = match others {
        0 => None,
        1 => Some("One measurement was left out; the report gives the reason.".to_owned()),
        count => Some(format!("{count} measurements were left out; the report gives the reasons.")),
    };
    named.chain(counted).collect()
}

/// Formats the tables of all experiments, each followed by an empty line.
fn tables(file: &RecordFile, summary: &Summary<'_>, width: usize) -> String {
    let mut text = String::new();
    for experiment in experiments::ALL {
        let places = summary.places(experiment.id());
        let mut targets: Vec<&str> = Vec::new();
        for (_, target) in &places {
            if !targets.contains(target) {
                targets.push(target);
            }
        }
        for target in targets {
            let variants = places.iter().filter(|place| place.1 == target).map(|place| place.0).collect();
            let sheets = experiment.tables(&TargetView { file, summary, target, variants });
            sheets.into_iter().for_each(|sheet| text.push_str(&sheet.text(width)));
        }
    }
    text
}

/// Prints the number of claims of each outcome, and the ids of the claims that were measured.
fn claims_lines(all: &[Answer], width: usize, text: &mut String) {
    push(text, "=>", &format!("{} claims for and against mmap: {}.", all.len(), counted(all)), width);
    for outcome in [Outcome::Held, Outcome::InPart, Outcome::DidNotHold, Outcome::CannotBeTried] {
        let of = all.iter().filter(|answer| answer.decision.outcome == outcome);
        let ids: Vec<&str> = of.map(|answer| answer.id).collect();
        if !ids.is_empty() {
            push(text, "  ", &format!("{}: {}", outcome.words(), ids.join(", ")), width);
        }
    }
}

/// Formats a verdict for the terminal; `short` keeps only the first reasons. Ends with a line break.
pub fn verdict_text(verdict: &Verdict, short: bool, width: u16) -> String {
    let width = usize::from(width.max(40));
    let mut text = String::new();
    for (mark, sentence) in verdict.lines(short) {
        push(&mut text, mark, &sentence, width);
    }
    text
}

fn push(text: &mut String, mark: &str, sentence: &str, width: usize) {
    for (index, line) in wrap(sentence, width - 3).iter().enumerate() {
        let _ = writeln!(text, "{} {line}", if index == 0 { mark } else { "  " });
    }
}

/// Prints the number of comparisons that the repeats do not decide, and the experiments of which the main one is among them.
fn undecided(findings: &[Finding], width: usize, text: &mut String) {
    let all: Vec<&Finding> = findings.iter().filter(|finding| finding.kind == Kind::Inconclusive).collect();
    let main = all.iter().filter(|finding| finding.key_figure.is_some());
    let main: Vec<&str> = main.filter_map(|finding| Some(finding.experiment?.name())).collect();
    let among =
        if main.is_empty() { String::new() } else { format!(", among them the main ones of {}", main.join(", ")) };
    match all.len() {
        0 => {}
        1 => push(text, " ?", &format!("One comparison is undecided{among}."), width),
        count => {
            let sentence = format!(
                "{count} comparisons are undecided, as the repeats do not tell the two apart or there was one run{among}."
            );
            push(text, " ?", &sentence, width);
        }
    }
}

/// Describes the skipped measurements of an experiment in one line.
fn skipped(id: ExperimentId, skips: &[&Skip], width: usize) -> String {
    let is_later = |skip: &Skip| skip.cause == Some(SkipCause::LargerPreset);
    let mut parts: Vec<String> = Vec::new();
    for skip in skips.iter().filter(|skip| !is_later(skip)) {
        let what = match (skip.method.as_str(), skip.target.as_str()) {
            ("", "") => "more".to_owned(),
            ("", target) => target_title(target),
            (method, "") => experiments::method_title(id, method),
            (method, target) => format!("{} ({})", experiments::method_title(id, method), target_title(target)),
        };
        if !parts.contains(&what) {
            parts.push(what);
        }
    }
    if skips.iter().any(|skip| is_later(skip)) {
        parts.insert(0, "more from --preset standard on".to_owned());
    }
    let line = format!("Not measured in {id}: {}; why is in the report", parts.join(", "));
    let whole = line.chars().count() <= width;
    if whole { line } else { line.chars().take(width - 1).chain(['…']).collect() }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats a comparison of two results for the terminal: the trials that changed or may have, and the number of the
/// others. No line is wider than `width` columns (at least 40).
pub fn comparison_table(comparison: &crate::report::compare::Comparison, width: u16) -> String {
    let width = width.max(40);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table.set_header(["trial", "before", "after", "after/before", "verdict"]);
    let is_same = |row: &&crate::report::compare::Row| row.verdict == compare::Verdict::Same;
    for row in comparison.rows.iter().filter(|row| !is_same(row)) {
        table.add_row([
            row.key.clone(),
            row.unit.show(row.before.median),
            row.unit.show(row.after.median),
            Unit::Ratio.show(row.ratio.median),
            row.verdict.name().to_owned(),
        ]);
    }
    let same = comparison.rows.iter().filter(is_same).count();
    let threshold = Unit::Percent.show(comparison.threshold * 100.0);
    let mut text = if same < comparison.rows.len() { format!("{table}\n\n") } else { String::new() };
    let _ = writeln!(text, "{same} of {} trials are the same within {threshold}.", comparison.rows.len());
    let lists = [
        ("only before", &comparison.only_before),
        ("only after", &comparison.only_after),
        ("warning", &comparison.warnings),
    ];
    for line in lists.iter().flat_map(|(name, list)| list.iter().map(move |item| format!("{name}: {item}"))) {
        for line in wrap(&line, usize::from(width)) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}
