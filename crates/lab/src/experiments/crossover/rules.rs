//! Rules on the records of `crossover`: published claims, findings, and reasons for the verdict.

use super::{DATA, HOT_SET, ID, ZIPF};
use crate::format::{Unit, digits};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::curve::Curve;
use crate::judge::places::{Places, Records, against, count_of};
use crate::judge::reason::{Evidence, Reason, Rule, Workload, reason, whole_curve};
use crate::judge::{Comparison, Finding, KeyFigure, Kind, Refusal, are_equal, best, compare, keys, on, or_refused};
use crate::methods::{self, Family};
use crate::record::TargetKind;
use crate::summary::{Group, Metric, Spread, Summary, target_title};

/// The published claims about mmap that the records of `crossover` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "random-hint-forgets-hot-pages",
    hypothesis: "Since Linux 6.3 a map told RANDOM loses pages that are in use: reclaim ignores their accessed bits.",
    source: "Linux commit 8788f6781486; reports to bbolt, Elasticsearch and Lucene of slower databases",
    experiment: ID,
    rule: "a set of pages that fills half of the memory takes 95 % of the accesses: pages that the device reads for one access through the map told \
        RANDOM, over the same of a map told NORMAL on a device without read-ahead, and of buffered pread told RANDOM, on a RAM-backed device of the \
        lab's own; and bytes that the device reads for a get of YCSB C through LMDB with MDB_NORDAHEAD over those without it, on data larger than memory and a \
        device without read-ahead: each at least 1.5",
    needs: &[],
    test: Test::Together {
        every: false,
        missing: "it takes root: `nofault lab crossover --ram-device require`, and `nofault lab engines`",
    },
}];

/// Finds the device's reads for each access to a hot set.
pub(super) fn forgets<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    for (variant, target) in records.summary.places(ID).into_iter().filter(|(variant, _)| *variant == HOT_SET) {
        let groups = records.summary.at(ID, variant, target);
        let of = |method: &str| groups.iter().copied().find(|group| group.spec.method == method);
        let Some(random) = of(methods::MMAP_RANDOM.id) else { continue };
        for other in [methods::MMAP_NORMAL.id, methods::PREAD_BUFFERED_RANDOM.id].into_iter().filter_map(of) {
            let place = target_title(target);
            let Some(ratio) = places.ratio(&place, (random, other), Metric::Amplification, &[]) else { continue };
            let text = format!("{place}: {}", against(random, other, Metric::Amplification, &ratio));
            places.add(Bound::at_least(1.5).decide(&ratio), text, &[random, other]);
        }
    }
    Contribution { experiment: ID, what: "reads of a hot set", places }
}

// The reasons rest on the zipfian reads, as a database makes them. Uniform reads of data larger than memory belong to another experiment.

/// The rules of the verdict for which `crossover` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::Throughput, larger), Evidence::of(Rule::InMemory, fits)];

fn larger(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    at_sizes(records, workload, "throughput", |data| data > 1.0)
}

fn fits(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    at_sizes(records, workload, "in memory", |data| data < 1.0)
}

/// Compares the best valid map with the fastest of buffered reads, direct reads and the pool, at each size of the data that
/// `picks` wants: the whole curve, or the number of requests that is nearest to the user's.
fn at_sizes(records: &Records<'_>, workload: &Workload, rule: &'static str, picks: fn(f64) -> bool) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for target in targets(records.summary) {
        let mut cells = cells(records.summary, target);
        cells.retain(|cell| cell.variant == ZIPF && picks(cell.data));
        for cells in cells.chunk_by(Cell::is_beside) {
            let what = format!("zipfian reads of {} times the memory", cells[0].data);
            let found = match workload.threads {
                Some(wanted) => nearest(cells, wanted).and_then(|cell| {
                    let other = cell.best_of(Side::Best)?;
                    let found = reason(rule, cell.map, other, RATE, &what)?;
                    Some(found.at_thread_counts(workload.threads, [cell.in_flight; 2], ID.name(), cell.map))
                }),
                None => {
                    let map = Curve::of(cells.iter().map(|cell| cell.map), RATE);
                    let other = Curve::of(cells.iter().filter_map(|cell| cell.best_of(Side::Best)), RATE);
                    map.over(&other, RATE).ok().map(|found| whole_curve(rule, &found, RATE, &what))
                }
            };
            reasons.extend(found);
        }
    }
    reasons
}

