//! Nodes whose power is cut, again and again, under openraft. One is alone: it starts each time, leads again, and has every write that a
//! client was told of. One follows, and gets a snapshot in each life: it starts each time, and catches up.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nofault::settings::Settings;
use nofault::{Db, ErrorKind};
use nofault_raft::while_running;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};
use openraft::{Config, LogId, Raft, SnapshotPolicy};

use crate::app::{Request, Types, VALUES, Values};
use crate::network::Network;
use crate::{SOON, node};

const CLIENTS: u64 = 8;

/// Elections soon, snapshots and purges often.
fn config() -> Arc<Config> {
    let config = Config {
        election_timeout_min: 60,
        election_timeout_max: 120,
        heartbeat_interval: 20,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(30),
        max_in_snapshot_log_to_keep: 3,
        ..Config::default()
    };
    Arc::new(config.validate().unwrap())
}

/// The clients' knowledge of their writes: of each client the last element that was acknowledged, and the last sent.
type Acknowledgements = BTreeMap<u64, (u64, u64)>;

/// Starts the node, checks that it has what was acknowledged, and writes until the power is cut, or `writes` are done by each client.
async fn live(world: &SimWorld, folder: &Path, told: &mut Acknowledgements, writes: u64, what: &str) -> Option<()> {
    let directory = world.directory();
    let db = match Db::open_in(&directory, &Settings::small(4, 1)) {
        Err(error) if error.kind() == ErrorKind::NotFound && told.is_empty() => {
            Db::create_in(&directory, &Settings::small(4, 1)).ok()?
        }
        opened => opened.ok()?,
    };
    let (log, state) = nofault_raft::open(&db, "group", &[VALUES], folder, Values).await.ok()?;
    let reader = state.reader();
    let raft = Raft::new(1, config(), Network::default().links_of(1), log, state).await.ok()?;
    if !raft.is_initialized().await.ok()? {
        assert!(told.values().all(|told| told.0 == 0), "{what}: the node has forgotten that it was initialized");
        while_running(&raft, raft.initialize(BTreeMap::from([(1, node())]))).await.ok()?;
    }
    raft.wait(SOON).current_leader(1, "itself").await.ok()?;
    while_running(&raft, raft.ensure_linearizable()).await.ok()?;
    for (client, (acknowledged, sent)) in told.iter_mut() {
        let value = reader.view().get(VALUES, client.to_string()).await.ok()?.unwrap_or_default();
        let elements: Vec<u64> = value.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert!(elements.is_sorted(), "{what}: {elements:?}");
        let is_there = |element: &u64| elements.binary_search(element).is_ok();
        assert!((1..=*acknowledged).all(|element| is_there(&element)), "{what}: {acknowledged} of {elements:?}");
        assert!(elements.iter().all(|element| element <= sent), "{what}: {elements:?} of {sent}");
        // A write that was not acknowledged, and is not there, never will be: its number is used again.
        *acknowledged = elements.last().copied().unwrap_or(0);
        *sent = *acknowledged;
    }
    let clients = (0..CLIENTS).map(|client| {
        let (raft, (mut acknowledged, mut sent)) = (raft.clone(), told.get(&client).copied().unwrap_or_default());
        tokio::spawn(async move {
            for _ in 0..writes {
                sent += 1;
                let request = Request::Append { key: client.to_string(), more: sent.to_le_bytes().to_vec() };
                if while_running(&raft, raft.client_write(request)).await.is_err() {
                    break;
                }
                acknowledged = sent;
            }
            (client, (acknowledged, sent))
        })
    });
    for client in clients.collect::<Vec<_>>() {
        let (client, outcome) = client.await.unwrap();
        told.insert(client, outcome);
    }
    raft.shutdown().await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_power_is_cut_again_and_again_keeps_what_clients_were_told() {
    for seed in sample(1..=4, 2) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut rng = Rng::with_seed(seed);
        let options = [SimOptions::default(), SimOptions::adversarial()][rng.usize(..2)];
        let mut world = SimWorld::new(seed, options);
        let mut told = Acknowledgements::new();
        for life in 0..8 {
            world.cut_after(rng.u64(20..1500));
            let what = format!("seed {seed}, life {life}, {world}");
            let lived =
                tokio::time::timeout(Duration::from_secs(120), live(&world, folder.path(), &mut told, 60, &what));
            lived.await.unwrap_or_else(|_| panic!("{what}: the node hangs"));
            world = world.restart(rng.u64(..));
        }
        assert!(told.values().any(|told| told.0 > 0), "seed {seed}: no write was acknowledged");
    }
}

