//! Every trial runs at a tiny size, in this process, on real files, and finds the expected data.

use std::sync::atomic::AtomicBool;

use nofault_sim::depth::by_depth;

use super::{Parameters, trial, *};
use crate::config::Preset;
use crate::experiments::run_here;
use crate::machine::data::{self, DataSpec};
use crate::record::MemoryLimit;

fn available(folder: &Path) -> Available {
    let make = |name: &str, data_bytes: u64| {
        let wanted = DataSpec { seed: 5, data_bytes };
        data::ensure_file(&folder.join(name), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap()
    };
    Available {
        small_files: make("small.data", 4 << 20),
        file: make("large.data", 8 << 20),
        // A limit is named so that the trials are planned; here it is not enforced.
        memory: MemoryLimit { method: MemoryMethod::LargeFile, bytes: 4 << 20 },
        ..Available::default()
    }
}

fn config() -> Config {
    let mut config = Config::preset(Preset::Standard);
    config.change(|claims: &mut Parameters| {
        claims.cell_s = by_depth(0.02, 0.05);
        claims.unit_bytes = vec![4096, 1 << 20];
        claims.map_threads = vec![3];
        claims.copied_pages = vec![8, 512];
        claims.commit_pages = vec![1, 64];
        claims.reader_updates = by_depth(1_000, 3_000);
        claims.reader_keys = 200;
    });
    config
}

#[test]
fn every_planned_trial_measures_and_verifies_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trials = plan(&config(), &available(folder.path())).trials;
    let variants =
        [CACHED_READ, MAP_CALLS, MANY_MAPS, FILE_GROWTH, PRIVATE_REMAP, LONG_READER, MAP_COMMIT, UNCACHED_READ];
    for variant in variants {
        assert!(trials.iter().any(|trial| trial.variant == variant), "{variant}");
    }
    for spec in &trials {
        let outcome = match run_here(spec) {
            Err(error) if error.kind() == LabErrorKind::Unsupported => {
                println!("not tested: {}: {error}", spec.key());
                continue;
            }
            outcome => outcome.unwrap_or_else(|error| panic!("{}: {error}", spec.key())),
        };
        // A sync may take longer than the trial, so only the check of some block is required.
        assert!(outcome.checks.verified > 0, "{}: {outcome:?}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
    }
    let mut left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["large.data", "small.data"]);
}

#[test]
fn a_private_map_drops_its_copies_when_it_is_mapped_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![9; 3 * PAGE_BYTES]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let mut map = trial::RawMap::map(&file, PAGE_BYTES as u64, 2 * PAGE_BYTES, true).unwrap();
    let word = u64::from_le_bytes([9; 8]);
    map.change(1, 1);
    assert_eq!((map.word(0), map.word(1)), (word, 1));
    map.map_again().unwrap();
    assert_eq!((map.word(0), map.word(1)), (word, word));
    assert_eq!(std::fs::read(&path).unwrap(), vec![9; 3 * PAGE_BYTES], "the file is unchanged");
}

#[test]
fn the_quick_preset_leaves_out_long_trials_and_records_them_as_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&Config::preset(Preset::Quick), &available(folder.path()));
    assert!(plan.trials.iter().all(|trial| ![UNCACHED_READ, MAP_COMMIT].contains(&trial.variant.as_str())));
    assert!(plan.skips.iter().any(|skip| skip.reason.contains("standard")));
}

#[test]
fn unknown_variants_and_impossible_parameters_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trials = plan(&config(), &available(folder.path())).trials;
    for variant in [
        CACHED_READ,
        MAP_CALLS,
        MANY_MAPS,
        FILE_GROWTH,
        PRIVATE_REMAP,
        LONG_READER,
        MAP_COMMIT,
        UNCACHED_READ,
        "nothing",
    ] {
        let like = trials.iter().find(|trial| trial.variant == variant).unwrap_or(&trials[0]);
        let spec = TrialSpec { method: "no-such-method".into(), variant: variant.into(), ..like.clone() };
        assert_eq!(run_here(&spec).unwrap_err().kind(), LabErrorKind::Usage, "{variant}");
    }
    for (variant, name, value) in [
        (PRIVATE_REMAP, "copied_pages", "0"),
        (MAP_COMMIT, "commit_pages", "many"),
        (LONG_READER, "keys", "0"),
        (FILE_GROWTH, "step", "100"),
    ] {
        let mut spec = trials.iter().find(|trial| trial.variant == variant).unwrap().clone();
        spec.params.extra.insert(name.into(), value.into());
        assert_eq!(run_here(&spec).unwrap_err().kind(), LabErrorKind::Usage, "{variant}");
    }
}
