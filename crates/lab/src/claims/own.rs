//! The rules that are more than one comparison.

use super::prices::both;
use super::{Decision, Outcome, Records, extra, figure, inside, times};
use crate::experiments::errors::{BIT_FLIP, READ_ERROR, TRUNCATED};
use crate::experiments::safety::findings::was_looked_at;
use crate::format::{Unit, bytes, digits};
use crate::judge::best;
use crate::summary::{Family, Group, Metric, Spread, target_title};

pub(super) fn mapped<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    groups.iter().copied().filter(|group| group.pages_through_a_map()).collect()
}

fn explicit<'g, 'a>(groups: &[&'g Group<'a>]) -> Vec<&'g Group<'a>> {
    groups.iter().copied().filter(|group| group.family().is_explicit()).collect()
}

/// The groups of one variant of `claims`.
pub(super) fn of_variant<'s>(records: &'s Records<'_>, experiment: &str, variant: &str) -> Vec<&'s Group<'s>> {
    records.of(experiment).filter(|group| group.spec.variant == variant).collect()
}

pub(super) fn count_of(group: &Group<'_>, name: &str) -> Option<f64> {
    extra(group, name)?.parse().ok()
}

/// Places decided one by one, and the words for each.
#[derive(Default)]
pub(super) struct Places<'s> {
    outcomes: Vec<Outcome>,
    texts: Vec<String>,
    used: Vec<&'s Group<'s>>,
}

impl<'s> Places<'s> {
    pub(super) fn add(&mut self, outcome: Outcome, text: String, used: &[&'s Group<'s>]) {
        self.outcomes.push(outcome);
        self.texts.push(text);
        self.used.extend(used);
    }

    pub(super) fn decide(self, missing: &str) -> Decision {
        if self.outcomes.is_empty() {
            return Decision::not_measured(missing);
        }
        Decision::new(Outcome::all(&self.outcomes), format!("{}.", self.texts.join("; ")), &self.used)
    }
}

/// The rate of a map, from what the device gives and what the primitives cost on this machine: nothing of the map's own cells.
pub(super) fn predicted(records: &Records<'_>) -> Decision {
    let machine = &records.file.run.machine;
    let cost_s = |name: &str| {
        let text = machine.facts.get(name)?.strip_suffix(" ns")?;
        Some(text.trim().parse::<f64>().ok()? / 1e9)
    };
    let (Some(fault), Some(evict)) = (cost_s("fault_of_a_file_page"), cost_s("eviction_of_a_file_page")) else {
        return Decision::not_measured(
            "these records lack the calibration: what a page of a mapped file costs to come and to go without a device (it takes a file \
             system that has holes, and MADV_PAGEOUT)",
        );
    };
    let cpus = f64::from(machine.cpu_count.max(1));
    let mut places = Places::default();
    for target in ["file", "ram"] {
        let (rate, groups) = (Metric::OpsPerS, records.summary.at(crate::experiments::random::ID, "", target));
        // One request at a time, as a fault makes it: the read itself costs a map what it costs a call.
        let calls = groups.iter().copied().filter(|group| group.family() == Family::Direct);
        let (Some(map), Some(direct), Some(call)) =
            (best(mapped(&groups), rate), best(explicit(&groups), rate), best(calls, Metric::CpuPerOp))
        else {
            continue;
        };
        let (Some(measured), Some(ceiling), Some(read)) =
            (map.spread(rate), direct.spread(rate), call.spread(Metric::CpuPerOp))
        else {
            continue;
        };
        // No more CPUs can work than there are threads.
        let workers = cpus.min(f64::from(map.spec.params.threads.max(1)));
        let cost = read.median + fault + evict;
        let predicted = ceiling.median.min(workers / cost.max(1e-9));
        let Some(ratio) =
            measured.over(&Spread { median: predicted, min: predicted, max: predicted, count: measured.count })
        else {
            continue;
        };
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
        places.add(inside(&ratio, 2.0 / 3.0, 4.0 / 3.0), text, &[map, direct, call]);
    }
    places.decide("`nofault lab random` measures it")
}

