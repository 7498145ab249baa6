//! Tests each claim with figures that confirm it and figures that refute it: no rule may have a fixed answer.

use std::collections::BTreeMap;

use fastrand::Rng;
use hdrhistogram::Histogram;
use nofault_lab::experiments;
use nofault_lab::record::file::RecordFile;
use nofault_lab::record::{ExperimentId, Latency, MemoryLimit, MemoryMethod, Trial};
use nofault_lab::report::claims::{self, Decision, Outcome};
use nofault_lab::report::findings::findings;
use nofault_lab::summary::Summary;

use crate::synthetic::{self, Like};

/// A record file that a test builds trial by trial.
struct Made {
    file: RecordFile,
    rng: Rng,
}

/// Where a trial belongs: experiment, variant and target.
type Place = (ExperimentId, &'static str, &'static str);

impl Made {
    fn new() -> Self {
        let mut file = synthetic::empty();
        // As the paper's machine, so that no claim lacks a precondition.
        file.run.machine.cpu_count = 128;
        Self { file, rng: Rng::with_seed(3) }
    }

    /// Adds three repeats of a trial with the behaviour `like`; `change` is applied to each.
    fn changed(&mut self, (experiment, variant, target): Place, like: Like, change: impl Fn(&mut Trial)) -> &mut Self {
        for repeat in 0..3 {
            let spec = synthetic::spec(experiment, variant, target, &like, repeat);
            let mut trial = synthetic::timed(&mut self.rng, spec, &like);
            change(&mut trial);
            self.file.trials.push(trial);
        }
        self
    }

    fn plain(&mut self, place: Place, like: Like) -> &mut Self {
        self.changed(place, like, |_| ())
    }

    /// Adds three repeats of a trial with an extra parameter.
    fn with(&mut self, place: Place, like: Like, name: &str, value: &str) -> &mut Self {
        self.changed(place, like, |trial| set(trial, name, value))
    }

    /// Adds three repeats of a trial with these figures of the experiment's own.
    fn figures(&mut self, place: Place, method: &'static str, figures: &[(&str, f64)]) -> &mut Self {
        self.changed(place, Like::steady(method, 1, 1, 1e4, 3.0), |trial| {
            trial.outcome.figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        })
    }
}

fn set(trial: &mut Trial, name: &str, value: &str) {
    trial.spec.params.extra.insert(name.into(), value.into());
}

fn rate(method: &'static str, threads: u32, rate: f64) -> Like {
    Like::steady(method, threads, 1, rate, 3.0)
}

/// Sets every sample of the latency `op`.
fn takes(trial: &mut Trial, microseconds: f64) {
    trial.outcome.latency = BTreeMap::from([("op".to_owned(), all_of(microseconds))]);
}

fn all_of(microseconds: f64) -> Latency {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 600_000_000_000, 3).unwrap();
    histogram.record_n((microseconds * 1000.0) as u64, 100).unwrap();
    Latency::of(&histogram)
}

const RANDOM: Place = (experiments::random::ID, "", "file");
const SCAN: Place = (experiments::scan::ID, "", "file");
const READ: Place = (experiments::access::ID, "read", "file");

