//! Synthetic record files: plausible figures from a seed, with every odd case that a report must handle.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use fastrand::Rng;
use hdrhistogram::Histogram;
use nofault_lab::config::Config;
use nofault_lab::experiments;
use nofault_lab::record::file::RecordFile;
use nofault_lab::record::{
    CacheState, Checks, End, ExperimentId, Latency, MachineInfo, MemoryLimit, MemoryMethod, Note, Outcome, Params,
    RunInfo, SCHEMA, Skip, SkipCause, Target, Tick, Trial, TrialSpec, Window,
};

pub(crate) const START_MS: u64 = 1_767_225_600_000;

/// The typical behaviour of a method, from which synthetic trials are made.
#[derive(Clone, Copy)]
pub(crate) struct Like {
    pub(crate) method: &'static str,
    pub(crate) threads: u32,
    pub(crate) depth: u32,
    /// Operations a second with full memory.
    pub(crate) rate: f64,
    pub(crate) fill_rate: f64,
    pub(crate) cpu_us: f64,
    pub(crate) amplification: f64,
    pub(crate) shootdowns: f64,
    pub(crate) kswapd: f64,
}

impl Like {
    pub(crate) fn steady(method: &'static str, threads: u32, depth: u32, rate: f64, cpu_us: f64) -> Self {
        Self { method, threads, depth, rate, fill_rate: rate, cpu_us, amplification: 1.0, shootdowns: 0.0, kswapd: 0.0 }
    }

    pub(crate) fn mapped(mut self, fill_rate: f64, amplification: f64, shootdowns: f64, kswapd: f64) -> Self {
        self.fill_rate = fill_rate;
        self.amplification = amplification;
        self.shootdowns = shootdowns;
        self.kswapd = kswapd;
        self
    }
}

pub(crate) fn machine() -> MachineInfo {
    MachineInfo {
        cpu: "Synthetic 9000 <test> & Co".into(),
        cpu_count: 2,
        memory_bytes: 24 << 30,
        kernel: "6.18.0-synthetic".into(),
        virtualization: "kvm".into(),
        file_system: "ext4".into(),
        device: "vda".into(),
        read_ahead_kb: Some(8192),
        root: true,
        costs_ns: BTreeMap::new(),
        facts: BTreeMap::from([
            ("syscall_ns".into(), "68".into()),
            ("transparent_huge_pages".into(), "always [madvise] never".into()),
        ]),
    }
}

pub(crate) fn empty() -> RecordFile {
    RecordFile {
        path: PathBuf::from("synthetic/records.ndjson"),
        run: RunInfo {
            schema: SCHEMA,
            tool_version: "0.1.0".into(),
            started_unix_ms: START_MS,
            config: Config::default(),
            machine: machine(),
            biases: Vec::new(),
        },
        trials: Vec::new(),
        skips: Vec::new(),
        notes: Vec::new(),
        end: Some(End { complete: true, reason: String::new(), elapsed_s: 131.0 }),
        cut_off_line: None,
        unknown: Vec::new(),
        unknown_settings: Vec::new(),
    }
}

pub(crate) fn latency(rng: &mut Rng, median_ns: f64, count: u32) -> Latency {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 600_000_000_000, 3).unwrap();
    for _ in 0..count {
        // Log-normal-like body with a heavy tail.
        let body = (0..6).map(|_| rng.f64()).sum::<f64>() - 3.0;
        // Rarer than one in a hundred: else the 99th percentile would lie now in the body and now in the tail.
        let tail = if rng.f64() < 0.004 { 1.0 + 20.0 * rng.f64() } else { 1.0 };
        histogram.saturating_record((median_ns * (body * 0.35).exp() * tail).max(1.0) as u64);
    }
    Latency::of(&histogram)
}

