//! The summary in some forty lines: a figure for each question, the claims by number, the verdict. All the rest is in the
//! report, and in the whole summary.

use super::{gaps, push, tables, verdict_lines};
use crate::experiments;
use crate::record::file::RecordFile;
use crate::report::claims::{answers, counted};
use crate::report::findings::{Finding, Kind, MainFigure, findings, main_figures, of_lowest_rank};
use crate::summary::Summary;

/// Most rows of the table.
const ROWS_MAX: usize = 8;
/// Most experiments of a run whose own tables are short enough to stand in place of the one table.
const OWN_TABLES_MAX: usize = 2;

/// Formats the short summary of a run: one table of at most eight rows (the tables of the experiments, where only one or
/// two were measured), the number of gaps and cautions, the verdict. No line is wider than `width` columns (at least 40).
/// Ends with a line break.
pub fn brief(file: &RecordFile, width: u16) -> String {
    let columns = usize::from(width.max(40));
    let summary = Summary::of(file);
    let findings = findings(file, &summary);
    let measured = experiments::ids().filter(|id| summary.of_experiment(*id).next().is_some()).count();
    let mut text = match measured {
        0 => "Nothing was measured.\n".to_owned(),
        1..=OWN_TABLES_MAX => tables(file, &summary, columns),
        _ => figures(&of_lowest_rank(main_figures(file, &summary, &findings), ROWS_MAX), columns) + "\n",
    };
    cautions(file, &summary, &findings, columns, &mut text);
    if experiments::are_about_maps(&file.run.config.experiments) {
        let all = answers(file, &summary);
        push(&mut text, "  ", &format!("{} claims for and against mmap: {}.", all.len(), counted(&all)), columns);
        text.push_str(&verdict_lines(file, &summary, width));
    }
    text
}

/// Formats the main figures, a row each: the experiment, the value, the figure in words, and as much of the detail as fits.
fn figures(rows: &[MainFigure], width: usize) -> String {
    let value = |row: &MainFigure| row.value.clone().unwrap_or_else(|| "–".to_owned());
    let names_width = rows.iter().map(|row| row.experiment.name().len()).max().unwrap_or(0);
    let values_width = rows.iter().map(|row| value(row).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let state = match row.value {
            None => "not measured: ",
            Some(_) if row.undecided => "undecided: ",
            Some(_) => "",
        };
        let head = format!(" {:<names_width$}  {:>values_width$}  {state}", row.experiment.name(), value(row));
        let rest = width.saturating_sub(head.chars().count());
        text.push_str(&format!("{head}{}\n", fitted(row.figure, &row.detail, rest)));
    }
    text
}

/// The figure in words, then the parts of its detail that fit into `width` characters.
fn fitted(figure: &str, detail: &str, width: usize) -> String {
    let mut text = figure.to_owned();
    for part in detail.split("; ").filter(|part| !part.is_empty()) {
        let longer = format!("{text}; {part}");
        if longer.chars().count() > width {
            break;
        }
        text = longer;
    }
    cut(&text, width)
}

/// Cuts a text to `width` characters; its last one is then an ellipsis.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() <= width {
        true => text.to_owned(),
        false => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Adds lines about the gaps, and one with the number of reasons for care.
fn cautions(file: &RecordFile, summary: &Summary<'_>, findings: &[Finding], width: usize, text: &mut String) {
    gaps(file, summary).iter().for_each(|gap| push(text, " ?", gap, width));
    let open = findings.iter().filter(|finding| finding.kind == Kind::Inconclusive).count();
    let warnings = findings.iter().filter(|finding| finding.kind == Kind::Warning).count();
    let counted = [
        (file.run.biases.len(), "bias of this machine", "biases of this machine"),
        (warnings, "reason for care", "reasons for care"),
        (open, "undecided comparison", "undecided comparisons"),
    ];
    let named: Vec<String> = counted
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, several)| format!("{count} {}", if count == 1 { one } else { several }))
        .collect();
    if !named.is_empty() {
        push(text, " !", &format!("{}: see the report, or --verbose.", named.join(", ")), width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_parts_of_its_detail_that_fit() {
        assert_eq!(fitted("rate", "1 to 2; 3 against 4", 40), "rate; 1 to 2; 3 against 4");
        assert_eq!(fitted("rate", "1 to 2; 3 against 4", 15), "rate; 1 to 2");
        assert_eq!(fitted("too long", "1 to 2", 5), "too …");
    }
}
