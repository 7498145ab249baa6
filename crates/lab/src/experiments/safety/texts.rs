//! What the report shows of `safety` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::rules::{PRICES, shown, was_looked_at};
use super::{COMMITS, ID, STEAL, cause};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::show::columns::Column;
use crate::show::figures::{Figure, Table};
use crate::show::literature::{LiteratureTable, PAPER};
use crate::summary::{Group, Metric, Summary};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "What does it cost to make a mapped file safe?",
    main_figure: "durable commits, engine ÷ fastest safe mapping",
    procedure: "Write-back of uncommitted pages (steal): 64 pages are stored into a mapping that is locked in memory, and never \
     committed. Another process syncs the file, or the lab waits until the kernel has written them by itself \
     (cachestat says when); then the file is read around the page cache. In longer presets a transaction also changes four times the pages that memory \
     holds: those that have left memory are read. Commits: the engine's B+tree over each way \
     to keep half-done changes out of a mapped file, and over the engine's own pool. The stores that keep them out as MMAPv1, SQLite or LMDB \
     do are this project's own, not those databases (`engines` has LMDB and SQLite themselves); node format, log and durability \
     are the same. Writers commit two keys at a time, far apart, each to its own pairs; one reader reads random keys \
     and checks every value. All data fits in memory. Then a separate process keeps committing, reports each \
     acknowledged commit, and is killed by SIGKILL while it commits. Its files are evicted from the page cache and \
     opened again; every pair is read and compared with the acknowledged commits. This is the end of a process, not a \
     power cut: the kernel still has the data of completed system calls. Written bytes are those that the store hands \
     to its files; the file system's journal comes on top.",
    change: &[
        "A device without a write cache that survives power loss: a sync takes milliseconds, and the number of commits that share one decides. \
     Stores with a log share; shadow paging syncs twice a commit.",
        "Larger commits: shadow paging copies the path to each changed page once a commit, so its cost for each key falls.",
        "Data larger than memory: every mapped store then stalls in page faults under its locks.",
        "Long readers: they keep shadow paging's pages and the log of user copy-on-write from being used again.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: "",
    devices: 1,
    title: "What the paper says of transactional safety (§3.1)",
    metric: Metric::OpsPerS,
    unit: Unit::Count,
    columns: &[],
    rows: &[],
    remarks: &[
        "No figures. The operating system can write a dirty page at any time, whether its transaction committed or not, and mlock does not \
             keep it from that.",
        "Three ways around it: copies by the operating system (MongoDB MMAPv1), copies in user space (SQLite, MonetDB, RavenDB), shadow paging \
             (LMDB). Each gives up part of what made mapping attractive: memory for two copies and remapping, a log and copying back, or a single \
             writer.",
    ],
}];

// Tables of `safety` besides rates and latencies: the cost of each cure, and the uncommitted pages on disk.

/// Draws the tables that stand above the charts: uncommitted pages on disk, cost of each store, settings.
pub(super) fn overview(summary: &Summary<'_>) -> Vec<Figure> {
    let mut figures = Vec::new();
    let places = summary.places(ID);
    for (variant, target) in places {
        let groups = summary.at(ID, variant, target);
        let table = match variant {
            STEAL => steals(&groups),
            COMMITS => prices(&groups),
            _ => continue,
        };
        figures.push(Figure {
            title: if variant == STEAL { "Uncommitted bytes on disk".into() } else { "What safety costs".into() },
            lead: if variant == STEAL {
                "Pages that were stored into a mapping, locked in memory, and never committed; counted by a direct read after the cause.".into()
            } else {
                "Each commit writes two keys and is durable when it returns; one reader beside the writers. Written: the bytes that the store hands to \
                 its files, log and checkpoints included, for each commit and for each byte of its keys and values. Then another process goes on committing until it is killed (SIGKILL). Opened \
                 again: the time to open its files, cold, with recovery and a first read. Every acknowledged commit was looked for; lost / torn \
                 counts the commits that were absent or there only in part."
                    .into()
            },
            legend: Vec::new(),
            svg: String::new(),
            table, ..Figure::default()
        });
        if variant == COMMITS {
            figures.push(settings(&groups));
        }
    }
    figures
}

/// Draws a table of the stores' settings. In the table of figures they would make the rows too long.
fn settings(groups: &[&Group<'_>]) -> Figure {
    let mut table = Table::new(&["store", "settings"]);
    for group in groups {
        let store = group.title();
        let text = group.good.first().and_then(|trial| trial.outcome.texts.get("settings"));
        if let Some(text) = text.filter(|_| table.rows.iter().all(|row| row[0] != store)) {
            table.rows.push(vec![store, text.clone()]);
        }
    }
    let lead = "As each store was opened, whatever the number of writers.".into();
    Figure {
        title: "Settings of the stores".into(),
        lead,
        legend: Vec::new(),
        svg: String::new(),
        table,
        ..Figure::default()
    }
}

fn steals(groups: &[&Group<'_>]) -> Table {
    let headers = ["mapping", "written by", "uncommitted pages on disk", "of", "locked in memory", "time until then"];
    let mut table = Table { headers: headers.map(Into::into).to_vec(), rows: Vec::new() };
    for group in groups.iter().filter(|group| was_looked_at(group)) {
        let figure = |name| shown(group, Metric::Figure(name), Some(Unit::Count));
        let cause = match cause(&group.spec.params) {
            "kernel" => "the kernel, by itself",
            "eviction" => "eviction: the changes are larger than memory",
            _ => "another process's sync",
        };
        table.rows.push(vec![
            group.label(),
            cause.into(),
            figure("uncommitted_on_disk"),
            figure("uncommitted_stored"),
            if figure("mlocked") == "1" { "yes".into() } else { "no".into() },
            shown(group, Metric::Figure("until_on_disk_s"), Some(Unit::Seconds)),
        ]);
    }
    table
}

fn prices(groups: &[&Group<'_>]) -> Table {
    let mut headers = vec!["store".to_owned()];
    headers.extend(PRICES.iter().map(|(name, ..)| (*name).to_owned()));
    headers.extend(["commits before the kill", "lost / torn"].map(Into::into));
    let mut table = Table { headers, rows: Vec::new() };
    for group in groups {
        let mut row = vec![group.label()];
        row.extend(PRICES.iter().map(|(_, metric, unit)| shown(group, *metric, *unit)));
        let figure = |name| shown(group, Metric::Figure(name), Some(Unit::Count));
        row.push(figure("commits_before_kill"));
        row.push(format!("{} / {}", figure("lost_commits"), figure("torn_commits")));
        table.rows.push(row);
    }
    table
}

/// Builds the columns, with a row for each store and number of writers.
pub(super) fn columns(groups: &[&Group<'_>]) -> Vec<Column> {
    let mut columns = vec![Column::new("safety, commits", groups.iter().map(|group| group.label()).collect())];
    for (name, metric, unit) in PRICES {
        columns.push(Column::new(name, groups.iter().map(|group| shown(group, metric, unit)).collect()));
    }
    columns
}
