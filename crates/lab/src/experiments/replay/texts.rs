//! What the report shows of `replay` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::{FAST, ID, metric_of};
use crate::experiment::Texts;
use crate::show::columns::{Column, Sheet, measured, title};
use crate::show::figures::{Figure, costs, latencies, rates};
use crate::summary::{Group, Metric, Summary};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "Would the recorded program gain from a map?",
    main_figure: "p99 (or rate) of the recorded accesses, mmap ÷ O_DIRECT, file",
    procedure: "The accesses of the trace on the lab's own data of the recorded size, by as many threads as the program had; a ring has \
     as many requests in flight on one thread. Each trial begins with a cold cache. Recorded: each access is due at its recorded time, and its latency \
     counts from then on. Fast: a thread makes its next access when the last has ended, from the start again at the end. A map loads the first word of \
     each page and stores the bytes, under a latch of the page, and a sync is msync; calls move the recorded bytes, and a sync is fdatasync; O_DIRECT \
     and the ring move whole blocks of 4 KiB around them. Not equal: without a sync in the trace, writes of a map and of buffered calls are still in \
     memory when they have ended, writes by O_DIRECT are at the device; and O_DIRECT has no cache, where a program would have \
     its own. Every trial makes the same accesses: a cache below this machine serves the later ones faster, and interleaved repeats spread that over \
     all methods.",
    change: &[
        "The recording: under strace each call takes longer, so the recorded pace is slower than the program's own.",
        "A recording of page faults (record --faults) has the misses of the program's map alone, each as a read: accesses to pages that were mapped are not in it.",
        "Memory (--memory): with all data in memory, the page cache answers.",
        "A program that is rebuilt around a ring would have more requests in flight than it had threads: `random` measures its reads so, as a curve.",
        "A buffer pool: the methods past the page cache read a block again each time; `random` measures the reads through the engine's pool.",
    ],
};

// Figures of `replay`: the latency from the time when each access was due, or the rate, and the latencies of each kind of access; and the
// table of the terminal.

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
