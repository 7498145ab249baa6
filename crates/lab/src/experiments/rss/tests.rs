//! Every method reads a tiny file and has its memory counted; and a cgroup of the test's own runs out of memory.

use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;
use nofault_sim::depth::by_depth;

use super::{Parameters, trial, *};
use crate::config::Preset;
use crate::error::{LabError, LabErrorKind};
use crate::experiments::cold_in_tests;
use crate::experiments::run_here;
use crate::machine::data::{self, DataSpec};
use crate::machine::memory::CgroupGuard;
use crate::machine::pool::PoolData;

fn file_bytes() -> u64 {
    by_depth(32 << 20, 64 << 20)
}

fn limit_bytes() -> u64 {
    by_depth(48 << 20, 96 << 20)
}

/// One of the processes that other tests start and let the kernel kill. Not a test by itself.
#[test]
#[ignore = "a process that other tests start, not a test"]
fn a_process_of_other_tests() {
    // Run by hand, the test gets no order and prints an error.
    if let Err(error) = trial::serve(std::io::stdin(), std::io::stdout()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn config() -> Config {
    let mut config = Config::preset(Preset::Quick);
    config.change(|own: &mut Parameters| {
        own.cell_s = by_depth(0.1, 0.3);
        own.data_per_memory = vec![0.25, 0.5];
        own.threads = 2;
    });
    config
}

/// The limit is enforced only by the trials that make a cgroup.
fn available(folder: &std::path::Path, method: MemoryMethod) -> (Available, PoolData) {
    let wanted = DataSpec { seed: 5, data_bytes: file_bytes() };
    let cancel = AtomicBool::new(false);
    let made = PoolData::make(folder, wanted, &|_, _| {}, &cancel).unwrap();
    let available = Available {
        file: data::ensure_file(&folder.join("main.data"), wanted, &|_, _| {}, &cancel).unwrap(),
        pool: Some(crate::machine::pool::target(folder, wanted)),
        pool_bytes: by_depth(16 << 20, 256 << 20),
        memory: MemoryLimit { method, bytes: limit_bytes() },
        ..Available::default()
    };
    (available, made)
}

#[test]
fn every_method_reads_the_right_pages_and_has_its_memory_counted() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (available, _made) = available(folder.path(), MemoryMethod::LargeFile);
    let plan = plan(&config(), &available);
    assert_eq!((plan.trials.len(), plan.skips.len()), (2 * 4, 1), "{:?}", plan.skips);
    assert!(plan.skips[0].reason.contains("cgroup"), "{:?}", plan.skips);
    for spec in &plan.trials {
        match run_here(spec) {
            Ok(outcome) => {
                assert!(outcome.ops > 0 && outcome.checks.verified > 0, "{}", spec.key());
                assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
                let [rss, pss] = [trial::RSS, trial::PSS].map(|name| outcome.figures[name]);
                assert!(rss > 0.0 && pss > 0.0 && pss <= rss, "{}: {rss} {pss}", spec.key());
                assert!(!outcome.figures.contains_key(trial::CHARGED), "no cgroup was watched");
            }
            Err(error) if error.kind() == LabErrorKind::Unsupported => eprintln!("skipped: {}: {error}", spec.key()),
            Err(error) => panic!("{}: {error}", spec.key()),
        }
    }
}

/// Whether this machine lets a test make a cgroup, which then is removed; else the reason is printed.
fn may_make_a_cgroup() -> bool {
    match CgroupGuard::create(limit_bytes()) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

#[test]
fn a_neighbour_of_a_mapping_process_takes_its_memory_and_one_of_the_two_is_killed() {
    if !may_make_a_cgroup() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (available, _made) = available(folder.path(), MemoryMethod::CgroupV1);
    let plan = plan(&config(), &available);
    let pressed: Vec<&TrialSpec> = plan.trials.iter().filter(|spec| spec.variant == PRESSURE).collect();
    assert_eq!((pressed.len(), pressed[0].memory.method), (4, MemoryMethod::None), "the trial itself is outside");
    for spec in pressed.into_iter().filter(|spec| spec.method != "pool") {
        let outcome = match run_here(spec) {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == LabErrorKind::Unsupported => {
                eprintln!("skipped: {}: {error}", spec.key());
                continue;
            }
            Err(error) => panic!("{}: {error}", spec.key()),
        };
        let figure = |name: &str| outcome.figures[name];
        assert!(outcome.ops > 0 && !outcome.partial && outcome.checks.wrong == 0, "{}", spec.key());
        assert!(figure("oom_kills") >= 1.0, "{}: {:?}", spec.key(), outcome.figures);
        assert!([0.0, 1.0].contains(&figure(trial::READER_KILLED)), "{}", spec.key());
        let share = figure(trial::SHARE);
        assert!(share > 0.0 && share <= 1.0, "{}: {share}", spec.key());
    }
}

#[test]
fn a_stopped_run_ends_both_processes_and_is_partial() {
    if !may_make_a_cgroup() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (available, _made) = available(folder.path(), MemoryMethod::CgroupV1);
    let plan = plan(&config(), &available);
    let spec = plan.trials.iter().find(|spec| spec.variant == PRESSURE).unwrap();
    let (watch, cancel) = (Watch::new(), AtomicBool::new(true));
    let outcome = Rss
        .execute(spec, &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} })
        .unwrap();
    assert!(outcome.partial);
}

#[test]
fn a_trial_without_its_limit_and_an_unknown_method_are_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (available, _made) = available(folder.path(), MemoryMethod::CgroupV1);
    let mut spec = plan(&config(), &available).trials.pop().unwrap();
    spec.params.extra.remove(LIMIT);
    let usage = |spec: &TrialSpec| run_here(spec).unwrap_err();
    assert_eq!(usage(&spec).kind(), LabErrorKind::Usage);
    let spec = TrialSpec { variant: READS.into(), method: "telepathy".into(), ..spec };
    let error: LabError = usage(&spec);
    assert_eq!(error.kind(), LabErrorKind::Usage, "{error}");
}
