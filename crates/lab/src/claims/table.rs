//! The claims. Each that is a plain comparison is data here; the rules of the others are in [`super::own`].

use super::{Claim, Ratio, Test, extra, own, prices};
use crate::record::CacheState;
use crate::summary::{Family, Group, Metric, is_plain};

fn mapped(group: &Group<'_>) -> bool {
    group.pages_through_a_map()
}

fn one_at_a_time(family: Family) -> bool {
    matches!(family, Family::Mapped | Family::Buffered | Family::Direct)
}

fn explicit(group: &Group<'_>) -> bool {
    group.family().is_explicit()
}

fn cold(group: &Group<'_>, contender: &str) -> bool {
    let spec = group.spec;
    spec.contender == contender && spec.cache == CacheState::Cold && is_plain(&spec.params)
}

fn is(group: &Group<'_>, contender: &str) -> bool {
    group.spec.contender == contender
}

const fn at_least(
    variants: &'static [&'static str],
    metric: Metric,
    of: super::Pick,
    over: super::Pick,
    low: f64,
    missing: &'static str,
) -> Test {
    Test::Ratio(Ratio { variants, metric, of, over, low, high: f64::INFINITY, missing })
}

const fn at_most(
    variants: &'static [&'static str],
    metric: Metric,
    of: super::Pick,
    over: super::Pick,
    high: f64,
    missing: &'static str,
) -> Test {
    Test::Ratio(Ratio { variants, metric, of, over, low: 0.0, high, missing })
}

