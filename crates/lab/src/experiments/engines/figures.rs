//! Whole databases in the report: a table of all results at the top, and a table of the settings. The charts are shared
//! with the other experiments.

use super::ID;
use super::{COMMIT, COMMIT_MANY, IN_MEMORY, LARGER, LOAD, SCAN, SCAN_AGED};
use crate::show::figures::{Figure, Table};
use crate::summary::{Group, Metric, Summary, is_plain, target_title};

/// Columns of the table of all results: heading, variant and metric.
const WORKS: [(&str, &str, Metric); 12] = [
    ("YCSB A", "ycsb-a", Metric::OpsPerS),
    ("YCSB B", "ycsb-b", Metric::OpsPerS),
    ("YCSB C", "ycsb-c", Metric::OpsPerS),
    ("YCSB D", "ycsb-d", Metric::OpsPerS),
    ("YCSB E", "ycsb-e", Metric::OpsPerS),
    ("YCSB F", "ycsb-f", Metric::OpsPerS),
    ("scan", SCAN, Metric::BytesPerS),
    ("scan, aged", SCAN_AGED, Metric::BytesPerS),
    ("durable commits, one writer", COMMIT, Metric::OpsPerS),
    ("durable commits, many writers", COMMIT_MANY, Metric::OpsPerS),
    ("load", LOAD, Metric::BytesPerS),
    ("disk, after loading", LOAD, Metric::SpaceRatio),
];

/// Returns the heading of a variant's section: its name and the size of its data.
pub(super) fn place_title(variant: &str, target: &str) -> String {
    let place = if target == LARGER { "data larger than memory".into() } else { target_title(target) };
    format!("{}, {place}", super::title(variant))
}

/// Whether the CPU time and the latencies of a variant get separate charts.
pub(super) fn worth_detail(variant: &str) -> bool {
    ["ycsb-a", "ycsb-c", COMMIT, COMMIT_MANY].contains(&variant)
}

/// Draws the tables that stand above the charts: all results, and the stores' settings.
pub(super) fn overviews(summary: &Summary<'_>) -> Vec<Figure> {
    let groups: Vec<&Group<'_>> = summary.of_experiment(ID).collect();
    let mut figures = Vec::new();
    for target in [LARGER, IN_MEMORY] {
        let own: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.spec.target.label == target).collect();
        if !own.is_empty() {
            figures.push(everything(&own, target));
        }
    }
    figures.extend(settings(&groups));
    figures
}

/// Returns the title of a store's row: its method, and the device's read-ahead where the trial set one.
pub(super) fn store_title(group: &Group<'_>) -> String {
    match group.spec.params.extra.get("read_ahead_kb") {
        Some(kib) => format!("{}, read-ahead {kib} KiB", group.title()),
        None => group.title(),
    }
}

fn stores(groups: &[&Group<'_>]) -> Vec<String> {
    let mut stores: Vec<String> = Vec::new();
    for group in groups {
        let title = store_title(group);
        if !stores.contains(&title) {
            stores.push(title);
        }
    }
    stores
}

fn everything(groups: &[&Group<'_>], target: &str) -> Figure {
    let works: Vec<_> =
        WORKS.iter().filter(|(_, variant, _)| groups.iter().any(|group| group.spec.variant == *variant)).collect();
    let mut table = Table::new(&["database"]);
    table.headers.extend(works.iter().map(|(header, ..)| (*header).to_owned()));
    for store in stores(groups) {
        let mut row = vec![store.clone()];
        for (_, variant, metric) in &works {
            let own = |group: &&&Group<'_>| store_title(group) == store && group.spec.variant == *variant;
            let group = groups.iter().find(own);
            row.push(match group.map(|group| (group.spread(*metric), group.worthless.first())) {
                Some((Some(spread), _)) => metric.unit().show(spread.median),
                Some((None, Some((_, why)))) => format!("worthless: {why}"),
                _ => "–".into(),
            });
        }
        table.rows.push(row);
    }
    let place = if target == LARGER { "data larger than memory".to_owned() } else { target_title(target) };
    Figure {
        title: format!("Everything at a glance: {place}"),
        lead: "Medians over the repeats; spreads are in the tables of the charts below. What was not built stands under \"Not measured\".".into(),
        legend: Vec::new(),
        svg: String::new(),
        table, ..Figure::default()
    }
}

/// Draws a table of each store's settings and remaining inequalities, as its trials recorded them.
fn settings(groups: &[&Group<'_>]) -> Option<Figure> {
    let mut table = Table::new(&["database", "what it is", "settings", "unequal", "files after the last trial"]);
    // A changed read-ahead is a setting of the device, not of the store.
    let plain: Vec<&Group<'_>> = groups.iter().copied().filter(|group| is_plain(&group.spec.params)).collect();
    for store in stores(&plain) {
        let of_store = plain.iter().filter(|group| store_title(group) == store);
        let Some(trial) = of_store.flat_map(|group| &group.good).max_by_key(|trial| trial.spec.params.threads) else {
            continue;
        };
        let texts = &trial.outcome.texts;
        let text = |name: &str| texts.get(name).cloned().unwrap_or_default();
        table.rows.push(vec![store, text("what"), trial.outcome.settings_in_words(), text("unequal"), text("files")]);
    }
    (!table.rows.is_empty()).then(|| Figure {
        title: "Settings".into(),
        lead: "As each store was opened with data larger than memory where that was measured; read back where the store can tell.".into(),
        legend: Vec::new(),
        svg: String::new(),
        table, ..Figure::default()
    })
}
