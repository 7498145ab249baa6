//! Rules for `errors`: the outcome of each fault for each store, and the cost of detection.

use super::{
    BIT_FLIP, CHECK_EVERY_ACCESS, CHECK_EVERY_LOAD, CHECKSUM_COST, FAULTS, ID, NO_CHECK, OWN, READ_ERROR, STRAY_WRITE,
    TRUNCATED, TRUNCATED_INSIDE,
};
use crate::format::digits;
use crate::judge::{Finding, KeyFigure, Kind, compare, keys, on, or_refused};
use crate::methods;
use crate::record::Outcome;
use crate::summary::{Group, Metric, Summary, parameters};

/// Adds the findings that the records of `errors` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        if FAULTS.contains(&variant) {
            fault(&groups, variant, all);
        } else if variant == CHECKSUM_COST {
            checking(&groups, target, all);
        }
    }
}

/// Returns a fault's name for use in a sentence.
pub(crate) fn fault_title(variant: &str) -> &'static str {
    match variant {
        READ_ERROR => "a read fails",
        TRUNCATED => "the file is cut",
        TRUNCATED_INSIDE => "cut within a page",
        BIT_FLIP => "a bit flips on disk",
        STRAY_WRITE => "a stray write in memory",
        _ => "another fault",
    }
}

/// Describes the outcome of a fault for a store in a few words.
pub(crate) fn fate(outcome: &Outcome) -> String {
    let figure = |name: &str| outcome.figures.get(name).copied().unwrap_or(0.0);
    let on_disk = match outcome.figures.get("reached_disk") {
        None => "",
        Some(0.0) => "; disk whole",
        Some(_) if figure("wrong_on_disk") > 0.0 => "; wrong on disk, unnoticed",
        Some(_) => "; damage on disk, found when read",
    };
    let count = |name: &str| match figure(name) {
        1.0 => "1 page".to_owned(),
        many => format!("{many:.0} pages"),
    };
    let met = if figure("hung") > 0.0 {
        "hangs".into()
    } else if figure("survived") == 0.0 {
        format!("dies: {}", outcome.texts.get("ended").map_or("no answer", String::as_str))
    } else if figure("wrong_answers") > 0.0 {
        format!("wrong data of {}, no word", count("wrong_answers"))
    } else if figure("error_returned") > 0.0 {
        let again = match outcome.figures.get("right_after_repair") {
            Some(1.0) => ", right again after repair",
            Some(_) => ", until opened anew",
            None => "",
        };
        format!("error for {}{again}", count("pages_failed"))
    } else {
        "right".into()
    };
    met + on_disk
}

/// Returns the outcome of a fault's group, which has only one trial.
pub(crate) fn outcome_of<'a>(group: &Group<'a>) -> Option<&'a Outcome> {
    group.good.first().map(|trial| &trial.outcome)
}

fn fault(groups: &[&Group<'_>], variant: &str, all: &mut Vec<Finding>) {
    let of = |method: &str| {
        let group = groups.iter().copied().find(|group| group.spec.method == method)?;
        Some((group, outcome_of(group)?))
    };
    let (Some((map, by_map)), Some((engine, by_engine))) = (of(methods::MMAP.id), of(methods::ENGINE.id)) else {
        return;
    };
    let said = by_engine.texts.get("said").map_or(String::new(), |said| format!(" It said: “{said}”."));
    all.push(Finding {
        rule: "fault",
        rule_text: "one fault, made for real, in a separate process for each store: the errors and signals it got, the pages it returned, and the pages that \
            another process finds on disk afterwards; an outcome, not a rate, so one run decides",
        experiment: Some(ID),
        p: None,
        kind: Kind::Fact,
        text: format!(
            "When {}: over a plain mapping – {}; in the engine – {}.{said}",
            fault_title(variant),
            fate(by_map),
            fate(by_engine)
        ),
        trials: keys(&[map, engine]),
        key_figure: (variant == READ_ERROR).then(|| KeyFigure {
            value: short_fate(by_map),
            detail: format!("the engine: {}", fate(by_engine)),
        }),
    });
}

/// Returns a store's name for the tables of faults.
pub(crate) fn store_title(method: &str) -> String {
    if method == methods::MMAP.id { "mmap, plain".into() } else { methods::title(methods::find(OWN, method), method) }
}

/// Describes the outcome of a fault in one or two words.
pub(crate) fn short_fate(outcome: &Outcome) -> String {
    let figure = |name: &str| outcome.figures.get(name).copied().unwrap_or(0.0);
    match () {
        () if figure("survived") == 0.0 => outcome.texts.get("ended").map_or("no answer", String::as_str).into(),
        () if figure("hung") > 0.0 => "hangs".into(),
        () if figure("wrong_on_disk") > 0.0 => "silent damage".into(),
        () if figure("wrong_answers") > 0.0 => "wrong data".into(),
        () if figure("error_returned") > 0.0 => "an error".into(),
        () => "nothing".into(),
    }
}

fn checking(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let metric = Metric::Figure("ns_per_access");
    for access in groups.iter().copied().filter(|group| group.spec.method == CHECK_EVERY_ACCESS) {
        let same = |method: &str| {
            groups.iter().copied().find(|group| group.spec.method == method && group.spec.params == access.spec.params)
        };
        let (Some(load), plain) = (same(CHECK_EVERY_LOAD.id), same(NO_CHECK.id)) else { continue };
        let Some(comparison) = or_refused(compare(access, load, metric), all) else { continue };
        let plain = plain.and_then(|group| group.spread(metric));
        let plain = plain
            .map_or(String::new(), |spread| format!(" (a mapping without any check: {} ns)", digits(spread.median)));
        let sum = access.spread(Metric::Figure("ns_per_checksum"));
        let sum = sum.map_or(String::new(), |spread| {
            format!(" One checksum of 4 KiB in sequence takes {} ns.", digits(spread.median))
        });
        let size = parameters(&access.spec.params);
        all.push(Finding {
            rule: "checksum-at-every-access",
            rule_text: "mean time of one access to a random page in memory, one thread: through a mapping with the page's checksum verified \
                each time, over private memory whose pages were verified when they were loaded",
            text: format!(
                "{}{}{size}: an access takes {} ns when a mapping's page is verified each time, {} ns when pages are verified as they are \
                 loaded{plain}: {}.{sum}",
                on(target),
                comparison.caveat(),
                digits(comparison.a.median),
                digits(comparison.b.median),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}
