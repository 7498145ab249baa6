//! Figures of `translate`: the time of one operation over the working set, with a line for each method.

use super::OWN;
use crate::format::{Unit, bytes};
use crate::methods;
use crate::show::charts::{Lines, Panel, Series};
use crate::show::figures::{Figure, Table, dash, legend_of, rates};
use crate::summary::{Group, Metric};

/// Draws lines over the working set where several were measured, otherwise bars: on one thread, and on the largest
/// number of threads.
pub(super) fn figures(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let metric = Metric::TimePerOp;
    let mut sizes: Vec<u64> = groups.iter().map(|group| group.spec.target.data_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < 2 {
        return rates(groups, place, metric, "time of one operation").into_iter().collect();
    }
    let mut counts: Vec<u32> = groups.iter().map(|group| group.spec.params.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    let ends = [counts.first().copied(), counts.last().copied().filter(|_| counts.len() > 1)];
    ends.into_iter().flatten().filter_map(|threads| over_sizes(groups, place, &sizes, threads)).collect()
}

fn over_sizes(groups: &[&Group<'_>], place: &str, sizes: &[u64], threads: u32) -> Option<Figure> {
    let unit = Unit::Seconds;
    let mut series: Vec<Series> = Vec::new();
    let mut table = Table { headers: vec!["method".into()], rows: Vec::new() };
    table.headers.extend(sizes.iter().map(|size| bytes(*size)));
    let mut methods: Vec<&str> = Vec::new();
    for group in groups {
        if !methods.contains(&group.spec.method.as_str()) {
            methods.push(&group.spec.method);
        }
    }
    for method in methods {
        let at = |size: &u64| {
            let same = |group: &&&Group<'_>| {
                let spec = group.spec;
                spec.method == method && spec.params.threads == threads && spec.target.data_bytes == *size
            };
            groups.iter().find(same)?.spread(Metric::TimePerOp)
        };
        let points: Vec<(f64, f64)> = sizes.iter().filter_map(|size| Some((*size as f64, at(size)?.median))).collect();
        let mut row = vec![super::title(method)];
        row.extend(sizes.iter().map(|size| at(size).map_or("–".into(), |spread| spread.show(unit))));
        table.rows.push(row);
        let tone = methods::find(OWN, method).map_or("t6", |method| method.tone);
        series.push(Series { label: super::title(method), tone, dash: dash(&series, tone), points, full_at: None });
    }
    series.retain(|series| series.points.len() > 1);
    let (from, to) = (*sizes.first()? as f64, *sizes.last()? as f64);
    if series.is_empty() {
        return None;
    }
    let on = if threads == 1 { "one thread".to_owned() } else { format!("{threads} threads") };
    let title = format!("By working set, {on}: {place}");
    let ticks = sizes.iter().map(|size| (*size as f64, bytes(*size))).collect();
    let legend = legend_of(&series);
    let panels = vec![Panel { axis: "time of one operation on one thread".into(), unit, log: true, series }];
    let chart = Lines { axis: "working set (logarithmic)".into(), from, to, log: true, ticks, panels };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "Medians, all in memory; each operation waits for the one before. In brackets in the table: the repeats."
            .into(),
        legend,
        table,
        ..Figure::default()
    })
}
