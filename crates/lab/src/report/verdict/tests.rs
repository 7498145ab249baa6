//! Tests of the verdict with synthetic records: it follows the figures in either direction, and without figures there
//! is none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::config::Config;
use crate::record::{
    Checks, End, ExperimentId, MachineInfo, MemoryLimit, Outcome, Params, RunInfo, SCHEMA, Target, Trial, TrialSpec,
    WarningKind,
};

/// Creates records of an experiment with the given reads a second by method, three repeats each.
pub(crate) fn file(experiment: ExperimentId, variant: &str, rates: &[(&str, f64)]) -> RecordFile {
    let mut file = empty();
    rates.iter().for_each(|(method, rate)| add(&mut file, (experiment, variant), method, (2, 1), *rate, |_| ()));
    file
}

fn empty() -> RecordFile {
    RecordFile {
        path: PathBuf::from("records.ndjson"),
        run: RunInfo {
            schema: SCHEMA,
            tool_version: "0".into(),
            started_unix_ms: 0,
            config: Config::default(),
            machine: MachineInfo::default(),
            biases: Vec::new(),
        },
        trials: Vec::new(),
        skips: Vec::new(),
        notes: Vec::new(),
        end: Some(End { complete: true, reason: String::new(), elapsed_s: 1.0 }),
        cut_off_line: None,
        unknown: Vec::new(),
        unknown_settings: Vec::new(),
    }
}

/// Adds three repeats of a method with this number of threads, and of requests in flight in each; `change` is applied
/// to every trial.
fn add(
    file: &mut RecordFile,
    (experiment, variant): (ExperimentId, &str),
    method: &str,
    (threads, depth): (u32, u32),
    rate: f64,
    change: impl Fn(&mut Trial),
) {
    for repeat in 0..3_u32 {
        let spec = TrialSpec {
            experiment,
            variant: variant.into(),
            target: Target { label: "file".into(), content_seed: Some(1), ..Target::default() },
            method: method.into(),
            params: Params { threads, depth, block_bytes: 4096, extra: BTreeMap::new() },
            repeat,
            duration_s: 1.0,
            memory: MemoryLimit::default(),
            cache: crate::record::CacheState::Cold,
            seed: 1,
        };
        let ops = (rate * (1.0 + f64::from(repeat) / 100.0)) as u64;
        let counters = [("own_cpu_user_s".to_owned(), 0.1), ("own_cpu_system_s".to_owned(), 0.1)].into();
        let outcome = Outcome {
            elapsed_s: 1.0,
            ops,
            bytes: ops * 4096,
            checks: Checks { verified: ops, ..Checks::default() },
            counters,
            ..Outcome::default()
        };
        let mut trial = Trial { spec, outcome };
        change(&mut trial);
        file.trials.push(trial);
    }
}

/// Returns a change that sets every sample of a latency.
fn takes(name: &'static str, microseconds: f64) -> impl Fn(&mut Trial) {
    move |trial| {
        let mut histogram = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 600_000_000_000, 3).unwrap();
        let scattered = microseconds * 1000.0 * (1.0 + f64::from(trial.spec.repeat) / 100.0);
        histogram.record_n(scattered as u64, 100).unwrap();
        trial.outcome.latency.insert(name.into(), crate::record::Latency::of(&histogram));
    }
}

/// Sides and texts of the reasons of one rule.
fn reasons<'v>(verdict: &'v Verdict, rule: &str) -> Vec<(Side, &'v str)> {
    verdict.reasons.iter().filter(|reason| reason.rule == rule).map(|reason| (reason.side, &*reason.text)).collect()
}

fn judged(file: &RecordFile, stated: Workload) -> Verdict {
    judge(file, &Summary::of(file), stated)
}

fn text(verdict: &Verdict) -> String {
    verdict.lines(false).into_iter().map(|(_, line)| line + "\n").collect()
}

#[test]
fn without_evidence_there_is_no_answer() {
    let verdict = judged(&file(crate::experiments::random::ID, "", &[]), Workload::default());
    assert_eq!((verdict.advice, verdict.sure), (Advice::NoAnswer, Sure::Nothing));
    assert!(verdict.reasons.is_empty() && verdict.not_measured.len() >= 3, "{verdict:?}");
    assert!(text(&verdict).contains("No answer") && text(&verdict).contains("not measured"), "{}", text(&verdict));
    assert!(!text(&verdict).contains("How sure"));
}

