//! Rules of `crossover`: the miss rate above which the map loses, against each side and against the best of them; and the
//! reads that a hot set costs under each hint.

use super::cells::{Border, Cell, GridPoint, Separation, Side, cells, separate, targets};
use super::{HOT_SET, ID};
use crate::format::{Unit, digits};
use crate::judge::curve::Curve;
use crate::judge::{Finding, KeyFigure, Kind, compare, keys, on, or_refused};
use crate::methods;
use crate::record::TargetKind;
use crate::summary::{Group, Metric, Spread, Summary};

/// Adds the findings that the records of `crossover` support.
pub(super) fn find(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for target in targets(summary) {
        let cells = cells(summary, target);
        for side in Side::ALL {
            all.extend(border(&cells, side, target));
        }
    }
    for (_, target) in summary.places(ID).into_iter().filter(|(variant, _)| *variant == HOT_SET) {
        hot_set(&summary.at(ID, HOT_SET, target), target, all);
    }
}

/// The rule behind the sentence on the border.
const RULE: &str = "at each size of the data and order of reads the rate of the best valid map over the rate of the other side's fastest method, as the \
    geometric mean over all numbers of requests in flight, under equal conditions; decided where chance alone would give such a ratio in less than one of twenty. The border is the miss rate \
    (major faults for one access through the map) that leaves the least sum of logarithms of ratios on its wrong side; there is none where more than a quarter of \
    the points lie on the wrong side";

/// The points of the grid against one side: those that the repeats decide, and the miss rates of those that they do not.
#[derive(Debug, Default)]
struct Points {
    decided: Vec<GridPoint>,
    even: Vec<f64>,
}

impl Points {
    /// Compares whole curves: at each size of the data and order of reads, over all numbers of requests in flight.
    fn of(cells: &[Cell<'_, '_>], side: Side) -> Self {
        let mut points = Self::default();
        for cells in cells.chunk_by(|a, b| a.is_beside(b)) {
            let map = Curve::of(cells.iter().map(|cell| cell.map), Metric::OpsPerS);
            let other = Curve::of(cells.iter().filter_map(|cell| cell.best_of(side)), Metric::OpsPerS);
            let Ok(found) = map.over(&other, Metric::OpsPerS) else { continue };
            let Some(miss_rate) = Spread::of(cells.iter().filter_map(Cell::miss_rate)) else { continue };
            match found.kind() {
                Kind::Difference => {
                    points.decided.push(GridPoint { miss_rate: miss_rate.median, log_ratio: found.ratio.median.ln() });
                }
                _ => points.even.push(miss_rate.median),
            }
        }
        points.even.sort_by(f64::total_cmp);
        points
    }

    /// Whether the border is open: whether points that are not decided lie beyond all decided ones, where the other side may
    /// win or lose.
    fn leave_open(&self, found: &Separation) -> bool {
        match found.border {
            Border::Wins(high) => self.even.last().is_some_and(|last| *last > high),
            Border::Loses(low) => self.even.first().is_some_and(|first| *first < low),
            Border::Between(..) | Border::None => false,
        }
    }

    /// The points that are not decided, as the end of a sentence.
    fn undecided(&self) -> String {
        match self.even.as_slice() {
            [] => String::new(),
            [one] => format!("; at a miss rate of {} the repeats do not tell the two apart", percent(*one)),
            [first, .., last] => {
                format!(
                    "; at miss rates of {} to {} the repeats do not tell the two apart",
                    percent(*first),
                    percent(*last)
                )
            }
        }
    }
}

/// Makes the sentence on the border against one side; `None` where no point was measured against it.
fn border(cells: &[Cell<'_, '_>], side: Side, target: &str) -> Option<Finding> {
    let points = Points::of(cells, side);
    let undecided = points.undecided();
    let separation = separate(points.decided.clone());
    let open = separation.is_none_or(|found| points.leave_open(&found));
    let kind = if open { Kind::Inconclusive } else { Kind::Difference };
    if separation.is_none() && undecided.is_empty() {
        return None;
    }
    let used: Vec<&Group<'_>> = cells.iter().flat_map(|cell| [Some(cell.map), cell.best_of(side)]).flatten().collect();
    let is_key = side == Side::Best && TargetKind::of(target) == TargetKind::File;
    let key_figure = is_key.then(|| KeyFigure {
        value: separation.map_or("open".into(), |found| value(&found, open)),
        detail: separation.map_or(String::new(), |found| format!("{} ({})", seen(&found), follow(&found))),
    });
    Some(Finding {
        rule: "crossover",
        rule_text: RULE,
        experiment: Some(ID),
        kind,
        text: format!("{}{}{undecided}.", on(target), sentence(separation, side, open)),
        p: None,
        trials: keys(&used),
        key_figure,
    })
}

