//! The paper's rules, one function each: whether it applies to a workload, and what the records say.

use super::{Reason, Side, Workload};
use crate::claims::{Records, figure, signals_met};
use crate::judge::{Comparison, Kind, best, compare};
use crate::record::CacheState;
use crate::summary::{Family, Group, Metric, is_plain, target_title};

/// A difference below this is none that anybody would choose by.
const MATTERS: f64 = 1.2;
/// A count that is further from the user's than this factor says little of the user's.
const NEAR: f64 = 2.0;
/// What takes less is no stall: no storage answers so soon.
const STALL_S: f64 = 10e-6;

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
        let reasons = updates(records, workload);
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
        if is(workload.latency_matters) {
            found.take(
                stalls_in_memory(records),
                "how long an access stalls that should find its page in memory (rule: no stalls); `nofault lab stalls --preset standard`",
            );
        }
        let reasons = in_memory(records, workload);
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
        far: None,
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

fn mapped<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    groups.iter().copied().filter(|group| group.pages_through_a_map()).collect()
}

fn explicit<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    groups.iter().copied().filter(|group| group.family().is_explicit()).collect()
}

/// Threads of a group.
fn threads(group: &Group<'_>) -> u32 {
    group.spec.params.threads.max(1)
}

/// Requests that a group has under way at once: its threads, of which each waits for its own, or a ring's depth, which takes no threads.
/// So many users at a time are served by either.
fn in_flight(group: &Group<'_>) -> u32 {
    threads(group).saturating_mul(group.spec.params.depth.max(1))
}

/// How far two counts are apart: 2 for twice as many and for half.
fn factor(a: u32, b: u32) -> f64 {
    let (a, b) = (f64::from(a.max(1)), f64::from(b.max(1)));
    (a / b).max(b / a)
}

