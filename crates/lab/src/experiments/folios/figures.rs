//! Figures of `folios`: the time of a page over the size of the folio, with a line for each method, and the number of
//! faults.

use super::{ALL, folio_bytes, sizes};
use crate::format::{Unit, bytes};
use crate::show::charts::{Lines, Panel, Series};
use crate::show::figures::{Figure, Table, dash, legend_of, rates};
use crate::summary::{Group, Metric};

/// Draws the figures: curves over the folio sizes where several were measured, otherwise bars.
pub(super) fn figures(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let sizes = sizes(groups);
    if sizes.len() < 2 {
        return rates(groups, place, Metric::TimePerOp, "time of a page").into_iter().collect();
    }
    over_sizes(groups, place, &sizes).into_iter().collect()
}

fn over_sizes(groups: &[&Group<'_>], place: &str, sizes: &[u64]) -> Option<Figure> {
    let unit = Unit::Seconds;
    let mut series: Vec<Series> = Vec::new();
    let mut table = Table { headers: vec!["method".into()], rows: Vec::new() };
    table.headers.extend(sizes.iter().map(|size| bytes(*size)));
    for method in ALL {
        let at = |size: &u64, metric: Metric| {
            let same = |group: &&&Group<'_>| group.spec.method == method.id && folio_bytes(group) == Some(*size);
            groups.iter().find(same)?.spread(metric)
        };
        let time = |size: &u64| at(size, Metric::TimePerOp);
        let points: Vec<(f64, f64)> =
            sizes.iter().filter_map(|size| Some((*size as f64, time(size)?.median))).collect();
        let label = method.title.to_owned();
        let mut row = vec![label.clone()];
        row.extend(sizes.iter().map(|size| time(size).map_or("–".into(), |spread| spread.show(unit))));
        table.rows.push(row);
        series.push(Series { label, tone: method.tone, dash: dash(&series, method.tone), points, full_at: None });
    }
    series.retain(|series| series.points.len() > 1);
    if series.is_empty() {
        return None;
    }
    let (from, to) = (*sizes.first()? as f64, *sizes.last()? as f64);
    let title = format!("Time of a page by the size of its folio: {place}");
    let ticks = sizes.iter().map(|size| (*size as f64, bytes(*size))).collect();
    let legend = legend_of(&series);
    let panels = vec![Panel { axis: "time of a page on one thread".into(), unit, log: true, series }];
    let chart = Lines { axis: "size of the folios (logarithmic)".into(), from, to, log: true, ticks, panels };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "Medians, all in the page cache. Sizes are the kernel's; a size that the file system did not use is left out. In brackets in \
               the table: the repeats."
            .into(),
        legend,
        table, ..Figure::default()
    })
}
