//! Every trial runs at a tiny size, in this process, and checks its answers; plans contain the chosen works; lines
//! compare figures of one row.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;
use nofault_sim::depth::{by_depth, is_deep};

use super::rules::{self, AimOutcome, lines};
use super::works::{PEERS, WORKS, rows};
use super::{INTERVAL, Parameters, data_title, is_in_ram, *};
use crate::config::Preset;
use crate::error::{LabErrorKind, Result};
use crate::experiment::{Available, Context, Plan, StoresPlace};
use crate::experiments::cold_in_tests;
use crate::measure::stores::kind_of;
use crate::methods::{BF_TREE, LMDB, NOFAULT};
use crate::record::file::RecordFile;
use crate::record::{MemoryLimit, MemoryMethod, Outcome, Trial};

/// The configuration of tiny trials of these works, or of those that are measured when none is named.
fn config(works: &[&str]) -> Config {
    let mut config = Config { experiments: vec![ID], ..Config::preset(Preset::Quick) };
    config.change(|engine: &mut Parameters| {
        *engine = Parameters {
            works: works.iter().map(|work| (*work).to_owned()).collect(),
            cell_s: by_depth(0.02, 0.1),
            data_bytes: by_depth(5 << 18, 2 << 20),
            memory_keys: by_depth(500, 2000),
            cache_bytes: 1 << 20,
            log_bytes: by_depth(1 << 18, 1 << 20),
            ..engine.clone()
        };
    });
    config
}

fn available(folder: &Path) -> Available {
    let limit = MemoryLimit { method: MemoryMethod::CgroupV2, bytes: 96 << 20 };
    Available {
        stores: vec![StoresPlace { experiment: ID, folder: folder.into(), memory: Ok(limit) }],
        ..Available::default()
    }
}

fn run(spec: &TrialSpec, cancel: &AtomicBool) -> Result<Outcome> {
    let watch = Watch::new();
    Engine.execute(spec, &mut Context { watch: &watch, cancel, cold: cold_in_tests(), on_tick: &mut |_| {} })
}

fn all(plan: &Plan) -> Vec<TrialSpec> {
    plan.once.iter().chain(&plan.trials).cloned().collect()
}

/// The names of all works.
fn all_works() -> Vec<&'static str> {
    WORKS.iter().map(|work| work.name).collect()
}

#[test]
fn every_row_is_planned_for_each_of_its_methods_or_skipped_with_the_feature_to_build() {
    let plan = Engine.plan(&config(&all_works()), &available(Path::new("here")));
    let specs = all(&plan);
    for row in rows() {
        for method in row.methods {
            let planned = specs.iter().any(|spec| spec.variant == row.variant && spec.method == *method);
            let built = kind_of(method.id).is_none_or(crate::measure::stores::Kind::is_built);
            assert_eq!(planned, built, "{} {}", row.variant, method.id);
            assert!(
                built || plan.skips.iter().any(|skip| skip.method == *method && skip.reason.contains("--features"))
            );
        }
        for quantity in row.quantities {
            let known = |other: &works::Beside| row.methods.contains(&other.method);
            assert!(quantity.beside.iter().all(known), "{}", row.variant);
        }
    }
    let keys: BTreeSet<String> = specs.iter().map(TrialSpec::key).collect();
    assert_eq!(keys.len(), specs.len(), "two trials share a key");
    let sizes = specs.iter().filter(|spec| spec.variant == works::GET_ONE && spec.method == NOFAULT);
    assert_eq!(sizes.map(|spec| spec.target.label.as_str()).collect::<Vec<_>>(), ["100B", "1000B"]);
    let limited = |spec: &&TrialSpec| spec.memory.method != MemoryMethod::None;
    assert!(specs.iter().filter(limited).all(|spec| !spec.target.label.contains('-')));
    assert!(plan.together && plan.once.iter().all(|spec| spec.method != LMDB));
}

