//! The results of the benchmark: for each work the engine's figure and the baselines of the same run, with their
//! spread.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};

use crate::format::Unit;

pub(super) use crate::stores::ENGINE;

/// All results of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BenchReport {
    /// Sizes, seed and machine, in words.
    pub conditions: Vec<String>,
    /// One for each work, size of value and number of threads.
    pub rows: Vec<Row>,
}

/// The results of one work, with one size of value and number of threads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub work: String,
    /// Its distinguishing parameters: bytes of a value, threads.
    pub variant: String,
    /// The unit of the figures.
    #[serde(serialize_with = "unit_name", deserialize_with = "unit_of")]
    pub unit: Unit,
    /// The engine's figure, if it has one.
    pub engine: Option<Spread>,
    /// The bound that the engine's figure must meet.
    pub limit: Option<Limit>,
    /// The figures it is compared with.
    pub baselines: Vec<Baseline>,
    /// Further facts: reads and CPU for each operation, inequalities.
    pub notes: Vec<String>,
    #[serde(skip)]
    samples: Vec<(String, Vec<f64>)>,
}

/// A bound of the engine's figure.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Not less than this.
    AtLeast(f64),
    /// Not more than this.
    AtMost(f64),
}

/// A figure to compare with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Baseline {
    /// Its name.
    pub name: String,
    /// Its figure; `None` where it was not built or could not run.
    pub figure: Option<Spread>,
    /// The engine's median divided by this figure's.
    pub ratio: Option<f64>,
    /// The ratio to be reached.
    pub reach: Option<f64>,
    /// Why there is no figure.
    pub missing: Option<String>,
}

/// Median and range of repeated measurements.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Number of measurements.
    pub count: usize,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = |index: usize| sorted[index.min(sorted.len() - 1)];
        let median = (middle((sorted.len() - 1) / 2) + middle(sorted.len() / 2)) / 2.0;
        Some(Self { median, min, max, count: sorted.len() })
    }
}

impl Row {
    pub(super) fn new(work: &'static str, variant: impl Into<String>, unit: Unit) -> Self {
        let (baselines, notes, samples) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            work: work.to_owned(),
            variant: variant.into(),
            unit,
            engine: None,
            limit: None,
            baselines,
            notes,
            samples,
        }
    }

    /// Adds one measurement of the engine or of a baseline.
    pub(super) fn add(&mut self, who: &str, value: f64) {
        match self.samples.iter_mut().find(|(name, _)| name == who) {
            Some((_, samples)) => samples.push(value),
            None => self.samples.push((who.to_owned(), vec![value])),
        }
    }

    /// Adds a note about the figures, unless it is there already.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds a baseline; the engine's figure is to be at least `reach` times its figure.
    pub(super) fn compare(&mut self, name: &str, reach: Option<f64>) {
        let baseline = Baseline { name: name.to_owned(), figure: None, ratio: None, reach, missing: None };
        self.baselines.push(baseline);
    }

    /// Adds a baseline without a figure, with the reason.
    pub(super) fn missing(&mut self, name: &str, reach: Option<f64>, why: &str) {
        let missing = Some(why.to_owned());
        self.baselines.push(Baseline { name: name.to_owned(), figure: None, ratio: None, reach, missing });
    }

    /// Whether both are of the same work and variant.
    pub(super) fn is_of_the_same(&self, other: &Self) -> bool {
        (&self.work, &self.variant) == (&other.work, &other.variant)
    }

    /// Merges the results of the same work with another store.
    pub(super) fn join(&mut self, other: Self) {
        self.engine = self.engine.or(other.engine);
        self.limit = self.limit.or(other.limit);
        for theirs in other.baselines {
            match self.baselines.iter_mut().find(|ours| ours.name == theirs.name) {
                Some(ours) => ours.figure = ours.figure.or(theirs.figure),
                None => self.baselines.push(theirs),
            }
        }
        other.notes.into_iter().for_each(|note| self.note(note));
        self.set_ratios();
    }

    /// Computes the figures from the samples. In a row from a child that has happened already.
    pub(super) fn finish(mut self) -> Self {
        if self.samples.is_empty() {
            return self;
        }
        let figure = |name: &str| self.samples.iter().find(|(who, _)| who == name).and_then(|(_, s)| Spread::of(s));
        self.engine = figure(ENGINE);
        for baseline in &mut self.baselines {
            baseline.figure = figure(&baseline.name);
        }
        self.set_ratios();
        self
    }

    fn set_ratios(&mut self) {
        for baseline in &mut self.baselines {
            baseline.ratio = match (self.engine, baseline.figure) {
                (Some(engine), Some(other)) if other.median != 0.0 => Some(engine.median / other.median),
                _ => None,
            };
        }
    }
}

