use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;
use nofault_sim::depth::by_depth;

use super::{Parameters, trial, *};
use crate::config::Preset;
use crate::experiment::StoresPlace;
use crate::experiments::cold_in_tests;
use crate::measure::entries::Key;
use crate::measure::stores::{LookAtEntry, LookAtValue, Reader};

fn config() -> Config {
    let mut config = Config::preset(Preset::Standard);
    config.change(|engines: &mut Parameters| {
        *engines = Parameters {
            cell_s: by_depth(0.03, 0.12),
            repeats: 1,
            data_bytes: by_depth(1 << 20, 4 << 20),
            memory_bytes: 48 << 20,
            fit_data_bytes: by_depth(1 << 18, 1 << 20),
            fit_memory_bytes: 48 << 20,
            value_bytes: 200,
            threads: 4,
            fit_threads: 2,
            writers: 4,
            ..engines.clone()
        };
    });
    config
}

fn available(folder: &Path) -> Available {
    let limit = MemoryLimit { method: MemoryMethod::CgroupV2, bytes: 48 << 20 };
    let place = StoresPlace { experiment: ID, folder: folder.to_path_buf(), memory: Ok(limit) };
    Available { stores: vec![place], ..Available::default() }
}

fn run(spec: &TrialSpec, cancel: &AtomicBool) -> Result<Outcome> {
    let watch = Watch::new();
    execute(spec, &mut Context { watch: &watch, cancel, cold: cold_in_tests(), on_tick: &mut |_| {} })
}

#[test]
fn every_store_is_planned_in_order_or_skipped_with_the_feature_to_build() {
    let plan = plan(&config(), &available(Path::new("here")));
    assert!(plan.together && plan.repeats == Some(1));
    for kind in &KINDS {
        let own = plan.trials.iter().filter(|spec| spec.method == kind.id && spec.target.label == LARGER);
        let own: Vec<&str> = own.map(|spec| spec.variant.as_str()).collect();
        let skipped = plan.skips.iter().find(|skip| skip.method == kind.id);
        match kind.is_built() {
            true if kind.commits_durably => assert_eq!(own, ORDER, "{}", kind.id),
            true => {
                let rest: Vec<&str> = ORDER.into_iter().filter(|variant| !variant.starts_with(COMMIT)).collect();
                assert_eq!(own, rest, "{}", kind.id);
                assert!(skipped.is_some_and(|skip| skip.reason.contains("durable commits")), "{}", kind.id);
            }
            false => assert!(own.is_empty() && skipped.is_some_and(|skip| skip.reason.contains("--features peer"))),
        }
    }
    let keys: BTreeSet<String> = plan.trials.iter().map(TrialSpec::key).collect();
    assert_eq!(keys.len(), plan.trials.len(), "two trials share a key");
    assert!(plan.trials.iter().all(|spec| spec.params.extra.contains_key("durability")));
    assert!(plan.trials.iter().all(|spec| spec.target.label == LARGER || fits_in(&spec.variant)));
}

#[test]
fn maps_are_read_again_with_other_read_ahead_where_the_user_may_set_it() {
    let root = Available { root: true, ..available(Path::new("here")) };
    let trials = plan(&config(), &root).trials;
    let varied: Vec<_> = trials.iter().filter(|spec| spec.params.extra.contains_key("read_ahead_kb")).collect();
    let built = KINDS.iter().filter(|kind| kind.is_built() && kind.reads_ahead).count();
    // Random reads are also made with the read-ahead off.
    assert_eq!(varied.len(), built * (2 * config().read_ahead_kb.len() + 1));
    for spec in varied {
        assert!(spec.target.label == LARGER && [SCAN, "ycsb-c"].contains(&spec.variant.as_str()), "{spec:?}");
        // The scan runs on the database as the earlier trials left it.
        let at = trials.iter().position(|other| other == spec).unwrap();
        assert_eq!((&trials[at - 1].method, &trials[at - 1].variant), (&spec.method, &spec.variant));
    }
    let skips = plan(&config(), &available(Path::new("here"))).skips;
    assert_eq!(skips.iter().filter(|skip| skip.reason.contains("needs root")).count(), built);
}

#[test]
fn without_a_memory_limit_data_that_fits_is_measured_and_the_rest_is_skipped_with_the_reason() {
    let place = StoresPlace { experiment: ID, folder: "here".into(), memory: Err("no rights".into()) };
    let available = Available { stores: vec![place], ..Available::default() };
    let plan = plan(&config(), &available);
    assert!(!plan.trials.is_empty() && plan.trials.iter().all(|spec| spec.target.label == IN_MEMORY));
    assert!(plan.trials.iter().all(|spec| spec.memory == MemoryLimit::default()));
    assert!(plan.skips.iter().any(|skip| skip.target == LARGER && skip.reason.contains("no rights")));
}

#[test]
fn only_named_stores_are_planned() {
    let mut config = config();
    config.change(|engines: &mut Parameters| {
        engines.stores = vec!["nofault".into()];
    });
    let plan = plan(&config, &available(Path::new("here")));
    assert!(plan.skips.is_empty() && plan.trials.iter().all(|spec| spec.method == "nofault"));
    config.change(|engines: &mut Parameters| {
        engines.stores = vec!["oracle".into()];
    });
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("oracle") && error.contains("rocksdb-mmap"), "{error}");
}