/// Adds records that confirm the claim `id`, or with `so` false refute it. Returns false for an unknown claim.
fn made(id: &str, so: bool, made: &mut Made) -> bool {
    let of = |variant: &'static str| (experiments::claims::ID, variant, "file");
    let either = |yes: f64, no: f64| if so { yes } else { no };
    match id {
        "half-of-direct" => {
            made.plain(RANDOM, rate("mmap-random", 16, either(5e4, 9e4))).plain(RANDOM, rate("pread-direct", 16, 1e5));
        }
        "predicted-by-fault-cost" => {
            let costs_ns = [("fault_of_a_file_page", 2000.0), ("eviction_of_a_file_page", 1000.0)];
            made.file.run.machine.cpu_count = 2;
            made.file.run.machine.costs_ns.extend(costs_ns.map(|(name, cost_ns)| (name.to_owned(), cost_ns)));
            // Two CPUs, divided by 2 + 2 + 1 µs.
            // A rate of 0.685 times the prediction misses it by more than a third of itself.
            made.plain(RANDOM, rate("mmap-random", 16, either(4e5, 2.74e5)))
                .plain(RANDOM, Like::steady("pread-direct", 16, 1, 1e6, 2.0));
        }
        "hint-costs-read-ahead" => {
            for (kib, bytes) in [("128", 30.0), ("1024", either(240.0, 31.0))] {
                let like = rate("mmap-normal", 16, 1e3).mapped(1e3, bytes, 9.0, 0.1);
                made.with(RANDOM, like, "read_ahead_kb", kib);
            }
        }
        "collapse-when-full" => {
            made.plain(RANDOM, rate("mmap-random", 16, either(3e4, 9e4)).mapped(1e5, 1.0, 9.0, 0.1));
        }
        "scan-below-half" => {
            made.plain(SCAN, rate("mmap-normal", 4, either(1e3, 2.5e3))).plain(SCAN, rate("pread-direct", 4, 3e3));
        }
        "striping-gains-nothing" => {
            let striped = (experiments::scan::ID, "", "striped-2");
            made.plain(SCAN, rate("mmap-normal", 4, 1e3)).plain(SCAN, rate("pread-direct", 4, 3e3));
            made.plain(striped, rate("mmap-normal", 4, either(1e3, 1.9e3)))
                .plain(striped, rate("pread-direct", 4, 6e3));
        }
        "shootdowns-dominate" => {
            let place = (experiments::eviction::ID, "random-cgroup", "file");
            let like = |cpu_us| Like::steady("mmap-random", 16, 1, 1e5, cpu_us).mapped(1e5, 1.0, 900.0, 0.1);
            made.plain(place, like(10.0)).with(place, like(either(3.0, 9.0)), "pin", "1");
        }
        "one-kswapd-is-the-wall" => scans_by_kswapd(0.97, Some(either(2e3, 1e3)), made),
        "one-fault-stalls-all" => {
            let place = (experiments::async_hazard::ID, "random-touch", "file");
            for (method, seconds) in [("async-mmap", either(1.0, 0.3)), ("single-mmap", 1.0)] {
                made.changed(place, rate(method, 1, 1e3), |trial| {
                    set(trial, "files", "8");
                    trial.outcome.elapsed_s = seconds;
                });
            }
        }
        "batching-decides" => {
            made.plain(READ, Like::steady("uring-direct", 1, 64, either(1e5, 2.5e4), 3.0));
            made.plain(READ, rate("pread-direct", 1, 2e4));
        }
        "map-beats-read-calls" => {
            made.plain(READ, rate("mmap", 1, either(2e4, 5e3))).plain(READ, rate("pread-buffered", 1, 1e4));
        }
        "one-thread-720k" => {
            made.changed(READ, rate("pread-direct", 1, 1e4), |trial| takes(trial, either(1.0, 50.0)));
        }
        "cached-2x-faster" => {
            made.plain(of("cached-read"), rate("mmap-copy", 1, either(3e5, 9e4)));
            made.plain(of("cached-read"), rate("pread-buffered", 1, 1e5));
        }
        "map-calls-contend" => {
            for (threads, map, read) in [(1, 1e5, 1e5), (4, either(1e5, 3e5), 3e5)] {
                made.plain(of("map-calls"), rate("mmap-call-one-page", threads, map));
                made.plain(of("map-calls"), rate("pread-buffered", threads, read));
            }
        }
        "one-map-is-faster" => {
            made.plain(of("many-maps"), rate("one-map", 1, either(2e5, 1e5)));
            made.plain(of("many-maps"), rate("thousand-maps", 1, 1e5));
        }
        "growth-in-large-steps" => {
            made.with(of("file-growth"), rate("grow-mapped", 1, either(2e5, 1e5)), "step", "1048576");
            made.with(of("file-growth"), rate("grow-mapped", 1, 1e5), "step", "4096");
        }
        "remap-stalls" => {
            for (pages, microseconds) in [("1024", 200.0), ("16384", either(3200.0, 200.0))] {
                made.changed(of("private-remap"), rate("mmap-private", 1, 1e2), |trial| {
                    set(trial, "copied_pages", pages);
                    takes(trial, microseconds);
                });
            }
        }
        "dontcache-replaces-direct" => {
            made.plain(of("uncached-read"), rate("pread-dontcache", 16, either(1.1e5, 5e4)));
            made.plain(of("uncached-read"), rate("pread-direct", 16, 1e5));
        }
        "writable-map-is-faster" => {
            made.with(of("map-commit"), rate("mmap-commit", 1, either(2e3, 5e2)), "commit_pages", "1");
            made.with(of("map-commit"), rate("pwrite-fdatasync", 1, 1e3), "commit_pages", "1");
        }
        "readers-are-free" => {
            // Every key is overwritten: the old copy of all of them is 3e5 bytes, and no store does with less.
            for (reader, grown) in [("none", 1e4), ("held", either(3.2e5, 9e7))] {
                made.changed(of("long-reader"), rate("shadow", 1, 1e5), |trial| {
                    set(trial, "reader", reader);
                    set(trial, "updates", "50000");
                    set(trial, "keys", "2000");
                    let figures = [("grown_bytes", grown), ("used_before_bytes", 3e5)];
                    trial.outcome.figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
                });
            }
        }
        "pool-costs-as-much" => {
            made.plain(RANDOM, Like::steady("pool", 16, 1, 1e5, either(16.0, 5.0)));
            made.plain(RANDOM, Like::steady("mmap-random", 16, 1, 1e5, 12.0));
            for (method, ns) in [("hash-pinned", either(400.0, 100.0)), ("mapped-huge", 200.0), ("mapped", 90.0)] {
                made.changed((experiments::translate::ID, "lookup", "memory"), rate(method, 1, 1e6), |trial| {
                    set(trial, "working_set", "1073741824");
                    trial.outcome.figures.insert("time_per_op_s".into(), ns / 1e9);
                });
            }
        }
        "pool-matches-map-in-memory" => {
            let place = (experiments::translate::ID, "lookup", "memory");
            // Each in pages of one size: a fast pool in huge pages says nothing about a map in small ones.
            made.with(place, rate("array-small", 1, either(1.2e6, 5e5)), "working_set", "1073741824");
            made.with(place, rate("array", 1, 9e6), "working_set", "1073741824");
            made.with(place, rate("mapped", 1, 1e6), "working_set", "1073741824");
        }
        "uncommitted-reaches-disk" => {
            let place = (experiments::safety::ID, "sin", "file");
            made.figures(place, "mmap-shared", &[("uncommitted_on_disk", either(64.0, 0.0))]);
        }
        "workarounds-do-not-cure" => {
            let place = (experiments::stalls::ID, "ahead", "file");
            made.changed(place, rate("mmap-helpers", 1, 1e4), |trial| takes(trial, either(9e3, 1e3)));
            made.changed(place, rate("uring-direct", 1, 1e4), |trial| takes(trial, 1e3));
        }
        "hints-match-a-ring" => {
            let place = (experiments::batch::ID, "cold", "file");
            made.with(place, rate("batch-touch", 1, 1e3), "pages", "512");
            made.with(place, rate("batch-willneed", 1, either(9.5e4, 5e4)), "pages", "512");
            made.with(place, rate("batch-ring", 1, 1e5), "pages", "512");
        }
        "warm-ring-is-slower" => {
            let place = (experiments::batch::ID, "warm", "file");
            made.with(place, rate("batch-touch", 1, either(5e6, 1.2e6)), "pages", "512");
            made.with(place, rate("batch-ring-buffered", 1, 1e6), "pages", "512");
        }
        "random-hint-forgets-hot-pages" => {
            let place = (experiments::crossover::ID, "hot-set", "ram");
            for (method, pages) in
                [("mmap-random", either(0.4, 0.21)), ("mmap-normal", 0.2), ("pread-buffered-random", 0.19)]
            {
                made.plain(place, rate(method, 4, 1e5).mapped(1e5, pages, 9.0, 0.0));
            }
        }
        "direct-loads-3x-faster" => {
            let place = (experiments::load::ID, "cold", "file");
            for (method, buffers, seconds) in
                [("load-touch", "small", either(4.0, 2.0)), ("load-direct", "small", 2.0), ("load-direct", "huge", 1.0)]
            {
                made.changed(place, rate(method, 1, 1e3), |trial| {
                    set(trial, "blocks", "512");
                    set(trial, "buffers", buffers);
                    trial.outcome.elapsed_s = seconds;
                });
            }
        }
        "cache-keeps-nothing-of-a-cycle" => {
            let place = (experiments::load::ID, "cyclic", "file");
            for (method, device) in [("load-touch", either(1.0, 0.6)), ("load-read", either(0.99, 0.7))] {
                made.with(place, rate(method, 1, 1e3).mapped(1e3, device, 0.0, 0.0), "data_per_memory", "1.25");
            }
        }
        "map-doubles-rss" => {
            let place = (experiments::rss::ID, "reads", "file");
            for (method, bytes) in
                [("mmap-random", either(3e8, 1.5e8)), ("pread-buffered-random", 1e8), ("pread-direct", 1.1e8)]
            {
                made.changed(place, rate(method, 4, 1e4), |trial| {
                    set(trial, "data_per_memory", "4");
                    trial.outcome.figures.insert("rss_bytes".into(), bytes);
                });
            }
        }
        "mapped-memory-is-given-back" => {
            let place = (experiments::rss::ID, "pressure", "file");
            let figures = [("reader_killed", 0.0), ("neighbour_share", either(0.9, 0.3))];
            made.figures(place, "mmap-random", &figures).figures(
                place,
                "pread-direct",
                &[("reader_killed", 1.0), ("neighbour_share", 0.1)],
            );
        }
        "errors-become-signals" => {
            let place = (experiments::errors::ID, "read-error", "file");
            made.figures(place, "mmap", &[("signals", either(1.0, 0.0)), ("error_returned", 0.0)]);
            made.figures(place, "engine", &[("signals", 0.0), ("error_returned", either(1.0, 0.0))]);
        }
        "lmdb-is-crash-proof" => {
            let place = (experiments::safety::ID, "commits", "file");
            made.figures(place, "shadow", &[("lost_commits", either(0.0, 2.0)), ("torn_commits", either(0.0, 1.0))]);
            let place = (experiments::errors::ID, "bit-flip", "file");
            made.figures(place, "shadow", &[("wrong_answers", either(0.0, 1.0)), ("signals", either(0.0, 1.0))]);
        }
        "sqlite-gains-from-mmap" => {
            let place = (experiments::engines::ID, "ycsb-c", "in-memory");
            made.with(place, rate("sqlite-mmap", 2, either(1.5e5, 6e4)), "durability", "deferred");
            made.with(place, rate("sqlite", 2, 1e5), "durability", "deferred");
        }
        _ => return false,
    }
    true
}

