//! Rules on the records of `access`: published claims, findings, and reasons for the verdict.

use super::{ID, OVERWRITE, READ, SYNC_COST};
use crate::format::{Unit, digits};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test, at_least};
use crate::judge::places::is;
use crate::judge::rule::{Among, Each, Limit, Ratio};
use crate::judge::{Finding, Kind, best, compare, compare_about, compare_by, keys, on, or_refused, shown};
use crate::methods;
use crate::record::TargetKind;
use crate::summary::{Family, Group, Metric, Property, Summary};

/// The published claims about mmap that the records of `access` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "batching-decides",
        hypothesis: "For one thread, batches of requests decide the rate, and a map cannot batch.",
        source: "Leonardo Benicio, 2022, §6: 1.6 M/s in batches against 0.72 M/s one at a time",
        experiment: ID,
        rule: "random reads per second of the best io_uring batch over the best of map, pread and O_DIRECT, each one thread, on the file: at least 2",
        needs: &[],
        test: Test::Ratio(Ratio {
            variants: &[READ],
            metric: Metric::OpsPerS,
            of: |group| group.family() == Family::Ring && !group.spec.target.kind().is_ram_backed(),
            over: |group| waits_one_at_a_time(group.family()) && !group.spec.target.kind().is_ram_backed(),
            about: &[Property::InFlight, Property::Calls],
            bound: Bound::at_least(2.0),
            missing: "`nofault lab access` measures it",
        }),
    },
    Claim {
        id: "map-beats-read-calls",
        hypothesis: "One thread reads at random faster through a map than by calls through the page cache.",
        source: "Leonardo Benicio, 2022, §6: 780 K/s against 650 K/s",
        experiment: ID,
        rule: "reads per second of the map over buffered pread's, both told RANDOM: more than 1 on each target",
        needs: &[],
        test: at_least(
            &[READ],
            Metric::OpsPerS,
            |group| is(group, &methods::MMAP),
            |group| is(group, &methods::PREAD_BUFFERED),
            1.0,
            "`nofault lab access` measures it",
        ),
    },
    Claim {
        id: "one-thread-720k",
        hypothesis: "One thread makes 720 K synchronous O_DIRECT reads a second from an SSD.",
        source: "Leonardo Benicio, 2022, §6, which itself gives 5 to 15 µs for a read: at most 200 K/s",
        experiment: ID,
        rule: "one at a time, 720 K reads a second leave 1.39 µs for each: the median O_DIRECT read of the file takes no longer",
        needs: &[],
        test: Test::Each(Each {
            among: Among::Places(|variant| variant == READ),
            which: |group| is(group, &methods::PREAD_DIRECT) && group.spec.target.label == "file",
            figure: |group| group.spread(Metric::Latency("op", 500)),
            limit: Limit::In(Bound::at_most(1.39e-6)),
            words: |group, took| {
                let rate = group.primary().map_or("–".to_owned(), |rate| Unit::PerSecond.show(rate.median));
                format!(
                    "file: an O_DIRECT read takes {} (median), and one thread makes {rate}; 720 K/s would leave it 1.39 µs. The source contradicts \
                     itself: its own 5 to 15 µs a read allow 67 to 200 K/s",
                    took.show(Unit::Seconds)
                )
            },
            missing: "`nofault lab access` measures it",
            ..Each::NONE
        }),
    },
];

fn waits_one_at_a_time(family: Family) -> bool {
    matches!(family, Family::Mapped | Family::Buffered | Family::Direct)
}

// Rules for `access`: the rates of one thread, the gain from batching, the cost of a sync, and the latency that closed
// loops hide.

/// Adds the findings that the records of `access` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        match variant {
            "open-loop" => {
                open_loop(summary, &groups, target, all);
                continue;
            }
            "ring-setup" => continue,
            _ => {}
        }
        one_at_a_time(&groups, variant, target, all);
        batching(&groups, variant, target, all);
        syncs(&groups, variant, target, all);
    }
}

/// Names a variant's kind of operation, as a word in a sentence.
fn work(variant: &str) -> &'static str {
    match variant {
        SYNC_COST => "durable writes",
        OVERWRITE => "overwrites",
        _ => "reads",
    }
}

