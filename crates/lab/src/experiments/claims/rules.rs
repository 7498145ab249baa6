//! Rules on the records of `claims`: published claims, findings, and reasons for the verdict.

use super::{
    CACHED_READ, ID, LONG_READER, MAP_COMMIT, MMAP_CALL_ONE_PAGE, MMAP_COMMIT, MMAP_COPY, MMAP_IN_PLACE, ONE_MAP,
    PRIVATE_REMAP, PWRITE_FDATASYNC, THOUSAND_MAPS, UNCACHED_READ,
};
use crate::format::{Unit, bytes, digits};
use crate::judge;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test, at_least};
use crate::judge::places::{Decision, Places, Records, count_of, extra, figure, is, of_variant, times};
use crate::judge::reason::{Evidence, Reason, Rule, Workload, reason, threads};
use crate::judge::rule::{Among, Growth, PairFigure, Pairs};
use crate::methods;
use crate::summary::{Group, Metric, Property, Spread};

/// The published claims about mmap that the records of `claims` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "cached-2x-faster",
        hypothesis: "Cached data is read two to four times faster through a map than by read calls.",
        source: "WiredTiger (MongoDB), 2020, on memory-mapped files",
        experiment: ID,
        rule: "bytes per second copied out of a map over buffered pread's, all in the page cache, by size of a read: at least 2; held in \
            part where only some sizes reach it",
        needs: &[],
        test: Test::Pairs(Pairs {
            among: Among::Variants(&[CACHED_READ]),
            each: |group| is(group, &MMAP_COPY),
            by: Some(|group| Some(group.spec.params.block_bytes as f64)),
            with: |copy, other| is(other, &methods::PREAD_BUFFERED) && is_as_large(copy, other),
            compared: PairFigure::Ratio(Metric::BytesPerS),
            bound: Bound::at_least(2.0),
            place: |group| bytes(group.spec.params.block_bytes),
            words: |pair| {
                let is_it = |group: &&&Group<'_>| is(group, &MMAP_IN_PLACE) && is_as_large(group, pair.of);
                let in_place = pair.among.iter().find(is_it);
                let ratio = in_place.and_then(|group| judge::ratio(group, pair.over, Metric::BytesPerS, &[]).ok());
                let in_place =
                    ratio.map_or(String::new(), |ratio| format!(", in place {}", Unit::Ratio.show(ratio.median)));
                format!("{}: copied out {}{in_place}", pair.place, times(&pair.ratio))
            },
            missing: "`nofault lab claims` measures it",
            ..Pairs::NONE
        }),
    },
    Claim {
        id: "map-calls-contend",
        hypothesis: "Calls of mmap and munmap contend: mapping files for each query does not scale with threads as reading does.",
        source: "SingleStore, on mmap_sem: 10 to 20 ms a query",
        experiment: ID,
        rule: "mapping, touching one page and unmapping: rate with several threads over that with one, over the same of pread, at most 0.75",
        needs: &[],
        test: Test::Own(calls),
    },
    Claim {
        id: "one-map-is-faster",
        hypothesis: "One large map is much faster than many small ones.",
        source: "QuestDB, on replacing many maps by one: 60 % faster",
        experiment: ID,
        rule: "pages looked at per second, in a cached file mapped by one call over the same mapped by a thousand: at least 1.6",
        needs: &[],
        test: at_least(
            &["many-maps"],
            Metric::OpsPerS,
            |group| is(group, &ONE_MAP),
            |group| is(group, &THOUSAND_MAPS),
            1.6,
            "`nofault lab claims` measures it",
        ),
    },
    Claim {
        id: "growth-in-large-steps",
        hypothesis: "A mapped file should grow in large steps, as each growth costs a new mapping.",
        source: "WiredTiger (MongoDB), 2020, on extending files in batches",
        experiment: ID,
        rule: "pages appended per second where the file grows by 1 MiB over those where it grows by a page: at least 1.2",
        needs: &[],
        test: at_least(
            &["file-growth"],
            Metric::OpsPerS,
            |group| extra(group, "step") == Some("1048576"),
            |group| extra(group, "step") == Some("4096"),
            1.2,
            "`nofault lab claims` measures it",
        ),
    },
    Claim {
        id: "remap-stalls",
        hypothesis: "Mapping a private view anew stalls in proportion to the pages that were copied in it.",
        source: "MongoDB MMAPv1, which did so every two seconds under its exclusive lock",
        experiment: ID,
        rule: "median time to map anew with the most copies over that with a smaller number, over the ratio of the numbers: 0.5 to 2",
        needs: &[],
        test: Test::Growth(Growth {
            among: Among::Variants(&[PRIVATE_REMAP]),
            which: |_| true,
            value: |_, group| count_of(group, "copied_pages"),
            pairs: |groups| {
                let mut order: Vec<usize> = (0..groups.len()).collect();
                order.sort_by(|a, b| groups[*a].0.total_cmp(&groups[*b].0));
                // The smallest number of copies that outweighs the call itself, and the largest.
                let from = order.iter().position(|at| groups[*at].0 >= 1000.0).unwrap_or(0);
                let few = order.get(from.min(order.len().saturating_sub(2)));
                let pair = few.zip(order.last()).filter(|(few, many)| groups[**many].0 > groups[**few].0);
                pair.map(|(few, many)| (*many, *few)).into_iter().collect()
            },
            metric: Metric::Latency("op", 500),
            bound: Bound::between(0.5, 2.0),
            place: |_| String::new(),
            words: |(many, large), (few, small), ratio, expected| {
                let time = |group: &Group<'_>| {
                    group
                        .spread(Metric::Latency("op", 500))
                        .map_or("–".into(), |took| Unit::Seconds.show(took.median))
                };
                format!(
                    "{} for {many:.0} copied pages, {} for {few:.0}: {} for {}× the pages",
                    time(large),
                    time(small),
                    times(ratio),
                    digits(expected)
                )
            },
            missing: "`nofault lab claims` measures it",
        }),
    },
    Claim {
        id: "dontcache-replaces-direct",
        hypothesis: "Buffered reads with RWF_DONTCACHE make O_DIRECT unnecessary.",
        source: "the patch series of Linux 6.14 on uncached buffered I/O, and its reception",
        experiment: ID,
        rule: "random reads of 4 KiB and 64 KiB from data larger than memory: at least 0.9 of the rate of O_DIRECT, at 1.1 times its CPU per read at most",
        needs: &[],
        test: Test::Pairs(Pairs {
            among: Among::Variants(&[UNCACHED_READ]),
            each: |group| is(group, &methods::PREAD_DONTCACHE),
            with: |uncached, other| is(other, &methods::PREAD_DIRECT) && other.spec.params == uncached.spec.params,
            compared: PairFigure::RatioWhereEqual(Metric::OpsPerS),
            bound: Bound::at_least(0.9),
            also: Some((Metric::CpuPerOp, Bound::at_most(1.1))),
            place: |group| bytes(group.spec.params.block_bytes),
            words: |pair| {
                let cpu = pair.also.as_ref().map_or("–".into(), times);
                format!("{}: rate {}, CPU a read {cpu}", pair.place, times(&pair.ratio))
            },
            missing: "`nofault lab claims --preset standard` measures it where the kernel has RWF_DONTCACHE (6.14)",
            ..Pairs::NONE
        }),
    },
    Claim {
        id: "writable-map-is-faster",
        hypothesis: "A writable map makes durable changes faster than write calls.",
        source: "LMDB, documentation of MDB_WRITEMAP",
        experiment: ID,
        rule: "commits per second with msync over those with pwrite and fdatasync, by pages a commit: at least 1.1; held in part where only some reach it",
        needs: &[],
        test: Test::Pairs(Pairs {
            among: Among::Variants(&[MAP_COMMIT]),
            each: |group| is(group, &MMAP_COMMIT),
            with: |map, other| is(other, &PWRITE_FDATASYNC) && other.spec.params == map.spec.params,
            compared: PairFigure::Ratio(Metric::OpsPerS),
            bound: Bound::at_least(1.1),
            place: |group| match extra(group, "commit_pages").unwrap_or("?") {
                "1" => "1 page".into(),
                pages => format!("{pages} pages"),
            },
            words: |pair| format!("{} a commit: {}", pair.place, times(&pair.ratio)),
            missing: "`nofault lab claims --preset standard` measures it",
            ..Pairs::NONE
        }),
    },
    Claim {
        id: "readers-are-free",
        hypothesis: "Readers are free: a snapshot that stays open costs nothing.",
        source: "LMDB and redb, on readers that take no locks; their issue trackers on files that grow",
        experiment: ID,
        rule: "growth with a reader held less growth without, of file and memory together, over one old copy of the entries that were overwritten, \
            which any store must keep for the reader, for each store that shares pages between versions: at most 1.1",
        needs: &[],
        test: Test::Pairs(Pairs {
            among: Among::Variants(&[LONG_READER]),
            each: |group| extra(group, "reader") == Some("held"),
            with: |held, other| {
                let same = other.spec.method == held.spec.method && extra(other, "updates") == extra(held, "updates");
                same && extra(other, "reader") == Some("none")
            },
            compared: PairFigure::Made(copies_grown),
            bound: Bound::at_most(ONE_COPY),
            place: |_| String::new(),
            words: |pair| {
                let bytes_of = |group: &Group<'_>| figure(group, "grown_bytes").map_or(0, |grown| grown.median as u64);
                format!(
                    "{}: {} with a reader and {} without, for {} in one old copy of the overwritten entries: {} of it",
                    pair.of.spec.method,
                    bytes(bytes_of(pair.of)),
                    bytes(bytes_of(pair.over)),
                    bytes(one_copy_bytes(pair.of).unwrap_or_default() as u64),
                    pair.ratio.show(Unit::Ratio)
                )
            },
            missing: "`nofault lab claims` measures it",
            ..Pairs::NONE
        }),
    },
];

