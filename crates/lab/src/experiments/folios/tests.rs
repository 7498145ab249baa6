//! Every trial runs tiny, in this process, and checks each page; where the kernel hides the sizes of folios, or the
//! file system has no large ones, the trial reports it.

use nofault_sim::depth::by_depth;

use super::{Parameters, trial, *};
use crate::config::Preset;
use crate::error::LabErrorKind;
use crate::experiments::run_here;
use crate::machine::system::is_root;
use crate::summary::TIME_PER_OP;

fn config() -> Config {
    let mut config = Config::preset(Preset::Quick);
    config.change(|folios: &mut Parameters| {
        folios.cell_s = by_depth(0.05, 0.4);
        folios.file_bytes = 4 << 20;
    });
    config
}

fn trials(folder: &std::path::Path) -> Vec<TrialSpec> {
    let available = Available { root: true, folder: folder.to_path_buf(), ..Available::default() };
    plan(&config(), &available).trials
}

#[test]
fn every_planned_trial_reads_the_expected_data_or_names_the_folio_sizes_it_got() {
    // The file lies next to the sources, because a temporary folder may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for spec in trials(folder.path()) {
        let asked = spec.params.extra[FOLIO].clone();
        let outcome = match run_here(&spec) {
            Ok(outcome) => outcome,
            Err(error) => {
                assert_eq!(error.kind(), LabErrorKind::Unsupported, "{}: {error}", spec.key());
                assert!(error.to_string().contains("not available"), "{error}");
                assert!(!is_root() || asked != "4096", "the smallest folio is always there: {error}");
                eprintln!("skipped: {error}");
                continue;
            }
        };
        assert!(outcome.ops > 0 && outcome.checks.verified > 0, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        assert!(outcome.figures[TIME_PER_OP] > 0.0, "{}", spec.key());
        assert!(outcome.figures["pages_in_such_folios"] >= 0.9, "{}", spec.key());
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the files have no names");
}

#[test]
fn folios_are_counted_by_the_pages_in_them() {
    if !is_root() {
        eprintln!("skipped: kpageflags takes root");
        return;
    }
    // A file in memory without huge pages has folios of one page.
    let folder = std::path::Path::new("/dev/shm");
    let Ok(cached) = trial::CachedFile::make(folder, 1 << 20, 4096, 7) else {
        eprintln!("skipped: no {}", folder.display());
        return;
    };
    let folios = cached.folios().unwrap();
    assert_eq!(folios.values().sum::<u64>(), 256);
    assert!(folios.iter().all(|(bytes, pages)| bytes % 4096 == 0 && pages * 4096 % bytes == 0), "{folios:?}");
}

#[test]
fn without_root_nothing_is_planned_and_the_record_has_the_reason() {
    let plan = plan(&config(), &Available::default());
    assert!(plan.trials.is_empty() && plan.skips.len() == 1);
    assert!(plan.skips[0].reason.contains("not available") && plan.skips[0].reason.contains("root"));
}

#[test]
fn an_impossible_folio_size_is_refused() {
    for value in ["folios.folio_bytes=[5000]", "folios.folio_bytes=[]", "folios.file_bytes=5000000", "folios.cell_s=0"]
    {
        let error = Config::default().assign(value).unwrap().validate().unwrap_err();
        assert!(error.to_string().contains("folios."), "{value}: {error}");
    }
}
