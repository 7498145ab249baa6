//! A history that continues over kills of the process that makes it. It reports over a pipe; a line that was not finished
//! did not happen, and a transaction without a report may have been committed or not.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use nofault::blocking::Db;
use nofault::settings::Settings;

use crate::events::Recorder;
use crate::graph::Counts;
use crate::histories::{Clients, check_lines, create_tables, read_snapshots, run_clients};

/// Environment variable with the folder of the child's database.
const FOLDER: &str = "NOFAULT_CHILD_FOLDER";
/// Environment variable with the number of the child's first transaction, which is also the seed of its random choices.
const FIRST: &str = "NOFAULT_CHILD_FIRST";
/// Bound of the number of transactions that one child makes.
const IDS: u64 = 1 << 20;

fn settings() -> Settings {
    // Small, so that evictions and checkpoints happen.
    Settings { cache_bytes: 1 << 20, log_bytes: 256 << 10, ..Settings::default() }
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_makes_a_history() {
    let (Some(folder), Ok(first)) = (std::env::var_os(FOLDER), std::env::var(FIRST)) else { return };
    let first: u64 = first.parse().unwrap();
    let db = Db::open(&folder, &settings()).unwrap();
    let clients = Arc::new(Clients::new(Recorder::Stdout, first, false));
    run_clients(&db, &clients, &mut Rng::with_seed(first), usize::MAX);
}

/// Runs a child on the database and kills it after `count` lines. Returns the lines.
fn lines_until_killed(folder: &Path, first: u64, count: usize) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["killed::child_that_makes_a_history", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .envs([(FOLDER, folder.as_os_str()), (FIRST, first.to_string().as_ref())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if out.read_line(&mut line).unwrap() == 0 {
            break;
        }
        lines.push(line);
        if lines.len() == count {
            child.kill().unwrap();
        }
    }
    let status = child.wait().unwrap();
    assert!(
        lines.len() >= count,
        "the child ended by itself with {status} after {} lines: {:?}",
        lines.len(),
        lines.last()
    );
    lines
}

pub(crate) fn history_with_kills(seed: u64, kills: u64) -> Counts {
    let mut rng = Rng::with_seed(seed);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("db");
    create_tables(&Db::create(&path, &settings()).unwrap());
    let mut lines = Vec::new();
    for kill in 0..kills {
        let count = [40, 150, 600][rng.usize(..3)];
        lines.extend(lines_until_killed(&path, 1 + kill * IDS, rng.usize(3..count)));
        if rng.bool() {
            let verification = Db::open(&path, &settings()).unwrap().verify().unwrap();
            assert!(verification.is_clean(), "seed {seed}, kill {kill}: {:?}", verification.problems);
        }
    }
    let clients = Clients::new(Recorder::Memory(Mutex::default()), 1 + kills * IDS, false);
    read_snapshots(&Db::open(&path, &settings()).unwrap(), &clients, 1).unwrap();
    lines.extend(clients.recorder.take());
    check_lines(seed, &lines)
}

#[test]
fn a_history_over_kills_of_the_process_is_strictly_serializable() {
    let counts = history_with_kills(1, 6);
    println!("{counts:?}");
    assert!(counts.edges > counts.txns, "{counts:?} is no history to learn from");
}
