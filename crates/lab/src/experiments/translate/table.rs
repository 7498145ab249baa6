//! The terminal's table of `translate`.

use super::ID;
use crate::show::columns::{Column, measured};
use crate::summary::{Group, Metric, Summary, target_title};

/// Builds a row for each method and thread count, and a column for each variant and working set: the time of one
/// operation.
pub(super) fn columns(summary: &Summary<'_>, target: &str) -> Vec<Column> {
    let experiment = ID;
    let mut rows: Vec<(&str, u32)> = Vec::new();
    let mut headers: Vec<(&str, u64)> = Vec::new();
    for group in summary.of_experiment(experiment) {
        let spec = group.spec;
        let (row, header) =
            ((spec.method.as_str(), spec.params.threads), (spec.variant.as_str(), spec.target.data_bytes));
        if !rows.contains(&row) {
            rows.push(row);
        }
        if !headers.contains(&header) {
            headers.push(header);
        }
    }
    headers.sort_unstable();
    rows.sort_by_key(|(_, threads)| *threads);
    let named = rows.iter().map(|(method, threads)| match threads {
        1 => super::title(method),
        threads => format!("{} · {threads} threads", super::title(method)),
    });
    let mut columns =
        vec![Column::new(&format!("{experiment}, {}, time of one", target_title(target)), named.collect())];
    for (variant, size) in headers {
        let groups = summary.at(experiment, variant, target);
        let cells = rows.iter().map(|(method, threads)| {
            let same = |group: &&&Group<'_>| {
                let spec = group.spec;
                spec.method == *method && spec.params.threads == *threads && spec.target.data_bytes == size
            };
            groups.iter().find(same).map_or(String::new(), |group| measured(group, Metric::TimePerOp))
        });
        columns.push(Column::new(&format!("{variant}, {}", crate::format::bytes(size)), cells.collect()));
    }
    columns
}