/// Device bytes for each byte asked, at two values of read-ahead.
pub(super) fn hint(records: &Records<'_>) -> Decision {
    let missing = "it takes two values of read-ahead: as root, `nofault lab random --read-ahead-kb 128,1024`";
    let own_kib = records.file.run.machine.read_ahead_kb.map(|kib| kib as f64);
    let mut places = Places::default();
    for (variant, target) in records.summary.places(crate::experiments::random::ID) {
        let groups = records.summary.at(crate::experiments::random::ID, variant, target);
        let normal: Vec<(f64, &Group<'_>)> = groups
            .iter()
            .copied()
            .filter(|group| group.spec.contender == "mmap-normal")
            // The machine's own value is known for the file's device only.
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
            let Some(ratio) = a.over(&b) else { continue };
            let expected = high_kib / low_kib;
            let share = Spread {
                median: ratio.median / expected,
                min: ratio.min / expected,
                max: ratio.max / expected,
                count: ratio.count,
            };
            let text = format!(
                "{}, {} threads: {} bytes for each asked at {high_kib:.0} KiB and {} at {low_kib:.0} KiB: {} for {}× the read-ahead",
                target_title(target),
                low.spec.params.threads,
                digits(a.median),
                digits(b.median),
                times(&ratio),
                digits(expected)
            );
            places.add(inside(&share, 0.5, 2.0), text, &[high, low]);
        }
    }
    places.decide(missing)
}

/// The rate after memory was full over that before.
pub(super) fn collapse(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for (variant, target) in records.summary.places(crate::experiments::random::ID) {
        let groups = records.summary.at(crate::experiments::random::ID, variant, target);
        let random = groups.iter().copied().filter(|group| group.spec.contender == "mmap-random");
        let Some(group) = best(random, Metric::OpsPerS) else { continue };
        let ratios = group.good.iter().filter_map(|cell| {
            let outcome = &cell.outcome;
            let full_at = outcome.full_at_s?;
            let before = outcome.ticks.iter().filter(|tick| tick.at_s <= full_at);
            let (ops, seconds) = before.fold((0, 0.0), |(ops, s), tick| (ops + tick.ops, s + tick.elapsed_s));
            let steady = outcome.steady.as_ref()?;
            (ops > 0 && seconds > 0.0).then(|| steady.ops as f64 / steady.elapsed_s.max(1e-9) / (ops as f64 / seconds))
        });
        let Some(ratio) = Spread::of(ratios) else { continue };
        let text = format!("{}: {}, {}", target_title(target), group.label(), times(&ratio));
        places.add(inside(&ratio, 0.0, 0.5), text, &[group]);
    }
    places.decide("no cell of `random` filled its memory; `nofault lab random` measures it")
}

/// What several devices give to a map and to direct I/O.
pub(super) fn striping(records: &Records<'_>) -> Decision {
    let metric = Metric::BytesPerS;
    let summary = records.summary;
    let mut places = Places::default();
    for (variant, striped) in
        summary.places(crate::experiments::scan::ID).into_iter().filter(|(_, at)| at.contains("striped"))
    {
        let single = if striped.contains("ram") { "ram" } else { "file" };
        let (many, one) = (
            summary.at(crate::experiments::scan::ID, variant, striped),
            summary.at(crate::experiments::scan::ID, variant, single),
        );
        let map = best(mapped(&many), metric).zip(best(mapped(&one), metric));
        let direct = best(explicit(&many), metric).zip(best(explicit(&one), metric));
        let (Some((maps, map)), Some((directs, call))) = (map, direct) else { continue };
        let gain = |many: &Group<'_>, one: &Group<'_>| many.spread(metric)?.over(&one.spread(metric)?);
        let used = [maps, map, directs, call];
        let (Some(map), Some(direct)) = (gain(maps, map), gain(directs, call)) else { continue };
        let text = format!("{striped}: mmap gains {}, direct I/O {}", times(&map), times(&direct));
        // Devices that add no bandwidth for anybody decide nothing.
        let outcome = match inside(&direct, 1.5, f64::INFINITY) {
            Outcome::Held => inside(&map, 0.0, 1.2),
            _ => Outcome::Undecided,
        };
        places.add(outcome, text, &used);
    }
    places.decide(
        "it takes a striped scan: `nofault lab scan` with root's RAM-backed devices, or --stripe-over another disk",
    )
}

