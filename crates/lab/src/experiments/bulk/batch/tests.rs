//! Every method answers requests of a tiny size on a real file and finds the right pages.

use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use nofault_sim::depth::by_depth;

use super::{Parameters, *};
use crate::config::Preset;
use crate::experiments::{is_missing, run_here};
use crate::machine::content;
use crate::machine::data::{self, DataSpec};
use crate::machine::pool::PoolData;
use crate::record::{MemoryLimit, MemoryMethod};

const BLOCKS: u64 = 512;

fn config() -> Config {
    let mut config = Config::preset(Preset::Quick);
    config.change(|own: &mut Parameters| {
        own.cell_s = by_depth(0.05, 0.2);
        own.pages = vec![3, 40];
        own.helpers = 4;
    });
    config
}

/// The limit is not enforced here: it only gives the sizes.
fn available(folder: &std::path::Path) -> (Available, PoolData) {
    let wanted = DataSpec { seed: 5, data_bytes: BLOCKS * 4096 };
    let cancel = AtomicBool::new(false);
    let made = PoolData::make(folder, wanted, &|_, _| {}, &cancel).unwrap();
    let available = Available {
        file: data::ensure_file(&folder.join("main.data"), wanted, &|_, _| {}, &cancel).unwrap(),
        pool: Some(crate::machine::pool::target(folder, wanted)),
        pool_bytes: by_depth(16 << 20, 256 << 20),
        memory: MemoryLimit { method: MemoryMethod::LargeFile, bytes: BLOCKS * 4096 / 2 },
        ..Available::default()
    };
    (available, made)
}

#[test]
fn every_method_answers_requests_of_every_size_with_the_right_pages() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    let plan = plan(&config(), &available);
    assert_eq!((plan.trials.len(), plan.skips.len()), (2 * (10 + 9), 1), "{:?}", plan.skips);
    for spec in &plan.trials {
        let outcome = match run_here(spec) {
            Ok(outcome) => outcome,
            Err(error) if is_missing(spec, &error) => continue,
            Err(error) => panic!("{}: {error}", spec.key()),
        };
        let pages: u64 = spec.params.extra[PAGES].parse().unwrap();
        let requests = outcome.latency["op"].count;
        assert!(requests > 0 && outcome.checks.verified == requests * pages, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
    }
}

#[test]
fn wrong_pages_are_counted_by_every_method() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    let file = std::fs::File::options().write(true).open(&available.file.paths[0]).unwrap();
    for block in 0..BLOCKS {
        file.write_all_at(&[0x55; 8], content::block_offset(block)).unwrap();
    }
    file.sync_all().unwrap();
    for mut spec in plan(&config(), &available).trials {
        // The database has right pages: it is read with another seed.
        if spec.method == "batch-get-many" {
            spec.target.content_seed = Some(6);
        }
        match run_here(&spec) {
            Ok(outcome) => {
                let checks = outcome.checks;
                assert!(checks.wrong > 0 && checks.wrong == checks.verified, "{}: {checks:?}", spec.key());
            }
            Err(error) => assert!(is_missing(&spec, &error), "{}: {error}", spec.key()),
        }
    }
}

#[test]
fn a_truncated_file_is_an_error_of_the_trial() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    let trials = plan(&config(), &available).trials;
    let file = std::fs::File::options().write(true).open(&available.file.paths[0]).unwrap();
    file.set_len(16 * 4096).unwrap();
    for spec in trials.iter().filter(|spec| spec.method != "batch-get-many") {
        assert!(run_here(spec).is_err(), "{}", spec.key());
    }
}

#[test]
fn a_cold_trial_lasts_for_some_requests_however_slow_the_device_is() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    let slow = crate::machine::device_rate::DeviceRate { alone_per_s: 1000.0, most_per_s: 3000.0 };
    let mut config = config();
    config.change(|own: &mut Parameters| own.cell_s = 0.2);
    let trials = plan(&config, &Available { device_rate: Some(slow), ..available }).trials;
    let lasts = |variant: &str, pages: &str| {
        let spec = trials.iter().find(|spec| spec.variant == variant && spec.params.extra[PAGES] == pages).unwrap();
        spec.duration_s
    };
    // Eight requests of 40 pages, one page at a time.
    assert!((lasts(COLD, "40") - 0.32).abs() < 1e-9 && lasts(WARM, "40") == 0.2, "{}", lasts(COLD, "40"));
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (available, _made) = available(folder.path());
    let mut spec = plan(&config(), &available).trials.remove(0);
    for pages in ["0", "many", "-1"] {
        spec.params.extra.insert(PAGES.into(), pages.into());
        assert_eq!(run_here(&spec).unwrap_err().kind(), LabErrorKind::Usage, "{pages}");
    }
    let spec = TrialSpec { method: "telepathy".into(), ..plan(&config(), &available).trials.remove(0) };
    assert!(run_here(&spec).unwrap_err().to_string().contains("telepathy"));
}
