//! The command from a user's point of view: the binary is run with tiny sizes, and its exit code, its output and the
//! files it leaves are checked. No test uses the lab's library.
//!
//! A part that needs root, or a user that is not, gives the reason when it is skipped.

#[path = "lab/bench.rs"]
mod bench;
mod common;
#[path = "lab/endings.rs"]
mod endings;
#[path = "lab/flags.rs"]
mod flags;
#[path = "lab/foreign.rs"]
mod foreign;
#[path = "lab/names.rs"]
mod names;
#[path = "lab/own.rs"]
mod own;
#[path = "lab/recorded.rs"]
mod recorded;
#[path = "lab/rings.rs"]
mod rings;
#[path = "lab/sharing.rs"]
mod sharing;

use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Lab, Running, is_root, outcome};
use nofault_sim::depth::by_depth;

/// Runs `nofault lab` in the test's folder, which must be refused with the exit code `code`; returns its messages.
fn refused(lab: &Lab, arguments: &[&str], code: i32) -> String {
    let outcome = lab.run(arguments);
    assert_eq!(outcome.code, code, "{arguments:?}: {}", outcome.stderr);
    assert!(outcome.stderr.contains("nofault: ") || outcome.stderr.contains("error: "), "{}", outcome.stderr);
    outcome.stderr
}

#[test]
fn a_run_ends_with_table_report_and_records_and_leaves_nothing_else() {
    let lab = Lab::new();
    let outcome = lab.run(&["--json", "--verbose"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let summary: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("standard output is JSON alone");
    assert!(summary.is_object(), "{summary}");
    assert!(outcome.stderr.contains("[18/18]"), "{}", outcome.stderr);
    let result = lab.only_result();
    assert!(fs::read_to_string(result.join("report.html")).unwrap().contains("<svg"));
    assert_eq!(lab.names(), [result.file_name().unwrap().to_str().unwrap()], "no data, no lock");

    let table = lab.command(&["report"]).arg(&result).output().unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("async"));
    let list = lab.command(&["list"]).arg(&lab.dir).output().unwrap();
    assert!(String::from_utf8_lossy(&list.stdout).contains(result.file_name().unwrap().to_str().unwrap()));
    let json = lab.command(&["list", "--json"]).arg(&lab.dir).output().unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&json.stdout).unwrap().is_array());
    let same = lab.command(&["compare", "--json"]).args([&result, &result]).output().unwrap();
    assert_eq!(same.status.code(), Some(0), "a result is no worse than itself");
    serde_json::from_slice::<serde_json::Value>(&same.stdout).unwrap();

    // The records are a configuration: they repeat the run.
    let print = |config: &Path| {
        let output = lab.bare(&["--print-config", "--config"]).arg(config).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let from_records = print(&result.join("records.ndjson"));
    let file = lab.outer.path().join("printed.toml");
    fs::write(&file, &from_records).unwrap();
    assert_eq!(print(&file), from_records);
    assert!(from_records.contains("touches = 8"), "{from_records}");
}

