//! The figure of memory that fills: random reads through maps as a share of explicit I/O's, over time in multiples of
//! the time until memory was full. In these units machines of any speed lie over each other, so that the curves of the
//! CIDR 2022 paper stand in the same picture as this machine's.
//!
//! Kept true by: a map is set against explicit reads with as many requests in flight; without such a peer, or where
//! memory never filled, there is no curve.

use crate::format::{Unit, digits};
use crate::judge::best;
use crate::methods;
use crate::show::charts::{Lines, Panel, Series};
use crate::show::figures::{Figure, Table, dash, legend_of, tone};
use crate::summary::{Group, Metric};

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
