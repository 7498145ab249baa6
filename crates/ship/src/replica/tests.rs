//! A copy whose disk loses its power at any event has the state after a commit of the source, and continues from there.

use std::collections::BTreeMap;

use nofault::error::ErrorKind as DbErrorKind;
use nofault::settings::{Compression, Settings};
use nofault_sim::content::Content;
use nofault_sim::{SimOptions, SimWorld};

use super::copy::*;
use super::*;
use nofault::TableId;
use nofault::db::{Change, ChangeApplier};

use crate::object::ShippedCommit;

/// A commit of each kind, many times, and the content after each. The numbers of commits ascend with gaps.
fn history(seed: u64) -> Vec<(ShippedCommit, Content)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut tables, mut content) = (BTreeMap::<u64, String>::new(), Content::new());
    let (mut commits, mut commit) = (Vec::new(), 10);
    for round in 0..60 {
        commit += rng.u64(1..4);
        let of = rng.choice(tables.clone());
        let changes = match (of, rng.u8(..10)) {
            (None, _) | (_, 0) if tables.len() < 3 => {
                let (table, name) = (TableId(commit), format!("table {round}"));
                tables.insert(commit, name.clone());
                content.insert(name.clone(), BTreeMap::new());
                let compression = Change::SetCompression { table, compression: Compression::Fast };
                vec![Change::CreateTable { table, name }, compression]
            }
            (Some((id, name)), 1) => {
                tables.remove(&id);
                content.remove(&name);
                vec![Change::DropTable { table: TableId(id), name }]
            }
            (Some((id, from)), 2) => {
                let to = format!("renamed {round}");
                tables.insert(id, to.clone());
                let rows = content.remove(&from).unwrap_or_default();
                content.insert(to.clone(), rows);
                vec![Change::RenameTable { table: TableId(id), from, to }]
            }
            (Some((id, _)), 3) => vec![Change::SetCompression { table: TableId(id), compression: Compression::None }],
            (Some((id, name)), _) => {
                let (table, rows) = (TableId(id), content.entry(name).or_default());
                let change = |key: u8| match rng.u8(..3) {
                    0 => {
                        rows.remove(&vec![key]);
                        Change::Delete { table, key: vec![key] }
                    }
                    _ => {
                        let value = vec![rng.u8(..); rng.usize(..200)];
                        rows.insert(vec![key], value.clone());
                        Change::Put { table, key: vec![key], value, expiry: None }
                    }
                };
                (0..8).map(change).collect()
            }
            (None, _) => Vec::new(),
        };
        commits.push((ShippedCommit { commit, time_ms: commit * 1000, changes }, content.clone()));
    }
    commits
}

async fn content_of(copy: &Copy) -> (Content, u64) {
    let (snapshot, reached) = copy.reader().snapshot().await.unwrap();
    let mut content = Content::new();
    for name in snapshot.table_names().await.unwrap().into_iter().filter(|name| name != STATE_TABLE) {
        let mut range = snapshot.range::<&[u8]>(&snapshot.table(&name).await.unwrap(), ..).unwrap();
        let rows = content.entry(name).or_default();
        while let Some((key, value)) = range.next().await.unwrap() {
            rows.insert(key, value);
        }
    }
    (content, reached.commit)
}

async fn begin(world: &SimWorld) -> Result<Copy> {
    begin_with(Db::create_in(&world.directory(), &Settings::small(4, 1))?).await
}

