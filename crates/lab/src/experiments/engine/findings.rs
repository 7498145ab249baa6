//! Rules for `engine`: whether its figures reach the project's aims, each with the figure of the same run that it is
//! compared with.

use super::lines::{AimOutcome, Line, Other, lines};
use super::works::{Aim, GET_TASKS};
use super::{DEVICE, ID};
use crate::judge::{Finding, KeyFigure, Kind, keys};
use crate::methods::NOFAULT;
use crate::summary::{Spread, Summary};

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
