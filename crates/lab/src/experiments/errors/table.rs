//! The terminal's table of `errors`.

use super::FAULTS;
use super::ID;
use super::findings::{outcome_of, short_fate, store_title};
use crate::show::columns::Column;
use crate::summary::Summary;

/// Builds the columns: the outcome of each fault for each store, in a word or two. The report says more.
pub(super) fn columns(summary: &Summary<'_>, target: &str, title: &str) -> Option<Vec<Column>> {
    let at = |fault: &str| summary.at(ID, fault, target);
    let mut stores: Vec<&str> = Vec::new();
    for group in FAULTS.into_iter().flat_map(at) {
        if !stores.contains(&group.spec.method.as_str()) {
            stores.push(&group.spec.method);
        }
    }
    let mut columns = vec![Column::new(title, stores.iter().map(|store| store_title(store)).collect())];
    for fault in FAULTS {
        let groups = at(fault);
        let fate_of = |store: &&str| {
            let group = groups.iter().find(|group| group.spec.method == **store)?;
            outcome_of(group).map(short_fate)
        };
        columns.push(Column::new(fault, stores.iter().map(|store| fate_of(store).unwrap_or_default()).collect()));
    }
    (!stores.is_empty()).then_some(columns)
}