/// Adds a scan of a map under reclaim by kswapd, which is `busy` for this part of the time; and the same scan under a
/// cgroup where `under_cgroup` gives its rate.
fn scans_by_kswapd(busy: f64, under_cgroup: Option<f64>, made: &mut Made) {
    let like = |rate: f64, kswapd: f64| Like::steady("mmap-normal", 4, 1, rate, 3.0).mapped(rate, 1.0, 9.0, kswapd);
    made.changed((experiments::eviction::ID, "scan-kswapd", "file"), like(1e3, busy), |trial| {
        trial.spec.memory = MemoryLimit { method: MemoryMethod::Ballast, bytes: 1 << 30 };
    });
    if let Some(rate) = under_cgroup {
        made.plain((experiments::eviction::ID, "scan-cgroup", "file"), like(rate, 0.0));
    }
}

fn decided(file: &RecordFile, id: &str) -> Decision {
    let answers = claims::answers(file, &Summary::of(file));
    answers.into_iter().find(|answer| answer.id == id).unwrap_or_else(|| panic!("{id}")).decision
}

#[test]
fn every_claim_holds_by_figures_that_confirm_it_and_not_by_the_opposite() {
    for claim in claims::all() {
        for (so, expected) in [(true, Outcome::Held), (false, Outcome::DidNotHold)] {
            let mut records = Made::new();
            assert!(made(claim.id, so, &mut records), "{} has no figures in this test", claim.id);
            let decision = decided(&records.file, claim.id);
            assert_eq!(decision.outcome, expected, "{}: {}", claim.id, decision.text);
            assert!(!decision.trials.is_empty(), "{}: names the trials it was judged by", claim.id);
            let keys: Vec<String> = records.file.trials.iter().map(|trial| trial.spec.key()).collect();
            assert!(decision.trials.iter().all(|key| keys.contains(key)), "{}: {:?}", claim.id, decision.trials);
        }
        let nothing = decided(&synthetic::empty(), claim.id);
        assert_eq!(nothing.outcome, Outcome::NotMeasured, "{}", claim.id);
        assert!(nothing.text.len() > 20, "{}: says what would measure it", claim.id);
    }
}

