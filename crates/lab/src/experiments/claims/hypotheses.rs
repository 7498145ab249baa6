//! Published claims about mmap that the records of `claims` decide.

use super::{ID, MMAP_CALL_ONE_PAGE, MMAP_COMMIT, MMAP_COPY, MMAP_IN_PLACE, ONE_MAP, PWRITE_FDATASYNC, THOUSAND_MAPS};
use crate::format::{Unit, bytes, digits};
use crate::judge;
use crate::judge::bound::Bound;
use crate::judge::claim::{
    Claim, Decision, Places, Records, Test, at_least, both, count_of, extra, figure, is, of_variant, times,
};
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
        test: Test::Own(cached),
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
        test: Test::Own(remap),
    },
    Claim {
        id: "dontcache-replaces-direct",
        hypothesis: "Buffered reads with RWF_DONTCACHE make O_DIRECT unnecessary.",
        source: "the patch series of Linux 6.14 on uncached buffered I/O, and its reception",
        experiment: ID,
        rule: "random reads of 4 KiB and 64 KiB from data larger than memory: at least 0.9 of the rate of O_DIRECT, at 1.1 times its CPU per read at most",
        needs: &[],
        test: Test::Own(dontcache),
    },
    Claim {
        id: "writable-map-is-faster",
        hypothesis: "A writable map makes durable changes faster than write calls.",
        source: "LMDB, documentation of MDB_WRITEMAP",
        experiment: ID,
        rule: "commits per second with msync over those with pwrite and fdatasync, by pages a commit: at least 1.1; held in part where only some reach it",
        needs: &[],
        test: Test::Own(writable),
    },
    Claim {
        id: "readers-are-free",
        hypothesis: "Readers are free: a snapshot that stays open costs nothing.",
        source: "LMDB and redb, on readers that take no locks; their issue trackers on files that grow",
        experiment: ID,
        rule: "growth with a reader held less growth without, of file and memory together, over one old copy of the entries that were overwritten, \
            which any store must keep for the reader, for each store that shares pages between versions: at most 1.1",
        needs: &[],
        test: Test::Own(readers),
    },
];

/// Decides the claim by comparing a map with read calls on cached data, at each unit size.
fn cached(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, ID, super::CACHED_READ);
    let metric = Metric::BytesPerS;
    let mut places = Places::default();
    let find = |method: &str, block: u64| {
        let same = |group: &&&Group<'_>| group.spec.method == method && group.spec.params.block_bytes == block;
        groups.iter().find(same).copied()
    };
    let mut sizes: Vec<u64> = groups.iter().map(|group| group.spec.params.block_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let (Some(copy), Some(read)) = (find(MMAP_COPY.id, size), find(methods::PREAD_BUFFERED.id, size)) else {
            continue;
        };
        let Some(ratio) = places.ratio(&bytes(size), (copy, read), metric, &[]) else { continue };
        let in_place = find(MMAP_IN_PLACE.id, size).and_then(|group| judge::ratio(group, read, metric, &[]).ok());
        let in_place = in_place.map_or(String::new(), |ratio| format!(", in place {}", Unit::Ratio.show(ratio.median)));
        let text = format!("{}: copied out {}{in_place}", bytes(size), times(&ratio));
        places.add(Bound::at_least(2.0).decide(&ratio), text, &[copy, read]);
    }
    places.decide("`nofault lab claims` measures it")
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

/// Decides the claim by whether the time of remapping a private view grows with the number of copied pages.
fn remap(records: &Records<'_>) -> Decision {
    let mut groups: Vec<(f64, &Group<'_>)> = of_variant(records, ID, super::PRIVATE_REMAP)
        .into_iter()
        .filter_map(|group| Some((count_of(group, "copied_pages")?, group)))
        .collect();
    groups.sort_by(|a, b| a.0.total_cmp(&b.0));
    let metric = Metric::Latency("op", 500);
    let mut places = Places::default();
    // The smallest number of copies that outweighs the call itself, and the largest.
    let from = groups.iter().position(|(count, _)| *count >= 1000.0).unwrap_or(0);
    if let (Some((few, small)), Some((many, large))) =
        (groups.get(from.min(groups.len().saturating_sub(2))), groups.last())
        && many > few
        && let (Some(a), Some(b)) = (large.spread(metric), small.spread(metric))
        && let Some(ratio) = places.ratio("", (large, small), metric, &[])
    {
        let expected = many / few;
        let share = ratio.times(1.0 / expected);
        let text = format!(
            "{} for {many:.0} copied pages, {} for {few:.0}: {} for {}× the pages",
            Unit::Seconds.show(a.median),
            Unit::Seconds.show(b.median),
            times(&ratio),
            digits(expected)
        );
        places.add(Bound::between(0.5, 2.0).decide(&share), text, &[large, small]);
    }
    places.decide("`nofault lab claims` measures it")
}

/// Returns each group of method `one` with the group of method `other` with the same parameters.
fn pairs<'a>(
    groups: &'a [&'a Group<'a>],
    one: &'a str,
    other: &'a str,
) -> impl Iterator<Item = (&'a Group<'a>, &'a Group<'a>)> {
    groups.iter().copied().filter(move |group| group.spec.method == one).filter_map(move |group| {
        let same = |beside: &&&Group<'_>| beside.spec.method == other && beside.spec.params == group.spec.params;
        Some((group, *groups.iter().find(same)?))
    })
}

