//! Chooses the methods in a chart of lines: each at its best setting, and no more than can be read.

use std::collections::BTreeSet;

use crate::judge;
use crate::summary::{Group, Metric};

/// Most lines that a chart can have and still be read.
const LINES_MAX: usize = 7;

/// Selects one group of each method for a chart of lines: the one with the best figure, in the order measured.
pub(crate) fn one_each<'g, 'a>(groups: &'g [&'g Group<'a>], metric: Metric) -> Vec<&'g Group<'a>> {
    let mut names: Vec<&str> = groups.iter().map(|group| group.spec.method.as_str()).collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    let best_of = |name: &str| {
        let its = groups.iter().copied().filter(|group| group.spec.method == name);
        judge::best(its, metric)
    };
    names.into_iter().filter_map(best_of).collect()
}

/// Selects as many groups as a chart can show: the best of each family first, then the others in their order. Also
/// returns a sentence about the groups that are left out, empty where there are none.
pub(crate) fn few<'g, 'a>(groups: Vec<&'g Group<'a>>, metric: Metric) -> (Vec<&'g Group<'a>>, String) {
    let is_best = |at: &Group<'_>| {
        let family = groups.iter().copied().filter(|other| other.family() == at.family());
        judge::best(family, metric).is_some_and(|best| best.key == at.key)
    };
    let best: Vec<bool> = groups.iter().map(|group| is_best(group)).collect();
    let mut room = LINES_MAX.saturating_sub(best.iter().filter(|best| **best).count());
    let (mut shown, mut left) = (Vec::new(), Vec::new());
    for (group, best) in groups.iter().copied().zip(best) {
        if best || room > 0 {
            room -= usize::from(!best);
            shown.push(group);
        } else {
            left.push(group.title());
        }
    }
    let left = match left.as_slice() {
        [] => String::new(),
        left => {
            format!(" Not drawn, to keep it readable: {} (their figures are in the other tables).", left.join("; "))
        }
    };
    (shown, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Summary;

    #[test]
    fn the_best_of_each_way_to_read_is_drawn_before_any_is_left_out() {
        let rates = [
            ("mmap-random", 5e4),
            ("mmap-normal", 2e3),
            ("mmap-sequential", 1e3),
            ("pread-buffered", 2e4),
            ("pread-buffered-random", 4e4),
            ("pread-direct", 6e4),
            ("uring-direct", 9e4),
            ("pool", 7e4),
            ("pool-tasks", 8e4),
        ];
        let file = crate::verdict::tests::file(crate::experiments::random::ID, "", &rates);
        let summary = Summary::of(&file);
        let groups: Vec<&Group<'_>> = summary.groups.iter().collect();
        let (shown, left) = few(one_each(&groups, Metric::OpsPerS), Metric::OpsPerS);
        let shown: Vec<&str> = shown.iter().map(|group| group.spec.method.as_str()).collect();
        let expected = [
            "mmap-random",
            "mmap-normal",
            "mmap-sequential",
            "pread-buffered-random",
            "pread-direct",
            "uring-direct",
            "pool-tasks",
        ];
        assert_eq!(shown, expected);
        assert!(left.contains("pread buffered; nofault pool ("), "{left}");
        let (all, none) = few(groups[..3].to_vec(), Metric::OpsPerS);
        assert_eq!((all.len(), none.as_str()), (3, ""));
    }
}