#[test]
fn the_verdict_is_for_the_faster_side_in_either_direction() {
    let slower = file(crate::experiments::random::ID, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let verdict = judged(&slower, Workload::default());
    assert_eq!(verdict.advice, Advice::Explicit, "{verdict:#?}");
    assert!(text(&verdict).contains("40.4 K/s") && text(&verdict).contains("to 0.4"), "{}", text(&verdict));
    let faster = file(crate::experiments::random::ID, "", &[("mmap-random", 90_000.0), ("pread-direct", 40_000.0)]);
    assert_eq!(judged(&faster, Workload::default()).advice, Advice::Map);
    let even = file(crate::experiments::random::ID, "", &[("mmap-random", 50_000.0), ("pread-direct", 50_100.0)]);
    let verdict = judged(&even, Workload::default());
    assert_eq!((verdict.advice, verdict.sure), (Advice::Either, Sure::Little));
}

#[test]
fn the_first_figure_of_a_rule_leads_whichever_side_it_supports() {
    let records = |map_rate: f64, map_cpu_s: f64| {
        let (mut records, random) = (empty(), (crate::experiments::random::ID, ""));
        add(&mut records, random, "mmap-random", (2, 1), map_rate, |trial| {
            trial.outcome.counters.insert("own_cpu_user_s".into(), map_cpu_s);
        });
        add(&mut records, random, "pread-direct", (2, 1), 50_000.0, |_| ());
        records
    };
    for (rate, cpu_s, sides) in [
        (40_000.0, 0.1, &[Side::Against][..]),
        (90_000.0, 0.01, &[Side::For]),
        (50_100.0, 0.1, &[Side::Neither]),
        // The rate decides nothing: the CPU time, which does, stands after it.
        (50_100.0, 0.9, &[Side::Neither, Side::Against]),
    ] {
        let verdict = judged(&records(rate, cpu_s), Workload::default());
        let leading: Vec<Side> = verdict.reasons[..verdict.leading].iter().map(|reason| reason.side).collect();
        assert_eq!(leading, sides, "{verdict:#?}");
        assert!(verdict.reasons[0].text.starts_with("random reads, file"), "{}", verdict.reasons[0].text);
        let short: String = verdict.lines(true).into_iter().map(|(_, line)| line + "\n").collect();
        let others = verdict.reasons.len() - verdict.leading;
        assert_eq!(short.contains("More figures are in the report: "), others > 0, "{short}");
    }
}

#[test]
fn evidence_for_another_workload_gives_no_answer_to_this_one() {
    let out_of_core =
        file(crate::experiments::random::ID, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let in_memory = Workload { fits_in_memory: Some(true), read_only: Some(true), ..Workload::default() };
    let verdict = judged(&out_of_core, in_memory);
    assert_eq!(verdict.advice, Advice::NoAnswer, "{verdict:#?}");
    assert!(verdict.otherwise.is_none(), "the user said which");
    let unsaid = judged(&out_of_core, Workload::default());
    assert!(unsaid.otherwise.is_some_and(|words| words.contains("No answer")), "both cases are told");
}

#[test]
fn a_read_only_database_in_memory_may_be_mapped_where_the_figures_say_so() {
    let variant = crate::experiments::claims::CACHED_READ;
    let rates = [("mmap-in-place", 90_000.0), ("pread-buffered", 40_000.0)];
    let stated = Workload { fits_in_memory: Some(true), read_only: Some(true), ..Workload::default() };
    let verdict = judged(&file(crate::experiments::claims::ID, variant, &rates), stated);
    assert_eq!(verdict.advice, Advice::Map, "{verdict:#?}");
    assert_eq!(verdict.sure, Sure::Fairly, "errors were not measured");
    assert!(text(&verdict).contains("one rule alone"), "{}", text(&verdict));
    let turned = [("mmap-in-place", 40_000.0), ("pread-buffered", 90_000.0)];
    assert_eq!(judged(&file(crate::experiments::claims::ID, variant, &turned), stated).advice, Advice::Explicit);
}

#[test]
fn noise_and_a_missing_end_lower_the_confidence() {
    let mut records =
        file(crate::experiments::random::ID, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let sure = judged(&records, Workload::default()).sure;
    assert_eq!(sure, Sure::Fairly);
    for trial in &mut records.trials {
        trial.outcome.warnings.push(WarningKind::OtherLoad.warning("others used 60 % of the CPU time".into()));
    }
    let noisy = judged(&records, Workload::default());
    assert_eq!(noisy.sure, Sure::Little);
    assert!(text(&noisy).contains("not quiet"), "{}", text(&noisy));
    records.end = None;
    assert!(text(&judged(&records, Workload::default())).contains("not complete"));
}

#[test]
fn stated_and_assumed_answers_are_told_apart() {
    let records = file(crate::experiments::random::ID, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let stated = Workload { threads: Some(2), read_only: Some(true), ..Workload::default() };
    let words = text(&judged(&records, stated));
    assert!(words.contains("You said: only read, 2 threads."), "{words}");
    assert!(words.contains("Assumed: larger than memory, without transactions, slow answers matter."), "{words}");
}

#[test]
fn a_pool_counts_beside_bare_calls_on_either_side() {
    let rates = |pool: f64| [("mmap-random", 60_000.0), ("pread-direct", 90_000.0), ("pool-tasks", pool)];
    let better = judged(&file(crate::experiments::random::ID, "", &rates(85_000.0)), Workload::default());
    let side = |verdict: &Verdict| verdict.reasons.iter().find(|reason| reason.rule == POOL).map(|reason| reason.side);
    assert_eq!((better.advice, side(&better)), (Advice::Explicit, Some(Side::Against)), "{better:#?}");
    let worse = judged(&file(crate::experiments::random::ID, "", &rates(30_000.0)), Workload::default());
    assert_eq!((worse.advice, side(&worse)), (Advice::Explicit, Some(Side::For)), "{worse:#?}");
    assert!(worse.why_no_surer.iter().any(|why| why.contains("pool is slower")), "{:?}", worse.why_no_surer);
    // The pool alone is evidence as well.
    let alone = [("mmap-random", 60_000.0), ("pool-tasks", 30_000.0)];
    assert_eq!(judged(&file(crate::experiments::random::ID, "", &alone), Workload::default()).advice, Advice::Map);
}

#[test]
fn databases_with_and_without_a_map_are_evidence() {
    let mut records = file(crate::experiments::engines::ID, "ycsb-c", &[("sqlite-mmap", 1_000.0), ("sqlite", 9_000.0)]);
    records.trials.iter_mut().for_each(|trial| trial.spec.target.label = crate::experiments::engines::LARGER.into());
    assert_eq!(judged(&records, Workload::default()).advice, Advice::Explicit);
    let in_memory = Workload { fits_in_memory: Some(true), read_only: Some(true), ..Workload::default() };
    assert_eq!(judged(&records, in_memory).advice, Advice::NoAnswer);
}

#[test]
fn a_map_whose_waits_are_timed_apart_is_no_reason_for_it() {
    let ahead = (crate::experiments::stalls::ID, "ahead");
    let mut records = empty();
    add(&mut records, ahead, "uring-direct", (1, 32), 1e4, takes("op", 1_000.0));
    add(&mut records, ahead, "mmap-mincore", (1, 32), 1e4, |trial| {
        takes("op", 2.0)(trial);
        takes("wait", 9_000.0)(trial);
    });
    let verdict = judged(&records, Workload::default());
    assert!(reasons(&verdict, "no stalls").is_empty(), "{verdict:#?}");
    add(&mut records, ahead, "mmap-helpers", (1, 32), 1e4, takes("op", 9_000.0));
    let verdict = judged(&records, Workload::default());
    assert_eq!(reasons(&verdict, "no stalls")[0].0, Side::Against, "{verdict:#?}");
}

/// Creates records of random reads as `--preset standard` measures them, on a device that is faster with more requests
/// in flight.
fn random_reads() -> RecordFile {
    let (mut records, random) = (empty(), (crate::experiments::random::ID, ""));
    for (method, count, rate) in [
        ("mmap-random", (1, 1), 15_000.0),
        ("mmap-random", (16, 1), 75_000.0),
        ("mmap-random", (100, 1), 76_000.0),
        ("pread-direct", (1, 1), 15_500.0),
        ("pread-direct", (16, 1), 76_000.0),
        ("pread-direct", (100, 1), 77_000.0),
        ("uring-direct", (1, 1), 15_500.0),
        ("uring-direct", (1, 32), 80_000.0),
        ("uring-direct", (1, 128), 88_000.0),
    ] {
        add(&mut records, random, method, count, rate, takes("op", 1e6 * f64::from(count.0) / rate));
    }
    records
}

#[test]
fn both_sides_have_about_as_many_requests_at_a_time_as_the_user() {
    let records = random_reads();
    for (threads, label) in [(1, "mmap RANDOM,"), (8, "mmap RANDOM · 16 threads,"), (90, "mmap RANDOM · 100 threads,")]
    {
        let verdict = judged(&records, Workload { threads: Some(threads), ..Workload::default() });
        let found = reasons(&verdict, "throughput");
        assert!(found.len() == 2 && found.iter().all(|(_, text)| text.contains(label)), "{threads}: {found:?}");
        assert!(found.iter().all(|(side, _)| *side == Side::Neither), "{threads}: {found:?}");
        assert!(!verdict.why_no_surer.iter().any(|why| why.contains("at a time")), "{:?}", verdict.why_no_surer);
    }
    let unsaid = judged(&records, Workload::default());
    let found = reasons(&unsaid, "throughput");
    let words = "at 1, 16 and 100 in flight: 0.98";
    assert!(found.iter().any(|(_, text)| text.contains(words)), "the whole curve, at equal points: {found:?}");
}

#[test]
fn a_scan_takes_as_many_of_the_users_threads_as_serve_it_best() {
    let mut records = empty();
    for (method, count, rate) in [
        ("mmap-normal", (1, 1), 2_400.0),
        ("mmap-normal", (20, 1), 1_400.0),
        ("pread-direct", (1, 1), 2_000.0),
        ("pread-direct", (20, 1), 2_500.0),
        ("uring-direct", (1, 32), 2_450.0),
    ] {
        add(&mut records, (crate::experiments::scan::ID, ""), method, count, rate, |_| ());
    }
    // The ring has 32 requests in flight and huge pages: it is compared with no map.
    for (threads, other) in [(1, "pread O_DIRECT,"), (8, "20 threads"), (16, "20 threads")] {
        let verdict = judged(&records, Workload { threads: Some(threads), ..Workload::default() });
        let found = reasons(&verdict, "throughput");
        assert!(found[0].1.contains(other) || found[0].1.contains("pread O_DIRECT:"), "{threads}: {found:?}");
        assert!(found.iter().all(|(_, text)| !text.contains("io_uring")), "{threads}: {found:?}");
    }
    for trial in records.trials.iter_mut().filter(|trial| trial.spec.params.threads == 1) {
        trial.spec.params.threads = 4;
    }
    let verdict = judged(&records, Workload { threads: Some(1), ..Workload::default() });
    assert!(verdict.why_no_surer.iter().any(|why| why.contains("scan, file (4)")), "{:?}", verdict.why_no_surer);
}

#[test]
fn thread_counts_that_were_not_measured_lower_the_confidence() {
    let mut records = empty();
    for (method, rate) in [("mmap-random", 40_000.0), ("pread-direct", 90_000.0)] {
        add(&mut records, (crate::experiments::random::ID, ""), method, (16, 1), rate, |_| ());
    }
    for (threads, told) in [(1, true), (100, true), (8, false), (16, false)] {
        let verdict = judged(&records, Workload { threads: Some(threads), ..Workload::default() });
        assert_eq!(verdict.advice, Advice::Explicit);
        let why = verdict.why_no_surer.iter().find(|why| why.contains(&format!("about {threads} at a time")));
        assert_eq!(why.is_some_and(|why| why.contains("random, file (16)")), told, "{threads}: {verdict:#?}");
    }
}

#[test]
fn the_users_threads_count_for_commits_databases_and_lookups_too() {
    let stated = |threads| Workload { threads: Some(threads), ..Workload::default() };
    let mut records = empty();
    records.run.machine.cpu_count = 2;
    let commits = (crate::experiments::safety::ID, "commits");
    for (writers, map, engine) in [(1, 9_000.0, 5_000.0), (64, 9_000.0, 50_000.0)] {
        add(&mut records, commits, "shadow", (writers, 1), map, |_| ());
        add(&mut records, commits, "engine", (writers, 1), engine, |_| ());
    }
    let transactions = |threads| Workload { needs_transactions: Some(true), ..stated(threads) };
    let one = judged(&records, transactions(1));
    let found = reasons(&one, "safe updates");
    assert!(found.len() == 1 && found[0].0 == Side::For && found[0].1.contains("1 writer,"), "{found:?}");
    let many = judged(&records, transactions(60));
    let found = reasons(&many, "safe updates");
    assert!(found.len() == 1 && found[0].0 == Side::Against && found[0].1.contains("64 writers"), "{found:?}");

    for (threads, map, calls) in [(1, 9_000.0, 1_000.0), (16, 9_000.0, 90_000.0)] {
        let larger = |trial: &mut Trial| trial.spec.target.label = crate::experiments::engines::LARGER.into();
        add(&mut records, (crate::experiments::engines::ID, "ycsb-c"), "sqlite-mmap", (threads, 1), map, larger);
        add(&mut records, (crate::experiments::engines::ID, "ycsb-c"), "sqlite", (threads, 1), calls, larger);
    }
    for (threads, side) in [(1, Side::For), (16, Side::Against)] {
        let verdict = judged(&records, stated(threads));
        assert_eq!(reasons(&verdict, "throughput of databases")[0].0, side, "{threads}: {verdict:#?}");
    }

    for (threads, map, pool) in [(1, 9e6, 1e6), (2, 9e6, 90e6)] {
        let set = |trial: &mut Trial| drop(trial.spec.params.extra.insert("working_set".into(), "1073741824".into()));
        add(&mut records, (crate::experiments::translate::ID, "lookup"), "mapped", (threads, 1), map, set);
        add(&mut records, (crate::experiments::translate::ID, "lookup"), "array-small", (threads, 1), pool, set);
    }
    for (threads, side) in [(1, Side::For), (2, Side::Against), (40, Side::Against)] {
        let verdict = judged(&records, Workload { fits_in_memory: Some(true), ..stated(threads) });
        assert_eq!(reasons(&verdict, "in memory")[0].0, side, "{threads}: {verdict:#?}");
    }
}

#[test]
fn data_that_fits_may_stall_as_well() {
    let fits = (crate::experiments::stalls::ID, "fits");
    let stated = Workload { fits_in_memory: Some(true), latency_matters: Some(true), ..Workload::default() };
    let nothing = judged(&empty(), stated);
    assert!(nothing.not_measured.iter().any(|what| what.question.contains("no stalls")), "{:?}", nothing.not_measured);
    let calm = judged(&empty(), Workload { latency_matters: Some(false), ..stated });
    assert!(!calm.not_measured.iter().any(|what| what.question.contains("no stalls")), "{:?}", calm.not_measured);

    let mut records = empty();
    add(&mut records, fits, "mmap", (1, 32), 1e6, takes("op", 2_000.0));
    add(&mut records, fits, "pool-frames", (1, 32), 1e6, takes("op", 0.2));
    let verdict = judged(&records, stated);
    assert_eq!(reasons(&verdict, "no stalls")[0].0, Side::Against, "{verdict:#?}");
    // Locked pages are accessed in a microsecond or less: no stall, whichever is the faster.
    add(&mut records, fits, "mmap-mlock", (1, 32), 1e6, takes("op", 0.9));
    let verdict = judged(&records, stated);
    let found = reasons(&verdict, "no stalls");
    assert!(found[0].0 == Side::Neither && found[0].1.ends_with("neither is a stall."), "{found:?}");
    let larger = judged(&records, Workload { fits_in_memory: Some(false), ..stated });
    assert!(reasons(&larger, "no stalls").is_empty(), "{larger:#?}");
}

#[test]
fn random_reads_are_compared_in_their_tails_with_as_many_threads_on_either_side() {
    let mut records = random_reads();
    let fastest = |trial: &&mut Trial| trial.spec.method == "pread-direct" && trial.spec.params.threads == 16;
    records.trials.iter_mut().filter(fastest).for_each(|trial| trial.outcome.ops *= 2);
    for threads in [None, Some(1), Some(8), Some(100)] {
        let verdict = judged(&records, Workload { threads, ..Workload::default() });
        let found = reasons(&verdict, "no stalls");
        assert!(found.len() == 1 && found[0].0 == Side::Neither, "{threads:?}: {found:?}");
    }
}

#[test]
fn sides_of_unequal_conditions_give_no_reason_and_the_verdict_says_why() {
    let (mut records, random) = (empty(), (crate::experiments::random::ID, ""));
    add(&mut records, random, "mmap-random", (16, 1), 40_000.0, |_| ());
    add(&mut records, random, "uring-direct", (1, 64), 90_000.0, |_| ());
    let verdict = judged(&records, Workload::default());
    assert_eq!(verdict.advice, Advice::NoAnswer, "{verdict:#?}");
    let why = verdict.not_measured.iter().find(|missing| missing.question.contains("throughput")).unwrap();
    assert!(why.question.contains("16 requests in flight against 64"), "{why}");
}

#[test]
fn stray_writes_say_nothing_about_a_database_that_is_only_read() {
    let mut records = empty();
    for (method, reached) in [("mmap", 1.0), ("engine", 0.0)] {
        add(&mut records, (crate::experiments::errors::ID, "stray-write"), method, (1, 1), 1e3, |trial| {
            trial.outcome.figures.insert("reached_disk".into(), reached);
            trial.outcome.figures.insert("wrong_answers".into(), reached);
        });
    }
    let sides = |only| {
        let verdict = judged(&records, Workload { read_only: Some(only), ..Workload::default() });
        reasons(&verdict, "errors").iter().filter(|(side, _)| *side == Side::Against).count()
    };
    assert_eq!((sides(false), sides(true)), (2, 0));
}

#[test]
fn zipfian_reads_and_requests_for_many_pages_are_reasons_for_the_faster_side() {
    let with = |mut file: RecordFile, name: &str, value: &str| {
        file.trials.iter_mut().for_each(|trial| drop(trial.spec.params.extra.insert(name.into(), value.into())));
        file
    };
    let fits = Workload { fits_in_memory: Some(true), read_only: Some(true), ..Workload::default() };
    let larger = Workload::default();
    for (rates, side) in [([9e4, 4e4], Side::For), ([4e4, 9e4], Side::Against), ([5e4, 5.01e4], Side::Neither)] {
        let [map, other] = rates;
        let zipf = [("mmap-random", map), ("pread-direct", other)];
        for (data, workload, rule) in [("8", larger, "throughput"), ("0.5", fits, "in memory")] {
            let records = with(file(crate::experiments::crossover::ID, "zipf", &zipf), "data_per_memory", data);
            let verdict = judged(&records, workload);
            let found = reasons(&verdict, rule);
            assert!(matches!(found.as_slice(), [(of, text)] if *of == side && text.contains(data)), "{found:?}");
        }
        let batch = [("batch-willneed", map), ("batch-ring", other), ("batch-touch", map / 10.0)];
        for (variant, workload, rule) in [("cold", larger, "throughput"), ("warm", fits, "in memory")] {
            let records = with(file(crate::experiments::batch::ID, variant, &batch), "pages", "512");
            let verdict = judged(&records, workload);
            let found = reasons(&verdict, rule);
            assert!(matches!(found.as_slice(), [(of, text)] if *of == side && text.contains(variant)), "{found:?}");
        }
    }
}

#[test]
fn a_users_number_of_threads_chooses_the_nearest_point_of_the_grid() {
    let mut records = file(crate::experiments::crossover::ID, "zipf", &[]);
    for (threads, map, other) in [(1, 9e4, 4e4), (64, 4e4, 9e4)] {
        let point = file(crate::experiments::crossover::ID, "zipf", &[("mmap-random", map), ("pread-direct", other)]);
        records.trials.extend(point.trials.into_iter().map(|mut trial| {
            trial.spec.params.threads = threads;
            trial.spec.params.extra.insert("data_per_memory".into(), "8".into());
            trial
        }));
    }
    for (threads, side) in [(1, Side::For), (48, Side::Against), (64, Side::Against)] {
        let verdict = judged(&records, Workload { threads: Some(threads), ..Workload::default() });
        assert_eq!(reasons(&verdict, "throughput").iter().map(|found| found.0).collect::<Vec<_>>(), [side]);
    }
}