/// How long one synchronous direct read takes.
pub(super) fn one_thread(records: &Records<'_>) -> Decision {
    let groups = records.summary.at(crate::experiments::access::ID, "read", "file");
    let metric = Metric::Latency("op", 500);
    let found = groups.into_iter().find(|group| group.spec.contender == "pread-direct");
    let Some((group, took)) = found.and_then(|group| Some((group, group.spread(metric)?))) else {
        return Decision::not_measured("`nofault lab access` measures it");
    };
    let rate = group.primary().map_or("–".to_owned(), |rate| Unit::PerSecond.show(rate.median));
    let text = format!(
        "file: an O_DIRECT read takes {} (median), and one thread makes {rate}; 720 K/s would leave it 1.39 µs. The source contradicts itself: \
         its own 5 to 15 µs a read allow 67 to 200 K/s.",
        took.show(Unit::Seconds)
    );
    Decision::new(inside(&took, 0.0, 1.39e-6), text, &[group])
}

/// Cached data: a map against read calls, by size.
pub(super) fn cached(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, "claims", crate::experiments::claims::CACHED_READ);
    let metric = Metric::BytesPerS;
    let mut places = Places::default();
    let find = |contender: &str, block: u64| {
        let same = |group: &&&Group<'_>| group.spec.contender == contender && group.spec.params.block_bytes == block;
        groups.iter().find(same).copied()
    };
    let mut sizes: Vec<u64> = groups.iter().map(|group| group.spec.params.block_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let (Some(copy), Some(read)) = (find("mmap-copy", size), find("pread-buffered", size)) else { continue };
        let (Some(a), Some(b)) = (copy.spread(metric), read.spread(metric)) else { continue };
        let Some(ratio) = a.over(&b) else { continue };
        let in_place = find("mmap-in-place", size).and_then(|group| group.spread(metric)?.over(&b));
        let in_place = in_place.map_or(String::new(), |ratio| format!(", in place {}", Unit::Ratio.show(ratio.median)));
        let text = format!("{}: copied out {}{in_place}", bytes(size), times(&ratio));
        places.add(inside(&ratio, 2.0, f64::INFINITY), text, &[copy, read]);
    }
    places.decide("`nofault lab claims` measures it")
}

/// Mapping calls against threads.
pub(super) fn calls(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, "claims", crate::experiments::claims::MAP_CALLS);
    let metric = Metric::OpsPerS;
    let find = |contender: &str, threads: u32| {
        let same = |group: &&&Group<'_>| group.spec.contender == contender && group.spec.params.threads == threads;
        groups.iter().find(same).copied()
    };
    let mut places = Places::default();
    let mut counts: Vec<u32> =
        groups.iter().map(|group| group.spec.params.threads).filter(|count| *count > 1).collect();
    counts.sort_unstable();
    counts.dedup();
    for threads in counts {
        let gain =
            |contender: &str| find(contender, threads)?.spread(metric)?.over(&find(contender, 1)?.spread(metric)?);
        let (Some(map), Some(read)) = (gain("mmap-call-one-page"), gain("pread-buffered")) else { continue };
        let Some(ratio) = map.over(&read) else { continue };
        let late = |contender: &str| {
            let spread = find(contender, threads)?.spread(Metric::Latency("op", 990))?;
            Some(Unit::Seconds.show(spread.median))
        };
        let late = |contender: &str| late(contender).unwrap_or("–".into());
        let text = format!(
            "{threads} threads make {}× the calls of one where they map, {}× where they read: {}; p99 {} and {}",
            digits(map.median),
            digits(read.median),
            times(&ratio),
            late("mmap-call-one-page"),
            late("pread-buffered")
        );
        let used: Vec<&Group<'_>> =
            groups.iter().copied().filter(|g| [1, threads].contains(&g.spec.params.threads)).collect();
        places.add(inside(&ratio, 0.0, 0.75), text, &used);
    }
    places.decide("`nofault lab claims` measures it")
}