#[test]
fn every_planned_trial_of_every_store_runs_and_its_answers_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(), &available(folder.path()));
    for skip in &plan.skips {
        println!("left out: {}: {}", skip.method, skip.reason);
    }
    let mut verified = std::collections::BTreeMap::new();
    for spec in &plan.trials {
        let outcome = run(spec, &AtomicBool::new(false)).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        let key = spec.key();
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{key}");
        *verified.entry(&spec.method).or_insert(0) += outcome.checks.verified;
        assert!(outcome.figures["file_bytes"] > 0.0 && outcome.figures["space_ratio"] > 0.5, "{key}");
        assert!(!outcome.settings.is_empty(), "{key}: settings are kept with the trial");
        assert!(!outcome.texts["unequal"].is_empty(), "{key}");
        let timed = spec.variant.starts_with(YCSB) || spec.variant.starts_with(COMMIT);
        assert_eq!(outcome.latency.contains_key("op"), timed, "{key}");
    }
    assert!(verified.values().all(|verified| *verified > 1000), "{verified:?}");
}

#[test]
fn a_trial_whose_database_was_not_loaded_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(), &available(folder.path()));
    let of = |variant: &str| plan.trials.iter().find(|spec| spec.variant == variant).unwrap().clone();
    let refused = |spec: &TrialSpec| run(spec, &AtomicBool::new(false)).map(|_| ()).unwrap_err();
    let error = refused(&of("ycsb-c"));
    assert!(error.kind() == LabErrorKind::Usage && error.to_string().contains("not loaded"), "{error}");
    run(&of(LOAD), &AtomicBool::new(false)).unwrap();
    let mut other = of("ycsb-c");
    other.target.data_bytes += 1 << 20;
    assert!(refused(&other).to_string().contains("not loaded"), "another amount of data");
    for spoil in [
        |spec: &mut TrialSpec| spec.method = "oracle".into(),
        |spec: &mut TrialSpec| spec.variant = "ycsb-z".into(),
        |spec: &mut TrialSpec| spec.params.threads = 0,
        |spec: &mut TrialSpec| spec.target.paths.clear(),
        |spec: &mut TrialSpec| spec.params.block_bytes = 17,
        |spec: &mut TrialSpec| drop(spec.params.extra.insert("memory".into(), "much".into())),
    ] {
        let mut spec = of("ycsb-c");
        spoil(&mut spec);
        assert_eq!(refused(&spec).kind(), LabErrorKind::Usage, "{}", spec.key());
    }
}

#[test]
fn the_user_can_stop_a_load_and_a_mix() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(), &available(folder.path()));
    let of = |variant: &str| plan.trials.iter().find(|spec| spec.variant == variant).unwrap().clone();
    let mut large = of(LOAD);
    large.target.data_bytes = 1 << 40;
    assert!(run(&large, &AtomicBool::new(true)).unwrap().partial);
    run(&of(LOAD), &AtomicBool::new(false)).unwrap();
    let endless = TrialSpec { duration_s: 3600.0, ..of("ycsb-a") };
    assert!(run(&endless, &AtomicBool::new(true)).unwrap().partial);
}

/// A store that answers every read with the loaded value and ignores all writes.
struct Forgetful(Data);

impl Store for Forgetful {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(&self.0))
    }

    fn write(&self, _: &[(Key, Vec<u8>)], _: bool) -> Result<()> {
        Ok(())
    }

    fn fill(&self, _: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        Ok(Vec::new())
    }

    fn unequal(&self) -> &'static str {
        ""
    }
}

impl Reader for &Data {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        let number = u64::from_be_bytes(key[..8].try_into().unwrap());
        look(Some(&self.changed(number, 0).1))
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let number = u64::from_be_bytes(from[..8].try_into().unwrap());
        // One entry too few.
        for number in number..number + count as u64 - 1 {
            let (key, value) = self.changed(number, 0);
            look(&key, &value)?;
        }
        Ok(count - 1)
    }
}

#[test]
fn a_store_that_loses_updates_or_entries_is_detected() {
    let data = Data { count: 100, value_bytes: 50, seed: 3 };
    let store = Forgetful(data);
    for letter in ["a", "e", "f"] {
        let history = History::new(data, data.count, unix_ms() << 20);
        let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
        let plan = measure::Measurement {
            duration: Duration::from_millis(50),
            tick: Duration::from_millis(10),
            watch: &watch,
            memory_bytes: None,
            fill_first: false,
            cancel: &cancel,
        };
        let mix = MIXES.into_iter().find(|mix| mix.id == letter).unwrap();
        let chooser = crate::measure::mixes::Chooser::new(mix, data.count, &Zipfian::new(data.count, 0), 1);
        let (history, cancel, store) = (&history, &cancel, &store);
        let work: Work<'_> =
            Box::new(move |worker| trial::mix(worker, store, history, chooser, Duration::ZERO, cancel));
        let outcome = measure::run(&plan, vec![work], &mut |_| {}).unwrap();
        assert!(outcome.checks.wrong > 0, "{letter}: {:?}", outcome.checks);
    }
}
