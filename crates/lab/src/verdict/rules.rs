//! The paper's rules, one function each: whether it applies to a workload, and what the records say.

use super::{Reason, Side, Workload};
use crate::claims::{Records, figure, signals_met};
use crate::findings::{Comparison, Kind, best, compare};
use crate::record::{CacheState, ExperimentId};
use crate::summary::{Family, Group, Metric, is_plain, target_title};

/// A difference below this is none that anybody would choose by.
const MATTERS: f64 = 1.2;

/// The rule of [`throughput`] for what takes the map's place as it is here: a pool that caches, evicts and locks.
pub(super) const POOL: &str = "throughput of a pool";
/// The same for databases that have the choice.
const CHOICE: &str = "throughput of databases";

/// What the rules found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) reasons: Vec<Reason>,
    pub(super) not_measured: Vec<String>,
}

impl Found {
    /// A rule's reasons, or what would have given it some.
    fn take(&mut self, reasons: Vec<Reason>, otherwise: &str) {
        if reasons.is_empty() {
            self.not_measured.push(otherwise.to_owned());
        }
        self.reasons.extend(reasons);
    }
}

/// Every rule that applies.
pub(super) fn apply(records: &Records<'_>, workload: &Workload) -> Found {
    let is = |value: Option<bool>| value == Some(true);
    let mut found = Found::default();
    if !is(workload.read_only) && is(workload.needs_transactions) {
        let reasons = updates(records);
        found.take(reasons, "what safe updates cost (rule: safe updates); `nofault lab safety`");
    }
    if !is(workload.fits_in_memory) {
        if is(workload.latency_matters) {
            let reasons = stalls(records, workload);
            found.take(reasons, "how long accesses stall (rule: no stalls); `nofault lab async random stalls`");
        }
        let reasons = throughput(records, workload);
        found.take(reasons, "what the storage gives to either (rule: throughput); `nofault lab random scan engines`");
    }
    let reasons = errors(records);
    found.take(reasons, "what a failed read or a flipped bit does (rule: errors); `nofault lab errors`");
    if is(workload.fits_in_memory) {
        let reasons = in_memory(records);
        found.take(
            reasons,
            "what an access in memory costs either way (rule: in memory); `nofault lab translate claims`",
        );
    }
    found
}

fn is_home(group: &Group<'_>) -> bool {
    !group.spec.target.label.starts_with("ram")
}

/// `a` is the map. The better side by a comparison that is borne out and matters.
fn reason(rule: &'static str, a: &Group<'_>, b: &Group<'_>, metric: Metric, what: &str) -> Option<Reason> {
    let comparison = compare(a, b, metric)?;
    let gain = if metric.more_is_better() { comparison.ratio.median } else { 1.0 / comparison.ratio.median };
    let side = match comparison.kind {
        Kind::Difference if gain <= 1.0 / MATTERS => Side::Against,
        Kind::Difference if gain >= MATTERS => Side::For,
        _ => Side::Neither,
    };
    Some(Reason {
        rule,
        side,
        text: sentence(a, b, metric, what, &comparison),
        cells: vec![a.key.clone(), b.key.clone()],
        repeats: comparison.ratio.count,
        at_home: is_home(a),
    })
}

fn sentence(a: &Group<'_>, b: &Group<'_>, metric: Metric, what: &str, comparison: &Comparison) -> String {
    let unit = metric.unit();
    let place = target_title(&a.spec.target.label);
    let doubt = match comparison.kind {
        Kind::Difference => "",
        _ => ", which the repeats do not bear out",
    };
    format!(
        "{what}, {place}: {} through {}, {} with {}: {}{doubt}.",
        unit.show(comparison.a.median),
        a.label(),
        unit.show(comparison.b.median),
        b.label(),
        comparison.show()
    )
}

/// Those that the user's number of threads allows; all where that leaves none.
fn with_threads<'g, 'a>(groups: Vec<&'g Group<'a>>, threads: Option<u32>) -> Vec<&'g Group<'a>> {
    let Some(threads) = threads else { return groups };
    let few: Vec<&Group<'_>> = groups.iter().copied().filter(|group| group.spec.params.threads <= threads).collect();
    if few.is_empty() { groups } else { few }
}

fn mapped<'g, 'a>(groups: &[&'g Group<'a>], threads: Option<u32>) -> Vec<&'g Group<'a>> {
    let paged = |group: &&Group<'_>| group.family() == Family::Mapped && !group.never_filled();
    let all = groups.iter().copied().filter(paged).collect();
    with_threads(all, threads)
}

