//! Nodes whose core ends, and nodes that come back with less than they had.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nofault_raft::{ended, while_running};
use openraft::BasicNode;
use tokio::sync::watch;

use crate::app::{Request, VALUES};
use crate::node::{Life, live};
use crate::service::{Options, serve_clients};
use crate::{Cluster, NODES, Process, ask, free_addresses, words};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Waits until a process has ended by itself.
async fn ended_by_itself(mut process: Process) -> Option<i32> {
    tokio::task::spawn_blocking(move || process.0.wait().unwrap().code()).await.unwrap()
}

/// Waits until a node has applied this value.
async fn has_applied(cluster: &Cluster, id: u64, at_least: u64) {
    loop {
        if let Ok((200, status)) = ask(cluster.places.http[&id], "GET", "/status", b"").await {
            let status = String::from_utf8(status).unwrap();
            let applied = status.lines().find_map(|line| line.strip_prefix("applied ")).unwrap();
            if applied.parse::<u64>().unwrap() >= at_least {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn applied_by_leader(cluster: &Cluster) -> u64 {
    let leader = cluster.leader(&NODES).await;
    let (_, status) = ask(cluster.places.http[&leader], "GET", "/status", b"").await.unwrap();
    let status = String::from_utf8(status).unwrap();
    status.lines().find_map(|line| line.strip_prefix("applied ")).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_with_an_older_or_emptied_folder_ends_and_comes_back_as_a_new_member() {
    let mut cluster = Cluster::start().await;
    let leader = cluster.leader(&NODES).await;
    let follower = if leader == 3 { 2 } else { 3 };
    cluster.carry_out("PUT", "/keys/before", "1").await;
    has_applied(&cluster, follower, applied_by_leader(&cluster).await).await;
    cluster.kill(follower);
    let (folder, older) = (cluster.path(follower), cluster.folder.path().join("older"));
    copy(&folder, &older);
    cluster.run(follower);
    cluster.carry_out("PUT", "/keys/more", "2").await;
    has_applied(&cluster, follower, applied_by_leader(&cluster).await).await;
    cluster.kill(follower);

    for (kind, shows) in [("older", "an older copy"), ("older", "an older copy"), ("emptied", "it was emptied")] {
        if kind == "emptied" {
            std::fs::remove_dir_all(&folder).unwrap();
        } else if !std::fs::exists(older.with_extension("used")).unwrap() {
            std::fs::remove_dir_all(&folder).unwrap();
            copy(&older, &folder);
            // The second time it is the copy that was refused, started again.
            std::fs::write(older.with_extension("used"), "").unwrap();
        }
        std::fs::write(cluster.said(follower), "").unwrap();
        cluster.run(follower);
        let process = cluster.processes.remove(&follower).unwrap();
        assert_eq!(ended_by_itself(process).await, Some(1), "{kind}");
        let said = std::fs::read_to_string(cluster.said(follower)).unwrap();
        assert!(
            said.contains(shows) && said.contains("remove it from the members, empty its folder"),
            "{kind}: {said}"
        );
        // The others go on.
        cluster.carry_out("PUT", "/keys/while", kind).await;
    }

    // As the message says.
    cluster.carry_out("DELETE", &format!("/members/{follower}"), "").await;
    std::fs::remove_dir_all(&folder).unwrap();
    cluster.run(follower);
    let address = cluster.places.nodes[&follower].to_string();
    cluster.carry_out("PUT", &format!("/members/{follower}"), &address).await;
    cluster.carry_out("PUT", "/voters", &words(&BTreeSet::from(NODES))).await;
    has_applied(&cluster, follower, applied_by_leader(&cluster).await).await;
    assert_eq!(cluster.members().await, (BTreeSet::from(NODES), BTreeSet::new()));
}

/// Waits for a life whose raft runs.
async fn running(told: &mut watch::Receiver<Result<Arc<Life>, String>>) -> Arc<Life> {
    told.wait_for(Life::has_begun).await.unwrap().clone().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_core_has_ended_says_why_and_starts_it_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let addresses = free_addresses(&mut fastrand::Rng::new(), 2);
    let (http, listen, peers) = (addresses[0], addresses[1], BTreeMap::new());
    let options = Options { id: 1, folder: folder.path().into(), http, listen, peers };
    let told = watch::Sender::new(Err("not yet".to_owned()));
    let mut watched = told.subscribe();
    let lives = tokio::spawn({
        let (options, told) = (options.clone(), told.clone());
        async move { live(&options, &told).await.to_string() }
    });
    let first = running(&mut watched).await;
    let raft = first.raft.get().unwrap();
    raft.initialize(BTreeMap::from([(1, BasicNode::default())])).await.unwrap();
    raft.wait(None).current_leader(1, "itself").await.unwrap();
    let put = Request::Put { key: "k".into(), value: b"v".to_vec() };
    raft.client_write(put.clone()).await.unwrap();
    // A service that is not told of the end of the life.
    let life = watch::Sender::new(Ok(first.clone()));
    let service = tokio::spawn({
        let (options, life) = (options.clone(), life.subscribe());
        async move { serve_clients(&options, life).await }
    });
    let status = async || loop {
        if let Ok((code, what)) = ask(http, "GET", "/status", b"").await {
            return (code, String::from_utf8(what).unwrap());
        }
    };
    let (code, what) = status().await;
    assert!(code == 200 && what.contains("leader 1"), "{code} {what}");

    // The next snapshot cannot be written, which ends the core, as a full disk does.
    std::fs::remove_dir_all(folder.path().join("snapshots")).unwrap();
    raft.trigger().snapshot().await.unwrap();
    ended(raft).await;
    let (code, what) = status().await;
    assert!(code == 503 && what.contains("the node has stopped") && what.contains("snapshots"), "{code} {what}");
    drop(life.send_replace(Err("no life".into())));
    while_running(raft, raft.client_write(put.clone())).await.unwrap_err();
    // The next life waits for everything that the program has of this one.
    let said = watched.wait_for(Result::is_err).await.unwrap().clone().map(drop).unwrap_err();
    assert!(said.contains("node 1 has stopped"), "{said}");
    drop(first);
    let second = running(&mut watched).await;
    let raft = second.raft.get().unwrap();
    raft.wait(None).current_leader(1, "itself").await.unwrap();
    raft.client_write(put).await.unwrap();
    assert_eq!(second.reader.view().get(VALUES, "k").await.unwrap(), Some(b"v".to_vec()));
    lives.abort();
    service.abort();
}
