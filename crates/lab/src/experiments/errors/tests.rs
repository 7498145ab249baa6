//! Every fault with every store, in separate processes. Some outcomes must never occur: an engine that returns
//! wrong bytes from disk, a process with a guarded map that dies, a process with an unguarded map that survives.

use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;

use super::{Parameters, stores, *};
use crate::experiments::cold_in_tests;
use crate::machine::data::{self, DataSpec};

/// The process that other tests start as their subject. Not a test by itself.
#[test]
#[ignore = "a process that other tests start, not a test"]
fn the_subject_of_other_tests() {
    // On a machine with one CPU the harness has written this test's name without a line break: the first answer must
    // not follow it.
    println!();
    // Run by hand, the test gets no order and prints an error.
    if let Err(error) = stores::serve(std::io::stdin(), std::io::stdout()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// The engine's tree over a map, by each of its protocols, without checksums.
const MAPPED_TREES: [&str; 6] = ["os-cow", "user-cow", "user-cow-pwrite", "mapped-log", "shadow", "shadow-writemap"];

fn run(folder: &Path, variant: &str, store: &str) -> Outcome {
    let available = Available { folder: folder.to_path_buf(), ..Available::default() };
    let spec = fault_trial(&Config::default(), &available, variant, store);
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let outcome =
        execute(&spec, &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} });
    outcome.unwrap_or_else(|error| panic!("{variant} {store}: {error}"))
}

fn figure(outcome: &Outcome, name: &str) -> f64 {
    outcome.figures.get(name).copied().unwrap_or_else(|| panic!("{name} is not in {:?}", outcome.figures))
}

/// Checks that a store's outcome of a fault is as required; figures without a requirement are only for the report.
fn must_hold(variant: &str, store: &str, outcome: &Outcome) {
    let is = |name: &str, value: f64| {
        assert_eq!(figure(outcome, name), value, "{variant} {store}: {name} in {outcome:?}");
    };
    is("hung", 0.0);
    match store {
        // The process dies, because a map cannot return an error.
        "mmap" if matches!(variant, TRUNCATED | READ_ERROR) => {
            is("signal", f64::from(libc::SIGBUS));
            is("error_returned", 0.0);
        }
        // The process gets no sign of the fault.
        "mmap" => {
            is("signals", 0.0);
            is("detected", 0.0);
            assert!(figure(outcome, "wrong_answers") > 0.0, "{variant}: {outcome:?}");
        }
        // A read-only map ends the process before the data is damaged.
        "mmap-readonly" => is("signal", f64::from(libc::SIGSEGV)),
        "user-cow-pwrite" | "mapped-log" | "shadow" if variant == STRAY_WRITE => {
            is("signal", f64::from(libc::SIGSEGV));
        }
        _ => is("survived", 1.0),
    }
    match (variant, store) {
        (STRAY_WRITE, "mmap" | "mmap-guarded-checked" | "os-cow" | "user-cow" | "shadow-writemap") => {
            is("reached_disk", 1.0);
        }
        (STRAY_WRITE, "engine-dirty") => is("wrong_on_disk", 0.0),
        (STRAY_WRITE, _) => is("reached_disk", 0.0),
        (_, "mmap-guarded-checked" | "pread-direct-checked" | "shadow-checked" | "engine") => {
            is("detected", 1.0);
        }
        (TRUNCATED | READ_ERROR, "mmap-guarded" | "pread-direct") => is("detected", 1.0),
        (TRUNCATED | READ_ERROR, store) if MAPPED_TREES.contains(&store) => is("detected", 1.0),
        (BIT_FLIP, "mmap-guarded" | "pread-direct") => is("wrong_answers", 1.0),
        (BIT_FLIP, store) if MAPPED_TREES.contains(&store) => is("wrong_answers", 1.0),
        // A read call is short where a map shows zeroes.
        (TRUNCATED_INSIDE, "mmap-guarded") => is("wrong_answers", 1.0),
        (TRUNCATED_INSIDE, "pread-direct") => is("detected", 1.0),
        _ => {}
    }
    if variant != STRAY_WRITE {
        is("right_after_reopening", 1.0);
    }
    if variant == READ_ERROR && store == "engine" {
        is("right_after_repair", 1.0);
        assert!(outcome.texts["said"].contains("read"), "{:?}", outcome.texts);
        assert!(figure(outcome, "pages_right") >= 250.0, "only what lay in the page is lost: {outcome:?}");
    }
}

fn meet(variant: &str) {
    let folder = tempfile::tempdir().unwrap();
    for store in stores(variant, Preset::Standard) {
        must_hold(variant, store, &run(folder.path(), variant, store));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the trial left files behind");
}

#[test]
fn every_mapped_store_of_safety_meets_every_fault_that_a_whole_page_can_have() {
    for variant in [TRUNCATED, READ_ERROR, BIT_FLIP, STRAY_WRITE] {
        let met = stores(variant, Preset::Standard);
        let of_safety = crate::experiments::safety::STORES;
        assert!(of_safety.iter().all(|store| met.contains(store)), "{variant}: {met:?}");
    }
}

#[test]
fn a_file_cut_under_the_store_kills_only_the_process_with_a_raw_map() {
    meet(TRUNCATED);
}

#[test]
fn a_file_cut_within_a_page_is_seen_by_checksums_and_short_reads_only() {
    meet(TRUNCATED_INSIDE);
}

#[test]
fn a_failed_read_is_an_error_of_its_page_and_is_not_remembered_by_the_engine() {
    if let Err(error) = faulty::check() {
        eprintln!("skipped: {error}");
        return;
    }
    meet(READ_ERROR);
}

#[test]
fn a_flipped_bit_is_seen_by_checksums_only() {
    meet(BIT_FLIP);
}

#[test]
fn a_stray_write_reaches_the_disk_through_a_writable_map_and_never_as_good_data_through_the_engine() {
    meet(STRAY_WRITE);
}

#[test]
fn the_cost_of_checking_is_measured_on_the_same_pages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.data");
    let wanted = DataSpec { seed: 5, data_bytes: 512 * 4096 };
    data::ensure_file(&path, wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    let mut config = Config::default();
    config.change(|errors: &mut Parameters| {
        errors.cell_s = 0.05;
    });
    let available = Available {
        file: data::target("file", &[&path], wanted),
        folder: folder.path().to_path_buf(),
        ..Available::default()
    };
    let plan = plan(&config, &available);
    assert!(!plan.trials.is_empty() && !plan.once.is_empty());
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    for spec in &plan.trials {
        let outcome =
            execute(spec, &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} })
                .unwrap();
        assert!(outcome.ops > 0 && outcome.checks.wrong == 0, "{}: {outcome:?}", spec.key());
        assert!(figure(&outcome, "ns_per_checksum") > 0.0);
    }
}
