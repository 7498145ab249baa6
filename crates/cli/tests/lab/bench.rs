//! `nofault db bench`: a run of the lab with one experiment, whose result the lab's commands read.

use std::fs;
use std::process::Command;

use nofault_sim::depth::by_depth;

use crate::common::{Lab, Running, children_of, lives, outcome, spare_caches};

/// Returns `nofault db bench` with tiny sizes, in the test's folder; its results lie where [`Lab::names`] looks.
fn bench(lab: &mut Lab, arguments: &[&str]) -> Command {
    lab.dir = lab.outer.path().join("nofault-lab");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nofault"));
    spare_caches(&mut command);
    command.args(["db", "bench"]).args(arguments).current_dir(lab.outer.path());
    command.args(["--size", by_depth("128KiB", "1MiB"), "--memory-keys", "1000", "--values", "100", "--repeats", "2"]);
    command
}

#[test]
fn a_tiny_benchmark_ends_with_a_table_and_a_result_that_the_lab_reads() {
    let mut lab = Lab::new();
    let ended = outcome(&mut bench(&mut lab, &["get-one", "space", "--seconds", by_depth("0.05", "0.2")]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for shown in ["get-one 100 B", "device", "≥ 0.95", "space-updated 100 B", "≤ 1.05×"] {
        assert!(ended.stdout.contains(shown), "{shown}: {}", ended.stdout);
    }
    assert!(
        !ended.stdout.contains("Verdict") && !ended.stderr.contains("lab verdict"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    let result = lab.only_result();
    for kept in ["records.ndjson", "report.html"] {
        assert!(ended.stderr.contains(kept) && result.join(kept).is_file(), "{kept}: {}", ended.stderr);
    }
    assert_eq!(lab.names().len(), 1, "no database, no lock: {:?}", lab.names());
    let records = fs::read_to_string(result.join("records.ndjson")).unwrap();
    for method in ["nofault", "device"] {
        let named = format!("\"contender\":\"{method}\"");
        let own = records.lines().filter(|line| line.contains("\"get-one\"") && line.contains(&named));
        assert_eq!(
            own.filter(|line| line.contains("\"hdr\"")).count(),
            2,
            "each repeat of {method} with its raw histogram"
        );
    }

    let again = outcome(lab.command(&["report"]).arg(&result));
    assert_eq!((again.code, again.stdout), (0, ended.stdout), "{}", again.stderr);
    let same = outcome(lab.command(&["compare"]).args([&result, &result]));
    assert!(same.code == 0 && same.stdout.contains("are the same"), "{}{}", same.stdout, same.stderr);
    let list = outcome(lab.command(&["list"]).arg(&lab.dir));
    assert!(list.stdout.contains(result.file_name().unwrap().to_str().unwrap()), "{}", list.stdout);
}

#[test]
fn the_works_are_listed_and_a_wrong_call_makes_nothing() {
    let mut lab = Lab::new();
    let list = outcome(&mut bench(&mut lab, &["--list"]));
    assert!(list.code == 0 && list.stdout.contains("get-tasks") && list.stdout.contains("ycsb"), "{}", list.stdout);
    for (arguments, told) in [
        (&["gets"][..], "get-many"),
        (&["--limit", "1MiB"], "too small"),
        (&["--seconds", "0"], "more than zero"),
        (&["--seconds", "nan"], "cell_s"),
        (&["--cache", "1KiB"], "cache"),
        (&["--log", "1"], "log_bytes"),
    ] {
        let ended = outcome(&mut bench(&mut lab, arguments));
        assert_eq!(ended.code, 2, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(told), "{arguments:?}: {}", ended.stderr);
        assert!(!lab.dir.exists(), "{arguments:?}");
    }
}

#[test]
fn a_plan_lists_its_trials_and_measures_nothing() {
    let mut lab = Lab::new();
    let plan = outcome(&mut bench(&mut lab, &["scan", "--plan"]));
    assert!(plan.code == 0 && plan.stdout.contains("engine") && plan.stdout.contains("trials"), "{}", plan.stdout);
    let json = outcome(&mut bench(&mut lab, &["scan", "--plan", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(!json["cells"].as_array().unwrap().is_empty(), "{json}");
    assert!(lab.results().is_empty());
}

#[test]
fn one_ctrl_c_keeps_the_results_so_far_and_leaves_neither_database_nor_process() {
    let mut lab = Lab::new();
    let command = bench(&mut lab, &["get-one", "--seconds", "30", "--verbose"]);
    let mut running = Running::start(command);
    running.until("[1/");
    let children = children_of(running.id());
    running.signal("INT");
    let (code, told) = running.end();
    assert_eq!(code, Some(130), "{told}");
    assert!(told.contains("the results so far are kept"), "{told}");
    assert!(children.iter().all(|pid| !lives(*pid)), "{children:?}");
    let result = lab.only_result();
    assert!(fs::read_to_string(result.join("records.ndjson")).unwrap().contains("\"type\":\"end\""));
    assert_eq!(lab.names().len(), 1, "{:?}", lab.names());
}
