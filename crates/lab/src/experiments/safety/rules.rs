//! Rules on the records of `safety`: published claims, findings, and reasons for the verdict.

use super::{COMMITS, ID, MAP_PRIVATE, MMAP_SHARED, STEAL, cause, written_by};
use crate::format::{Unit, bytes, digits};
use crate::judge::bound::Outcome;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{Places, Records, figure, is, is_shadow};
use crate::judge::reason::{Evidence, Reason, Rule, Side, Workload, nearest, proof, reason, threads};
use crate::judge::rule::{Among, Each, Limit};
use crate::judge::{Finding, Kind, best, compare, keys, on, or_refused};
use crate::methods;
use crate::summary::{Family, Group, Metric, Summary};

/// The published claims about mmap that the records of `safety` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "uncommitted-reaches-disk",
    hypothesis: "A page that a transaction changed in a shared map can be on the disk before the transaction commits.",
    source: "Crotty, Leis, Pavlo, CIDR 2022, §3.1",
    experiment: ID,
    rule: "uncommitted bytes were read back from the file with O_DIRECT",
    needs: &[],
    test: Test::Each(Each {
        among: Among::Variants(&[STEAL]),
        // The private mapping is the control and decides nothing.
        which: |group| is(group, &MMAP_SHARED) && was_looked_at(group),
        figure: |group| figure(group, "uncommitted_on_disk"),
        limit: Limit::Happens,
        words: |group, found| format!("{}: {} found on disk before the commit", group.label(), digits(found.max)),
        missing: "`nofault lab safety` measures it",
        ..Each::NONE
    }),
}];

/// Finds the fate of commits in the stores of LMDB's design when a process was killed.
pub(super) fn kills<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    for (name, words) in [("lost_commits", "commits lost"), ("torn_commits", "commits torn")] {
        for group in records.of(ID).filter(|group| is_shadow(group)) {
            let Some(count) = figure(group, name).map(|count| count.max) else { continue };
            let outcome = if count > 0.0 { Outcome::DidNotHold } else { Outcome::Held };
            let text = format!("{} {}: {} {words}", group.label(), group.spec.variant, digits(count));
            places.add(outcome, text, &[group]);
        }
    }
    Contribution { experiment: ID, what: "kills", places }
}

/// The rules of the verdict for which `safety` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Updates, updates)];

/// Finds reasons for the verdict in the cost of updates that are safe in transactions.
fn updates(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for group in records.of(ID).filter(|group| group.spec.variant == "sin") {
        let Some(found) = figure(group, "uncommitted_on_disk").filter(|found| found.max > 0.0) else { continue };
        let text = format!(
            "pages changed in place through a {} are on the disk before their transaction commits, {} ({:.0} pages found): a map needs a protocol on top.",
            map_of(group),
            written_by(&group.spec.params),
            found.max
        );
        reasons.push(proof("safe updates", Side::Against, text, group));
    }
    let commits: Vec<&Group<'_>> = records.of(ID).filter(|group| group.spec.variant == "commits").collect();
    let commits = nearest(commits, workload.threads, threads);
    let mut writers: Vec<u32> = commits.iter().map(|group| threads(group)).collect();
    writers.sort_unstable();
    writers.dedup();
    for count in writers {
        let at = |engine: bool| {
            let these = commits
                .iter()
                .copied()
                .filter(|group| threads(group) == count && ((group.family() != Family::Mapped) == engine));
            best(these, Metric::OpsPerS)
        };
        if let (Some(map), Some(engine)) = (at(false), at(true)) {
            let what = format!("durable commits, {count} writer{}", if count == 1 { "" } else { "s" });
            let found = reason("safe updates", map, engine, Metric::OpsPerS, &what);
            reasons.extend(
                found.map(|reason| reason.at_thread_counts(workload.threads, [count; 2], "durable commits", map)),
            );
        }
    }
    reasons
}

// Rules for `safety`: whether uncommitted bytes reached the disk, and the cost of preventing it.

/// The costs of making a mapped file safe: name, metric and unit (`None` for bytes).
pub(crate) const PRICES: [(&str, Metric, Option<Unit>); 10] = [
    ("commits/s", Metric::OpsPerS, Some(Unit::PerSecond)),
    ("p99 of a commit", Metric::Latency("op", 990), Some(Unit::Seconds)),
    ("p99.9", Metric::Latency("op", 999), Some(Unit::Seconds)),
    ("written/commit", Metric::Figure("bytes_written_per_commit"), None),
    ("syncs/commit", Metric::Figure("syncs_per_commit"), Some(Unit::Count)),
    ("reads/s beside", Metric::Figure("reads_per_s"), Some(Unit::PerSecond)),
    ("p99 of a read", Metric::Latency("read", 990), Some(Unit::Seconds)),
    ("memory", Metric::Figure("memory_bytes"), None),
    ("opened again in", Metric::Figure("recovery_s"), Some(Unit::Seconds)),
    ("written/byte", Metric::Figure("bytes_written_per_byte"), Some(Unit::Ratio)),
];

