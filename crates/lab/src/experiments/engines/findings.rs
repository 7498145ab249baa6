//! Rules for `engines`: the effect of a map in a store that works with and without one, and the engine's rank among
//! whole databases.

use super::{COMMIT, COMMIT_MANY, ID, IN_MEMORY, LARGER, ROCKSDB_MMAP, SCAN, SQLITE_MMAP};
use crate::format::Unit;
use crate::judge::{Comparison, Finding, best, best_pair, compare, or_refused, shown};
use crate::methods;
use crate::summary::{Group, Metric, Summary};

/// Pairs of methods of one store that are compared: the changed method, the plain one, and a name for the change.
const PAIRS: [(&str, &str, &str); 4] = [
    (SQLITE_MMAP.id, methods::SQLITE.id, "a map instead of read calls"),
    (ROCKSDB_MMAP.id, methods::ROCKSDB.id, "maps instead of read calls"),
    (methods::ROCKSDB_DIRECT.id, methods::ROCKSDB.id, "direct reads and its own larger cache"),
    (methods::LMDB_READAHEAD.id, methods::LMDB.id, "read-ahead on its map"),
];
/// The variants that findings report, as most readers ask for them.
const WORKS: [&str; 5] = ["ycsb-c", "ycsb-a", SCAN, COMMIT, COMMIT_MANY];
/// Id of the engine's method.

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
