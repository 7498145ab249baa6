//! Rules on the records of `scan`: published claims, findings, and reasons for the verdict.

use super::ID;
use crate::format::Unit;
use crate::judge::bound::{Bound, Outcome};
use crate::judge::claim::{Claim, Test, at_most};
use crate::judge::paging::{self, against_fio, cpu, mapped_against_explicit, of_family, reclaim};
use crate::judge::places::{Decision, Places, Records, explicit, is_explicit, is_mapped, mapped, times};
use crate::judge::reason::{Evidence, Reading, Reason, Rule, Workload, throughput};
use crate::judge::{self, Finding, Kind, best, best_pair, compare, compare_about, keys, on, or_refused, pool, shown};
use crate::methods;
use crate::record::TargetKind;
use crate::summary::{Family, Group, Metric, Property, Summary, target_title};

/// The published claims about mmap that the records of `scan` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "scan-below-half",
        hypothesis: "A sequential scan through mmap reaches less than half of what direct I/O reaches, from one device.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.2 and figure 3: 2.5 of 6.8 GB/s",
        experiment: ID,
        rule: "bytes per second of the best map over the best O_DIRECT method's under equal conditions are at most 0.5, on each target",
        needs: &[],
        test: at_most(
            &[""],
            Metric::BytesPerS,
            |group| is_mapped(group) && reads_ahead(group),
            is_explicit,
            0.5,
            "`nofault lab scan` measures it",
        ),
    },
    Claim {
        id: "striping-gains-nothing",
        hypothesis: "Scans through mmap gain nothing from more devices, where direct I/O does.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.2 and figure 4: 2.7 of 60 GB/s from ten SSDs",
        experiment: ID,
        rule: "best map striped over best map on one, under equal conditions: at most 1.2, where the same ratio of direct I/O is at least 1.5",
        needs: &[],
        test: Test::Own(striping_gains),
    },
];

/// Decides the claim by the gain from several devices, for a map and for direct I/O.
fn striping_gains(records: &Records<'_>) -> Decision {
    let metric = Metric::BytesPerS;
    let summary = records.summary;
    let mut places = Places::default();
    for (variant, striped) in summary.places(ID) {
        let Some(single) = TargetKind::of(striped).part() else { continue };
        let (many, one) = (summary.at(ID, variant, striped), summary.at(ID, variant, single));
        let map = best_pair(&mapped(&many), &mapped(&one), metric, &[]);
        let direct = best_pair(&explicit(&many), &explicit(&one), metric, &[]);
        let (Some((maps, map)), Some((directs, call))) = (map, direct) else { continue };
        let gain = |many: &Group<'_>, one: &Group<'_>| judge::ratio(many, one, metric, &[]).ok();
        let used = [maps, map, directs, call];
        let (Some(map), Some(direct)) = (gain(maps, map), gain(directs, call)) else { continue };
        let text = format!("{striped}: mmap gains {}, direct I/O {}", times(&map), times(&direct));
        // Devices that add no bandwidth for any method decide nothing.
        let outcome = match Bound::at_least(1.5).decide(&direct) {
            Outcome::Held => Bound::at_most(1.2).decide(&map),
            _ => Outcome::Undecided,
        };
        places.add(outcome, text, &used);
    }
    places.decide(
        "it takes a striped scan: `nofault lab scan` with root's RAM-backed devices, or --stripe-over another disk",
    )
}

/// The rules of the verdict for which `scan` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Throughput, rates)];

fn rates(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let words = ["scan", "CPU time of a scanned GB"];
    let (rate, cpu) = (Metric::BytesPerS, Metric::CpuPerGb);
    throughput(records, workload, &Reading { experiment: ID, rate, cpu, words, hint: reads_ahead, sequential: true })
}

// Rules of `scan`: rates of mmap against explicit I/O, the gain from several devices, and the highest rate that the
// device reached.

/// Adds the findings that the records of `scan` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        mapped_against_explicit(&groups, target, (reads_ahead, Metric::BytesPerS), all);
        cpu(&groups, target, (reads_ahead, Metric::CpuPerGb), all);
        ceiling(&groups, target, all);
        buffers(&groups, target, all);
        reclaim(&groups, target, all);
        against_fio(&groups, target, Metric::BytesPerS, all);
    }
    striping(summary, all);
    pool::rates(summary, ID, (reads_ahead, Metric::BytesPerS), all);
}

/// Whether a map is told nothing that is wrong for a scan: with MADV_RANDOM the kernel reads a page at a time.
fn reads_ahead(map: &Group<'_>) -> bool {
    map.spec.method != methods::MMAP_RANDOM
}