/// Decides the claim by comparing uncached buffered reads with direct reads.
fn dontcache(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, ID, super::UNCACHED_READ);
    let mut places = Places::default();
    for (uncached, direct) in pairs(&groups, methods::PREAD_DONTCACHE.id, methods::PREAD_DIRECT.id) {
        let over = |metric: Metric| judge::ratio(uncached, direct, metric, &[]).ok();
        let (Some(rate), Some(cpu)) = (over(Metric::OpsPerS), over(Metric::CpuPerOp)) else { continue };
        let outcome = both(Bound::at_least(0.9).decide(&rate), Bound::at_most(1.1).decide(&cpu));
        let size = bytes(uncached.spec.params.block_bytes);
        let text = format!("{size}: rate {}, CPU a read {}", times(&rate), times(&cpu));
        places.add(outcome, text, &[uncached, direct]);
    }
    places.decide("`nofault lab claims --preset standard` measures it where the kernel has RWF_DONTCACHE (6.14)")
}

/// Decides the claim by comparing commits through a writable map with commits by write calls.
fn writable(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, ID, super::MAP_COMMIT);
    let mut places = Places::default();
    for (map, write) in pairs(&groups, MMAP_COMMIT.id, PWRITE_FDATASYNC.id) {
        let pages = extra(map, "commit_pages").unwrap_or("?");
        let pages = if pages == "1" { "1 page".to_owned() } else { format!("{pages} pages") };
        let Some(ratio) = places.ratio(&pages, (map, write), Metric::OpsPerS, &[]) else { continue };
        places.add(Bound::at_least(1.1).decide(&ratio), format!("{pages} a commit: {}", times(&ratio)), &[map, write]);
    }
    places.decide("`nofault lab claims --preset standard` measures it")
}

/// Growth under a reader, in old copies of the overwritten entries, up to which the reader costs no more than it must.
const ONE_COPY: f64 = 1.1;

/// The share of the keys that are overwritten at least once by updates at random.
fn overwritten(updates: f64, keys: f64) -> f64 {
    1.0 - (-updates / keys.max(1.0)).exp()
}

/// Decides the claim by the growth of each store while a reader is held.
fn readers(records: &Records<'_>) -> Decision {
    let groups = of_variant(records, ID, super::LONG_READER);
    let mut places = Places::default();
    for held in groups.iter().copied().filter(|group| extra(group, "reader") == Some("held")) {
        let without = groups.iter().copied().find(|group| {
            group.spec.method == held.spec.method
                && extra(group, "reader") == Some("none")
                && extra(group, "updates") == extra(held, "updates")
        });
        let Some(without) = without else { continue };
        let (Some(with), Some(base), Some(before)) =
            (figure(held, "grown_bytes"), figure(without, "grown_bytes"), figure(held, "used_before_bytes"))
        else {
            continue;
        };
        let (updates, keys) =
            (count_of(held, "updates").unwrap_or(f64::INFINITY), count_of(held, "keys").unwrap_or(1.0));
        let least = before.median.max(1.0) * overwritten(updates, keys);
        let share = |grown: f64, other: f64| (grown - other) / least;
        let grown = Spread {
            median: share(with.median, base.median),
            min: share(with.min, base.max),
            max: share(with.max, base.min),
            count: with.count.min(base.count),
        };
        let text = format!(
            "{}: {} with a reader and {} without, for {} in one old copy of the overwritten entries: {} of it",
            held.spec.method,
            bytes(with.median as u64),
            bytes(base.median as u64),
            bytes(least as u64),
            grown.show(Unit::Ratio)
        );
        places.add(Bound::at_most(ONE_COPY).decide(&grown), text, &[held, without]);
    }
    places.decide("`nofault lab claims` measures it")
}