/// Formats a group's figure; without a unit as bytes. Empty where the group has no such figure.
pub(crate) fn shown(group: &Group<'_>, metric: Metric, unit: Option<Unit>) -> String {
    let Some(spread) = group.spread(metric) else { return String::new() };
    match unit {
        Some(Unit::Count) if spread.median.fract() == 0.0 => format!("{:.0}", spread.median),
        Some(Unit::Count) => digits(spread.median),
        Some(unit) => unit.show(spread.median),
        None => bytes(spread.median as u64),
    }
}

/// Adds the findings that the records of `safety` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        match variant {
            STEAL => groups.iter().for_each(|group| steal(group, all)),
            COMMITS => {
                let mut writers: Vec<u32> = groups.iter().map(|group| group.spec.params.threads).collect();
                writers.sort_unstable();
                writers.dedup();
                let most = writers.last().copied();
                for count in writers {
                    let of_these: Vec<_> =
                        groups.iter().copied().filter(|group| group.spec.params.threads == count).collect();
                    price(&of_these, target, (count, most == Some(count)), all);
                }
                groups.iter().for_each(|group| survival(group, all));
            }
            _ => {}
        }
    }
}

/// Whether the trials read the disk. Older records count no page, rather than lack a figure, where the kernel had not
/// written the pages in time or the run was cut short.
pub(crate) fn was_looked_at(group: &Group<'_>) -> bool {
    let by_kernel = cause(&group.spec.params) == "kernel";
    let found = group.spread(Metric::Figure("uncommitted_on_disk")).is_some_and(|found| found.max > 0.0);
    found || !by_kernel
}

fn steal(group: &Group<'_>, all: &mut Vec<Finding>) {
    if !was_looked_at(group) {
        return;
    }
    let figure = |name| group.spread(Metric::Figure(name)).map(|spread| spread.median);
    let (Some(found), Some(stored), Some(time)) =
        (figure("uncommitted_on_disk"), figure("uncommitted_stored"), figure("until_on_disk_s"))
    else {
        return;
    };
    let locked = if figure("mlocked") == Some(1.0) { " although locked in memory (mlock)" } else { "" };
    let seconds = Unit::Seconds.show(time);
    let cause = written_by(&group.spec.params);
    let text = if found > 0.0 {
        format!(
            "{found:.0} of {stored:.0} pages that were stored into a shared mapping and never committed were on disk{locked}: \
             written {cause}, {seconds} after the store."
        )
    } else {
        format!("None of {stored:.0} pages that were changed in a {} got to disk.", map_of(group))
    };
    all.push(Finding {
        rule: "uncommitted-on-disk",
        rule_text: "pages with uncommitted bytes that a direct read finds on disk after another process's sync, after the kernel's own write-back, or once they have left memory by eviction",
        experiment: Some(ID),
        p: None,
        kind: Kind::Fact,
        text,
        trials: keys(&[group]),
        key_figure: None,
    });
}

/// Names the mapping of a group's trials.
fn map_of(group: &Group<'_>) -> &'static str {
    if group.spec.method == MAP_PRIVATE { "private mapping" } else { "shared mapping" }
}

fn price(groups: &[&Group<'_>], target: &str, (writers, is_key): (u32, bool), all: &mut Vec<Finding>) {
    let Some(engine) = groups.iter().copied().find(|group| group.spec.method == methods::ENGINE) else { return };
    let mapped = groups.iter().copied().filter(|group| group.spec.method != methods::ENGINE);
    let Some(map) = best(mapped, Metric::OpsPerS) else { return };
    let Some(comparison) = or_refused(compare(engine, map, Metric::OpsPerS), all) else { return };
    let written = |group: &Group<'_>| shown(group, Metric::Figure("bytes_written_per_commit"), None);
    all.push(Finding {
        rule: "price-of-safety",
        rule_text: "median durable commits a second of the engine over the fastest mapped store's, same number of writers",
        text: format!(
            "{}{}with {writers} {} the engine makes {} durable commits, the fastest safe mapping ({}) {}: {}. A commit writes {} and {}.",
            on(target),
            comparison.caveat(),
            if writers == 1 { "writer" } else { "writers" },
            Unit::PerSecond.show(comparison.a.median),
            map.label(),
            Unit::PerSecond.show(comparison.b.median),
            comparison.show(),
            written(engine),
            written(map),
        ),
        key_figure: is_key.then(|| {
            let (a, b) = (Unit::PerSecond.show(comparison.a.median), Unit::PerSecond.show(comparison.b.median));
            comparison.key_figure(&format!("{writers} writers, {a} against {b}"))
        }),
        ..comparison.finding()
    });
}

fn survival(group: &Group<'_>, all: &mut Vec<Finding>) {
    let most = |name| group.spread(Metric::Figure(name)).map_or(0.0, |spread| spread.max);
    let (lost, torn) = (most("lost_commits"), most("torn_commits"));
    if lost + torn == 0.0 {
        return;
    }
    all.push(Finding {
        rule: "commits-lost",
        rule_text: "acknowledged commits that are missing, or there in part, in the files that a process killed by SIGKILL in the midst of committing leaves",
        experiment: Some(ID),
        p: None,
        kind: Kind::Warning,
        text: format!(
            "{}: {} acknowledged commits lost and {} torn after the process was killed.",
            group.label(),
            digits(lost),
            digits(torn)
        ),
        trials: keys(&[group]),
        key_figure: None,
    });
}
