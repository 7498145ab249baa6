//! Every planned trial runs at a tiny size and reads the right data; the border is where the figures put it.

use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;
use nofault_sim::depth::by_depth;

use super::rules::{Border, GridPoint, Separation, separate};
use super::{Parameters, *};
use crate::config::Preset;
use crate::experiments::cold_in_tests;
use crate::machine::data::{self, DataSpec};
use crate::machine::pool::PoolData;
use crate::record::MemoryMethod;

const SEED: u64 = 5;
const BYTES: u64 = 512 * 4096;

fn config() -> Config {
    let mut config = Config::preset(Preset::Quick);
    config.change(|own: &mut Parameters| {
        (own.cell_s, own.hot_s) = by_depth((0.05, 0.05), (0.2, 0.2));
        own.data_per_memory = vec![0.5, 2.0, 100.0];
        own.in_flight = vec![1, 3];
    });
    config
}

/// A file, the engine's database, and a second file in place of a RAM-backed device. The limits are not enforced here: they
/// only give the sizes.
fn available(folder: &std::path::Path) -> (Available, PoolData) {
    let wanted = DataSpec { seed: SEED, data_bytes: BYTES };
    let file = |name: &str| data::ensure_file(&folder.join(name), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    let made = PoolData::make(folder, wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    let memory = MemoryLimit { method: MemoryMethod::LargeFile, bytes: BYTES / 2 };
    let available = Available {
        file: file("main.data"),
        ram: vec![Target { label: "ram".into(), ..file("ram.data") }],
        pool: Some(crate::machine::pool::target(folder, wanted)),
        pool_bytes: by_depth(16 << 20, 256 << 20),
        memory,
        ram_memory: memory,
        ..Available::default()
    };
    (available, made)
}

#[test]
fn every_planned_method_settles_and_reads_the_right_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    let plan = plan(&config(), &available);
    assert!(plan.trials.len() > 20 && plan.repeats == Some(3), "{}", plan.trials.len());
    for spec in &plan.trials {
        let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
        let mut context = Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} };
        let outcome = Crossover.execute(spec, &mut context).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        assert!(outcome.ops > 0 && outcome.checks.verified > 0, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        assert!(spec.target.data_bytes <= BYTES);
    }
    let skipped = |words: &str| plan.skips.iter().filter(|skip| skip.reason.contains(words)).count();
    assert_eq!(skipped("100 times the memory"), 1, "{:?}", plan.skips);
    // Read-ahead is set by root only.
    assert!(skipped("needs root") >= 1, "{:?}", plan.skips);
}

#[test]
fn each_point_of_the_grid_has_a_map_and_every_side_with_as_many_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    let available = Available { root: true, ..available };
    let trials = plan(&config(), &available).trials;
    for (variant, count) in [(UNIFORM, 1), (UNIFORM, 3), (ZIPF, 1), (ZIPF, 3)] {
        for data in ["0.5", "2"] {
            let here = trials.iter().filter(|spec| {
                let in_flight = spec.params.threads * spec.params.depth;
                spec.variant == variant && spec.params.extra[DATA] == data && in_flight == count
            });
            let ids: Vec<&str> = here.map(|spec| spec.method.as_str()).collect();
            let zipf = usize::from(variant == ZIPF);
            let direct = if count == 1 { 1 } else { 2 };
            assert_eq!(ids.len(), 3 + zipf + direct, "{variant} {count}: {ids:?}");
        }
    }
    assert_eq!(trials.iter().filter(|spec| spec.variant == HOT_SET).count(), 3);
}

#[test]
fn only_data_larger_than_memory_must_fill_it() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    for spec in plan(&config(), &available).trials.iter().filter(|spec| spec.variant != HOT_SET) {
        assert_eq!(Crossover.basis(spec).out_of_core, spec.params.extra[DATA] == "2", "{}", spec.key());
    }
}

fn points(all: &[(f64, f64)]) -> Option<Separation> {
    separate(all.iter().map(|(miss_rate, ratio)| GridPoint { miss_rate: *miss_rate, log_ratio: ratio.ln() }).collect())
}

#[test]
fn the_border_lies_between_the_last_win_and_the_first_loss() {
    let found = points(&[(0.5, 0.4), (0.0, 20.0), (0.02, 1.5), (0.9, 0.6)]).unwrap();
    assert_eq!(found, Separation { border: Border::Between(0.02, 0.5), follow: 4, count: 4 });
    // A small win among losses does not move it.
    let found = points(&[(0.0, 20.0), (0.02, 1.5), (0.5, 0.4), (0.8, 1.1), (0.9, 0.6)]).unwrap();
    assert_eq!(found, Separation { border: Border::Between(0.02, 0.5), follow: 4, count: 5 });
}

#[test]
fn without_wins_or_losses_there_is_no_border_and_mixed_points_have_none_either() {
    assert_eq!(points(&[]), None);
    assert_eq!(points(&[(0.0, 3.0), (0.5, 1.2)]).unwrap().border, Border::Wins(0.5));
    assert_eq!(points(&[(0.0, 0.3), (0.5, 0.2)]).unwrap().border, Border::Loses(0.0));
    let mixed = [(0.0, 0.5), (0.1, 2.0), (0.2, 0.5), (0.3, 2.0), (0.4, 0.5), (0.5, 2.0)];
    assert_eq!(points(&mixed).unwrap().border, Border::None);
}
