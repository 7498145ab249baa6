//! Drawing primitives: an SVG canvas, text with an estimated width, and axes whose labels never touch.
//!
//! Kept true by: [`text_width`] overestimates the width that browsers draw, and every label is placed only where its
//! estimated box is free. Colours are classes, so one drawing serves light, dark and paper.

use std::fmt::Write as _;

use crate::format::Unit;

/// Height of ordinary text in pixels.
pub(crate) const TEXT_PX: f64 = 12.0;

/// Estimates the width of a text at [`TEXT_PX`] in pixels. The estimate is too large rather than too small: system
/// fonts differ by ten percent.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars()
        .map(|c| match c {
            'i' | 'l' | 'j' | '.' | ',' | ':' | '\'' | '|' | ' ' | '/' | '(' | ')' => 4.4,
            'm' | 'w' | 'M' | 'W' | '%' | '@' => 11.4,
            'A'..='Z' | '_' | '×' | '–' | '+' => 9.2,
            _ => 7.2,
        })
        .sum()
}

/// Breaks a text between words into lines of at most `width_px`; a word longer is broken anywhere.
pub(crate) fn wrap(text: &str, width_px: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + 4.4 <= width_px => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.extend(pieces(word, width_px)),
        }
    }
    lines
}

fn pieces(word: &str, width_px: f64) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for c in word.chars() {
        let mut longer = pieces.last().cloned().unwrap_or_default();
        longer.push(c);
        match pieces.last_mut() {
            Some(last) if last.is_empty() || text_width(&longer) <= width_px => *last = longer,
            _ => pieces.push(c.to_string()),
        }
    }
    pieces
}

/// Escapes a text for HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Never allowed in XML.
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The point of a text that its position gives: start, middle or end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG drawing in progress.
#[derive(Debug)]
pub(crate) struct Canvas {
    body: String,
    width: f64,
}

impl Canvas {
    pub(crate) fn new(width: f64) -> Self {
        Self { body: String::new(), width }
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub(crate) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64)) {
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}"/>"#,
            at.0,
            at.1,
            size.0.max(0.0),
            size.1.max(0.0)
        );
    }

    /// A rectangle with a tooltip.
    pub(crate) fn titled_rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), title: &str) {
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            at.0,
            at.1,
            size.0.max(0.0),
            size.1.max(0.0),
            escape(title)
        );
    }

    /// A dot with a tooltip.
    pub(crate) fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, title: &str) {
        let _ = write!(
            self.body,
            r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="{radius}"><title>{}</title></circle>"#,
            at.0,
            at.1,
            escape(title)
        );
    }

    /// A diamond with a tooltip: a published figure.
    pub(crate) fn diamond(&mut self, class: &str, at: (f64, f64), title: &str) {
        let (x, y) = at;
        let _ = write!(
            self.body,
            r#"<path class="{class}" d="M{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}Z"><title>{}</title></path>"#,
            y - 6.0,
            x + 6.0,
            y + 6.0,
            x - 6.0,
            escape(title)
        );
    }

    pub(crate) fn path(&mut self, class: &str, points: &[(f64, f64)], title: &str) {
        let mut d = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(d, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        let _ = write!(self.body, r#"<path class="{class}" d="{d}"><title>{}</title></path>"#, escape(title));
    }

    pub(crate) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
            at.0,
            at.1,
            escape(text)
        );
    }

    /// Returns the whole `<svg>` element. `label` is its text for screen readers.
    pub(crate) fn finish(self, class: &str, height: f64, label: &str) -> String {
        format!(
            r#"<svg class="{class}" viewBox="0 0 {:.0} {height:.0}" role="img" aria-label="{}">{}</svg>"#,
            self.width,
            escape(label),
            self.body
        )
    }
}

/// The steps of a logarithmic axis in each decade, the finest first.
const MANTISSAS: [&[f64]; 5] =
    [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0], &[1.0, 2.0, 3.0, 5.0], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
/// Most labels of a logarithmic axis.
const LOG_TICKS_MAX: usize = 10;

