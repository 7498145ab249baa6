//! Tables of `safety` besides rates and latencies: the cost of each cure, and the uncommitted pages on disk.

use super::ID;
use super::findings::{PRICES, shown, was_looked_at};
use super::{COMMITS, STEAL, cause};
use crate::format::Unit;
use crate::show::figures::{Figure, Table};
use crate::summary::{Group, Metric, Summary};

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
