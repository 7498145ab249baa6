//! Three real processes over loopback: they are killed with `SIGKILL` and cut off from each other, while clients append to lists and
//! read them. What the clients saw is checked for linearizability, with every append that was acknowledged.

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
mod proxy;
#[path = "../../examples/cluster/service.rs"]
mod service;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::isolation::graph::{Outcome, Step, Txn, check};
use crate::proxy::Links;

/// Environment variable with the options of a node, for the child that is one.
const NODE: &str = "NOFAULT_CHILD_NODE";
const NODES: [u64; 3] = [1, 2, 3];
const LISTS: u32 = 3;
/// The time after which a client turns to another node: a leader that is cut off never answers a write.
const PATIENCE: Duration = Duration::from_millis(700);

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_is_a_node() {
    let Ok(words) = std::env::var(NODE) else { return };
    let options = service::Options::parse(words.split('\n').map(str::to_owned)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(service::run(options)).unwrap();
}

/// A process that is killed when the test ends, in any way.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Addresses that were free a moment ago, below the ports that the system gives to connections.
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

fn start(id: u64, folder: &Path, places: &Places, links: &Links) -> Process {
    let folder = folder.join(id.to_string());
    let mut words = vec![id.to_string(), folder.to_str().unwrap().to_owned()];
    words.extend([places.http[&id].to_string(), places.nodes[&id].to_string()]);
    words.extend(links.peers_of(id).iter().map(|(id, address)| format!("{id}={address}")));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["child_that_is_a_node", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(NODE, words.join("\n"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Process(child)
}

/// Sends a request and returns status and body of the answer. A connection of its own for each, which the answer ends.
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

/// Waits until one of these nodes leads and answers reads. Returns its id.
async fn leader(places: &Places, among: &[u64]) -> u64 {
    for _ in 0..600 {
        for id in among {
            if let Ok((200 | 404, _)) = ask(places.http[id], "GET", "/keys/0", b"").await {
                return *id;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no leader within half a minute");
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
async fn client(places: Arc<Places>, history: Arc<History>, done: Arc<AtomicBool>, seed: u64, roams: bool) {
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
            _ if roams => at = NODES[rng.usize(..3)],
            Ok((200 | 404, _)) => continue,
            Ok((421, leader)) => {
                let leader = String::from_utf8_lossy(&leader).parse().ok();
                at = leader.filter(|leader| NODES.contains(leader)).unwrap_or(NODES[rng.usize(..3)]);
            }
            _ => at = NODES[rng.usize(..3)],
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(1..40))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_linearizable_lists_over_kills_and_partitions() {
    let seed = std::env::var("NOFAULT_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("NOFAULT_SEED={seed}");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let addresses = free_addresses(&mut Rng::new(), 6);
    let by_id = |addresses: &[SocketAddr]| NODES.into_iter().zip(addresses.iter().copied()).collect();
    let places = Arc::new(Places { http: by_id(&addresses[..3]), nodes: by_id(&addresses[3..]) });
    let links = Links::open(&places.nodes).await.unwrap();
    let mut processes: BTreeMap<u64, Process> =
        NODES.into_iter().map(|id| (id, start(id, folder.path(), &places, &links))).collect();
    for _ in 0..600 {
        // Also when it is done already, and the answer was lost.
        if let Ok((200 | 409, _)) = ask(places.http[&1], "POST", "/initialize", b"").await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    leader(&places, &NODES).await;

    let (history, done) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (1..=6)
        .map(|at| tokio::spawn(client(places.clone(), history.clone(), done.clone(), seed * 100 + at, at > 3)))
        .collect();
    let mut rng = Rng::with_seed(seed);
    let (mut kills, mut splits) = (0, 0);
    for round in 0..8 {
        // The leader every other time: it is the one with something to lose.
        let victim = if round % 2 == 0 { leader(&places, &NODES).await } else { NODES[rng.usize(..3)] };
        if round % 4 < 2 {
            processes.remove(&victim);
            kills += 1;
            tokio::time::sleep(Duration::from_millis(rng.u64(200..800))).await;
            processes.insert(victim, start(victim, folder.path(), &places, &links));
        } else {
            links.split(&[victim]);
            splits += 1;
            // Long enough for another leader, and for clients to find it.
            let others: Vec<u64> = NODES.into_iter().filter(|id| *id != victim).collect();
            leader(&places, &others).await;
            tokio::time::sleep(Duration::from_millis(rng.u64(500..1000))).await;
            links.split(&[]);
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(100..600))).await;
    }
    // All at once, as in a power failure of the site.
    processes.clear();
    for id in NODES {
        processes.insert(id, start(id, folder.path(), &places, &links));
    }
    leader(&places, &NODES).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    done.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let last = leader(&places, &NODES).await;
    for key in 0..LISTS {
        let begun = history.tick();
        let (status, value) = ask(places.http[&last], "GET", &format!("/keys/{key}"), b"").await.unwrap();
        assert_eq!(status, 200);
        let read = Step::ReadList { key, elements: elements(&value), ranged: false };
        history.record(begun, Outcome::Committed, vec![read]);
    }
    let txns = std::mem::take(&mut *history.txns.lock().unwrap());
    let committed = txns.iter().filter(|txn| txn.outcome == Outcome::Committed).count();
    let counts = check(&txns).unwrap_or_else(|anomaly| panic!("seed {seed}: {anomaly}"));
    println!("{committed} of {} operations committed over {kills} kills and {splits} splits; {counts:?}", txns.len());
    assert!(committed > 200, "{committed} operations are no history to learn from");
}
