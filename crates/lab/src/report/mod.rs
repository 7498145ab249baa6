//! One self-contained HTML file from a record file: a paper of two pages (question, machine, verdict, three figures, a
//! table), then appendices that fold: each experiment with its findings, figures, tables, method and the literature's
//! figures. No network, no script needed; the same records give the same bytes.
//!
//! Everything from the records passes the template's escaping or `show::svg::escape`; only drawings made here are markup.

pub mod claims;
mod claims_table;
pub mod compare;
pub mod findings;
pub mod gallery;
pub mod listing;
mod literature;
pub(crate) mod picture;
pub mod share;
pub mod table;
mod text;
mod threats;
pub mod verdict;

use std::collections::BTreeMap;

use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;

use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Experiment, Section as Measured};
use crate::experiments;
use crate::format;
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, MachineInfo};
use crate::report::claims::answers;
use crate::report::findings::{Finding, Kind, MainFigure, findings, headlines, main_figures};
use crate::report::verdict::{Side, Verdict, Workload, judge};
use crate::show::figures::Figure;
use crate::summary::Summary;

/// Most figures of the paper.
const PAPER_FIGURES: usize = 3;
/// Number of bytes at the beginning of a file that suffice to recognise a report.
pub(crate) const HEAD_BYTES: u64 = 1024;
/// The beginning of every report, except for white space; the title follows within [`HEAD_BYTES`].
const BEGINNING: &str = "<!DOCTYPE html>";
const TITLE: &str = "<title>nofault lab ";
/// The report's heading for a run with experiments about maps.
const HEADING: &str = "What does paging with mmap cost on this machine?";

const TEMPLATE: &str = include_str!("report.html");
const PARTS: &str = include_str!("parts.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("zoom.js");

/// An experiment's section of the report.
#[derive(Debug, Serialize)]
struct Section {
    id: &'static str,
    question: &'static str,
    findings: Vec<Finding>,
    figures: Vec<Figure>,
    method: Vec<String>,
    literature: Vec<Literature>,
    change: &'static [&'static str],
    skips: Vec<(String, String)>,
}

/// A table of published figures, with its source.
#[derive(Debug, Serialize)]
struct Literature {
    cite: &'static str,
    title: &'static str,
    machine: &'static str,
    how: &'static str,
    figure: Figure,
    remarks: &'static [&'static str],
}

/// A row of the paper's table: an experiment's main figure.
#[derive(Debug, Serialize)]
struct Answer {
    question: &'static str,
    #[serde(flatten)]
    row: MainFigure,
}

/// The verdict in words, for the report.
#[derive(Debug, Serialize)]
struct VerdictView {
    headline: String,
    workload: String,
    leading: Vec<ReasonView>,
    others: Vec<ReasonView>,
    not_measured: Vec<String>,
    otherwise: Option<String>,
    sure: &'static str,
    why_no_surer: String,
}

/// A reason of the verdict, for the report.
#[derive(Debug, Serialize)]
struct ReasonView {
    rule: &'static str,
    side: &'static str,
    class: &'static str,
    text: String,
    trials: Vec<String>,
}

impl VerdictView {
    fn of(verdict: Verdict) -> Self {
        let sentence = |head: &str, words: String| match words.as_str() {
            "" => String::new(),
            words => format!("{head} of the workload: {words}."),
        };
        let (stated, assumed) = (sentence("Said", verdict.stated.words()), sentence("Assumed", verdict.assumptions()));
        let workload = [stated, assumed].join(" ").trim().to_owned();
        let reasons = verdict.reasons.into_iter().map(|reason| ReasonView {
            rule: reason.rule,
            side: reason.side.words(),
            class: match reason.side {
                Side::Against => "against",
                Side::For => "for",
                Side::Neither => "neither",
            },
            text: format::glued(&reason.text),
            trials: reason.trials,
        });
        let mut leading: Vec<ReasonView> = reasons.collect();
        let others = leading.split_off(verdict.leading.min(leading.len()));
        Self {
            headline: verdict.headline,
            workload,
            leading,
            others,
            not_measured: verdict.not_measured.iter().map(ToString::to_string).collect(),
            otherwise: verdict.otherwise.map(|words| format::glued(&words)),
            sure: verdict.sure.words(),
            why_no_surer: verdict.why_no_surer.join("; "),
        }
    }
}

