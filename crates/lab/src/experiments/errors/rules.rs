//! Rules on the records of `errors`: published claims, findings, and reasons for the verdict.

use super::{
    BIT_FLIP, CHECK_EVERY_ACCESS, CHECK_EVERY_LOAD, CHECKSUM_COST, FAULTS, ID, NO_CHECK, OWN, READ_ERROR, STRAY_WRITE,
    TRUNCATED, TRUNCATED_INSIDE,
};
use crate::format::digits;
use crate::judge::bound::Outcome;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{Places, Records, figure, is_shadow};
use crate::judge::reason::{Evidence, Reason, Rule, Side, Workload, proof};
use crate::judge::rule::{Among, Each, Limit};
use crate::judge::{Finding, KeyFigure, Kind, compare, keys, on, or_refused};
use crate::methods;
use crate::record;
use crate::summary::{Family, Group, Metric, Spread, Summary, parameters};

/// The published claims about mmap that the records of `errors` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "errors-become-signals",
        hypothesis: "A failed read of a map is a signal that ends the process, where explicit I/O returns an error.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.3",
        experiment: ID,
        rule: "of the faults `truncated` and `read-error`: each mapped store meets a signal, the lab's guard turning it into an error or not, and \
            each explicit one returns an error",
        needs: &[],
        test: Test::Each(Each {
            among: Among::Variants(&[TRUNCATED, READ_ERROR]),
            figure: |group| {
                let (signalled, returned) = met(group);
                let as_claimed = if group.family() == Family::Mapped { signalled } else { returned && !signalled };
                Spread::of([f64::from(u8::from(as_claimed))])
            },
            limit: Limit::Happens,
            words: |group, _| {
                let met = match met(group) {
                    (true, true) => "a signal, which the lab's guard turned into an error",
                    (true, false) => "a signal",
                    (false, true) => "an error",
                    (false, false) => "neither signal nor error",
                };
                format!("{} {}: {met}", group.label(), group.spec.variant)
            },
            missing: "`nofault lab errors` measures it",
            ..Each::NONE
        }),
    },
    Claim {
        id: "lmdb-is-crash-proof",
        hypothesis: "LMDB's design (a read-only map, copied pages, two metas) needs no further protection: it is crash-proof.",
        source: "Howard Chu (Symas), on LMDB",
        experiment: ID,
        rule: "no commit lost or torn after kill -9 (`safety`; power cuts are imitated by the engine's tests, not by the lab), no wrong answer and no \
            signal, caught by the lab's guard or not, by a flipped bit or a failed read (`errors`), for the `shadow` stores",
        needs: &[],
        test: Test::Together { every: true, missing: "`nofault lab safety errors` measures it" },
    },
];

/// Whether a store got signals, and whether it returned errors.
fn met(group: &Group<'_>) -> (bool, bool) {
    let signalled = signals_met(group).is_some_and(|count| count > 0.0);
    (signalled, figure(group, "error_returned").is_some_and(|count| count.min > 0.0))
}

/// Finds the outcomes of flipped bits and failed reads in the stores of LMDB's design.
pub(super) fn damage<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    for (name, words) in [("wrong_answers", "wrong answers"), ("signals", "signals")] {
        let in_question = |group: &&Group<'_>| [BIT_FLIP, READ_ERROR].contains(&&*group.spec.variant);
        for group in records.of(ID).filter(|group| is_shadow(group)).filter(in_question) {
            let count = match name {
                "signals" => signals_met(group),
                _ => figure(group, name).map(|count| count.max),
            };
            let Some(count) = count else { continue };
            let outcome = if count > 0.0 { Outcome::DidNotHold } else { Outcome::Held };
            let text = format!("{} {}: {} {words}", group.label(), group.spec.variant, digits(count));
            places.add(outcome, text, &[group]);
        }
    }
    Contribution { experiment: ID, what: "flipped bits and failed reads", places }
}

/// Returns the number of signals that a store got. An unreadable page reaches a map only as a signal. So where a mapped
/// store returned an error for it, the lab's own guard had caught a signal.
fn signals_met(group: &Group<'_>) -> Option<f64> {
    let most = |name| figure(group, name).map(|count| count.max);
    let cannot_be_had = [TRUNCATED, READ_ERROR].contains(&group.spec.variant.as_str());
    let guarded = cannot_be_had && group.family() == Family::Mapped;
    let caught = most("error_returned").filter(|_| guarded);
    most("signals").into_iter().chain(caught).reduce(f64::max)
}

/// The rules of the verdict for which `errors` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Errors, errors)];

/// Finds reasons for the verdict in the errors and wrong answers that faults caused.
fn errors(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    // A database that is only read has only read-only maps, and none of its pages is ever written back: what a stray
    // write does to a writable map says nothing about it.
    let only_read = workload.read_only == Some(true);
    let bears = |variant: &str| FAULTS.contains(&variant) && !(only_read && variant == STRAY_WRITE);
    let is_map = |group: &Group<'_>| group.family() == Family::Mapped;
    let mut reasons = Vec::new();
    for (name, words) in [
        ("wrong_answers", "wrong answers without an error"),
        ("signals", "SIGBUS, which ends a process that does not catch it"),
        ("reached_disk", "stray writes that reached the disk"),
    ] {
        if only_read && name == "reached_disk" {
            continue;
        }
        let met = |map: bool| {
            let fault = |group: &&Group<'_>| bears(&group.spec.variant);
            let these = records.of(ID).filter(fault).filter(move |group| is_map(group) == map);
            // A trial records only the events that happened, so a missing figure counts as zero.
            let count = |group| match name {
                "signals" => signals_met(group),
                name => figure(group, name).map(|met| met.max),
            };
            these.map(move |group| (count(group).unwrap_or(0.0), group)).collect::<Vec<_>>()
        };
        let (map, other) = (met(true), met(false));
        let bad = |all: &[(f64, &Group<'_>)]| all.iter().filter(|(count, _)| *count > 0.0).count();
        let Some((_, first)) = map.iter().find(|(count, _)| *count > 0.0).or(map.first()) else { continue };
        let clear = bad(&map) > 0 && bad(&other) == 0 && !other.is_empty();
        let side = if clear { Side::Against } else { Side::Neither };
        let text = format!(
            "{words}: in {} of {} trials of mapped stores, in {} of {} of explicit I/O.",
            bad(&map),
            map.len(),
            bad(&other),
            other.len()
        );
        reasons.push(proof("errors", side, text, first));
    }
    reasons
}

// Rules for `errors`: the outcome of each fault for each store, and the cost of detection.

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
pub(crate) fn fate(outcome: &record::Outcome) -> String {
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
pub(crate) fn outcome_of<'a>(group: &Group<'a>) -> Option<&'a record::Outcome> {
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
pub(crate) fn short_fate(outcome: &record::Outcome) -> String {
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