#[test]
fn a_claim_in_two_parts_does_not_hold_by_one_of_them() {
    for (experiment, figure) in [(experiments::safety::ID, "lost_commits"), (experiments::errors::ID, "wrong_answers")]
    {
        for (bad, expected) in [(0.0, Outcome::Undecided), (1.0, Outcome::DidNotHold)] {
            let mut records = Made::new();
            let variant = if experiment == experiments::safety::ID { "commits" } else { "bit-flip" };
            records.figures((experiment, variant, "file"), "shadow", &[(figure, bad)]);
            let decision = decided(&records.file, "lmdb-is-crash-proof");
            assert_eq!(decision.outcome, expected, "{experiment} {bad}: {}", decision.text);
            assert_eq!(decision.text.contains("were not tried"), bad == 0.0, "{}", decision.text);
        }
    }
}

#[test]
fn kswapd_is_the_limit_only_where_the_same_scan_is_faster_without_it() {
    for (busy, under_cgroup, expected) in [
        (0.97, Some(2e3), Outcome::Held),
        // kswapd is busy, but no obstacle.
        (0.97, Some(1e3), Outcome::DidNotHold),
        (0.30, Some(2e3), Outcome::DidNotHold),
        (0.30, None, Outcome::DidNotHold),
        (0.97, None, Outcome::Undecided),
    ] {
        let mut records = Made::new();
        scans_by_kswapd(busy, under_cgroup, &mut records);
        let decision = decided(&records.file, "one-kswapd-is-the-wall");
        assert_eq!(decision.outcome, expected, "{busy} {under_cgroup:?}: {}", decision.text);
    }
}

