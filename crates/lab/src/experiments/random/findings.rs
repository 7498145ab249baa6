//! Rules of `random`: rates of mmap against explicit I/O, their CPU, the effect of hints, and the rates before and
//! after memory was full.

use super::{FILL, ID, TRACE};
use crate::format::{Unit, digits};
use crate::judge::curve::{Curve, CurveRatio};
use crate::judge::paging::{against_fio, of_family, reclaim, valid_maps};
use crate::judge::{Finding, KeyFigure, Kind, best, compare, keys, on, or_refused, shown, titles};
use crate::methods::{self, Calls};
use crate::record::{Outcome, TargetKind};
use crate::summary::{Family, Group, Metric, Summary, is_plain};

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
pub(super) fn told_random(map: &Group<'_>) -> bool {
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
