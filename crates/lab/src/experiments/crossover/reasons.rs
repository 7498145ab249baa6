//! Reasons for and against a map that the records of `crossover` give: its zipfian reads, as a database makes them. Uniform
//! reads of data larger than memory belong to another experiment.

use super::cells::{Cell, RATE, Side, cells, targets};
use super::{ID, ZIPF};
use crate::judge::curve::Curve;
use crate::judge::places::Records;
use crate::judge::reason::{Evidence, Reason, Rule, Workload, reason, whole_curve};

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
