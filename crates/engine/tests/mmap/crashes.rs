//! Killed processes and lost sectors: every acknowledged commit is there, and nothing of commits that were not.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nofault::mmap::{Batch, Protocol, Settings};
use nofault_sim::content::Rows;

use crate::{PROTOCOLS, content, create, folder, open, tiny};

const FOLDER: &str = "NOFAULT_MMAP_FOLDER";
const PROTOCOL: &str = "NOFAULT_MMAP_PROTOCOL";
const KILLS: u64 = 3;
const KEYS: u64 = 200;
const SECTOR: usize = 512;

/// Returns the changes of commit `commit`: the same in the child and in the process that checks.
fn writes_of(commit: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut rng = fastrand::Rng::with_seed(commit);
    let write = |rng: &mut fastrand::Rng| {
        let len = [8, 60, 700, 3000][rng.usize(..4)];
        (format!("{:04}", rng.u64(..KEYS)).into_bytes(), rng.bool().then(|| vec![commit as u8; len]))
    };
    (0..rng.usize(1..8)).map(|_| write(&mut rng)).collect()
}

fn batch_of(commit: u64) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in writes_of(commit) {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        };
    }
    batch.put("commit", commit.to_le_bytes());
    batch
}

fn follow(model: &mut Rows, commit: u64) {
    for (key, value) in writes_of(commit) {
        match value {
            Some(value) => drop(model.insert(key, value)),
            None => drop(model.remove(&key)),
        }
    }
    model.insert(b"commit".to_vec(), commit.to_le_bytes().to_vec());
}

fn commit_in(model: &Rows) -> u64 {
    model.get(b"commit".as_slice()).map_or(0, |n| u64::from_le_bytes(n[..].try_into().unwrap()))
}

fn settings(protocol: Protocol) -> Settings {
    Settings { background_thread: true, ..tiny(protocol) }
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_writes() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let which: usize = std::env::var(PROTOCOL).unwrap().parse().unwrap();
    let store = open(Path::new(&folder), &settings(PROTOCOLS[which])).unwrap();
    let mut commit = commit_in(&content(&store));
    loop {
        commit += 1;
        store.write(&batch_of(commit)).unwrap();
        // One write to a pipe: whole or missing.
        std::io::stdout().write_all(format!("committed {commit}\n").as_bytes()).unwrap();
    }
}

