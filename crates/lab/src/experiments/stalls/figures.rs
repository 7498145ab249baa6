//! Figures of `stalls`: how long a thread is held, and the resources that each work-around takes.

use super::findings::price;
use crate::format::Unit;
use crate::show::charts::{Mark, MarkKind, Row, Rows};
use crate::show::figures::{Figure, Legend, Table, tone};
use crate::summary::{Group, Metric};

/// Draws the 99.9th percentile and the longest access of each method; the figure's table also lists the resources that
/// a method takes.
pub(super) fn stalls(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let (tail, longest) = (Metric::Latency("op", 999), Metric::Latency("op", 1000));
    let headers = ["method", "accesses", "p50", "p99", "p99.9", "longest", "what it takes"];
    let mut table = Table { headers: headers.map(str::to_owned).to_vec(), rows: Vec::new() };
    let mut rows = Vec::new();
    for group in groups {
        let show =
            |metric: Metric| group.spread(metric).map_or("–".to_owned(), |spread| metric.unit().show(spread.median));
        table.rows.push(vec![
            group.label(),
            show(Metric::OpsPerS),
            show(Metric::Latency("op", 500)),
            show(Metric::Latency("op", 990)),
            show(tail),
            show(longest),
            price(group),
        ]);
        let mark = |metric: Metric, kind| {
            group.spread(metric).map(|spread| Mark { values: group.values(metric), median: spread.median, kind })
        };
        let marks: Vec<Mark> =
            [mark(tail, MarkKind::Cold), mark(longest, MarkKind::Warm)].into_iter().flatten().collect();
        if !marks.is_empty() {
            let value = format!("{} · {}", show(tail), show(longest));
            rows.push(Row { label: group.label(), tone: tone(group), marks, value });
        }
    }
    if rows.is_empty() {
        return None;
    }
    let title = format!("How long one access holds the thread: {place}");
    let chart = Rows { axis: "time of one access".into(), unit: Unit::Seconds, log: true, rows };
    let legend = [("dot", "one in a thousand (p99.9)"), ("ring", "the longest of a run")];
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "The calls of the work-around count. The table has the work done once beforehand, the threads and memory that it takes, and the waits \
               of the methods that probe first and touch only resident pages."
            .into(),
        legend: legend.map(|(mark, label)| Legend { tone: "t6", dash: 0, mark, label: label.into() }).to_vec(),
        table, ..Figure::default()
    })
}