/// A leader with a log that is short, and a learner on a disk whose power is cut.
struct Follower {
    network: Network,
    leader: Raft<Types>,
    folder: tempfile::TempDir,
    /// The last log id that the leader has applied.
    written: LogId<u64>,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Follower {
    async fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let network = Network::default();
        let world = SimWorld::new(1, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &Settings::small(4, 1)).unwrap();
        let (log, state) = nofault_raft::open(&db, "group", &[VALUES], folder.path().join("1"), Values).await.unwrap();
        let leader = Raft::new(1, config(), network.links_of(1), log, state).await.unwrap();
        leader.initialize(BTreeMap::from([(1, node())])).await.unwrap();
        leader.wait(SOON).current_leader(1, "itself").await.unwrap();
        let added = leader.add_learner(2, node(), false).await.unwrap();
        Self { network, leader, folder, written: added.log_id, rows: BTreeMap::new() }
    }

    async fn write(&mut self, row: u64) {
        let (key, value) = (format!("row {row}"), self.written.to_string().into_bytes());
        self.rows.insert(key.clone().into_bytes(), value.clone());
        self.written = self.leader.client_write(Request::Put { key, value }).await.unwrap().log_id;
    }

    /// Writes to the leader until its log begins behind what it has written before.
    async fn run_away(&mut self) {
        let before = self.written;
        while self.leader.metrics().borrow().purged <= Some(before) {
            self.write(self.written.index % 10).await;
        }
    }

    /// Lives until the power is cut, or all is there that the leader has written. Returns the rows that there are then.
    async fn live(&self, world: &SimWorld) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Box<dyn std::error::Error>> {
        let directory = world.directory();
        let db = match Db::open_in(&directory, &Settings::small(4, 1)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Db::create_in(&directory, &Settings::small(4, 1))?,
            opened => opened?,
        };
        let snapshots = self.folder.path().join("2");
        let begun = Instant::now();
        let (log, state) = loop {
            match nofault_raft::open(&db, "group", &[VALUES], &snapshots, Values).await {
                // A task of the life before may still have the folder.
                Err(nofault_raft::Error::Busy(_)) if SOON.is_none_or(|soon| begun.elapsed() < soon) => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                opened => break opened?,
            }
        };
        let reader = state.reader();
        let raft = Raft::new(2, config(), self.network.links_of(2), log, state).await?;
        self.network.connect(2, raft.clone());
        let caught_up = raft.wait(SOON).applied_index_at_least(Some(self.written.index), "all of it").await;
        self.network.disconnect(2);
        raft.shutdown().await?;
        caught_up?;
        let view = reader.view();
        let mut range = view.snapshot().iter(view.tables().table(VALUES)?)?;
        let mut rows = BTreeMap::new();
        while let Some((key, value)) = range.next().await? {
            rows.insert(key, value);
        }
        Ok(rows)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_whose_power_is_cut_while_it_gets_a_snapshot_starts_again_and_catches_up() {
    let mut follower = Follower::start().await;
    let mut rng = Rng::with_seed(1);
    let mut world = SimWorld::new(2, SimOptions::adversarial());
    // The power is cut in every other life. The one after it gets the entries that follow, as far as the leader still has them. The first
    // one tells how many events there are.
    let (mut events, mut cut) = (u64::MAX, 0);
    let lives = by_depth(12, 32);
    for life in 0..lives {
        let begun = world.events();
        if life % 2 == 0 {
            follower.run_away().await;
            if life > 0 {
                world.cut_after(begun + rng.u64(1..=events));
            }
        } else {
            follower.write(life).await;
        }
        let lived = follower.live(&world).await;
        let what = format!("life {life}, {world}");
        match lived {
            Ok(rows) => {
                assert_eq!(rows, follower.rows, "{what}");
                if life % 2 == 0 {
                    events = events.min(world.events() - begun);
                }
            }
            Err(error) => {
                assert!(world.is_cut(), "{what}: {error}");
                cut += 1;
            }
        }
        world = world.restart(rng.u64(..));
    }
    println!("the power was cut in {cut} of {lives} lives, of {events} events or more");
    assert!(cut >= by_depth(3, 8), "the power was cut in {cut} of {lives} lives");
    follower.leader.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_ends_before_its_new_snapshot_has_its_name_starts_again_and_makes_one() {
    let mut follower = Follower::start().await;
    let mut world = SimWorld::new(3, SimOptions::calm());
    let complete = follower.folder.path().join("2/snapshot");
    let mut files = Vec::new();
    for life in 0..2 {
        follower.run_away().await;
        assert_eq!(follower.live(&world).await.unwrap(), follower.rows, "life {life}");
        files.push(std::fs::read(&complete).unwrap());
        world = world.restart(life);
    }
    assert_ne!(files[0], files[1], "there was no second snapshot");
    // State and log stay as the second snapshot has made them.
    std::fs::write(&complete, &files[0]).unwrap();
    follower.write(1).await;
    assert_eq!(follower.live(&world).await.unwrap(), follower.rows);
    assert_ne!(std::fs::read(&complete).unwrap(), files[0], "it would offer a snapshot that its log does not follow");
    follower.leader.shutdown().await.unwrap();
}
