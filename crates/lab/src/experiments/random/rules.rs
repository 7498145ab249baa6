//! Rules on the records of `random`: published claims, findings, and reasons for the verdict.

use super::{FILL, ID, TRACE};
use crate::format::{Unit, digits};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, PAPERS_CPUS, PAPERS_DEVICE, Test};
use crate::judge::curve::{Curve, CurveRatio};
use crate::judge::paging::{against_fio, of_family, reclaim, valid_maps};
use crate::judge::places::{Decision, POOL_COSTS, Places, Records, count_of, explicit, is, times};
use crate::judge::reason::{Evidence, Reading, Reason, Rule, Workload, nearest, reason, threads, throughput};
use crate::judge::rule::{Among, Curves, Each, Growth, Limit};
use crate::judge::{Finding, KeyFigure, Kind, best, best_pair, compare, keys, on, or_refused, shown, titles};
use crate::machine::survey::{FILE_EVICTION, FILE_FAULT};
use crate::methods::{self, Calls};
use crate::record::{Outcome, TargetKind};
use crate::summary::{Family, Group, Metric, Spread, Summary, is_plain, target_title};

/// The published claims about mmap that the records of `random` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "half-of-direct",
        hypothesis: "Random reads through mmap reach about half of what O_DIRECT reaches once memory is full.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.1 and figure 2",
        experiment: ID,
        rule: "reads per second of the map told RANDOM over the faster of pread and io_uring with O_DIRECT, geometric mean over all requests in \
            flight at which both have a valid figure: between 0.35 and 0.65 on each target",
        needs: &[],
        test: Test::Curves(Curves {
            among: WITH_FULL_MEMORY,
            of: |groups| Sides::of(groups).map,
            over: |groups| Sides::of(groups).explicit,
            metric: Metric::OpsPerS,
            bound: Bound::between(0.35, 0.65),
            missing: "`nofault lab random` measures it",
        }),
    },
    Claim {
        id: "predicted-by-fault-cost",
        hypothesis: "That ratio follows from two figures: the device's rate, and the CPU time of a fault.",
        source: "the lab's own reading of §4.1: min(device, CPUs ÷ (CPU of a read + of a fault + of an eviction))",
        experiment: ID,
        rule: "predicted for each target from calibration, without any trial of the map: the smaller of the O_DIRECT rate under the conditions of the best map, and CPUs over the CPU of a \
            direct read, a fault in a mapped file with nothing to read and taking such a page away; the rate of the best map is 3/4 to 4/3 of it",
        needs: &[],
        test: Test::Own(predicted),
    },
    Claim {
        id: "hint-costs-read-ahead",
        hypothesis: "Without MADV_RANDOM, what random reads cost grows with the device's read-ahead.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, figure 2 (NORMAL and SEQUENTIAL at 1/40); here with its cause",
        experiment: ID,
        rule: "device bytes for each byte asked, with MADV_NORMAL: their ratio between two values of read_ahead_kb is 0.5 to 2 times the \
            ratio of the values",
        needs: &[],
        test: Test::Growth(Growth {
            among: Among::Places(|_| true),
            which: |group| is(group, &methods::MMAP_NORMAL),
            // The read-ahead that the trials did not set is known only for the file's device.
            value: |records, group| {
                let own_kib = records.file.run.machine.read_ahead_kb.map(|kib| kib as f64);
                count_of(group, "read_ahead_kb").or(own_kib.filter(|_| group.spec.target.label == "file"))
            },
            pairs: |groups| {
                let other = |low: usize| {
                    let same = |high: &usize| {
                        let ((a, one), (b, other)) = (groups[low], groups[*high]);
                        one.spec.params.threads == other.spec.params.threads && (a - b).abs() > 0.5
                    };
                    (low + 1..groups.len()).find(same).map(|high| (high, low))
                };
                (0..groups.len()).filter_map(other).collect()
            },
            metric: Metric::Amplification,
            bound: Bound::between(0.5, 2.0),
            place: |group| target_title(&group.spec.target.label),
            words: |(high_kib, high), (low_kib, low), ratio, expected| {
                let read = |group: &Group<'_>| {
                    group.spread(Metric::Amplification).map_or("–".into(), |read| digits(read.median))
                };
                format!(
                    "{}, {} threads: {} bytes for each asked at {high_kib:.0} KiB and {} at {low_kib:.0} KiB: {} for {}× the read-ahead",
                    target_title(&low.spec.target.label),
                    low.spec.params.threads,
                    read(high),
                    read(low),
                    times(ratio),
                    digits(expected)
                )
            },
            missing: "it takes two values of read-ahead: as root, `nofault lab random --read-ahead-kb 128,1024`",
        }),
    },
    Claim {
        id: "collapse-when-full",
        hypothesis: "Random reads through mmap fall to less than half once memory is full and eviction begins.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.1 and figure 2: 0.9 M to 0.4 M reads/s",
        experiment: ID,
        rule: "MADV_RANDOM, in each trial that filled: reads per second after the fill over those before it are at most 0.5",
        needs: &[PAPERS_CPUS, PAPERS_DEVICE],
        test: Test::Each(Each {
            among: Among::Places(|_| true),
            which: |group| is(group, &methods::MMAP_RANDOM),
            best_by: Some(Metric::OpsPerS),
            figure: rate_after_the_fill,
            limit: Limit::In(Bound::at_most(0.5)),
            words: |group, ratio| {
                format!("{}: {}, {}", target_title(&group.spec.target.label), group.label(), times(ratio))
            },
            missing: "no trial of `random` filled its memory; `nofault lab random` measures it",
            ..Each::NONE
        }),
    },
    Claim {
        id: "pool-costs-as-much",
        hypothesis: "A buffer pool must cost as much as mmap once it caches, evicts and locks.",
        source: "Oren Eini (RavenDB), replies to the paper",
        experiment: ID,
        rule: "CPU of a random read of data larger than memory through the engine's own pool, which caches, evicts and pins, over \
            that through the map told RANDOM, geometric mean over all requests in flight at which both have a valid figure (`random`), and time of a lookup in memory through a hash table with locks and pins over \
            that in a mapped file, both in huge pages (`translate`): each at least 0.9",
        needs: &[],
        test: Test::Together {
            every: false,
            missing: "`nofault lab random` with the engine's pool measures it, and `nofault lab translate --preset standard`",
        },
    },
];

