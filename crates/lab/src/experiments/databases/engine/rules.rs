//! Rules on the records of `engine`: published claims, findings, and reasons for the verdict.

use super::works::{self, Aim, Bound, GET_TASKS, Quantity, Row, TICKER};
use super::{DEVICE, ID, INTERVAL, NOFAULT_POLLER, data_title, is_exact, is_in_ram};
use crate::format::digits;
use crate::judge::{self, Finding, KeyFigure, Kind, bound, keys};
use crate::measure::entries::KEY_BYTES;
use crate::methods::{Method, NOFAULT};
use crate::show::columns::measured_in;
use crate::summary::{Group, Metric, Property, Spread, Summary, is_plain};

// Rules for `engine`: whether its figures reach the project's aims, each with the figure of the same run that it is
// compared with.

/// The data of the main question: values of 100 bytes, more than fit in memory.
const KEY_TARGET: &str = "100B";

/// Adds the findings that the records of `engine` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for line in lines(summary) {
        all.extend(by_itself(&line));
        all.extend(line.beside.iter().filter_map(|other| against(&line, other)));
    }
}

fn kind(met: AimOutcome) -> Kind {
    if met == AimOutcome::Undecided { Kind::Inconclusive } else { Kind::Difference }
}

fn doubt(met: AimOutcome, spread: &Spread) -> &'static str {
    match met {
        AimOutcome::Undecided if spread.count < 2 => "inconclusive, as one run is no spread: ",
        AimOutcome::Undecided => "inconclusive, as the repeats lie on both sides of the aim: ",
        AimOutcome::Yes | AimOutcome::No => "",
    }
}

/// Returns the line's title with a capital, as the subject of a sentence.
fn subject(line: &Line<'_, '_>) -> String {
    let title = line.title();
    let (first, rest) = title.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

/// Reports whether the engine's figure meets the project's bound for it; `None` without a bound or a figure.
fn by_itself(line: &Line<'_, '_>) -> Option<Finding> {
    let (met, spread, limit) = (line.meets_limit()?, line.spread()?, line.limit()?);
    Some(Finding {
        rule: "engine-against-its-bound",
        rule_text: "median of the engine's figure against the aim of the project; met or missed only where all repeats lie on one side of it",
        experiment: Some(ID),
        p: None,
        kind: kind(met),
        text: format!(
            "{}: {}{} has {}; the aim, {limit}, is {}.",
            subject(line),
            doubt(met, &spread),
            line.own.label(),
            spread.show(line.quantity.unit),
            met.word(),
        ),
        trials: keys(&[line.own]),
        key_figure: None,
    })
}

/// Reports whether the engine's figure reaches the project's aim against another figure of the same run; `None` without
/// an aim.
fn against(line: &Line<'_, '_>, other: &Other<'_, '_>) -> Option<Finding> {
    let (met, compared, aim) = (line.reaches(other)?, line.compared(other)?, line.aim(other)?);
    let (x, y) = (line.show(line.spread()), line.show(other.group.spread(line.quantity.metric)));
    let is_key = is_key(line, other);
    let value = |value: f64| line.show_compared(other, value);
    let show = match compared.count {
        ..2 => value(compared.median),
        _ => format!("{} ({} to {})", value(compared.median), value(compared.min), value(compared.max)),
    };
    Some(Finding {
        rule: "engine-beside-a-baseline",
        rule_text: "the engine's figure over the other's in the same run, or less it, against the aim of the project; met or missed only where \
                    every value that the repeats allow lies on one side of it",
        experiment: Some(ID),
        p: None,
        kind: kind(met),
        text: format!(
            "{}: {}{} does {x}, {} {y}: {show}; the aim, {}, is {}.",
            subject(line),
            doubt(met, &compared),
            line.own.label(),
            other.group.label(),
            in_words(other, &aim),
            met.word(),
        ),
        trials: keys(&[line.own, other.group]),
        key_figure: is_key.then(|| KeyFigure::of(&compared, &format!("{x} against {y}"))),
    })
}

/// Whether the line and the other figure answer the experiment's main question.
fn is_key(line: &Line<'_, '_>, other: &Other<'_, '_>) -> bool {
    let row = line.row.variant == GET_TASKS && line.own.spec.method == NOFAULT && line.target == KEY_TARGET;
    row && line.quantity.name.is_empty() && other.group.spec.method == DEVICE
}

/// Returns an aim against another figure for a sentence: `at least 0.95`.
fn in_words(other: &Other<'_, '_>, aim: &str) -> String {
    match other.aim {
        Some(Aim::RatioAtLeast(least)) => format!("at least {least}"),
        Some(Aim::RatioAtMost(most)) => format!("at most {most}"),
        _ => aim.to_owned(),
    }
}

// Extracts the lines of results from the records. A line has the engine's figure of one quantity in one row, and the
// figures of the same run that it is compared with. Tables and findings are made from lines.

/// A line of results: the engine's figure of one quantity, and the figures to compare with it.
pub(super) struct Line<'g, 'a> {
    pub(super) row: &'static Row,
    pub(super) quantity: &'static Quantity,
    /// Label of the set of data, as records name it.
    pub(super) target: &'a str,
    pub(super) own: &'g Group<'a>,
    pub(super) beside: Vec<Other<'g, 'a>>,
}

/// A figure of the same run that the engine's figure is compared with.
pub(super) struct Other<'g, 'a> {
    pub(super) group: &'g Group<'a>,
    /// The project's aim for the engine's figure against this one.
    pub(super) aim: Option<Aim>,
}

/// Whether a figure meets its aim; undecided where the repeats lie on both sides of the aim or there is only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AimOutcome {
    Yes,
    No,
    Undecided,
}

