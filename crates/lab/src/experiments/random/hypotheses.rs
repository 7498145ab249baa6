//! Published claims about mmap that the records of `random` decide.

use super::ID;
use super::findings::{Sides, filled_at, told_random};
use crate::format::{Unit, digits};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, PAPERS_CPUS, PAPERS_DEVICE, Test};
use crate::judge::paging::valid_maps;
use crate::judge::places::{Decision, POOL_COSTS, Places, Records, count_of, explicit, is, times};
use crate::judge::rule::{Among, Curves, Each, Growth, Limit};
use crate::judge::{best, best_pair};
use crate::machine::survey::{FILE_EVICTION, FILE_FAULT};
use crate::methods;
use crate::summary::{Family, Group, Metric, Spread, target_title};

/// The published claims about mmap that the records of `random` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "half-of-direct",
        hypothesis: "Random reads through mmap reach about half of what O_DIRECT reaches once memory is full.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.1 and figure 2",
        experiment: ID,
        rule: "reads per second of the map told RANDOM over the faster of pread and io_uring with O_DIRECT, geometric mean over all requests in \
            flight at which both have a valid figure: between 0.35 and 0.65 on each target",
        needs: &[],
        test: Test::Curves(Curves {
            among: WITH_FULL_MEMORY,
            of: |groups| Sides::of(groups).map,
            over: |groups| Sides::of(groups).explicit,
            metric: Metric::OpsPerS,
            bound: Bound::between(0.35, 0.65),
            missing: "`nofault lab random` measures it",
        }),
    },
    Claim {
        id: "predicted-by-fault-cost",
        hypothesis: "That ratio follows from two figures: the device's rate, and the CPU time of a fault.",
        source: "the lab's own reading of §4.1: min(device, CPUs ÷ (CPU of a read + of a fault + of an eviction))",
        experiment: ID,
        rule: "predicted for each target from calibration, without any trial of the map: the smaller of the O_DIRECT rate under the conditions of the best map, and CPUs over the CPU of a \
            direct read, a fault in a mapped file with nothing to read and taking such a page away; the rate of the best map is 3/4 to 4/3 of it",
        needs: &[],
        test: Test::Own(predicted),
    },
    Claim {
        id: "hint-costs-read-ahead",
        hypothesis: "Without MADV_RANDOM, what random reads cost grows with the device's read-ahead.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, figure 2 (NORMAL and SEQUENTIAL at 1/40); here with its cause",
        experiment: ID,
        rule: "device bytes for each byte asked, with MADV_NORMAL: their ratio between two values of read_ahead_kb is 0.5 to 2 times the \
            ratio of the values",
        needs: &[],
        test: Test::Growth(Growth {
            among: Among::Places(|_| true),
            which: |group| is(group, &methods::MMAP_NORMAL),
            // The read-ahead that the trials did not set is known only for the file's device.
            value: |records, group| {
                let own_kib = records.file.run.machine.read_ahead_kb.map(|kib| kib as f64);
                count_of(group, "read_ahead_kb").or(own_kib.filter(|_| group.spec.target.label == "file"))
            },
            pairs: |groups| {
                let other = |low: usize| {
                    let same = |high: &usize| {
                        let ((a, one), (b, other)) = (groups[low], groups[*high]);
                        one.spec.params.threads == other.spec.params.threads && (a - b).abs() > 0.5
                    };
                    (low + 1..groups.len()).find(same).map(|high| (high, low))
                };
                (0..groups.len()).filter_map(other).collect()
            },
            metric: Metric::Amplification,
            bound: Bound::between(0.5, 2.0),
            place: |group| target_title(&group.spec.target.label),
            words: |(high_kib, high), (low_kib, low), ratio, expected| {
                let read = |group: &Group<'_>| {
                    group.spread(Metric::Amplification).map_or("–".into(), |read| digits(read.median))
                };
                format!(
                    "{}, {} threads: {} bytes for each asked at {high_kib:.0} KiB and {} at {low_kib:.0} KiB: {} for {}× the read-ahead",
                    target_title(&low.spec.target.label),
                    low.spec.params.threads,
                    read(high),
                    read(low),
                    times(ratio),
                    digits(expected)
                )
            },
            missing: "it takes two values of read-ahead: as root, `nofault lab random --read-ahead-kb 128,1024`",
        }),
    },
    Claim {
        id: "collapse-when-full",
        hypothesis: "Random reads through mmap fall to less than half once memory is full and eviction begins.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.1 and figure 2: 0.9 M to 0.4 M reads/s",
        experiment: ID,
        rule: "MADV_RANDOM, in each trial that filled: reads per second after the fill over those before it are at most 0.5",
        needs: &[PAPERS_CPUS, PAPERS_DEVICE],
        test: Test::Each(Each {
            among: Among::Places(|_| true),
            which: |group| is(group, &methods::MMAP_RANDOM),
            best_by: Some(Metric::OpsPerS),
            figure: rate_after_the_fill,
            limit: Limit::In(Bound::at_most(0.5)),
            words: |group, ratio| {
                format!("{}: {}, {}", target_title(&group.spec.target.label), group.label(), times(ratio))
            },
            missing: "no trial of `random` filled its memory; `nofault lab random` measures it",
            ..Each::NONE
        }),
    },
    Claim {
        id: "pool-costs-as-much",
        hypothesis: "A buffer pool must cost as much as mmap once it caches, evicts and locks.",
        source: "Oren Eini (RavenDB), replies to the paper",
        experiment: ID,
        rule: "CPU of a random read of data larger than memory through the engine's own pool, which caches, evicts and pins, over \
            that through the map told RANDOM, geometric mean over all requests in flight at which both have a valid figure (`random`), and time of a lookup in memory through a hash table with locks and pins over \
            that in a mapped file, both in huge pages (`translate`): each at least 0.9",
        needs: &[],
        test: Test::Together {
            every: false,
            missing: "`nofault lab random` with the engine's pool measures it, and `nofault lab translate --preset standard`",
        },
    },
];