/// The cell with the number of requests in flight that is nearest to `wanted`, as a factor.
fn nearest<'c, 'g, 'a>(cells: &'c [Cell<'g, 'a>], wanted: u32) -> Option<&'c Cell<'g, 'a>> {
    let off = |cell: &&Cell<'_, '_>| (f64::from(cell.in_flight.max(1)).ln() - f64::from(wanted.max(1)).ln()).abs();
    cells.iter().min_by(|a, b| off(a).total_cmp(&off(b)))
}

// Rules of `crossover`: the miss rate above which the map loses, against each side and against the best of them; and the
// reads that a hot set costs under each hint.

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

// The points of the grid: at each, the best valid map against the best of each other side; and the miss rate that separates
// the points where the map wins from the points where it loses.

/// The metric by which the sides are compared.
const RATE: Metric = Metric::OpsPerS;

/// A side that the map stands against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The fastest of all others.
    Best,
    /// Read calls through the page cache.
    Buffered,
    /// Reads past the page cache.
    Direct,
    /// The engine's pool.
    Pool,
}

impl Side {
    /// All sides, the combined one first.
    pub(super) const ALL: [Self; 4] = [Self::Best, Self::Buffered, Self::Direct, Self::Pool];

    /// The side's name in a sentence.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Best => "the best of buffered reads, direct reads and the engine's pool",
            Self::Buffered => "buffered reads",
            Self::Direct => "direct reads",
            Self::Pool => "the engine's pool",
        }
    }

    fn has(self, family: Family) -> bool {
        match self {
            Self::Best => Self::ALL[1..].iter().any(|side| side.has(family)),
            Self::Buffered => family == Family::Buffered,
            Self::Direct => family.is_explicit(),
            Self::Pool => family == Family::Pool,
        }
    }
}

/// A point of the grid.
#[derive(Debug)]
pub(super) struct Cell<'g, 'a> {
    /// The order of the reads.
    pub(super) variant: &'a str,
    /// Size of the data, as a multiple of the memory.
    pub(super) data: f64,
    /// Number of requests in flight.
    pub(super) in_flight: u32,
    /// The best valid map.
    pub(super) map: &'g Group<'a>,
    others: Vec<&'g Group<'a>>,
}

impl<'g, 'a> Cell<'g, 'a> {
    /// Whether another cell has the same data and the same order of reads.
    fn is_beside(&self, other: &Self) -> bool {
        self.variant == other.variant && (self.data - other.data).abs() < 1e-9
    }

    /// The fastest method of a side under the map's conditions.
    pub(super) fn best_of(&self, side: Side) -> Option<&'g Group<'a>> {
        best(self.others.iter().copied().filter(|other| side.has(other.family())), RATE)
    }

    /// Compares the map with the fastest method of a side.
    ///
    /// # Errors
    /// A refusal without a figure on either side, or where the conditions differ.
    pub(super) fn against(&self, side: Side) -> Result<Comparison<'g>, Refusal> {
        compare(self.map, self.best_of(side).ok_or(Refusal::NoFigure)?, RATE)
    }

    /// The share of accesses through the map that wait for the device: major faults of the process, which others' use of the
    /// device does not change.
    pub(super) fn miss_rate(&self) -> Option<f64> {
        self.map.spread(Metric::PerOp("major_faults")).map(|spread| spread.median)
    }
}

