//! Maps of a ratio over two parameters: a coloured field for each pair of values, with the ratio written in it, and a line
//! between the fields where the ratio is above one and those where it is below. Drawn twice, for wide and narrow pages.

use super::svg::{Anchor, Canvas, text_width, wrap};
use crate::format::digits;

/// Widths in pixels of the two drawings, like other charts'.
const WIDE_PX: f64 = 780.0;
const NARROW_PX: f64 = 340.0;
/// Height of a field in pixels, and the gap between panels.
const FIELD_PX: f64 = 44.0;
const GAP_PX: f64 = 22.0;
/// Height of a line of text in pixels.
const LINE_PX: f64 = 16.0;

/// A map of a ratio, with a panel for each of a few conditions.
#[derive(Debug, Clone)]
pub(crate) struct RatioMap {
    /// Label of the columns' parameter.
    pub(crate) across: String,
    /// Label of the rows' parameter.
    pub(crate) down: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<String>,
    pub(crate) panels: Vec<RatioPanel>,
}

/// One grid of fields.
#[derive(Debug, Clone)]
pub(crate) struct RatioPanel {
    pub(crate) title: String,
    /// The fields row by row; `None` where nothing was measured.
    pub(crate) fields: Vec<Option<Field>>,
}

/// A field of the grid.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) ratio: f64,
    /// Whether the ratio differs from one by more than chance gives.
    pub(crate) sure: bool,
    /// A word below the ratio.
    pub(crate) note: String,
    /// Text shown where the pointer rests.
    pub(crate) title: String,
}

impl Field {
    /// The field in words, for a table: `0.70× direct`, with a question mark where chance may have given the ratio.
    pub(crate) fn words(&self) -> String {
        format!("{}{} {}", short(self.ratio), if self.sure { "" } else { "?" }, self.note)
    }
}

impl RatioMap {
    /// Draws the map twice, for wide and narrow pages.
    pub(crate) fn draw(&self, label: &str) -> String {
        let per_line = if self.columns.len() > 6 { 1 } else { 2 };
        self.draw_at(WIDE_PX, per_line, "wide", label) + &self.draw_at(NARROW_PX, 1, "narrow", label)
    }

    fn draw_at(&self, width: f64, per_line: usize, class: &str, label: &str) -> String {
        let mut canvas = Canvas::new(width);
        let per_line = per_line.min(self.panels.len()).max(1);
        let left = 10.0 + self.rows.iter().map(|row| text_width(row)).fold(0.0, f64::max);
        let panel_px = (width - left - 8.0 - GAP_PX * (per_line - 1) as f64) / per_line as f64;
        let mut y = 4.0;
        for line in wrap(&self.down, width - 8.0) {
            y += LINE_PX;
            canvas.text("unit", (4.0, y - 2.0), Anchor::Start, &line);
        }
        for panels in self.panels.chunks(per_line) {
            let top = y + LINE_PX + 10.0;
            for (index, panel) in panels.iter().enumerate() {
                let x = left + (panel_px + GAP_PX) * index as f64;
                canvas.text("label", (x, top - 7.0), Anchor::Start, &panel.title);
                self.draw_panel(&mut canvas, panel, (x, top), panel_px);
            }
            for (row, name) in self.rows.iter().enumerate() {
                let middle = top + FIELD_PX * (row as f64 + 0.5) + 4.0;
                canvas.text("tick", (left - 6.0, middle), Anchor::End, name);
            }
            y = top + FIELD_PX * self.rows.len() as f64 + LINE_PX + 4.0;
        }
        for line in wrap(&self.across, width - 8.0) {
            y += LINE_PX;
            canvas.text("unit", (width - 8.0, y - 2.0), Anchor::End, &line);
        }
        canvas.finish(&format!("chart {class}"), y + 4.0, label)
    }

    fn draw_panel(&self, canvas: &mut Canvas, panel: &RatioPanel, (x, top): (f64, f64), width: f64) {
        let columns = self.columns.len().max(1);
        let field_px = width / columns as f64;
        for (index, field) in panel.fields.iter().enumerate() {
            let at = (x + field_px * (index % columns) as f64, top + FIELD_PX * (index / columns) as f64);
            let Some(field) = field else {
                canvas.rect("field empty", at, (field_px - 1.0, FIELD_PX - 1.0));
                continue;
            };
            canvas.titled_rect(
                &format!("field {}", class_of(field.ratio)),
                at,
                (field_px - 1.0, FIELD_PX - 1.0),
                &field.title,
            );
            let middle = at.0 + field_px / 2.0;
            let doubt = if field.sure { "" } else { "?" };
            canvas.text("value cell", (middle, at.1 + 18.0), Anchor::Middle, &format!("{}{doubt}", short(field.ratio)));
            if text_width(&field.note) + 2.0 <= field_px {
                canvas.text("tick cell", (middle, at.1 + 35.0), Anchor::Middle, &field.note);
            }
        }
        for (column, name) in self.columns.iter().enumerate() {
            let middle = x + field_px * (column as f64 + 0.5);
            let bottom = top + FIELD_PX * self.rows.len() as f64 + LINE_PX;
            canvas.text("tick", (middle, bottom), Anchor::Middle, name);
        }
        self.draw_contour(canvas, panel, (x, top), field_px);
    }

