//! The two kinds of chart of the report: [`Rows`] (one row a method: dots, bars, strips) and [`Lines`] (stacked
//! panels over a common axis: time series, sweeps, percentile curves). Each is drawn twice, for wide and narrow pages.

use super::svg::{Anchor, Axis, Canvas, TEXT_PX, TickMark, placed, text_width, wrap};
use crate::format::Unit;

/// Widths in pixels of a chart's two drawings, at which the text has its natural size.
const WIDE_PX: f64 = 780.0;
const NARROW_PX: f64 = 340.0;

/// A chart with a row for each method.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    /// Label of the value axis: `reads per second`.
    pub(crate) axis: String,
    pub(crate) unit: Unit,
    /// Whether the value axis is logarithmic; then there are dots only, as a bar would have no base.
    pub(crate) log: bool,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) label: String,
    /// Colour class of the row's method.
    pub(crate) tone: &'static str,
    pub(crate) marks: Vec<Mark>,
    /// The figure as text, at the end of the row.
    pub(crate) value: String,
}

/// The values of one kind in a row, with their median.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) values: Vec<f64>,
    pub(crate) median: f64,
    pub(crate) kind: MarkKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// A bar to the median, and a dot for each repeat.
    Measured,
    /// Filled dots, one for each run.
    Cold,
    /// Hollow dots, one for each run.
    Warm,
    /// A diamond: a published figure, from another machine.
    Literature,
    /// A diamond: a published figure with warm caches.
    LiteratureWarm,
}

impl Rows {
    /// Draws the chart twice, for wide and narrow pages.
    pub(crate) fn draw(&self, label: &str) -> String {
        self.draw_at(WIDE_PX, "wide", label) + &self.draw_at(NARROW_PX, "narrow", label)
    }

    fn draw_at(&self, width: f64, class: &str, label: &str) -> String {
        let longest = |text: fn(&Row) -> &str| self.rows.iter().map(|row| text_width(text(row))).fold(0.0, f64::max);
        let (label_px, value_px) = (longest(|row| &row.label), longest(|row| &row.value));
        // Labels stand next to the track where that leaves it half the width, otherwise above it.
        let beside = label_px + value_px + 24.0 <= width * 0.56;
        let left = if beside { label_px + 12.0 } else { 8.0 };
        let right = if beside { width - value_px - 14.0 } else { width - 12.0 };
        let values = self.rows.iter().flat_map(|row| &row.marks).flat_map(|mark| mark.values.iter().copied());
        let axis = Axis::new(values, self.log, self.unit, left, right);

        let mut canvas = Canvas::new(width);
        let mut layout = Vec::new();
        let mut y = 10.0;
        for row in &self.rows {
            let lines = if beside { Vec::new() } else { heading_lines(row, width - 12.0) };
            let top = y;
            y += lines.len() as f64 * 16.0 + 12.0 + 12.0 * (row.marks.len().max(1)) as f64;
            layout.push((row, lines, top, y));
        }
        let bottom = y + 2.0;
        for TickMark { at_px, label } in placed(axis.ticks(None), &axis, width) {
            canvas.line("grid", (at_px, 6.0), (at_px, bottom));
            if let Some((middle, text)) = label {
                canvas.text("tick", (middle, bottom + 15.0), Anchor::Middle, &text);
            }
        }
        canvas.line("axis", (left, bottom), (right, bottom));
        for (row, lines, top, end) in layout {
            for (at, anchor, text, class) in &lines {
                canvas.text(class, (at.0, top + at.1), *anchor, text);
            }
            let track = top + lines.iter().map(|line| line.0.1 + 4.0).fold(0.0, f64::max);
            let middle = f64::midpoint(track, end);
            if beside {
                canvas.text("label", (left - 10.0, middle + 4.0), Anchor::End, &row.label);
                canvas.text("value", (width - 4.0, middle + 4.0), Anchor::End, &row.value);
            }
            if row.marks.len() > 1 {
                canvas.line("grid", (0.0, end), (width, end));
            }
            self.draw_marks(&mut canvas, &axis, row, middle);
        }
        let unit = if self.log { format!("{} (logarithmic)", self.axis) } else { self.axis.clone() };
        let end = axis_text(&mut canvas, &unit, right, bottom + 33.0);
        canvas.finish(&format!("chart {class}"), end, label)
    }