#[test]
fn only_named_works_are_planned_and_an_unknown_name_is_refused_with_the_list_of_works() {
    let plan = Engine.plan(&config(&["get-one", "reopen"]), &available(Path::new("here")));
    let variants: BTreeSet<String> = all(&plan).into_iter().map(|spec| spec.variant).collect();
    assert_eq!(variants.into_iter().collect::<Vec<_>>(), ["get-one", "reopen"]);
    assert!(plan.skips.is_empty(), "these works need no other database");
    let error = config(&["gets"]).validate().unwrap_err();
    assert!(error.kind() == LabErrorKind::Usage && error.to_string().contains("get-many"), "{error}");
}

#[test]
fn without_names_the_works_are_measured_that_do_not_have_to_be_named() {
    let planned = |works: &[&str]| -> BTreeSet<String> {
        all(&Engine.plan(&config(works), &available(Path::new("here")))).into_iter().map(|spec| spec.variant).collect()
    };
    let named: Vec<&str> = WORKS.iter().filter(|work| work.is_default).map(|work| work.name).collect();
    assert!(named.len() < WORKS.len() && planned(&[]) == planned(&named));
    for (name, description) in (Engine.command().unwrap().parts)() {
        let work = WORKS.iter().find(|work| work.name == name).unwrap();
        assert_eq!(description.ends_with(works::BY_NAME), !work.is_default, "{description}");
    }
}

#[test]
fn a_peer_that_does_not_take_values_of_a_size_is_left_out_with_the_reason() {
    let mut config = config(&["load-random"]);
    config.change(|engine: &mut Parameters| engine.value_bytes = vec![20_000]);
    let plan = Engine.plan(&config, &available(Path::new("here")));
    assert!(plan.trials.iter().all(|spec| spec.method != BF_TREE));
    let said = plan.skips.iter().filter(|skip| skip.method == BF_TREE);
    let said: Vec<&str> = said.map(|skip| skip.reason.as_str()).collect();
    let word = if kind_of(BF_TREE.id).unwrap().is_built() { "at most 16000" } else { "--features peers" };
    assert!(said.len() == 1 && said[0].contains(word), "{said:?}");
}

#[test]
fn data_on_a_ram_backed_device_has_labels_and_bounds_of_its_own() {
    assert_eq!(data_title("ram-1000B"), "1000 B, on a RAM-backed device");
    assert_eq!(data_title("ram-memory-100B"), "100 B, in memory, on a RAM-backed device");
    assert!(is_in_ram("ram-1000B") && !is_in_ram("1000B"));
    let plan = Engine.plan(&config(&["get-tasks"]), &available(Path::new("here")));
    let limits = |prefix: &str| -> Vec<String> {
        let on = |spec: TrialSpec| {
            let label = format!("{prefix}{}", spec.target.label);
            let target = crate::record::Target { label, ..spec.target.clone() };
            let counters = ["own_cpu_user_s", "own_cpu_system_s"].map(|name| (name.to_owned(), 1.0));
            let outcome =
                Outcome { ops: 10, elapsed_s: 1.0, counters: counters.into_iter().collect(), ..Outcome::default() };
            Trial { spec: TrialSpec { target, ..spec }, outcome }
        };
        let trials = all(&plan).into_iter().map(on).collect();
        let mut file = RecordFile { trials, ..crate::report::verdict::tests::file(ID, "", &[]) };
        file.run.config.experiments = vec![ID];
        let summary = Summary::of(&file);
        let lines = lines(&summary);
        let cpu = lines.iter().filter(|line| line.quantity.short == "CPU");
        cpu.map(|line| format!("{} {}", line.short_title(), line.limit().unwrap())).collect()
    };
    assert_eq!(limits("")[0], "get-tasks 100 B CPU ≤ 8.00 µs");
    assert_eq!(limits("ram-")[0], "get-tasks 100 B CPU, in RAM ≤ 6.50 µs");
}

