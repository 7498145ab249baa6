//! The figure of `random` that answers its question: rate, CPU time and p99 of each method over the requests in flight, all
//! on one axis.

use crate::format::Unit;
use crate::judge::curve::{Curve, is_valid};
use crate::methods::Calls;
use crate::show::charts::{Lines, Panel, Series};
use crate::show::figures::{Figure, Table, dash, legend_of, tone};
use crate::show::over;
use crate::summary::{Family, Group, Metric, Summary, is_plain};

use super::ID;
use super::findings::Sides;

/// The panels of the figure, from top to bottom.
const PANELS: [(&str, Metric); 3] = [
    ("reads per second", Metric::OpsPerS),
    ("CPU time per read", Metric::CpuPerOp),
    ("99th percentile of a read", Metric::Latency("op", 990)),
];

/// The groups of a method with a curve: with its own parameters only, each request answered by itself, by the lab's
/// own code.
fn has_curve(group: &Group<'_>) -> bool {
    let own = group.family() != Family::Baseline && group.conditions().calls == Calls::Single;
    own && is_plain(&group.spec.params) && is_valid(group, Metric::OpsPerS)
}

/// Draws the curves; `None` where no method was measured with two numbers of requests in flight.
pub(super) fn curves(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let own: Vec<&Group<'_>> = groups.iter().copied().filter(|group| has_curve(group)).collect();
    let methods = over::methods(&own);
    let of = |method: &Group<'_>| {
        let own = groups.iter().copied().filter(|group| has_curve(group) && group.spec.method == method.spec.method);
        Curve::of(own, Metric::OpsPerS)
    };
    let curves: Vec<_> = methods.into_iter().map(|method| (method, of(method))).collect();
    let curves: Vec<_> = curves.into_iter().filter(|(_, curve)| curve.points().len() > 1).collect();
    if curves.is_empty() {
        return None;
    }
    let panels: Vec<Panel> = PANELS
        .into_iter()
        .map(|(axis, metric)| {
            let mut series: Vec<Series> = Vec::new();
            for (method, curve) in &curves {
                let points = curve
                    .points()
                    .iter()
                    .filter_map(|group| Some((f64::from(group.conditions().in_flight), group.spread(metric)?.median)));
                let (tone, points) = (tone(method), points.collect());
                series.push(Series { label: method.title(), tone, dash: dash(&series, tone), points, full_at: None });
            }
            Panel { axis: axis.into(), unit: metric.unit(), log: true, series }
        })
        .collect();
    let mut counts: Vec<u32> =
        curves.iter().flat_map(|(_, curve)| curve.points().iter().map(|group| group.conditions().in_flight)).collect();
    counts.sort_unstable();
    counts.dedup();
    let ticks = counts.iter().map(|count| (f64::from(*count), count.to_string())).collect();
    let ends = (f64::from(counts[0]), f64::from(counts[counts.len() - 1]));
    let (legend, title) = (legend_of(&panels[0].series), format!("By requests in flight: {place}"));
    let axis = "requests in flight (threads of a map and of read calls, depth of a ring, tasks of the pool)".into();
    let chart = Lines { axis, from: ends.0, to: ends.1, log: true, ticks, panels };
    Some(Figure {
        svg: chart.draw(&title),
        whole: None,
        title,
        lead: "Medians with full memory. Methods compare where they have the same number of requests in flight: one above the other.".into(),
        legend,
        table: table(curves.iter().flat_map(|(_, curve)| curve.points().iter().copied())),
    })
}

/// The sides whose curves are shown over several machines.
const SIDES: [&str; 3] =
    ["mmap RANDOM", "explicit I/O (the faster of pread and io_uring, O_DIRECT)", "the engine's pool"];
/// Colours of the machines; from the ninth on their lines are dashed.
const TONES: [&str; 8] = ["t0", "t3", "t4", "t1", "t5", "t7", "t2", "t6"];

