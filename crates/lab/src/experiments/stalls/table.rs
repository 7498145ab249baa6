//! The terminal's table of `stalls`.

use super::findings::price;
use crate::show::columns::{Column, measured};
use crate::summary::{Group, Metric};

/// Builds the columns: how long an access holds the thread, and the resources that each work-around takes.
pub(super) fn columns(groups: &[&Group<'_>], title: &str) -> Vec<Column> {
    let each = |show: &dyn Fn(&Group<'_>) -> String| groups.iter().map(|group| show(group)).collect::<Vec<_>>();
    let op = |per_mille| {
        let metric = Metric::Latency("op", per_mille);
        each(&|group| group.spread(metric).map_or(String::new(), |spread| metric.unit().show(spread.median)))
    };
    vec![
        Column::new(title, each(&|group| format!("{}: {}", group.spec.variant, group.label()))),
        Column::new("p99.9", each(&|group| measured(group, Metric::Latency("op", 999)))),
        Column::new("longest", op(1000)),
        Column::new("accesses/s", each(&|group| measured(group, Metric::OpsPerS))),
        Column::new("p50", op(500)),
        Column::new("what it takes", each(&price)),
    ]
}