    fn draw_marks(&self, canvas: &mut Canvas, axis: &Axis, row: &Row, middle: f64) {
        for (index, mark) in row.marks.iter().enumerate() {
            let y = middle + 12.0 * (index as f64 - (row.marks.len() as f64 - 1.0) / 2.0);
            let tone = row.tone;
            let ends = mark.values.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(*v), b.max(*v)));
            if mark.kind == MarkKind::Measured && !self.log {
                let from = axis.at(0.0);
                canvas.rect(&format!("bar {tone}"), (from, y - 7.0), (axis.at(mark.median) - from, 14.0));
            }
            if mark.values.len() > 1 {
                canvas.line(&format!("range {tone}"), (axis.at(ends.0), y), (axis.at(ends.1), y));
            }
            for value in &mark.values {
                let title = format!("{}: {}", row.label, self.unit.show(*value));
                let at = (axis.at(*value), y);
                match mark.kind {
                    MarkKind::Measured => canvas.dot(&format!("dot {tone}"), at, 3.0, &title),
                    MarkKind::Cold => canvas.dot(&format!("dot {tone}"), at, 4.0, &format!("{title} (cold)")),
                    MarkKind::Warm => canvas.dot(&format!("ring {tone}"), at, 4.0, &format!("{title} (warm)")),
                    MarkKind::Literature => canvas.diamond(&format!("diamond {tone}"), at, &title),
                    MarkKind::LiteratureWarm => canvas.diamond(&format!("hollow {tone}"), at, &title),
                }
            }
            if !matches!(mark.kind, MarkKind::Literature | MarkKind::LiteratureWarm) {
                let x = axis.at(mark.median);
                let half = if row.marks.len() > 2 { 6.0 } else { 8.0 };
                canvas.line(&format!("median {tone}"), (x, y - half), (x, y + half));
            }
        }
    }
}

/// Draws an axis label at its right end, in as many lines as it needs; returns the height of the drawing.
fn axis_text(canvas: &mut Canvas, text: &str, right: f64, y: f64) -> f64 {
    let lines = wrap(text, right - 4.0);
    for (index, line) in lines.iter().enumerate() {
        canvas.text("unit", (right, y + 16.0 * index as f64), Anchor::End, line);
    }
    y + 16.0 * lines.len() as f64 - 9.0
}

type Line = ((f64, f64), Anchor, String, &'static str);

/// Lays out a row's label above its bar: the value on the same line where there is room, else on separate lines.
fn heading_lines(row: &Row, width: f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let texts = wrap(&row.label, width);
    let last_width = texts.last().map_or(0.0, |text| text_width(text));
    for (index, text) in texts.into_iter().enumerate() {
        lines.push(((6.0, 13.0 + 16.0 * index as f64), Anchor::Start, text, "label"));
    }
    if row.value.is_empty() {
        return lines;
    }
    if last_width + text_width(&row.value) + 16.0 <= width {
        let y = lines.last().map_or(13.0, |line| line.0.1);
        lines.push(((width + 4.0, y), Anchor::End, row.value.clone(), "value"));
        return lines;
    }
    for text in wrap(&row.value, width) {
        let y = 13.0 + 16.0 * lines.len() as f64;
        lines.push(((6.0, y), Anchor::Start, text, "value"));
    }
    lines
}

/// A chart of lines: panels stacked over one x axis.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    /// Label of the x axis: `seconds after the start`.
    pub(crate) axis: String,
    /// The two ends of the x axis.
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) log: bool,
    /// Positions and labels on the x axis where round numbers do not fit (percentiles); otherwise empty.
    pub(crate) ticks: Vec<(f64, String)>,
    pub(crate) panels: Vec<Panel>,
}

#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// Label of the y axis, with its unit.
    pub(crate) axis: String,
    pub(crate) unit: Unit,
    pub(crate) log: bool,
    pub(crate) series: Vec<Series>,
}

#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) tone: &'static str,
    /// Number of the dash pattern, which distinguishes series of one colour: 0 is a solid line.
    pub(crate) dash: usize,
    pub(crate) points: Vec<(f64, f64)>,
    /// Position on the x axis at which memory became full.
    pub(crate) full_at: Option<f64>,
}

