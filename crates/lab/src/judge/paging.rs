//! Rules about reads of data larger than memory: rates of mmap against explicit I/O, their CPU, and the work of reclaim
//! at that time.

use super::{Finding, Kind, best, best_pair, compare, keys, on, or_refused, shown};
use crate::format::{Unit, digits};
use crate::record::TargetKind;
use crate::summary::{Family, Group, Metric, fio_of};

pub(crate) fn of_family<'s, 'g, 'a>(
    groups: &'s [&'g Group<'a>],
    wanted: fn(Family) -> bool,
) -> impl Iterator<Item = &'g Group<'a>> + use<'s, 'g, 'a> {
    groups.iter().copied().filter(move |group| wanted(group.family()))
}

pub(crate) fn mapped(family: Family) -> bool {
    family == Family::Mapped
}

/// The mapped methods that may stand for a map: those with a hint that fits the work, as `hint` selects them, and with a
/// valid figure, which shows full memory where it is to. A map with a wrong hint never stands in for another.
pub(crate) fn valid_maps<'g, 'a>(groups: &[&'g Group<'a>], hint: Hint) -> Vec<&'g Group<'a>> {
    of_family(groups, mapped).filter(|group| !group.never_filled() && hint(group)).collect()
}

/// Selects the maps whose hint to the kernel fits the work.
pub(crate) type Hint = fn(&Group<'_>) -> bool;

/// The fastest mapped method and the fastest explicit one of the pair whose conditions are equal; without such a pair the
/// fastest of each side, whose comparison is then refused with the reason.
fn sides<'g, 'a>(groups: &[&'g Group<'a>], hint: Hint, rate: Metric) -> Option<(&'g Group<'a>, &'g Group<'a>)> {
    let maps = valid_maps(groups, hint);
    let calls: Vec<&Group<'_>> = of_family(groups, Family::is_explicit).collect();
    best_pair(&maps, &calls, rate, &[]).or_else(|| Some((best(maps, rate)?, best(calls, rate)?)))
}

pub(crate) fn mapped_against_explicit(
    groups: &[&Group<'_>],
    target: &str,
    (hint, metric): (Hint, Metric),
    all: &mut Vec<Finding>,
) {
    let Some((map, direct)) = sides(groups, hint, metric) else { return };
    let Some(comparison) = or_refused(compare(map, direct, metric), all) else { return };
    let work = if metric == Metric::BytesPerS { "scans at" } else { "reaches" };
    all.push(Finding {
        rule: "mapped-against-explicit",
        rule_text: "median rate of the fastest mapped method over the fastest of the lab's own O_DIRECT \
            methods, on the same target and under equal conditions: requests in flight, page size, batching; conclusive where chance alone \
            would give such a ratio in less than one comparison of twenty",
        text: format!(
            "{}{}mmap ({}) {work} {}, explicit I/O ({}) {}: {} of it.",
            on(target),
            comparison.caveat(),
            map.label(),
            shown(comparison.a, metric.unit()),
            direct.label(),
            shown(comparison.b, metric.unit()),
            comparison.show(),
        ),
        key_figure: (TargetKind::of(target) == TargetKind::File).then(|| {
            let (a, b) = (shown(comparison.a, metric.unit()), shown(comparison.b, metric.unit()));
            comparison.key_figure(&format!("{a} against {b}"))
        }),
        ..comparison.finding()
    });
}

/// Compares the CPU time for a read: a slow device hides this cost in the rates.
pub(crate) fn cpu(groups: &[&Group<'_>], target: &str, (hint, metric): (Hint, Metric), all: &mut Vec<Finding>) {
    let rate = groups.first().map_or(Metric::OpsPerS, |group| group.basis.metric);
    let Some((map, direct)) = sides(groups, hint, rate) else { return };
    let Some(comparison) = or_refused(compare(map, direct, metric), all) else { return };
    let of_what = if metric == Metric::CpuPerGb { "GB" } else { "read" };
    all.push(Finding {
        rule: "cpu-per-work",
        rule_text: "CPU of the process, its children and kswapd for one operation (or 10^9 bytes): the fastest mapped method over \
            the fastest of the lab's own O_DIRECT methods under equal conditions",
        text: format!(
            "{}{}a {of_what} costs {} of CPU through the mapping ({}) and {} with explicit I/O ({}): {}.",
            on(target),
            comparison.caveat(),
            shown(comparison.a, Unit::Seconds),
            map.label(),
            shown(comparison.b, Unit::Seconds),
            direct.label(),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}

/// Reports TLB interrupts for each evicted page, and the CPU time of kswapd.
pub(crate) fn reclaim(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
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
            method where kswapd worked most",
        experiment: Some(group.spec.experiment),
        p: None,
        kind: Kind::Fact,
        text: format!("{}{}: {who}{direct}.", on(target), group.label()),
        trials: keys(&[group]),
        key_figure: None,
    });
}

/// Compares the lab's methods with the outside baseline: the lab must not be slower than a tool that makes the same
/// calls.
pub(crate) fn against_fio(groups: &[&Group<'_>], target: &str, metric: Metric, all: &mut Vec<Finding>) {
    let own = of_family(groups, Family::is_explicit).filter_map(|own| {
        let fio = fio_of(own, groups)?;
        Some((own, fio, compare(own, fio, metric).ok()?))
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
            rule_text: "median rate of the lab's own method over fio's with the same engine, threads, depth and block; a warning below 0.95",
            experiment: Some(first.spec.experiment),
            p: None,
            kind,
            text: format!(
                "{}the lab {says} asked the same way: {}{so}.",
                on(target),
                listed.join("; ")
            ),
            trials: list.iter().flat_map(|(own, fio, _)| keys(&[own, fio])).collect(),
            key_figure: None,
        });
    }
}