async fn begin_with(db: Db) -> Result<Copy> {
    let epoch = serde_json::from_str(r#"{"id":1,"database":"d","begun_by":"s"}"#).unwrap();
    Copy::begin(db.clone(), ChangeApplier::new(&db), Progress { epoch, commit: 10, time_ms: 10_000 }).await
}

#[tokio::test]
async fn a_copy_whose_power_is_cut_at_any_event_has_the_state_after_a_commit_and_goes_on() {
    let commits = history(4);
    let whole = SimWorld::new(5, SimOptions::default());
    let mut copy = begin(&whole).await.unwrap();
    let begun = whole.events();
    for (commit, content) in &commits {
        copy.apply(commit).await.unwrap();
        assert!(content_of(&copy).await == (content.clone(), commit.commit), "commit {}", commit.commit);
    }
    let (mut unfinished, events) = (0, whole.events());
    for cut in begun + 1..=events {
        let what = format!("cut {cut} of {events}");
        let world = SimWorld::new(5, SimOptions::default());
        let mut copy = begin(&world).await.unwrap();
        world.cut_after(cut);
        for (number, (commit, _)) in commits.iter().enumerate() {
            if copy.apply(commit).await.is_err() || (number % 7 == 6 && copy.db().sync().await.is_err()) {
                break;
            }
        }
        drop(copy);
        let after = world.restart(cut);
        let mut copy =
            Copy::open(Db::open_in(&after.directory(), &Settings::small(4, 1)).unwrap()).await.unwrap().unwrap();
        let (found, at) = content_of(&copy).await;
        let expected = commits.iter().rev().find(|(commit, _)| commit.commit <= at);
        assert!(found == expected.map(|(_, content)| content.clone()).unwrap_or_default(), "{what}: commit {at}");
        assert!(at == 10 || expected.is_some_and(|(commit, _)| commit.commit == at), "{what}: commit {at}");
        unfinished += usize::from(at < commits[commits.len() - 1].0.commit);
        for (commit, _) in commits.iter().filter(|(commit, _)| commit.commit > at) {
            copy.apply(commit).await.unwrap_or_else(|error| panic!("{what}, commit {}: {error}", commit.commit));
        }
        assert!(content_of(&copy).await.0 == commits[commits.len() - 1].1, "{what}: the end");
    }
    assert!(unfinished > 20, "{unfinished} of {events}");
}

/// A copy is ended between any two of its commits, as by `kill -9`: each step of a commit that changes tables may be the last.
#[tokio::test]
async fn a_copy_that_is_ended_within_a_commit_that_changes_tables_finishes_it_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..3 {
        let commits = history(seed);
        let path = folder.path().join(seed.to_string());
        let mut copy = begin_with(Db::create(&path, &Settings::small(4, 1)).await.unwrap()).await.unwrap();
        for (commit, content) in &commits {
            // The future is dropped after so many polls, for more and more of them, until it is done.
            // Others are a single commit of the copy.
            let mut polls = if Copy::changes_tables(commit) { 0 } else { usize::MAX - 1 };
            while copy.reached().commit < commit.commit {
                polls += 1;
                let applied = {
                    let mut work = Box::pin(copy.apply(commit));
                    let mut done = None;
                    for _ in 0..polls {
                        let one = std::future::poll_fn(|context| std::task::Poll::Ready(work.as_mut().poll(context)));
                        if let std::task::Poll::Ready(outcome) = one.await {
                            done = Some(outcome);
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    done
                };
                if let Some(applied) = applied {
                    applied.unwrap();
                } else {
                    // A dropped call of the database may run for another moment, with its own handle.
                    drop(copy);
                    let db = loop {
                        match Db::open(&path, &Settings::small(4, 1)).await {
                            Err(error) if error.kind() == DbErrorKind::Busy => tokio::task::yield_now().await,
                            opened => break opened.unwrap(),
                        }
                    };
                    copy = Copy::open(db).await.unwrap().unwrap();
                    let at = copy.reached().commit;
                    let expected = commits.iter().rev().find(|(commit, _)| commit.commit <= at);
                    let expected = expected.map(|(_, content)| content.clone()).unwrap_or_default();
                    assert!(content_of(&copy).await.0 == expected, "seed {seed}, commit {at}");
                }
            }
            assert!(content_of(&copy).await == (content.clone(), commit.commit), "seed {seed}");
        }
    }
}
