//! Every work-around runs at a tiny size and reads the right bytes.

use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;

use super::{Parameters, trial, *};
use crate::error::LabErrorKind;
use crate::experiment::StoresPlace;
use crate::experiments::cold_in_tests;
use crate::machine::data::{self, DataSpec};
use crate::machine::pool::{self, PoolData};
use crate::record::MemoryMethod;
use nofault_sim::depth::by_depth;

const WANTED: DataSpec = DataSpec { seed: 11, data_bytes: 2048 * 4096 };

#[test]
fn every_work_around_reads_the_same_data_as_plain_touches_and_records_its_cost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.data");
    let nothing = |_, _| {};
    data::ensure_file(&path, WANTED, &nothing, &AtomicBool::new(false)).unwrap();
    let _database = PoolData::make(folder.path(), WANTED, &nothing, &AtomicBool::new(false)).unwrap();
    let memory = MemoryLimit { method: MemoryMethod::LargeFile, bytes: 2 << 20 };
    let trees = tempfile::tempdir().unwrap();
    let available = Available {
        file: data::target("file", &[&path], WANTED),
        pool: Some(pool::target(folder.path(), WANTED)),
        pool_bytes: by_depth(16 << 20, 256 << 20),
        // The locked part is as large as a user without rights may lock.
        memory,
        folder: folder.path().to_path_buf(),
        stores: vec![StoresPlace { experiment: ID, folder: trees.path().to_path_buf(), memory: Ok(memory) }],
        ..Available::default()
    };
    let mut config = Config::preset(Preset::Standard);
    config.change(|stalls: &mut Parameters| {
        stalls.cell_s = 0.05;
        stalls.helpers = vec![2];
        stalls.scan_bytes = WANTED.data_bytes;
    });
    let plan = plan(&config, &available);
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let mut seen = std::collections::BTreeSet::new();
    for spec in &plan.trials {
        // On a busy machine a thread may get no CPU in so short a time: the trial is then run again for twice the time.
        let mut spec = spec.clone();
        let measured = loop {
            match execute(
                &spec,
                &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} },
            ) {
                Ok(outcome) if outcome.ops == 0 => spec.duration_s *= 2.0,
                measured => break measured,
            }
        };
        let outcome = match measured {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == LabErrorKind::Unsupported => {
                eprintln!("{}: not here: {error}", spec.key());
                continue;
            }
            Err(error) => panic!("{}: {error}", spec.key()),
        };
        let key = spec.key();
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{key}");
        assert!(outcome.latency["op"].count > 0, "{key}: {outcome:?}");
        let threads = outcome.figures["extra_threads"];
        assert_eq!(threads > 0.0, spec.params.extra.contains_key("helpers"), "{key}: {threads} threads");
        if spec.method == "mmap-mlock" {
            assert!(outcome.figures["extra_memory_bytes"] > 0.0, "{key}");
        }
        seen.insert((spec.variant.clone(), spec.method.clone()));
    }
    assert!(seen.len() >= 15, "{seen:?}, left out: {:?}", plan.skips);
    for method in trial::MAPPED_SCANS {
        assert!(seen.contains(&(LEAF_SCAN.into(), method.into())), "{method}: {seen:?}");
    }
    let config = Config::preset(Preset::Quick);
    assert!((5..=8).contains(&super::plan(&config, &available).trials.len()), "the quick preset plans few trials");
}
