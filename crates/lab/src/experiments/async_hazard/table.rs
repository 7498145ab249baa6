//! The terminal's table of `async`.

use super::ASYNC_READ;
use crate::record::CacheState;
use crate::show::columns::{Column, measured, ratio};
use crate::summary::{Group, Metric, is_plain};

/// Builds the columns: cold and warm side by side, each method compared with the tasks that await reads.
pub(super) fn columns(groups: &[&Group<'_>], title: &str) -> Vec<Column> {
    let metric = Metric::Seconds;
    let mut labels: Vec<String> = Vec::new();
    for group in groups.iter().filter(|group| is_plain(&group.spec.params)) {
        if !labels.contains(&group.label()) {
            labels.push(group.label());
        }
    }
    let mut columns = vec![Column::new(title, labels.clone())];
    let at = |label: &str, cache| groups.iter().copied().find(|g| g.label() == label && g.spec.cache == cache);
    for cache in [CacheState::Cold, CacheState::Warm] {
        let reference = groups.iter().copied().find(|g| g.spec.method == ASYNC_READ && g.spec.cache == cache);
        let each = |show: &dyn Fn(&Group<'_>) -> String| {
            labels.iter().map(|label| at(label, cache).map_or(String::new(), show)).collect::<Vec<_>>()
        };
        let name = cache.to_string();
        columns.push(Column::new(&name, each(&|group| measured(group, metric))));
        columns.push(Column::new("ratio", each(&|group| ratio(group, reference, metric))));
    }
    for (header, per_mille) in [("timer p99", 990), ("worst", 1000)] {
        let metric = Metric::Latency("ticker", per_mille);
        let late = |label: &String| {
            let spread = at(label, CacheState::Cold)?.spread(metric)?;
            Some(metric.unit().show(spread.median))
        };
        columns.push(Column::new(header, labels.iter().map(|label| late(label).unwrap_or_default()).collect()));
    }
    columns
}
