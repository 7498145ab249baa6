//! What the report shows of `eviction` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::{ID, is_scan};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::methods;
use crate::record::TargetKind;
use crate::show::columns::{Column, measured};
use crate::show::figures::{Figure, costs, rates, time_series};
use crate::show::literature::{LiteratureTable, PAPER, row};
use crate::summary::{Group, Metric, Summary};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "Which of the three bottlenecks holds up the eviction of mapped pages?",
    main_figure: "what holds mapped reads up under a cgroup limit, file",
    procedure: "`faults` and `shootdowns` each measure one mechanism, over a file in memory: the CPU time of a fault of a cached page by threads, in one \
     map for all, in a map for each, and as a read call; and the time to fault a page in and take it out of the map again, alone and while \
     other CPUs run threads of the same process. The others start with memory full: a cgroup makes the faulting threads evict, a \
     ballast makes kswapd do it. `random` reads 4 KiB blocks, `scan` reads front to back; through a map, through the page cache without \
     one (evicted, but never shot down), and direct (never evicted). A control pins all threads to one CPU. Which bottleneck binds is an \
     estimate from these costs; its rule stands with it.",
    change: &[
        "More CPUs: each shootdown then interrupts more of them, and more threads meet in one page table.",
        "Several NUMA nodes: each has its own kswapd.",
        "A faster device: the cost of reclaim is hidden while threads wait for reads.",
        "Large folios: where read-ahead fills the cache with them, one eviction and one interrupt serve many pages.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[
    LiteratureTable {
        source: &PAPER,
        variant: "random",
        devices: 1,
        title: "TLB shootdowns with memory full: random 4 KiB reads, 100 threads",
        metric: Metric::ShootdownsPerS,
        unit: Unit::PerSecond,
        columns: &["shootdowns per second"],
        rows: &[
            row("mmap RANDOM", &methods::MMAP_RANDOM, &[1.19e6], "401 K reads/s: three for each read"),
            row("mmap NORMAL", &methods::MMAP_NORMAL, &[1.1e6], "22 K reads/s"),
            row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[2.0e6], "23 K reads/s"),
        ],
        remarks: &[
            "The paper names three bottlenecks and holds that shootdowns have the largest effect; it counts them, and gives no price for one.",
            "With 128 hardware threads each flush may interrupt many CPUs; the counter adds up the interrupted CPUs.",
        ],
    },
    LiteratureTable {
        source: &PAPER,
        variant: "scan",
        devices: 1,
        title: "TLB shootdowns with memory full: scan, 20 threads",
        metric: Metric::ShootdownsPerS,
        unit: Unit::PerSecond,
        columns: &["shootdowns per second"],
        rows: &[row("mmap NORMAL and SEQUENTIAL", &methods::MMAP_NORMAL, &[0.42e6], "0.41 to 0.44 M/s at 2.5 GB/s")],
        remarks: &[],
    },
];

// Figures of `eviction`: the cost of each mechanism, and each way to read under each way of reclaim.

/// Draws the figures of one variant: for single mechanisms the time of an operation, otherwise rate, system CPU time
/// and rate over time.
pub(super) fn figures(groups: &[&Group<'_>], variant: &str, target: &str, place: &str) -> Vec<Figure> {
    if TargetKind::of(target) == TargetKind::Memory {
        let time = rates(groups, place, Metric::TimePerOp, "time of one operation");
        return time.into_iter().chain(costs(groups, place, Metric::CpuPerOp, "CPU time per page")).collect();
    }
    let (rate, axis) = match is_scan(variant) {
        true => (Metric::BytesPerS, "bytes per second"),
        false => (Metric::OpsPerS, "reads per second"),
    };
    let figures = [
        rates(groups, place, rate, axis),
        costs(groups, place, Metric::SystemCpuPerGb, "system CPU time per GB"),
        time_series(groups, place, rate, axis),
    ];
    figures.into_iter().flatten().collect()
}

/// Builds the columns: rate, CPU time and reclaim of each method, with a row for each setting.
pub(super) fn columns(summary: &Summary<'_>, variants: &[&str], target: &str, title: &str) -> Vec<Column> {
    let at = |variant: &&str| {
        let mut groups = summary.at(ID, variant, target);
        groups.sort_by_key(|group| group.family());
        groups.into_iter().map(|group| (variant.replace('-', " by "), group)).collect::<Vec<_>>()
    };
    let rows: Vec<(String, &Group<'_>)> = variants.iter().flat_map(at).collect();
    let each = |show: &dyn Fn(&Group<'_>) -> String| rows.iter().map(|(_, group)| show(group)).collect::<Vec<_>>();
    let metric = |metric: Metric| {
        each(&|group| group.spread(metric).map_or(String::new(), |spread| metric.unit().show(spread.median)))
    };
    let named = rows.iter().map(|(variant, group)| format!("{variant}: {}", group.label()));
    let scans = rows.iter().map(|(variant, _)| is_scan(variant));
    let rates = scans
        .zip(&rows)
        .map(|(scan, (_, group))| measured(group, if scan { Metric::BytesPerS } else { Metric::OpsPerS }));
    vec![
        Column::new(title, named.collect()),
        Column::new("rate", rates.collect()),
        Column::new(
            "CPU/page",
            each(&|group| {
                let each_page = group.spread(Metric::CpuPerGb).map(|spread| spread.median * 4096.0 / 1e9);
                each_page.map_or(String::new(), |seconds| Unit::Seconds.show(seconds))
            }),
        ),
        Column::new("TLB IPIs", metric(Metric::ShootdownsPerS)),
        Column::new("kswapd", metric(Metric::KswapdShare)),
        Column::new("system/GB", metric(Metric::SystemCpuPerGb)),
        Column::new("evicted", metric(Metric::EvictedPerS)),
        Column::new("waiting", metric(Metric::MemoryPressure)),
    ]
}