/// Returns the lines of all results, in the order of the works.
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
                    beside: beside(&groups, quantity, own),
                }));
            }
        }
    }
    lines
}

/// Whether a group of trials has a separate line for a quantity. Only groups of the engine have one. A group with
/// other settings of the executor has one only for the timer's latency, which these settings change.
fn shows(group: &Group<'_>, quantity: &Quantity) -> bool {
    let is_engine = [NOFAULT.id, NOFAULT_POLLER.id].contains(&group.spec.method.as_str());
    is_engine && (is_plain(&group.spec.params) || matches!(quantity.metric, Metric::Latency(TICKER, _)))
}

/// Returns the groups that `own`, a group of the engine's, is compared with: never itself.
fn beside<'g, 'a>(groups: &[&'g Group<'a>], quantity: &'static Quantity, own: &Group<'_>) -> Vec<Other<'g, 'a>> {
    let of = |method: &Method| groups.iter().copied().find(|group| group.spec.method == *method);
    let others = quantity.beside.iter().filter(|other| own.spec.method != other.method);
    others.filter_map(|other| Some(Other { group: of(&other.method)?, aim: other.aim })).collect()
}

impl<'g, 'a> Line<'g, 'a> {
    /// Names the row and its data in words: `random gets, one at a time, 100 B`.
    pub(super) fn title(&self) -> String {
        let name = if self.quantity.name.is_empty() { String::new() } else { format!(", {}", self.quantity.name) };
        format!("{}{name}, {}", self.row.title, data_title(self.target))
    }

    /// Names the line briefly by variant, value size, quantity and settings of the executor: `get-tasks 100 B timer,
    /// poller`.
    pub(super) fn short_title(&self) -> String {
        let spec = self.own.spec;
        let size = spec.params.block_bytes.saturating_sub(KEY_BYTES as u64);
        let quantity = if self.quantity.short.is_empty() { String::new() } else { format!(" {}", self.quantity.short) };
        let poller = (spec.method == NOFAULT_POLLER).then_some("poller".to_owned());
        let interval = spec.params.extra.get(INTERVAL).map(|interval| format!("event {interval}"));
        let title = format!("{} {size} B{quantity}", spec.variant);
        let ram = is_in_ram(self.target).then_some("in RAM".to_owned());
        [poller, interval, ram].into_iter().flatten().fold(title, |title, part| format!("{title}, {part}"))
    }

    /// Returns the line's table rows, one for each compared figure. Cells: title, engine's figure, other method, its
    /// figure, ratio, aim.
    pub(super) fn cells(&self) -> Vec<[String; 6]> {
        let (title, figure) = (self.short_title(), self.in_unit(self.own));
        let aim = |bound: Option<String>, met: Option<AimOutcome>| match (bound, met) {
            (Some(bound), Some(met)) => format!("{bound} {}", met.sign()),
            (bound, _) => bound.unwrap_or_default(),
        };
        let mut rows = Vec::new();
        if self.limit().is_some() || self.beside.is_empty() {
            let own = aim(self.limit(), self.meets_limit());
            rows.push([title.clone(), figure.clone(), String::new(), String::new(), String::new(), own]);
        }
        for other in &self.beside {
            let ratio =
                self.compared(other).map_or(String::new(), |compared| self.show_compared(other, compared.median));
            let aim = aim(self.aim(other), self.reaches(other));
            let (their, method) = (self.in_unit(other.group), other.group.title());
            rows.push([title.clone(), figure.clone(), method, their, ratio, aim]);
        }
        rows
    }

    /// Formats a group's figure with its spread, in the unit of the line.
    fn in_unit(&self, group: &Group<'_>) -> String {
        let metric = self.quantity.metric;
        measured_in(group, metric, self.quantity.unit)
    }

    /// Returns the engine's figure with its spread; `None` where the records lack it.
    pub(super) fn spread(&self) -> Option<Spread> {
        self.own.spread(self.quantity.metric)
    }

