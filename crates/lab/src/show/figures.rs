//! The figures that experiments share, each with the table behind it. A figure that the records cannot fill is left out.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::charts::{Lines, Mark, MarkKind, Panel, Row, Rows, Series};
use super::choice::{few, one_each};
use crate::format::{Unit, bytes, digits};
use crate::record::{Tick, Trial};
use crate::summary::{Basis, Family, Group, Metric, Paging, is_plain, parameters, sizes_differ};

/// A figure of the report: a drawing with its title, its explanation and the table behind it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Figure {
    pub(crate) title: String,
    /// A sentence that says how to read the figure.
    pub(crate) lead: String,
    pub(crate) legend: Vec<Legend>,
    /// Both drawings, wide and narrow, as markup.
    pub(crate) svg: String,
    /// The same drawing with all methods, where [`Self::svg`] has only the most telling ones.
    pub(crate) whole: Option<Whole>,
    pub(crate) table: Table,
}

/// A drawing of all methods, for readers who ask for it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Whole {
    /// The text to click on: `All 9 methods`.
    pub(crate) summary: String,
    pub(crate) legend: Vec<Legend>,
    /// Both drawings, wide and narrow, as markup.
    pub(crate) svg: String,
}

/// An entry of the legend: a line or mark, and its label.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Legend {
    pub(crate) tone: &'static str,
    pub(crate) dash: usize,
    /// The form of the mark: `line`, `dot`, `ring`, or `full`.
    pub(crate) mark: &'static str,
    pub(crate) label: String,
}

/// A table of text; the first column names the row.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Table {
    pub(crate) headers: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headers: &[&str]) -> Self {
        Self { headers: headers.iter().map(|&header| header.into()).collect(), rows: Vec::new() }
    }
}

