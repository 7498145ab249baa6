//! Every method runs at a tiny size, in this process, on a real file, and reads the expected data.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;
use nofault_sim::depth::by_depth;

use super::{Parameters, *};
use crate::config::Choice;
use crate::experiments::cold_in_tests;
use crate::experiments::run_here;
use crate::machine::content;
use crate::machine::data::{self, DataSpec};
use crate::machine::pool::{self, PoolData};
use crate::record::Params;

const SEED: u64 = 5;
const BLOCKS: u64 = 512;

fn data(folder: &std::path::Path) -> Target {
    let wanted = DataSpec { seed: SEED, data_bytes: BLOCKS * 4096 };
    data::ensure_file(&folder.join("random.data"), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap()
}

fn available(folder: &std::path::Path) -> Available {
    let fio = std::process::Command::new("fio").arg("--version").output().is_ok().then(|| "fio".into());
    Available { file: data(folder), fio, ..Available::default() }
}

/// Adds the engine's database with the same content; the database is removed with the guard.
fn with_pool(folder: &std::path::Path) -> (Available, PoolData) {
    let wanted = DataSpec { seed: SEED, data_bytes: BLOCKS * 4096 };
    let made = PoolData::make(folder, wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    (
        Available {
            pool: Some(pool::target(folder, wanted)),
            pool_bytes: by_depth(16 << 20, 256 << 20),
            ..available(folder)
        },
        made,
    )
}

fn config() -> Config {
    let mut config = Config::preset(Preset::Quick);
    config.change(|random: &mut Parameters| {
        random.cell_s = by_depth(0.05, 0.3);
        random.ram_cell_s = by_depth(0.05, 0.3);
        random.threads = vec![1, 3];
        random.depths = vec![1, 16];
    });
    config
}

#[test]
fn every_planned_method_reads_the_right_blocks_and_the_same_sample() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _pool) = with_pool(folder.path());
    let mut sums = BTreeSet::new();
    for spec in plan(&config(), &available).trials {
        let outcome = run_here(&spec).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        assert!(outcome.ops > 0, "{}", spec.key());
        assert_eq!(outcome.bytes, outcome.ops * 4096, "{}", spec.key());
        assert!(outcome.latency["op"].count > 0, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        if !spec.method.starts_with("fio") {
            assert!(outcome.checks.verified > 0, "{}", spec.key());
            sums.insert(outcome.checks.checksum);
        }
    }
    assert_eq!(sums.len(), 1, "methods read different data: {sums:?}");
    assert!(!sums.contains(&0));
}

#[test]
fn larger_blocks_are_read_and_verified_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.change(|random: &mut Parameters| {
        random.block_bytes = 16384;
    });
    for spec in plan(&config, &available(folder.path())).trials.iter().filter(|spec| spec.params.threads == 1) {
        let outcome = run_here(spec).unwrap();
        assert!(outcome.ops > 0 && outcome.bytes >= 16384, "{}", spec.key());
        assert_eq!(outcome.checks.wrong, 0, "{}", spec.key());
    }
}

#[test]
fn a_device_with_unknown_content_is_summed_but_not_verified() {
    let folder = tempfile::tempdir().unwrap();
    let mut available = available(folder.path());
    available.file.content_seed = None;
    let mut sums = BTreeSet::new();
    for spec in plan(&config(), &available).trials.iter().filter(|spec| !spec.method.starts_with("fio")) {
        let outcome = run_here(spec).unwrap();
        assert_eq!((outcome.checks.verified, outcome.checks.wrong), (0, 0), "{}", spec.key());
        sums.insert(outcome.checks.checksum);
    }
    assert_eq!(sums.len(), 1);
}

#[test]
fn flipped_tags_are_counted_by_every_method() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let file = std::fs::File::options().write(true).open(&available.file.paths[0]).unwrap();
    for block in 0..BLOCKS / 2 {
        file.write_all_at(&[0x55; 8], content::block_offset(block)).unwrap();
    }
    file.sync_all().unwrap();
    for spec in plan(&config(), &available).trials.iter().filter(|spec| !spec.method.starts_with("fio")) {
        let checks = run_here(spec).unwrap().checks;
        assert!(checks.wrong > 0 && checks.wrong < checks.verified, "{}: {checks:?}", spec.key());
    }
}

#[test]
fn the_pool_has_data_that_fits_in_memory_before_the_clock_starts_and_records_the_number_of_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _pool) = with_pool(folder.path());
    let trials = plan(&config(), &available).trials;
    let pools: Vec<_> = trials.iter().filter(|spec| spec.method.starts_with("pool")).collect();
    let ids: BTreeSet<&str> = pools.iter().map(|spec| spec.method.as_str()).collect();
    assert_eq!(ids, BTreeSet::from(["pool", "pool-get-many", "pool-tasks"]));
    for spec in pools {
        let outcome = run_here(spec).unwrap();
        assert_eq!(outcome.figures["pool_misses"], 0.0, "{}", spec.key());
    }
    // Wrong values are counted: the same database is read with another seed.
    let mut spec = trials.into_iter().find(|spec| spec.method == "pool-tasks").unwrap();
    spec.target.content_seed = Some(SEED + 1);
    let checks = run_here(&spec).unwrap().checks;
    assert!(checks.wrong > 0 && checks.wrong == checks.verified, "{checks:?}");
}

#[test]
fn a_truncated_file_is_an_error_and_not_the_end_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let trials = plan(&config(), &available).trials;
    let file = std::fs::File::options().write(true).open(&available.file.paths[0]).unwrap();
    file.set_len(16 * 4096).unwrap();
    for spec in trials.iter().filter(|spec| !spec.method.starts_with("fio")) {
        assert!(run_here(spec).is_err(), "{}", spec.key());
    }
}

