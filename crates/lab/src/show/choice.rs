//! Chooses the methods in a chart of lines: each at its best setting, and no more than can be read.

use std::collections::BTreeSet;

use crate::judge;
use crate::summary::{Family, Group, Metric};

/// Most lines that a chart can have and be read at a glance.
const LINES_MAX: usize = 4;

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

/// The families in the order in which the best method of each is drawn: the map and its strongest alternatives first.
const FIRST: [Family; 5] = [Family::Mapped, Family::Ring, Family::Direct, Family::Pool, Family::Buffered];

/// Selects the groups that [`few`] names, each method at its best setting.
pub(crate) fn most_telling<'g, 'a>(groups: &'g [&'g Group<'a>], metric: Metric) -> Vec<&'g Group<'a>> {
    let all = one_each(groups, metric);
    let shown = few(&all, metric);
    all.into_iter().filter(|group| shown.contains(&group.label())).collect()
}

/// Selects the labels of as many groups as a chart can show: the best of each family first, then the others in their
/// order.
pub(crate) fn few(groups: &[&Group<'_>], metric: Metric) -> Vec<String> {
    let best = FIRST
        .into_iter()
        .filter_map(|family| judge::best(groups.iter().copied().filter(|group| group.family() == family), metric));
    let mut shown: Vec<&str> = Vec::new();
    for group in best.chain(groups.iter().copied()) {
        if shown.len() < LINES_MAX && !shown.contains(&group.key.as_str()) {
            shown.push(&group.key);
        }
    }
    groups.iter().filter(|group| shown.contains(&group.key.as_str())).map(|group| group.label()).collect()
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
        let file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates);
        let summary = Summary::of(&file);
        let groups: Vec<&Group<'_>> = summary.groups.iter().collect();
        let all = one_each(&groups, Metric::OpsPerS);
        let titles = |labels: Vec<String>| {
            let id = |label: &String| all.iter().find(|group| group.label() == *label).map(|group| &*group.spec.method);
            labels.iter().filter_map(id).map(str::to_owned).collect::<Vec<_>>()
        };
        let shown = titles(few(&all, Metric::OpsPerS));
        assert_eq!(shown, ["mmap-random", "pread-direct", "uring-direct", "pool-tasks"]);
        // Room that no family takes goes to the others, in their order.
        assert_eq!(titles(few(&all[..3], Metric::OpsPerS)).len(), 3);
    }
}
