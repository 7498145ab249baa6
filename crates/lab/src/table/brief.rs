//! The summary in some forty lines: a figure for each question, the claims by number, the verdict. All the rest is in the
//! report, and in the whole summary.

use super::{gaps, push, tables, verdict_lines};
use crate::claims::{answers, counted};
use crate::experiments;
use crate::findings::{Finding, KeyFigure, Kind, findings, key_figures};
use crate::record::file::RecordFile;
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
        _ => figures(&findings, columns) + "\n",
    };
    cautions(file, &summary, &findings, columns, &mut text);
    if experiments::are_about_maps(&file.run.config.experiments) {
        let all = answers(file, &summary);
        push(&mut text, "  ", &format!("{} claims for and against mmap: {}.", all.len(), counted(&all)), columns);
        text.push_str(&verdict_lines(file, &summary, width));
    }
    text
}

/// Formats the key figures, a row each: the experiment, the figure, its meaning and its range, as far as they fit.
fn figures(findings: &[Finding], width: usize) -> String {
    let rows = key_figures(findings, ROWS_MAX);
    let name = |finding: &Finding| finding.experiment.map_or("", |id| id.name());
    let longest = |text: &dyn Fn(&(&Finding, &KeyFigure)) -> usize| rows.iter().map(text).max().unwrap_or(0);
    let names_width = longest(&|(finding, _)| name(finding).len());
    let values_width = longest(&|(_, figure)| figure.value.chars().count());
    let mut text = String::new();
    for (finding, figure) in rows {
        let open = if finding.kind == Kind::Inconclusive { "undecided: " } else { "" };
        let head = format!(" {:<names_width$}  {:>values_width$}  ", name(finding), figure.value);
        let rest = width.saturating_sub(head.chars().count());
        let meaning = format!("{open}{}", figure.label);
        let whole = format!("{meaning}; {}", figure.detail);
        let shown =
            if whole.chars().count() <= rest && !figure.detail.is_empty() { whole } else { cut(&meaning, rest) };
        text.push_str(&format!("{head}{shown}\n"));
    }
    text
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
    fn a_text_that_is_cut_ends_with_an_ellipsis() {
        assert_eq!((cut("whole", 5), cut("too long", 5)), ("whole".into(), "too …".into()));
    }
}