/// Colour class of a group's method, the same everywhere in the report.
pub(crate) fn tone(group: &Group<'_>) -> &'static str {
    group.method.map_or("t6", |method| method.tone)
}

/// Number of series with this colour so far, which selects the dash pattern of the next.
pub(crate) fn dash(series: &[Series], tone: &str) -> usize {
    series.iter().filter(|other| other.tone == tone).count()
}

pub(crate) fn legend_of(series: &[Series]) -> Vec<Legend> {
    series
        .iter()
        .map(|series| Legend { tone: series.tone, dash: series.dash % 4, mark: "line", label: series.label.clone() })
        .collect()
}

pub(crate) fn bar_row(group: &Group<'_>, metric: Metric) -> Option<Row> {
    let spread = group.spread(metric)?;
    Some(Row {
        label: group.label(),
        tone: tone(group),
        marks: vec![Mark { values: group.values(metric), median: spread.median, kind: MarkKind::Measured }],
        value: metric.unit().show(spread.median),
    })
}

/// Makes a chart of rates: a bar to the median, and a dot for each repeat.
pub(crate) fn rates(groups: &[&Group<'_>], place: &str, metric: Metric, axis: &str) -> Option<Figure> {
    let rows: Vec<Row> = groups.iter().filter_map(|group| bar_row(group, metric)).collect();
    if groups.is_empty() {
        return None;
    }
    let what = match metric {
        Metric::BytesPerS => "Throughput",
        Metric::TimePerOp | Metric::Seconds => "Time",
        _ => "Rate",
    };
    let title = format!("{what}: {place}");
    let chart = Rows { axis: axis.into(), unit: metric.unit(), log: false, rows };
    Some(Figure {
        // When every trial is invalid: the table gives the reasons.
        svg: if chart.rows.is_empty() { String::new() } else { chart.draw(&title) },
        title,
        lead: "Bar: median with full memory (whole trial where it never fills). Dots: the repeats.".into(),
        legend: Vec::new(),
        table: results(groups),
        ..Figure::default()
    })
}

/// Metrics in the columns of the experiments that measure reclaim itself.
const OF_RECLAIM: [Metric; 4] =
    [Metric::SystemCpuPerGb, Metric::EvictedPerS, Metric::ScannedPerEvicted, Metric::MemoryPressure];

/// Metrics in the columns of the experiments that load and evict pages.
const OF_PAGING: [Metric; 4] = [
    Metric::ShootdownsPerEvicted,
    Metric::PerOp("minor_faults"),
    Metric::PerOp("major_faults"),
    Metric::PerOp("voluntary_switches"),
];

/// Makes the table behind a chart of rates: every figure of each method.
pub(crate) fn results(groups: &[&Group<'_>]) -> Table {
    let basis = groups.first().map_or(Basis::by(Metric::OpsPerS), |group| group.basis);
    let primary = basis.metric;
    let (pages, reclaims) = (basis.paging != Paging::None, basis.paging == Paging::Reclaim);
    let cpu = if primary == Metric::BytesPerS { Metric::CpuPerGb } else { Metric::CpuPerOp };
    let columns = [
        ("median", primary),
        ("CPU each", cpu),
        ("shootdowns", Metric::ShootdownsPerS),
        ("shootdowns per evicted page", Metric::ShootdownsPerEvicted),
        ("minor faults each", Metric::PerOp("minor_faults")),
        ("major faults each", Metric::PerOp("major_faults")),
        ("waits each", Metric::PerOp("voluntary_switches")),
        ("kswapd", Metric::KswapdShare),
        ("system CPU per GB", Metric::SystemCpuPerGb),
        ("evicted", Metric::EvictedPerS),
        ("looked at per evicted", Metric::ScannedPerEvicted),
        ("waiting for memory", Metric::MemoryPressure),
        ("device/work", Metric::Amplification),
        ("p50", Metric::Latency("op", 500)),
        ("p99", Metric::Latency("op", 990)),
        ("p99.9", Metric::Latency("op", 999)),
    ];
    let columns: Vec<_> = columns
        .into_iter()
        .filter(|(_, metric)| reclaims || !OF_RECLAIM.contains(metric))
        .filter(|(_, metric)| pages || !OF_PAGING.contains(metric))
        .filter(|(_, metric)| groups.iter().any(|group| group.spread(*metric).is_some()))
        .collect();
    // fio is a separate process: this process's faults and waits are not fio's.
    let of_others =
        |group: &Group<'_>, metric: Metric| group.family() == Family::Baseline && matches!(metric, Metric::PerOp(_));
    let sized = sizes_differ(groups);
    let mut table = Table::new(&["method", "runs", "spread"]);
    for (index, (name, metric)) in columns.iter().enumerate() {
        let header = if *metric == Metric::CpuPerGb { "CPU per GB" } else { name };
        table.headers.insert(if index == 0 { 1 } else { table.headers.len() }, header.to_owned());
    }
    for group in groups {
        let mut row = vec![group.label()];
        if group.good.is_empty() {
            let why = group.worthless.first().map_or("no figure".into(), |(_, why)| format!("worthless: {why}"));
            row.push(why);
            row.push("0".into());
            row.resize(table.headers.len(), "–".into());
            table.rows.push(row);
            continue;
        }
        for (index, (_, metric)) in columns.iter().enumerate() {
            let spread = group.spread(*metric).filter(|_| !of_others(group, *metric));
            // Latencies of operations of different sizes are not comparable: each then says its size.
            let size = match metric {
                Metric::Latency(..) if sized => format!(" / {}", bytes(group.spec.params.block_bytes)),
                _ => String::new(),
            };
            row.push(spread.map_or("–".into(), |spread| metric.unit().show(spread.median) + &size));
            if index == 0 {
                let left_out = group.worthless.len();
                let runs = group.good.len();
                row.push(if left_out > 0 { format!("{runs} ({left_out} worthless)") } else { runs.to_string() });
                row.push(group.primary().map_or("–".into(), |spread| {
                    format!("{} – {}", primary.unit().show(spread.min), primary.unit().show(spread.max))
                }));
            }
        }
        table.rows.push(row);
    }
    table
}

/// Makes a chart of costs, on a logarithmic axis because methods differ by orders of magnitude.
pub(crate) fn costs(groups: &[&Group<'_>], place: &str, metric: Metric, axis: &str) -> Option<Figure> {
    let rows: Vec<Row> = groups.iter().filter_map(|group| bar_row(group, metric)).collect();
    if rows.len() < 2 {
        return None;
    }
    let title = format!("{axis}: {place}");
    let mut table = Table::new(&["method", axis, "spread"]);
    for group in groups {
        if let Some(spread) = group.spread(metric) {
            let unit = metric.unit();
            table.rows.push(vec![
                group.label(),
                unit.show(spread.median),
                format!("{} – {}", unit.show(spread.min), unit.show(spread.max)),
            ]);
        }
    }
    let chart = Rows { axis: axis.into(), unit: metric.unit(), log: true, rows };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "User and system time of the process and its children, and kswapd's. This is what a slow device hides in the rates.".into(),
        legend: Vec::new(),
        table, ..Figure::default()
    })
}

/// Makes a chart of rates over time, second by second, as figures 2 to 4 of the paper.
pub(crate) fn time_series(groups: &[&Group<'_>], place: &str, metric: Metric, axis: &str) -> Option<Figure> {
    let drawn = |group: &&Group<'_>| {
        // fio's first seconds are its own start-up and would pass for a cold start.
        group.family() != Family::Baseline && group.typical().is_some_and(|trial| trial.outcome.ticks.len() >= 2)
    };
    let all: Vec<&Group<'_>> = one_each(groups, metric).into_iter().filter(drawn).collect();
    let shown = few(&all, metric);
    let chosen: Vec<(&Group<'_>, &Trial)> =
        all.into_iter().filter_map(|group| Some((group, group.typical()?))).collect();
    let to = chosen.iter().flat_map(|(_, trial)| &trial.outcome.ticks).map(|tick| tick.at_s).fold(0.0, f64::max);
    if chosen.is_empty() || !(to.is_finite() && to > 0.0) {
        return None;
    }
    let work = |tick: &Tick| Some(if metric == Metric::BytesPerS { tick.bytes as f64 } else { tick.ops as f64 });
    let counter = |name: &'static str, factor: f64| move |tick: &Tick| Some(tick.counters.get(name)? * factor);
    let mut panels = vec![Panel { axis: axis.into(), unit: metric.unit(), log: false, series: series(&chosen, &work) }];
    for (axis, unit, name, factor) in [
        ("TLB shootdowns per second", Unit::PerSecond, "tlb_shootdowns", 1.0),
        ("kswapd, percent of one core", Unit::Percent, "kswapd_cpu_s", 100.0),
        // Bytes that the kernel reads for the requested ones; left out for scans, where the two are equal.
        ("device reads, bytes per second", Unit::BytesPerSecond, "device_read_bytes", 1.0),
    ] {
        if name == "device_read_bytes" && metric != Metric::OpsPerS {
            continue;
        }
        let series = series(&chosen, &counter(name, factor));
        if series.iter().any(|series| series.points.iter().any(|point| point.1 > 0.0)) {
            panels.push(Panel { axis: axis.into(), unit, log: false, series });
        }
    }
    let title = format!("Second by second: {place}");
    let table = tick_table(&panels);
    let chart = Lines { axis: "seconds after the start".into(), from: 0.0, to, log: false, ticks: Vec::new(), panels };
    let few = chart.only(&shown);
    let low = few.panels.first().map_or(Vec::new(), |panel| at_the_bottom(&panel.series));
    let low = if low.is_empty() { String::new() } else { format!(" Along the zero line: {}.", low.join(", ")) };
    let lead = format!(
        "From a cold start; of each method the setting with the best median, and of its repeats the median one.{low}"
    );
    Some(of_lines(chart, few, Figure { title, lead, table, ..Figure::default() }))
}

/// Fills a figure with the drawing of its most telling lines; the drawing of all lines, where there are more, is for
/// readers who ask for it.
fn of_lines(whole: Lines, few: Lines, figure: Figure) -> Figure {
    let series_of = |chart: &Lines| chart.panels.first().map_or(0, |panel| panel.series.len());
    let (count, fewer) = (series_of(&whole), series_of(&few) < series_of(&whole));
    let all = fewer.then(|| Whole {
        summary: format!("All {count} methods"),
        legend: legend_of_lines(&whole),
        svg: whole.draw(&figure.title),
    });
    Figure { legend: legend_of_lines(&few), svg: few.draw(&figure.title), whole: all, ..figure }
}

/// The legend of a chart of lines: its series, and the mark of full memory where one has it.
fn legend_of_lines(chart: &Lines) -> Vec<Legend> {
    let Some(panel) = chart.panels.first() else { return Vec::new() };
    let mut legend = legend_of(&panel.series);
    if panel.series.iter().any(|series| series.full_at.is_some()) {
        legend.push(Legend { tone: "t6", dash: 0, mark: "full", label: "memory full (in the method's colour)".into() });
    }
    legend
}

/// Labels of the series whose values a linear axis cannot tell from zero.
fn at_the_bottom(series: &[Series]) -> Vec<&str> {
    let top = |series: &Series| series.points.iter().map(|point| point.1).fold(0.0, f64::max);
    let highest = series.iter().map(top).fold(0.0, f64::max);
    series.iter().filter(|series| top(series) < 0.02 * highest).map(|series| series.label.as_str()).collect()
}

fn series(chosen: &[(&Group<'_>, &Trial)], value: &dyn Fn(&Tick) -> Option<f64>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for (group, trial) in chosen {
        let tone = tone(group);
        let points = trial.outcome.ticks.iter().filter(|tick| tick.elapsed_s > 0.0);
        all.push(Series {
            label: group.label(),
            tone,
            dash: dash(&all, tone),
            points: points.filter_map(|tick| Some((tick.at_s, value(tick)? / tick.elapsed_s))).collect(),
            full_at: trial.outcome.full_at_s,
        });
    }
    all
}

/// Makes a table of the ticks: a column for each method, and below each other the panels with a row for each tick; every
/// n-th tick only if there are many.
fn tick_table(panels: &[Panel]) -> Table {
    let Some(first) = panels.first() else { return Table::default() };
    let mut table = Table::new(&["second"]);
    table.headers.extend(first.series.iter().map(|series| series.label.clone()));
    for panel in panels {
        let longest = panel.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
        for index in (0..longest).step_by(longest.div_ceil(60).max(1)) {
            let at = panel.series.iter().find_map(|series| series.points.get(index));
            let mut row = vec![format!("{}: {}", panel.axis, at.map_or(String::new(), |point| digits(point.0)))];
            let value =
                |series: &Series| series.points.get(index).map_or("–".into(), |point| panel.unit.show(point.1));
            row.extend(first.series.iter().map(|method| {
                let own = panel.series.iter().find(|series| series.label == method.label);
                own.map_or("–".into(), value)
            }));
            table.rows.push(row);
        }
    }
    table
}

/// Makes charts of the rate over threads or depth, where at least three values of either were measured.
pub(crate) fn sweeps(groups: &[&Group<'_>], place: &str, metric: Metric, axis: &str) -> Vec<Figure> {
    type Parameter = fn(&Group<'_>) -> u32;
    let parameters: [(&str, Parameter); 2] = [
        ("threads", |group| group.spec.params.threads),
        ("requests in flight for each thread", |group| group.spec.params.depth),
    ];
    let mut figures = Vec::new();
    for (name, value) in parameters {
        let mut series: Vec<Series> = Vec::new();
        let mut table = Table::new(&["method", name, "median", "spread"]);
        let mut methods: Vec<&Group<'_>> = Vec::new();
        for group in groups {
            if methods.iter().all(|other| other.spec.method != group.spec.method) {
                methods.push(group);
            }
        }
        let shown = few(&methods, metric);
        for method in &methods {
            let mut points: Vec<(f64, crate::summary::Spread)> = groups
                .iter()
                .filter(|group| group.spec.method == method.spec.method && is_plain(&group.spec.params))
                .filter_map(|group| Some((f64::from(value(group)), group.spread(metric)?)))
                .filter(|(at, _)| *at > 0.0)
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points.dedup_by(|a, b| a.0 == b.0);
            if points.len() < 3 {
                continue;
            }
            let unit = metric.unit();
            for (at, spread) in &points {
                let range = format!("{} – {}", unit.show(spread.min), unit.show(spread.max));
                table.rows.push(vec![method.title(), digits(*at), unit.show(spread.median), range]);
            }
            let tone = tone(method);
            series.push(Series {
                label: method.title(),
                tone,
                dash: dash(&series, tone),
                points: points.iter().map(|(at, spread)| (*at, spread.median)).collect(),
                full_at: None,
            });
        }
        if series.is_empty() {
            continue;
        }
        let ends = series
            .iter()
            .flat_map(|series| &series.points)
            .fold((f64::INFINITY, 0.0_f64), |(a, b), point| (a.min(point.0), b.max(point.0)));
        let mut ticks: Vec<(f64, String)> =
            series.iter().flat_map(|series| &series.points).map(|point| (point.0, digits_whole(point.0))).collect();
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        ticks.dedup_by(|a, b| a.0 == b.0);
        let title = format!("By {name}: {place}");
        let panels = vec![Panel { axis: axis.into(), unit: metric.unit(), log: false, series }];
        let chart = Lines { axis: name.into(), from: ends.0, to: ends.1, log: true, ticks, panels };
        let titles: Vec<String> = shown.iter().map(|label| title_of(&methods, label)).collect();
        let few = chart.only(&titles);
        let lead = "Medians; the spreads are in the table.".into();
        figures.push(of_lines(chart, few, Figure { title, lead, table, ..Figure::default() }));
    }
    figures
}

/// The title of the method of the group with this label.
fn title_of(groups: &[&Group<'_>], label: &str) -> String {
    groups.iter().find(|group| group.label() == label).map_or_else(String::new, |group| group.title())
}

fn digits_whole(value: f64) -> String {
    format!("{value:.0}")
}

/// Makes a chart of percentile curves, from the whole histograms of all repeats.
pub(crate) fn latencies(groups: &[&Group<'_>], place: &str, name: &str, what: &str) -> Option<Figure> {
    let primary = groups.first()?.basis.metric;
    let timed = |group: &&Group<'_>| group.histogram(name).is_some();
    let all: Vec<&Group<'_>> = one_each(groups, primary).into_iter().filter(timed).collect();
    let shown = few(&all, primary);
    let chosen: Vec<(&Group<'_>, Histogram<u64>)> =
        all.into_iter().filter_map(|group| Some((group, group.histogram(name)?))).collect();
    if chosen.is_empty() {
        return None;
    }
    // The x axis is 1 / (1 - quantile): each step halves the remaining rarer part, 50 %, 75 %, …
    let samples = chosen.iter().map(|(_, histogram)| histogram.len()).max().unwrap_or(1);
    let to = (samples as f64).clamp(100.0, 1e5);
    let mut series: Vec<Series> = Vec::new();
    let quantiles = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];
    let headers =
        ["method", "samples", "mean", "standard deviation", "p50", "p90", "p99", "p99.9", "p99.99", "largest"];
    let mut table = Table::new(&headers);
    for (group, histogram) in &chosen {
        let seconds = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e9;
        let tone = tone(group);
        let own_to = (histogram.len() as f64).min(to);
        let steps = (own_to.log2().max(1.0) * 4.0).ceil() as u32;
        let points = (0..=steps).map(|step| own_to.powf(f64::from(step) / f64::from(steps)));
        let points = points.map(|rarity| (rarity, seconds(1.0 - 1.0 / rarity))).collect();
        series.push(Series { label: group.label(), tone, dash: dash(&series, tone), points, full_at: None });
        let count = Unit::Count.show(histogram.len() as f64);
        let [mean, deviation] = [histogram.mean(), histogram.stdev()].map(|ns| Unit::Seconds.show(ns / 1e9));
        let mut row = vec![group.label(), count, mean, deviation];
        row.extend(quantiles[..5].iter().map(|quantile| Unit::Seconds.show(seconds(*quantile))));
        row.push(Unit::Seconds.show(histogram.max() as f64 / 1e9));
        table.rows.push(row);
    }
    let ticks = [
        (1.0, "0 %"),
        (2.0, "50 %"),
        (10.0, "90 %"),
        (100.0, "99 %"),
        (1e3, "99.9 %"),
        (1e4, "99.99 %"),
        (1e5, "99.999 %"),
    ];
    let ticks = ticks.iter().filter(|(at, _)| *at <= to).map(|(at, text)| (*at, (*text).to_owned())).collect();
    let title = format!("Latency of one {what}: {place}");
    let panels =
        vec![Panel { axis: format!("time of one {what} (logarithmic)"), unit: Unit::Seconds, log: true, series }];
    let chart = Lines { axis: "share that took at most this long".into(), from: 1.0, to, log: true, ticks, panels };
    let lead = "All repeats together; of each method the setting with the best rate. To the right: the rare slow ones.";
    let few = chart.only(&shown);
    Some(of_lines(chart, few, Figure { title, lead: lead.into(), table, ..Figure::default() }))
}

/// Describes the settings of the groups (threads, depth, extra parameters), each once, for the text on the method.
pub(crate) fn settings(groups: &[&Group<'_>]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for group in groups {
        let text = parameters(&group.spec.params);
        if !text.is_empty() && !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}