/// The targets on which the grid was measured.
pub(super) fn targets<'a>(summary: &Summary<'a>) -> Vec<&'a str> {
    let mut targets: Vec<&str> = Vec::new();
    for (variant, target) in summary.places(ID) {
        if variant != HOT_SET && !targets.contains(&target) {
            targets.push(target);
        }
    }
    targets
}

/// The points of the grid on one target, by order of reads, size of the data and requests in flight.
pub(super) fn cells<'g, 'a>(summary: &'g Summary<'a>, target: &str) -> Vec<Cell<'g, 'a>> {
    let groups: Vec<&Group<'_>> = summary
        .of_experiment(ID)
        .filter(|group| group.spec.target.label == target && group.spec.variant != HOT_SET && !group.never_filled())
        .collect();
    let mut cells: Vec<Cell<'_, '_>> = Vec::new();
    for map in groups.iter().copied().filter(|group| group.family() == Family::Mapped) {
        let (variant, in_flight) = (map.spec.variant.as_str(), map.conditions().in_flight);
        let Some(data) = count_of(map, DATA).filter(|_| map.spread(RATE).is_some()) else { continue };
        let same = |other: &Group<'_>| {
            other.spec.variant == variant && count_of(other, DATA).is_some_and(|other| (other - data).abs() < 1e-9)
        };
        let at = |cell: &&mut Cell<'_, '_>| {
            cell.variant == variant && cell.in_flight == in_flight && (cell.data - data).abs() < 1e-9
        };
        match cells.iter_mut().find(at) {
            Some(cell) => cell.map = best([cell.map, map], RATE).unwrap_or(map),
            None => {
                let others = groups
                    .iter()
                    .copied()
                    .filter(|other| other.family() != Family::Mapped && same(other) && are_equal(map, other));
                cells.push(Cell { variant, data, in_flight, map, others: others.collect() });
            }
        }
    }
    cells.sort_by(|a, b| a.variant.cmp(b.variant).then(a.data.total_cmp(&b.data)).then(a.in_flight.cmp(&b.in_flight)));
    cells
}

/// A decided point: the map's miss rate there, and the logarithm of its rate over the other's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GridPoint {
    pub(super) miss_rate: f64,
    pub(super) log_ratio: f64,
}

/// The miss rate that separates wins of the map from its losses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Border {
    /// The map wins at every decided point, of which this is the highest miss rate.
    Wins(f64),
    /// The map loses at every decided point, of which this is the lowest miss rate.
    Loses(f64),
    /// The map wins up to the first miss rate and loses from the second on.
    Between(f64, f64),
    /// No miss rate separates wins from losses: more than a quarter of the points lie on the wrong side of every border.
    None,
}

/// A border, with the number of points that lie on its right side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Separation {
    pub(super) border: Border,
    pub(super) follow: usize,
    pub(super) count: usize,
}

/// Finds the miss rate that separates wins from losses best: with the least sum of the logarithms of the ratios on the wrong
/// side. `None` without a decided point.
pub(super) fn separate(mut points: Vec<GridPoint>) -> Option<Separation> {
    let count = points.len();
    points.sort_by(|a, b| a.miss_rate.total_cmp(&b.miss_rate));
    let wrong = |border: usize| {
        let (below, above) = points.split_at(border);
        let losses = below.iter().filter(|point| point.log_ratio < 0.0);
        losses.chain(above.iter().filter(|point| point.log_ratio > 0.0)).copied().collect::<Vec<_>>()
    };
    let cost = |border: &usize| wrong(*border).iter().map(|point| point.log_ratio.abs()).sum::<f64>();
    let at = (0..=count).min_by(|a, b| cost(a).total_cmp(&cost(b))).filter(|_| count > 0)?;
    let follow = count - wrong(at).len();
    let border = match at {
        _ if follow * 4 < count * 3 => Border::None,
        0 => Border::Loses(points[0].miss_rate),
        at if at == count => Border::Wins(points[count - 1].miss_rate),
        at => Border::Between(points[at - 1].miss_rate, points[at].miss_rate),
    };
    Some(Separation { border, follow, count })
}