#[test]
fn a_work_around_that_waits_apart_from_its_accesses_cures_nothing_by_that() {
    let place = (experiments::stalls::ID, "ahead", "file");
    let probing = |records: &mut Made| {
        records.changed(place, rate("mmap-mincore", 1, 1e4), |trial| {
            takes(trial, 2.0);
            trial.outcome.latency.insert("wait".into(), all_of(9e3));
        });
        records.changed(place, rate("uring-direct", 1, 1e4), |trial| takes(trial, 1e3));
    };
    let mut alone = Made::new();
    probing(&mut alone);
    assert_eq!(decided(&alone.file, "workarounds-do-not-cure").outcome, Outcome::NotMeasured);

    let mut records = Made::new();
    records.changed(place, rate("mmap", 1, 1e4), |trial| takes(trial, 2e4));
    records.changed(place, rate("mmap-helpers", 1, 1e4), |trial| takes(trial, 9e3));
    probing(&mut records);
    let decision = decided(&records.file, "workarounds-do-not-cure");
    assert_eq!(decision.outcome, Outcome::Held, "{}", decision.text);
    let all = findings(&records.file, &Summary::of(&records.file));
    let found = all.iter().find(|finding| finding.rule == "work-around").unwrap();
    assert!(found.text.contains("helper threads has the smallest tail"), "{}", found.text);
}

