//! What the report shows of `random` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::ID;
use super::rules::Sides;
use crate::experiment::Texts;
use crate::format::{Unit, digits};
use crate::judge::best;
use crate::judge::curve::{Curve, is_valid};
use crate::methods::{self, Calls};
use crate::show::charts::{Lines, Panel, Series};
use crate::show::figures::{Figure, Table, dash, legend_of, tone};
use crate::show::literature::{LiteratureTable, PAPER, row};
use crate::show::over;
use crate::summary::{Family, Group, Metric, Summary, is_plain};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "What do random 4 KiB reads cost when the data is larger than memory?",
    main_figure: "rate of random reads, mmap ÷ explicit I/O, file",
    procedure: "Threads read blocks at seeded random offsets, other blocks in each trial because the layers below this machine may cache them, from data larger \
     than the memory they may use, from a cold start on; rates are taken after memory was full, latencies over the whole \
     trial. A trial of a map or of buffered reads goes on, for at most as long again, until memory was full for half of its time. The map loads one word of each page, as the paper's \
     benchmark loads one byte; read calls and the ring fetch the whole block. A word of each page is checked against the expected \
     content, while timed; fio checks nothing. The ring keeps its depth filled from one thread, with registered buffers. \
     Buffers, and the frames of the engine's pool, lie in small pages, like a map.",
    change: &[
        "A faster device: when the device is the limit, all methods reach it, and only the CPU cost tells them apart.",
        "Data that fits into memory: then nothing is evicted and mmap needs no system call.",
        "Read-ahead: MADV_NORMAL and buffered reads depend on read_ahead_kb more than on anything else here.",
        "More CPUs: each shootdown interrupts every CPU that has used the mapping.",
        "Reclaim by kswapd (a ballast, as in the paper) instead of the faulting thread (a cgroup), or the other way round.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: "",
    devices: 1,
    title: "Random 4 KiB reads, 100 threads, memory full",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["reads per second"],
    rows: &[
        row("fio O_DIRECT", &methods::FIO_PSYNC, &[900e3], ""),
        row("mmap RANDOM", &methods::MMAP_RANDOM, &[401e3], "1.19 M TLB shootdowns/s"),
        row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[23e3], ""),
        row("mmap NORMAL", &methods::MMAP_NORMAL, &[22e3], "2.5 GB/s from the device for 0.09 GB/s of work"),
    ],
    remarks: &[
        "Before memory was full mmap kept up with fio; then it fell near zero for five seconds and settled at under half.",
    ],
}];

// The figure of `random` that answers its question: rate, CPU time and p99 of each method over the requests in flight, all
// on one axis.

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

// The figure of memory that fills: random reads through maps as a share of explicit I/O's, over time in multiples of
// the time until memory was full. In these units machines of any speed lie over each other, so that the curves of the
// CIDR 2022 paper stand in the same picture as this machine's.
//
// Kept true by: a map is set against explicit reads with as many requests in flight; without such a peer, or where
// memory never filled, there is no curve.

/// The methods whose curves are drawn, the paper's counterparts among them.
const MAPS: [&str; 2] = [methods::MMAP_RANDOM.id, methods::MMAP_NORMAL.id];
/// Right end of the time axis, in multiples of the time until memory was full: as far as the paper's runs are shown.
const TO: f64 = 2.4;

/// A published run: reads per second over time.
struct PublishedRun {
    /// The lab's method that corresponds.
    method: &'static str,
    label: &'static str,
    /// Seconds after which memory was full, as the paper marks it.
    full_at_s: f64,
    /// Thousands of reads per second in each second from the first.
    kilo_reads: &'static [u16],
}

/// Reads per second of fio with O_DIRECT in the same setting, in thousands: the median of the published log.
const PUBLISHED_EXPLICIT_K: f64 = 898.0;

/// Figure 2(a) of the paper, from its published data: 100 threads, 4 KiB, one SSD, 100 GB of page cache.
const PUBLISHED: [PublishedRun; 2] = [
    PublishedRun {
        method: MAPS[0],
        label: "paper: mmap RANDOM",
        full_at_s: 27.0,
        kilo_reads: &[
            872, 875, 880, 883, 886, 887, 889, 890, 892, 892, 894, 896, 899, 901, 903, 905, 907, 909, 910, 910, 910,
            911, 913, 915, 917, 918, 107, 0, 0, 0, 29, 525, 587, 194, 464, 627, 214, 396, 613, 308, 303, 616, 395, 219,
            618, 471, 198, 555, 556, 213, 450, 606, 272, 332, 610, 380, 232, 610, 479, 205, 528, 587, 208, 420, 599,
        ],
    },
    PublishedRun {
        method: MAPS[1],
        label: "paper: mmap NORMAL",
        full_at_s: 16.0,
        kilo_reads: &[
            52, 52, 52, 52, 53, 53, 53, 53, 54, 54, 54, 55, 55, 55, 55, 24, 22, 20, 21, 21, 21, 24, 24, 24, 21, 21, 21,
            21, 22, 24, 24, 24, 21, 23, 15, 25, 20, 18,
        ],
    },
];