/// The time to map anew against the copies.
pub(super) fn remap(records: &Records<'_>) -> Decision {
    let mut groups: Vec<(f64, &Group<'_>)> = of_variant(records, "claims", crate::experiments::claims::PRIVATE_REMAP)
        .into_iter()
        .filter_map(|group| Some((count_of(group, "copied_pages")?, group)))
        .collect();
    groups.sort_by(|a, b| a.0.total_cmp(&b.0));
    let metric = Metric::Latency("op", 500);
    let mut places = Places::default();
    // The smallest number in which the copies and not the call are what takes the time, and the largest.
    let from = groups.iter().position(|(count, _)| *count >= 1000.0).unwrap_or(0);
    if let (Some((few, small)), Some((many, large))) =
        (groups.get(from.min(groups.len().saturating_sub(2))), groups.last())
        && many > few
        && let (Some(a), Some(b)) = (large.spread(metric), small.spread(metric))
        && let Some(ratio) = a.over(&b)
    {
        let expected = many / few;
        let share = Spread {
            median: ratio.median / expected,
            min: ratio.min / expected,
            max: ratio.max / expected,
            count: ratio.count,
        };
        let text = format!(
            "{} for {many:.0} copied pages, {} for {few:.0}: {} for {}× the pages",
            Unit::Seconds.show(a.median),
            Unit::Seconds.show(b.median),
            times(&ratio),
            digits(expected)
        );
        places.add(inside(&share, 0.5, 2.0), text, &[large, small]);
    }
    places.decide("`nofault lab claims` measures it")
}

/// Each group of contender `one`, with the group of contender `other` that has the same parameters.
fn pairs<'a>(
    groups: &'a [&'a Group<'a>],
    one: &'a str,
    other: &'a str,
) -> impl Iterator<Item = (&'a Group<'a>, &'a Group<'a>)> {
    groups.iter().copied().filter(move |group| group.spec.contender == one).filter_map(move |group| {
        let same = |beside: &&&Group<'_>| beside.spec.contender == other && beside.spec.params == group.spec.params;
        Some((group, *groups.iter().find(same)?))
    })
}

/// Uncached buffered reads against direct ones.
pub(super) fn dontcache(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, "claims", crate::experiments::claims::UNCACHED_READ);
    let mut places = Places::default();
    for (uncached, direct) in pairs(&groups, "pread-dontcache", "pread-direct") {
        let over = |metric: Metric| uncached.spread(metric)?.over(&direct.spread(metric)?);
        let (Some(rate), Some(cpu)) = (over(Metric::OpsPerS), over(Metric::CpuPerOp)) else { continue };
        let outcome = both(inside(&rate, 0.9, f64::INFINITY), inside(&cpu, 0.0, 1.1));
        let size = bytes(uncached.spec.params.block_bytes);
        let text = format!("{size}: rate {}, CPU a read {}", times(&rate), times(&cpu));
        places.add(outcome, text, &[uncached, direct]);
    }
    places.decide("`nofault lab claims --preset standard` measures it where the kernel has RWF_DONTCACHE (6.14)")
}

/// Commits through a map against write calls.
pub(super) fn writable(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, "claims", crate::experiments::claims::MAP_COMMIT);
    let mut places = Places::default();
    for (map, write) in pairs(&groups, "mmap-commit", "pwrite-fdatasync") {
        let metric = Metric::OpsPerS;
        let Some(ratio) = map.spread(metric).and_then(|a| a.over(&write.spread(metric)?)) else { continue };
        let pages = extra(map, "commit_pages").unwrap_or("?");
        let pages = if pages == "1" { "1 page".to_owned() } else { format!("{pages} pages") };
        places.add(inside(&ratio, 1.1, f64::INFINITY), format!("{pages} a commit: {}", times(&ratio)), &[map, write]);
    }
    places.decide("`nofault lab claims --preset standard` measures it")
}