#[test]
fn a_file_cut_while_it_is_mapped_is_an_error_too() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let path = available.file.paths[0].clone();
    let spec = plan(&config(), &available).trials.into_iter().find(|spec| spec.method == "mmap-random").unwrap();
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let mut cut = false;
    let mut on_tick = |_: &crate::record::Tick| {
        if !std::mem::replace(&mut cut, true) {
            std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        }
    };
    let spec = TrialSpec { duration_s: 4.0, ..spec };
    let error =
        execute(&spec, &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut on_tick })
            .unwrap_err();
    assert!(error.to_string().contains("truncated"), "{error}");
}

#[test]
fn the_plan_has_every_method_or_a_reason_for_skipping_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut available = available(folder.path());
    available.fio = None;
    let all = [
        "mmap-random",
        "mmap-normal",
        "mmap-sequential",
        "pread-buffered",
        "pread-buffered-random",
        "pread-direct",
        "uring-direct",
        "fio-psync",
        "fio-uring",
        "pool",
    ];
    let names = |plan: &Plan| -> BTreeSet<String> {
        let trials = plan.trials.iter().map(|spec| spec.method.clone());
        trials.chain(plan.skips.iter().map(|skip| skip.method.clone())).collect()
    };
    let without_fio = plan(&config(), &available);
    assert!(all.iter().all(|id| names(&without_fio).contains(*id)), "{without_fio:?}");
    let skip = without_fio.skips.iter().find(|skip| skip.method == "pool-tasks").unwrap();
    assert!(skip.reason.contains("pool = 'off'"), "{}", skip.reason);
    let skip = without_fio.skips.iter().find(|skip| skip.method == "fio-psync").unwrap();
    assert!(skip.reason.contains("apt install fio"));
    assert!(without_fio.skips.iter().any(|skip| skip.target == "ram"), "the plan notes the missing RAM-backed device");

    let mut off = config();
    off.fio = Choice::Off;
    assert!(plan(&off, &available).skips.iter().any(|skip| skip.reason.contains("fio = 'off'")));

    // With a RAM-backed device and a raw device, each target has all methods.
    available.fio = Some("fio-3".into());
    available.ram = vec![Target { label: "ram".into(), ..available.file.clone() }];
    available.devices = vec![Target { label: "device".into(), ..available.file.clone() }];
    let full = plan(&config(), &available);
    for target in ["file", "ram", "device"] {
        for id in &all[..9] {
            let planned = full.trials.iter().any(|spec| spec.target.label == target && spec.method == *id);
            let skipped = full.skips.iter().any(|skip| skip.target == target && skip.method == *id);
            assert!(planned != skipped, "{target} {id}");
        }
    }
    let one_count = full.trials.iter().filter(|spec| spec.method == "mmap-normal" && spec.target.label == "file");
    assert_eq!(one_count.count(), 1, "a wrong hint needs one thread count");
}

#[test]
fn a_trace_is_read_by_every_method_in_its_own_blocks_and_order() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _pool) = with_pool(folder.path());
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, "8192,4096,read\n0,4096,write\n8192,4096,read\n400000,8192,read\n").unwrap();
    let mut config = config();
    config.trace = vec![path.clone()];
    config.validate().unwrap();
    let available = Available { ram: vec![Target { label: "ram".into(), ..available.file.clone() }], ..available };
    let plan = plan(&config, &available);
    let told = |words: &str| plan.skips.iter().any(|skip| skip.reason.contains(words));
    assert!(
        told("25.0 % of the accesses are writes and syncs") && told("cannot read the blocks of a trace"),
        "{:?}",
        plan.skips
    );
    for spec in &plan.trials {
        assert!(
            spec.target.label == "file" && spec.variant.is_empty() && !spec.method.starts_with("fio"),
            "{}",
            spec.key()
        );
        let outcome = run_here(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        assert!(outcome.ops > 0 && outcome.checks.verified > 0 && outcome.checks.wrong == 0, "{}", spec.key());
    }
    let methods: BTreeSet<&str> = plan.trials.iter().map(|spec| spec.method.as_str()).collect();
    assert!(["mmap-random", "pread-direct", "pool-tasks"].iter().all(|id| methods.contains(id)), "{methods:?}");
    std::fs::write(&path, "0,4096,write\n").unwrap();
    let only_writes = super::plan(&config, &available);
    let told = only_writes.skips.iter().any(|skip| skip.reason.contains("no read"));
    assert!(only_writes.trials.is_empty() && told, "{:?}", only_writes.skips);
    std::fs::write(&path, "nonsense").unwrap();
    assert!(config.validate().unwrap_err().to_string().contains("line 1"));
}

#[test]
fn an_unknown_method_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let good = plan(&config(), &available(folder.path())).trials.remove(0);
    let refused = |spec: TrialSpec| run_here(&spec).unwrap_err().to_string();
    assert!(refused(TrialSpec { method: "telepathy".into(), ..good.clone() }).contains("telepathy"));
    assert!(refused(TrialSpec { duration_s: -1.0, ..good.clone() }).contains("-1"));
    let params = Params { block_bytes: 1000, ..good.params.clone() };
    assert!(refused(TrialSpec { params, ..good.clone() }).contains("1000"));
    let target = Target { paths: vec!["no-such-file".into()], ..good.target.clone() };
    assert!(refused(TrialSpec { target, ..good }).contains("no-such-file"));
}
