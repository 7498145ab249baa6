//! The terminal's table of `folios`.

use super::{ALL, ID, folio_bytes, sizes};
use crate::format::bytes;
use crate::show::columns::{Column, measured};
use crate::summary::{Group, Metric, Summary, target_title};

/// Builds a row for each method and a column for each folio size: the time of a page. The text below gives the number
/// of faults for each page of a map.
pub(super) fn columns(summary: &Summary<'_>, target: &str) -> Vec<Column> {
    let groups = summary.at(ID, "", target);
    let at = |method: &str, size: u64| {
        groups.iter().copied().find(|group| group.spec.method == method && folio_bytes(group) == Some(size))
    };
    let rows = ALL.into_iter().flat_map(|method| {
        let name = method.title.to_owned();
        [name.clone(), format!("{name}: faults a page")]
    });
    let head = format!("{ID}, {}, time of a page", target_title(target));
    let mut columns = vec![Column::new(&head, rows.collect())];
    for size in sizes(&groups) {
        let cells = ALL.into_iter().flat_map(|method| {
            let shown =
                |metric: Metric| at(method.id, size).map_or(String::new(), |group: &Group<'_>| measured(group, metric));
            [shown(Metric::TimePerOp), shown(Metric::PerOp("minor_faults"))]
        });
        columns.push(Column::new(&bytes(size), cells.collect()));
    }
    columns
}
