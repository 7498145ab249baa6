//! The lines of results, from the records: for each row and each quantity the engine's figure, and the figures of the same run beside it. Tables
//! and findings are made from these.

use super::ID;
use super::trials::{INTERVAL, data_title};
use super::works::{self, Bound, ENGINE, POLLER, Quantity, Row, TICKER};
use crate::entries::KEY_BYTES;
use crate::format::digits;
use crate::judge::bound;
use crate::show::columns::measured;
use crate::summary::{Group, Metric, Spread, Summary, is_plain};

/// The engine's figure of one quantity.
pub(super) struct Line<'g, 'a> {
    pub(super) row: &'static Row,
    pub(super) quantity: &'static Quantity,
    /// The set of data, as records name it.
    pub(super) target: &'a str,
    pub(super) own: &'g Group<'a>,
    pub(super) beside: Vec<Other<'g, 'a>>,
}

/// A figure beside it.
pub(super) struct Other<'g, 'a> {
    pub(super) group: &'g Group<'a>,
    /// The least ratio of the engine's figure to it.
    pub(super) aim: Option<f64>,
}

/// Whether an aim is met, as far as the repeats decide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    Yes,
    No,
    Undecided,
}

/// All lines, in the order of the works.
pub(super) fn lines<'g, 'a>(summary: &'g Summary<'a>) -> Vec<Line<'g, 'a>> {
    let mut lines = Vec::new();
    for row in works::rows() {
        let places = summary.places(ID).into_iter().filter(|(variant, _)| *variant == row.variant);
        for (_, target) in places {
            let groups = summary.at(ID, row.variant, target);
            for quantity in row.quantities {
                lines.extend(groups.iter().filter(|group| shows(group, quantity)).map(|own| Line {
                    row,
                    quantity,
                    target,
                    own,
                    beside: beside(&groups, quantity),
                }));
            }
        }
    }
    lines
}

/// Whether a group has a line of its own for a quantity: the engine's, where other settings of the executor matter for its timer only.
fn shows(group: &Group<'_>, quantity: &Quantity) -> bool {
    let is_engine = [ENGINE, POLLER].contains(&group.spec.method.as_str());
    is_engine && (is_plain(&group.spec.params) || matches!(quantity.metric, Metric::Latency(TICKER, _)))
}

fn beside<'g, 'a>(groups: &[&'g Group<'a>], quantity: &'static Quantity) -> Vec<Other<'g, 'a>> {
    let of = |method: &str| groups.iter().copied().find(|group| group.spec.method == method);
    quantity.beside.iter().filter_map(|other| Some(Other { group: of(other.method)?, aim: other.aim })).collect()
}

impl<'g, 'a> Line<'g, 'a> {
    /// The row and its data in words: `random gets, one at a time, 100 B`.
    pub(super) fn title(&self) -> String {
        let name = if self.quantity.name.is_empty() { String::new() } else { format!(", {}", self.quantity.name) };
        format!("{}{name}, {}", self.row.title, data_title(self.target))
    }

    /// The variant, the size of its values, the quantity, and what is special to the engine's executor: `get-tasks 100 B timer, poller`.
    pub(super) fn short_title(&self) -> String {
        let spec = self.own.spec;
        let size = spec.params.block_bytes.saturating_sub(KEY_BYTES as u64);
        let quantity = if self.quantity.short.is_empty() { String::new() } else { format!(" {}", self.quantity.short) };
        let poller = (spec.method == POLLER).then_some("poller".to_owned());
        let interval = spec.params.extra.get(INTERVAL).map(|interval| format!("event {interval}"));
        let title = format!("{} {size} B{quantity}", spec.variant);
        [poller, interval].into_iter().flatten().fold(title, |title, part| format!("{title}, {part}"))
    }

    /// Rows of a table, a figure beside it each: title, the engine's figure, the other method, its figure, the ratio, the aim.
    pub(super) fn cells(&self) -> Vec<[String; 6]> {
        let (title, figure) = (self.short_title(), self.in_unit(self.own));
        let aim = |bound: Option<String>, met: Option<Met>| match (bound, met) {
            (Some(bound), Some(met)) => format!("{bound} {}", met.sign()),
            (bound, _) => bound.unwrap_or_default(),
        };
        let mut rows = Vec::new();
        if self.limit().is_some() || self.beside.is_empty() {
            let own = aim(self.limit(), self.meets_limit());
            rows.push([title.clone(), figure.clone(), String::new(), String::new(), String::new(), own]);
        }
        for other in &self.beside {
            let ratio = self.ratio(other).map_or(String::new(), |ratio| format!("{}×", digits(ratio.median)));
            let aim = aim(other.aim.map(|least| format!("≥ {least}")), self.reaches(other));
            let (their, method) = (self.in_unit(other.group), other.group.title());
            rows.push([title.clone(), figure.clone(), method, their, ratio, aim]);
        }
        rows
    }

    /// A figure with its spread, in the unit of the line.
    fn in_unit(&self, group: &Group<'_>) -> String {
        let metric = self.quantity.metric;
        match group.spread(metric).filter(|_| self.quantity.unit != metric.unit()) {
            Some(spread) => self.quantity.unit.show(spread.median),
            None => measured(group, metric),
        }
    }

    /// The engine's figure.
    pub(super) fn spread(&self) -> Option<Spread> {
        self.own.spread(self.quantity.metric)
    }

    /// The engine's figure over another.
    pub(super) fn ratio(&self, other: &Other<'g, 'a>) -> Option<Spread> {
        self.spread()?.over(&other.group.spread(self.quantity.metric)?)
    }

    /// The figure in its unit; a dash where there is none.
    pub(super) fn show(&self, spread: Option<Spread>) -> String {
        spread.map_or("–".into(), |spread| self.quantity.unit.show(spread.median))
    }

    /// The bound of the figure by itself, in words.
    pub(super) fn limit(&self) -> Option<String> {
        Some(match self.quantity.limit? {
            Bound::AtLeast(value) => format!("≥ {}", self.quantity.unit.show(value)),
            Bound::AtMost(value) => format!("≤ {}", self.quantity.unit.show(value)),
        })
    }

    /// Whether the figure meets its bound.
    pub(super) fn meets_limit(&self) -> Option<Met> {
        let (low, high) = match self.quantity.limit? {
            Bound::AtLeast(value) => (value, f64::INFINITY),
            Bound::AtMost(value) => (0.0, value),
        };
        Some(met(&self.spread()?, low, high, self.is_exact()))
    }

    /// Whether the ratio to another figure reaches its aim.
    pub(super) fn reaches(&self, other: &Other<'g, 'a>) -> Option<Met> {
        Some(met(&self.ratio(other)?, other.aim?, f64::INFINITY, self.is_exact()))
    }

    /// Whether one trial decides, because the figure does not depend on chance.
    pub(super) fn is_exact(&self) -> bool {
        super::trials::is_exact(self.quantity.metric)
    }
}

fn met(spread: &Spread, low: f64, high: f64, exact: bool) -> Met {
    match bound::Bound::between(low, high).decide(spread) {
        bound::Outcome::Held => Met::Yes,
        bound::Outcome::DidNotHold => Met::No,
        _ if exact && (low..=high).contains(&spread.median) => Met::Yes,
        _ if exact => Met::No,
        _ => Met::Undecided,
    }
}

impl Met {
    /// The answer as a sign, for tables.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Yes => "✓",
            Self::No => "✗",
            Self::Undecided => "?",
        }
    }

    /// The answer in a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Yes => "met",
            Self::No => "missed",
            Self::Undecided => "open",
        }
    }
}
