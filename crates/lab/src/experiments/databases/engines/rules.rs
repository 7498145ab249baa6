//! Rules on the records of `engines`: published claims, findings, and reasons for the verdict.

use super::{COMMIT, COMMIT_MANY, ID, IN_MEMORY, LARGER, ROCKSDB_MMAP, SCAN, SQLITE_MMAP};
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{Places, Records, extra, is, of_variant, times};
use crate::judge::reason::{CHOICE, Evidence, Reason, Rule, Workload, nearest, reason, threads};
use crate::judge::rule::{Among, PairFigure, Pairs};
use crate::judge::{Comparison, Finding, best, best_pair, compare, or_refused, shown};
use crate::methods;
use crate::summary::{Group, Metric, Summary, target_title};

/// The published claims about mmap that the records of `engines` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "sqlite-gains-from-mmap",
    hypothesis: "SQLite reads faster with mmap_size set.",
    source: "SQLite, documentation of memory-mapped I/O: up to twice for I/O-bound queries",
    experiment: ID,
    rule: "YCSB C operations per second with a large mmap_size over those with mmap_size 0, in memory and larger than memory, each: at least 1.1",
    needs: &[],
    test: Test::Pairs(Pairs {
        among: Among::Variants(&[ZIPFIAN]),
        each: |group| is(group, &SQLITE_MMAP),
        with: |map, other| {
            let (a, b) = (other.spec, map.spec);
            let setting = |name: &str| a.params.extra.get(name) == b.params.extra.get(name);
            let alike = a.params.threads == b.params.threads && setting("durability") && setting("memory");
            is(other, &methods::SQLITE) && alike && a.target.label == b.target.label
        },
        compared: PairFigure::Ratio(Metric::OpsPerS),
        bound: Bound::at_least(1.1),
        place: |group| target_title(&group.spec.target.label),
        words: |pair| {
            let class = extra(pair.of, "durability").unwrap_or("one class");
            let ahead = extra(pair.of, "read_ahead_kb").map_or(String::new(), |kib| format!(", read-ahead {kib} KiB"));
            format!("{}, commits {class}{ahead}: {}", pair.place, times(&pair.ratio))
        },
        missing: "`nofault lab engines` measures it",
        ..Pairs::NONE
    }),
}];

/// The variant of zipfian reads.
pub(super) const ZIPFIAN: &str = "ycsb-c";

/// Finds the bytes that the device reads for a zipfian get through LMDB with MDB_NORDAHEAD, over those without, on a device
/// whose read-ahead is off: a map that loses hot pages reads them again.
pub(super) fn forgets<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    let metric = Metric::PerOp("device_read_bytes");
    let groups = of_variant(records, ID, ZIPFIAN);
    let of = |method: &str, kib: Option<&str>| {
        groups.iter().copied().find(|group| {
            let spec = group.spec;
            spec.method == method && spec.target.label == LARGER && extra(group, "read_ahead_kb") == kib
        })
    };
    // LMDB is told MDB_NORDAHEAD, by which it tells its map MADV_RANDOM; with read-ahead its map has no hint.
    if let (Some(random), Some(plain)) = (of(methods::LMDB.id, None), of(methods::LMDB_READAHEAD.id, Some("0")))
        && let Some(ratio) = places.ratio(LARGER, (random, plain), metric, &[])
    {
        let text =
            format!("YCSB C through {} over {} without read-ahead: {}", random.title(), plain.title(), times(&ratio));
        places.add(Bound::at_least(1.5).decide(&ratio), text, &[random, plain]);
    }
    Contribution { experiment: ID, what: "reads through LMDB with and without MDB_NORDAHEAD", places }
}

/// The rules of the verdict for which `engines` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Throughput, databases)];

/// Finds reasons for the verdict in databases that run with a map and without: rates of reads on data larger than memory.
fn databases(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let groups = records.summary.at(ID, "ycsb-c", LARGER);
    // All groups of each method, because read-ahead may have been varied.
    let of = |id: &str| {
        let own = groups.iter().copied().filter(|group| group.spec.method == id).collect();
        nearest(own, workload.threads, threads)
    };
    let pairs = [(SQLITE_MMAP.id, methods::SQLITE.id), (ROCKSDB_MMAP.id, methods::ROCKSDB.id)].into_iter();
    let found = pairs.filter_map(|(map, calls)| {
        let (map, calls) = best_pair(&of(map), &of(calls), Metric::OpsPerS, &[])?;
        let found = reason(CHOICE, map, calls, Metric::OpsPerS, "YCSB C")?;
        Some(found.at_thread_counts(workload.threads, [threads(map), threads(calls)], "YCSB C", map))
    });
    found.collect()
}

