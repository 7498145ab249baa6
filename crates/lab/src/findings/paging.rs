//! Rules for `random` and `scan`: what mmap gives against explicit I/O, at what CPU, and what reclaim does meanwhile.

use super::{Finding, KeyFigure, Kind, best, compare, keys, on, shown};
use crate::format::{Unit, digits};
use crate::record::{ExperimentId, Outcome};
use crate::summary::{Family, Group, Metric, Summary, contender_title, fio_of, target_title};

/// The rules of `random`.
pub(super) fn random(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ExperimentId::Random) {
        let groups = summary.at(ExperimentId::Random, variant, target);
        mapped_against_explicit(&groups, target, Metric::OpsPerS, all);
        cpu(&groups, target, Metric::CpuPerOp, all);
        hints(&groups, target, all);
        phases(&groups, target, all);
        reclaim(&groups, target, all);
        against_fio(&groups, target, Metric::OpsPerS, all);
    }
}

/// The rules of `scan`.
pub(super) fn scan(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ExperimentId::Scan) {
        let groups = summary.at(ExperimentId::Scan, variant, target);
        mapped_against_explicit(&groups, target, Metric::BytesPerS, all);
        cpu(&groups, target, Metric::CpuPerGb, all);
        ceiling(&groups, target, all);
        buffers(&groups, target, all);
        reclaim(&groups, target, all);
        against_fio(&groups, target, Metric::BytesPerS, all);
    }
    striping(summary, all);
}

fn of_family<'g, 'a>(groups: &'g [&'g Group<'a>], wanted: fn(Family) -> bool) -> impl Iterator<Item = &'g Group<'a>> {
    groups.iter().copied().filter(move |group| wanted(group.family()))
}

fn mapped(family: Family) -> bool {
    family == Family::Mapped
}

fn mapped_against_explicit(groups: &[&Group<'_>], target: &str, metric: Metric, all: &mut Vec<Finding>) {
    let best_mapped = best(of_family(groups, mapped).filter(|group| !group.never_filled()), metric);
    let best_explicit = best(of_family(groups, Family::is_explicit), metric);
    let (Some(map), Some(direct)) = (best_mapped, best_explicit) else { return };
    let Some(comparison) = compare(map, direct, metric) else { return };
    let experiment = map.spec.experiment;
    let work = if experiment == ExperimentId::Scan { "scans at" } else { "reaches" };
    let rate = if experiment == ExperimentId::Scan { "scan rate" } else { "random reads per second" };
    let place = format!(", {}", target_title(target));
    all.push(Finding {
        rule: "mapped-against-explicit",
        rule_text: "median rate of the fastest mapped contender over that of the fastest of the lab's own O_DIRECT \
            contenders on the same target, whatever their threads and depths; conclusive when the ranges of their repeats are apart (of fewer than four: by more than either is wide), or by a rank test from five repeats on",
        experiment: Some(experiment),
        kind: comparison.kind,
        text: format!(
            "{}{}mmap at its best ({}) {work} {}, explicit I/O ({}) {}: {} of it.",
            on(target),
            comparison.doubt(),
            map.label(),
            shown(comparison.a, metric.unit()),
            direct.label(),
            shown(comparison.b, metric.unit()),
            comparison.show(),
        ),
        cells: keys(&[map, direct]),
        key_figure: Some(KeyFigure {
            label: format!("{rate}, mmap ÷ explicit I/O{place}"),
            value: Unit::Ratio.show(comparison.ratio.median),
            detail: format!(
                "{} against {}",
                shown(comparison.a, metric.unit()),
                shown(comparison.b, metric.unit())
            ),
        }),
    });
}

/// CPU: the cost that a slow device hides in the rates.
fn cpu(groups: &[&Group<'_>], target: &str, metric: Metric, all: &mut Vec<Finding>) {
    let rate = Metric::primary(groups.first().map_or(ExperimentId::Random, |group| group.spec.experiment));
    let Some(map) = best(of_family(groups, mapped), rate) else { return };
    let Some(direct) = best(of_family(groups, Family::is_explicit), metric) else { return };
    let Some(comparison) = compare(map, direct, metric) else { return };
    let of_what = if metric == Metric::CpuPerGb { "GB" } else { "read" };
    all.push(Finding {
        rule: "cpu-per-work",
        rule_text: "CPU of the process, its children and kswapd for one operation (or 10^9 bytes): the fastest mapped contender over \
            the cheapest of the lab's own O_DIRECT contenders",
        experiment: Some(map.spec.experiment),
        kind: comparison.kind,
        text: format!(
            "{}{}a {of_what} costs {} of CPU through the mapping ({}) and {} with explicit I/O ({}): {}.",
            on(target),
            comparison.doubt(),
            shown(comparison.a, Unit::Seconds),
            map.label(),
            shown(comparison.b, Unit::Seconds),
            direct.label(),
            comparison.show(),
        ),
        cells: keys(&[map, direct]),
        key_figure: Some(KeyFigure {
            label: format!("CPU per {of_what}, mmap ÷ explicit I/O, {}", target_title(target)),
            value: Unit::Ratio.show(comparison.ratio.median),
            detail: format!("{} against {}", shown(comparison.a, Unit::Seconds), shown(comparison.b, Unit::Seconds)),
        }),
    });
}

/// What the wrong advice costs, and how much more than asked the device then reads.
fn hints(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let Some(right) = groups.iter().find(|group| group.spec.contender == "mmap-random") else { return };
    for wrong in ["mmap-normal", "mmap-sequential"] {
        let same = |group: &&&Group<'_>| group.spec.contender == wrong && group.spec.params == right.spec.params;
        let Some(wrong) = groups.iter().find(same) else { continue };
        let Some(comparison) = compare(right, wrong, Metric::OpsPerS) else { continue };
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
            experiment: Some(ExperimentId::Random),
            kind: comparison.kind,
            text: format!(
                "{}{}{} gives {}, {} {}: {}{read}.",
                on(target),
                comparison.doubt(),
                right.label(),
                shown(comparison.a, Unit::PerSecond),
                wrong.label(),
                shown(comparison.b, Unit::PerSecond),
                comparison.show(),
            ),
            cells: keys(&[right, wrong]),
            key_figure: None,
        });
    }
}