#[test]
fn a_p999_is_held_against_a_largest_ratio_or_a_largest_difference_and_met_or_missed_in_every_repeat() {
    let plan = Engine.plan(&config(&["commit", "get-tasks"]), &available(Path::new("here")));
    // Latencies of the engine and of the other in two repeats, in microseconds.
    let told = |own_us: [u64; 2], other_us: [u64; 2]| -> Vec<[String; 2]> {
        let of = |spec: &TrialSpec, repeat: usize| {
            let us =
                if [NOFAULT.id, NOFAULT_POLLER.id].contains(&spec.method.as_str()) { own_us } else { other_us }[repeat];
            let mut histogram = crate::measure::new_histogram();
            histogram.record_n(us * 1000, 1000).unwrap();
            let latency = crate::record::Latency::of(&histogram);
            let latency = ["op", works::TICKER].map(|name| (name.to_owned(), latency.clone())).into_iter().collect();
            Trial {
                spec: TrialSpec { repeat: repeat as u32, ..spec.clone() },
                outcome: Outcome { ops: 1000, elapsed_s: 1.0, latency, ..Outcome::default() },
            }
        };
        let trials = all(&plan).iter().flat_map(|spec| [of(spec, 0), of(spec, 1)]).collect();
        let mut file = RecordFile { trials, ..crate::report::verdict::tests::file(ID, "", &[]) };
        file.run.config.experiments = vec![ID];
        let summary = Summary::of(&file);
        let lines = lines(&summary);
        let cells = lines.iter().flat_map(rules::Line::cells);
        let wanted = ["commit-1 100 B p99.9", "get-tasks 100 B timer"];
        cells
            .filter(|cells| wanted.contains(&cells[0].as_str()))
            .map(|cells| [cells[4].clone(), cells[5].clone()])
            .collect()
    };
    let words = |told: Vec<[String; 2]>| told.into_iter().map(|cells| cells.join(" ")).collect::<Vec<_>>();
    assert_eq!(words(told([1200, 1210], [1000, 1010])), ["+200 µs ≤ +300 µs ✓", "1.20× ≤ 1.5 ✓"]);
    assert_eq!(words(told([2200, 2210], [1000, 1010])), ["+1.20 ms ≤ +300 µs ✗", "2.20× ≤ 1.5 ✗"]);
    assert_eq!(words(told([900, 1800], [1000, 1010]))[0], "+345 µs ≤ +300 µs ?");
    assert_eq!(words(told([800, 810], [1000, 1010]))[0], "−200 µs ≤ +300 µs ✓");
}

#[test]
fn impossible_parameters_are_refused() {
    for value in [
        "engine.cell_s=0",
        "engine.value_bytes=[8]",
        "engine.value_bytes=[]",
        "engine.value_bytes=[100, 100]",
        "engine.limit_bytes=1000000",
        "engine.memory_keys=0",
        "engine.data_bytes=1",
    ] {
        let error = Config::default().assign(value).unwrap().validate().unwrap_err();
        assert!(error.to_string().contains("engine."), "{value}: {error}");
    }
    let error = Config::default().assign("engine.limit_bytes=67108864").unwrap().validate().unwrap_err();
    assert!(error.to_string().contains("too small"), "{error}");
}

#[test]
fn the_experiment_runs_only_when_named_and_has_a_command_of_its_own() {
    for preset in [Preset::Quick, Preset::Standard, Preset::Paper] {
        assert!(!Config::preset(preset).experiments.contains(&ID));
    }
    let (id, command) = crate::experiments::of_command("db bench").unwrap();
    assert_eq!((id, (command.parts)().len()), (ID, WORKS.len()));
}

#[test]
fn without_a_memory_limit_everything_is_measured_and_the_record_notes_it() {
    let mut available = available(Path::new("here"));
    available.stores[0].memory = Err("no rights".into());
    let plan = Engine.plan(&config(&["get-one"]), &available);
    assert!(!plan.trials.is_empty() && plan.skips.iter().any(|skip| skip.reason.contains("no rights")));
    assert!(plan.trials.iter().all(|spec| spec.memory == MemoryLimit::default()));
}