/// The groups measured with full memory, on each target.
const WITH_FULL_MEMORY: Among = Among::Places(str::is_empty);

/// Largest factor, in either direction, by which a prediction may miss the measured rate.
const PREDICTED_WITHIN: f64 = 4.0 / 3.0;

/// Decides the claim by comparing a map's rate with a prediction from the device's rate and the cost of this machine's
/// primitives, without the map's own trials.
fn predicted(records: &Records<'_>) -> Decision {
    let machine = &records.file.run.machine;
    let cost_s = |name: &str| machine.costs_ns.get(name).map(|cost_ns| cost_ns / 1e9);
    let (Some(fault), Some(evict)) = (cost_s(FILE_FAULT), cost_s(FILE_EVICTION)) else {
        return Decision::not_measured(
            "these records lack the calibration: the cost of a mapped file's page to come and to go without a device (it takes a file \
             system that has holes, and MADV_PAGEOUT)",
        );
    };
    let cpus = f64::from(machine.cpu_count.max(1));
    let mut places = Places::default();
    for target in ["file", "ram"] {
        let (rate, groups) = (Metric::OpsPerS, records.summary.at(ID, "", target));
        // Take one request at a time, as with a fault: the read itself costs a map as much CPU as a call.
        let calls = groups.iter().copied().filter(|group| group.family() == Family::Direct);
        let pair = best_pair(&valid_maps(&groups, told_random), &explicit(&groups), rate, &[]);
        let (Some((map, direct)), Some(call)) = (pair, best(calls, Metric::CpuPerOp)) else { continue };
        let (Some(measured), Some(ceiling), Some(read)) =
            (map.spread(rate), direct.spread(rate), call.spread(Metric::CpuPerOp))
        else {
            continue;
        };
        // No more CPUs can be busy than there are threads.
        let workers = cpus.min(f64::from(map.spec.params.threads.max(1)));
        let cost = read.median + fault + evict;
        let predicted = ceiling.median.min(workers / cost.max(1e-9));
        let ratio = measured.times(1.0 / predicted.max(1e-9));
        let text = format!(
            "{}: predicted {} (device {}; CPU {} a read: {} for the request, {} for the fault, {} for taking the page away), measured {}: {}",
            target_title(target),
            rate.unit().show(predicted),
            rate.unit().show(ceiling.median),
            Unit::Seconds.show(cost),
            Unit::Seconds.show(read.median),
            Unit::Seconds.show(fault),
            Unit::Seconds.show(evict),
            rate.unit().show(measured.median),
            times(&ratio)
        );
        places.add(
            Bound::between(PREDICTED_WITHIN.recip(), PREDICTED_WITHIN).decide(&ratio),
            text,
            &[map, direct, call],
        );
    }
    places.decide("`nofault lab random` measures it")
}