// Rules for `engines`: the effect of a map in a store that works with and without one, and the engine's rank among
// whole databases.

/// Pairs of methods of one store that are compared: the changed method, the plain one, and a name for the change.
const PAIRS: [(&str, &str, &str); 4] = [
    (SQLITE_MMAP.id, methods::SQLITE.id, "a map instead of read calls"),
    (ROCKSDB_MMAP.id, methods::ROCKSDB.id, "maps instead of read calls"),
    (methods::ROCKSDB_DIRECT.id, methods::ROCKSDB.id, "direct reads and its own larger cache"),
    (methods::LMDB_READAHEAD.id, methods::LMDB.id, "read-ahead on its map"),
];
/// The variants that findings report, as most readers ask for them.
const WORKS: [&str; 5] = ["ycsb-c", "ycsb-a", SCAN, COMMIT, COMMIT_MANY];

/// Adds the findings that the records of `engines` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for target in [LARGER, IN_MEMORY] {
        for work in WORKS {
            let groups = summary.at(ID, work, target);
            with_and_without(&groups, work, target, all);
            among_others(&groups, work, target, all);
        }
    }
}

fn place(target: &str) -> &'static str {
    if target == IN_MEMORY { "with all data in memory" } else { "with data larger than memory" }
}

fn with_and_without(groups: &[&Group<'_>], work: &str, target: &str, all: &mut Vec<Finding>) {
    // All groups of each method, because read-ahead may have been varied.
    let of = |id: &str| groups.iter().copied().filter(|group| group.spec.method == id).collect::<Vec<_>>();
    for (with, without, what) in PAIRS {
        let Some((a, b)) = best_pair(&of(with), &of(without), Metric::OpsPerS, &[]) else { continue };
        let Some(comparison) = or_refused(compare(a, b, Metric::OpsPerS), all) else { continue };
        let key = with == SQLITE_MMAP && work == "ycsb-c" && target == LARGER;
        let (x, y) = (shown(comparison.a, Unit::PerSecond), shown(comparison.b, Unit::PerSecond));
        all.push(Finding {
            rule: "store-with-and-without-map",
            rule_text: "median rate of a store run in one way over the same store's run in the other, same work, same memory",
            text: format!(
                "{}{}: {}{what} changes {} from {y} to {x}{}, {}: {}.",
                place(target)[..1].to_uppercase(),
                &place(target)[1..],
                comparison.caveat(),
                b.title(),
                read_ahead(a),
                super::title(work),
                comparison.show(),
            ),
            key_figure: key.then(|| comparison.key_figure(&format!("{x} against {y}{}", read_ahead(a)))),
            ..comparison.finding()
        });
    }
}

/// Returns the device's read-ahead in words; empty where the trial did not set one.
fn read_ahead(group: &Group<'_>) -> String {
    let kib = group.spec.params.extra.get("read_ahead_kb");
    kib.map_or(String::new(), |kib| format!(" with read-ahead of {kib} KiB"))
}

fn among_others(groups: &[&Group<'_>], work: &str, target: &str, all: &mut Vec<Finding>) {
    let Some(own) = groups.iter().copied().find(|group| group.spec.method == methods::NOFAULT) else { return };
    let others = groups.iter().copied().filter(|group| group.spec.method != methods::NOFAULT);
    let Some(other) = best(others, Metric::OpsPerS) else { return };
    let Some(comparison) = or_refused(compare(own, other, Metric::OpsPerS), all) else { return };
    let cpu = compare(own, other, Metric::CpuPerOp).map_or(String::new(), |cpu: Comparison<'_>| {
        format!(", at {} of CPU against {}", shown(cpu.a, Unit::Seconds), shown(cpu.b, Unit::Seconds))
    });
    let (x, y) = (shown(comparison.a, Unit::PerSecond), shown(comparison.b, Unit::PerSecond));
    all.push(Finding {
        rule: "engine-among-databases",
        rule_text: "median rate of nofault over the fastest other database's in this build, same work, same memory, same class of durability",
        text: format!(
            "{}{}: {}nofault does {x}, {}, the fastest other database ({}) {y}: {}{cpu}.",
            place(target)[..1].to_uppercase(),
            &place(target)[1..],
            comparison.caveat(),
            super::title(work),
            other.label(),
            comparison.show(),
        ),
        ..comparison.finding()
    });
}
