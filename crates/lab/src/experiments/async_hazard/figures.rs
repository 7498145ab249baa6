//! Figures of `async`: a dot for every run, and how late a timer among the tasks fires.

use crate::format::Unit;
use crate::record::CacheState;
use crate::show::charts::{Mark, MarkKind, Row, Rows};
use crate::show::figures::{Figure, Legend, Table, bar_row, tone};
use crate::summary::{Group, Metric};

/// Draws a strip plot with one dot for each run, cold and warm, as in the post "Async hazard".
pub(super) fn strips(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let metric = Metric::Seconds;
    let mut rows: Vec<Row> = Vec::new();
    let mut table = Table::new(&["configuration", "cold", "spread", "warm", "spread", "runs"]);
    for group in groups {
        let label = group.label();
        if rows.iter().any(|row| row.label == label) {
            continue;
        }
        let mut marks = Vec::new();
        let mut values = Vec::new();
        let mut cells = vec![label.clone()];
        for (cache, kind) in [(CacheState::Cold, MarkKind::Cold), (CacheState::Warm, MarkKind::Warm)] {
            let same = groups.iter().find(|other| other.label() == label && other.spec.cache == cache);
            let Some((same, spread)) = same.and_then(|same| Some((same, same.spread(metric)?))) else {
                cells.extend(["–".into(), "–".into()]);
                continue;
            };
            marks.push(Mark { values: same.values(metric), median: spread.median, kind });
            values.push(Unit::Seconds.show(spread.median));
            cells.push(Unit::Seconds.show(spread.median));
            cells.push(format!("{} – {}", Unit::Seconds.show(spread.min), Unit::Seconds.show(spread.max)));
        }
        if marks.is_empty() {
            continue;
        }
        cells.push(group.good.len().to_string());
        table.rows.push(cells);
        rows.push(Row { label, tone: tone(group), marks, value: values.join(" · ") });
    }
    if rows.is_empty() {
        return None;
    }
    let title = format!("Time for the same work: {place}");
    let chart = Rows { axis: "seconds".into(), unit: Unit::Seconds, log: true, rows };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "One dot a run; the strokes and the figures at the end of a row are medians, cold · warm.".into(),
        legend: vec![
            Legend { tone: "t6", dash: 0, mark: "dot", label: "cold".into() },
            Legend { tone: "t6", dash: 0, mark: "ring", label: "warm".into() },
        ],
        table,
        ..Figure::default()
    })
}

/// Plots the largest lateness of the 1 ms timer in each run.
pub(super) fn lateness(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let metric = Metric::Latency("ticker", 1000);
    let cold: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.spec.cache == CacheState::Cold).collect();
    let rows: Vec<Row> = cold.iter().filter_map(|group| bar_row(group, metric)).collect();
    if rows.is_empty() {
        return None;
    }
    let mut table = Table::new(&["configuration", "p50", "p99", "latest"]);
    for group in &cold {
        let at = |per_mille| {
            group.spread(Metric::Latency("ticker", per_mille)).map_or("–".into(), |s| Unit::Seconds.show(s.median))
        };
        table.rows.push(vec![group.label(), at(500), at(990), at(1000)]);
    }
    let title = format!("How late a 1 ms timer fires, cold: {place}");
    let chart = Rows { axis: "latest firing of a run, after it was due".into(), unit: Unit::Seconds, log: true, rows };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "A ticker on the same executor (or beside the threads): the worst of each run. This is what other tasks feel.".into(),
        legend: Vec::new(),
        table, ..Figure::default()
    })
}
