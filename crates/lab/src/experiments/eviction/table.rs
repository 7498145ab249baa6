//! The terminal's table of `eviction`.

use super::{ID, is_scan};
use crate::format::Unit;
use crate::show::columns::{Column, measured};
use crate::summary::{Group, Metric, Summary};

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