/// Draws the curves of several machines on the file: a panel for each side, and one for the map's rate over explicit I/O's.
/// `None` where no machine has a curve.
pub(super) fn side_by_side(machines: &[(String, &Summary<'_>)]) -> Option<Figure> {
    let mut panels: Vec<Panel> = Vec::new();
    let headers = ["machine", "side", "in flight", "reads per second"];
    let mut table = Table { headers: headers.map(str::to_owned).to_vec(), rows: Vec::new() };
    let groups: Vec<Vec<&Group<'_>>> = machines.iter().map(|(_, summary)| summary.at(ID, "", "file")).collect();
    let sides: Vec<Sides<'_, '_>> = groups.iter().map(|groups| Sides::of(groups)).collect();
    for (at, name) in SIDES.into_iter().enumerate() {
        let curve = |sides: &Sides<'_, '_>| -> Vec<(f64, f64)> {
            let curve = [&sides.map, &sides.explicit, &sides.pool][at];
            let points = curve.points().iter();
            points
                .filter_map(|group| {
                    Some((f64::from(group.conditions().in_flight), group.spread(Metric::OpsPerS)?.median))
                })
                .collect()
        };
        let series = lines_of(machines, sides.iter().map(curve));
        for series in &series {
            for (count, rate) in &series.points {
                table.rows.push(vec![
                    series.label.clone(),
                    name.into(),
                    format!("{count:.0}"),
                    Unit::PerSecond.show(*rate),
                ]);
            }
        }
        panels.push(Panel { axis: format!("{name}: reads per second"), unit: Unit::PerSecond, log: true, series });
    }
    let ratio = |sides: &Sides<'_, '_>| -> Vec<(f64, f64)> {
        let found = sides.map.over(&sides.explicit, Metric::OpsPerS);
        let pairs = found.map_or(Vec::new(), |found| found.pairs);
        let of = |group: &Group<'_>| group.spread(Metric::OpsPerS).map(|spread| spread.median);
        let points = pairs.iter().filter_map(|(a, b)| Some((f64::from(a.conditions().in_flight), of(a)? / of(b)?)));
        points.collect()
    };
    let series = lines_of(machines, sides.iter().map(ratio));
    panels.push(Panel { axis: "mmap ÷ explicit I/O".into(), unit: Unit::Ratio, log: false, series });
    panels.retain(|panel| !panel.series.is_empty());
    let counts: std::collections::BTreeSet<u32> = panels
        .iter()
        .flat_map(|panel| &panel.series)
        .flat_map(|series| &series.points)
        .map(|point| point.0 as u32)
        .collect();
    let (first, last) = (counts.first().copied()?, counts.last().copied()?);
    let (legend, title) =
        (legend_of(&panels.first()?.series), "Random 4 KiB reads, data larger than memory".to_owned());
    let chart = Lines {
        axis: "requests in flight".into(),
        from: f64::from(first),
        to: f64::from(last),
        log: true,
        ticks: counts.iter().map(|count| (f64::from(*count), count.to_string())).collect(),
        panels,
    };
    let lead = "Medians with full memory, each machine by its letter. Machines differ in device and CPUs: compare the form of the curves, and the ratio.".into();
    Some(Figure { svg: chart.draw(&title), title, lead, legend, table, ..Figure::default() })
}

/// A line for each machine that has points, in the machine's colour.
fn lines_of(machines: &[(String, &Summary<'_>)], points: impl Iterator<Item = Vec<(f64, f64)>>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (at, ((label, _), points)) in machines.iter().zip(points).enumerate() {
        if !points.is_empty() {
            let (tone, dash) = (TONES[at % TONES.len()], at / TONES.len());
            all.push(Series { label: label.clone(), tone, dash, points, full_at: None });
        }
    }
    all
}

/// Makes the table behind the curves.
fn table<'g, 'a: 'g>(points: impl Iterator<Item = &'g Group<'a>>) -> Table {
    let mut table = Table::new(&["method", "in flight", "reads/s", "spread", "CPU a read", "p99"]);
    for group in points {
        let show =
            |metric: Metric| group.spread(metric).map_or("–".into(), |spread| metric.unit().show(spread.median));
        let spread = group.primary().map_or("–".into(), |spread| {
            format!("{} – {}", Unit::PerSecond.show(spread.min), Unit::PerSecond.show(spread.max))
        });
        let [rate, cpu, p99] = PANELS.map(|(_, metric)| show(metric));
        table.rows.push(vec![group.title(), group.conditions().in_flight.to_string(), rate, spread, cpu, p99]);
    }
    table
}
