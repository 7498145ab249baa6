//! Rules on the records of `folios`: published claims, findings, and reasons for the verdict.

use super::{ID, MMAP_AT_RANDOM, MMAP_IN_ORDER, folio_bytes, sizes};
use crate::format::{Unit, bytes, digits};
use crate::judge::{Finding, compare, or_refused, shown};
use crate::methods::Method;
use crate::summary::{Group, Metric, Summary};

/// The metric that counts page faults for each touched page.
const FAULTS: Metric = Metric::PerOp("minor_faults");

/// Adds the findings that the records of `folios` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for (variant, target) in summary.places(ID) {
        let groups = summary.at(ID, variant, target);
        for (method, order) in [(&MMAP_IN_ORDER, "in order"), (&MMAP_AT_RANDOM, "in random order")] {
            large_against_small(&groups, method, order, all);
        }
    }
}

fn at<'g, 'a>(groups: &[&'g Group<'a>], method: &Method, size: u64) -> Option<&'g Group<'a>> {
    groups.iter().copied().find(|group| group.spec.method == *method && folio_bytes(group) == Some(size))
}

/// Compares the largest folios that the kernel provided with the smallest.
fn large_against_small(groups: &[&Group<'_>], method: &Method, order: &str, all: &mut Vec<Finding>) {
    let own: Vec<&Group<'_>> = groups.iter().copied().filter(|group| !group.good.is_empty()).collect();
    let [smallest, .., largest] = sizes(&own)[..] else { return };
    let (Some(small), Some(large)) = (at(&own, method, smallest), at(&own, method, largest)) else { return };
    let Some(comparison) = or_refused(compare(large, small, Metric::TimePerOp), all) else { return };
    let faults =
        |group: &Group<'_>| group.spread(FAULTS).map_or("–".into(), |spread| digits(1.0 / spread.median.max(1e-9)));
    let (a, b) = (shown(comparison.a, Unit::Seconds), shown(comparison.b, Unit::Seconds));
    all.push(Finding {
        rule: "fault-by-folio-size",
        rule_text: "time to touch a page of a cached file through a new map, all of it in folios of the largest measured size, over the same \
            in the smallest; the sizes are the kernel's",
        text: format!(
            "{}touched {order} through a new map, a cached page takes {a} in folios of {} (a fault for {} pages) and {b} in folios of {} (a fault for \
             {} pages): {}.",
            comparison.caveat(),
            bytes(largest),
            faults(large),
            bytes(smallest),
            faults(small),
            comparison.show(),
        ),
        key_figure: (*method == MMAP_IN_ORDER).then(|| {
            comparison.key_figure(&format!("{a} against {b}, in folios of {} and {}", bytes(largest), bytes(smallest)))
        }),
        ..comparison.finding()
    });
}
