//! One figure of the report as a separate SVG file, for a document: with the experiment's question, legend, and a line about the machine, on its
//! own light background, so that it reads the same on light and dark pages. It loads nothing and uses the system's fonts.

use std::fmt::Write as _;

use super::{STYLE, figures, machine_line};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Experiment;
use crate::experiments;
use crate::format;
use crate::record::file::RecordFile;
use crate::show::figures::{Figure, Legend};
use crate::show::svg::{Anchor, Canvas, TEXT_PX, escape, text_width, wrap};
use crate::summary::Summary;

/// Width of a picture in pixels, at which its text has its natural size; and the margin around it.
const CHART_PX: f64 = 780.0;
const MARGIN_PX: f64 = 20.0;
/// Height of the title's letters in pixels; other text has [`TEXT_PX`].
const TITLE_PX: f64 = 15.0;
/// Height of a line of text in pixels.
const LINE_PX: f64 = 18.0;
/// The beginning of every picture that the lab writes.
const BEGINNING: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"nofault-lab\"";

/// Whether a file with this beginning is a picture that the lab wrote.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(BEGINNING.as_bytes())
}

/// Draws the figure with this id as an SVG file. An id is `random/rate-file`: the experiment, and the figure's title in
/// lower case.
///
/// # Errors
/// `Usage` when the result has no such figure; the message lists the ids that it has.
pub(crate) fn svg(file: &RecordFile, id: &str) -> Result<String> {
    let summary = Summary::of(file);
    let drawn = drawn(&summary);
    if let Some((_, question, figure)) = drawn.iter().find(|(known, _, _)| known == id) {
        return Ok(whole(question, figure, &source(file)));
    }
    let ids: Vec<&str> = drawn.iter().map(|(id, _, _)| id.as_str()).collect();
    let known = if ids.is_empty() { "none".into() } else { ids.join("\n  ") };
    Err(LabError::new(LabErrorKind::Usage, format!("no figure '{id}' in this result; it has\n  {known}")))
}

/// Draws every figure of a result as an SVG file; returns each with its id. Of two figures with one id the first is drawn.
pub(crate) fn all(file: &RecordFile) -> Vec<(String, String)> {
    let summary = Summary::of(file);
    let source = source(file);
    let mut pictures: Vec<(String, String)> = Vec::new();
    for (id, question, figure) in drawn(&summary) {
        if pictures.iter().all(|(known, _)| *known != id) {
            pictures.push((id, whole(question, &figure, &source)));
        }
    }
    pictures
}

/// The figures of a result that have a drawing: id, the experiment's question, figure.
fn drawn(summary: &Summary<'_>) -> Vec<(String, &'static str, Figure)> {
    let of_experiment = |experiment: &'static dyn Experiment| {
        let name = experiment.id().name();
        let named = move |figure: Figure| {
            (format!("{name}/{}", slug(&figure.title)), experiment.description().texts.question, figure)
        };
        figures(experiment, summary).into_iter().map(named)
    };
    experiments::ALL.into_iter().flat_map(of_experiment).filter(|(_, _, figure)| !figure.svg.is_empty()).collect()
}

/// The line below a picture: machine, version and date.
fn source(file: &RecordFile) -> String {
    let run = &file.run;
    let (machine, date) = (machine_line(&run.machine), format::date(run.started_unix_ms));
    format!("{machine} · nofault {}, {date}", run.tool_version)
}