/// Reports the best rate that the device gave any direct method, and the best rate of each other way of
/// scanning. Each is at its own best, so no ratio is formed.
fn ceiling(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let metric = Metric::BytesPerS;
    let Some(top) = best(of_family(groups, |family| family.is_explicit() || family == Family::Baseline), metric) else {
        return;
    };
    let mut bests: Vec<(f64, &Group<'_>)> = Vec::new();
    for group in of_family(groups, |family| matches!(family, Family::Mapped | Family::Buffered)) {
        let Some(rate) = group.spread(metric) else { continue };
        match bests.iter_mut().find(|(_, other)| other.spec.method == group.spec.method) {
            Some((known, _)) if *known >= rate.median => {}
            Some(known) => *known = (rate.median, group),
            None => bests.push((rate.median, group)),
        }
    }
    let (Some(rate), false) = (top.spread(metric), bests.is_empty()) else { return };
    bests.sort_by(|a, b| b.0.total_cmp(&a.0));
    let listed: Vec<String> =
        bests.iter().map(|(rate, group)| format!("{} {}", group.label(), Unit::BytesPerSecond.show(*rate))).collect();
    let mut trials = keys(&[top]);
    trials.extend(bests.iter().map(|(_, group)| group.key.clone()));
    all.push(Finding {
        rule: "scan-ceiling",
        rule_text: "the highest median of all direct methods, fio among them, is taken for the device's limit; median scan \
            rates of the others, each at its own best, whatever its conditions: no ratio is formed",
        experiment: Some(ID),
        p: None,
        kind: Kind::Fact,
        text: format!(
            "{}the device gave {} at most (to {}); each other way of scanning had at its own best: {}.",
            on(target),
            shown(rate, Unit::BytesPerSecond),
            top.label(),
            listed.join(", "),
        ),
        trials,
        key_figure: None,
    });
}

/// Compares large requests into buffers of huge pages with those into buffers of small pages. The block layer must
/// split a request over scattered small pages.
fn buffers(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let small_buffers = |group: &&Group<'_>| group.spec.params.extra.get("buffers").is_some_and(|kind| kind == "small");
    for small in of_family(groups, |family| family == Family::Ring).filter(small_buffers) {
        let mut params = small.spec.params.clone();
        params.extra.remove("buffers");
        let same = |group: &&&Group<'_>| group.spec.method == small.spec.method && group.spec.params == params;
        let Some(huge) = groups.iter().find(same) else { continue };
        let compared = compare_about(huge, small, Metric::BytesPerS, &[Property::Pages]);
        let Some(comparison) = or_refused(compared, all) else { continue };
        all.push(Finding {
            rule: "buffers",
            rule_text: "median scan rate with buffers in huge pages over that with buffers in 4 KiB pages, same method and depth",
            text: format!(
                "{}{}{} scans at {} into huge pages and {} into 4 KiB pages: {}.",
                on(target),
                comparison.caveat(),
                huge.label(),
                shown(comparison.a, Unit::BytesPerSecond),
                shown(comparison.b, Unit::BytesPerSecond),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}

/// Reports whether several devices help: the rate of the fastest method of each kind on a striped target, over its rate
/// on one device of that target.
fn striping(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    let metric = Metric::BytesPerS;
    for (variant, striped) in summary.places(ID) {
        let Some(single) = TargetKind::of(striped).part() else { continue };
        let (many, one) = (summary.at(ID, variant, striped), summary.at(ID, variant, single));
        let gain = |wanted: fn(Family) -> bool| {
            let (many, one): (Vec<_>, Vec<_>) = (of_family(&many, wanted).collect(), of_family(&one, wanted).collect());
            let (a, b) = best_pair(&many, &one, metric, &[])?;
            Some((compare(a, b, metric).ok()?, keys(&[a, b])))
        };
        let (Some((direct, mut trials)), Some((map, more))) = (gain(Family::is_explicit), gain(paging::mapped)) else {
            continue;
        };
        trials.extend(more);
        let clear = direct.kind == Kind::Difference || map.kind == Kind::Difference;
        all.push(Finding {
            rule: "striping",
            rule_text: "scan rate of the fastest method of each kind on the striped target over that on a single one, under equal conditions",
            experiment: Some(ID),
            p: None,
            kind: if clear { Kind::Difference } else { Kind::Inconclusive },
            text: format!(
                "From {} to {striped}: explicit I/O becomes {} as fast{}, mmap {}{}.",
                target_title(single),
                direct.show(),
                in_brackets(&direct.caveat()),
                map.show(),
                in_brackets(&map.caveat()),
            ),
            trials,
            key_figure: None,
        });
    }
}

fn in_brackets(caveat: &str) -> String {
    if caveat.is_empty() { String::new() } else { format!(" ({})", caveat.trim_end_matches(" – ")) }
}