/// Whether two groups read in units of one size.
fn is_as_large(one: &Group<'_>, other: &Group<'_>) -> bool {
    one.spec.params.block_bytes == other.spec.params.block_bytes
}

/// Decides the claim by comparing the gain in rate that mapping calls have from more threads with the gain of read calls.
fn calls(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, ID, super::MAP_CALLS);
    let metric = Metric::OpsPerS;
    let find = |method: &str, threads: u32| {
        let same = |group: &&&Group<'_>| group.spec.method == method && group.spec.params.threads == threads;
        groups.iter().find(same).copied()
    };
    let mut places = Places::default();
    let mut counts: Vec<u32> =
        groups.iter().map(|group| group.spec.params.threads).filter(|count| *count > 1).collect();
    counts.sort_unstable();
    counts.dedup();
    for threads in counts {
        let gain =
            |method: &str| judge::ratio(find(method, threads)?, find(method, 1)?, metric, &[Property::InFlight]).ok();
        let (Some(map), Some(read)) = (gain(MMAP_CALL_ONE_PAGE.id), gain(methods::PREAD_BUFFERED.id)) else { continue };
        let Some(ratio) = judge::ratio_of_ratios(&map, &read) else { continue };
        let late = |method: &str| {
            let spread = find(method, threads)?.spread(Metric::Latency("op", 990))?;
            Some(Unit::Seconds.show(spread.median))
        };
        let late = |method: &str| late(method).unwrap_or("–".into());
        let text = format!(
            "{threads} threads make {}× the calls of one where they map, {}× where they read: {}; p99 {} and {}",
            digits(map.median),
            digits(read.median),
            times(&ratio),
            late(MMAP_CALL_ONE_PAGE.id),
            late(methods::PREAD_BUFFERED.id)
        );
        let used: Vec<&Group<'_>> =
            groups.iter().copied().filter(|g| [1, threads].contains(&g.spec.params.threads)).collect();
        places.add(Bound::at_most(0.75).decide(&ratio), text, &used);
    }
    places.decide("`nofault lab claims` measures it")
}