fn explicit<'g, 'a>(groups: &[&'g Group<'a>], threads: Option<u32>) -> Vec<&'g Group<'a>> {
    let all = groups.iter().copied().filter(|group| group.family().is_explicit()).collect();
    with_threads(all, threads)
}

/// (4) High throughput on fast storage: rates, and the CPU for them, which a slow device hides in the rates.
fn throughput(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (id, rate, cpu, what) in [
        (ExperimentId::Random, Metric::OpsPerS, Metric::CpuPerOp, "random reads"),
        (ExperimentId::Scan, Metric::BytesPerS, Metric::CpuPerGb, "scan"),
    ] {
        let places = records.summary.places(id).into_iter().filter(|(_, target)| !target.contains("striped"));
        for (variant, target) in places {
            let groups = records.summary.at(id, variant, target);
            let map = best(mapped(&groups, workload.threads), rate);
            let direct = best(explicit(&groups, workload.threads), rate);
            let Some(map) = map else { continue };
            reasons.extend(direct.and_then(|direct| reason("throughput", map, direct, rate, what)));
            let own = groups.iter().copied().filter(|group| group.family() == Family::Pool).collect();
            let pool = best(with_threads(own, workload.threads), rate);
            reasons.extend(pool.and_then(|pool| reason(POOL, map, pool, rate, what)));
            let cheapest = best(explicit(&groups, workload.threads), cpu);
            let per = if id == ExperimentId::Scan { "CPU a GB, scan" } else { "CPU a random read" };
            reasons.extend(cheapest.and_then(|direct| reason("throughput", map, direct, cpu, per)));
        }
    }
    reasons.extend(databases(records));
    reasons
}

/// (4) for databases that run with a map and without: reads of data larger than memory.
fn databases(records: &Records<'_>) -> Vec<Reason> {
    let groups = records.summary.at(ExperimentId::Engines, "ycsb-c", crate::experiment::engines::LARGER);
    // At its best: read-ahead may have been varied.
    let of = |id: &str| {
        let own = groups.iter().copied().filter(|group| group.spec.contender == id);
        crate::findings::best(own, Metric::OpsPerS)
    };
    let pairs = [("sqlite-mmap", "sqlite"), ("rocksdb-mmap", "rocksdb")].into_iter();
    let found = pairs.filter_map(|(map, calls)| reason(CHOICE, of(map)?, of(calls)?, Metric::OpsPerS, "YCSB C"));
    found.collect()
}

/// (2) No stalls on slow I/O.
fn stalls(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let tasks: Vec<&Group<'_>> = records
        .of("async")
        .filter(|group| {
            let spec = group.spec;
            spec.cache == CacheState::Cold && is_plain(&spec.params) && spec.variant == "random-touch" && is_home(group)
        })
        .collect();
    let find = |contender: &str| tasks.iter().copied().find(|group| group.spec.contender == contender);
    if let (Some(map), Some(read)) = (find("async-mmap"), find("async-read").or(find("async-uring"))) {
        let late = Metric::Latency("ticker", 990);
        reasons.extend(reason(
            "no stalls",
            map,
            read,
            late,
            "lateness (p99) of a 1 ms timer beside async tasks on cold data",
        ));
    }
    let ahead: Vec<&Group<'_>> = records.of("stalls").filter(|group| group.spec.variant == "ahead").collect();
    // Not the longest: whoever makes more accesses in the time meets rarer events.
    let slow = Metric::Latency("op", 999);
    let of_map = mapped(&ahead, None).into_iter().filter(|group| group.spec.contender.starts_with("mmap-"));
    if let (Some(map), Some(direct)) = (best(of_map, slow), best(explicit(&ahead, None), slow)) {
        let what = "p99.9 of an access with the best work-around";
        reasons.extend(reason("no stalls", map, direct, slow, what));
    }
    if !reasons.is_empty() {
        return reasons;
    }
    // Without those two: what random reads take.
    for (variant, target) in records.summary.places(ExperimentId::Random) {
        let groups = records.summary.at(ExperimentId::Random, variant, target);
        let same = |group: &&&Group<'_>| group.spec.params.depth <= 1;
        let map = best(mapped(&groups, workload.threads), Metric::OpsPerS);
        let direct = explicit(&groups, workload.threads);
        let direct = best(direct.iter().copied().filter(|group| same(&group)), Metric::OpsPerS);
        if let (Some(map), Some(direct)) = (map, direct) {
            reasons.extend(reason("no stalls", map, direct, Metric::Latency("op", 999), "p99.9 of a random read"));
        }
    }
    reasons
}