/// Turns a title into an id: lower case, with one hyphen in place of everything but letters and digits.
fn slug(title: &str) -> String {
    let words = title.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

fn whole(question: &str, figure: &Figure, source: &str) -> String {
    let (chart, chart_px) = wide(&figure.svg);
    let mut canvas = Canvas::new(CHART_PX);
    let mut y = MARGIN_PX;
    let lines = |text: &str, class: &str, width: f64, canvas: &mut Canvas, y: &mut f64| {
        for line in wrap(text, width) {
            *y += LINE_PX;
            canvas.text(class, (0.0, *y - 5.0), Anchor::Start, &line);
        }
    };
    lines(question, "title", CHART_PX * TEXT_PX / TITLE_PX, &mut canvas, &mut y);
    lines(&format!("{}. {}", figure.title, figure.lead), "tick", CHART_PX, &mut canvas, &mut y);
    legend(&figure.legend, &mut canvas, &mut y);
    let chart_y = y + 6.0;
    y = chart_y + chart_px + 4.0;
    lines(source, "tick", CHART_PX, &mut canvas, &mut y);

    let (width, height) = (CHART_PX + 2.0 * MARGIN_PX, y + MARGIN_PX / 2.0);
    let texts = canvas.finish("chart", height, &figure.title);
    // A nested drawing needs its own place and size.
    let texts =
        texts.replacen("<svg ", &format!("<svg x=\"{MARGIN_PX}\" width=\"{CHART_PX}\" height=\"{height:.0}\" "), 1);
    let place = format!("<svg x=\"{MARGIN_PX}\" y=\"{chart_y:.0}\" width=\"{CHART_PX}\" height=\"{chart_px:.0}\" ");
    let chart = chart.replacen("<svg ", &place, 1);
    let mut picture = format!(
        "{BEGINNING} width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&figure.title)
    );
    let _ = writeln!(picture, "<style>{}.chart .title{{font-size:{TITLE_PX}px;font-weight:600}}</style>", style());
    let _ = writeln!(
        picture,
        "<rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"6\" fill=\"#fdfdfc\"/>\n{texts}\n{chart}\n</svg>"
    );
    picture
}

/// Cuts the wide one of a figure's two drawings out of their markup; returns it with its height.
fn wide(drawings: &str) -> (&str, f64) {
    let end = drawings.find("</svg>").map_or(drawings.len(), |at| at + "</svg>".len());
    let drawing = &drawings[..end];
    let size = drawing.split_once("viewBox=\"").and_then(|(_, rest)| rest.split_once('"')).map_or("", |(size, _)| size);
    (drawing, size.rsplit(' ').next().and_then(|height| height.parse().ok()).unwrap_or(0.0))
}

/// Draws the legend at `y` and below, with as many entries on a line as fit.
fn legend(entries: &[Legend], canvas: &mut Canvas, y: &mut f64) {
    let mut x = CHART_PX;
    for entry in entries {
        let width = 30.0 + text_width(&entry.label) + 16.0;
        if x + width > CHART_PX {
            (x, *y) = (0.0, *y + LINE_PX);
        }
        let (middle, tone) = (*y - 9.0, entry.tone);
        match entry.mark {
            "line" => canvas.line(&format!("line {tone} dash{}", entry.dash), (x, middle), (x + 24.0, middle)),
            "full" => canvas.line(&format!("full {tone}"), (x + 12.0, middle - 6.0), (x + 12.0, middle + 6.0)),
            mark @ ("diamond" | "hollow") => {
                canvas.diamond(&format!("{mark} {tone}"), (x + 12.0, middle), &entry.label)
            }
            mark => canvas.dot(&format!("{mark} {tone}"), (x + 12.0, middle), 4.0, &entry.label),
        }
        canvas.text("label", (x + 30.0, *y - 5.0), Anchor::Start, &entry.label);
        x += width;
    }
}

/// The report's CSS rules for drawings, with the colours of its light page.
fn style() -> String {
    let colours = STYLE.split_once("@media").map_or("", |(light, _)| light);
    let rules = STYLE.split_once(".chart text").and_then(|(_, rest)| rest.split_once(".source"));
    format!("{colours}.chart text{}", rules.map_or("", |(rules, _)| rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_title_in_lower_case() {
        assert_eq!(slug("Rate: random, RAM-backed device"), "rate-random-ram-backed-device");
        assert_eq!(slug("CPU time per read: file · (2)"), "cpu-time-per-read-file-2");
    }

    #[test]
    fn a_picture_has_the_rules_of_the_report_for_light_pages_only() {
        let style = style();
        for part in ["--t0:", "--fg:#1c2024", ".bar{", ".line{", ".dash1{", ".full{", ".chart .value{"] {
            assert!(style.contains(part), "{part}: {style}");
        }
        for part in ["@media", ".narrow", ".source", "<", "&"] {
            assert!(!style.contains(part), "{part}: {style}");
        }
    }

    #[test]
    fn the_wide_drawing_comes_first_and_knows_its_height() {
        let (one, other) =
            (Canvas::new(780.0).finish("chart wide", 91.0, "a"), Canvas::new(340.0).finish("b", 9.0, "a"));
        let both = format!("{one}{other}");
        assert_eq!(wide(&both), (one.as_str(), 91.0));
    }
}