#[test]
fn every_planned_trial_runs_with_right_answers_and_every_row_has_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Engine.plan(&config(&all_works()), &available(folder.path()));
    let mut specs = all(&plan);
    if !is_deep() {
        // Each method of each row once, and not again with each size of values.
        let mut seen = BTreeSet::new();
        specs.retain(|spec| {
            seen.insert((spec.variant.clone(), spec.method.clone(), spec.params.extra.get(INTERVAL).cloned()))
        });
    }
    let mut trials = Vec::new();
    for spec in specs {
        let outcome = run(&spec, &AtomicBool::new(false)).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        let key = spec.key();
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{key}");
        assert!(outcome.ops > 0 && outcome.elapsed_s > 0.0, "{key}");
        let reads_entries = spec.method == NOFAULT || PEERS.contains(&spec.method.as_str());
        assert!(!reads_entries || outcome.checks.verified > 0 || spec.variant == works::LONG_READER, "{key}");
        trials.push(Trial { spec, outcome });
    }
    let mut file = RecordFile { trials, ..crate::report::verdict::tests::file(ID, "", &[]) };
    file.run.config.experiments = vec![ID];
    let summary = Summary::of(&file);
    let lines = lines(&summary);
    for row in rows() {
        for quantity in row.quantities {
            let of_row =
                |line: &&rules::Line<'_, '_>| line.row.variant == row.variant && std::ptr::eq(line.quantity, quantity);
            let line = lines.iter().find(of_row).unwrap_or_else(|| panic!("{}: {}", row.title, quantity.name));
            assert!(line.spread().is_some(), "{}", line.title());
            let there =
                |other: &&works::Beside| kind_of(other.method.id).is_none_or(crate::measure::stores::Kind::is_built);
            assert_eq!(line.beside.len(), quantity.beside.iter().filter(there).count(), "{}", line.title());
            // Without a reader nothing may grow, so the ratio is over zero and does not exist.
            let is_rate = row.variant != works::LONG_READER;
            assert!(!is_rate || line.beside.iter().all(|other| line.ratio(other).is_some()), "{}", line.title());
        }
    }
    // One run decides sizes of files and growth; a rate needs several.
    let met = |variant: &str| lines.iter().find(|line| line.row.variant == variant).unwrap();
    assert_ne!(met(works::LONG_READER).meets_limit(), Some(AimOutcome::Undecided));
    assert_eq!(met(works::BULK_LOAD).meets_limit(), Some(AimOutcome::Undecided));
    let mut found = Vec::new();
    (Engine.description().findings)(&summary, &mut found);
    assert!(found.iter().any(|finding| finding.text.contains("the aim, at least 0.95")), "{found:?}");
    let (table, report) = (crate::report::table::summary_table(&file, 200), crate::report::html(&file).unwrap());
    for shown in ["device", "≥ 0.95", "idle executor"] {
        assert!(table.contains(shown) && report.contains(shown), "{shown}: {table}");
    }
    assert!(!table.contains("Verdict") && !report.contains("claims for and against mmap"));
}

#[test]
fn a_trial_that_writes_leaves_a_fresh_database_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Engine.plan(&config(&["put-batch", "get-one"]), &available(folder.path()));
    let find = |variant: &str| {
        let is_it =
            |spec: &&TrialSpec| spec.variant == variant && spec.method == NOFAULT && spec.target.label == "100B";
        plan.trials.iter().find(is_it).unwrap()
    };
    let note = folder.path().join("note.json");
    run(find("get-one"), &AtomicBool::new(false)).unwrap();
    assert!(note.exists());
    run(find("put-batch"), &AtomicBool::new(false)).unwrap();
    assert!(!note.exists());
    run(find("get-one"), &AtomicBool::new(false)).unwrap();
    assert!(note.exists());
}

#[test]
fn a_trial_interrupted_before_its_clock_starts_has_no_result() {
    let folder = tempfile::tempdir().unwrap();
    for spec in all(&Engine.plan(&config(&["get-one", "ycsb"]), &available(folder.path()))) {
        let ended = run(&spec, &AtomicBool::new(true));
        assert_eq!(ended.map_err(|error| error.kind()).unwrap_err(), LabErrorKind::Interrupted, "{}", spec.key());
        assert!(!folder.path().join("note.json").exists());
    }
}

#[test]
fn parameters_that_no_plan_contains_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Engine.plan(&config(&["get-one"]), &available(folder.path()));
    let spec = &plan.trials[0];
    for wrong in [
        TrialSpec { variant: "get-nothing".into(), ..spec.clone() },
        TrialSpec { method: IDLE_EXECUTOR.id.into(), ..spec.clone() },
        TrialSpec { params: Default::default(), ..spec.clone() },
    ] {
        assert_eq!(run(&wrong, &AtomicBool::new(false)).unwrap_err().kind(), LabErrorKind::Usage);
    }
}