#[test]
fn a_signal_that_the_labs_guard_caught_is_a_signal() {
    for variant in ["truncated", "read-error"] {
        let mut records = Made::new();
        let place = (experiments::errors::ID, variant, "file");
        records.figures(place, "mmap", &[("signals", 1.0), ("error_returned", 0.0)]);
        for method in ["mmap-guarded", "os-cow", "user-cow-pwrite", "mapped-log", "shadow"] {
            records.figures(place, method, &[("signals", 0.0), ("error_returned", 1.0)]);
        }
        for method in ["engine", "pread-direct"] {
            records.figures(place, method, &[("signals", 0.0), ("error_returned", 1.0)]);
        }
        let decision = decided(&records.file, "errors-become-signals");
        assert_eq!(decision.outcome, Outcome::Held, "{variant}: {}", decision.text);
    }
}

#[test]
fn a_design_is_not_crash_proof_because_a_guard_caught_its_signal() {
    let mut records = Made::new();
    let figures = [("lost_commits", 0.0), ("torn_commits", 0.0)];
    records.figures((experiments::safety::ID, "commits", "file"), "shadow", &figures);
    let met = [("signals", 0.0), ("error_returned", 1.0), ("wrong_answers", 0.0)];
    records.figures((experiments::errors::ID, "bit-flip", "file"), "shadow-checked", &met);
    assert_eq!(decided(&records.file, "lmdb-is-crash-proof").outcome, Outcome::Held, "a checksum's error is no signal");
    records.figures((experiments::errors::ID, "read-error", "file"), "shadow", &met);
    let decision = decided(&records.file, "lmdb-is-crash-proof");
    assert_eq!(decision.outcome, Outcome::InPart, "{}", decision.text);
    assert!(decision.text.contains("read-error: 1"), "{}", decision.text);
    // A stray write that a read-only map refuses by a signal is neither of the faults in question.
    let mut refused = Made::new();
    refused.figures((experiments::errors::ID, "stray-write", "file"), "shadow", &[("signals", 1.0)]);
    assert_eq!(decided(&refused.file, "lmdb-is-crash-proof").outcome, Outcome::NotMeasured);
}

#[test]
fn shootdowns_are_judged_with_equal_threads_and_where_pages_were_evicted() {
    let place = (experiments::eviction::ID, "random-cgroup", "file");
    let like = |threads, cpu_us, shootdowns| {
        Like::steady("mmap-random", threads, 1, 1e5, cpu_us).mapped(1e5, 1.0, shootdowns, 0.1)
    };
    // Sixteen threads are cheaper than a hundred, but the pinned trials have a hundred.
    let mut records = Made::new();
    records.plain(place, like(16, 7.0, 900.0)).plain(place, like(100, 20.0, 900.0));
    records.with(place, like(100, 6.0, 9.0), "pin", "1");
    let decision = decided(&records.file, "shootdowns-dominate");
    assert_eq!(decision.outcome, Outcome::Held, "{}", decision.text);
    assert!(decision.text.contains("100 threads") && !decision.text.contains("16 threads"), "{}", decision.text);

    let mut idle = Made::new();
    idle.plain(place, like(100, 20.0, 0.0)).with(place, like(100, 6.0, 0.0), "pin", "1");
    assert_eq!(decided(&idle.file, "shootdowns-dominate").outcome, Outcome::NotMeasured, "nothing was evicted");
}

#[test]
fn a_disk_that_was_not_examined_refutes_nothing() {
    let place = (experiments::safety::ID, "sin", "file");
    let figures = |found| [("uncommitted_on_disk", found), ("uncommitted_stored", 64.0), ("until_on_disk_s", 60.0)];
    let mut records = Made::new();
    records.figures(place, "mmap-shared", &figures(64.0));
    let late = records.file.trials.len();
    records.figures(place, "mmap-shared", &figures(0.0));
    records.file.trials[late..].iter_mut().for_each(|trial| set(trial, "cause", "kernel"));
    let decision = decided(&records.file, "uncommitted-reaches-disk");
    assert_eq!(decision.outcome, Outcome::Held, "{}", decision.text);
    let all = findings(&records.file, &Summary::of(&records.file));
    let texts: Vec<&str> =
        all.iter().filter(|finding| finding.rule == "uncommitted-on-disk").map(|finding| &*finding.text).collect();
    assert!(texts.len() == 1 && !texts[0].contains("None of"), "{texts:?}");
}