/// The values that the report's template is filled with.
#[derive(Debug, Serialize)]
struct Page<'a> {
    style: &'static str,
    script: &'static str,
    date: String,
    tool_version: &'a str,
    preset: String,
    complete: bool,
    incomplete_reason: String,
    elapsed: Option<String>,
    trials: usize,
    machine: Vec<(String, String)>,
    machine_line: String,
    heading: &'static str,
    /// Whether one of the run's experiments is about maps; only then the report has a verdict and claims.
    about_maps: bool,
    biases: &'a [String],
    /// The name of each bias of the machine, without its consequences.
    bias_names: Vec<String>,
    verdict: VerdictView,
    claims: Vec<claims_table::Line>,
    claims_counted: String,
    paper: Vec<Figure>,
    answers: Vec<Answer>,
    headlines: Vec<&'a Finding>,
    undecided_count: usize,
    terms: Vec<String>,
    warnings: Vec<&'a Finding>,
    sections: Vec<Section>,
    notes: Vec<(String, String)>,
    settings: String,
}

/// Returns whether a file with this beginning is a report.
pub(crate) fn is_one(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    head.trim_start().starts_with(BEGINNING) && head.contains(TITLE)
}

/// Renders the report of a record file.
///
/// # Errors
/// `System` when the template cannot be filled, which would be a bug.
pub fn html(file: &RecordFile) -> Result<String> {
    let summary = Summary::of(file);
    let mut findings = findings(file, &summary);
    for finding in &mut findings {
        finding.text = format::glued(&finding.text);
        finding.key_figure.iter_mut().for_each(|figure| figure.detail = format::glued(&figure.detail));
    }
    let main = main_figures(file, &summary, &findings).into_iter().filter_map(|row| {
        Some(Answer { question: experiments::find(row.experiment)?.description().texts.question, row })
    });
    let main: Vec<Answer> = main.collect();
    let undecided_count = findings.iter().filter(|finding| finding.kind == Kind::Inconclusive).count();
    let warnings: Vec<&Finding> = findings.iter().filter(|finding| finding.kind == Kind::Warning).collect();
    let headlines = headlines(&findings, usize::MAX);
    let has_records = |id: ExperimentId| {
        summary.of_experiment(id).next().is_some() || file.skips.iter().any(|skip| skip.experiment == id)
    };
    let sections: Vec<Section> = experiments::ALL
        .into_iter()
        .filter(|experiment| has_records(experiment.id()))
        .map(|experiment| section(experiment, file, &summary, &findings))
        .collect();

    let about_maps = experiments::are_about_maps(&file.run.config.experiments);
    let answers = answers(file, &summary);
    let has_section = |name: &str| sections.iter().any(|section| section.id == name);
    let claims = claims_table::lines(&answers, has_section);

    let run = &file.run;
    let context = Page {
        style: STYLE,
        script: SCRIPT,
        date: format::date(run.started_unix_ms),
        tool_version: &run.tool_version,
        preset: preset(file),
        complete: file.is_complete(),
        incomplete_reason: file.incomplete_reason(),
        elapsed: file.end.as_ref().map(|end| format::duration(end.elapsed_s)),
        trials: file.trials.len(),
        machine: machine(&run.machine),
        machine_line: machine_line(&run.machine),
        heading: if about_maps { HEADING } else { sections.first().map_or(HEADING, |section| section.question) },
        about_maps,
        biases: &run.biases,
        bias_names: run.biases.iter().map(|bias| first_clause(bias)).collect(),
        verdict: VerdictView::of(judge(file, &summary, Workload::of_run(file))),
        claims,
        claims_counted: crate::report::claims::counted(&answers),
        paper: paper(&summary),
        answers: main,
        headlines,
        undecided_count,
        terms: text::terms(file, &summary, about_maps),
        warnings,
        sections,
        notes: file.notes.iter().map(|note| (format::date(note.at_unix_ms), note.text.clone())).collect::<Vec<_>>(),
        settings: toml::to_string(&run.config).unwrap_or_else(|error| format!("# cannot be shown as TOML: {error}")),
    };
    filled(TEMPLATE, &context)
}

/// Fills the template of a page, which may use the parts that all pages share.
fn filled(template: &str, page: &impl Serialize) -> Result<String> {
    let mut environment = Environment::new();
    let made = environment
        .add_template("parts.html", PARTS)
        .and_then(|()| environment.add_template("page.html", template))
        .and_then(|()| environment.get_template("page.html")?.render(Serde(page)));
    made.map_err(|error| LabError::new(LabErrorKind::System, format!("fill the template of a page: {error:#}")))
}

