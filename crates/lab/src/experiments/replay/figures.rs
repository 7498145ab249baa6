//! Figures of `replay`: the latency from the time when each access was due, or the rate, and the latencies of each kind of access; and the
//! table of the terminal.

use super::{FAST, ID, metric_of};
use crate::show::columns::{Column, Sheet, measured, title};
use crate::show::figures::{Figure, costs, latencies, rates};
use crate::summary::{Group, Metric, Summary};

/// Draws the figures of a variant.
pub(super) fn figures(groups: &[&Group<'_>], place: &str, variant: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    if variant == FAST {
        figures.extend(rates(groups, place, Metric::OpsPerS, "reads and writes per second"));
    } else {
        figures.extend(latencies(groups, place, "open_loop", "access, from when it was due"));
    }
    for (name, what) in [("read", "read"), ("write", "write"), ("sync", "sync")] {
        figures.extend(latencies(groups, place, name, what));
    }
    figures.extend(costs(groups, place, Metric::CpuPerOp, "CPU time per read or write"));
    figures
}

/// Makes the table of a variant: a row for each method. A method that did not keep the recorded pace has no latency from the due times.
pub(super) fn sheet(summary: &Summary<'_>, target: &str, variant: &str) -> Sheet {
    let mut groups = summary.at(ID, variant, target);
    groups.sort_by_key(|group| group.family());
    let column = |head: &str, metric: Metric| {
        let shown =
            |group: &&Group<'_>| group.spread(metric).map_or(String::new(), |spread| metric.unit().show(spread.median));
        Column::new(head, groups.iter().map(shown).collect())
    };
    let names = groups.iter().map(|group| group.label()).collect();
    let main = if variant == FAST { "accesses/s" } else { "p99 from due" };
    let p99 = |name: &'static str| Metric::Latency(name, 990);
    Sheet::new(vec![
        Column::new(&title(ID, target), names),
        Column::new(main, groups.iter().map(|group| measured(group, metric_of(variant))).collect()),
        column("read p99", p99("read")),
        column("write p99", p99("write")),
        column("sync p99", p99("sync")),
        column("CPU/access", Metric::CpuPerOp),
    ])
}
