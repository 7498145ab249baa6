//! What the report shows of `engines` whatever the figures: question, method and limits, published figures; and its charts and tables.

use std::collections::BTreeMap;

use super::{COMMIT, COMMIT_MANY, ID, IN_MEMORY, LARGER, LOAD, OWN, SCAN, SCAN_AGED};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::measure::stores::not_built;
use crate::methods;
use crate::record::SkipCause;
use crate::record::file::RecordFile;
use crate::show::columns::Column;
use crate::show::figures::{Figure, Table};
use crate::show::literature::{LiteratureTable, REDB, row};
use crate::summary::{Group, Metric, Summary, is_plain, target_title};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "What do whole databases make of it, with a map and without?",
    main_figure: "reads of SQLite (YCSB C) beyond memory, mmap ÷ read calls",
    procedure: "Each store is loaded with the same sorted entries (16-byte keys, values that do not compress), then runs YCSB's mixes in YCSB's \
     order A B C F D E, a scan, and durable commits of one entry each. Process and page cache together have the memory of one cgroup; \
     how much of it is the store's own cache follows its authors' advice and stands in the table of settings. Mixes: zipfian but for D, \
     each operation a separate request that sees the newest commit; the first third of a trial warms up, unmeasured. Durability: mixes commit \
     deferred (visible at once, a power cut may lose the last commits), loads and commits are on the disk when they return. Every answer \
     is checked whole: its key, its bytes, and that no read shows a value that was overwritten before the read began. Where all data is in memory every \
     entry is read once before the clock starts. Every repeat loads anew.",
    change: &[
        "More memory, or a slower disk: the choice of cached pages decides, and a store without its own cache leaves it to the kernel.",
        "Batches: stores that can load many keys at once (nofault's get_many, RocksDB's MultiGet) are asked one key at a time here.",
        "Longer runs: trees that merge in the background (RocksDB, fjall) push a part of the cost of writing behind the measured time.",
        "Larger commits: stores with one writer and two syncs a commit lose most with single entries.",
        "Threads: with one thread no store can have more than one read at the disk; sixteen, as here, hide a part of each wait.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &REDB,
    variant: "commit",
    devices: 1,
    title: "Durable commits of one writer (\"individual writes\": 1,000 commits of one entry)",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["commits per second"],
    rows: &[
        row("redb", &methods::REDB, &[1000.0 / 0.920], "920 ms"),
        row("LMDB", &methods::LMDB, &[1000.0 / 1.598], "1,598 ms"),
        row("RocksDB", &methods::ROCKSDB, &[1000.0 / 2.432], "2,432 ms"),
        row("fjall", &methods::FJALL, &[1000.0 / 3.488], "3,488 ms"),
        row("SQLite", &methods::SQLITE, &[1000.0 / 7.040], "7,040 ms"),
    ],
    remarks: &[
        "A consumer drive without a capacitor: the cost of a sync decides, not the store.",
        "The paper's table 1 names databases that use or used mmap (MonetDB, LevelDB, LMDB, SQLite, MongoDB, SingleStore, InfluxDB, RavenDB, QuestDB and others) and has no figures.",
    ],
}];

// Whole databases in the report: a table of all results at the top, and a table of the settings. The charts are shared
// with the other experiments.

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
fn store_title(group: &Group<'_>) -> String {
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

// Whole databases in the terminal: one row a store.

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
