//! The points of the grid: at each, the best valid map against the best of each other side; and the miss rate that separates
//! the points where the map wins from the points where it loses.

use super::{DATA, HOT_SET, ID};
use crate::judge::places::count_of;
use crate::judge::{Comparison, Refusal, are_equal, best, compare};
use crate::methods::Family;
use crate::summary::{Group, Metric, Summary};

/// The metric by which the sides are compared.
pub(super) const RATE: Metric = Metric::OpsPerS;

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
    pub(super) fn is_beside(&self, other: &Self) -> bool {
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
