//! The terminal's table of `engine`: all results of the run, with the figures they are compared with and the aims.

use super::ID;
use super::lines::lines;
use crate::experiment::TargetView;
use crate::show::columns::{Column, Sheet};
use crate::summary::Summary;

/// Builds one table for all sets of data; it is shown with the first set.
pub(super) fn sheets(place: &TargetView<'_, '_>) -> Vec<Sheet> {
    let first = place.summary.of_experiment(ID).next();
    if first.is_none_or(|group| group.spec.target.label != place.target) {
        return Vec::new();
    }
    vec![Sheet::new(columns(place.summary)).with_below(below(place.summary))]
}

/// Builds the columns of the table. Only the first row of a line shows the line's title and figure.
fn columns(summary: &Summary<'_>) -> Vec<Column> {
    let rows = lines(summary).into_iter().flat_map(|line| {
        line.cells().into_iter().enumerate().map(|(at, mut cells)| {
            cells.iter_mut().take(if at > 0 { 2 } else { 0 }).for_each(String::clear);
            cells
        })
    });
    let rows: Vec<[String; 6]> = rows.collect();
    let heads = [ID.name(), "nofault", "beside", "its figure", "ratio", "aim"];
    let column = |(at, head): (usize, &&str)| Column::new(head, rows.iter().map(|row| row[at].clone()).collect());
    heads.iter().enumerate().map(column).collect()
}

/// Lists the inequalities between stores that the trials recorded, for the text below the table.
fn below(summary: &Summary<'_>) -> String {
    let mut said: Vec<String> = Vec::new();
    for group in summary.of_experiment(ID) {
        let texts = group.good.iter().filter_map(|trial| trial.outcome.texts.get("unequal"));
        for text in texts.filter(|text| !text.is_empty()) {
            if !said.contains(text) {
                said.push(text.clone());
            }
        }
    }
    said.iter().fold(String::new(), |text, line| text + &format!(" {line}\n"))
}