#[test]
fn unequal_sides_decide_no_claim_and_the_reason_is_shown() {
    let mut records = Made::new();
    records.plain(RANDOM, rate("mmap-random", 16, 4e4)).plain(RANDOM, Like::steady("uring-direct", 1, 64, 9e4, 3.0));
    let decision = decided(&records.file, "half-of-direct");
    assert_eq!(decision.outcome, Outcome::Undecided, "{}", decision.text);
    assert!(decision.text.contains("16 requests in flight against 64"), "{}", decision.text);
    let all = findings(&records.file, &Summary::of(&records.file));
    assert!(all.iter().all(|finding| finding.rule != "mapped-against-explicit"), "{all:?}");
    let refused = all.iter().find(|finding| finding.rule == "unequal").unwrap();
    assert!(refused.text.contains("16 requests in flight against 64"), "{}", refused.text);

    // With an equal pair in the records, the pair is compared and the deeper ring is not.
    records.plain(RANDOM, Like::steady("uring-direct", 1, 16, 8e4, 3.0));
    let decision = decided(&records.file, "half-of-direct");
    assert_eq!(decision.outcome, Outcome::Held, "{}", decision.text);
    assert!(decision.text.contains("at 16 in flight"), "{}", decision.text);
    let all = findings(&records.file, &Summary::of(&records.file));
    let headline = all.iter().find(|finding| finding.rule == "mapped-against-explicit").unwrap();
    // Each at its own best is told next to the ratio, and is no part of it.
    assert!(headline.text.contains("at 16 in flight") && headline.text.contains("depth 64"), "{}", headline.text);
}

#[test]
fn a_batch_of_gets_is_not_compared_with_single_faults() {
    let mut records = Made::new();
    records.plain(RANDOM, Like::steady("mmap-random", 16, 1, 1e5, 12.0));
    records.plain(RANDOM, Like::steady("pool-get-many", 1, 16, 1e5, 5.0));
    let decision = decided(&records.file, "pool-costs-as-much");
    assert_eq!(decision.outcome, Outcome::NotMeasured, "{}", decision.text);
    records.plain(RANDOM, Like::steady("pool", 16, 1, 1e5, 13.0));
    assert_eq!(decided(&records.file, "pool-costs-as-much").outcome, Outcome::Held);
}

#[test]
fn a_claim_whose_effect_this_machine_cannot_show_is_neither_held_nor_refuted() {
    let collapsing = |cpus: u32, device: f64, after: f64| {
        let mut records = Made::new();
        records.file.run.machine.cpu_count = cpus;
        records.plain(RANDOM, rate("mmap-random", 16, after).mapped(1e5, 1.0, 9.0, 0.1));
        records.plain(RANDOM, rate("pread-direct", 16, device));
        decided(&records.file, "collapse-when-full")
    };
    let slow = collapsing(2, 6e4, 5.5e4);
    assert_eq!(slow.outcome, Outcome::CannotBeTried, "{}", slow.text);
    for words in ["2 CPUs here, 128 in the source; it takes 16", "900 K/s in the source", "0.5"] {
        assert!(slow.text.contains(words), "{words}: {}", slow.text);
    }
    assert_eq!(collapsing(128, 6e4, 5.5e4).outcome, Outcome::CannotBeTried, "a slow device alone");
    assert_eq!(collapsing(128, 9e5, 9e4).outcome, Outcome::DidNotHold);
    // What a machine shows, it shows.
    assert_eq!(collapsing(2, 6e4, 3e4).outcome, Outcome::Held);
    for id in ["shootdowns-dominate", "one-kswapd-is-the-wall"] {
        let mut records = Made::new();
        records.file.run.machine.cpu_count = 2;
        assert!(made(id, false, &mut records));
        assert_eq!(decided(&records.file, id).outcome, Outcome::CannotBeTried, "{id}");
    }
}

