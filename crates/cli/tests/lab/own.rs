//! `nofault lab --file`: experiments over a file of the user's, which is only read.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::fs;
use std::path::PathBuf;

use nofault_sim::depth::by_depth;

use crate::common::{Lab, is_root, outcome};

/// Makes a file of 64 MiB in which no byte is the lab's.
fn own_file(lab: &Lab) -> PathBuf {
    let path = lab.outer.path().join("my.db");
    let bytes: Vec<u8> =
        (0..(1_u32 << 20) / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(&path, bytes.repeat(64)).unwrap();
    path
}

#[test]
fn a_file_of_the_users_is_read_by_the_experiments_that_only_read_and_is_the_same_afterwards() {
    let lab = Lab::new();
    let path = own_file(&lab);
    let before = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
    if !is_root() {
        eprintln!("skipped: without root it is not known whether memory can be limited");
        return;
    }
    let mut command =
        lab.bare(&["--file", path.to_str().unwrap(), "--memory", "32MiB", "--ram-device", "off", "--fio", "off"]);
    command.args(["--seconds", "0.1", "--repeats", "1", "--threads", "2", "--set", "crossover.data_per_memory=[0.5]"]);
    command.args(["--set", "random.depths=[2]", "--set", "scan.depths=[2]"]);
    // A later flag would be refused; a setting replaces the flag's value.
    let shorter: &[&str] = by_depth(&["random.cell_s=0.02", "scan.cell_s=0.02", "crossover.cell_s=0.02"], &[]);
    let ended = outcome(command.args(shorter.iter().flat_map(|assignment| ["--set", assignment])));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(before == (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap()), "it changed");
    let records = fs::read_to_string(lab.only_result().join("records.ndjson")).unwrap();
    for experiment in ["random", "scan", "crossover"] {
        let trials = records.lines().filter(|line| {
            line.contains("\"type\":\"cell\"") && line.contains(&format!("\"experiment\":\"{experiment}\""))
        });
        let trials: Vec<&str> = trials.collect();
        assert!(
            !trials.is_empty() && trials.iter().all(|line| line.contains("my.db")),
            "{experiment}: {}",
            ended.stderr
        );
    }
    assert!(records.contains("the data is the user's own file"), "a note says so");
}

#[test]
fn an_experiment_that_writes_its_data_refuses_a_file_of_the_users() {
    let lab = Lab::new();
    let path = own_file(&lab);
    let name = path.to_str().unwrap();
    for experiments in [vec!["access"], vec!["random", "access"], vec!["stalls", "scan"]] {
        let refused = outcome(lab.bare(&experiments).args(["--file", name, "--plan"]));
        assert_eq!(refused.code, 2, "{experiments:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("it is for random, scan and crossover"), "{}", refused.stderr);
    }
    for (arguments, word) in [(["--file", "/nowhere"], "/nowhere"), (["--file", "/dev/null"], "--device")] {
        let refused = outcome(lab.bare(&arguments).args(["--plan"]));
        assert!(refused.code != 0 && refused.stderr.contains(word), "{}", refused.stderr);
    }
    assert!(!lab.dir.exists() || lab.names().is_empty());
}
