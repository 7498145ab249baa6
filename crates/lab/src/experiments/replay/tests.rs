//! Every method replays made-up traces of a tiny size on a real file, which keeps its content.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use super::{Parameters, rules, *};
use crate::config::Preset;
use crate::experiments::{is_missing, run_here};
use crate::machine::data::{self, DataSpec};
use crate::record::file::RecordFile;
use crate::trace::Op;
use crate::trace::made::Shape;

const SEED: u64 = 5;
const BLOCKS: u64 = 512;

/// A trace in a file, the data of its replay, and the configuration.
struct Place {
    folder: tempfile::TempDir,
    available: Available,
    config: Config,
}

impl Place {
    fn with(trace: &str, change: impl FnOnce(&mut Parameters)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let wanted = DataSpec { seed: SEED, data_bytes: BLOCKS * 4096 };
        let file = folder.path().join("main.data");
        let file = data::ensure_file(&file, wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
        let path = folder.path().join("trace.csv");
        std::fs::write(&path, trace).unwrap();
        let mut config = Config { trace: vec![path], experiments: vec![ID], ..Config::preset(Preset::Quick) };
        config.change(change);
        config.validate().unwrap();
        Self { folder, available: Available { file, ..Available::default() }, config }
    }

    fn made(seed: u64, change: impl FnOnce(&mut Parameters)) -> Self {
        let shape = Shape { count: 400, threads: 3, data_bytes: BLOCKS * 4096, ..Shape::default() };
        Self::with(&Trace::made(seed, shape).csv(), change)
    }

    fn plan(&self) -> Plan {
        plan(&self.config, &self.available)
    }

    fn is_whole(&self) -> bool {
        let file = std::fs::File::open(&self.available.file.paths[0]).unwrap();
        let mut block = vec![0; BLOCK_BYTES];
        (0..BLOCKS).all(|index| {
            file.read_exact_at(&mut block, content::block_offset(index)).unwrap();
            content::check_block_fully(&block, SEED, index)
        })
    }

    /// Measures all planned trials that this machine can.
    fn outcomes(&self) -> Vec<(TrialSpec, Outcome)> {
        let mut outcomes = Vec::new();
        for spec in self.plan().trials {
            match run_here(&spec) {
                Ok(outcome) => outcomes.push((spec, outcome)),
                Err(error) if is_missing(&spec, &error) => {}
                Err(error) => panic!("{}: {error}", spec.key()),
            }
        }
        assert!(outcomes.len() >= 4, "a map and buffered calls work everywhere");
        outcomes
    }
}

#[test]
fn every_method_makes_every_access_at_its_time_and_leaves_the_data_whole() {
    let place = Place::made(7, |_| ());
    let trace = Trace::read(&place.config.trace[0]).unwrap();
    let mut sums = BTreeMap::new();
    for (spec, outcome) in place.outcomes() {
        let key = spec.key();
        assert_eq!((spec.variant.as_str(), spec.params.threads * spec.params.depth), (RECORDED, 3), "{key}");
        let count = |op: Op| trace.count(op) as u64;
        assert_eq!(outcome.ops, count(Op::Read) + count(Op::Write), "{key}");
        let latency = |name: &str| outcome.latency.get(name).map_or(0, |latency| latency.count);
        for op in [Op::Read, Op::Write, Op::Sync] {
            assert_eq!(latency(op.name()), count(op), "{key}: {}", op.name());
        }
        assert_eq!(latency("open_loop"), trace.accesses.len() as u64, "{key}");
        assert!(outcome.elapsed_s >= trace.span().1 * 0.9, "{key}: {} s", outcome.elapsed_s);
        let bytes: u64 = trace.accesses.iter().map(|access| access.length_bytes).sum();
        assert_eq!(outcome.bytes, bytes, "{key}");
        assert!(outcome.checks.verified > 0 && outcome.checks.wrong == 0, "{key}: {:?}", outcome.checks);
        sums.insert(outcome.checks.checksum, key);
    }
    assert_eq!(sums.len(), 1, "methods read different blocks: {sums:#?}");
    assert!(place.is_whole());
}

#[test]
fn without_think_time_the_accesses_are_made_again_and_again() {
    let place = Place::made(8, |own| (own.cell_s, own.think_time) = (0.3, false));
    for (spec, outcome) in place.outcomes() {
        assert!(
            spec.variant == FAST && outcome.ops > 0 && !outcome.latency.contains_key("open_loop"),
            "{}",
            spec.key()
        );
        assert_eq!(outcome.checks.wrong, 0, "{}", spec.key());
    }
    assert!(place.is_whole());
}

#[test]
fn writes_reach_the_file_by_every_method() {
    // The trace writes the whole second block, and a part of the third. Both are zeroes before, so that the content afterwards
    // comes from the writes.
    let place = Place::with("4096,4096,write,a,0\n8200,100,write,b,0.01\n,,sync,a,0.02\n", |_| ());
    let file = std::fs::File::options().read(true).write(true).open(&place.available.file.paths[0]).unwrap();
    for spec in place.plan().trials {
        for block in [1, 2] {
            file.write_all_at(&[0; BLOCK_BYTES], content::block_offset(block)).unwrap();
        }
        file.sync_all().unwrap();
        let outcome = match run_here(&spec) {
            Ok(outcome) => outcome,
            Err(error) if is_missing(&spec, &error) => continue,
            Err(error) => panic!("{}: {error}", spec.key()),
        };
        let mut blocks = vec![0; 2 * BLOCK_BYTES];
        file.read_exact_at(&mut blocks, content::block_offset(1)).unwrap();
        let mut expected = vec![0; 2 * BLOCK_BYTES];
        crate::measure::read_loops::overwrite::fill(&mut expected, SEED, content::block_offset(1));
        assert!(blocks[..BLOCK_BYTES] == expected[..BLOCK_BYTES], "{}", spec.key());
        let part = BLOCK_BYTES + 8..BLOCK_BYTES + 108;
        assert!(blocks[part.clone()] == expected[part], "{}", spec.key());
        let whole = [Way::Calls(Means::Direct), Way::Ring].contains(&way_of(&spec.method).unwrap());
        // O_DIRECT has written the whole block; the others only the bytes of the trace, so that the block read back is wrong.
        assert_eq!(outcome.checks.wrong, u64::from(!whole), "{}", spec.key());
        assert_eq!(blocks[BLOCK_BYTES] != 0, whole, "{}", spec.key());
    }
}

#[test]
fn wrong_content_is_counted_by_every_method() {
    let place = Place::made(9, |_| ());
    let file = std::fs::File::options().write(true).open(&place.available.file.paths[0]).unwrap();
    for block in 0..BLOCKS {
        let (first, last) = (content::block_offset(block), content::block_offset(block) + 4088);
        [first, last].into_iter().for_each(|at| file.write_all_at(&[0x55; 8], at).unwrap());
    }
    file.sync_all().unwrap();
    for (spec, outcome) in place.outcomes() {
        assert!(outcome.checks.wrong > 0, "{}", spec.key());
    }
}

#[test]
fn a_pace_that_is_not_kept_leaves_no_latency_from_the_due_times() {
    let mut outcome = Outcome::default();
    let latency = crate::record::Latency::of(&measure::new_histogram());
    outcome.latency.insert("open_loop".into(), latency);
    outcome.figures.insert("accesses_due".into(), 10.0);
    outcome.figures.insert("accesses_started".into(), 10.0);
    judge_pace(&mut outcome);
    assert!(outcome.latency.contains_key("open_loop") && outcome.warnings.is_empty());
    outcome.figures.insert("accesses_started".into(), 9.0);
    judge_pace(&mut outcome);
    assert!(!outcome.latency.contains_key("open_loop"));
    assert_eq!(outcome.warnings[0].kind, Some(WarningKind::RateNotKept));
}

#[test]
fn a_trace_without_times_is_replayed_fast_and_a_long_one_is_cut_with_a_word() {
    let told = |place: &Place, words: &str| place.plan().skips.iter().any(|skip| skip.reason.contains(words));
    let timeless = Place::with("0,4096\n4096,4096,w,b\n", |_| ());
    assert!(told(&timeless, "no times") && timeless.plan().trials.iter().all(|spec| spec.variant == FAST));
    let long = Place::with("0,4096,r,a,0\n4096,4096,w,b,100\n", |own| own.cell_s = 2.0);
    assert!(told(&long, "the first 2 s"), "{:?}", long.plan().skips);
    assert!(long.plan().trials.iter().all(|spec| spec.params.threads * spec.params.depth == 1));
}

#[test]
fn a_replay_without_a_trace_and_one_of_a_changed_trace_are_refused() {
    let config = Config { experiments: vec![ID], ..Config::default() };
    assert!(config.validate().unwrap_err().to_string().contains("--trace FILE"));
    assert!(plan(&Config::default(), &Available::default()).trials.is_empty());
    assert!([Preset::Quick, Preset::Standard].iter().all(|preset| !Config::preset(*preset).experiments.contains(&ID)));
    let place = Place::made(1, |_| ());
    let spec = place.plan().trials.remove(0);
    std::fs::write(place.folder.path().join("trace.csv"), "0,4096\n").unwrap();
    assert!(run_here(&spec).unwrap_err().to_string().contains("has changed"));
    let unknown = TrialSpec { method: "telepathy".into(), ..spec };
    assert!(run_here(&unknown).unwrap_err().to_string().contains("telepathy"));
}

/// Records of three repeats of a map and of a method of calls, with these threads; the latency is the same in all repeats but for
/// a thousandth.
fn records(variant: &str, methods: &[(&str, u32, f64)]) -> RecordFile {
    let mut all = crate::report::verdict::tests::file(ID, variant, &[]);
    for (method, threads, seconds) in methods {
        let mut one = crate::report::verdict::tests::file(ID, variant, &[(*method, 1.0 / seconds)]);
        for (number, trial) in one.trials.iter_mut().enumerate() {
            trial.spec.params.threads = *threads;
            let mut histogram = measure::new_histogram();
            histogram.record_n((seconds * 1e9) as u64 * (1000 + number as u64) / 1000, 1000).unwrap();
            trial.outcome.latency.insert("open_loop".into(), crate::record::Latency::of(&histogram));
        }
        all.trials.extend(one.trials);
    }
    all
}

fn found(file: &RecordFile) -> Vec<crate::judge::Finding> {
    let mut all = Vec::new();
    rules::find(&crate::summary::Summary::of(file), &mut all);
    all
}

#[test]
fn equal_numbers_in_flight_are_compared_in_either_direction_and_unequal_ones_never() {
    let main = |file: &RecordFile| found(file).into_iter().find_map(|finding| finding.key_figure);
    for (map, direct) in [(1e-3, 2e-3), (2e-3, 1e-3)] {
        let file = records(RECORDED, &[("mmap-normal", 4, map), ("mmap-random", 4, 5e-3), ("calls-direct", 4, direct)]);
        let ratio: f64 = main(&file).unwrap().value.trim_end_matches('×').parse().unwrap();
        assert!((ratio / (map / direct) - 1.0).abs() < 0.05, "{ratio}");
    }
    let unequal = records(RECORDED, &[("mmap-normal", 4, 1e-3), ("calls-direct", 8, 2e-3)]);
    assert!(main(&unequal).is_none());
}

#[test]
fn a_method_without_a_valid_figure_is_in_no_ratio_and_named() {
    let mut file = records(RECORDED, &[("mmap-random", 4, 1e-3), ("calls-direct", 4, 2e-3)]);
    for trial in file.trials.iter_mut().filter(|trial| trial.spec.method == "calls-direct") {
        trial.outcome.figures.extend([("accesses_due".to_owned(), 10.0), ("accesses_started".to_owned(), 5.0)]);
        judge_pace(&mut trial.outcome);
    }
    let all = found(&file);
    assert!(all.iter().all(|finding| finding.key_figure.is_none() && finding.p.is_none()), "{all:#?}");
    assert!(all.iter().any(|finding| finding.rule == "recorded-pace-not-kept" && finding.text.contains("O_DIRECT")));
}