/// What a held reader makes each store grow by.
pub(super) fn readers(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, "claims", crate::experiments::claims::LONG_READER);
    let mut places = Places::default();
    for held in groups.iter().copied().filter(|group| extra(group, "reader") == Some("held")) {
        let without = groups.iter().copied().find(|group| {
            group.spec.contender == held.spec.contender
                && extra(group, "reader") == Some("none")
                && extra(group, "updates") == extra(held, "updates")
        });
        let Some(without) = without else { continue };
        let (Some(with), Some(base), Some(before)) =
            (figure(held, "grown_bytes"), figure(without, "grown_bytes"), figure(held, "used_before_bytes"))
        else {
            continue;
        };
        let share = |grown: f64, other: f64| (grown - other) / before.median.max(1.0);
        let grown = Spread {
            median: share(with.median, base.median),
            min: share(with.min, base.max),
            max: share(with.max, base.min),
            count: with.count.min(base.count),
        };
        let text = format!(
            "{}: {} with a reader and {} without, for {} of data: {} of it",
            held.spec.contender,
            bytes(with.median as u64),
            bytes(base.median as u64),
            bytes(before.median as u64),
            grown.show(Unit::Ratio)
        );
        places.add(inside(&grown, f64::NEG_INFINITY, 0.1), text, &[held, without]);
    }
    places.decide("`nofault lab claims` measures it")
}

/// Lookups at each working set: the mapped file, and the best of the pool's own ways.
fn translations<'s>(records: &'s Records<'_>) -> Vec<(f64, &'s Group<'s>, &'s Group<'s>)> {
    let groups = of_variant(records, "translate", "lookup");
    let mut sets: Vec<f64> = groups.iter().filter_map(|group| count_of(group, "working_set")).collect();
    sets.sort_by(f64::total_cmp);
    sets.dedup();
    let at = |set: f64, wanted: fn(&Group<'_>) -> bool| {
        let same = groups.iter().copied().filter(|group| {
            group.spec.params.threads <= 1 && count_of(group, "working_set") == Some(set) && wanted(group)
        });
        best(same, Metric::OpsPerS)
    };
    sets.iter()
        .filter_map(|set| {
            let map = at(*set, |group| group.spec.contender == "mapped")?;
            Some((*set, at(*set, |group| group.family() != Family::Mapped)?, map))
        })
        .collect()
}

/// The pool's translation against the map, at each working set.
pub(super) fn matches(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for (set, pool, map) in translations(records) {
        let Some(ratio) = pool.spread(Metric::OpsPerS).and_then(|a| a.over(&map.spread(Metric::OpsPerS)?)) else {
            continue;
        };
        let text = format!("{}: {} {}", bytes(set as u64), pool.label(), times(&ratio));
        places.add(inside(&ratio, 0.9, f64::INFINITY), text, &[pool, map]);
    }
    places.decide("`nofault lab translate` measures it")
}

/// Uncommitted bytes on the disk.
pub(super) fn sin(records: &Records<'_>) -> Decision {
    // The private mapping beside it is the control.
    let groups = of_variant(records, "safety", "sin").into_iter().filter(|group| group.spec.contender == "mmap-shared");
    let mut places = Places::default();
    for group in groups {
        let Some(found) = figure(group, "uncommitted_on_disk").filter(|_| was_looked_at(group)) else { continue };
        // One page is enough: this is a proof, not a rate.
        let outcome = if found.max > 0.0 { Outcome::Held } else { Outcome::DidNotHold };
        places.add(
            outcome,
            format!("{}: {} found on disk before the commit", group.label(), digits(found.max)),
            &[group],
        );
    }
    places.decide("`nofault lab safety` measures it")
}

/// Signals that a store met. A page that cannot be had comes to a map as nothing else: where a mapped store tells an error of it, the lab's
/// own guard had caught the signal.
pub(crate) fn signals_met(group: &Group<'_>) -> Option<f64> {
    let most = |name| figure(group, name).map(|count| count.max);
    let cannot_be_had = [TRUNCATED, READ_ERROR].contains(&group.spec.variant.as_str());
    let guarded = cannot_be_had && group.family() == Family::Mapped;
    let caught = most("error_returned").filter(|_| guarded);
    most("signals").into_iter().chain(caught).reduce(f64::max)
}