/// A reason that is a proof or a count, not a comparison.
fn proof(rule: &'static str, side: Side, text: String, group: &Group<'_>) -> Reason {
    Reason { rule, side, text, cells: vec![group.key.clone()], repeats: usize::MAX, at_home: is_home(group) }
}

/// (1) Updates that are safe in transactions.
fn updates(records: &Records<'_>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for group in records.of("safety").filter(|group| group.spec.variant == "sin") {
        let Some(found) = figure(group, "uncommitted_on_disk").filter(|found| found.max > 0.0) else { continue };
        let text = format!(
            "changed in place through {}, data is on the disk before its transaction commits ({:.0} pages found): a map needs a protocol on top.",
            group.label(),
            found.max
        );
        reasons.push(proof("safe updates", Side::Against, text, group));
    }
    let commits: Vec<&Group<'_>> = records.of("safety").filter(|group| group.spec.variant == "commits").collect();
    let mut writers: Vec<u32> = commits.iter().map(|group| group.spec.params.threads).collect();
    writers.sort_unstable();
    writers.dedup();
    for count in writers {
        let at = |engine: bool| {
            let these = commits.iter().copied().filter(|group| {
                group.spec.params.threads == count && (group.spec.contender.starts_with("engine") == engine)
            });
            best(these, Metric::OpsPerS)
        };
        if let (Some(map), Some(engine)) = (at(false), at(true)) {
            let what = format!("durable commits, {count} writer{}", if count == 1 { "" } else { "s" });
            reasons.extend(reason("safe updates", map, engine, Metric::OpsPerS, &what));
        }
    }
    reasons
}

/// (3) Errors, and right answers.
fn errors(records: &Records<'_>) -> Vec<Reason> {
    let is_map = |group: &Group<'_>| {
        let contender = &group.spec.contender;
        !["engine", "nofault", "direct", "uring", "pread", "pool"].iter().any(|word| contender.contains(word))
    };
    let mut reasons = Vec::new();
    for (name, words) in [
        ("wrong_answers", "answers that were wrong, and no error"),
        ("signals", "SIGBUS, which ends a process that does not catch it"),
        ("reached_disk", "stray writes that reached the disk"),
    ] {
        let met = |map: bool| {
            let fault = |group: &&Group<'_>| crate::experiment::errors::FAULTS.contains(&group.spec.variant.as_str());
            let these = records.of("errors").filter(fault).filter(move |group| is_map(group) == map);
            // A cell names what it met: what it does not name did not happen.
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
            "{words}: in {} of {} cells of mapped stores, in {} of {} of explicit I/O.",
            bad(&map),
            map.len(),
            bad(&other),
            other.len()
        );
        reasons.push(proof("errors", side, text, first));
    }
    reasons
}

/// (5) In memory: an access through a map against one through a pool.
fn in_memory(records: &Records<'_>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let lookups: Vec<&Group<'_>> = records.of("translate").filter(|group| group.spec.variant == "lookup").collect();
    let set = |group: &Group<'_>| {
        group.spec.params.extra.get("working_set").and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let largest = lookups.iter().map(|group| set(group)).fold(0.0, f64::max);
    let side = |map: bool| {
        let these = lookups
            .iter()
            .copied()
            .filter(|group| (set(group) - largest).abs() < 0.5 && group.spec.contender.starts_with("mapped") == map);
        best(these, Metric::OpsPerS)
    };
    if let (Some(map), Some(pool)) = (side(true), side(false)) {
        reasons.extend(reason("in memory", map, pool, Metric::OpsPerS, "lookups"));
    }
    let cached: Vec<&Group<'_>> =
        records.of("claims").filter(|group| group.spec.variant == crate::experiment::claims::CACHED_READ).collect();
    let least = cached.iter().map(|group| group.spec.params.block_bytes).min().unwrap_or(0);
    let find = |contender: &str| {
        cached.iter().copied().find(|group| group.spec.contender == contender && group.spec.params.block_bytes == least)
    };
    if let (Some(map), Some(read)) = (find("mmap-in-place"), find("pread-buffered")) {
        let what = format!("cached data in units of {}, against read calls (no pool)", crate::format::bytes(least));
        reasons.extend(reason("in memory", map, read, Metric::BytesPerS, &what));
    }
    reasons
}
