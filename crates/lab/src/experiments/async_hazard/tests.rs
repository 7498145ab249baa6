//! Every configuration runs at a tiny size, in this process, and reads the expected data.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use super::{Parameters, *};
use crate::config::Preset;
use crate::experiments::run_here;
use crate::machine::content;
use crate::machine::data::{self, DataSpec};
use crate::machine::pool::{self, PoolData};
use nofault_sim::depth::by_depth;

const SEED: u64 = 11;
const BLOCKS: u64 = 64;

fn files(folder: &std::path::Path) -> Target {
    let wanted = DataSpec { seed: SEED, data_bytes: BLOCKS * 4096 };
    data::ensure_files(folder, "async", 3, wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap()
}

fn config() -> Config {
    let mut config = Config::preset(Preset::Standard);
    config.change(|own: &mut Parameters| {
        own.files = 3;
        own.touches = 40;
    });
    config
}

#[test]
fn every_planned_configuration_reads_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let available = Available { small_files: files(folder.path()), ..Available::default() };
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for spec in plan(&config(), &available).trials {
        let outcome = run_here(&spec).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        let expected_ops = if spec.variant == RANDOM_TOUCH { 120 } else { 3 * BLOCKS / 16 };
        assert_eq!(outcome.ops, expected_ops, "{}", spec.key());
        let sum = *sums.entry(spec.variant.clone()).or_insert(outcome.checks.checksum);
        assert_eq!(outcome.checks.checksum, sum, "{} read different data", spec.key());
        assert!(outcome.elapsed_s > 0.0 && outcome.steady.is_none());
    }
    assert_eq!(sums.len(), 2);
}

#[test]
fn the_engines_tasks_read_the_expected_data_cold_and_warm() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = DataSpec { seed: SEED, data_bytes: 3 * BLOCKS * 4096 };
    let _pool = PoolData::make(folder.path(), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    let pool = Some(pool::target(folder.path(), wanted));
    let available = Available {
        small_files: files(folder.path()),
        pool,
        pool_bytes: by_depth(16 << 20, 256 << 20),
        ..Available::default()
    };
    let mut config = config();
    config.change(|own: &mut Parameters| {
        own.file_bytes = BLOCKS * 4096;
    });
    let specs = plan(&config, &available).trials;
    let mut misses = BTreeMap::new();
    for spec in specs.iter().filter(|spec| spec.method == "async-pool") {
        let outcome = run_here(spec).unwrap();
        assert_eq!((outcome.ops, outcome.checks.verified, outcome.checks.wrong), (120, 120, 0), "{}", spec.key());
        misses.insert(spec.cache.to_string(), outcome.figures["pool_misses"]);
    }
    assert!(misses["cold"] > 0.0 && misses.len() == 2, "{misses:?}");
}

#[test]
fn a_block_with_wrong_content_is_counted() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let target = files(folder.path());
    let file = std::fs::OpenOptions::new().write(true).open(&target.paths[1]).unwrap();
    for block in 0..BLOCKS {
        file.write_all_at(&[0xff; 8], content::block_offset(block)).unwrap();
    }
    file.sync_all().unwrap();
    let available = Available { small_files: target, ..Available::default() };
    for spec in plan(&config(), &available).trials.iter().filter(|spec| spec.variant == RANDOM_TOUCH) {
        assert_eq!(run_here(spec).unwrap().checks.wrong, 40, "{}", spec.key());
    }
}

#[test]
fn a_truncated_file_is_an_error_and_not_the_end_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let target = files(folder.path());
    let available = Available { small_files: target.clone(), ..Available::default() };
    std::fs::OpenOptions::new().write(true).open(&target.paths[2]).unwrap().set_len(4096).unwrap();
    for spec in plan(&config(), &available).trials {
        assert!(run_here(&spec).is_err(), "{}", spec.key());
    }
}

#[test]
fn one_device_serves_all_tasks_with_a_part_each() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = files(folder.path());
    target.paths.truncate(1);
    let available = Available { ram: vec![target], small_files: files(folder.path()), ..Available::default() };
    let specs = plan(&config(), &available).trials;
    let on_device: Vec<_> = specs.iter().filter(|spec| spec.target.paths.len() == 1).collect();
    assert!(!on_device.is_empty());
    for spec in on_device {
        let outcome = run_here(spec).unwrap();
        assert_eq!((outcome.ops, outcome.checks.verified, outcome.checks.wrong), (120, 120, 0), "{}", spec.key());
    }
}

#[test]
fn open_questions_cover_every_kind_of_device_and_vary_read_ahead_only_with_the_right_to_set_it() {
    let (folder, mut config) = (tempfile::tempdir().unwrap(), config());
    config.read_ahead_kb = vec![128];
    let device = |label: &str| Target { label: label.into(), ..files(folder.path()) };
    let of = |root: bool| {
        let (ram, devices) = (vec![device("ram")], vec![device("device")]);
        plan(&config, &Available { small_files: device("file"), ram, devices, root, ..Available::default() })
    };
    let sets = |plan: &Plan| plan.trials.iter().any(|spec| spec.params.extra.contains_key("read_ahead_kb"));
    assert!(sets(&of(true)) && !sets(&of(false)));
    let said = |plan: &Plan| plan.skips.iter().any(|skip| skip.reason.contains("read_ahead_kb"));
    assert!(!said(&of(true)) && said(&of(false)), "left out with the reason, not tried and failed");
    for label in ["ram", "device"] {
        let methods = of(true).trials.into_iter().filter(|spec| spec.target.label == label).count();
        assert_eq!(methods, 5, "{label}");
    }
}

#[test]
fn an_unknown_method_or_parameter_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let available = Available { small_files: files(folder.path()), ..Available::default() };
    let good = plan(&config(), &available).trials.remove(0);
    let with = |name: &str, value: &str| {
        let mut spec = good.clone();
        spec.params.extra.insert(name.into(), value.into());
        run_here(&spec).unwrap_err().to_string()
    };
    assert!(with("advice", "please").contains("please"));
    assert!(with("touches", "many").contains("many"));
    assert!(
        run_here(&TrialSpec { method: "telepathy".into(), ..good.clone() })
            .unwrap_err()
            .to_string()
            .contains("telepathy")
    );
}