/// Rates in the ticks before memory was full, the worst tick in the two seconds after it, and the plateau.
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

/// The paper's three phases: whether they appear is a question, not an expectation.
fn phases(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let Some(map) = best(of_family(groups, mapped), Metric::OpsPerS) else { return };
    let Some(cell) = map.typical() else { return };
    let Some(phases) = phases_of(&cell.outcome) else { return };
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
        experiment: Some(ExperimentId::Random),
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
        cells: keys(&[map]),
        key_figure: None,
    });
}

/// Interrupts for each evicted page, and how busy the one thread is that evicts.
fn reclaim(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let busiest = of_family(groups, mapped)
        .filter_map(|group| Some((group.spread(Metric::KswapdShare)?, group)))
        .reduce(|best, next| if next.0.median > best.0.median { next } else { best });
    let Some((share, group)) = busiest else { return };
    let interrupts = group.spread(Metric::ShootdownsPerEvicted);
    let direct = interrupts.map_or(String::new(), |each| {
        let pages = if each.median > 0.0 {
            format!("one for {} evicted pages", digits(1.0 / each.median))
        } else {
            "none".into()
        };
        format!("; TLB shootdown interrupts: {pages}")
    });
    if share.median < 1.0 && interrupts.is_none() {
        return;
    }
    let who = if share.median < 1.0 {
        "kswapd did not work (reclaim happened in the faulting threads)".to_owned()
    } else {
        format!("kswapd used {} of a core", Unit::Percent.show(share.median))
    };
    all.push(Finding {
        rule: "reclaim",
        rule_text: "CPU of kswapd over the time with full memory, and TLB shootdown interrupts over evicted file pages, of the mapped \
            contender where kswapd worked most",
        experiment: Some(group.spec.experiment),
        kind: Kind::Fact,
        text: format!("{}{}: {who}{direct}.", on(target), group.label()),
        cells: keys(&[group]),
        key_figure: None,
    });
}

