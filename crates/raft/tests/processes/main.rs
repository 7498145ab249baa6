//! Real processes over loopback: they are killed with `SIGKILL` and cut off from each other, and members come and go, while clients append to lists and
//! read them. The clients' history is checked for linearizability, with every append that was acknowledged.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "../../examples/cluster/app.rs"]
mod app;
/// The checker of the engine's own transactions.
#[path = "../../../engine/tests/isolation"]
mod isolation {
    pub(crate) mod graph;
}
#[path = "../../examples/cluster/network.rs"]
mod network;
#[path = "../../examples/cluster/node.rs"]
mod node;
mod proxy;
#[path = "../../examples/cluster/service.rs"]
mod service;
mod setbacks;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use nofault_sim::depth::by_depth;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::isolation::graph::{Outcome, Step, Txn, check};
use crate::proxy::Links;

/// Environment variable with the options of a node, for the child that is one.
const NODE: &str = "NOFAULT_CHILD_NODE";
/// The first members.
const NODES: [u64; 3] = [1, 2, 3];
/// A node added later.
const SPARE: u64 = 4;
const ALL: [u64; 4] = [1, 2, 3, SPARE];
const LISTS: u32 = 3;
/// The time after which a client turns to another node: a leader that is cut off never answers a write.
const PATIENCE: Duration = Duration::from_millis(700);

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_is_a_node() {
    let Ok(words) = std::env::var(NODE) else { return };
    let options = service::Options::parse(words.split('\n').map(str::to_owned)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Err(error) = runtime.block_on(service::run(options)) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

/// A process killed when the test ends, in any way.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Addresses free a moment ago, below the ports that the system gives to connections.
fn free_addresses(rng: &mut Rng, count: usize) -> Vec<SocketAddr> {
    let mut addresses = std::collections::BTreeSet::new();
    while addresses.len() < count {
        let address = SocketAddr::from(([127, 0, 0, 1], rng.u16(20_000..30_000)));
        if std::net::TcpListener::bind(address).is_ok() {
            addresses.insert(address);
        }
    }
    addresses.into_iter().collect()
}

/// Where the nodes are.
struct Places {
    http: BTreeMap<u64, SocketAddr>,
    nodes: BTreeMap<u64, SocketAddr>,
}

/// The nodes of a test: three members, and one that may become a member.
struct Cluster {
    folder: tempfile::TempDir,
    places: Arc<Places>,
    links: Links,
    processes: BTreeMap<u64, Process>,
}

impl Cluster {
    /// Starts three nodes, which agree on a leader.
    async fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let addresses = free_addresses(&mut Rng::new(), 8);
        let by_id = |addresses: &[SocketAddr]| (1..=SPARE).zip(addresses.iter().copied()).collect();
        let places = Arc::new(Places { http: by_id(&addresses[..4]), nodes: by_id(&addresses[4..]) });
        let links = Links::open(&places.nodes).await.unwrap();
        let mut cluster = Self { folder, places, links, processes: BTreeMap::new() };
        NODES.into_iter().for_each(|id| cluster.run(id));
        for _ in 0..600 {
            // Also when it is done already, and the answer was lost.
            if let Ok((200 | 409, _)) = ask(cluster.places.http[&1], "POST", "/initialize", b"").await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.leader(&NODES).await;
        cluster
    }

    fn path(&self, id: u64) -> PathBuf {
        self.folder.path().join(id.to_string())
    }

    /// The text on the node's standard error, from all of its processes.
    fn said(&self, id: u64) -> PathBuf {
        self.folder.path().join(format!("{id}.said"))
    }

    /// Starts the process of a node. The first members know each other from the start, and the spare one knows them.
    fn run(&mut self, id: u64) {
        let mut words = vec![id.to_string(), self.path(id).to_str().unwrap().to_owned()];
        words.extend([self.places.http[&id].to_string(), self.places.nodes[&id].to_string()]);
        let peers = self.links.peers_of(id).into_iter().filter(|(id, _)| NODES.contains(id));
        words.extend(peers.map(|(id, address)| format!("{id}={address}")));
        let said = File::options().create(true).append(true).open(self.said(id)).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_is_a_node", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(NODE, words.join("\n"))
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .unwrap();
        self.processes.insert(id, Process(child));
    }

    fn kill(&mut self, id: u64) {
        self.processes.remove(&id);
    }

    /// Waits until one of these nodes leads and answers reads. Returns its id.
    async fn leader(&self, among: &[u64]) -> u64 {
        for _ in 0..600 {
            for id in among {
                if let Ok((200 | 404, _)) = ask(self.places.http[id], "GET", "/keys/0", b"").await {
                    return *id;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("no leader within half a minute");
    }

    /// Sends a request to each of the nodes until the leader has carried it out.
    async fn carry_out(&self, method: &str, path: &str, body: &str) {
        let mut last = BTreeMap::new();
        for _ in 0..600 {
            for (id, to) in &self.places.http {
                match ask(*to, method, path, body.as_bytes()).await {
                    Ok((200, _)) => return,
                    other => {
                        drop(last.insert(
                            *id,
                            other.map(|(status, why)| (status, String::from_utf8_lossy(&why).into_owned())),
                        ))
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{method} {path} {body}: {last:?}");
    }

    /// Returns the members, as the leader knows them: voters, and learners.
    async fn members(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let leader = self.leader(&ALL).await;
        let (_, lines) = ask(self.places.http[&leader], "GET", "/members", b"").await.unwrap();
        let (mut voters, mut learners) = (BTreeSet::new(), BTreeSet::new());
        for line in String::from_utf8(lines).unwrap().lines() {
            let mut words = line.split(' ');
            let id = words.next().unwrap().parse().unwrap();
            if words.next() == Some("voter") { &mut voters } else { &mut learners }.insert(id);
        }
        (voters, learners)
    }
}

/// Sends a request and returns status and body of the answer. Each has its own connection, which the answer ends.
async fn ask(to: SocketAddr, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    let asked = async {
        let mut stream = TcpStream::connect(to).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(3), asked).await.map_err(io::Error::other)??;
    let unfit = || io::Error::other("the answer is cut off");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(unfit)? + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(unfit)?;
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    if len.is_some_and(|len| len != answer.len() - end) {
        return Err(unfit());
    }
    Ok((status, answer[end..].to_vec()))
}

/// Operations of clients as they were recorded, in ticks of one clock.
#[derive(Default)]
struct History {
    clock: AtomicU64,
    txns: Mutex<Vec<Txn>>,
}

impl History {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn record(&self, begun: u64, outcome: Outcome, steps: Vec<Step>) {
        let ended = (outcome != Outcome::Unknown).then(|| self.tick());
        self.txns.lock().unwrap_or_else(PoisonError::into_inner).push(Txn { begun, ended, outcome, steps });
    }
}

fn elements(value: &[u8]) -> Vec<u64> {
    value.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Asks as [`ask`] does, with the patience of a client.
async fn ask_soon(to: SocketAddr, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    tokio::time::timeout(PATIENCE, ask(to, method, path, body)).await.map_err(io::Error::other)?
}

/// Appends to lists and reads them until `done`, at the node that answered last. One that `roams` only reads, at any node, so that some
/// reads come to a leader whose place another has taken.
async fn client(
    places: Arc<Places>,
    nodes: &'static [u64],
    history: Arc<History>,
    done: Arc<AtomicBool>,
    seed: u64,
    roams: bool,
) {
    let mut rng = Rng::with_seed(seed);
    let (mut number, mut at) = (0, 1);
    while !done.load(Ordering::SeqCst) {
        let key = rng.u32(..LISTS);
        let (begun, path) = (history.tick(), format!("/keys/{key}"));
        let read = |value: &[u8]| Step::ReadList { key, elements: elements(value), ranged: false };
        let answer = if !roams && rng.bool() {
            number += 1;
            let element = seed << 32 | number;
            let answer = ask_soon(places.http[&at], "POST", &path, &element.to_le_bytes()).await;
            let append = Step::Append { key, element };
            match &answer {
                Ok((200, before)) => history.record(begun, Outcome::Committed, vec![read(before), append]),
                // A leader that steps down may have the entry in its log: it may be committed yet.
                _ => history.record(begun, Outcome::Unknown, vec![append]),
            }
            answer
        } else {
            let answer = ask_soon(places.http[&at], "GET", &path, b"").await;
            match &answer {
                Ok((200, value)) => history.record(begun, Outcome::Committed, vec![read(value)]),
                Ok((404, _)) => history.record(begun, Outcome::Committed, vec![read(&[])]),
                _ => {}
            }
            answer
        };
        match answer {
            _ if roams => at = nodes[rng.usize(..nodes.len())],
            Ok((200 | 404, _)) => continue,
            Ok((421, leader)) => {
                let leader = String::from_utf8_lossy(&leader).parse().ok();
                at = leader.filter(|leader| nodes.contains(leader)).unwrap_or(nodes[rng.usize(..nodes.len())]);
            }
            _ => at = nodes[rng.usize(..nodes.len())],
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(1..40))).await;
    }
}

/// Clients at work, and their histories.
struct Clients {
    history: Arc<History>,
    done: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    fn start(cluster: &Cluster, nodes: &'static [u64], seed: u64) -> Self {
        let (history, done) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
        let client = |at| client(cluster.places.clone(), nodes, history.clone(), done.clone(), seed * 100 + at, at > 3);
        let tasks = (1..=6).map(|at| tokio::spawn(client(at))).collect();
        Self { history, done, tasks }
    }

    /// Ends the clients, reads each list once more, and checks all that was seen.
    async fn check(self, cluster: &Cluster, what: &str) {
        let Self { history, done, tasks } = self;
        tokio::time::sleep(Duration::from_millis(500)).await;
        done.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
        let last = cluster.leader(&ALL).await;
        for key in 0..LISTS {
            let begun = history.tick();
            let path = format!("/keys/{key}");
            let (status, value) = ask(cluster.places.http[&last], "GET", &path, b"").await.unwrap();
            assert_eq!(status, 200);
            let read = Step::ReadList { key, elements: elements(&value), ranged: false };
            history.record(begun, Outcome::Committed, vec![read]);
        }
        let txns = std::mem::take(&mut *history.txns.lock().unwrap());
        let committed = txns.iter().filter(|txn| txn.outcome == Outcome::Committed).count();
        let counts = check(&txns).unwrap_or_else(|anomaly| panic!("{what}: {anomaly}"));
        println!("{committed} of {} operations committed over {what}; {counts:?}", txns.len());
        assert!(committed > 100, "{committed} operations are no history to learn from");
    }
}

fn seed() -> u64 {
    let seed = std::env::var("NOFAULT_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("NOFAULT_SEED={seed}");
    seed
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_linearizable_lists_over_kills_and_partitions() {
    let seed = seed();
    let mut cluster = Cluster::start().await;
    let clients = Clients::start(&cluster, &NODES, seed);
    let mut rng = Rng::with_seed(seed);
    let (mut kills, mut splits) = (0, 0);
    for round in 0..by_depth(4, 8) {
        // The leader every other time: only it has something to lose.
        let victim = if round % 2 == 0 { cluster.leader(&NODES).await } else { NODES[rng.usize(..3)] };
        if round % 4 < 2 {
            cluster.kill(victim);
            kills += 1;
            tokio::time::sleep(Duration::from_millis(rng.u64(200..800))).await;
            cluster.run(victim);
        } else {
            cluster.links.split(&[victim]);
            splits += 1;
            // Long enough for another leader, and for clients to find it.
            let others: Vec<u64> = NODES.into_iter().filter(|id| *id != victim).collect();
            cluster.leader(&others).await;
            tokio::time::sleep(Duration::from_millis(rng.u64(500..1000))).await;
            cluster.links.split(&[]);
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(100..600))).await;
    }
    // All at once, as in a power failure of the site.
    cluster.processes.clear();
    NODES.into_iter().for_each(|id| cluster.run(id));
    cluster.leader(&NODES).await;
    clients.check(&cluster, &format!("{kills} kills and {splits} splits, seed {seed}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_change_over_kills_and_clients_see_linearizable_lists() {
    let seed = seed();
    let mut cluster = Cluster::start().await;
    cluster.run(SPARE);
    let clients = Clients::start(&cluster, &ALL, seed);
    let mut rng = Rng::with_seed(seed);
    let (address, mut voters) = (cluster.places.nodes[&SPARE].to_string(), BTreeSet::from(NODES));
    let mut kills = 0;
    for round in 0..by_depth(2, 4) {
        // The spare node takes the place of the leader, or of another one, and gives it back.
        let leader = cluster.leader(&ALL).await;
        let changes = if voters.contains(&SPARE) {
            let back = NODES.into_iter().find(|id| !voters.contains(id)).unwrap();
            voters = BTreeSet::from(NODES);
            [
                ("PUT", format!("/members/{back}"), cluster.places.nodes[&back].to_string()),
                ("PUT", "/voters".into(), words(&voters)),
            ]
        } else {
            let leaves = if round == 0 { leader } else { NODES[rng.usize(..3)] };
            voters = NODES.into_iter().filter(|id| *id != leaves).chain([SPARE]).collect();
            [("PUT", format!("/members/{SPARE}"), address.clone()), ("PUT", "/voters".into(), words(&voters))]
        };
        for (method, path, body) in changes {
            // The leader is killed at any moment of the change, and the change asked for again until it has come about.
            let leader = cluster.leader(&ALL).await;
            let kill = async {
                tokio::time::sleep(Duration::from_millis(rng.u64(..40))).await;
                leader
            };
            let asked = ask(cluster.places.http[&leader], method, &path, body.as_bytes());
            let (victim, _) = tokio::join!(kill, tokio::time::timeout(Duration::from_millis(40), asked));
            cluster.kill(victim);
            kills += 1;
            cluster.run(victim);
            cluster.carry_out(method, &path, &body).await;
        }
        assert_eq!(cluster.members().await, (voters.clone(), BTreeSet::new()), "round {round}");
    }
    cluster.carry_out("PUT", &format!("/members/{SPARE}"), &address).await;
    assert_eq!(cluster.members().await, (voters.clone(), BTreeSet::from([SPARE])));
    cluster.carry_out("DELETE", &format!("/members/{SPARE}"), "").await;
    assert_eq!(cluster.members().await, (voters, BTreeSet::new()));
    clients.check(&cluster, &format!("changes of the members and {kills} kills, seed {seed}")).await;
}

fn words(ids: &BTreeSet<u64>) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}