    /// Draws the line between the fields above one and those below.
    fn draw_contour(&self, canvas: &mut Canvas, panel: &RatioPanel, (x, top): (f64, f64), field_px: f64) {
        let columns = self.columns.len();
        let wins = |row: usize, column: usize| {
            let at = row * columns + column;
            let field = if column < columns { panel.fields.get(at).and_then(Option::as_ref) } else { None };
            field.map(|field| field.ratio >= 1.0)
        };
        let differ = |a: Option<bool>, b: Option<bool>| matches!((a, b), (Some(a), Some(b)) if a != b);
        for row in 0..self.rows.len() {
            for column in 0..columns {
                let (left, above) = (x + field_px * column as f64, top + FIELD_PX * row as f64);
                let (right, below) = (left + field_px - 0.5, above + FIELD_PX - 0.5);
                if differ(wins(row, column), wins(row, column + 1)) {
                    canvas.line("contour", (right, above - 0.5), (right, below));
                }
                if row + 1 < self.rows.len() && differ(wins(row, column), wins(row + 1, column)) {
                    canvas.line("contour", (left - 0.5, below), (right, below));
                }
            }
        }
    }
}

/// A ratio with two digits, which is all that a field has room for.
fn short(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 9.95 => format!("{ratio:.0}×"),
        ratio if ratio >= 0.995 => format!("{ratio:.1}×"),
        ratio if ratio >= 0.01 => format!("{ratio:.2}×"),
        ratio => format!("{}×", digits(ratio)),
    }
}

/// The colour class of a field: two hues for wins and losses, three depths of each, and none near one.
fn class_of(ratio: f64) -> &'static str {
    match ratio {
        ratio if ratio < 0.33 => "t3 deep",
        ratio if ratio < 0.67 => "t3 middling",
        ratio if ratio < 0.95 => "t3 pale",
        ratio if ratio <= 1.05 => "even",
        ratio if ratio <= 1.5 => "t0 pale",
        ratio if ratio <= 3.0 => "t0 middling",
        _ => "t0 deep",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(ratio: f64) -> Option<Field> {
        Some(Field { ratio, sure: ratio != 1.02, note: "direct".into(), title: "<a & b>".into() })
    }

    fn map(panels: usize) -> RatioMap {
        let panel = RatioPanel {
            title: "uniform".into(),
            fields: vec![field(4.0), field(0.5), None, field(2.0), field(1.02), field(0.1)],
        };
        RatioMap {
            across: "data : memory".into(),
            down: "in flight".into(),
            columns: ["0.5", "1", "2"].map(str::to_owned).into(),
            rows: ["1", "16"].map(str::to_owned).into(),
            panels: vec![panel; panels],
        }
    }

    #[test]
    fn each_field_has_its_ratio_and_a_line_divides_wins_from_losses() {
        let drawn = map(1).draw("map");
        for part in ["4.0×", "0.50×", "1.0×?", "0.10×", "&lt;a &amp; b&gt;", "field empty"] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
        // 4.0 | 0.5, 0.5 over 1.02, 1.02 | 0.1: three pieces of the line, in each of the two drawings.
        assert_eq!(drawn.matches("contour").count(), 6, "{drawn}");
    }

    #[test]
    fn panels_stand_beside_each_other_where_there_is_room() {
        let [one, two] = [1, 2].map(|panels| map(panels).draw("map").matches("uniform").count());
        assert_eq!((one, two), (2, 4));
        assert!(RatioMap { panels: Vec::new(), ..map(1) }.draw("map").starts_with("<svg"));
    }

    #[test]
    fn wins_and_losses_have_hues_of_their_own() {
        assert_eq!(
            [0.1, 0.5, 0.9, 1.0, 1.2, 2.0, 9.0].map(class_of).map(|class| &class[..2]),
            ["t3", "t3", "t3", "ev", "t0", "t0", "t0"]
        );
        assert_eq!([0.0041, 0.123, 1.0, 12.3].map(short), ["0.00410×", "0.12×", "1.0×", "12×"]);
    }
}