/// Growth under a reader, in old copies of the overwritten entries, up to which the reader costs no more than it must.
const ONE_COPY: f64 = 1.1;

/// The share of the keys that are overwritten at least once by updates at random.
fn overwritten(updates: f64, keys: f64) -> f64 {
    1.0 - (-updates / keys.max(1.0)).exp()
}

/// The bytes of one old copy of the entries that a trial overwrites.
fn one_copy_bytes(held: &Group<'_>) -> Option<f64> {
    let before = figure(held, "used_before_bytes")?;
    let (updates, keys) = (count_of(held, "updates").unwrap_or(f64::INFINITY), count_of(held, "keys").unwrap_or(1.0));
    Some(before.median.max(1.0) * overwritten(updates, keys))
}

/// The growth of a store while a reader is held less its growth without, in old copies of the overwritten entries.
fn copies_grown(held: &Group<'_>, without: &Group<'_>) -> Option<Spread> {
    let (with, base, least) = (figure(held, "grown_bytes")?, figure(without, "grown_bytes")?, one_copy_bytes(held)?);
    let share = |grown: f64, other: f64| (grown - other) / least;
    Some(Spread {
        median: share(with.median, base.median),
        min: share(with.min, base.max),
        max: share(with.max, base.min),
        count: with.count.min(base.count),
    })
}

/// The rules of the verdict for which `claims` gives evidence, each with the function that finds the evidence in the
/// records.
pub(super) static EVIDENCE: &[Evidence] = &[Evidence::of(Rule::InMemory, cached)];

/// Finds reasons for the verdict in reads of cached data in the smallest units.
fn cached(records: &Records<'_>, workload: &Workload) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // No access waits for a device, so more threads than CPUs do as much work as one thread for each CPU.
    let wanted = workload.threads.map(|count| count.min(records.file.run.machine.cpu_count.max(1)));
    let cached: Vec<&Group<'_>> = records.of(ID).filter(|group| group.spec.variant == CACHED_READ).collect();
    let least = cached.iter().map(|group| group.spec.params.block_bytes).min().unwrap_or(0);
    let find = |method: &str| {
        cached.iter().copied().find(|group| group.spec.method == method && group.spec.params.block_bytes == least)
    };
    if let (Some(map), Some(read)) = (find(MMAP_IN_PLACE.id), find(methods::PREAD_BUFFERED.id)) {
        let what = format!("cached data in units of {}, against read calls (no pool)", bytes(least));
        let found = reason("in memory", map, read, Metric::BytesPerS, &what);
        reasons.extend(
            found.map(|reason| reason.at_thread_counts(wanted, [threads(map), threads(read)], "cached data", map)),
        );
    }
    reasons
}
