//! The terminal's table of `safety`: the cost of each store's commits.

use super::findings::{PRICES, shown};
use crate::show::columns::Column;
use crate::summary::Group;

/// Builds the columns, with a row for each store and number of writers.
pub(super) fn columns(groups: &[&Group<'_>]) -> Vec<Column> {
    let mut columns = vec![Column::new("safety, commits", groups.iter().map(|group| group.label()).collect())];
    for (name, metric, unit) in PRICES {
        columns.push(Column::new(name, groups.iter().map(|group| shown(group, metric, unit)).collect()));
    }
    columns
}