/// The sentence of the border against the best other side, for the terminal; `None` where nothing was measured.
pub(super) fn headline(summary: &Summary<'_>, target: &str) -> Option<String> {
    border(&cells(summary, target), Side::Best, target).map(|finding| finding.text)
}

fn value(found: &Separation, open: bool) -> String {
    match found.border {
        Border::Wins(high) if open => format!("> {}", percent(high)),
        Border::Loses(low) if open => format!("< {}", percent(low)),
        Border::Wins(_) => "none".into(),
        Border::Loses(_) => "any".into(),
        Border::Between(low, high) => percent(middle(low, high)),
        Border::None => "no border".into(),
    }
}

/// Miss rates below this one are shown as none: a few pages came too late to be found.
const NO_MISSES: f64 = 1e-3;

/// The miss rate between two: their geometric mean, or the mean where the lower one is none.
fn middle(low: f64, high: f64) -> f64 {
    if low < NO_MISSES { f64::midpoint(low, high) } else { (low * high).sqrt() }
}

pub(super) fn percent(rate: f64) -> String {
    // A few reads of others on the device, and of pages that came too late, are no misses.
    if rate < NO_MISSES { "0 %".into() } else { format!("{} %", digits(rate * 100.0)) }
}

fn follow(found: &Separation) -> String {
    format!("{} of {} decided points follow", found.follow, found.count)
}

fn sentence(separation: Option<Separation>, side: Side, open: bool) -> String {
    let other = side.words();
    let Some(found) = separation else { return format!("nothing decides between mmap and {other}") };
    let follow = follow(&found);
    let decided = if open { " that the repeats decide" } else { "" };
    let above = match found.border {
        Border::Wins(_) => format!("at no miss rate{decided}"),
        Border::Loses(_) => format!("at every miss rate{decided}"),
        Border::Between(low, high) => format!("above a miss rate of {}", percent(middle(low, high))),
        Border::None => {
            return format!(
                "no miss rate separates wins of mmap over {other} from losses on this machine ({follow} the best one)"
            );
        }
    };
    format!("mmap loses to {other} {above} on this machine: {} ({follow})", seen(&found))
}

/// The wins and losses behind a border.
fn seen(found: &Separation) -> String {
    match found.border {
        Border::Wins(high) => format!("it won up to {}", percent(high)),
        Border::Loses(low) => format!("it lost from {} on", percent(low)),
        Border::Between(low, high) => format!("it won up to {} and lost from {} on", percent(low), percent(high)),
        Border::None => "wins and losses lie among each other".to_owned(),
    }
}

/// Compares the device's reads for a hot set that fits in memory: the reads of a map told RANDOM with those for a map without a
/// hint, whose device reads nothing ahead, and with read calls'.
fn hot_set(groups: &[&Group<'_>], target: &str, all: &mut Vec<Finding>) {
    let of = |method: &str| groups.iter().copied().find(|group| group.spec.method == method);
    let Some(random) = of(methods::MMAP_RANDOM.id) else { return };
    for other in [methods::MMAP_NORMAL.id, methods::PREAD_BUFFERED_RANDOM.id].into_iter().filter_map(of) {
        let Some(comparison) = or_refused(compare(random, other, Metric::Amplification), all) else { continue };
        let reads = |group: &Group<'_>| group.spread(Metric::Amplification).map_or(0.0, |spread| spread.median);
        all.push(Finding {
            rule: "hot-set",
            rule_text: "pages that the device reads for one access, where 95 % of the accesses go to pages that fill half of the memory; the map told RANDOM over another \
                method, same threads and same data",
            text: format!(
                "{}{}with a hot set of half the memory, {} reads {} pages from the device for 100 accesses, {} {}: {}.",
                on(target),
                comparison.caveat(),
                random.label(),
                Unit::Count.show(reads(random) * 100.0),
                other.label(),
                Unit::Count.show(reads(other) * 100.0),
                comparison.show(),
            ),
            ..comparison.finding()
        });
    }
}