#[test]
fn the_whole_curve_is_compared_at_the_points_that_both_sides_have() {
    let mut records = Made::new();
    for (count, map, ring) in [(1, 1.0e4, 1.0e4), (4, 3.0e4, 4.0e4), (16, 4.0e4, 8.0e4)] {
        records.plain(RANDOM, rate("mmap-random", count, map));
        records.plain(RANDOM, Like::steady("uring-direct", 1, count, ring, 3.0));
    }
    records.plain(RANDOM, Like::steady("uring-direct", 1, 128, 9.0e5, 3.0));
    // A wrong hint that happens to be fast is not the map's curve.
    records.plain(RANDOM, rate("mmap-sequential", 16, 2.0e5));
    let all = findings(&records.file, &Summary::of(&records.file));
    let headline = all.iter().find(|finding| finding.rule == "mapped-against-explicit").unwrap();
    // The cube root of 1 · 0.75 · 0.5.
    assert!(
        headline.text.contains("is 0.7") && headline.text.contains("at 1, 4 and 16 in flight"),
        "{}",
        headline.text
    );
    assert_eq!(headline.trials.len(), 6);
    assert!(!headline.trials.iter().any(|key| key.contains("sequential")), "{:?}", headline.trials);
}

#[test]
fn a_map_that_never_filled_memory_has_no_figure_and_no_other_hint_stands_in_for_it() {
    let mut records = Made::new();
    records.changed(RANDOM, rate("mmap-random", 16, 3e3), |trial| trial.outcome.full_at_s = None);
    records.plain(RANDOM, rate("mmap-sequential", 16, 1e2)).plain(RANDOM, rate("pread-direct", 16, 3e3));
    let all = findings(&records.file, &Summary::of(&records.file));
    assert!(all.iter().all(|finding| !["mapped-against-explicit", "cpu-per-work"].contains(&finding.rule)), "{all:?}");
    let told = all.iter().find(|finding| finding.rule == "no-valid-figure").unwrap();
    assert!(told.text.contains("mmap RANDOM · 16 threads"), "{}", told.text);
    assert_eq!(decided(&records.file, "half-of-direct").outcome, Outcome::NotMeasured);
}

/// All that the rules say of the records of [`made`], claim by claim and of all of them in one file, and of a full file: a
/// line for each outcome, text and trial.
fn all_decisions() -> String {
    let mut lines = String::new();
    let mut note = |of: &str, decision: &Decision| {
        lines.push_str(&format!("{of}: {}: {}\n", decision.outcome.words(), decision.text));
        lines.extend(decision.trials.iter().map(|trial| format!("    {trial}\n")));
    };
    let mut files = vec![("full", synthetic::full(3))];
    for (name, so) in [("confirmed", true), ("refuted", false)] {
        let mut together = Made::new();
        for claim in claims::all() {
            let mut records = Made::new();
            made(claim.id, so, &mut records);
            note(&format!("{} {name}", claim.id), &decided(&records.file, claim.id));
            made(claim.id, so, &mut together);
        }
        files.push((name, together.file));
    }
    for (name, file) in files {
        if let Ok(folder) = std::env::var("NOFAULT_KEEP_REPORTS") {
            std::fs::write(format!("{folder}/claims-{name}.html"), nofault_lab::report::html(&file).unwrap()).unwrap();
            let json = nofault_lab::report::table::summary_json(&file).unwrap();
            std::fs::write(format!("{folder}/claims-{name}.json"), json).unwrap();
        }
        for answer in claims::answers(&file, &Summary::of(&file)) {
            note(&format!("{} in {name}", answer.id), &answer.decision);
        }
    }
    lines
}

/// A rule may be written anew, but what it says of the same records stays. A change that is meant is written by
/// `NOFAULT_WRITE_CLAIMS=1 cargo test -p nofault-lab --test report every_rule`.
#[test]
fn every_rule_decides_the_same_records_in_the_same_words() {
    let (kept, now) = (include_str!("claims.txt"), all_decisions());
    if std::env::var_os("NOFAULT_WRITE_CLAIMS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/report/claims.txt"), &now).unwrap();
        return;
    }
    for (was, is) in kept.lines().zip(now.lines()) {
        assert_eq!(was, is);
    }
    assert_eq!(kept.len(), now.len(), "claims.txt ends before the decisions do, or after them");
}
