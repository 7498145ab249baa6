//! Whole databases in the terminal: one row a store.

use std::collections::BTreeMap;

use super::figures::store_title;
use super::{ID, OWN};
use crate::format::Unit;
use crate::methods;
use crate::record::SkipCause;
use crate::record::file::RecordFile;
use crate::show::columns::Column;
use crate::stores::not_built;
use crate::summary::{Group, Metric, Summary};

/// Builds a row for each store and a column for each of its works, the most important works first; cells are medians.
pub(super) fn columns(summary: &Summary<'_>, target: &str, title: &str) -> Vec<Column> {
    let groups: Vec<&Group<'_>> = summary.of_experiment(ID).collect();
    let groups: Vec<&Group<'_>> = groups.into_iter().filter(|group| group.spec.target.label == target).collect();
    let mut stores: Vec<String> = Vec::new();
    for group in &groups {
        let title = store_title(group);
        if !stores.contains(&title) {
            stores.push(title);
        }
    }
    let mut columns = vec![Column::new(title, stores.clone())];
    let entries = Metric::OpsPerS;
    let works = [
        ("A/s", "ycsb-a", entries),
        ("B/s", "ycsb-b", entries),
        ("C/s", "ycsb-c", entries),
        ("D/s", "ycsb-d", entries),
        ("E/s", "ycsb-e", entries),
        ("F/s", "ycsb-f", entries),
        ("scan", super::SCAN, Metric::BytesPerS),
        ("1 commit/s", super::COMMIT, entries),
        ("n commits/s", super::COMMIT_MANY, entries),
        ("load", super::LOAD, Metric::BytesPerS),
        ("disk", super::LOAD, Metric::SpaceRatio),
        ("aged scan", super::SCAN_AGED, Metric::BytesPerS),
    ];
    for (header, variant, metric) in works {
        let of = |store: &String| {
            let group = groups.iter().find(|group| group.spec.variant == variant && store_title(group) == *store);
            let Some(group) = group else { return String::new() };
            match group.spread(metric) {
                // The header says that they are per second.
                Some(spread) if metric == entries => Unit::Count.show(spread.median),
                Some(spread) => metric.unit().show(spread.median),
                None => "worthless".into(),
            }
        };
        columns.push(Column::new(header, stores.iter().map(of).collect()));
    }
    columns
}

/// Lists the stores that were not compiled in, a line for each cargo feature, so that a reader learns why the table lacks
/// them.
pub(super) fn stores_not_built(file: &RecordFile) -> String {
    let mut stores: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for skip in file.skips.iter().filter(|skip| skip.experiment == ID) {
        let Some(SkipCause::NotBuilt(feature)) = &skip.cause else { continue };
        stores.entry(feature).or_default().push(methods::title(methods::find(OWN, &skip.method), &skip.method));
    }
    let lines = stores.iter().map(|(feature, stores)| format!(" {}: {}\n", not_built(feature), stores.join("; ")));
    lines.collect()
}