    /// Returns the ratio of the engine's figure to the other figure.
    pub(super) fn ratio(&self, other: &Other<'g, 'a>) -> Option<Spread> {
        // An aim may be over a method that answers one request at a time, such as a device that is overwritten by one writer:
        // what more of them gain is then what the aim is about.
        judge::ratio(self.own, other.group, self.quantity.metric, &[Property::InFlight, Property::Calls]).ok()
    }

    /// Returns the engine's figure against the other one in the form of their aim: the difference where the aim is about the
    /// difference, and otherwise the ratio.
    pub(super) fn compared(&self, other: &Other<'g, 'a>) -> Option<Spread> {
        match other.aim {
            Some(Aim::MoreAtMost(_)) => {
                let about = [Property::InFlight, Property::Calls];
                judge::difference(self.own, other.group, self.quantity.metric, &about).ok()
            }
            _ => self.ratio(other),
        }
    }

    /// Formats a value of [`Self::compared`]: `1.2×`, or `+0.2 ms` for a difference.
    fn show_compared(&self, other: &Other<'g, 'a>, value: f64) -> String {
        match other.aim {
            Some(Aim::MoreAtMost(_)) => {
                let sign = if value < 0.0 { '−' } else { '+' };
                format!("{sign}{}", self.quantity.unit.show(value.abs()))
            }
            _ => format!("{}×", digits(value)),
        }
    }

    /// Returns the project's aim against the other figure, in words; `None` without one.
    pub(super) fn aim(&self, other: &Other<'g, 'a>) -> Option<String> {
        Some(match other.aim? {
            Aim::RatioAtLeast(least) => format!("≥ {least}"),
            Aim::RatioAtMost(most) => format!("≤ {most}"),
            Aim::MoreAtMost(most) => format!("≤ +{}", self.quantity.unit.show(most)),
        })
    }

    /// Formats a figure in the unit of the line; a dash for `None`.
    pub(super) fn show(&self, spread: Option<Spread>) -> String {
        spread.map_or("–".into(), |spread| self.quantity.unit.show(spread.median))
    }

    /// Returns the bound that the engine's figure must meet by itself where the database lies; `None` without one.
    fn bound(&self) -> Option<Bound> {
        let in_ram = self.quantity.limit_in_ram.filter(|_| is_in_ram(self.target));
        in_ram.or(self.quantity.limit)
    }

    /// Returns the bound that the engine's figure must meet by itself, in words; `None` without one.
    pub(super) fn limit(&self) -> Option<String> {
        Some(match self.bound()? {
            Bound::AtLeast(value) => format!("≥ {}", self.quantity.unit.show(value)),
            Bound::AtMost(value) => format!("≤ {}", self.quantity.unit.show(value)),
        })
    }

    /// Whether the engine's figure meets its bound; `None` without a bound.
    pub(super) fn meets_limit(&self) -> Option<AimOutcome> {
        let (low, high) = match self.bound()? {
            Bound::AtLeast(value) => (value, f64::INFINITY),
            Bound::AtMost(value) => (0.0, value),
        };
        Some(met(&self.spread()?, low, high, self.is_exact()))
    }

    /// Whether the engine's figure reaches, against the other one, the project's aim; `None` without an aim.
    fn reaches(&self, other: &Other<'g, 'a>) -> Option<AimOutcome> {
        let (low, high) = match other.aim? {
            Aim::RatioAtLeast(least) => (least, f64::INFINITY),
            Aim::RatioAtMost(most) | Aim::MoreAtMost(most) => (f64::NEG_INFINITY, most),
        };
        Some(met(&self.compared(other)?, low, high, self.is_exact()))
    }

    /// Whether a single trial decides, because the line's quantity does not depend on chance.
    pub(super) fn is_exact(&self) -> bool {
        is_exact(self.quantity.metric)
    }
}

fn met(spread: &Spread, low: f64, high: f64, exact: bool) -> AimOutcome {
    match bound::Bound::between(low, high).decide(spread) {
        bound::Outcome::Held => AimOutcome::Yes,
        bound::Outcome::DidNotHold => AimOutcome::No,
        _ if exact && (low..=high).contains(&spread.median) => AimOutcome::Yes,
        _ if exact => AimOutcome::No,
        _ => AimOutcome::Undecided,
    }
}

impl AimOutcome {
    /// Returns the sign for met, missed or undecided, for tables.
    fn sign(self) -> &'static str {
        match self {
            Self::Yes => "✓",
            Self::No => "✗",
            Self::Undecided => "?",
        }
    }

    /// Returns the word for met, missed or undecided, for sentences.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Yes => "met",
            Self::No => "missed",
            Self::Undecided => "open",
        }
    }
}