/// A linear or logarithmic axis, which maps values to pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    min: f64,
    max: f64,
    log: bool,
    from_px: f64,
    to_px: f64,
    unit: Unit,
}

impl Axis {
    /// Creates an axis for values up to the largest of `values`. A linear axis starts at zero, a logarithmic one at a
    /// round value below the smallest positive value. Without usable values it goes from 0 to 1 (or 1 to 10).
    pub(crate) fn new(values: impl Iterator<Item = f64>, log: bool, unit: Unit, from_px: f64, to_px: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        let (min, max) = match (log, high > 0.0) {
            (false, true) => (0.0, high * 1.04),
            (false, false) => (0.0, 1.0),
            (true, true) => (round_down(low / 1.15), round_up(high * 1.15)),
            (true, false) => (1.0, 10.0),
        };
        Self { min, max, log, from_px, to_px, unit }
    }

    /// Creates an axis with the given ends.
    pub(crate) fn between(min: f64, max: f64, log: bool, unit: Unit, from_px: f64, to_px: f64) -> Self {
        let max = if max > min { max } else { min + 1.0 };
        Self { min, max, log, from_px, to_px, unit }
    }

    /// The pixel position of a value; a value beyond the axis is placed at its end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.min) / self.min).ln() / (self.max / self.min).ln()
        } else {
            (value - self.min) / (self.max - self.min)
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        self.from_px + part * (self.to_px - self.from_px)
    }

    /// Round values with their labels: as many as fit when each label takes `room_px` along the axis, or its own width
    /// for `None`. No two labels touch.
    pub(crate) fn ticks(&self, room_px: Option<f64>) -> Vec<(f64, String)> {
        if !self.log {
            return self.labelled(self.linear_steps(room_px.unwrap_or(64.0)), room_px);
        }
        // The finest steps of which every label has room: a strip that spans one decade needs more than its ends.
        let all_fit = MANTISSAS.iter().find_map(|mantissas| {
            let steps = self.log_steps(mantissas);
            let (count, ticks) = (steps.len(), self.labelled(steps, room_px));
            (ticks.len() == count && count <= LOG_TICKS_MAX).then_some(ticks)
        });
        all_fit.unwrap_or_else(|| self.labelled(self.log_steps(&[1.0]), room_px))
    }

    /// The values with their labels, without those whose label would touch the one before.
    fn labelled(&self, values: Vec<f64>, room_px: Option<f64>) -> Vec<(f64, String)> {
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for value in values {
            let label = self.unit.tick(value);
            let free = ticks.last().is_none_or(|(last, last_label)| {
                let room = room_px.unwrap_or_else(|| f64::midpoint(text_width(last_label), text_width(&label)) + 10.0);
                (self.at(value) - self.at(*last)).abs() >= room
            });
            if free {
                ticks.push((value, label));
            }
        }
        ticks
    }

    fn linear_steps(&self, room_px: f64) -> Vec<f64> {
        let count = ((self.to_px - self.from_px).abs() / room_px).floor().clamp(2.0, 8.0);
        let step = round_up((self.max - self.min) / count);
        if !(step.is_finite() && step > 0.0) {
            return vec![self.min];
        }
        let first = (self.min / step).ceil() as i64;
        (first..first + 12).map(|n| n as f64 * step).take_while(|value| *value <= self.max * (1.0 + 1e-9)).collect()
    }

    fn log_steps(&self, mantissas: &[f64]) -> Vec<f64> {
        let (first, last) = (self.min.log10().floor() as i32, self.max.log10().ceil() as i32);
        let every = usize::try_from(((last - first) / 8).max(1)).unwrap_or(1);
        let within = |value: &f64| *value >= self.min * (1.0 - 1e-9) && *value <= self.max * (1.0 + 1e-9);
        (first..=last)
            .step_by(every)
            .flat_map(|power| mantissas.iter().map(move |mantissa| mantissa * 10f64.powi(power)))
            .filter(within)
            .collect()
    }
}

/// A mark on a horizontal axis: its place, and its label where there is room for one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TickMark {
    /// Position of the mark in pixels.
    pub(crate) at_px: f64,
    /// Middle of the label in pixels, and the label.
    pub(crate) label: Option<(f64, String)>,
}

