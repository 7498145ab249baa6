//! Every method runs at a tiny size, in this process, and finds the expected data.

use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;

use super::{Parameters, trial, *};
use crate::config::Preset;
use crate::experiments::run_here;
use crate::measure::Measurement;

fn config() -> Config {
    let mut config = Config::preset(Preset::Standard);
    config.change(|translate: &mut Parameters| {
        translate.cell_s = 0.02;
        translate.working_set_bytes = vec![2 << 20];
    });
    config
}

#[test]
fn every_method_finds_every_page_and_key_it_asks_for() {
    let trials = plan(&config(), &Available::default()).trials;
    assert!(trials.iter().any(|spec| spec.params.threads == 1));
    for spec in trials {
        let outcome = match run_here(&spec) {
            Ok(outcome) => outcome,
            Err(error) if spec.method == "mapped-huge" && error.kind() == LabErrorKind::Unsupported => {
                eprintln!("skipped: {error}");
                continue;
            }
            Err(error) => panic!("{}: {error}", spec.key()),
        };
        assert!(outcome.ops > 0 && outcome.checks.verified > 0, "{}", spec.key());
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{}", spec.key());
        assert!(outcome.figures[TIME_PER_OP] > 0.0, "{}", spec.key());
    }
}

#[test]
fn a_tree_finds_its_keys_and_no_others_however_many_pages_it_has() {
    for pages in [8, 9, 255, 256, 257, 300, 1000] {
        let mut place = Array::new(Frames::in_small_pages(pages).unwrap(), 1);
        let tree = trial::Tree::build(&mut place, 5).unwrap();
        let last = (0..).take_while(|number| tree.find(&place, number * 2 + 1).unwrap().is_some()).count();
        assert!(last >= (pages - pages / 100 - 3) * 31 && last.is_multiple_of(31), "{pages} pages hold {last} entries");
        assert_eq!(tree.find(&place, 1).unwrap(), Some(crate::machine::content::tag(5, 0)));
        assert!(tree.find(&place, 0).unwrap().is_none() && tree.find(&place, 2).unwrap().is_none());
    }
}

#[test]
fn a_page_with_wrong_content_is_counted() {
    let mut place = Array::new(Frames::in_small_pages(16).unwrap(), 1);
    let tree = trial::Tree::build(&mut place, 5).unwrap();
    place.write(3, &[0; trial::PAGE_WORDS]).unwrap();
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let second = std::time::Duration::from_millis(20);
    let plan = Measurement {
        duration: second,
        tick: second,
        watch: &watch,
        memory_bytes: None,
        fill_first: false,
        cancel: &cancel,
    };
    let works: Vec<Work<'_>> = vec![Box::new(|worker| tree.look_up(worker, &place, 5, 0))];
    let checks = measure::run(&plan, works, &mut |_| {}).unwrap().checks;
    assert!(checks.wrong > 0 && checks.wrong < checks.verified, "{checks:?}");
}

#[test]
fn trials_without_enough_memory_or_cpus_are_skipped_with_the_reason() {
    let mut config = config();
    let available = Available { memory_available_bytes: Some(3 << 20), ..Available::default() };
    let none = plan(&config, &available);
    assert!(none.trials.is_empty() && none.skips[0].reason.contains("not enough memory"), "{:?}", none.skips);
    config.change(|translate: &mut Parameters| {
        translate.threads = vec![1, 4096];
        translate.controls = false;
    });
    let some = plan(&config, &Available::default());
    assert!(some.skips.iter().any(|skip| skip.reason.contains("CPUs")));
    assert!(some.skips.iter().any(|skip| skip.method == "hash-pinned"));
    let good = some.trials[0].clone();
    let refused = |spec: TrialSpec| run_here(&spec).unwrap_err().to_string();
    assert!(refused(TrialSpec { method: "telepathy".into(), ..good.clone() }).contains("telepathy"));
    assert!(refused(TrialSpec { variant: "dance".into(), ..good }).contains("dance"));
}