/// The groups measured with full memory, on each target.
const WITH_FULL_MEMORY: Among = Among::Places(str::is_empty);

/// Largest factor, in either direction, by which a prediction may miss the measured rate.
const PREDICTED_WITHIN: f64 = 4.0 / 3.0;

/// Decides the claim by comparing a map's rate with a prediction from the device's rate and the cost of this machine's
/// primitives, without the map's own trials.
fn predicted(records: &Records<'_>) -> Decision {
    let machine = &records.file.run.machine;
    let cost_s = |name: &str| machine.costs_ns.get(name).map(|cost_ns| cost_ns / 1e9);
    let (Some(fault), Some(evict)) = (cost_s(FILE_FAULT), cost_s(FILE_EVICTION)) else {
        return Decision::not_measured(
            "these records lack the calibration: the cost of a mapped file's page to come and to go without a device (it takes a file \
             system that has holes, and MADV_PAGEOUT)",
        );
    };
    let cpus = f64::from(machine.cpu_count.max(1));
    let mut places = Places::default();
    for target in ["file", "ram"] {
        let (rate, groups) = (Metric::OpsPerS, records.summary.at(ID, "", target));
        // Take one request at a time, as with a fault: the read itself costs a map as much CPU as a call.
        let calls = groups.iter().copied().filter(|group| group.family() == Family::Direct);
        let pair = best_pair(&valid_maps(&groups, told_random), &explicit(&groups), rate, &[]);
        let (Some((map, direct)), Some(call)) = (pair, best(calls, Metric::CpuPerOp)) else { continue };
        let (Some(measured), Some(ceiling), Some(read)) =
            (map.spread(rate), direct.spread(rate), call.spread(Metric::CpuPerOp))
        else {
            continue;
        };
        // No more CPUs can be busy than there are threads.
        let workers = cpus.min(f64::from(map.spec.params.threads.max(1)));
        let cost = read.median + fault + evict;
        let predicted = ceiling.median.min(workers / cost.max(1e-9));
        let ratio = measured.times(1.0 / predicted.max(1e-9));
        let text = format!(
            "{}: predicted {} (device {}; CPU {} a read: {} for the request, {} for the fault, {} for taking the page away), measured {}: {}",
            target_title(target),
            rate.unit().show(predicted),
            rate.unit().show(ceiling.median),
            Unit::Seconds.show(cost),
            Unit::Seconds.show(read.median),
            Unit::Seconds.show(fault),
            Unit::Seconds.show(evict),
            rate.unit().show(measured.median),
            times(&ratio)
        );
        places.add(
            Bound::between(PREDICTED_WITHIN.recip(), PREDICTED_WITHIN).decide(&ratio),
            text,
            &[map, direct, call],
        );
    }
    places.decide("`nofault lab random` measures it")
}

/// A map's rate after memory was full, divided by its rate before.
fn rate_after_the_fill(group: &Group<'_>) -> Option<Spread> {
    let ratios = group.good.iter().filter_map(|trial| {
        let outcome = &trial.outcome;
        let full_at = filled_at(outcome)?;
        let before = outcome.ticks.iter().filter(|tick| tick.at_s <= full_at);
        let (ops, seconds) = before.fold((0, 0.0), |(ops, s), tick| (ops + tick.ops, s + tick.elapsed_s));
        let steady = outcome.steady.as_ref()?;
        (ops > 0 && seconds > 0.0).then(|| steady.ops as f64 / steady.elapsed_s.max(1e-9) / (ops as f64 / seconds))
    });
    Spread::of(ratios)
}

/// The CPU time of a read through the pool, over the map's.
static POOL_OVER_MAP: Curves = Curves {
    among: WITH_FULL_MEMORY,
    of: |groups| Sides::of(groups).pool,
    over: |groups| Sides::of(groups).map,
    metric: Metric::CpuPerOp,
    bound: Bound::at_least(POOL_COSTS),
    missing: "",
};

/// Compares the CPU time of a read through the engine's pool, which caches, evicts and locks, with a map's.
pub(super) fn pool<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    POOL_OVER_MAP.add_to(&mut places, ID, records, |place| format!("larger than memory, {place}, CPU a read"));
    Contribution { experiment: ID, what: "reads larger than memory", places }
}
