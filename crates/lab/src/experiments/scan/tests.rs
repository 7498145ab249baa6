//! Every scan runs at a tiny size, in this process, on real files, and reads the expected data.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nofault_sim::depth::by_depth;

use super::{Parameters, *};
use crate::experiments::run_here;
use crate::machine::content;
use crate::machine::data::{self, DataSpec};
use crate::machine::pool::{self, PoolData};

const SEED: u64 = 9;
const DATA_BYTES: u64 = 3 << 20;

fn data(path: &Path) -> Target {
    let wanted = DataSpec { seed: SEED, data_bytes: DATA_BYTES };
    data::ensure_file(path, wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap()
}

fn available(folder: &Path) -> Available {
    let fio = std::process::Command::new("fio").arg("--version").output().is_ok().then(|| "fio".into());
    let stripe: Vec<Target> = (0..3).map(|part| data(&folder.join(format!("scan-{part}.data")))).collect();
    Available { file: stripe[0].clone(), stripe, fio, ..Available::default() }
}

fn config() -> Config {
    let mut config = Config { preset: Preset::Standard, ..Config::preset(Preset::Quick) };
    config.change(|scan: &mut Parameters| {
        scan.cell_s = by_depth(0.05, 0.2);
        scan.block_bytes = 256 << 10;
        scan.raid_stripe_bytes = 256 << 10;
        scan.map_stripe_bytes = 1 << 20;
        scan.map_threads = vec![1, 3];
        scan.depths = vec![3];
    });
    config
}

#[test]
fn every_planned_scan_verifies_its_blocks_and_sums_the_same_sample() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = DataSpec { seed: SEED, data_bytes: DATA_BYTES };
    let _pool = PoolData::make(folder.path(), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    let available = Available {
        pool: Some(pool::target(folder.path(), wanted)),
        pool_bytes: by_depth(16 << 20, 256 << 20),
        ..available(folder.path())
    };
    let trials = plan(&config(), &available).trials;
    assert!(trials.iter().any(|spec| spec.method == "pool" && spec.params.threads == 1));
    let mut sums: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for spec in &trials {
        let outcome = run_here(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        assert!(outcome.ops > 0 && outcome.latency["op"].count > 0, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        if !spec.method.starts_with("fio") {
            assert!(outcome.checks.verified > 0, "{}", spec.key());
            sums.entry(spec.target.label.clone()).or_default().insert(outcome.checks.checksum);
        }
    }
    let labels: Vec<&str> = sums.keys().map(String::as_str).collect();
    assert_eq!(labels, ["file", "striped-2", "striped-3"]);
    assert!(sums.values().all(|sums| sums.len() == 1), "{sums:?}");
    let small = |spec: &&TrialSpec| spec.params.extra.get("buffers").is_some_and(|kind| kind == "small");
    assert!(trials.iter().filter(small).any(|spec| spec.method == "uring-direct"));
    let striped = |spec: &TrialSpec| spec.method == "mmap-random" && spec.target.label == "striped-2";
    assert!(trials.iter().any(striped), "as in the paper's figure 4");
}

#[test]
fn one_wrong_page_in_any_file_is_found_by_every_scan() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    // Damage one page in the middle of a block, in each file, beyond the first stripe.
    for part in &available.stripe {
        let file = std::fs::File::options().write(true).open(&part.paths[0]).unwrap();
        file.write_all_at(&[0x55; 8], content::block_offset(300)).unwrap();
        file.sync_all().unwrap();
    }
    let mut config = config();
    config.change(|scan: &mut Parameters| {
        scan.cell_s = by_depth(0.1, 0.6);
    });
    for spec in plan(&config, &available).trials.iter().filter(|spec| !spec.method.starts_with("fio")) {
        let checks = run_here(spec).unwrap().checks;
        assert!(checks.wrong > 0 && checks.wrong < checks.verified, "{}: {checks:?}", spec.key());
    }
}

#[test]
fn a_truncated_file_is_an_error_and_not_the_end_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let trials = plan(&config(), &available).trials;
    for part in &available.stripe {
        std::fs::File::options().write(true).open(&part.paths[0]).unwrap().set_len(1 << 20).unwrap();
    }
    for spec in trials.iter().filter(|spec| !spec.method.starts_with("fio")) {
        assert!(run_here(spec).is_err(), "{}", spec.key());
    }
}

#[test]
fn without_a_second_device_the_plan_has_the_reason_for_no_striped_scan() {
    let folder = tempfile::tempdir().unwrap();
    let mut available = available(folder.path());
    available.stripe.truncate(1);
    available.fio = None;
    let one = plan(&config(), &available);
    assert!(one.skips.iter().any(|skip| skip.target == "striped" && skip.reason.contains("stripe_over")));
    assert!(one.skips.iter().any(|skip| skip.target == "ram"));
    let fio = one.skips.iter().find(|skip| skip.method == "fio-uring").unwrap();
    assert!(fio.reason.contains("apt install fio"));

    available.ram = vec![Target { label: "ram".into(), ..available.file.clone() }; 3];
    let ram = plan(&config(), &available);
    let labels: BTreeSet<&str> = ram.trials.iter().map(|spec| spec.target.label.as_str()).collect();
    assert_eq!(labels, BTreeSet::from(["file", "ram", "ram-striped-2"]));
}

#[test]
fn several_devices_have_the_methods_of_one_device_or_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    for preset in [Preset::Quick, Preset::Standard] {
        let plan = plan(&Config { preset, ..config() }, &available);
        let at = |label: &str| {
            let trials = plan.trials.iter().filter(|spec| spec.target.label == label).map(|spec| &spec.method);
            let skips = plan.skips.iter().filter(|skip| skip.target == label).map(|skip| &skip.method);
            trials.chain(skips).cloned().collect::<BTreeSet<String>>()
        };
        assert_eq!(at("striped-3"), at("file"), "{preset:?}");
        let explicit = |spec: &&TrialSpec| spec.method == "pread-direct" && spec.target.label == "striped-3";
        assert!(plan.trials.iter().any(|spec| explicit(&spec)), "{preset:?}");
    }
}

#[test]
fn widths_double_up_to_all() {
    assert_eq!(widths(2), [2]);
    assert_eq!(widths(3), [2, 3]);
    assert_eq!(widths(10), [2, 4, 8, 10]);
}

#[test]
fn content_that_differs_between_files_is_not_verified_and_the_smallest_size_counts() {
    let part =
        |seed, data_bytes| Target { label: String::new(), paths: vec!["x".into()], data_bytes, content_seed: seed };
    let same = striped_target("s", &[part(Some(1), 10), part(Some(1), 5)]);
    assert_eq!((same.content_seed, same.data_bytes, same.paths.len()), (Some(1), 5, 2));
    assert_eq!(striped_target("s", &[part(Some(1), 10), part(None, 10)]).content_seed, None);
}