/// Places labels below a horizontal axis of a drawing that is `width` pixels wide: none leaves the drawing, and one that
/// would touch its neighbour because of that is left out.
pub(crate) fn placed(ticks: Vec<(f64, String)>, axis: &Axis, width: f64) -> Vec<TickMark> {
    let mut last: Option<(f64, f64)> = None;
    let place = |(value, text): (f64, String)| {
        let (at_px, half) = (axis.at(value), text_width(&text) / 2.0);
        let middle = at_px.clamp(half.min(width / 2.0), (width - half).max(width / 2.0));
        let free = last.is_none_or(|(other, other_half)| (middle - other).abs() >= half + other_half + 4.0);
        if free {
            last = Some((middle, half));
        }
        TickMark { at_px, label: free.then_some((middle, text)) }
    };
    ticks.into_iter().map(place).collect()
}

/// The smallest number of 1, 2 or 5 times a power of ten that is not below `value`.
pub(crate) fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|round| *round >= value * (1.0 - 1e-9)).unwrap_or(value)
}

/// The largest number of 1, 2 or 5 times a power of ten that is not above `value`.
pub(crate) fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [10.0, 5.0, 2.0, 1.0].into_iter().map(|m| m * power).find(|round| *round <= value * (1.0 + 1e-9)).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_an_axis_never_touch() {
        for (low, high) in [(1.0, 2.0), (1e-9, 1e12), (3.0, 1e6), (0.5, 0.51)] {
            for log in [false, true] {
                for width in [60.0, 200.0, 900.0] {
                    let axis = Axis::new([low, high].into_iter(), log, Unit::PerSecond, 0.0, width);
                    let ticks = axis.ticks(None);
                    assert!(!ticks.is_empty(), "{low} {high} {log} {width}");
                    for pair in ticks.windows(2) {
                        let room = f64::midpoint(text_width(&pair[0].1), text_width(&pair[1].1));
                        assert!(axis.at(pair[1].0) - axis.at(pair[0].0) >= room, "{ticks:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_label_that_is_moved_into_the_drawing_touches_no_other() {
        let axis = Axis::between(1.0, 100.0, false, Unit::Count, 0.0, 100.0);
        let ticks = [(1.0, "first"), (60.0, "middle"), (100.0, "very long label")];
        let placed = placed(ticks.map(|(at, text)| (at, text.to_owned())).to_vec(), &axis, 104.0);
        let labels: Vec<Option<&str>> =
            placed.iter().map(|mark| mark.label.as_ref().map(|(_, text)| text.as_str())).collect();
        assert_eq!(labels, [Some("first"), Some("middle"), None]);
        assert_eq!(placed[2].at_px, 100.0, "the mark stays");
    }

    #[test]
    fn a_logarithmic_axis_of_any_range_has_enough_labels_to_read_it() {
        for (low, high) in [(0.08, 0.3), (1.0, 1.4), (0.02, 2.0), (1e-6, 1e-1), (1e3, 9e3)] {
            let axis = Axis::new([low, high].into_iter(), true, Unit::Seconds, 0.0, 430.0);
            assert!(axis.ticks(None).len() >= 4, "{low} to {high}: {:?}", axis.ticks(None));
        }
    }

    #[test]
    fn values_outside_an_axis_are_drawn_at_its_end() {
        let axis = Axis::new([f64::NAN, 0.0, -3.0].into_iter(), true, Unit::Seconds, 10.0, 20.0);
        for value in [f64::NAN, -1.0, 0.0, f64::INFINITY, 1e300] {
            assert!((10.0..=20.0).contains(&axis.at(value)), "{value}");
        }
        assert_eq!((round_up(3.1), round_down(3.1), round_up(1.0), round_down(0.02)), (5.0, 2.0, 1.0, 0.02));
        assert_eq!(escape("<a&\"\u{1}"), "&lt;a&amp;&quot;\u{fffd}");
        assert_eq!(wrap("one two three", 60.0).len(), 2);
    }
}