/// What the device gives to whoever asks best, and how much of that each other way of scanning gets.
fn ceiling(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let metric = Metric::BytesPerS;
    let Some(top) = best(of_family(groups, |family| family.is_explicit() || family == Family::Baseline), metric) else {
        return;
    };
    let mut shares: Vec<(String, f64, &Group<'_>)> = Vec::new();
    for group in of_family(groups, |family| matches!(family, Family::Mapped | Family::Buffered)) {
        let Some(comparison) = compare(group, top, metric) else { continue };
        let title = contender_title(&group.spec.contender);
        match shares.iter_mut().find(|(other, ..)| *other == title) {
            Some(known) if known.1 >= comparison.ratio.median => {}
            Some(known) => *known = (title, comparison.ratio.median, group),
            None => shares.push((title, comparison.ratio.median, group)),
        }
    }
    let (Some(rate), false) = (top.spread(metric), shares.is_empty()) else { return };
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let listed: Vec<String> =
        shares.iter().map(|(title, share, _)| format!("{title} {}", Unit::Percent.show(share * 100.0))).collect();
    let mut cells = keys(&[top]);
    cells.extend(shares.iter().map(|(_, _, group)| group.key.clone()));
    all.push(Finding {
        rule: "scan-ceiling",
        rule_text: "the highest median of all direct contenders, fio among them, is taken for what the device can give; median scan \
            rates of the others, each with its best threads, as shares of it",
        experiment: Some(ExperimentId::Scan),
        kind: Kind::Fact,
        text: format!(
            "{}of the device's own ceiling ({}, by {}) a scan gets: {}.",
            on(target),
            shown(rate, Unit::BytesPerSecond),
            top.label(),
            listed.join(", "),
        ),
        cells,
        key_figure: None,
    });
}

/// Large requests into buffers of scattered small pages: the block layer must split them.
fn buffers(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let small_buffers = |group: &&Group<'_>| group.spec.params.extra.get("buffers").is_some_and(|kind| kind == "small");
    for small in of_family(groups, |family| family == Family::Ring).filter(small_buffers) {
        let mut params = small.spec.params.clone();
        params.extra.remove("buffers");
        let same = |group: &&&Group<'_>| group.spec.contender == small.spec.contender && group.spec.params == params;
        let Some(huge) = groups.iter().find(same) else { continue };
        let Some(comparison) = compare(huge, small, Metric::BytesPerS) else { continue };
        all.push(Finding {
            rule: "buffers",
            rule_text: "median scan rate with buffers in huge pages over that with buffers in 4 KiB pages, same contender and depth",
            experiment: Some(ExperimentId::Scan),
            kind: comparison.kind,
            text: format!(
                "{}{}{} scans at {} into huge pages and {} into 4 KiB pages: {}.",
                on(target),
                comparison.doubt(),
                huge.label(),
                shown(comparison.a, Unit::BytesPerSecond),
                shown(comparison.b, Unit::BytesPerSecond),
                comparison.show(),
            ),
            cells: keys(&[huge, small]),
            key_figure: None,
        });
    }
}

/// The outside baseline: the lab must not be beaten by a tool that does the same.
fn against_fio(groups: &[&Group<'_>], target: &str, metric: Metric, all: &mut Vec<Finding>) {
    let own = of_family(groups, Family::is_explicit).filter_map(|own| {
        let fio = fio_of(own, groups)?;
        Some((own, fio, compare(own, fio, metric)?))
    });
    let (short, even): (Vec<_>, Vec<_>) = own.partition(|(.., comparison)| comparison.ratio.median < 0.95);
    for (list, kind) in [(even, Kind::Fact), (short, Kind::Warning)] {
        let Some((first, ..)) = list.first() else { continue };
        let listed: Vec<String> = list
            .iter()
            .map(|(own, _, comparison)| {
                let (a, b) = (shown(comparison.a, metric.unit()), shown(comparison.b, metric.unit()));
                format!("{} {a} against {b}, {}", own.label(), Unit::Ratio.show(comparison.ratio.median))
            })
            .collect();
        let (says, so) = match kind {
            Kind::Warning => ("is slower than fio", ": these figures are a lower bound"),
            _ => ("keeps up with fio", ""),
        };
        all.push(Finding {
            rule: "against-fio",
            rule_text: "median rate of the lab's own contender over fio's with the same engine, threads, depth and block; a warning below 0.95",
            experiment: Some(first.spec.experiment),
            kind,
            text: format!(
                "{}the lab {says} asked the same way: {}{so}.",
                on(target),
                listed.join("; ")
            ),
            cells: list.iter().flat_map(|(own, fio, _)| keys(&[own, fio])).collect(),
            key_figure: None,
        });
    }
}

/// Whether several devices help: the fastest of each kind on a striped target over the fastest on one part of it.
fn striping(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    let metric = Metric::BytesPerS;
    let places = summary.places(ExperimentId::Scan);
    for (variant, striped) in places.iter().filter(|(_, target)| target.contains("striped")) {
        let single = if striped.contains("ram") { "ram" } else { "file" };
        let (many, one) =
            (summary.at(ExperimentId::Scan, variant, striped), summary.at(ExperimentId::Scan, variant, single));
        let gain = |wanted: fn(Family) -> bool| {
            let (a, b) = (best(of_family(&many, wanted), metric)?, best(of_family(&one, wanted), metric)?);
            Some((compare(a, b, metric)?, keys(&[a, b])))
        };
        let (Some((direct, mut cells)), Some((map, more))) = (gain(Family::is_explicit), gain(mapped)) else {
            continue;
        };
        cells.extend(more);
        let clear = direct.kind == Kind::Difference || map.kind == Kind::Difference;
        all.push(Finding {
            rule: "striping",
            rule_text: "scan rate of the fastest contender of each kind on the striped target over that on a single one",
            experiment: Some(ExperimentId::Scan),
            kind: if clear { Kind::Difference } else { Kind::Inconclusive },
            text: format!(
                "From {} to {striped}: explicit I/O becomes {} as fast{}, mmap {}{}.",
                target_title(single),
                direct.show(),
                in_brackets(&direct.doubt()),
                map.show(),
                in_brackets(&map.doubt()),
            ),
            cells,
            key_figure: Some(KeyFigure {
                label: format!("striping ({striped}): gain with mmap"),
                value: Unit::Ratio.show(map.ratio.median),
                detail: format!("explicit I/O gains {}", Unit::Ratio.show(direct.ratio.median)),
            }),
        });
    }
}

fn in_brackets(doubt: &str) -> String {
    if doubt.is_empty() { String::new() } else { format!(" ({})", doubt.trim_end_matches(" – ")) }
}