fn one_at_a_time(groups: &[&Group<'_>], variant: &str, target: &str, all: &mut Vec<Finding>) {
    let single = |wanted: fn(Family) -> bool| {
        let alone = groups.iter().copied().filter(move |group| group.spec.params.depth <= 1 && wanted(group.family()));
        best(alone, Metric::OpsPerS)
    };
    let (Some(map), Some(direct)) =
        (single(|family| family == Family::Mapped), single(|family| family == Family::Direct))
    else {
        return;
    };
    let Some(comparison) = or_refused(compare(map, direct, Metric::OpsPerS), all) else { return };
    all.push(Finding {
        rule: "one-at-a-time",
        rule_text: "median rate of the fastest mapped method over the fastest synchronous O_DIRECT method's, one thread",
        text: format!(
            "{}{}one thread gets {} {} through a mapping ({}) and {} with O_DIRECT calls: {}.",
            on(target),
            comparison.caveat(),
            shown(comparison.a, Unit::PerSecond),
            work(variant),
            map.label(),
            shown(comparison.b, Unit::PerSecond),
            comparison.show(),
        ),
        key_figure: (variant == READ && TargetKind::of(target) == TargetKind::File).then(|| {
            let (a, b) = (shown(comparison.a, Unit::PerSecond), shown(comparison.b, Unit::PerSecond));
            comparison.key_figure(&format!("{a} against {b}"))
        }),
        ..comparison.finding()
    });
}

fn batching(groups: &[&Group<'_>], variant: &str, target: &str, all: &mut Vec<Finding>) {
    let rings = || groups.iter().copied().filter(|group| group.family() == Family::Ring);
    let Some(batched) = best(rings().filter(|group| group.spec.params.depth > 1), Metric::OpsPerS) else { return };
    // Batches are compared with the best rate of any method with one request at a time.
    let Some(alone) = best(groups.iter().copied().filter(|group| group.spec.params.depth <= 1), Metric::OpsPerS) else {
        return;
    };
    let about = &[Property::InFlight, Property::Calls];
    let Some(comparison) = or_refused(compare_about(batched, alone, Metric::OpsPerS, about), all) else { return };
    all.push(Finding {
        rule: "batching",
        rule_text: "median rate of the fastest io_uring method with several requests in flight over the fastest method with one",
        text: format!(
            "{}{}batches change what one thread gets: {} {} with {}, {} at best with one request at a time ({}): {}.",
            on(target),
            comparison.caveat(),
            shown(comparison.a, Unit::PerSecond),
            work(variant),
            batched.label(),
            shown(comparison.b, Unit::PerSecond),
            alone.label(),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}

fn syncs(groups: &[&Group<'_>], variant: &str, target: &str, all: &mut Vec<Finding>) {
    let timed = groups.iter().filter_map(|group| {
        Some((*group, group.spread(Metric::Latency("sync", 500))?, group.spread(Metric::Latency("sync", 990))?))
    });
    let mut timed: Vec<_> = timed.collect();
    timed.sort_by(|a, b| a.2.median.total_cmp(&b.2.median));
    let (Some(first), Some(last)) = (timed.first(), timed.last()) else { return };
    if timed.len() < 2 {
        return;
    }
    let tail = |entry: &(&Group<'_>, crate::summary::Spread, crate::summary::Spread)| {
        if entry.1.median > 0.0 {
            format!("p99 {} times its median", digits(entry.2.median / entry.1.median))
        } else {
            String::new()
        }
    };
    all.push(Finding {
        rule: "sync-tail",
        rule_text: "99th percentile of the time of one sync (msync, fdatasync or a durable write), median over repeats; smallest and \
            largest of the methods",
        experiment: Some(ID),
        p: None,
        // The smallest and the largest, each under different conditions: no comparison.
        kind: Kind::Fact,
        text: format!(
            "{}{}: the p99 of a sync lies between {} ({}; {}) and {} ({}; {}).",
            on(target),
            work(variant),
            Unit::Seconds.show(first.2.median),
            first.0.label(),
            tail(first),
            Unit::Seconds.show(last.2.median),
            last.0.label(),
            tail(last),
        ),
        trials: keys(&[first.0, last.0]),
        key_figure: None,
    });
}

/// Coordinated omission: the same method at a fixed rate, timed from the moment when each request was due. An open loop
/// that could not keep its rate, or that took its rate from a disturbed calibration, measured another situation, so the
/// finding reports a doubt.
fn open_loop(summary: &Summary<'_>, groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let due = Metric::Latency("open_loop", 990);
    let mut disturbed: Vec<(&Group<'_>, String)> = Vec::new();
    for open in groups.iter().copied().filter(|group| group.spread(due).is_some()) {
        let closed = closed_loop_of(open, summary);
        if let Some(why) = why_disturbed(open, closed) {
            disturbed.push((open, why));
            continue;
        }
        let Some(closed) = closed else { continue };
        let compared = compare_by(open, due, closed, Metric::Latency("op", 990));
        let Some(comparison) = or_refused(compared, all) else { continue };
        let from_start = open.spread(Metric::Latency("op", 990)).map_or(String::new(), |started| {
            format!(", {} counted from when it started", shown(started, Unit::Seconds))
        });
        all.push(Finding {
            rule: "coordinated-omission",
            rule_text: "p99 with requests at a fixed rate, timed from when each was due, over the p99 of the closed loop of the same \
                method, which asks again only after an answer and so never sees the queue",
            text: format!(
                "{}{}at a fixed rate {} takes {} at p99 from when a read was due{from_start}; its closed loop reports {}: {}.",
                on(target),
                comparison.caveat(),
                open.label(),
                shown(comparison.a, Unit::Seconds),
                shown(comparison.b, Unit::Seconds),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
    if disturbed.is_empty() {
        return;
    }
    let listed: Vec<String> = disturbed.iter().map(|(group, why)| format!("{} ({why})", group.label())).collect();
    all.push(Finding {
        rule: "open-loop-disturbed",
        rule_text: "less than 98 % of the scheduled reads were started, or the rate that the trial found for itself lies outside 0.67 to 1.5 of \
            the closed loop's median: then queues grow for other reasons than the method's",
        experiment: Some(ID),
        p: None,
        kind: Kind::Warning,
        text: format!(
            "{}latency at a fixed rate says nothing about {}; repeat when the machine is quiet.",
            on(target),
            listed.join(", ")
        ),
        trials: disturbed.iter().map(|(group, _)| group.key.clone()).collect(),
        key_figure: None,
    });
}

/// Finds the closed loop of an open loop's method on the same target: variant `read` with the same threads, depth and
/// block size.
fn closed_loop_of<'g, 'a>(open: &Group<'_>, summary: &'g Summary<'a>) -> Option<&'g Group<'a>> {
    summary.of_experiment(ID).find(|group| {
        let (a, b) = (group.spec, open.spec);
        a.variant == "read"
            && a.target.label == b.target.label
            && a.method == b.method
            && (a.params.threads, a.params.depth, a.params.block_bytes)
                == (b.params.threads, b.params.depth, b.params.block_bytes)
            && a.params.extra.is_empty()
    })
}

/// Returns why the latencies of an open loop do not show its method; `None` when they do.
fn why_disturbed(open: &Group<'_>, closed: Option<&Group<'_>>) -> Option<String> {
    let figure = |name: &str| open.good.iter().filter_map(|trial| trial.outcome.figures.get(name).copied()).collect();
    let (scheduled, started): (Vec<f64>, Vec<f64>) = (figure("reads_scheduled"), figure("reads_started"));
    let lost = scheduled.iter().zip(&started).filter(|(due, done)| **done < 0.98 * **due).count();
    if lost > 0 {
        return Some(format!("rate not kept in {lost} of {} runs", open.good.len()));
    }
    let (found, real) = (figure("closed_loop_ops_per_s"), closed?.spread(Metric::OpsPerS)?.median);
    let off = found.iter().copied().find(|rate| !(0.67..=1.5).contains(&(rate / real)))?;
    Some(format!(
        "its rate was set from {}, its closed loop reached {}",
        Unit::PerSecond.show(off),
        Unit::PerSecond.show(real)
    ))
}