/// Signals and errors.
pub(super) fn signals(records: &Records<'_>) -> Decision {
    let mut places = Places::default();
    for variant in [TRUNCATED, READ_ERROR] {
        for group in of_variant(records, "errors", variant) {
            let signalled = signals_met(group).is_some_and(|count| count > 0.0);
            let returned = figure(group, "error_returned").is_some_and(|count| count.min > 0.0);
            let as_claimed = if group.family() == Family::Mapped { signalled } else { returned && !signalled };
            let outcome = if as_claimed { Outcome::Held } else { Outcome::DidNotHold };
            let met = match (signalled, returned) {
                (true, true) => "a signal, which the lab's guard turned into an error",
                (true, false) => "a signal",
                (false, true) => "an error",
                (false, false) => "neither signal nor error",
            };
            places.add(outcome, format!("{} {variant}: {met}", group.label()), &[group]);
        }
    }
    places.decide("`nofault lab errors` measures it")
}

/// The stores of LMDB's design.
const SHADOWS: [&str; 5] = ["shadow", "shadow-checked", "shadow-writemap", "lmdb", "lmdb-readahead"];

/// LMDB's design under crashes, flipped bits and failed reads.
pub(super) fn crash_proof(records: &Records<'_>) -> Decision {
    let alike = |group: &&Group<'_>| SHADOWS.contains(&group.spec.contender.as_str());
    let mut places = Places::default();
    let bad = [
        ("safety", "lost_commits", "commits lost"),
        ("safety", "torn_commits", "commits torn"),
        ("errors", "wrong_answers", "wrong answers"),
        ("errors", "signals", "signals"),
    ];
    let mut tried: Vec<&str> = Vec::new();
    for (experiment, name, words) in bad {
        let in_question =
            |group: &&Group<'_>| experiment != "errors" || [BIT_FLIP, READ_ERROR].contains(&&*group.spec.variant);
        for group in records.of(experiment).filter(alike).filter(in_question) {
            let count = match name {
                "signals" => signals_met(group),
                _ => figure(group, name).map(|count| count.max),
            };
            let Some(count) = count else { continue };
            tried.push(experiment);
            let outcome = if count > 0.0 { Outcome::DidNotHold } else { Outcome::Held };
            let text = format!("{} {}: {} {words}", group.label(), group.spec.variant, digits(count));
            places.add(outcome, text, &[group]);
        }
    }
    // One half may refute it; to hold it takes both.
    let refuted = places.outcomes.contains(&Outcome::DidNotHold);
    for (experiment, what) in [("safety", "kills"), ("errors", "flipped bits and failed reads")] {
        if !tried.is_empty() && !tried.contains(&experiment) && !refuted {
            let text = format!("{what} were not tried (`nofault lab {experiment} --preset standard`)");
            places.add(Outcome::Undecided, text, &[]);
        }
    }
    places.decide("`nofault lab safety errors` measures it")
}

/// SQLite with a map and without.
pub(super) fn sqlite(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, "engines", "ycsb-c");
    let metric = Metric::OpsPerS;
    let mut places = Places::default();
    for map in groups.iter().copied().filter(|group| group.spec.contender == "sqlite-mmap") {
        let same = |group: &&&Group<'_>| {
            let (a, b) = (group.spec, map.spec);
            let setting = |name: &str| a.params.extra.get(name) == b.params.extra.get(name);
            let alike = a.params.threads == b.params.threads && setting("durability") && setting("memory");
            a.contender == "sqlite" && alike && a.target.label == b.target.label
        };
        let Some(calls) = groups.iter().find(same).copied() else { continue };
        let Some(ratio) = map.spread(metric).and_then(|a| a.over(&calls.spread(metric)?)) else { continue };
        let (fit, class) = (target_title(&map.spec.target.label), extra(map, "durability").unwrap_or("one class"));
        let ahead = extra(map, "read_ahead_kb").map_or(String::new(), |kib| format!(", read-ahead {kib} KiB"));
        let text = format!("{fit}, commits {class}{ahead}: {}", times(&ratio));
        places.add(inside(&ratio, 1.1, f64::INFINITY), text, &[map, calls]);
    }
    places.decide("`nofault lab engines` built with --features peers measures it")
}
