//! A process is killed again and again while it writes: all commits that it had reported are there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use nofault::blocking::Db;
use nofault::settings::Settings;
use nofault::{Batch, Durability};

use crate::{FOLDER, child, folder};

const KILLS: u64 = 12;
const KEYS: u64 = 300;

fn settings() -> Settings {
    // Small, so that evictions and checkpoints happen.
    Settings { cache_bytes: 1 << 20, log_bytes: 256 << 10, ..Settings::default() }
}

/// Returns the writes of commit `commit`: the same in the child and in the process that checks.
fn writes_of(commit: u64) -> Vec<(u64, Vec<u8>)> {
    let mut rng = fastrand::Rng::with_seed(commit);
    (0..rng.usize(1..8)).map(|_| (rng.u64(..KEYS), vec![commit as u8; rng.usize(8..1500)])).collect()
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_writes() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = Db::open(&folder, &settings()).unwrap();
    let table = db.table("t").unwrap();
    let mut commit = table.get("commit").unwrap().map_or(0, |n| u64::from_le_bytes(n.try_into().unwrap()));
    loop {
        commit += 1;
        let mut batch = Batch::new();
        for (key, value) in writes_of(commit) {
            batch.put(&table, key.to_be_bytes(), value);
        }
        batch.put(&table, "commit", commit.to_le_bytes());
        db.write(batch, Durability::Sync).unwrap();
        // One write to a pipe: whole or missing.
        std::io::stdout().write_all(format!("committed {commit}\n").as_bytes()).unwrap();
    }
}

#[test]
fn a_killed_process_leaves_every_commit_that_it_reported() {
    let folder = folder();
    let path = folder.path().join("db");
    Db::create(&path, &settings()).unwrap().create_table("t").unwrap();
    let (mut model, mut applied): (BTreeMap<u64, Vec<u8>>, u64) = (BTreeMap::new(), 0);
    for round in 0..KILLS {
        let mut child = child("kill::child_that_writes", &path, &[]);
        let out = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            // The harness prints before it, on the same line perhaps.
            lines.filter_map(|line| line.rsplit_once("committed ")?.1.parse::<u64>().ok()).last()
        });
        std::thread::sleep(Duration::from_millis(60 + 40 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let reported = reader.join().unwrap();

        let db = Db::open(&path, &settings()).unwrap();
        let table = db.table("t").unwrap();
        let last = table.get("commit").unwrap().map_or(0, |n| u64::from_le_bytes(n.try_into().unwrap()));
        assert!(last >= reported.unwrap_or(0), "round {round}: {reported:?} was reported, {last} survived");
        for commit in applied + 1..=last {
            model.extend(writes_of(commit));
        }
        applied = last;
        for key in 0..KEYS {
            let found = table.get(key.to_be_bytes()).unwrap();
            assert!(found.as_ref() == model.get(&key), "round {round}, commit {last}: key {key} is another value");
        }
        let verification = db.verify().unwrap();
        assert!(verification.is_clean(), "round {round}: {:?}", verification.problems);
    }
    println!("{KILLS} kills, {applied} commits");
    assert!(applied > 0, "no child ever got to a commit");
}
