//! A static page over the results of several machines: the machines with their key figures, and the curves of all of them in
//! one figure each. Like the report it needs no network and no script.

use serde::Serialize;

use super::{STYLE, filled, machine_line};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiments;
use crate::format;
use crate::record::ExperimentId;
use crate::record::file::RecordFile;
use crate::report::findings::{MainFigure, findings, main_figures};
use crate::show::figures::{Figure, Table};
use crate::summary::Summary;

const TEMPLATE: &str = include_str!("gallery.html");
/// The beginning of the title of every gallery, by which the lab knows its own.
const TITLE: &str = "<title>nofault gallery";

/// One machine of the gallery.
#[derive(Debug, Serialize)]
struct Machine {
    label: String,
    line: String,
    date: String,
    complete: bool,
}

/// The values that the template is filled with.
#[derive(Debug, Serialize)]
struct Page {
    style: &'static str,
    machines: Vec<Machine>,
    keys: Table,
    figures: Vec<Figure>,
    tool_version: &'static str,
}

/// Whether a file with this beginning is a gallery.
pub(crate) fn is_one(head: &[u8]) -> bool {
    String::from_utf8_lossy(head).contains(TITLE)
}

/// Renders the page. The results stand in the order of their letters.
///
/// # Errors
/// `Usage` without a result; `System` when the template cannot be filled, which would be a bug.
pub fn html(results: &[RecordFile]) -> Result<String> {
    if results.is_empty() {
        let message = "no result to show: name result folders, folders of them, or files of `nofault lab share`";
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let summaries: Vec<Summary<'_>> = results.iter().map(Summary::of).collect();
    let machines: Vec<(String, &Summary<'_>)> =
        summaries.iter().enumerate().map(|(at, summary)| (label(at, &results[at]), summary)).collect();
    let figures = experiments::ALL.into_iter().flat_map(|experiment| experiment.gallery(&machines)).collect();
    let page = Page {
        style: STYLE,
        machines: results
            .iter()
            .enumerate()
            .map(|(at, file)| Machine {
                label: label(at, file),
                line: machine_line(&file.run.machine),
                date: format::date(file.run.started_unix_ms),
                complete: file.is_complete(),
            })
            .collect(),
        keys: keys(results, &summaries),
        figures,
        tool_version: env!("CARGO_PKG_VERSION"),
    };
    filled(TEMPLATE, &page)
}

/// The name of a machine in the gallery: a letter or number, and its CPU.
fn label(at: usize, file: &RecordFile) -> String {
    let letter = u8::try_from(at)
        .ok()
        .filter(|at| *at < 26)
        .map_or_else(|| (at + 1).to_string(), |at| char::from(b'A' + at).to_string());
    format!("{letter} · {}", file.run.machine.cpu)
}

/// The main figures of all machines: a row for each experiment that a machine measured, a column for each machine.
fn keys(results: &[RecordFile], summaries: &[Summary<'_>]) -> Table {
    let of = |(file, summary): (&RecordFile, &Summary<'_>)| main_figures(file, summary, &findings(file, summary));
    let all: Vec<Vec<MainFigure>> = results.iter().zip(summaries).map(of).collect();
    let headers = ["figure".to_owned()].into_iter().chain((0..results.len()).map(|at| label(at, &results[at])));
    let row = |id: ExperimentId| {
        let of = |own: &Vec<MainFigure>| own.iter().find(|row| row.experiment == id).cloned();
        let of: Vec<Option<MainFigure>> = all.iter().map(of).collect();
        let figure = of.iter().flatten().next()?.figure;
        let cells = of.into_iter().map(|row| match row {
            Some(MainFigure { value: Some(value), undecided: true, .. }) => format!("{value} (undecided)"),
            Some(MainFigure { value: Some(value), .. }) => value,
            _ => "–".to_owned(),
        });
        Some([figure.to_owned()].into_iter().chain(cells).collect())
    };
    Table { headers: headers.collect(), rows: experiments::ids().filter_map(row).collect() }
}