pub(crate) fn spec(experiment: ExperimentId, variant: &str, target: &str, like: &Like, repeat: u32) -> TrialSpec {
    TrialSpec {
        experiment,
        variant: variant.into(),
        target: Target {
            label: target.into(),
            paths: vec!["data/file".into()],
            data_bytes: 4 << 30,
            content_seed: Some(7),
        },
        method: like.method.into(),
        params: Params {
            threads: like.threads,
            depth: like.depth,
            block_bytes: if experiment == experiments::scan::ID { 1 << 20 } else { 4096 },
            extra: BTreeMap::new(),
        },
        repeat,
        duration_s: 8.0,
        memory: MemoryLimit { method: MemoryMethod::CgroupV2, bytes: 256 << 20 },
        cache: CacheState::Cold,
        seed: 1,
    }
}

/// Makes a trial running for eight seconds; memory is full after two.
pub(crate) fn timed(rng: &mut Rng, spec: TrialSpec, like: &Like) -> Trial {
    let mut outcome = Outcome { started_unix_ms: START_MS, cache_method: "drop_caches".into(), ..Outcome::default() };
    let noise = 1.0 + (rng.f64() - 0.5) * 0.06;
    let mut window = Window { from_s: 2.0, ..Window::default() };
    for second in 1..=8_u32 {
        let full = second > 2;
        let dip = if second == 3 { 0.5 + 0.5 * (like.rate / like.fill_rate).min(1.0) } else { 1.0 };
        let rate = if full { like.rate * dip } else { like.fill_rate } * noise * (1.0 + (rng.f64() - 0.5) * 0.05);
        let ops = rate as u64;
        let bytes = ops * spec.params.block_bytes;
        let cpu_s = ops as f64 * like.cpu_us / 1e6;
        let evicted = if full && like.shootdowns > 0.0 { like.shootdowns * 40.0 } else { 0.0 };
        let counters: BTreeMap<String, f64> = [
            ("own_cpu_user_s", cpu_s * 0.2),
            ("own_cpu_system_s", cpu_s * 0.8),
            ("tlb_shootdowns", if full { like.shootdowns * (1.0 + (rng.f64() - 0.5) * 0.2) } else { 3.0 }),
            ("kswapd_cpu_s", if full { like.kswapd } else { 0.0 }),
            ("pgsteal_file", evicted),
            ("device_read_bytes", bytes as f64 * like.amplification),
            ("major_faults", 10.0),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        outcome.ops += ops;
        outcome.bytes += bytes;
        for (name, value) in &counters {
            *outcome.counters.entry(name.clone()).or_default() += value;
            if full {
                *window.counters.entry(name.clone()).or_default() += value;
            }
        }
        if full {
            window.ops += ops;
            window.bytes += bytes;
            window.elapsed_s += 1.0;
        }
        outcome.ticks.push(Tick { at_s: f64::from(second), elapsed_s: 1.0, ops, bytes, counters });
    }
    outcome.elapsed_s = 8.0;
    outcome.full_at_s = Some(2.0);
    outcome.steady = Some(window);
    outcome.checks = Checks { verified: outcome.ops, checksum: 99, ..Checks::default() };
    let in_flight = f64::from(like.threads * like.depth.max(1));
    outcome.latency.insert("op".into(), latency(rng, in_flight / like.rate * 1e9 * 0.9, 4000));
    Trial { spec, outcome }
}

/// Returns records of all experiments, with skips, notes, a partial trial, an invalid trial and a warning; made once for each seed.
pub(crate) fn full(seed: u64) -> RecordFile {
    static MADE: Mutex<BTreeMap<u64, RecordFile>> = Mutex::new(BTreeMap::new());
    MADE.lock().unwrap_or_else(PoisonError::into_inner).entry(seed).or_insert_with(|| make_full(seed)).clone()
}

fn make_full(seed: u64) -> RecordFile {
    let rng = &mut Rng::with_seed(seed);
    let mut file = empty();
    file.run.biases = vec![
        "read_ahead_kb of vda is 8192 (128 is usual): NORMAL and buffered reads fetch up to 8 MiB at a time; left as it is".into(),
    ];
    let random = [
        Like::steady("mmap-normal", 16, 1, 220.0, 2400.0).mapped(400.0, 1480.0, 900.0, 0.3),
        Like::steady("mmap-random", 16, 1, 52_000.0, 15.4).mapped(61_000.0, 1.0, 4300.0, 0.13),
        Like::steady("mmap-sequential", 16, 1, 210.0, 2500.0).mapped(380.0, 1500.0, 950.0, 0.3),
        Like::steady("pread-buffered", 16, 1, 50_000.0, 16.0).mapped(60_000.0, 1.02, 20.0, 0.1),
        Like::steady("pread-direct", 16, 1, 62_000.0, 12.0),
        Like::steady("uring-direct", 1, 16, 66_000.0, 3.6),
        Like::steady("uring-direct", 1, 64, 71_000.0, 3.1),
        Like::steady("fio-psync-direct", 16, 1, 61_500.0, 14.0),
        Like::steady("fio-uring-direct", 1, 64, 70_400.0, 3.9),
    ];
    let ram = [
        Like::steady("mmap-random", 2, 1, 222_000.0, 8.4).mapped(295_000.0, 1.0, 12_000.0, 0.42),
        Like::steady("pread-direct", 2, 1, 740_000.0, 2.4),
        Like::steady("uring-direct", 1, 64, 236_000.0, 3.4),
    ];
    let scan = [
        Like::steady("mmap-normal", 4, 1, 1900.0, 520.0).mapped(2400.0, 1.01, 5000.0, 0.9),
        Like::steady("mmap-sequential", 4, 1, 1200.0, 700.0).mapped(1500.0, 1.0, 6000.0, 0.93),
        Like::steady("pread-direct", 4, 1, 2600.0, 90.0),
        Like::steady("uring-direct", 1, 8, 3200.0, 60.0),
        Like::steady("fio-uring-direct", 1, 8, 1210.0, 180.0),
    ];
    let access = [
        Like::steady("mmap-random", 1, 1, 15_300.0, 25.4).mapped(16_000.0, 1.0, 20.0, 0.0),
        Like::steady("pread-buffered", 1, 1, 15_200.0, 23.7),
        Like::steady("pread-direct", 1, 1, 16_800.0, 22.0),
        Like::steady("uring-direct", 1, 1, 16_500.0, 24.0),
        Like::steady("uring-direct", 1, 8, 52_000.0, 6.0),
        Like::steady("uring-direct", 1, 64, 68_700.0, 2.9),
    ];
    for repeat in 0..3 {
        for like in &random {
            file.trials.push(timed(rng, spec(experiments::random::ID, "", "file", like, repeat), like));
        }
        for like in &ram {
            file.trials.push(timed(rng, spec(experiments::random::ID, "", "ram", like, repeat), like));
        }
        for (target, gain) in [("file", 1.0), ("ram", 2.6), ("striped-2", 2.9)] {
            for like in &scan {
                let mapped = like.method.starts_with("mmap");
                let like = Like { rate: like.rate * if mapped { 0.9 } else { gain }, ..*like };
                file.trials.push(timed(rng, spec(experiments::scan::ID, "", target, &like, repeat), &like));
            }
        }
        for like in &access {
            file.trials.push(timed(rng, spec(experiments::access::ID, "read", "file", like, repeat), like));
            if like.depth == 1 {
                let mut trial = timed(rng, spec(experiments::access::ID, "overwrite", "file", like, repeat), like);
                trial.outcome.latency.insert("sync".into(), latency(rng, 9e6, 60));
                file.trials.push(trial);
            }
        }
        for like in &access[..3] {
            let mut open = spec(experiments::access::ID, "open-loop", "file", like, repeat);
            open.params.extra.insert("rate_per_s".into(), format!("{:.0}", like.rate * 0.5));
            let mut trial = timed(rng, open, &Like { rate: like.rate * 0.5, fill_rate: like.rate * 0.5, ..*like });
            trial.outcome.latency.insert("open_loop".into(), latency(rng, 1.1e9 / like.rate * 4.0, 4000));
            file.trials.push(trial);
        }
    }
    push_engines(rng, &mut file);
    push_async(rng, &mut file);
    push_safety(&mut Rng::with_seed(seed), &mut file);
    push_errors(rng, &mut file);
    push_memory(rng, &mut file);
    push_stalls(rng, &mut file);
    push_claims(rng, &mut file);
    file.skips = vec![
        Skip {
            experiment: experiments::access::ID,
            target: "file".into(),
            method: "uring-sqpoll".into(),
            reason: "SQPOLL needs CAP_SYS_NICE here: run as root".into(),
            cause: None,
        },
        Skip {
            experiment: experiments::scan::ID,
            target: "device".into(),
            method: String::new(),
            reason: "no raw device was given: --device /dev/…".into(),
            cause: None,
        },
        Skip {
            experiment: experiments::engines::ID,
            target: String::new(),
            method: "rocksdb-mmap".into(),
            reason: "not built: --features peer-rocksdb (cargo run --release --features peer-rocksdb -- lab engines)"
                .into(),
            cause: Some(SkipCause::NotBuilt("peer-rocksdb".into())),
        },
    ];
    file.notes.push(Note { at_unix_ms: START_MS + 60_000, text: "load average was 1.9 at the start".into() });
    file.trials[1].outcome.warnings.push("device bytes and work bytes disagree by 40 % in 2 of 8 ticks".into());
    if let Some(trial) = file.trials.last_mut() {
        trial.outcome.partial = true;
    }
    let spoilt = file.trials.iter_mut().find(|trial| trial.spec.method == "pread-buffered" && trial.spec.repeat == 1);
    if let Some(trial) = spoilt {
        trial.outcome.checks.wrong = 3;
    }
    file
}

/// Adds trials of `safety`: a page written back uncommitted, and the cost of two remedies.
pub(crate) fn push_safety(rng: &mut Rng, file: &mut RecordFile) {
    let like = |method, rate| Like::steady(method, 8, 1, rate, 90.0);
    for repeat in 0..3 {
        let like = like("mmap-shared", 64.0);
        let mut sin = timed(rng, spec(experiments::safety::ID, "sin", "file", &like, repeat), &like);
        let figures =
            [("uncommitted_on_disk", 64.0), ("uncommitted_stored", 64.0), ("mlocked", 1.0), ("until_on_disk_s", 0.002)];
        sin.outcome.figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
        file.trials.push(sin);
    }
    for (method, rate) in [("os-cow", 9e3), ("shadow", 3e3), ("engine", 11e3)] {
        for repeat in 0..3 {
            let like = like(method, rate);
            let mut trial = timed(rng, spec(experiments::safety::ID, "commits", "file", &like, repeat), &like);
            trial.outcome.latency.insert("read".into(), latency(rng, 5e3, 1000));
            let figures = [
                ("bytes_written_per_commit", 9000.0),
                ("syncs_per_commit", 0.3),
                ("reads_per_s", 2e5),
                ("memory_bytes", 9e7),
                ("recovery_s", 0.02),
                ("lost_commits", 0.0),
                ("torn_commits", 0.0),
            ];
            trial.outcome.figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
            trial.outcome.texts.insert("settings".into(), "4 KiB pages".into());
            file.trials.push(trial);
        }
    }
}

/// Adds trials of `stalls`: the work-arounds, with their costs.
pub(crate) fn push_stalls(rng: &mut Rng, file: &mut RecordFile) {
    let ahead = [
        (Like::steady("mmap", 1, 32, 15_000.0, 20.0), 0.0),
        (Like::steady("mmap-willneed", 1, 32, 60_000.0, 12.0), 0.0),
        (Like::steady("mmap-helpers", 1, 32, 30_000.0, 40.0), 4.0),
        (Like::steady("uring-direct", 1, 32, 80_000.0, 4.0), 0.0),
    ];
    let walks = [
        (Like::steady("engine-scan", 1, 32, 900_000.0, 1.0), 0.0),
        (Like::steady("engine-scan-noprefetch", 1, 32, 60_000.0, 6.0), 0.0),
    ];
    for repeat in 0..3 {
        let all = ahead.iter().map(|like| ("ahead", like)).chain(walks.iter().map(|like| ("leaf-scan", like)));
        for (variant, (like, threads)) in all {
            let mut trial = timed(rng, spec(experiments::stalls::ID, variant, "file", like, repeat), like);
            trial.outcome.latency.insert("op".into(), latency(rng, 1e9 / like.rate, 4000));
            trial.outcome.figures.insert("extra_threads".into(), *threads);
            file.trials.push(trial);
        }
    }
}

/// Adds trials of `errors`: faults with every ending (a signal, an error, silence), and the cost of checking.
pub(crate) fn push_errors(rng: &mut Rng, file: &mut RecordFile) {
    let fates = [
        ("read-error", "mmap", [("survived", 0.0), ("signals", 1.0)].as_slice(), ("ended", "SIGBUS")),
        (
            "read-error",
            "engine",
            &[
                ("survived", 1.0),
                ("detected", 1.0),
                ("error_returned", 1.0),
                ("pages_failed", 3.0),
                ("right_after_repair", 1.0),
            ],
            ("said", "page <7>: the device failed"),
        ),
        (
            "stray-write",
            "mmap",
            &[
                ("survived", 1.0),
                ("detected", 0.0),
                ("wrong_answers", 1.0),
                ("reached_disk", 1.0),
                ("wrong_on_disk", 1.0),
            ],
            ("said", ""),
        ),
        (
            "stray-write",
            "engine",
            &[("survived", 1.0), ("detected", 0.0), ("wrong_answers", 1.0), ("reached_disk", 0.0)],
            ("said", ""),
        ),
    ];
    for (variant, method, figures, (name, text)) in fates {
        let like = Like::steady(method, 1, 1, 1000.0, 1.0);
        let outcome = Outcome {
            started_unix_ms: START_MS,
            elapsed_s: 0.2,
            ops: 256,
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            texts: BTreeMap::from([(name.to_owned(), text.to_owned())]),
            ..Outcome::default()
        };
        file.trials.push(Trial { spec: spec(experiments::errors::ID, variant, "file", &like, 0), outcome });
    }
    for (method, ns) in [("no-check", 24.0), ("check-every-access", 480.0), ("check-every-load", 21.0)] {
        for repeat in 0..3 {
            let like = Like::steady(method, 1, 1, 1e9 / ns, ns / 1000.0);
            let mut spec = spec(experiments::errors::ID, "checksum-cost", "file", &like, repeat);
            spec.params.extra.insert("working_set".into(), "67108864".into());
            let mut trial = timed(rng, spec, &like);
            trial.outcome.figures.insert("ns_per_access".into(), ns * (1.0 + rng.f64() * 0.02));
            file.trials.push(trial);
        }
    }
}

/// Adds trials of `claims`: with one unit a map copies three times as fast, with the other it does not; a reader makes
/// redb's file grow.
fn push_claims(rng: &mut Rng, file: &mut RecordFile) {
    for repeat in 0..3 {
        for (unit, gain) in [(4096, 3.0), (1 << 20, 0.9)] {
            for (method, rate) in [("mmap-copy", 1e5 * gain), ("mmap-in-place", 2e5 * gain), ("pread-buffered", 1e5)] {
                let like = Like::steady(method, 1, 1, rate, 3.0);
                let mut spec = spec(experiments::claims::ID, "cached-read", "file", &like, repeat);
                spec.cache = CacheState::Warm;
                spec.params.block_bytes = unit;
                spec.params.extra.insert("unit".into(), format!("{}KiB", unit >> 10));
                file.trials.push(timed(rng, spec, &like));
            }
        }
        for (pages, ms) in [("1024", 0.2), ("16384", 3.1)] {
            let like = Like::steady("mmap-private", 1, 1, 100.0, 3.0);
            let mut spec = spec(experiments::claims::ID, "private-remap", "file", &like, repeat);
            spec.params.extra.insert("copied_pages".into(), pages.into());
            let mut trial = timed(rng, spec, &like);
            trial.outcome.latency.insert("op".into(), latency(rng, ms * 1e6, 500));
            file.trials.push(trial);
        }
        for (method, reader, grown) in
            [("nofault", "none", 1e4), ("nofault", "held", 3e5), ("redb", "none", 2e4), ("redb", "held", 9e7)]
        {
            let like = Like::steady(method, 1, 1, 1e5, 3.0);
            let mut spec = spec(experiments::claims::ID, "long-reader", "file", &like, repeat);
            spec.params.extra = BTreeMap::from([("reader".into(), reader.into()), ("updates".into(), "50000".into())]);
            let mut trial = timed(rng, spec, &like);
            trial.outcome.figures = BTreeMap::from([
                ("grown_bytes".into(), grown),
                ("used_before_bytes".into(), 3e5),
                ("memory_bytes".into(), 0.0),
            ]);
            file.trials.push(trial);
        }
    }
}

/// Adds trials of `engines`: databases with a map and without, with data larger than memory and with data that fits.
pub(crate) fn push_engines(rng: &mut Rng, file: &mut RecordFile) {
    let stores = [
        ("nofault", 60_000.0, 9.0),
        ("lmdb", 48_000.0, 14.0),
        ("sqlite", 21_000.0, 40.0),
        ("sqlite-mmap", 26_000.0, 31.0),
    ];
    for (target, gain) in [("file", 1.0), ("in-memory", 9.0)] {
        for (variant, share) in [("load", 2.0), ("scan", 10.0), ("ycsb-a", 0.4), ("ycsb-c", 1.0), ("commit", 0.1)] {
            for (method, rate, cpu_us) in stores {
                for repeat in 0..2 {
                    let like = Like::steady(method, 1, 1, rate * share * gain, cpu_us);
                    let mut trial = timed(rng, spec(experiments::engines::ID, variant, target, &like, repeat), &like);
                    trial.spec.params.extra.insert("durability".into(), "deferred".into());
                    trial.outcome.figures.insert("space_ratio".into(), 1.2);
                    trial.outcome.texts.insert("set: page".into(), "4 KiB <default>".into());
                    trial.outcome.texts.insert("unequal".into(), "one writer at a time".into());
                    file.trials.push(trial);
                }
            }
        }
    }
}

/// Adds trials of `async`: its six configurations, cold and warm, in two variants.
pub(crate) fn push_async(rng: &mut Rng, file: &mut RecordFile) {
    let configurations = [
        ("async-mmap", 1, 1.02, 0.024, 9.0e7),
        ("async-read", 1, 0.41, 0.13, 1.4e6),
        ("threads-mmap", 8, 0.34, 0.013, 1.2e6),
        ("threads-read", 8, 0.33, 0.012, 1.2e6),
        ("single-mmap", 1, 1.01, 0.024, 8.5e7),
        ("single-read", 1, 0.92, 0.02, 8.0e7),
    ];
    for (variant, scale) in [("random-touch", 1.0), ("sequential", 0.9)] {
        for repeat in 0..5 {
            for (method, threads, cold, warm, late) in configurations {
                for (cache, seconds) in [(CacheState::Cold, cold), (CacheState::Warm, warm)] {
                    let like = Like::steady(method, threads, 1, 1.0, 1.0);
                    let mut spec = spec(experiments::async_hazard::ID, variant, "file", &like, repeat);
                    spec.cache = cache;
                    spec.params.extra =
                        BTreeMap::from([("files".into(), "8".into()), ("touches".into(), "512".into())]);
                    let elapsed_s = scale * seconds * (1.0 + rng.f64() * 0.12);
                    let mut outcome = Outcome {
                        started_unix_ms: START_MS,
                        elapsed_s,
                        ops: 16_384,
                        bytes: 16_384 * 4096,
                        checks: Checks { verified: 16_384, checksum: 5, ..Checks::default() },
                        ..Outcome::default()
                    };
                    let late = if cache == CacheState::Cold { late } else { 1.0e6 };
                    outcome.latency.insert("ticker".into(), latency(rng, late, 200));
                    file.trials.push(Trial { spec, outcome });
                }
            }
        }
    }
}

/// Adds trials of `translate` with two working sets, and of `eviction` for each kind of reclaim.
pub(crate) fn push_memory(rng: &mut Rng, file: &mut RecordFile) {
    let times = [
        ("array", 210.0),
        ("array-small", 255.0),
        ("hash", 225.0),
        ("swizzled", 200.0),
        ("mapped", 240.0),
        ("mapped-huge", 190.0),
    ];
    for repeat in 0..3 {
        for (variant, scale) in [("access", 0.4), ("lookup", 1.0)] {
            for working_set in [64_u64 << 20, 1 << 30] {
                for (method, ns) in times {
                    let like = Like::steady(method, 1, 1, 1e6, 1.0);
                    let mut trial =
                        timed(rng, spec(experiments::translate::ID, variant, "memory", &like, repeat), &like);
                    trial.spec.target.data_bytes = working_set;
                    trial.spec.params.extra.insert("working_set".into(), working_set.to_string());
                    let time =
                        ns * scale * (working_set as f64 / (1 << 30) as f64).powf(0.2) * (1.0 + rng.f64() * 0.02);
                    trial.outcome.figures.insert("time_per_op_s".into(), time / 1e9);
                    file.trials.push(trial);
                }
            }
        }
        for (variant, method, threads, us) in [
            ("faults", "mmap-one-map", 1, 1.9),
            ("faults", "mmap-one-map", 2, 2.6),
            ("faults", "pread-cached", 1, 0.8),
            ("faults", "pread-cached", 2, 0.9),
            ("shootdowns", "mmap-unmap-page", 1, 3.0),
            ("shootdowns", "mmap-unmap-page", 2, 6.5),
        ] {
            let like = Like::steady(method, threads, 1, 1e6 / us, us);
            let mut trial = timed(rng, spec(experiments::eviction::ID, variant, "memory", &like, repeat), &like);
            trial.outcome.figures.insert("time_per_op_s".into(), us * (1.0 + rng.f64() * 0.02) / 1e6);
            file.trials.push(trial);
        }
        for (by, kswapd) in [("cgroup", 0.0), ("kswapd", 0.4)] {
            let random = [
                Like::steady("mmap-random", 16, 1, 220_000.0, 8.4).mapped(220_000.0, 1.0, 12_000.0, kswapd),
                Like::steady("pread-direct", 16, 1, 740_000.0, 2.4),
                Like::steady("pread-buffered-random", 16, 1, 300_000.0, 6.0).mapped(300_000.0, 1.0, 200.0, kswapd),
            ];
            for like in &random {
                let variant = format!("random-{by}");
                file.trials.push(timed(rng, spec(experiments::eviction::ID, &variant, "ram", like, repeat), like));
            }
            let mut pinned = spec(experiments::eviction::ID, &format!("random-{by}"), "ram", &random[0], repeat);
            pinned.params.extra.insert("pin".into(), "1".into());
            let like = Like { shootdowns: 3.0, cpu_us: 7.0, rate: 130_000.0, ..random[0] };
            file.trials.push(timed(rng, pinned, &like));
            let scan = Like::steady("mmap-normal", 4, 1, 400_000.0, 2.2).mapped(400_000.0, 1.0, 20_000.0, 2.2 * kswapd);
            file.trials.push(timed(
                rng,
                spec(experiments::eviction::ID, &format!("scan-{by}"), "ram", &scan, repeat),
                &scan,
            ));
        }
    }
}