/// The figures of the paper at the head of the report: the first of each experiment that has one, then their second
/// ones, as far as there is room; in the order of the experiments.
fn paper(summary: &Summary<'_>) -> Vec<Figure> {
    let all: Vec<Vec<Figure>> = experiments::ALL.into_iter().map(|experiment| experiment.paper(summary)).collect();
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    for nth in 0..most {
        chosen.extend((0..all.len()).filter(|at| all[*at].len() > nth).map(|at| (at, nth)));
    }
    chosen.truncate(PAPER_FIGURES);
    chosen.sort_unstable();
    let figures = all.into_iter().enumerate().flat_map(|(at, figures)| {
        let chosen = &chosen;
        let own = figures.into_iter().enumerate().filter(move |(nth, _)| chosen.contains(&(at, *nth)));
        own.map(|(_, figure)| figure).collect::<Vec<_>>()
    });
    figures.collect()
}

fn section(experiment: &dyn Experiment, file: &RecordFile, summary: &Summary<'_>, findings: &[Finding]) -> Section {
    let id = experiment.id();
    let own = findings.iter().filter(|finding| finding.experiment == Some(id) && finding.kind != Kind::Warning);
    let literature = experiment.description().literature.iter().map(|table| Literature {
        cite: table.source.cite,
        title: table.source.title,
        machine: table.source.machine,
        how: table.source.how,
        figure: literature::figure(experiment, table, summary),
        remarks: table.remarks,
    });
    Section {
        id: id.name(),
        question: experiment.description().texts.question,
        findings: own.cloned().collect(),
        figures: figures(experiment, summary),
        method: text::method(experiment, file, summary),
        literature: literature.collect(),
        change: experiment.description().texts.change,
        skips: skips(id, file),
    }
}

/// The figures of an experiment's section: its tables, then the charts of each variant and target.
fn figures(experiment: &dyn Experiment, summary: &Summary<'_>) -> Vec<Figure> {
    let id = experiment.id();
    let mut figures = experiment.overview(summary);
    for (variant, target) in summary.places(id) {
        let place = crate::summary::target_title(target);
        let title = if variant.is_empty() { place } else { format!("{}, {place}", variant.replace('-', " ")) };
        let groups = summary.at(id, variant, target);
        figures.extend(experiment.figures(&Measured { variant, target, title, groups }));
    }
    figures
}

fn skips(id: ExperimentId, file: &RecordFile) -> Vec<(String, String)> {
    let own = file.skips.iter().filter(|skip| skip.experiment == id);
    let named = own.map(|skip| {
        let who =
            if skip.method.is_empty() { "everything".into() } else { experiments::method_title(id, &skip.method) };
        let target = if skip.target.is_empty() {
            String::new()
        } else {
            format!(" on {}", crate::summary::target_title(&skip.target))
        };
        (format!("{who}{target}"), skip.reason.replace("--", "\u{2011}\u{2011}"))
    });
    // Methods left out for the same reason are listed together.
    let mut grouped: Vec<(String, String)> = Vec::new();
    for (who, reason) in named {
        match grouped.iter_mut().find(|(_, other)| *other == reason) {
            Some((all, _)) => *all += &format!(", {who}"),
            None => grouped.push((who, reason)),
        }
    }
    grouped
}

/// Returns the start of a sentence, up to its first colon, semicolon or full stop, with a capital.
fn first_clause(sentence: &str) -> String {
    let end = [": ", "; ", ". "].iter().filter_map(|mark| sentence.find(mark)).min();
    let clause = end.map_or(sentence.trim_end_matches('.'), |end| &sentence[..end]);
    let mut letters = clause.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn preset(file: &RecordFile) -> String {
    format!("{:?}", file.run.config.preset).to_lowercase()
}

fn machine_line(machine: &MachineInfo) -> String {
    let parts = [
        machine.cpu.clone(),
        format!("{} CPUs", machine.cpu_count),
        format!("{} RAM", format::bytes(machine.memory_bytes)),
        format!("Linux {}", machine.kernel),
        format!("{} on {}", machine.file_system, machine.device),
    ];
    parts.join(" · ")
}

fn machine(machine: &MachineInfo) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = vec![
        ("CPU".into(), machine.cpu.clone()),
        ("CPUs usable".into(), machine.cpu_count.to_string()),
        ("RAM".into(), format::bytes(machine.memory_bytes)),
        ("Kernel".into(), machine.kernel.clone()),
        ("Virtualization".into(), machine.virtualization.clone()),
        ("File system".into(), machine.file_system.clone()),
        ("Device".into(), machine.device.clone()),
        ("Read-ahead".into(), machine.read_ahead_kb.map_or("unknown".into(), |kib| format!("{kib} KiB"))),
        ("Root".into(), if machine.root { "yes" } else { "no" }.into()),
    ];
    let others: &BTreeMap<String, String> = &machine.facts;
    facts.extend(others.iter().map(|(name, value)| (name.replace('_', " "), value.clone())));
    facts.retain(|(_, value)| !value.is_empty());
    facts
}
