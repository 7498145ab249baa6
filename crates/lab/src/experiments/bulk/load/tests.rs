//! Every method loads a tiny file with the right pages, once and again and again.

use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use nofault_sim::depth::by_depth;

use super::{Parameters, *};
use crate::config::Preset;
use crate::error::LabErrorKind;
use crate::experiments::{is_missing, run_here};
use crate::machine::data::{self, DataSpec};
use crate::record::{MemoryLimit, MemoryMethod};

const FILE_BYTES: u64 = 24 << 20;

fn config() -> Config {
    let mut config = Config::preset(Preset::Quick);
    config.change(|own: &mut Parameters| {
        own.file_bytes = 8 << 20;
        own.cell_s = by_depth(0.1, 0.5);
        own.data_per_memory = vec![0.75, 1.5];
    });
    config
}

/// The limit is not enforced here: it only gives the sizes.
fn available(folder: &std::path::Path) -> Available {
    let wanted = DataSpec { seed: 5, data_bytes: FILE_BYTES };
    Available {
        file: data::ensure_file(&folder.join("main.data"), wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap(),
        memory: MemoryLimit { method: MemoryMethod::LargeFile, bytes: 12 << 20 },
        ..Available::default()
    }
}

#[test]
fn every_method_finds_the_right_pages_in_every_variant() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let available = available(folder.path());
    let plan = plan(&config(), &available);
    assert_eq!((plan.trials.len(), plan.skips.len()), (2 * 6 + 2 * 5, 0), "{:?}", plan.skips);
    for spec in &plan.trials {
        let outcome = match run_here(spec) {
            Ok(outcome) => outcome,
            Err(error) if is_missing(spec, &error) => continue,
            Err(error) => panic!("{}: {error}", spec.key()),
        };
        // Operations are counted at the last tick, and the last block may be checked after it.
        assert!(outcome.ops > 0 && outcome.checks.verified >= outcome.ops, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        if spec.variant != CYCLIC {
            // The first block of the file has the lab's marker and is no data.
            assert!(outcome.bytes >= (7 << 20) && outcome.figures["rss_bytes"] > 0.0, "{}", spec.key());
            let own = outcome.figures["own_bytes"];
            let is_map = spec.method != LOAD_READ && spec.method != LOAD_DIRECT;
            assert!(is_map || own >= (7 << 20) as f64, "{}: {own}", spec.key());
        }
    }
}

#[test]
fn a_wrong_page_in_any_block_is_counted_by_every_method() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let available = available(folder.path());
    let file = std::fs::File::options().write(true).open(&available.file.paths[0]).unwrap();
    // The last page of each block.
    for block in 1..FILE_BYTES / BLOCK_BYTES {
        file.write_all_at(&[0x55; 8], (block + 1) * BLOCK_BYTES - PAGE_BYTES as u64).unwrap();
    }
    file.sync_all().unwrap();
    for spec in plan(&config(), &available).trials {
        match run_here(&spec) {
            Ok(outcome) => {
                let checks = outcome.checks;
                // On a busy machine a short cycle may end before its first block.
                assert!(checks.wrong > 0 || spec.variant == CYCLIC, "{}: {checks:?}", spec.key());
                assert_eq!(checks.wrong, checks.verified, "{}", spec.key());
            }
            Err(error) => assert!(is_missing(&spec, &error), "{}: {error}", spec.key()),
        }
    }
}

#[test]
fn a_truncated_file_is_an_error_of_the_trial() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let available = available(folder.path());
    let trials = plan(&config(), &available).trials;
    std::fs::File::options().write(true).open(&available.file.paths[0]).unwrap().set_len(3 << 20).unwrap();
    assert!(trials.iter().all(|spec| run_here(spec).is_err()));
}

#[test]
fn sizes_that_the_file_does_not_have_and_a_missing_limit_are_skipped_with_the_reason() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut config = config();
    config.change(|own: &mut Parameters| {
        own.file_bytes = 1 << 40;
        own.data_per_memory = vec![0.75, 4.0];
    });
    let available = available(folder.path());
    let sized = plan(&config, &available);
    assert_eq!((sized.trials.len(), sized.skips.len()), (5, 2));
    assert!(sized.skips.iter().all(|skip| skip.reason.contains("--size")), "{:?}", sized.skips);
    let unlimited = plan(&config, &Available { memory: MemoryLimit::default(), ..available.clone() });
    assert!(
        unlimited.trials.is_empty() && unlimited.skips.iter().any(|skip| skip.reason.contains("cannot be limited"))
    );
    let refused = plan(&config, &Available { no_ring: Some("no rights".into()), ..available });
    assert!(refused.trials.iter().all(|spec| !is_direct(crate::methods::find(OWN, &spec.method).unwrap())));
    assert!(refused.skips.iter().any(|skip| skip.reason == "no rights"));
}

#[test]
fn a_method_that_is_not_known_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for mut spec in plan(&config(), &available(folder.path())).trials {
        spec.method = "telepathy".into();
        assert_eq!(run_here(&spec).unwrap_err().kind(), LabErrorKind::Usage);
    }
}