/// A map's rate after memory was full, divided by its rate before.
fn rate_after_the_fill(group: &Group<'_>) -> Option<Spread> {
    let ratios = group.good.iter().filter_map(|trial| {
        let outcome = &trial.outcome;
        let full_at = filled_at(outcome)?;
        let before = outcome.ticks.iter().filter(|tick| tick.at_s <= full_at);
        let (ops, seconds) = before.fold((0, 0.0), |(ops, s), tick| (ops + tick.ops, s + tick.elapsed_s));
        let steady = outcome.steady.as_ref()?;
        (ops > 0 && seconds > 0.0).then(|| steady.ops as f64 / steady.elapsed_s.max(1e-9) / (ops as f64 / seconds))
    });
    Spread::of(ratios)
}

/// The CPU time of a read through the pool, over the map's.
static POOL_OVER_MAP: Curves = Curves {
    among: WITH_FULL_MEMORY,
    of: |groups| Sides::of(groups).pool,
    over: |groups| Sides::of(groups).map,
    metric: Metric::CpuPerOp,
    bound: Bound::at_least(POOL_COSTS),
    missing: "",
};

/// Compares the CPU time of a read through the engine's pool, which caches, evicts and locks, with a map's.
pub(super) fn pool<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    POOL_OVER_MAP.add_to(&mut places, ID, records, |place| format!("larger than memory, {place}, CPU a read"));
    Contribution { experiment: ID, what: "reads larger than memory", places }
}

/// The rules of the verdict for which `random` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] =
    &[Evidence::second_best(Rule::Stalls, stalls), Evidence::of(Rule::Throughput, rates)];

fn rates(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let words = ["random reads", "CPU time of a random read"];
    let (rate, cpu) = (Metric::OpsPerS, Metric::CpuPerOp);
    throughput(records, workload, &Reading { experiment: ID, rate, cpu, words, hint: told_random, sequential: false })
}

/// Finds reasons for the verdict in the latency of random reads.
fn stalls(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // Not the longest access, because a method with more accesses meets rarer events.
    let slow = Metric::Latency("op", 999);
    for (variant, target) in records.summary.places(ID).into_iter().filter(|(variant, _)| variant.is_empty()) {
        let groups = records.summary.at(ID, variant, target);
        let calls: Vec<&Group<'_>> =
            explicit(&groups).into_iter().filter(|group| group.spec.params.depth <= 1).collect();
        // More threads wait longer for the same device, with a map as with calls.
        let has_pair = |map: &&Group<'_>| calls.iter().any(|call| threads(call) == threads(map));
        let maps = valid_maps(&groups, told_random).into_iter().filter(has_pair).collect();
        let Some(map) = best(nearest(maps, workload.threads, threads), Metric::OpsPerS) else { continue };
        let pair = calls.iter().copied().filter(|call| threads(call) == threads(map));
        let Some(direct) = best(pair, Metric::OpsPerS) else { continue };
        let found = reason("no stalls", map, direct, slow, "p99.9 of a random read");
        let at_thread_counts =
            |reason: Reason| reason.at_thread_counts(workload.threads, [threads(map); 2], "random", map);
        reasons.extend(found.map(at_thread_counts));
    }
    reasons
}

