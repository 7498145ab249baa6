//! The example of a service: requests over loopback, also many at a time, a stop, and a second start on the same data.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "../../examples/axum.rs"]
#[expect(dead_code, reason = "the example's main function is not run")]
pub(crate) mod service;

use std::net::SocketAddr;
use std::time::Duration;

use nofault::clock::ManualClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends a request and returns the status and the body of the answer.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.into())
}

#[test]
fn the_inbox_numbers_pages_and_keeps_messages_over_a_restart() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let path = folder.path().join("db");
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        for start in 0..2 {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let db = loop {
                match service::open(&path, clock.clone().into()).await {
                    Ok(db) => break db,
                    // A connection of the first start has not quite ended.
                    Err(error) => assert_eq!(error.kind(), nofault::ErrorKind::Busy, "{error}"),
                }
                tokio::task::yield_now().await;
            };
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let clock = clock.clone();
            let requests = async move {
                let posts: Vec<_> = (0..20)
                    .map(|_| tokio::spawn(async move { ask(address, "POST", "/inbox/ann", "hello").await }))
                    .collect();
                let mut numbers = Vec::new();
                for post in posts {
                    let (status, number) = post.await.unwrap();
                    assert_eq!(status, 200, "{number}");
                    numbers.push(number.trim().parse::<u64>().unwrap());
                }
                numbers.sort_unstable();
                let first = start * 20;
                assert!(numbers.into_iter().eq(first + 1..=first + 20), "each number is given once");
                ask(address, "POST", "/inbox/anna", "for another").await;
                assert_eq!(ask(address, "POST", "/inbox/ann", "").await.0, 400);
                let (mut seen, mut after) = (0, 0);
                loop {
                    let (status, page) = ask(address, "GET", &format!("/inbox/ann?after={after}&limit=7"), "").await;
                    assert_eq!(status, 200);
                    let Some(last) = page.lines().last() else { break };
                    assert!(page.lines().count() <= 7 && page.lines().all(|line| line.ends_with("\thello")));
                    (seen, after) = (seen + page.lines().count(), last.split('\t').next().unwrap().parse().unwrap());
                }
                assert_eq!((seen as u64, after), (first + 20 - start, first + 20), "one of the first start is deleted");
                assert_eq!(ask(address, "DELETE", "/inbox/ann/1", "").await.0, 204);
                let (status, metrics) = ask(address, "GET", "/metrics", "").await;
                assert!(status == 200 && metrics.contains("\nnofault_commit_seconds_count "), "{metrics}");
                // Another inbox, for a message that expires after a minute.
                ask(address, "POST", "/inbox/bob?seconds=60", "soon gone").await;
                ask(address, "POST", "/inbox/bob", "stays").await;
                clock.advance(Duration::from_millis(59_999));
                let of_bob = async || ask(address, "GET", "/inbox/bob", "").await.1;
                let (first, second) = (2 * start + 1, 2 * start + 2);
                assert!(of_bob().await.ends_with(&format!("{first}\tsoon gone\n{second}\tstays\n")));
                clock.advance(Duration::from_millis(1));
                assert!(!of_bob().await.contains("soon gone"));
                stop.send(()).unwrap();
            };
            let served = service::serve(db, listener, async { drop(stopped.await) });
            let (served, ()) = tokio::join!(served, requests);
            served.unwrap();
        }
    });
}
