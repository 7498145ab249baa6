//! Every method runs at a tiny size, in this process, without a memory limit, and reads the expected data.

use std::sync::atomic::AtomicBool;

use super::{Parameters, trial, *};
use crate::config::Preset;
use crate::experiment::Reclaim;
use crate::experiments::run_here;
use crate::machine::data::{self, DataSpec};
use crate::record::MemoryMethod;

fn config() -> Config {
    let mut config = Config::preset(Preset::Standard);
    config.change(|eviction: &mut Parameters| {
        eviction.cell_s = 0.1;
        eviction.part_s = 0.05;
        eviction.fault_bytes = 2 << 20;
        eviction.threads = vec![1, 3];
    });
    config
}

fn available(folder: &std::path::Path) -> Available {
    let wanted = DataSpec { seed: 3, data_bytes: 4 << 20 };
    let file = data::ensure_file(&folder.join("main.data"), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    let limit = |method| Ok(MemoryLimit { method, bytes: 1 << 30 });
    let reclaim = vec![
        Reclaim { by: "cgroup", on_ram: false, limit: limit(MemoryMethod::CgroupV2) },
        Reclaim { by: "kswapd", on_ram: false, limit: Err("no ballast in a test".into()) },
    ];
    Available { file, reclaim, ..Available::default() }
}

#[test]
fn every_planned_trial_reads_the_expected_data() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(), &available(folder.path()));
    assert!(plan.skips.iter().any(|skip| skip.reason.contains("no ballast in a test")), "{:?}", plan.skips);
    assert!(plan.skips.iter().any(|skip| skip.target == "ram"));
    for spec in &plan.trials {
        let outcome = run_here(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        assert!(outcome.ops > 0 && outcome.checks.verified > 0, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        if spec.target.label == "memory" {
            assert!(outcome.figures[crate::summary::TIME_PER_OP] > 0.0, "{}", spec.key());
        }
    }
}

#[test]
fn each_touch_is_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    let trials = plan(&config(), &available(folder.path())).trials;
    for method in ["mmap-one-map", "mmap-own", "mmap-unmap-page"] {
        let spec = trials.iter().find(|spec| spec.method == method).unwrap();
        let outcome = run_here(&TrialSpec { duration_s: 0.4, ..spec.clone() }).unwrap();
        // Counted from tick to tick, because the first counters are read when the work has already begun. Faults of
        // other tests in this process count as well, but there cannot be fewer faults than touches.
        let (faults, ops) = (outcome.counter("minor_faults").unwrap(), outcome.steady.unwrap().ops);
        assert!(faults > ops as f64 * 0.8, "{method}: {faults} faults for {ops} touches");
    }
}

#[test]
fn the_pinned_control_runs_on_one_cpu_and_then_restores_the_others() {
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    let pinned = trial::PinnedThread::here().unwrap();
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
    drop(pinned);
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), before.count());
}

#[test]
fn an_unknown_method_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for spec in plan(&config(), &available(folder.path())).trials {
        let spec = TrialSpec { method: "telepathy".into(), ..spec };
        assert!(run_here(&spec).unwrap_err().to_string().contains("telepathy"));
    }
    let mut spec = plan(&config(), &available(folder.path())).trials.remove(0);
    spec.variant = "dance".into();
    assert!(run_here(&spec).is_err());
}