/// Draws the figure for the groups of one target; `None` where no map with a peer filled its memory.
pub(super) fn figure(groups: &[&Group<'_>], place: &str) -> Option<Figure> {
    let mut series: Vec<Series> = Vec::new();
    for method in MAPS {
        if let Some(own) = here(groups, method) {
            let dash = dash(&series, own.tone);
            series.push(Series { dash, ..own });
        }
    }
    let drawn = !series.is_empty();
    for published in PUBLISHED {
        let tone = methods::find(methods::SHARED, published.method).map_or("t6", |method| method.tone);
        let dash = dash(&series, tone).max(1);
        let points =
            published.kilo_reads.iter().zip(1..).map(|(reads, second)| {
                (f64::from(second) / published.full_at_s, f64::from(*reads) / PUBLISHED_EXPLICIT_K)
            });
        let points = points.filter(|(at, _)| *at <= TO).collect();
        series.push(Series { label: published.label.into(), tone, dash, points, full_at: None });
    }
    if let Some(first) = series.first_mut() {
        first.full_at = Some(1.0);
    }
    let title = format!("Random reads as memory fills, beside the paper's: {place}");
    let (legend, table) = (legend_of(&series), phases(&series));
    let panels = vec![Panel {
        axis: "reads per second, as a share of explicit I/O's with as many requests in flight".into(),
        unit: Unit::Ratio,
        log: false,
        series,
    }];
    let axis = "time, in multiples of the time until memory was full".into();
    let chart = Lines { axis, from: 0.0, to: TO, log: false, ticks: Vec::new(), panels };
    drawn.then(|| Figure {
        svg: chart.draw(&title),
        title,
        lead:
            "Solid: this machine, from a cold start. Dashed: Crotty, Leis, Pavlo, CIDR 2022, from their published data \
            (100 threads, 100 GB of page cache). From 1 on, each page that is read displaces another."
                .into(),
        legend,
        table,
        ..Figure::default()
    })
}

/// The curve of a map on this machine: its best setting for which explicit reads with as many in flight were measured.
fn here(groups: &[&Group<'_>], method: &str) -> Option<Series> {
    let in_flight = |group: &Group<'_>| group.spec.params.threads * group.spec.params.depth;
    let peer = |group: &Group<'_>| {
        let equal = |other: &&Group<'_>| other.family().is_explicit() && in_flight(other) == in_flight(group);
        best(groups.iter().copied().filter(equal), Metric::OpsPerS)?.spread(Metric::OpsPerS)
    };
    let own = groups.iter().copied().filter(|group| group.spec.method == method && peer(group).is_some());
    let group = best(own, Metric::OpsPerS)?;
    let (trial, explicit) = (group.typical()?, peer(group)?.median);
    let full_at_s = trial.outcome.full_at_s.filter(|at| *at > 0.0)?;
    let ticks = trial.outcome.ticks.iter().filter(|tick| tick.elapsed_s > 0.0);
    let points: Vec<(f64, f64)> = ticks
        .map(|tick| (tick.at_s / full_at_s, tick.ops as f64 / tick.elapsed_s / explicit))
        .filter(|(at, share)| *at <= TO && share.is_finite())
        .collect();
    let label = format!("here: {}", group.label());
    (explicit > 0.0 && points.len() > 1).then(|| Series { label, tone: tone(group), dash: 0, points, full_at: None })
}

/// The table behind the curves: the median share before memory was full, and the median and the lowest after it.
fn phases(series: &[Series]) -> Table {
    let mut table = Table::new(&["curve", "median before full", "median after", "lowest after"]);
    for series in series {
        let part = |after: bool| {
            let mut shares: Vec<f64> =
                series.points.iter().filter(|(at, _)| (*at > 1.0) == after).map(|(_, share)| *share).collect();
            shares.sort_by(f64::total_cmp);
            shares
        };
        let (before, after) = (part(false), part(true));
        let shown = |share: Option<&f64>| share.map_or("–".to_owned(), |share| digits(*share));
        let median = |shares: &[f64]| shown(shares.get(shares.len() / 2));
        table.rows.push(vec![series.label.clone(), median(&before), median(&after), shown(after.first())]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_curves_have_the_papers_three_phases() {
        let series = |published: &PublishedRun| Series {
            label: String::new(),
            tone: "t0",
            dash: 0,
            points: published
                .kilo_reads
                .iter()
                .zip(1..)
                .map(|(reads, at)| (f64::from(at), f64::from(*reads)))
                .collect(),
            full_at: None,
        };
        let [random, normal] = PUBLISHED.map(|published| series(&published).points);
        let mean = |points: &[(f64, f64)]| points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
        assert!(mean(&random[..26]) > 850.0 && mean(&random[27..31]) < 10.0, "level, then the hole of five seconds");
        assert!((350.0..480.0).contains(&mean(&random[31..])), "the paper's median of 401 K reads a second");
        assert!(mean(&normal[16..]) < 25.0 && mean(&normal[..15]) > 50.0);
    }
}
