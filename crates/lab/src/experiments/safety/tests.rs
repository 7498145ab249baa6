use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;

use super::{Parameters, trial, *};
use crate::experiments::cold_in_tests;
use crate::record::MemoryLimit;

/// The process that other tests start and kill. Not a test by itself.
#[test]
#[ignore = "a process that other tests start, not a test"]
fn the_writer_of_other_tests() {
    // Run by hand, the test gets no order and prints an error.
    if let Err(error) = trial::serve(std::io::stdin(), std::io::stdout()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn planned() -> (tempfile::TempDir, Plan) {
    let folder = tempfile::tempdir().unwrap();
    let available = Available { folder: folder.path().to_path_buf(), ..Available::default() };
    let mut config = Config::preset(Preset::Quick);
    config.change(|safety: &mut Parameters| {
        safety.keys = 300;
        safety.writers = vec![2];
        safety.cell_s = 0.1;
    });
    let plan = plan(&config, &available);
    (folder, plan)
}

fn run(spec: &TrialSpec) -> Outcome {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let outcome =
        execute(spec, &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} });
    outcome.unwrap_or_else(|error| panic!("{}: {error}", spec.key()))
}

#[test]
fn uncommitted_bytes_of_a_shared_map_are_on_disk_and_those_of_a_private_one_are_not() {
    let (folder, plan) = planned();
    for spec in plan.trials.iter().filter(|spec| spec.variant == STEAL) {
        let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
        let outcome = match execute(
            spec,
            &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} },
        ) {
            Err(error) if error.kind() == LabErrorKind::Unsupported => return eprintln!("skipped: {error}"),
            outcome => outcome.unwrap(),
        };
        let wanted = if spec.method == "mmap-shared" { outcome.figures["uncommitted_stored"] } else { 0.0 };
        assert_eq!(outcome.figures["uncommitted_on_disk"], wanted, "{}", spec.method);
        assert!(outcome.figures["until_on_disk_s"] > 0.0);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "scratch folders are removed");
}

#[test]
fn a_disk_that_was_not_read_gives_no_figure() {
    let (folder, _) = planned();
    let available = Available { folder: folder.path().to_path_buf(), ..Available::default() };
    let plan = plan(&Config::preset(Preset::Standard), &available);
    let by_kernel = plan.once.iter().find(|spec| spec.variant == STEAL).unwrap();
    for (seconds, cancelled, kind) in [(0.0, false, LabErrorKind::Unsupported), (60.0, true, LabErrorKind::Interrupted)]
    {
        let spec = TrialSpec { duration_s: seconds, ..by_kernel.clone() };
        let (watch, cancel) = (Watch::new(), AtomicBool::new(cancelled));
        let told = execute(
            &spec,
            &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} },
        );
        assert_eq!(told.map_err(|error| error.kind()).map(|outcome| outcome.figures), Err(kind), "{seconds} s");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "scratch folders are removed");
}

#[test]
fn changes_larger_than_memory_are_planned_and_give_no_figure_where_memory_holds_them() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let place = crate::experiment::StoresPlace {
        experiment: ID,
        folder: folder.path().to_path_buf(),
        memory: Ok(MemoryLimit { method: crate::record::MemoryMethod::CgroupV1, bytes: EVICTING_MEMORY_BYTES }),
    };
    let available = Available { folder: folder.path().to_path_buf(), stores: vec![place], ..Available::default() };
    let trials = plan(&Config::preset(Preset::Standard), &available).once;
    let mut spec = trials.into_iter().find(|spec| cause(&spec.params) == "eviction").unwrap();
    assert!(spec.target.data_bytes > spec.memory.bytes);
    // This test has no limit: all pages stay.
    spec.target.data_bytes = 2 << 20;
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let error =
        execute(&spec, &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} })
            .unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::Unsupported, "{error}");
    let without = plan(&Config::preset(Preset::Standard), &Available::default());
    assert!(without.skips.iter().any(|skip| skip.reason.contains("larger than memory")));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "scratch folders are removed");
}

#[test]
fn every_store_keeps_acknowledged_commits_and_records_their_cost() {
    let (_folder, plan) = planned();
    let commits: Vec<&TrialSpec> = plan.trials.iter().filter(|spec| spec.variant == COMMITS).collect();
    assert_eq!(commits.len(), STORES.len());
    for spec in commits {
        let outcome = run(spec);
        let figure = |name: &str| *outcome.figures.get(name).unwrap_or_else(|| panic!("{}: no {name}", spec.method));
        assert!(outcome.ops > 0 && outcome.latency["op"].count >= outcome.ops, "{}", spec.method);
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.method);
        assert!(outcome.checks.verified >= 600 && outcome.latency["read"].count > 0, "{}", spec.method);
        assert_eq!((figure("lost_commits"), figure("torn_commits")), (0.0, 0.0), "{}", spec.method);
        assert!(figure("commits_before_kill") > 0.0, "{}: a process was killed at work", spec.method);
        assert!(figure("bytes_written_per_commit") > 0.0 && figure("syncs_per_commit") > 0.0, "{}", spec.method);
        assert!(figure("recovery_s") > 0.0 && figure("memory_bytes") > 0.0, "{}", spec.method);
        assert!(outcome.texts["settings"].contains("durable"), "{}", spec.method);
    }
}

#[test]
fn longer_presets_wait_for_the_kernel_and_take_more_writers() {
    let available = Available::default();
    let plan = plan(&Config::preset(Preset::Standard), &available);
    assert!(plan.once.iter().any(|spec| spec.params.extra.get("cause").is_some_and(|cause| cause == "kernel")));
    for writers in [1, 8, 64] {
        let of_so_many = plan.trials.iter().filter(|spec| spec.variant == COMMITS && spec.params.threads == writers);
        assert_eq!(of_so_many.count(), STORES.len());
    }
    assert!(plan.trials.iter().all(|spec| spec.experiment == ID));
    let mut unknown = plan.trials[0].clone();
    unknown.method = "no-such-method".into();
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let refused =
        execute(&unknown, &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} });
    assert_eq!(refused.unwrap_err().kind(), LabErrorKind::Usage);
}