#[test]
fn a_verdict_names_answers_assumptions_and_unmeasured_rules() {
    let lab = Lab::measured();
    let result = lab.only_result();
    let judged = |arguments: &[&str]| outcome(lab.command(&["verdict"]).arg(&result).args(arguments));
    let words = judged(&["--workload-threads", "3", "--needs-transactions", "--latency-matters=false"]);
    assert_eq!(words.code, 0, "{}", words.stderr);
    for part in [
        "You said: in transactions, slow answers do not matter, 3 threads.",
        "Assumed: larger than memory, updated.",
        "not measured:",
    ] {
        assert!(words.stdout.contains(part), "{part}: {}", words.stdout);
    }
    let json: serde_json::Value =
        serde_json::from_str(&judged(&["--json", "--read-only", "--fits-in-memory"]).stdout).unwrap();
    assert_eq!(json["advice"], "no_answer", "the tiny run measured only async: {json}");
    assert_eq!(json["said"]["read_only"], true);
    assert_eq!(judged(&["--workload-threads", "0"]).code, 2);

    // The description of the workload given to a run is used by its own verdict and report, and is the default of later
    // verdicts.
    let run = lab.run(&["--read-only", "--fits-in-memory=false", "--workload-threads", "5"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let about = "larger than memory, only read, 5 threads";
    assert!(run.stdout.contains(&format!("You said: {about}.")), "{}", run.stdout);
    let folder = lab.results().pop().unwrap();
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains(&format!("Said of the workload: {about}.")));
    let again = outcome(lab.command(&["verdict"]).arg(&folder).args(["--no-questions", "--workload-threads", "2"]));
    assert!(again.stdout.contains("You said: larger than memory, only read, 2 threads."), "{}", again.stdout);
    refused(&lab, &["verdict", "/nowhere"], 2);
}

#[test]
fn a_plan_touches_nothing() {
    let lab = Lab::new();
    let outcome = lab.run(&["--plan"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stdout.contains("18 trials") && outcome.stdout.contains("may be used"), "{}", outcome.stdout);
    // A plan is output asked for, so it is printed even with --quiet, and as JSON with --json.
    assert!(lab.run(&["--plan", "--quiet"]).stdout.contains("18 trials"));
    let json: serde_json::Value = serde_json::from_str(&lab.run(&["--plan", "--json"]).stdout).unwrap();
    assert_eq!(json["cells"].as_array().map(Vec::len), Some(18), "{json}");
    assert!(json["time_s"].as_f64().is_some_and(|time| time > 0.0) && json["left_out"].is_array(), "{json}");
    assert!(!lab.dir.exists());
    // The data that an earlier run was told to keep is not deleted either.
    assert_eq!(lab.run(&["--keep-data"]).code, 0);
    let kept = lab.dir.join("async-0.data");
    assert!(kept.exists());
    assert_eq!(lab.run(&["--plan"]).code, 0);
    refused(&lab, &["access", "--size", "100T", "--memory-method", "large-file"], 4);
    assert!(kept.exists());
}

#[test]
fn the_flag_for_repeats_applies_to_every_experiment() {
    let lab = Lab::new();
    let output = lab.bare(&["--repeats", "7", "--print-config"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines = |wanted: &str| printed.lines().filter(|line| *line == wanted).count();
    assert_eq!(
        (lines("repeats = 7"), lines("runs = 7")),
        (5, 1),
        "its own, and crossover's, load's, rss's, engines' and async's: {printed}"
    );
}

#[test]
fn the_flag_for_seconds_applies_to_every_experiment_with_timed_trials() {
    let lab = Lab::new();
    let output = lab.bare(&["--seconds", "7.5", "--print-config"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let others: Vec<&str> =
        printed.lines().filter(|line| line.contains("cell_s = ") && !line.ends_with(" 7.5")).collect();
    assert_eq!(others, Vec::<&str>::new(), "{printed}");
    for times in ["[random]\ncell_s = 7.5\n", "ram_cell_s = 7.5\n", "[claims]\ncell_s = 7.5\n"] {
        assert!(printed.contains(times), "{times}: {printed}");
    }
}

#[test]
fn a_plan_names_the_memory_that_its_own_trials_have() {
    let lab = Lab::new();
    let planned =
        |arguments: &[&str]| outcome(lab.command_in_dir(&["--plan", "--memory-method", "auto"]).args(arguments));
    let engines = planned(&["engines"]);
    assert_eq!(engines.code, 0, "{}", engines.stderr);
    if engines.stdout.contains("data larger than memory:") {
        println!("left out: memory cannot be limited here");
        return;
    }
    assert!(
        engines.stdout.contains("96 MiB") && !engines.stdout.contains("no trial needs a limit"),
        "{}",
        engines.stdout
    );
    let asked = planned(&["engines", "--size", "128M", "--memory", "48M"]);
    assert!(
        asked.stdout.contains("engines: 48 MiB by") || asked.stdout.contains("memory     48 MiB"),
        "{}{}",
        asked.stdout,
        asked.stderr
    );
    let errors = planned(&["errors", "--size", "64M", "--set", "async.open_questions=true"]);
    assert!(errors.stdout.contains("no trial needs a limit"), "{}{}", errors.stdout, errors.stderr);
    assert!(!errors.stdout.contains("zram"), "no device for an experiment that has no trials there: {}", errors.stdout);
}

/// Faults and stalls are measured by child processes, as in a user's run.
#[test]
fn errors_and_stalls_run_tiny_with_every_answer_in_the_table() {
    let lab = Lab::new();
    let config = lab.outer.path().join("faults.toml");
    let tiny = fs::read_to_string(&lab.config).unwrap();
    let tiny = tiny.replace("'async'", "'errors', 'stalls'").replace("[async]", "pool = 'off'\n[async]");
    fs::write(&config, tiny + "[errors]\ncell_s = 0.02\nworking_sets = [1048576]\n[stalls]\ncell_s = 0.05\n").unwrap();
    let run = outcome(lab.bare(&["--config"]).arg(&config));
    assert_eq!(run.code, 0, "{}", run.stderr);
    for words in ["SIGBUS", "an error", "wrong data"] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    let words = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.contains("Not measured: stalls: memory cannot be limited here") {
        println!("stalls and the price of checks were left out: memory cannot be limited here\n{}", run.stderr);
    } else {
        for words in ["checked at every access", "MADV_WILLNEED", "longest"] {
            assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
        }
    }
    assert_eq!(lab.names(), [lab.only_result().file_name().unwrap().to_str().unwrap()], "nothing is left behind");
}

/// In a terminal, questions without a flag are asked; `script` provides the terminal.
#[test]
fn a_verdict_in_a_terminal_asks_the_questions_that_no_flag_answers() {
    let lab = Lab::measured();
    let command = format!(
        "{} lab verdict {} --read-only=false --latency-matters=true",
        env!("CARGO_BIN_EXE_nofault"),
        lab.only_result().display()
    );
    let mut script = std::process::Command::new("script");
    script
        .args(["-qec", &command, "/dev/null"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let Ok(mut child) = script.spawn() else {
        println!("left out: there is no program 'script' to make a terminal");
        return;
    };
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"maybe\nn\ny\n0\n12\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    for words in ["fit in memory? [y or n; empty: unknown]", "'maybe' is not y or n.", "'0' is not a number from 1 on."]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("only read, never written?") && !said.contains("a slow answer now and then"), "{said}");
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("larger than memory, updated, in transactions, slow answers matter, 12 threads"), "{said}");
}

#[test]
fn a_bad_configuration_is_named_by_line_and_name() {
    let lab = Lab::new();
    let file = lab.outer.path().join("bad.toml");
    for (text, word) in [
        ("repeats = = 2", "line 1"),
        ("[random]\nthread = [7]", "random.thread"),
        ("repeats = 'two'", "repeats"),
        ("experiments = ['nothing']", "nothing"),
    ] {
        fs::write(&file, text).unwrap();
        let outcome = outcome(lab.bare(&["--plan", "--config"]).arg(&file));
        assert_eq!(outcome.code, 2, "{text}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(word), "{text}: {}", outcome.stderr);
    }
}

#[test]
fn every_exit_code_of_the_help_is_there() {
    let lab = Lab::new();
    let help = outcome(&mut lab.command(&["--help"]));
    assert_eq!(help.code, 0);
    for part in ["0  done", "2  wrong call", "5  in use", "130  interrupted"] {
        assert!(help.stdout.contains(part), "{part}: {}", help.stdout);
    }
    assert!(help.stdout.lines().all(|line| line.chars().count() <= 120), "{}", help.stdout);
}

#[test]
fn data_larger_than_the_free_disk_is_refused_before_anything_is_made() {
    let lab = Lab::new();
    let stderr = refused(&lab, &["access", "--size", "100T", "--memory-method", "large-file"], 4);
    assert!(stderr.contains("100 TiB") && stderr.contains("less"), "{stderr}");
    assert!(!lab.dir.exists());
}

#[test]
fn a_folder_that_may_not_be_written_is_refused_with_the_next_step() {
    let lab = Lab::new();
    fs::create_dir(&lab.dir).unwrap();
    fs::set_permissions(&lab.dir, fs::Permissions::from_mode(0o555)).unwrap();
    let Some(mut command) = lab.as_nobody(&[]) else { return };
    let outcome = outcome(&mut command);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--dir"), "{}", outcome.stderr);
}

#[test]
fn a_user_without_rights_gets_a_run() {
    let lab = Lab::new();
    fs::create_dir(&lab.dir).unwrap();
    fs::set_permissions(&lab.dir, fs::Permissions::from_mode(0o777)).unwrap();
    let Some(mut command) = lab.as_nobody(&[]) else { return };
    let ended = outcome(&mut command);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(lab.only_result().join("report.html").exists());
    if !is_root() {
        eprintln!("skipped: this user may have its own cgroup, so what follows is not known");
        return;
    }
    // No cgroup, and the data is too small for a ballast: experiments needing a limit are skipped with the reason,
    // the others run.
    let Some(mut command) = lab.as_nobody(&["access", "async"]) else { return };
    let ended = outcome(&mut command);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let records = fs::read_to_string(lab.results()[1].join("records.ndjson")).unwrap();
    let skipped = |line: &&str| line.contains("\"access\"") && line.contains("memory cannot be limited here");
    assert_eq!(records.lines().filter(skipped).count(), 1, "{records}");
    for (arguments, word) in [
        (["access", "--memory-method", "auto"], "nothing can be measured here"),
        (["access", "--memory-method", "cgroup"], "no memory cgroup may be made"),
    ] {
        let Some(mut command) = lab.as_nobody(&arguments) else { return };
        let ended = outcome(&mut command);
        assert_eq!(ended.code, 3, "{}", ended.stderr);
        assert!(ended.stderr.contains(word), "{}", ended.stderr);
    }
}

#[test]
fn every_experiment_gives_a_user_without_rights_trials_or_a_reason() {
    let lab = Lab::new();
    fs::create_dir(&lab.dir).unwrap();
    fs::set_permissions(&lab.dir, fs::Permissions::from_mode(0o777)).unwrap();
    let experiments = [
        "random",
        "scan",
        "crossover",
        "batch",
        "load",
        "rss",
        "safety",
        "stalls",
        "errors",
        "eviction",
        "translate",
        "engines",
        "claims",
    ];
    let tiny = [
        "pool=off",
        "random.cell_s=0.1",
        "scan.cell_s=0.1",
        "crossover.cell_s=0.1",
        "batch.cell_s=0.1",
        "load={ cell_s = 0.1, file_bytes = 8388608, repeats = 1 }",
        "stalls.cell_s=0.1",
        "safety={ cell_s = 0.05, keys = 200, writers = [2] }",
        "errors={ cell_s = 0.02, working_sets = [1048576] }",
        "eviction={ part_s = 0.02, cell_s = 0.1, fault_bytes = 1048576 }",
        "translate={ cell_s = 0.02, working_set_bytes = [2097152] }",
        "engines={ cell_s = 0.05, repeats = 1, fit_data_bytes = 1048576, fit_memory_bytes = 67108864 }",
        "claims={ cell_s = 0.02, reader_updates = 500, reader_keys = 100, copied_pages = [16, 64] }",
    ];
    // Later settings replace earlier ones.
    let shorter: &[&str] = by_depth(&["engines.cell_s=0.02", "eviction.cell_s=0.03"], &[]);
    let mut arguments = experiments.to_vec();
    tiny.iter().chain(shorter).for_each(|assignment| arguments.extend(["--set", *assignment]));
    let Some(mut command) = lab.as_nobody(&arguments) else { return };
    let ended = outcome(&mut command);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let records = fs::read_to_string(lab.only_result().join("records.ndjson")).unwrap();
    for experiment in experiments {
        let named = format!("\"experiment\":\"{experiment}\"");
        let (trials, skips): (Vec<&str>, Vec<&str>) =
            records.lines().filter(|line| line.contains(&named)).partition(|line| line.contains("\"type\":\"cell\""));
        assert!(trials.len() + skips.len() > 0, "{experiment}: {}", ended.stderr);
        assert!(skips.iter().all(|line| !line.contains("\"reason\":\"\"")), "{experiment}: {skips:?}");
    }
    assert_eq!(lab.names().len(), 1, "no data, no lock: {:?}", lab.names());
}

#[test]
fn a_foreign_file_in_the_way_is_left_alone() {
    let lab = Lab::new();
    fs::create_dir(&lab.dir).unwrap();
    let foreign = lab.dir.join("async-0.data");
    fs::write(&foreign, "precious").unwrap();
    let stderr = refused(&lab, &[], 6);
    assert!(stderr.contains("async-0.data"), "{stderr}");
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "precious");
    assert_eq!(lab.names(), ["async-0.data"], "no result of nothing, no lock");
}

#[test]
fn a_folder_for_the_result_that_exists_is_not_written_to() {
    let lab = Lab::new();
    let out = lab.outer.path().join("out");
    let stderr = |code| refused(&lab, &["--out", out.to_str().unwrap()], code);
    fs::create_dir(&out).unwrap();
    assert!(stderr(2).contains("never overwritten"));
    fs::remove_dir(&out).unwrap();
    assert_eq!(lab.run(&["--out", out.to_str().unwrap()]).code, 0);
    assert!(out.join("records.ndjson").exists());
    assert!(!lab.dir.exists(), "made by the lab, and nothing of it stays there");
}

#[test]
fn damaged_records_are_named_by_line() {
    let lab = Lab::measured();
    let records = lab.only_result().join("records.ndjson");
    let text = fs::read_to_string(&records).unwrap();
    let damaged = lab.outer.path().join("records.ndjson");
    let mut lines: Vec<&str> = text.lines().collect();
    lines[2] = "{\"cell\": rubbish";
    fs::write(&damaged, lines.join("\n")).unwrap();
    for arguments in [
        ["report", damaged.to_str().unwrap()].as_slice(),
        &["compare", records.to_str().unwrap(), damaged.to_str().unwrap()],
    ] {
        let outcome = outcome(&mut lab.command(arguments));
        assert_eq!(outcome.code, 6, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("records.ndjson:3:"), "{}", outcome.stderr);
    }
    assert!(!damaged.with_file_name("report.html").exists());
}

#[test]
fn ctrl_c_keeps_the_results_so_far() {
    let lab = Lab::new();
    let mut running = Running::start(lab.command_in_dir(&["--verbose", "--config", lab.endless().to_str().unwrap()]));
    running.until("[1/");
    running.signal("INT");
    let (code, stderr) = running.end();
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("the results so far are kept"), "{stderr}");
    let result = lab.only_result();
    let records = fs::read_to_string(result.join("records.ndjson")).unwrap();
    assert!(records.lines().last().unwrap().contains("\"complete\":false"), "{records}");
    assert!(records.contains("\"contender\":\"async-mmap\""));
    assert_eq!(outcome(lab.command(&["report"]).arg(&result)).code, 0);
    assert_eq!(lab.names().len(), 1, "no data, no lock: {:?}", lab.names());
}

#[test]
fn files_of_a_killed_lab_are_removed_by_the_next_start() {
    let lab = Lab::new();
    let endless = lab.endless();
    // With a memory cgroup and a device of RAM where they are available; without rights only the files can be left.
    let mut arguments = vec!["--verbose", "--config", endless.to_str().unwrap()];
    if is_root() {
        arguments.extend(["access", "--seconds", "0.2", "--repeats", "1000", "--ram-device", "auto"]);
    } else {
        eprintln!("not root: only files are left behind, no cgroup, no device");
    }
    let mut running = Running::start(lab.command_in_dir(&arguments));
    let pid = running.id();
    running.until("[1/");
    let trials = common::children_of(pid);
    running.signal("KILL");
    running.end();
    assert!(lab.names().iter().any(|name| name.ends_with(".data")), "{:?}", lab.names());
    assert_eq!(lab.run(&[]).code, 0);
    assert!(lab.names().iter().all(|name| name.starts_with("20")), "{:?}", lab.names());
    let entries = fs::read_dir("/run/nofault-lab").into_iter().flatten().flatten();
    let left: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.display().to_string().contains(&format!(".{pid}-")))
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new());
    // The death of their lab kills them, after a time that the kernel decides.
    let mut tries = 0;
    while trials.iter().any(|pid| common::lives(*pid)) {
        tries += 1;
        assert!(tries < 500, "trials end with their lab: {trials:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // Its records so far can be shown.
    let killed = lab.results().remove(0);
    let report = outcome(lab.command(&["report"]).arg(killed));
    assert_eq!(report.code, 0, "{}", report.stderr);
}

#[test]
fn a_second_lab_in_the_folder_is_refused_with_the_process_id_of_the_first() {
    let lab = Lab::new();
    let mut running = Running::start(lab.command_in_dir(&["--verbose", "--config", lab.endless().to_str().unwrap()]));
    running.until("[1/");
    let stderr = refused(&lab, &[], 5);
    assert!(stderr.contains(&format!("process {}", running.id())), "{stderr}");
    running.signal("TERM");
    assert_eq!(running.end().0, Some(130));
    assert_eq!(lab.run(&["--plan"]).code, 0, "the folder is free again");
}

#[test]
fn a_result_that_is_worse_sets_the_exit_code() {
    let lab = Lab::measured();
    let good = lab.only_result().join("records.ndjson");
    let slow = lab.outer.path().join("slow.ndjson");
    let slower = |line: &str| {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        if let Some(time) = record.pointer_mut("/outcome/elapsed_s") {
            *time = (time.as_f64().unwrap() * 1000.0).into();
        }
        record.to_string()
    };
    let lines: Vec<String> = fs::read_to_string(&good).unwrap().lines().map(slower).collect();
    fs::write(&slow, lines.join("\n") + "\n").unwrap();
    let compare = |a: &Path, b: &Path| outcome(lab.command(&["compare"]).args([a, b]));
    let worse = compare(&good, &slow);
    assert_eq!(worse.code, 1, "{}{}", worse.stdout, worse.stderr);
    assert!(worse.stdout.contains("worse"), "{}", worse.stdout);
    let better = compare(&slow, &good);
    assert_eq!(better.code, 0, "{}{}", better.stdout, better.stderr);
    assert!(better.stdout.contains("better"), "{}", better.stdout);
    let json = outcome(lab.command(&["compare", "--json"]).args([&good, &slow]));
    assert_eq!((json.code, serde_json::from_str::<serde_json::Value>(&json.stdout).is_ok()), (1, true));
    assert_eq!(outcome(lab.command(&["compare", "--threshold", "nan"]).args([&good, &slow])).code, 2);
}

#[test]
fn wrong_data_and_failed_trials_have_exit_codes_of_their_own() {
    let lab = Lab::new();
    if !is_root() {
        eprintln!("skipped: only root opens devices");
        return;
    }
    let Some(device) = common::Loop::new(lab.outer.path()) else { return };
    let prepared = outcome(&mut lab.command(&["prepare-device", &device.path, "--erase", &device.path]));
    assert_eq!(prepared.code, 0, "{}", prepared.stderr);
    let run = || lab.run(&["--set", "async.open_questions=true", "--device", &device.path]);
    let good = run();
    assert_eq!(good.code, 0, "{}", good.stderr);
    // Erase everything but the marker.
    let blocks = fs::File::options().write(true).open(&device.path).unwrap();
    blocks.write_all_at(&vec![0; 64 << 20], 4096).and_then(|()| blocks.sync_all()).unwrap();
    drop(blocks);
    let wrong = run();
    assert_eq!(wrong.code, 8, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("other content than was written there"), "{}", wrong.stderr);
    // The device cannot read beyond the end of its backing file.
    fs::File::options().write(true).open(lab.outer.path().join("image")).unwrap().set_len(1 << 20).unwrap();
    let failed = run();
    assert_eq!(failed.code, 9, "{}", failed.stderr);
    assert!(failed.stderr.contains("failed: ") || failed.stderr.contains("trials failed"), "{}", failed.stderr);
}

#[test]
fn a_mounted_device_and_an_unmarked_one_are_refused() {
    let lab = Lab::new();
    if !is_root() {
        eprintln!("skipped: only root opens devices");
        return;
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_device = |path: &&str| {
        path.starts_with("/dev/") && fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
    };
    match mounts.lines().filter_map(|line| line.split(' ').next()).find(is_device) {
        Some(device) => assert!(
            refused(&lab, &["--set", "async.open_questions=true", "--device", device], 5).contains("is mounted at")
        ),
        None => eprintln!("skipped: no mount of a block device is seen here"),
    }
    let Some(device) = common::Loop::new(lab.outer.path()) else { return };
    let stderr = refused(&lab, &["--set", "async.open_questions=true", "--device", &device.path], 6);
    assert!(stderr.contains("prepare-device") && stderr.contains("--unmarked-devices"), "{stderr}");
    let mistyped = outcome(&mut lab.command(&["prepare-device", &device.path, "--erase", "/dev/other"]));
    assert_eq!(mistyped.code, 2, "{}", mistyped.stderr);
    let plan = |flags: &[&str]| {
        lab.run(&[flags, &["--plan", "--set", "async.open_questions=true", "--device", &device.path]].concat()).code
    };
    assert_eq!(plan(&["--unmarked-devices"]), 0);
    let prepared = outcome(&mut lab.command(&["prepare-device", &device.path, "--erase", &device.path]));
    assert_eq!(prepared.code, 0, "{}", prepared.stderr);
    assert_eq!(plan(&[]), 0);
}

#[test]
fn the_doctor_answers_for_people_and_programs() {
    let lab = Lab::new();
    let dir = lab.outer.path().to_str().unwrap();
    // Both at the same time, in separate folders: most of it is waiting.
    let apart = tempfile::tempdir().unwrap();
    let mut asked = lab.command(&["doctor", "--json", "--dir", apart.path().to_str().unwrap()]);
    let (text, json) = std::thread::scope(|scope| {
        let json = scope.spawn(|| outcome(&mut asked));
        (outcome(&mut lab.command(&["doctor", "--dir", dir])), json.join().unwrap())
    });
    assert_eq!(text.code, 0, "{}", text.stderr);
    assert!(text.stdout.contains("memory cgroup") && text.stdout.contains("ballast"), "{}", text.stdout);
    assert!(serde_json::from_str::<serde_json::Value>(&json.stdout).unwrap().is_object(), "{}", json.stdout);
    assert_eq!(fs::read_dir(dir).unwrap().flatten().filter(|entry| entry.path() != lab.config).count(), 0);
    assert_eq!(fs::read_dir(apart.path()).unwrap().count(), 0);
}

#[test]
fn a_run_continues_when_the_reader_of_its_output_ends() {
    let lab = Lab::new();
    let mut shell = Command::new("sh");
    let line = format!(
        "'{}' lab --config '{}' --dir '{}' 2>&1 | head -n 1",
        env!("CARGO_BIN_EXE_nofault"),
        lab.config.display(),
        lab.dir.display()
    );
    outcome(shell.args(["-c", &line]));
    assert!(lab.only_result().join("report.html").exists());
}