#[test]
fn a_killed_process_leaves_every_commit_that_it_reported() {
    for (which, protocol) in PROTOCOLS.into_iter().enumerate() {
        let folder = folder();
        drop(create(folder.path(), &settings(protocol)).unwrap());
        let (mut model, mut applied) = (Rows::new(), 0);
        for round in 0..KILLS {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["crashes::child_that_writes", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
                .env(FOLDER, folder.path())
                .env(PROTOCOL, which.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let out = child.stdout.take().unwrap();
            let reader = std::thread::spawn(move || {
                let lines = BufReader::new(out).lines().map_while(Result::ok);
                lines.filter_map(|line| line.rsplit_once("committed ")?.1.parse::<u64>().ok()).last()
            });
            std::thread::sleep(Duration::from_millis(60 + 50 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            let reported = reader.join().unwrap().unwrap_or(0);

            let store = open(folder.path(), &settings(protocol)).unwrap();
            let found = content(&store);
            let last = commit_in(&found);
            assert!(last >= reported, "{protocol:?}, round {round}: {reported} was reported, {last} survived");
            (applied + 1..=last).for_each(|commit| follow(&mut model, commit));
            applied = last;
            assert!(found == model, "{protocol:?}, round {round}: not the state of commit {last}");
            store.verify().unwrap();
        }
        assert!(applied > 0, "{protocol:?}: no child ever got to a commit");
        println!("{protocol:?}: {KILLS} kills, {applied} commits");
    }
}

/// Returns the file `before` with random sectors replaced by the sectors of `after`; the pages of `keep` stay
/// unchanged.
fn mixed(before: &[u8], after: &[u8], keep: std::ops::Range<usize>, rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut mixture = before.to_vec();
    for at in (0..mixture.len()).step_by(SECTOR).filter(|at| !keep.contains(at)) {
        if rng.bool() {
            mixture[at..at + SECTOR].copy_from_slice(&after[at..at + SECTOR]);
        }
    }
    mixture
}

#[test]
fn with_any_unsynced_sectors_lost_the_log_makes_the_file_whole() {
    for protocol in PROTOCOLS.into_iter().filter(|protocol| !matches!(protocol, Protocol::Shadow(_))) {
        for (seed, page_bytes) in [(1, 512), (2, 4096), (3, 4096)] {
            let (life, image) = (folder(), folder());
            // So much log that no checkpoint comes between.
            let settings = Settings { page_bytes, log_bytes: 16 << 20, ..settings(protocol) };
            let store = create(life.path(), &settings).unwrap();
            let (mut model, mut rng) = (Rows::new(), fastrand::Rng::with_seed(seed));
            let mut commit = 0;
            let mut live = |model: &mut Rows, commits: u64| {
                for _ in 0..commits {
                    commit += 1;
                    store.write(&batch_of(commit)).unwrap();
                    follow(model, commit);
                }
            };
            live(&mut model, 30);
            store.checkpoint().unwrap();
            let before = std::fs::read(life.path().join("data")).unwrap();
            for _ in 0..4 {
                live(&mut model, 10);
                // The background thread writes the pages to the page cache, without a sync.
                for _ in 0..200 {
                    if store.stats().waiting_pages == 0 {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                let after = std::fs::read(life.path().join("data")).unwrap();
                let metas = before[..2 * page_bytes] == after[..2 * page_bytes];
                assert!(metas, "a checkpoint came between: the test needs more log");
                assert!(before != after, "nothing reached the file");
                std::fs::copy(life.path().join("log"), image.path().join("log")).unwrap();
                std::fs::write(image.path().join("data"), mixed(&before, &after, 0..0, &mut rng)).unwrap();
                for _ in 0..2 {
                    let reopened = open(image.path(), &settings).unwrap();
                    assert!(content(&reopened) == model, "{protocol:?}, seed {seed}");
                    reopened.verify().unwrap();
                }
            }
        }
    }
}

#[test]
fn a_checkpoint_that_was_cut_leaves_the_one_before_and_its_log() {
    for protocol in PROTOCOLS.into_iter().filter(|protocol| !matches!(protocol, Protocol::Shadow(_))) {
        for (seed, page_bytes) in [(1, 512), (2, 4096)] {
            let (life, image) = (folder(), folder());
            let settings = Settings { page_bytes, log_bytes: 16 << 20, ..settings(protocol) };
            let store = create(life.path(), &settings).unwrap();
            let (mut model, mut rng) = (Rows::new(), fastrand::Rng::with_seed(seed));
            let data = |folder: &tempfile::TempDir| folder.path().join("data");
            let mut before = std::fs::read(data(&life)).unwrap();
            for round in 0..6 {
                for commit in round * 20 + 1..=round * 20 + 20 {
                    store.write(&batch_of(commit)).unwrap();
                    follow(&mut model, commit);
                }
                // As while a checkpoint is being made: pages that it frees are not used again before it is durable.
                std::fs::copy(life.path().join("log"), image.path().join("log")).unwrap();
                store.checkpoint().unwrap();
                let after = std::fs::read(data(&life)).unwrap();
                let changed =
                    |slot: usize| before[slot * page_bytes..][..page_bytes] != after[slot * page_bytes..][..page_bytes];
                let slot = (0..2).find(|slot| changed(*slot)).expect("a checkpoint writes a meta page");
                assert!(!changed(1 - slot), "and one only");
                let mut torn = after.clone();
                torn[slot * page_bytes + 60] ^= 0x10;
                for bytes in [mixed(&before, &after, 0..2 * page_bytes, &mut rng), torn, after.clone()] {
                    std::fs::write(data(&image), bytes).unwrap();
                    let log = std::fs::read(image.path().join("log")).unwrap();
                    let reopened = open(image.path(), &settings).unwrap();
                    assert!(content(&reopened) == model, "{protocol:?}, round {round}");
                    reopened.verify().unwrap();
                    reopened.put("later", "x").unwrap();
                    reopened.verify().unwrap();
                    drop(reopened);
                    std::fs::write(image.path().join("log"), log).unwrap();
                }
                before = after;
            }
        }
    }
}

#[test]
fn with_any_unsynced_sectors_lost_the_older_meta_page_leads_to_the_state_before() {
    for protocol in PROTOCOLS.into_iter().filter(|protocol| matches!(protocol, Protocol::Shadow(_))) {
        for page_bytes in [512, 4096] {
            let (life, image) = (folder(), folder());
            let settings = Settings { page_bytes, ..settings(protocol) };
            let store = create(life.path(), &settings).unwrap();
            let (mut model, mut rng) = (Rows::new(), fastrand::Rng::with_seed(page_bytes as u64));
            let data = |folder: &tempfile::TempDir| folder.path().join("data");
            let mut before = std::fs::read(data(&life)).unwrap();
            for commit in 1..40 {
                store.write(&batch_of(commit)).unwrap();
                let after = std::fs::read(data(&life)).unwrap();
                let metas = 0..2 * page_bytes;
                // Before the switch: any part of the new pages is there, the meta page is not.
                let mut images = vec![(mixed(&before, &after, metas, &mut rng), commit - 1)];
                // The new meta page torn.
                let mut torn = after.clone();
                torn[(commit % 2) as usize * page_bytes + 60] ^= 0x10;
                images.push((torn, commit - 1));
                images.push((after.clone(), commit));
                let old = model.clone();
                follow(&mut model, commit);
                for (bytes, state) in images {
                    std::fs::write(data(&image), bytes).unwrap();
                    let reopened = open(image.path(), &settings).unwrap();
                    let wanted = if state == commit { &model } else { &old };
                    assert!(content(&reopened) == *wanted, "{protocol:?}, commit {commit}, state {state}");
                    reopened.verify().unwrap();
                    // And it continues from there.
                    reopened.put("later", "x").unwrap();
                    reopened.verify().unwrap();
                }
                before = after;
            }
        }
    }
}

#[test]
fn a_meta_page_that_only_the_page_cache_had_is_durable_before_what_the_older_one_needs_is_overwritten() {
    for protocol in PROTOCOLS.into_iter().filter(|protocol| matches!(protocol, Protocol::Shadow(_))) {
        for page_bytes in [512, 4096] {
            let (life, image) = (folder(), folder());
            let settings = Settings { page_bytes, ..settings(protocol) };
            let mut store = create(life.path(), &settings).unwrap();
            let (mut model, mut rng) = (Rows::new(), fastrand::Rng::with_seed(page_bytes as u64));
            let data = |folder: &tempfile::TempDir| folder.path().join("data");
            let metas = 0..2 * page_bytes;
            for commit in (1..40).step_by(2) {
                let older = std::fs::read(data(&life)).unwrap();
                store.write(&batch_of(commit)).unwrap();
                follow(&mut model, commit);
                drop(store);
                // As if it had been killed while it wrote its meta page: all but that was synced before.
                let mut durable = std::fs::read(data(&life)).unwrap();
                durable[metas.clone()].copy_from_slice(&older[metas.clone()]);
                store = open(life.path(), &settings).unwrap();
                assert!(content(&store) == model, "{protocol:?}, commit {commit}");
                if store.stats().data_syncs > 0 {
                    durable = std::fs::read(data(&life)).unwrap();
                }
                // The power fails before the next commit has synced anything.
                store.write(&batch_of(commit + 1)).unwrap();
                let after = std::fs::read(data(&life)).unwrap();
                std::fs::write(data(&image), mixed(&durable, &after, metas.clone(), &mut rng)).unwrap();
                let reopened = open(image.path(), &settings).unwrap();
                reopened.verify().unwrap_or_else(|error| panic!("{protocol:?}, commit {commit}: {error}"));
                assert!(content(&reopened) == model, "{protocol:?}, commit {commit}");
                follow(&mut model, commit + 1);
            }
        }
    }
}

#[test]
fn opening_writes_the_meta_page_in_force_once_more() {
    for protocol in PROTOCOLS {
        let folder = folder();
        let store = create(folder.path(), &settings(protocol)).unwrap();
        store.put("key", "value").unwrap();
        store.checkpoint().unwrap();
        drop(store);
        let before = std::fs::read(folder.path().join("data")).unwrap();
        // There is nothing to replay.
        let stats = open(folder.path(), &settings(protocol)).unwrap().stats();
        assert!(stats.data_syncs > 0, "{protocol:?}: {stats:?}");
        assert_eq!(stats.data_bytes_written, 512, "{protocol:?}: {stats:?}");
        assert!(before == std::fs::read(folder.path().join("data")).unwrap(), "{protocol:?}: in its own place");
    }
}