// Rules of `random`: rates of mmap against explicit I/O, their CPU, the effect of hints, and the rates before and
// after memory was full.

/// Adds the findings that the records of `random` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        phases(&groups, target, all);
        if variant == FILL {
            continue;
        }
        no_valid_figure(&groups, target, all);
        let sides = Sides::of(&groups);
        sides.map_against_explicit(target, all);
        sides.pool_against_others(target, all);
        hints(&groups, target, all);
        reclaim(&groups, target, all);
        against_fio(&groups, target, Metric::OpsPerS, all);
    }
}

/// Whether a map is told that its reads are random: the hint that fits this work.
fn told_random(map: &Group<'_>) -> bool {
    map.spec.method == methods::MMAP_RANDOM
}

/// The curves over requests in flight that are compared. At each point the faster method stands for explicit I/O and for
/// the pool; for the map only the one with the right hint may.
pub(super) struct Sides<'g, 'a> {
    pub(super) map: Curve<'g, 'a>,
    pub(super) explicit: Curve<'g, 'a>,
    pub(super) pool: Curve<'g, 'a>,
}

impl<'g, 'a> Sides<'g, 'a> {
    /// The sides among the groups of one target.
    pub(super) fn of(groups: &[&'g Group<'a>]) -> Self {
        let rate = Metric::OpsPerS;
        let plain = |wanted: fn(Family) -> bool| {
            of_family(groups, wanted)
                .filter(|group| is_plain(&group.spec.params) && group.conditions().calls == Calls::Single)
                .collect::<Vec<_>>()
        };
        Self {
            map: Curve::of(valid_maps(groups, told_random), rate),
            explicit: Curve::of(plain(Family::is_explicit), rate),
            pool: Curve::of(plain(|family| family == Family::Pool), rate),
        }
    }

    /// Compares the map's curve with explicit I/O's, by rate and by CPU time, which a slow device hides in the rates.
    fn map_against_explicit(&self, target: &str, all: &mut Vec<Finding>) {
        let rule_text = "geometric mean, over all numbers of requests in flight at which both have a valid figure, of the median rate of the map \
            told RANDOM over the rate of the faster of pread and io_uring with O_DIRECT; conclusive where chance alone would give such a mean in less than one run \
            of twenty (t on the logarithms of the repeats)";
        if let Some((found, text)) = between(&self.map, &self.explicit, Metric::OpsPerS, target, all) {
            let key = (TargetKind::of(target) == TargetKind::File)
                .then(|| KeyFigure::of(&found.ratio, &format!("{}, geometric mean {}", reads(&found), found.words())));
            all.push(Finding { key_figure: key, ..finding(&found, ("mapped-against-explicit", rule_text), text) });
        }
        let rule_text = "the same mean, of the CPU time of the process, its children and kswapd for one read";
        if let Some((found, text)) = between(&self.map, &self.explicit, Metric::CpuPerOp, target, all) {
            all.push(finding(&found, ("cpu-per-work", rule_text), text));
        }
    }

    /// Compares the engine's pool with explicit I/O and with the map.
    fn pool_against_others(&self, target: &str, all: &mut Vec<Finding>) {
        let rule_text = "geometric mean, over all numbers of requests in flight at which both have a valid figure, of the median rate of the \
            engine's pool over the other. A read through the engine descends a B+tree, verifies a checksum when the page comes from the disk, and \
            copies its value out; its pool is smaller than the memory limit, which page cache may fill; its frames lie in small pages, as the map's do";
        for (other, rule) in [(&self.explicit, "pool-against-raw"), (&self.map, "pool-against-mapped")] {
            if let Some((found, text)) = between(&self.pool, other, Metric::OpsPerS, target, all) {
                all.push(finding(&found, (rule, rule_text), text));
            }
        }
    }
}

