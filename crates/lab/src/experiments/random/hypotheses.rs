//! Published claims about mmap that the records of `random` decide.

use super::ID;
use super::findings::{Sides, filled_at, told_random};
use crate::format::{Unit, digits};
use crate::judge::bound::Bound;
use crate::judge::claim::{
    Claim, Contribution, Decision, PAPERS_CPUS, PAPERS_DEVICE, POOL_COSTS, Places, Records, Test, count_of, explicit,
    times,
};
use crate::judge::paging::valid_maps;
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
        test: Test::Own(half),
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
        test: Test::Own(hint),
    },
    Claim {
        id: "collapse-when-full",
        hypothesis: "Random reads through mmap fall to less than half once memory is full and eviction begins.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.1 and figure 2: 0.9 M to 0.4 M reads/s",
        experiment: ID,
        rule: "MADV_RANDOM, in each trial that filled: reads per second after the fill over those before it are at most 0.5",
        needs: &[PAPERS_CPUS, PAPERS_DEVICE],
        test: Test::Own(collapse),
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

/// The sides that are compared, on each target where `random` measured with full memory.
fn sides<'s>(records: &'s Records<'_>) -> Vec<(String, Sides<'s, 's>)> {
    let places = records.summary.places(ID).into_iter().filter(|(variant, _)| variant.is_empty());
    places
        .map(|(variant, target)| (target_title(target), Sides::of(&records.summary.at(ID, variant, target))))
        .collect()
}

/// Decides the claim by the whole curve of the map over explicit I/O's.
fn half(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for (place, sides) in sides(records) {
        places.curve(&place, (&sides.map, &sides.explicit), Metric::OpsPerS, Bound::between(0.35, 0.65));
    }
    places.decide("`nofault lab random` measures it")
}

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

/// Decides the claim by the bytes that the device reads for each requested byte, at two values of read-ahead.
fn hint(records: &Records<'_>) -> Decision {
    let missing = "it takes two values of read-ahead: as root, `nofault lab random --read-ahead-kb 128,1024`";
    let own_kib = records.file.run.machine.read_ahead_kb.map(|kib| kib as f64);
    let mut places = Places::default();
    for (variant, target) in records.summary.places(ID) {
        let groups = records.summary.at(ID, variant, target);
        let normal: Vec<(f64, &Group<'_>)> = groups
            .iter()
            .copied()
            .filter(|group| group.spec.method == methods::MMAP_NORMAL)
            // The read-ahead that the trials did not set is known only for the file's device.
            .filter_map(|group| {
                let set = count_of(group, "read_ahead_kb").or(own_kib.filter(|_| target == "file"));
                Some((set?, group))
            })
            .collect();
        for (index, (low_kib, low)) in normal.iter().enumerate() {
            let same = |other: &&(f64, &Group<'_>)| {
                other.1.spec.params.threads == low.spec.params.threads && (other.0 - low_kib).abs() > 0.5
            };
            let Some((high_kib, high)) = normal[index + 1..].iter().find(same) else { continue };
            let metric = Metric::Amplification;
            let (Some(a), Some(b)) = (high.spread(metric), low.spread(metric)) else { continue };
            let Some(ratio) = places.ratio(&target_title(target), (high, low), metric, &[]) else { continue };
            let expected = high_kib / low_kib;
            let share = ratio.times(1.0 / expected);
            let text = format!(
                "{}, {} threads: {} bytes for each asked at {high_kib:.0} KiB and {} at {low_kib:.0} KiB: {} for {}× the read-ahead",
                target_title(target),
                low.spec.params.threads,
                digits(a.median),
                digits(b.median),
                times(&ratio),
                digits(expected)
            );
            places.add(Bound::between(0.5, 2.0).decide(&share), text, &[high, low]);
        }
    }
    places.decide(missing)
}

/// Decides the claim by a map's rate after memory was full, divided by its rate before.
fn collapse(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for (variant, target) in records.summary.places(ID) {
        let groups = records.summary.at(ID, variant, target);
        let random = groups.iter().copied().filter(|group| group.spec.method == methods::MMAP_RANDOM);
        let Some(group) = best(random, Metric::OpsPerS) else { continue };
        let ratios = group.good.iter().filter_map(|trial| {
            let outcome = &trial.outcome;
            let full_at = filled_at(outcome)?;
            let before = outcome.ticks.iter().filter(|tick| tick.at_s <= full_at);
            let (ops, seconds) = before.fold((0, 0.0), |(ops, s), tick| (ops + tick.ops, s + tick.elapsed_s));
            let steady = outcome.steady.as_ref()?;
            (ops > 0 && seconds > 0.0).then(|| steady.ops as f64 / steady.elapsed_s.max(1e-9) / (ops as f64 / seconds))
        });
        let Some(ratio) = Spread::of(ratios) else { continue };
        let text = format!("{}: {}, {}", target_title(target), group.label(), times(&ratio));
        places.add(Bound::at_most(0.5).decide(&ratio), text, &[group]);
    }
    places.decide("no trial of `random` filled its memory; `nofault lab random` measures it")
}

/// Compares the CPU time of a read through the engine's pool, which caches, evicts and locks, with a map's.
pub(super) fn pool<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    for (place, sides) in sides(records) {
        let place = format!("larger than memory, {place}, CPU a read");
        places.curve(&place, (&sides.pool, &sides.map), Metric::CpuPerOp, Bound::at_least(POOL_COSTS));
    }
    Contribution { experiment: ID, what: "reads larger than memory", places }
}