impl BenchReport {
    /// A table for a terminal, `width` columns wide (at least 60), and the notes under it.
    pub fn text(&self, width: u16) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.max(60));
        table.set_header(["work", "nofault", "spread", "compared with", "its figure", "ratio", "to reach"]);
        for row in &self.rows {
            let show = |spread: Option<Spread>| spread.map_or("–".to_owned(), |spread| row.unit.show(spread.median));
            let title = format!("{} {}", row.work, row.variant);
            let limit = row.limit.map(|limit| match limit {
                Limit::AtLeast(value) => format!("≥ {}", row.unit.show(value)),
                Limit::AtMost(value) => format!("≤ {}", row.unit.show(value)),
            });
            let first = [title, show(row.engine), row.engine.map_or(String::new(), |spread| relative(&spread))];
            let mut others: Vec<[String; 4]> = row
                .baselines
                .iter()
                .map(|baseline| {
                    [
                        baseline.name.clone(),
                        baseline.missing.clone().unwrap_or_else(|| show(baseline.figure)),
                        baseline.ratio.map_or("–".into(), |ratio| Unit::Ratio.show(ratio)),
                        baseline.reach.map_or(String::new(), |reach| format!("≥ {}", Unit::Ratio.show(reach))),
                    ]
                })
                .collect();
            if let Some(limit) = limit {
                others.insert(0, ["(by itself)".into(), String::new(), String::new(), limit]);
            }
            if others.is_empty() {
                others.push(Default::default());
            }
            for (index, other) in others.into_iter().enumerate() {
                let lead = if index == 0 { first.clone() } else { Default::default() };
                table.add_row(lead.into_iter().chain(other));
            }
        }
        for index in [1, 2, 4, 5, 6] {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = format!("{table}\n");
        for row in self.rows.iter().filter(|row| !row.notes.is_empty()) {
            let _ = writeln!(text, "{} {}: {}", row.work, row.variant, row.notes.join("; "));
        }
        self.conditions.iter().for_each(|condition| {
            let _ = writeln!(text, "{condition}");
        });
        text
    }
}

/// The spread around the median: `-3 +2 %`; `1 run` for a single value.
fn relative(spread: &Spread) -> String {
    if spread.count < 2 || spread.median == 0.0 {
        return format!("{} run", spread.count);
    }
    let part = |value: f64| (value / spread.median - 1.0) * 100.0;
    format!("-{:.0} +{:.0} %", part(spread.min).abs(), part(spread.max))
}

const UNITS: [(Unit, &str); 6] = [
    (Unit::PerSecond, "per_second"),
    (Unit::BytesPerSecond, "bytes_per_second"),
    (Unit::Seconds, "seconds"),
    (Unit::Ratio, "ratio"),
    (Unit::Percent, "percent"),
    (Unit::Count, "count"),
];

fn unit_name<S: serde::Serializer>(unit: &Unit, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(UNITS.iter().find(|(known, _)| known == unit).map_or("count", |(_, name)| name))
}

fn unit_of<'d, D: serde::Deserializer<'d>>(deserializer: D) -> Result<Unit, D::Error> {
    let name = String::deserialize(deserializer)?;
    let unit = UNITS.iter().find(|(_, known)| *known == name).map(|(unit, _)| *unit);
    unit.ok_or_else(|| serde::de::Error::custom(format!("no unit is called {name}")))
}