/// The reads of a comparison, in words.
fn reads(found: &CurveRatio<'_, '_>) -> &'static str {
    let recorded = found.pairs.iter().any(|(map, _)| map.spec.params.extra.contains_key(TRACE));
    if recorded { "the recorded program's reads" } else { "random reads" }
}

/// The work of these groups, as a title.
pub(super) fn work_of(groups: &[&Group<'_>]) -> &'static str {
    let recorded = groups.iter().any(|group| group.spec.params.extra.contains_key(TRACE));
    if recorded { "Reads of the recorded program" } else { "Random 4 KiB reads, data larger than memory" }
}

/// Divides two curves, and makes the sentence: the ratio of the whole curves, then each side at its own best, which is
/// compared with nothing.
fn between<'g, 'a>(
    a: &Curve<'g, 'a>,
    b: &Curve<'g, 'a>,
    metric: Metric,
    target: &str,
    all: &mut Vec<Finding>,
) -> Option<(CurveRatio<'g, 'a>, String)> {
    let found = or_refused(a.over(b, metric), all)?;
    let side = |at: fn(&(&'g Group<'a>, &'g Group<'a>)) -> &'g Group<'a>| {
        titles(&found.pairs.iter().map(at).collect::<Vec<_>>())
    };
    let own = |curve: &Curve<'g, 'a>| {
        let best = curve.best(metric)?;
        Some(format!("{} {}", best.label(), shown(best.spread(metric)?, metric.unit())))
    };
    let reads = reads(&found);
    let what =
        if metric == Metric::CpuPerOp { format!("the CPU time of {reads}") } else { format!("the rate of {reads}") };
    let text = format!(
        "{}{}{what} through {} is {} the figure for {}, {}. Each at its own best, under different conditions: {}; {}.",
        on(target),
        found.caveat(),
        side(|pair| pair.0),
        found.show(),
        side(|pair| pair.1),
        found.words(),
        own(a)?,
        own(b)?,
    );
    Some((found, text))
}

fn finding(found: &CurveRatio<'_, '_>, (rule, rule_text): (&'static str, &'static str), text: String) -> Finding {
    let (trials, kind) = (found.keys(), found.kind());
    Finding { rule, rule_text, experiment: Some(ID), p: found.p, kind, text, trials, key_figure: None }
}

/// Names the methods whose trials show no full memory: they have no figure, and no other method stands in for them.
fn no_valid_figure(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let without: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.never_filled()).collect();
    if without.is_empty() {
        return;
    }
    let labels: Vec<String> = without.iter().map(|group| group.label()).collect();
    all.push(Finding {
        rule: "no-valid-figure",
        rule_text: "a method that fills memory as it reads has a valid figure only where memory was full; without one it enters no ratio, and no \
            other method, such as a map with another hint, stands in for it",
        experiment: Some(ID),
        p: None,
        kind: Kind::Warning,
        text: format!("{}no valid figure, as memory never filled: {}.", on(target), labels.join("; ")),
        trials: keys(&without),
        key_figure: None,
    });
}

/// Compares right with wrong advice, and reports how many bytes the device then reads for each requested one.
fn hints(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let wrong_hints = [methods::MMAP_NORMAL.id, methods::MMAP_SEQUENTIAL.id];
    for wrong in groups.iter().copied().filter(|group| wrong_hints.contains(&group.spec.method.as_str())) {
        let same = |group: &&&Group<'_>| told_random(group) && group.spec.params == wrong.spec.params;
        let Some(right) = groups.iter().find(same) else { continue };
        let Some(comparison) = or_refused(compare(right, wrong, Metric::OpsPerS), all) else { continue };
        let read = wrong.spread(Metric::Amplification).map_or(String::new(), |amplification| {
            format!(
                "; with {} the device read {} bytes for each byte asked",
                wrong.label(),
                digits(amplification.median)
            )
        });
        all.push(Finding {
            rule: "advice",
            rule_text: "median rate with MADV_RANDOM over that with another advice, same threads; device bytes over work bytes",
            text: format!(
                "{}{}{} gives {}, {} {}: {}{read}.",
                on(target),
                comparison.caveat(),
                right.label(),
                shown(comparison.a, Unit::PerSecond),
                wrong.label(),
                shown(comparison.b, Unit::PerSecond),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}

/// Rates of a trial in operations a second: before memory was full, of the worst tick in the two seconds after that,
/// and of the plateau; and TLB shootdowns a second before and after.
struct Phases {
    fill: f64,
    dip: f64,
    plateau: f64,
    shootdowns_before: f64,
    shootdowns_after: f64,
}

/// When memory became full, in a trial that shows how it filled: not in one that began with full memory, where the first
/// tick already evicts.
pub(super) fn filled_at(outcome: &Outcome) -> Option<f64> {
    let first = outcome.ticks.first()?.at_s;
    outcome.full_at_s.filter(|full_at| *full_at > first)
}

fn phases_of(outcome: &Outcome) -> Option<Phases> {
    let full_at = filled_at(outcome)?;
    let rate = |ops: u64, elapsed_s: f64| (elapsed_s > 0.0).then(|| ops as f64 / elapsed_s);
    let (mut ops, mut elapsed_s, mut shootdowns, mut dip) = (0, 0.0, 0.0, f64::INFINITY);
    for tick in &outcome.ticks {
        if tick.at_s <= full_at {
            ops += tick.ops;
            elapsed_s += tick.elapsed_s;
            shootdowns += tick.counters.get("tlb_shootdowns").copied().unwrap_or(0.0);
        } else if tick.at_s <= full_at + 2.0 {
            dip = dip.min(rate(tick.ops, tick.elapsed_s)?);
        }
    }
    Some(Phases {
        fill: rate(ops, elapsed_s).filter(|fill| *fill > 0.0)?,
        dip: if dip.is_finite() { dip } else { return None },
        plateau: outcome.steady.as_ref().and_then(|window| rate(window.ops, window.elapsed_s))?,
        shootdowns_before: shootdowns / elapsed_s,
        shootdowns_after: Metric::ShootdownsPerS.of(outcome)?,
    })
}

/// Reports the rates of the paper's three phases, whether or not they appear.
fn phases(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let Some(map) = best(groups.iter().copied().filter(|group| told_random(group)), Metric::OpsPerS) else { return };
    let Some(trial) = map.typical() else { return };
    let Some(phases) = phases_of(&trial.outcome) else { return };
    let (dip, plateau) = (phases.dip / phases.fill, phases.plateau / phases.fill);
    let shape = match (dip, plateau) {
        (_, plateau) if plateau > 0.9 => "its rate hardly changed when memory was full",
        (dip, plateau) if dip < 0.75 * plateau => "it fell when memory was full, then settled lower",
        _ => "it settled lower when memory was full, without a deeper dip",
    };
    all.push(Finding {
        rule: "phases",
        rule_text: "of the repeat with the median rate: mean rate before memory was full, the slowest tick of the two seconds after, and the \
            mean after; 'hardly changed' from 0.9 of the fill rate, 'a dip' below 0.75 of the plateau",
        experiment: Some(ID),
        p: None,
        kind: Kind::Fact,
        text: format!(
            "{}{}: {shape} (filling {}, slowest tick {}, plateau {}). TLB shootdowns went from {} to {}.",
            on(target),
            map.label(),
            Unit::PerSecond.show(phases.fill),
            Unit::PerSecond.show(phases.dip),
            Unit::PerSecond.show(phases.plateau),
            Unit::PerSecond.show(phases.shootdowns_before.round()),
            Unit::PerSecond.show(phases.shootdowns_after.round()),
        ),
        trials: keys(&[map]),
        key_figure: None,
    });
}