impl Lines {
    /// Returns the chart with those series only whose labels are given, without panels that then show nothing.
    pub(crate) fn only(&self, labels: &[String]) -> Self {
        let mut chart = self.clone();
        for panel in &mut chart.panels {
            panel.series.retain(|series| labels.contains(&series.label));
        }
        let shows = |panel: &Panel| panel.series.iter().any(|series| series.points.iter().any(|point| point.1 > 0.0));
        let mut first = true;
        chart.panels.retain(|panel| std::mem::take(&mut first) || shows(panel));
        chart
    }

    /// Draws the chart twice, for wide and narrow pages.
    pub(crate) fn draw(&self, label: &str) -> String {
        self.draw_at(WIDE_PX, "wide", label) + &self.draw_at(NARROW_PX, "narrow", label)
    }

    fn draw_at(&self, width: f64, class: &str, label: &str) -> String {
        let mut canvas = Canvas::new(width);
        let left = 8.0 + self.panels.iter().map(panel_label_px).fold(24.0, f64::max);
        let right = width - 14.0;
        let x = Axis::between(self.from, self.to, self.log, Unit::Count, left, right);
        let mut y = 4.0;
        for (index, panel) in self.panels.iter().enumerate() {
            let height = if index == 0 { 180.0 } else { 84.0 };
            let height = if width < 500.0 { height * 0.9 } else { height };
            for line in wrap(&panel.axis, width - 16.0) {
                y += 16.0;
                canvas.text("unit", (4.0, y - 2.0), Anchor::Start, &line);
            }
            y += 8.0;
            draw_panel(&mut canvas, panel, &x, (left, right), (y, y + height));
            y += height + 10.0;
        }
        let bottom = y - 10.0;
        let ticks = if self.ticks.is_empty() { x.ticks(None) } else { fitting(&self.ticks, &x) };
        for TickMark { at_px, label } in placed(ticks, &x, width) {
            canvas.line("axis", (at_px, bottom), (at_px, bottom + 4.0));
            if let Some((middle, text)) = label {
                canvas.text("tick", (middle, bottom + 17.0), Anchor::Middle, &text);
            }
        }
        let end = axis_text(&mut canvas, &self.axis, right, bottom + 35.0);
        canvas.finish(&format!("chart {class}"), end, label)
    }
}

/// Selects the labels that do not touch each other; the last label is always kept.
fn fitting(ticks: &[(f64, String)], axis: &Axis) -> Vec<(f64, String)> {
    let mut kept: Vec<(f64, String)> = Vec::new();
    for (value, text) in ticks.iter().rev() {
        let free = kept.last().is_none_or(|(last, last_text)| {
            axis.at(*last) - axis.at(*value) >= f64::midpoint(text_width(text), text_width(last_text)) + 10.0
        });
        if free {
            kept.push((*value, text.clone()));
        }
    }
    kept
}

fn panel_axis(panel: &Panel, from_px: f64, to_px: f64) -> Axis {
    let values = panel.series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    Axis::new(values, panel.log, panel.unit, from_px, to_px)
}

fn panel_label_px(panel: &Panel) -> f64 {
    panel_axis(panel, 180.0, 0.0).ticks(Some(24.0)).iter().map(|(_, text)| text_width(text)).fold(0.0, f64::max)
}

fn draw_panel(canvas: &mut Canvas, panel: &Panel, x: &Axis, (left, right): (f64, f64), (top, bottom): (f64, f64)) {
    let y = panel_axis(panel, bottom, top);
    for (value, text) in y.ticks(Some(24.0)) {
        canvas.line("grid", (left, y.at(value)), (right, y.at(value)));
        canvas.text("tick", (left - 6.0, y.at(value) + TEXT_PX / 3.0), Anchor::End, &text);
    }
    canvas.line("axis", (left, bottom), (right, bottom));
    for series in &panel.series {
        let tone = series.tone;
        let points: Vec<(f64, f64)> = series.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))).collect();
        canvas.path(&format!("line {tone} dash{}", series.dash % 4), &points, &series.label);
        // A dot for each second of a short series; curves of many points need none.
        if points.len() <= 30 {
            for ((a, b), at) in series.points.iter().zip(&points) {
                let title = format!("{}: {} at {}", series.label, panel.unit.show(*b), crate::format::digits(*a));
                canvas.dot(&format!("point {tone}"), *at, 2.2, &title);
            }
        }
        if let Some(full_at) = series.full_at {
            let x = x.at(full_at);
            canvas.line(&format!("full {tone}"), (x, top), (x, bottom));
        }
    }
}
