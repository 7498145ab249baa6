//! The lives of a node: its store is opened, the others are greeted, its raft runs. When the core ends, of a full disk for instance, the node says so
//! and begins another life. The process ends where another life would be no better: another node has refused it, or its store cannot be opened.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nofault::Db;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault_raft::{GroupId, StateReader, elect_later, ended, while_running};
use openraft::{Config, Raft, SnapshotPolicy};
use tokio::sync::watch;

use crate::app::{Request, Types, VALUES, Values};
use crate::network::{Contacts, Network};
use crate::service::Options;

/// The pause before another life: the first, and the longest. Each is twice as long as the last, until a life was longer than the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A life of the node, from the opening of its store on. All handles of the store are in here: they are dropped when it ends.
pub(crate) struct Life {
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) reader: StateReader,
    /// Absent until the others were greeted.
    pub(crate) raft: OnceLock<Raft<Types>>,
}

impl Life {
    /// Whether the raft of a life has begun.
    pub(crate) fn has_begun(life: &Result<Arc<Self>, String>) -> bool {
        life.as_ref().is_ok_and(|life| life.raft.get().is_some())
    }
}

/// The end of a life.
enum End {
    /// Another life may be better.
    Passing(Box<dyn Error + Send + Sync>),
    /// Another life would be no better.
    Lasting(Box<dyn Error + Send + Sync>),
}

impl End {
    /// The store could not be opened: full disks, and tasks of the life before that still have it, are passing.
    fn of_opening(error: nofault_raft::Error, is_first: bool) -> Self {
        let is_busy = match &error {
            nofault_raft::Error::Busy(_) => true,
            nofault_raft::Error::Database(error) => error.kind() == ErrorKind::Busy,
            _ => false,
        };
        let is_passing = error.is_full() || is_busy && !is_first;
        if is_passing { Self::Passing(error.into()) } else { Self::Lasting(error.into()) }
    }
}

/// Lives again and again, and tells which life there is, or why there is none. Returns the reason why there will be no other.
pub(crate) async fn live(
    options: &Options,
    told: &watch::Sender<Result<Arc<Life>, String>>,
) -> Box<dyn Error + Send + Sync> {
    let (mut pause, mut is_first) = (PAUSE_MIN, true);
    loop {
        let begun = Instant::now();
        let end = live_once(options, told, is_first).await;
        match end {
            End::Lasting(why) => return why,
            End::Passing(why) => {
                if begun.elapsed() > PAUSE_MAX {
                    pause = PAUSE_MIN;
                }
                let why = format!("node {} has stopped: {why}; it starts again in {pause:?}", options.id);
                eprintln!("{why}");
                drop(told.send_replace(Err(why)));
            }
        }
        tokio::time::sleep(pause).await;
        (pause, is_first) = ((2 * pause).min(PAUSE_MAX), false);
    }
}

async fn live_once(options: &Options, told: &watch::Sender<Result<Arc<Life>, String>>, is_first: bool) -> End {
    let config = Config {
        election_timeout_min: 400,
        election_timeout_max: 800,
        heartbeat_interval: 100,
        install_snapshot_timeout: 10_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(2_000),
        max_in_snapshot_log_to_keep: 200,
        snapshot_max_chunk_size: 1 << 20,
        enable_elect: false,
        ..Config::default()
    };
    let config = match config.validate() {
        Ok(config) => Arc::new(config),
        Err(error) => return End::Lasting(error.into()),
    };
    let settings = Settings { cache_bytes: 64 << 20, log_bytes: 64 << 20, ..Settings::default() };
    let opened = async {
        let db = Db::open_or_create(options.folder.join("db"), &settings).await?;
        nofault_raft::open(&db, "values", &[VALUES], options.folder.join("snapshots"), Values).await
    };
    let (log, state) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return End::of_opening(error, is_first),
    };
    let contacts = Contacts {
        peers: log.peers(options.id),
        addresses: options.peers.clone(),
        metrics: OnceLock::new(),
        refusal: watch::Sender::new(None),
    };
    let (contacts, reader) = (Arc::new(contacts), state.reader());
    let life = Arc::new(Life { contacts: contacts.clone(), reader: reader.clone(), raft: OnceLock::new() });
    drop(told.send_replace(Ok(life.clone())));
    let greet_the_rest = contacts.greet_all().await;
    if let Some(why) = contacts.refusal.borrow().clone() {
        return End::Lasting(why.into());
    }
    let raft = match Raft::new(options.id, config, Network(contacts.clone()), log, state).await {
        Ok(raft) => raft,
        Err(error) => return End::Passing(error.into()),
    };
    drop(contacts.metrics.set(raft.metrics()));
    drop(life.raft.set(raft.clone()));
    drop(told.send_replace(Ok(life)));

    let mut refusal = contacts.refusal.subscribe();
    let runs = async {
        tokio::join!(greet_the_rest, elect_later(&raft), name_group(options.id, &raft, &reader));
        std::future::pending::<()>().await;
    };
    let end = tokio::select! {
        why = ended(&raft) => End::Passing(why.into()),
        why = refusal.wait_for(Option::is_some) => {
            End::Lasting(why.ok().and_then(|why| why.clone()).unwrap_or_default().into())
        }
        () = runs => End::Passing("its tasks have ended".into()),
    };
    drop(raft.shutdown().await);
    end
}

/// Gives the group an id when this node leads and there is none.
async fn name_group(id: u64, raft: &Raft<Types>, reader: &StateReader) {
    let mut metrics = raft.metrics();
    while let Ok(None) = reader.group_id().await {
        if metrics.borrow_and_update().current_leader == Some(id) {
            let request = Request::Name { group: GroupId::random() };
            drop(while_running(raft, raft.client_write(request)).await);
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}
