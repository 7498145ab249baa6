//! Rules of `random`: rates of mmap against explicit I/O, their CPU, the effect of hints, and the rates before and
//! after memory was full.

use super::ID;
use crate::format::{Unit, digits};
use crate::judge::paging::{against_fio, cpu, mapped, mapped_against_explicit, of_family, reclaim};
use crate::judge::{Finding, Kind, best, compare, keys, on, or_refused, pool, shown};
use crate::record::Outcome;
use crate::summary::{Group, Metric, Summary};

/// Adds the findings that the records of `random` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        mapped_against_explicit(&groups, target, Metric::OpsPerS, all);
        cpu(&groups, target, Metric::CpuPerOp, all);
        hints(&groups, target, all);
        phases(&groups, target, all);
        reclaim(&groups, target, all);
        against_fio(&groups, target, Metric::OpsPerS, all);
    }
    pool::rates(summary, ID, Metric::OpsPerS, all);
}

/// Compares right with wrong advice, and reports how many bytes the device then reads for each requested one.
fn hints(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let Some(right) = groups.iter().find(|group| group.spec.method == "mmap-random") else { return };
    for wrong in ["mmap-normal", "mmap-sequential"] {
        let same = |group: &&&Group<'_>| group.spec.method == wrong && group.spec.params == right.spec.params;
        let Some(wrong) = groups.iter().find(same) else { continue };
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

fn phases_of(outcome: &Outcome) -> Option<Phases> {
    let full_at = outcome.full_at_s?;
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
    let Some(map) = best(of_family(groups, mapped), Metric::OpsPerS) else { return };
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
