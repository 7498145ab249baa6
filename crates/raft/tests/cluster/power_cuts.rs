//! A node whose power is cut, again and again, under openraft: it starts each time, leads again, and has every write that a client
//! was told of.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use nofault::{Db, ErrorKind};
use nofault_sim::{SimOptions, SimWorld};
use openraft::{Config, Raft, SnapshotPolicy};

use crate::app::{Request, VALUES, Values};
use crate::network::Network;
use crate::{SOON, node, settings};

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

/// What clients were told, or not, of their writes: of each client the last element that was acknowledged, and the last sent.
type Acknowledgements = BTreeMap<u64, (u64, u64)>;

/// Starts the node, checks that it has what was acknowledged, and writes until the power is cut, or `writes` are done by each client.
async fn live(world: &SimWorld, folder: &Path, told: &mut Acknowledgements, writes: u64, what: &str) -> Option<()> {
    let directory = world.directory();
    let db = match Db::open_in(&directory, &settings()) {
        Err(error) if error.kind() == ErrorKind::NotFound && told.is_empty() => {
            Db::create_in(&directory, &settings()).ok()?
        }
        opened => opened.ok()?,
    };
    let (log, state) = nofault_raft::open(&db, "group", &[VALUES], folder, Values).await.ok()?;
    let reader = state.reader();
    let raft = Raft::new(1, config(), Network::default().links_of(1), log, state).await.ok()?;
    if !raft.is_initialized().await.ok()? {
        assert!(told.values().all(|told| told.0 == 0), "{what}: the node has forgotten that it was initialized");
        raft.initialize(BTreeMap::from([(1, node())])).await.ok()?;
    }
    raft.wait(SOON).current_leader(1, "itself").await.ok()?;
    raft.ensure_linearizable().await.ok()?;
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
                if raft.client_write(request).await.is_err() {
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
    for seed in 1..=4 {
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
