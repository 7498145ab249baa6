//! The printed seed of a failure is enough to see it again: a history repeats to the last call.

use std::process::Command;

use crate::power_cuts::lives;
use crate::story::for_each_seed;

const LIVES: usize = 40;

/// Runs the same seed here, among other tests, and alone in a separate process, and compares the traces.
#[test]
fn a_seed_repeats_its_history_to_the_last_call_in_whatever_process() {
    for seed in [3, 11, 12, 14] {
        let here = format!("{:?}", lives(seed, LIVES));
        let alone = Command::new(std::env::current_exe().unwrap())
            .args([
                "repeat::child_that_prints_the_trace_of_a_history",
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("NOFAULT_SEED", seed.to_string())
            .output()
            .unwrap();
        let alone = String::from_utf8_lossy(&alone.stdout).into_owned();
        let alone = alone.lines().find_map(|line| line.split_once("history: ")).map(|(_, history)| history.to_owned());
        assert_eq!(alone, Some(here.clone()), "seed {seed}");
        println!("seed {seed}, twice: {here}");
    }
}

#[test]
#[ignore = "told to by the test above"]
fn child_that_prints_the_trace_of_a_history() {
    for_each_seed("child_that_prints_the_trace_of_a_history", [3], |seed| {
        println!("\nhistory: {:?}", lives(seed, LIVES))
    });
}
