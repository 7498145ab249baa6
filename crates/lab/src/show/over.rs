//! A chart of lines over a parameter of the trials: a line for each method, a panel for each metric.

use super::charts::{Lines, Panel, Series};
use super::figures::{Figure, Table, dash, legend_of, tone};
use crate::summary::{Group, Metric};

/// The axes of a chart over a parameter.
pub(crate) struct Axes<'x> {
    /// Label of the common axis.
    pub(crate) axis: &'x str,
    /// The value of the parameter in a group's trials; `None` for a group without place on the axis.
    pub(crate) at: &'x dyn Fn(&Group<'_>) -> Option<f64>,
    /// The label of a value of the parameter.
    pub(crate) tick: &'x dyn Fn(f64) -> String,
    /// The panels from top to bottom: the label and the metric of each.
    pub(crate) panels: &'x [(&'x str, Metric)],
    /// Whether the value axis of a metric is logarithmic.
    pub(crate) log: fn(Metric) -> bool,
}

/// One group for each method, in the order of the groups.
pub(crate) fn methods<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    let mut methods: Vec<&Group<'_>> = Vec::new();
    for group in groups.iter().copied() {
        if methods.iter().all(|other| other.spec.method != group.spec.method) {
            methods.push(group);
        }
    }
    methods
}

/// Draws the medians of each method over the parameter; `None` where the groups have fewer than two values of it. The
/// groups of a method share a line, so they must differ in nothing but the parameter.
pub(crate) fn figure(
    groups: &[&Group<'_>],
    axes: &Axes<'_>,
    title: String,
    lead: String,
    table: Table,
) -> Option<Figure> {
    let mut values: Vec<f64> = groups.iter().filter_map(|group| (axes.at)(group)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let (&[first, ..], &[.., last]) = (values.as_slice(), values.as_slice()) else { return None };
    if values.len() < 2 {
        return None;
    }
    let methods = methods(groups);
    let panel = |(axis, metric): &(&str, Metric)| {
        let mut series: Vec<Series> = Vec::new();
        for method in &methods {
            let own = groups.iter().filter(|group| group.spec.method == method.spec.method && !group.never_filled());
            let mut points: Vec<(f64, f64)> =
                own.filter_map(|group| Some(((axes.at)(group)?, group.spread(*metric)?.median))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let tone = tone(method);
            if !points.is_empty() {
                series.push(Series { label: method.title(), tone, dash: dash(&series, tone), points, full_at: None });
            }
        }
        Panel { axis: (*axis).into(), unit: metric.unit(), log: (axes.log)(*metric), series }
    };
    let panels: Vec<Panel> = axes.panels.iter().map(panel).collect();
    let ticks = values.iter().map(|value| (*value, (axes.tick)(*value))).collect();
    let chart = Lines { axis: axes.axis.into(), from: first, to: last, log: true, ticks, panels };
    let legend = legend_of(&chart.panels.first()?.series);
    Some(Figure { svg: chart.draw(&title), legend, title, lead, table, ..Figure::default() })
}
