//! Which contenders a chart of lines shows: each at its best setting, and no more of them than can be read.

use crate::summary::{Group, Metric, contender_title};

/// Most lines that a chart can carry and still be read.
const LINES_MAX: usize = 7;

/// The groups that stand for their contenders in a chart of lines: the best of each, in the order measured.
pub(super) fn one_each<'g, 'a>(groups: &'g [&'g Group<'a>], metric: Metric) -> Vec<&'g Group<'a>> {
    let mut chosen: Vec<&Group<'_>> = Vec::new();
    for group in groups {
        let Some(spread) = group.spread(metric) else { continue };
        match chosen.iter_mut().find(|other| other.spec.contender == group.spec.contender) {
            Some(other) => {
                let best = other.spread(metric).map_or(0.0, |spread| spread.median);
                if (spread.median > best) == metric.more_is_better() {
                    *other = group;
                }
            }
            None => chosen.push(group),
        }
    }
    chosen
}

/// As many as a chart can carry: the best of each way to read first, then the others, in the order given; and a sentence about
/// those that are left out, empty where there are none.
pub(super) fn few<'g, 'a>(groups: Vec<&'g Group<'a>>, metric: Metric) -> (Vec<&'g Group<'a>>, String) {
    let median = |group: &Group<'_>| group.spread(metric).map_or(f64::NAN, |spread| spread.median);
    let beats = |one: &Group<'_>, other: &Group<'_>| (median(one) > median(other)) == metric.more_is_better();
    let is_best = |group: &&Group<'a>| {
        let same = |other: &&Group<'a>| other.family() == group.family() && other.key != group.key;
        groups.iter().filter(|other| same(other)).all(|other| beats(group, other))
    };
    let best: Vec<bool> = groups.iter().map(is_best).collect();
    let mut room = LINES_MAX.saturating_sub(best.iter().filter(|best| **best).count());
    let (mut shown, mut left) = (Vec::new(), Vec::new());
    for (group, best) in groups.iter().copied().zip(best) {
        if best || room > 0 {
            room -= usize::from(!best);
            shown.push(group);
        } else {
            left.push(contender_title(&group.spec.contender));
        }
    }
    let left = match left.as_slice() {
        [] => String::new(),
        left => format!(" Not drawn, to keep it readable: {} (their figures are in the other tables).", left.join(", ")),
    };
    (shown, left)
}