/// Those whose count is the one nearest to what is wanted; all where nothing is.
fn nearest<'g, 'a>(
    groups: Vec<&'g Group<'a>>,
    wanted: Option<u32>,
    count: fn(&Group<'_>) -> u32,
) -> Vec<&'g Group<'a>> {
    let Some(wanted) = wanted else { return groups };
    let off = |group: &&Group<'_>| factor(count(group), wanted);
    let least = groups.iter().map(off).fold(f64::INFINITY, f64::min);
    groups.into_iter().filter(|group| off(group) <= least).collect()
}

/// Those whose count is near what is wanted, or else the nearest.
fn near<'g, 'a>(groups: Vec<&'g Group<'a>>, wanted: Option<u32>, count: fn(&Group<'_>) -> u32) -> Vec<&'g Group<'a>> {
    let is_near = |group: &&&Group<'_>| wanted.is_none_or(|wanted| factor(count(group), wanted) <= NEAR);
    let found: Vec<&Group<'_>> = groups.iter().filter(is_near).copied().collect();
    if found.is_empty() { nearest(groups, wanted, count) } else { found }
}

/// Those with no more threads than the user has, and those with the nearest number.
fn up_to<'g, 'a>(groups: Vec<&'g Group<'a>>, wanted: Option<u32>) -> Vec<&'g Group<'a>> {
    let fewer = |group: &&&Group<'_>| wanted.is_none_or(|wanted| threads(group) <= wanted);
    let mut found: Vec<&Group<'_>> = groups.iter().filter(fewer).copied().collect();
    found.extend(nearest(groups, wanted, threads));
    found
}

impl Reason {
    /// Says where the map was measured with another number than the user's, or what it is compared with with another than the map.
    fn beside(self, wanted: Option<u32>, counts: [u32; 2], what: &str, a: &Group<'_>) -> Self {
        let [map, other] = counts;
        let far = wanted.is_some_and(|wanted| factor(map, wanted).max(factor(other, map)) > NEAR);
        if far { self.far_from(counts, what, a) } else { self }
    }

    /// Says where either was measured with many more threads than the user has.
    fn beyond(self, wanted: Option<u32>, counts: [u32; 2], what: &str, a: &Group<'_>) -> Self {
        let far = wanted.is_some_and(|wanted| counts.iter().any(|count| f64::from(*count) > NEAR * f64::from(wanted)));
        if far { self.far_from(counts, what, a) } else { self }
    }

    fn far_from(self, [map, other]: [u32; 2], what: &str, a: &Group<'_>) -> Self {
        let counts = if map == other { map.to_string() } else { format!("{map} and {other}") };
        Self { far: Some(format!("{what}, {} ({counts})", target_title(&a.spec.target.label))), ..self }
    }
}

/// (4) High throughput on fast storage: rates, and the CPU for them, which a slow device hides in the rates.
fn throughput(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (id, rate, cpu, what) in [
        (crate::experiments::random::ID, Metric::OpsPerS, Metric::CpuPerOp, "random reads"),
        (crate::experiments::scan::ID, Metric::BytesPerS, Metric::CpuPerGb, "scan"),
    ] {
        let places = records.summary.places(id).into_iter().filter(|(_, target)| !target.contains("striped"));
        // A scan knows what comes: how deep its queue is, and how many of the threads that there are it takes, is the program's own choice.
        let scans = id == crate::experiments::scan::ID;
        let wanted = workload.threads;
        let count: fn(&Group<'_>) -> u32 = if scans { threads } else { in_flight };
        for (variant, target) in places {
            let groups = records.summary.at(id, variant, target);
            let maps = mapped(&groups);
            let maps = if scans { up_to(maps, wanted) } else { nearest(maps, wanted, count) };
            let Some(map) = best(maps, rate) else { continue };
            // Both sides with the same count, or it would be the counts that are compared.
            let alike = wanted.map(|_| count(map));
            let calls = explicit(&groups);
            let own = groups.iter().copied().filter(|group| group.family() == Family::Pool);
            let (fast, pool, cheap) = if scans {
                (up_to(calls.clone(), wanted), up_to(own.collect(), wanted), up_to(calls, wanted))
            } else {
                // What a request costs depends less on how many there are than how many are served does.
                (nearest(calls.clone(), alike, count), nearest(own.collect(), alike, count), near(calls, alike, count))
            };
            let per = if scans { "CPU a GB, scan" } else { "CPU a random read" };
            for (rule, others, metric, what) in
                [("throughput", fast, rate, what), (POOL, pool, rate, what), ("throughput", cheap, cpu, per)]
            {
                let Some(other) = best(others, metric) else { continue };
                let counts = [count(map), count(other)];
                let Some(found) = reason(rule, map, other, metric, what) else { continue };
                reasons.push(match scans {
                    true => found.beyond(wanted, counts, id.name(), map),
                    false => found.beside(wanted, counts, id.name(), map),
                });
            }
        }
    }
    reasons.extend(databases(records, workload));
    reasons
}

/// (4) for databases that run with a map and without: reads of data larger than memory.
fn databases(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let groups = records.summary.at(crate::experiments::engines::ID, "ycsb-c", crate::experiments::engines::LARGER);
    // At its best: read-ahead may have been varied.
    let of = |id: &str, wanted: Option<u32>| {
        let own = groups.iter().copied().filter(|group| group.spec.contender == id).collect();
        best(nearest(own, wanted, threads), Metric::OpsPerS)
    };
    let pairs = [("sqlite-mmap", "sqlite"), ("rocksdb-mmap", "rocksdb")].into_iter();
    let found = pairs.filter_map(|(map, calls)| {
        let map = of(map, workload.threads)?;
        let calls = of(calls, workload.threads.map(|_| threads(map)))?;
        let found = reason(CHOICE, map, calls, Metric::OpsPerS, "YCSB C")?;
        Some(found.beside(workload.threads, [threads(map), threads(calls)], "YCSB C", map))
    });
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
    let of_map = mapped(&ahead).into_iter().filter(|group| group.spec.contender != "mmap" && !group.waits_apart());
    if let (Some(map), Some(direct)) = (best(of_map, slow), best(explicit(&ahead), slow)) {
        let what = "p99.9 of an access with the best work-around";
        reasons.extend(reason("no stalls", map, direct, slow, what));
    }
    if !reasons.is_empty() {
        return reasons;
    }
    // Without those two: what random reads take.
    for (variant, target) in records.summary.places(crate::experiments::random::ID) {
        let groups = records.summary.at(crate::experiments::random::ID, variant, target);
        let calls: Vec<&Group<'_>> =
            explicit(&groups).into_iter().filter(|group| group.spec.params.depth <= 1).collect();
        // More threads wait longer for the same device, on either side.
        let has_pair = |map: &&Group<'_>| calls.iter().any(|call| threads(call) == threads(map));
        let maps = mapped(&groups).into_iter().filter(has_pair).collect();
        let Some(map) = best(nearest(maps, workload.threads, threads), Metric::OpsPerS) else { continue };
        let pair = calls.iter().copied().filter(|call| threads(call) == threads(map));
        let Some(direct) = best(pair, Metric::OpsPerS) else { continue };
        let found = reason("no stalls", map, direct, slow, "p99.9 of a random read");
        let beside = |reason: Reason| reason.beside(workload.threads, [threads(map); 2], "random", map);
        reasons.extend(found.map(beside));
    }
    reasons
}

/// (2) where the data fits: fitting is not staying, as a neighbour in the same memory reads through the page cache.
fn stalls_in_memory(records: &Records<'_>) -> Vec<Reason> {
    let (mut reasons, tail) = (Vec::new(), Metric::Latency("op", 999));
    for (variant, target) in records.summary.places(crate::experiments::stalls::ID) {
        if variant != crate::experiments::stalls::FITS {
            continue;
        }
        let groups = records.summary.at(crate::experiments::stalls::ID, variant, target);
        let own = groups.iter().copied().filter(|group| group.family() == Family::Pool);
        let (Some(map), Some(own)) = (best(mapped(&groups), tail), best(own, tail)) else { continue };
        let what = "p99.9 of an access to data that fits, beside a neighbour in the page cache";
        let held = |group: &Group<'_>| group.spread(tail).is_some_and(|spread| spread.median >= STALL_S);
        let found = reason("no stalls", map, own, tail, what);
        reasons.extend(found.map(|reason| match held(map) || held(own) {
            true => reason,
            false => {
                let text = format!("{}; neither is a stall.", reason.text.trim_end_matches('.'));
                Reason { side: Side::Neither, text, ..reason }
            }
        }));
    }
    reasons
}

/// A reason that is a proof or a count, not a comparison.
fn proof(rule: &'static str, side: Side, text: String, group: &Group<'_>) -> Reason {
    let (cells, at_home) = (vec![group.key.clone()], is_home(group));
    Reason { rule, side, text, cells, repeats: usize::MAX, at_home, far: None }
}

/// (1) Updates that are safe in transactions.
fn updates(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
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
            reasons.extend(found.map(|reason| reason.beside(workload.threads, [count; 2], "durable commits", map)));
        }
    }
    reasons
}

/// (3) Errors, and right answers.
fn errors(records: &Records<'_>) -> Vec<Reason> {
    let is_map = |group: &Group<'_>| group.family() == Family::Mapped;
    let mut reasons = Vec::new();
    for (name, words) in [
        ("wrong_answers", "answers that were wrong, and no error"),
        ("signals", "SIGBUS, which ends a process that does not catch it"),
        ("reached_disk", "stray writes that reached the disk"),
    ] {
        let met = |map: bool| {
            let fault = |group: &&Group<'_>| crate::experiments::errors::FAULTS.contains(&group.spec.variant.as_str());
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
fn in_memory(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // Nothing waits for a device: more threads than CPUs do what as many as CPUs do.
    let wanted = workload.threads.map(|count| count.min(records.file.run.machine.cpu_count.max(1)));
    let lookups: Vec<&Group<'_>> = records.of("translate").filter(|group| group.spec.variant == "lookup").collect();
    let set = |group: &Group<'_>| {
        group.spec.params.extra.get("working_set").and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let largest = lookups.iter().map(|group| set(group)).fold(0.0, f64::max);
    let side = |map: bool, wanted: Option<u32>| {
        let these = lookups
            .iter()
            .copied()
            .filter(|group| (set(group) - largest).abs() < 0.5 && (group.family() == Family::Mapped) == map);
        best(nearest(these.collect(), wanted, threads), Metric::OpsPerS)
    };
    if let Some(map) = side(true, wanted)
        && let Some(pool) = side(false, wanted.map(|_| threads(map)))
    {
        let found = reason("in memory", map, pool, Metric::OpsPerS, "lookups");
        reasons.extend(found.map(|reason| reason.beside(wanted, [threads(map), threads(pool)], "lookups", map)));
    }
    let cached: Vec<&Group<'_>> =
        records.of("claims").filter(|group| group.spec.variant == crate::experiments::claims::CACHED_READ).collect();
    let least = cached.iter().map(|group| group.spec.params.block_bytes).min().unwrap_or(0);
    let find = |contender: &str| {
        cached.iter().copied().find(|group| group.spec.contender == contender && group.spec.params.block_bytes == least)
    };
    if let (Some(map), Some(read)) = (find("mmap-in-place"), find("pread-buffered")) {
        let what = format!("cached data in units of {}, against read calls (no pool)", crate::format::bytes(least));
        let found = reason("in memory", map, read, Metric::BytesPerS, &what);
        reasons.extend(found.map(|reason| reason.beside(wanted, [threads(map), threads(read)], "cached data", map)));
    }
    reasons
}
