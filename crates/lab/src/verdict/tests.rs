//! Verdicts from records that no machine made: they follow the figures in either direction, and nothing without figures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::config::Config;
use crate::record::{
    Cell, CellSpec, Checks, End, ExperimentId, MachineInfo, MemoryLimit, Outcome, Params, RunInfo, SCHEMA, Target,
};

/// A file with so many reads a second, over three repeats, by contender.
pub(crate) fn file(experiment: ExperimentId, variant: &str, rates: &[(&str, f64)]) -> RecordFile {
    let mut cells = Vec::new();
    for repeat in 0..3_u32 {
        for (contender, rate) in rates {
            let spec = CellSpec {
                experiment,
                variant: variant.into(),
                target: Target { label: "file".into(), content_seed: Some(1), ..Target::default() },
                contender: (*contender).into(),
                params: Params { threads: 2, depth: 1, block_bytes: 4096, extra: BTreeMap::new() },
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
            cells.push(Cell { spec, outcome });
        }
    }
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
        cells,
        skips: Vec::new(),
        notes: Vec::new(),
        end: Some(End { complete: true, reason: String::new(), elapsed_s: 1.0 }),
        cut_off_line: None,
        unknown: Vec::new(),
        unknown_settings: Vec::new(),
    }
}

fn judged(file: &RecordFile, said: Workload) -> Verdict {
    judge(file, &Summary::of(file), said)
}

fn text(verdict: &Verdict) -> String {
    verdict.lines(false).into_iter().map(|(_, line)| line + "\n").collect()
}

#[test]
fn without_evidence_there_is_no_answer() {
    let verdict = judged(&file(ExperimentId::Random, "", &[]), Workload::default());
    assert_eq!((verdict.advice, verdict.sure), (Advice::NoAnswer, Sure::Nothing));
    assert!(verdict.reasons.is_empty() && verdict.not_measured.len() >= 3, "{verdict:?}");
    assert!(text(&verdict).contains("No answer") && text(&verdict).contains("not measured"), "{}", text(&verdict));
    assert!(!text(&verdict).contains("How sure"));
}

#[test]
fn the_faster_side_wins_whichever_it_is() {
    let slower = file(ExperimentId::Random, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let verdict = judged(&slower, Workload::default());
    assert_eq!(verdict.advice, Advice::Explicit, "{verdict:#?}");
    assert!(text(&verdict).contains("40.4 K/s") && text(&verdict).contains("to 0.4"), "{}", text(&verdict));
    let faster = file(ExperimentId::Random, "", &[("mmap-random", 90_000.0), ("pread-direct", 40_000.0)]);
    assert_eq!(judged(&faster, Workload::default()).advice, Advice::Map);
    let even = file(ExperimentId::Random, "", &[("mmap-random", 50_000.0), ("pread-direct", 50_100.0)]);
    let verdict = judged(&even, Workload::default());
    assert_eq!((verdict.advice, verdict.sure), (Advice::Either, Sure::Little));
}

#[test]
fn evidence_for_another_workload_gives_no_answer_to_this_one() {
    let out_of_core = file(ExperimentId::Random, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let in_memory = Workload { fits_in_memory: Some(true), read_only: Some(true), ..Workload::default() };
    let verdict = judged(&out_of_core, in_memory);
    assert_eq!(verdict.advice, Advice::NoAnswer, "{verdict:#?}");
    assert!(verdict.otherwise.is_none(), "the user said which");
    let unsaid = judged(&out_of_core, Workload::default());
    assert!(unsaid.otherwise.is_some_and(|words| words.contains("No answer")), "both cases are told");
}

#[test]
fn a_read_only_database_in_memory_may_be_mapped_where_the_figures_say_so() {
    let variant = crate::experiment::claims::CACHED_READ;
    let rates = [("mmap-in-place", 90_000.0), ("pread-buffered", 40_000.0)];
    let said = Workload { fits_in_memory: Some(true), read_only: Some(true), ..Workload::default() };
    let verdict = judged(&file(ExperimentId::Claims, variant, &rates), said);
    assert_eq!(verdict.advice, Advice::Map, "{verdict:#?}");
    assert_eq!(verdict.sure, Sure::Fairly, "errors were not measured");
    assert!(text(&verdict).contains("one rule alone"), "{}", text(&verdict));
    let turned = [("mmap-in-place", 40_000.0), ("pread-buffered", 90_000.0)];
    assert_eq!(judged(&file(ExperimentId::Claims, variant, &turned), said).advice, Advice::Explicit);
}

#[test]
fn noise_and_missing_ends_make_it_less_sure() {
    let mut records = file(ExperimentId::Random, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let sure = judged(&records, Workload::default()).sure;
    assert_eq!(sure, Sure::Fairly);
    for cell in &mut records.cells {
        cell.outcome.warnings.push("others used 60 % of the CPU time".into());
    }
    let noisy = judged(&records, Workload::default());
    assert_eq!(noisy.sure, Sure::Little);
    assert!(text(&noisy).contains("not quiet"), "{}", text(&noisy));
    records.end = None;
    assert!(text(&judged(&records, Workload::default())).contains("not complete"));
}

#[test]
fn what_was_said_and_what_was_assumed_are_told_apart() {
    let records = file(ExperimentId::Random, "", &[("mmap-random", 40_000.0), ("pread-direct", 90_000.0)]);
    let said = Workload { threads: Some(2), read_only: Some(true), ..Workload::default() };
    let words = text(&judged(&records, said));
    assert!(words.contains("You said: only read, 2 threads."), "{words}");
    assert!(words.contains("Assumed: larger than memory, without transactions, slow answers matter."), "{words}");
}

#[test]
fn a_pool_counts_beside_bare_calls_on_either_side() {
    let rates = |pool: f64| [("mmap-random", 60_000.0), ("pread-direct", 90_000.0), ("pool-tasks", pool)];
    let better = judged(&file(ExperimentId::Random, "", &rates(85_000.0)), Workload::default());
    let side =
        |verdict: &Verdict| verdict.reasons.iter().find(|reason| reason.rule == rules::POOL).map(|reason| reason.side);
    assert_eq!((better.advice, side(&better)), (Advice::Explicit, Some(Side::Against)), "{better:#?}");
    let worse = judged(&file(ExperimentId::Random, "", &rates(30_000.0)), Workload::default());
    assert_eq!((worse.advice, side(&worse)), (Advice::Explicit, Some(Side::For)), "{worse:#?}");
    assert!(worse.why_no_surer.iter().any(|why| why.contains("pool is slower")), "{:?}", worse.why_no_surer);
    // The pool alone is evidence as well.
    let alone = [("mmap-random", 60_000.0), ("pool-tasks", 30_000.0)];
    assert_eq!(judged(&file(ExperimentId::Random, "", &alone), Workload::default()).advice, Advice::Map);
}

#[test]
fn databases_with_and_without_a_map_are_evidence() {
    let mut records = file(ExperimentId::Engines, "ycsb-c", &[("sqlite-mmap", 1_000.0), ("sqlite", 9_000.0)]);
    records.cells.iter_mut().for_each(|cell| cell.spec.target.label = crate::experiment::engines::LARGER.into());
    assert_eq!(judged(&records, Workload::default()).advice, Advice::Explicit);
    let in_memory = Workload { fits_in_memory: Some(true), read_only: Some(true), ..Workload::default() };
    assert_eq!(judged(&records, in_memory).advice, Advice::NoAnswer);
}