/// Every claim that is tried.
pub static CLAIMS: &[Claim] = &[
    Claim {
        id: "half-of-direct",
        hypothesis: "Random reads through mmap reach about half of what O_DIRECT reaches once memory is full.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.1 and figure 2",
        experiment: "random",
        rule: "reads per second of the best map over those of the best O_DIRECT contender lie between 0.35 and 0.65 on each target",
        test: Test::Ratio(Ratio {
            variants: &[""],
            metric: Metric::OpsPerS,
            of: mapped,
            over: explicit,
            low: 0.35,
            high: 0.65,
            missing: "`nofault lab random` measures it",
        }),
    },
    Claim {
        id: "predicted-by-fault-cost",
        hypothesis: "That ratio follows from two figures: what the device gives, and the CPU that a fault costs.",
        source: "the lab's own reading of §4.1: min(device, CPUs ÷ (CPU of a read + of a fault + of an eviction))",
        experiment: "random",
        rule: "predicted for each target from calibration, without any cell of the map: the smaller of the best O_DIRECT rate, and CPUs over the CPU of a direct read, \
            a fault in a mapped file with nothing to read and taking such a page away; the rate of the best map lies within a third of it",
        test: Test::Own(own::predicted),
    },
    Claim {
        id: "hint-costs-read-ahead",
        hypothesis: "Without MADV_RANDOM, what random reads cost grows with the device's read-ahead.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, figure 2 (NORMAL and SEQUENTIAL at 1/40); here with its cause",
        experiment: "random",
        rule: "device bytes for each byte asked, with MADV_NORMAL: their ratio between two values of read_ahead_kb is 0.5 to 2 times the \
            ratio of the values",
        test: Test::Own(own::hint),
    },
    Claim {
        id: "collapse-when-full",
        hypothesis: "Random reads through mmap fall to less than half once memory is full and eviction begins.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.1 and figure 2: 0.9 M to 0.4 M reads/s",
        experiment: "random",
        rule: "MADV_RANDOM, in each cell that filled: reads per second after the fill over those before it are at most 0.5",
        test: Test::Own(own::collapse),
    },
    Claim {
        id: "scan-below-half",
        hypothesis: "A sequential scan through mmap reaches less than half of what direct I/O reaches, from one device.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.2 and figure 3: 2.5 of 6.8 GB/s",
        experiment: "scan",
        rule: "bytes per second of the best map over those of the best O_DIRECT contender are at most 0.5, on each target",
        test: at_most(&[""], Metric::BytesPerS, mapped, explicit, 0.5, "`nofault lab scan` measures it"),
    },
    Claim {
        id: "striping-gains-nothing",
        hypothesis: "Scans through mmap gain nothing from more devices, where direct I/O does.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.2 and figure 4: 2.7 of 60 GB/s from ten SSDs",
        experiment: "scan",
        rule: "best map striped over best map on one: at most 1.2, where the same ratio of direct I/O is at least 1.5",
        test: Test::Own(own::striping),
    },
    Claim {
        id: "shootdowns-dominate",
        hypothesis: "TLB shootdowns are the larger part of what eviction costs a map.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.4; doubted by Fast Page Recycling (arXiv 2409.10946)",
        experiment: "eviction",
        rule: "where pages were evicted: CPU per operation of a map whose threads are pinned to one CPU, so that no other TLB must be told, over \
            that of the same map on as many threads and all CPUs: at most 0.5",
        test: Test::Own(prices::shootdowns),
    },
    Claim {
        id: "one-kswapd-is-the-wall",
        hypothesis: "One kswapd thread is what limits a map whose pages must be evicted.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.4: single-threaded page eviction",
        experiment: "eviction",
        rule: "of the maps under a ballast that keep kswapd busiest (a scan where one was measured), kswapd uses at least 85 % of a \
            core, and the same scan is at least 1.1 times as fast under a cgroup, which has no kswapd",
        test: Test::Own(prices::kswapd),
    },
    Claim {
        id: "one-fault-stalls-all",
        hypothesis: "One page fault stalls every task of a single-threaded executor: async over a map is no better than one thread.",
        source: "Huon Wilson, Async hazard, 2024; Valialkin on Go's runtime",
        experiment: "async",
        rule: "time of the async tasks over a cold map, over that of one plain thread over the same map, at least 0.8 (random touches)",
        test: at_least(
            &["random-touch"],
            Metric::Seconds,
            |group| cold(group, "async-mmap"),
            |group| cold(group, "single-mmap"),
            0.8,
            "`nofault lab async` measures it",
        ),
    },
    Claim {
        id: "batching-decides",
        hypothesis: "For one thread, batches of requests decide the rate, and a map cannot batch.",
        source: "Leonardo Benicio, 2022, §6: 1.6 M/s in batches against 0.72 M/s one at a time",
        experiment: "access",
        rule: "random reads per second of the best io_uring batch over the best of map, pread and O_DIRECT, each one thread, on the file: at least 2",
        test: at_least(
            &["read"],
            Metric::OpsPerS,
            |group| group.family() == Family::Ring && group.spec.target.label != "ram",
            |group| one_at_a_time(group.family()) && group.spec.target.label != "ram",
            2.0,
            "`nofault lab access` measures it",
        ),
    },
    Claim {
        id: "map-beats-read-calls",
        hypothesis: "One thread reads at random faster through a map than by calls through the page cache.",
        source: "Leonardo Benicio, 2022, §6: 780 K/s against 650 K/s",
        experiment: "access",
        rule: "reads per second of the map over those of buffered pread, both told RANDOM: more than 1 on each target",
        test: at_least(
            &["read"],
            Metric::OpsPerS,
            |group| is(group, "mmap"),
            |group| is(group, "pread-buffered"),
            1.0,
            "`nofault lab access` measures it",
        ),
    },
    Claim {
        id: "one-thread-720k",
        hypothesis: "One thread makes 720 K synchronous O_DIRECT reads a second from an SSD.",
        source: "Leonardo Benicio, 2022, §6, which itself gives 5 to 15 µs for a read: at most 200 K/s",
        experiment: "access",
        rule: "one at a time, 720 K reads a second leave 1.39 µs for each: the median O_DIRECT read of the file takes no longer",
        test: Test::Own(own::one_thread),
    },
    Claim {
        id: "cached-2x-faster",
        hypothesis: "Cached data is read two to four times faster through a map than by read calls.",
        source: "WiredTiger (MongoDB), 2020, on memory-mapped files",
        experiment: "claims",
        rule: "bytes per second copied out of a map over those of buffered pread, all in the page cache, by size of a read: at least 2; held in \
            part where only some sizes reach it",
        test: Test::Own(own::cached),
    },
    Claim {
        id: "map-calls-contend",
        hypothesis: "Calls of mmap and munmap contend: mapping files for each query does not scale with threads as reading does.",
        source: "SingleStore, on mmap_sem: 10 to 20 ms a query",
        experiment: "claims",
        rule: "mapping, touching one page and unmapping: rate with several threads over that with one, over the same of pread, at most 0.75",
        test: Test::Own(own::calls),
    },
    Claim {
        id: "one-map-is-faster",
        hypothesis: "One large map is much faster than many small ones.",
        source: "QuestDB, on replacing many maps by one: 60 % faster",
        experiment: "claims",
        rule: "pages looked at per second, in a cached file mapped by one call over the same mapped by a thousand: at least 1.6",
        test: at_least(
            &["many-maps"],
            Metric::OpsPerS,
            |group| is(group, "one-map"),
            |group| is(group, "thousand-maps"),
            1.6,
            "`nofault lab claims` measures it",
        ),
    },
    Claim {
        id: "growth-in-large-steps",
        hypothesis: "A mapped file should grow in large steps, as each growth costs a new mapping.",
        source: "WiredTiger (MongoDB), 2020, on extending files in batches",
        experiment: "claims",
        rule: "pages appended per second where the file grows by 1 MiB over those where it grows by a page: at least 1.2",
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
        experiment: "claims",
        rule: "median time to map anew with the most copies over that with a smaller number, over the ratio of the numbers: 0.5 to 2",
        test: Test::Own(own::remap),
    },
    Claim {
        id: "dontcache-replaces-direct",
        hypothesis: "Buffered reads with RWF_DONTCACHE make O_DIRECT unnecessary.",
        source: "the patch series of Linux 6.14 on uncached buffered I/O, and its reception",
        experiment: "claims",
        rule: "random reads of 4 KiB and 64 KiB from data larger than memory: at least 0.9 of the rate of O_DIRECT, at 1.1 times its CPU per read at most",
        test: Test::Own(own::dontcache),
    },
    Claim {
        id: "writable-map-is-faster",
        hypothesis: "A writable map makes durable changes faster than write calls.",
        source: "LMDB, documentation of MDB_WRITEMAP",
        experiment: "claims",
        rule: "commits per second with msync over those with pwrite and fdatasync, by pages a commit: at least 1.1; held in part where only some reach it",
        test: Test::Own(own::writable),
    },
    Claim {
        id: "readers-are-free",
        hypothesis: "Readers are free: a snapshot that stays open costs nothing.",
        source: "LMDB and redb, on readers that take no locks; their issue trackers on files that grow",
        experiment: "claims",
        rule: "growth with a reader held less growth without, of file and memory together, as a share of the data, for each store that shares pages \
            between versions: at most 0.1",
        test: Test::Own(own::readers),
    },
    Claim {
        id: "pool-costs-as-much",
        hypothesis: "A buffer pool must cost as much as mmap once it caches, evicts and locks.",
        source: "Oren Eini (RavenDB), replies to the paper",
        experiment: "random",
        rule: "CPU of a random read of data larger than memory through the engine's own pool, which caches, evicts and pins, over \
            that through the best map (`random`), and time of a lookup in memory through a hash table with locks and pins over \
            that in a mapped file (`translate`): each at least 0.9",
        test: Test::Own(prices::pool),
    },
    Claim {
        id: "pool-matches-map-in-memory",
        hypothesis: "In memory a well-made buffer pool is about as fast as mmap.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §5, with pointer swizzling",
        experiment: "translate",
        rule: "lookups per second of the best pool translation over those of the mapped file, at each working set: at least 0.9",
        test: Test::Own(own::matches),
    },
    Claim {
        id: "uncommitted-reaches-disk",
        hypothesis: "A page that a transaction changed in a shared map can be on the disk before the transaction commits.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.1",
        experiment: "safety",
        rule: "uncommitted bytes were read back from the file with O_DIRECT",
        test: Test::Own(own::sin),
    },
    Claim {
        id: "workarounds-do-not-cure",
        hypothesis: "Hints, locks and helper threads do not keep a map from stalling.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.2",
        experiment: "stalls",
        rule: "p99.9 of an access with the best work-around, over that of explicit I/O asked in the same way, at least 2; without those that \
            probe, whose waits are timed apart from their accesses",
        test: at_least(
            &["ahead"],
            Metric::Latency("op", 999),
            |group| mapped(group) && !is(group, "mmap") && !group.waits_apart(),
            explicit,
            2.0,
            "`nofault lab stalls` measures it",
        ),
    },
    Claim {
        id: "errors-become-signals",
        hypothesis: "A failed read of a map is a signal that ends the process, where explicit I/O returns an error.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §3.3",
        experiment: "errors",
        rule: "of the faults `truncated` and `read-error`: each mapped store meets a signal, the lab's guard turning it into an error or not, and \
            each explicit one returns an error",
        test: Test::Own(own::signals),
    },
    Claim {
        id: "lmdb-is-crash-proof",
        hypothesis: "LMDB's design (a read-only map, copied pages, two metas) needs no further protection: it is crash-proof.",
        source: "Howard Chu (Symas), on LMDB",
        experiment: "errors",
        rule: "no commit lost or torn after kill -9 (`safety`; power cuts are imitated by the engine's tests, not by the lab), no wrong answer and no \
            signal, caught by the lab's guard or not, by a flipped bit or a failed read (`errors`), for the `shadow` stores",
        test: Test::Own(own::crash_proof),
    },
    Claim {
        id: "sqlite-gains-from-mmap",
        hypothesis: "SQLite reads faster with mmap_size set.",
        source: "SQLite, documentation of memory-mapped I/O: up to twice for I/O-bound queries",
        experiment: "engines",
        rule: "YCSB C operations per second with a large mmap_size over those with mmap_size 0, in memory and larger than memory, each: at least 1.1",
        test: Test::Own(own::sqlite),
    },
];

const _: () = assert!(CLAIMS.len() >= 12, "the paper, the posts and the rebuttals");
