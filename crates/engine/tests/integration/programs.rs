//! Three programs, each written twice: over the calls of bytes with transactions by hand, and over those that do more. Both forms
//! answer the same calls alike. `docs/features.md` has the numbers of their lines.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

mod inbox_before;
mod people_before;
mod people_now;
mod sums_before;
mod sums_now;

use std::net::SocketAddr;
use std::time::Duration;

use crate::axum_example::service as inbox_now;
use fastrand::Rng;
use nofault::blocking::Db;
use nofault::clock::ManualClock;
use nofault::settings::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// A person, in the program with an index by city.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Person {
    name: String,
    city: String,
}

/// Group and number of a record, and its amount, in the program that sums them.
type RecordKey = (u32, u64);
type Amount = i64;

fn database(folder: &tempfile::TempDir, name: &str) -> Db {
    let settings = Settings { cache_bytes: 16 << 20, log_bytes: 4 << 20, ..Settings::default() };
    Db::create(folder.path().join(name), &settings).unwrap()
}

#[test]
fn people_by_city_are_the_same_in_both_forms() {
    let folder = tempfile::tempdir().unwrap();
    let (before, now) = (database(&folder, "before"), database(&folder, "now"));
    let before = people_before::People::open(&before).unwrap();
    let now = people_now::People::open(&now).unwrap();
    let cities = ["Ulm", "Ulmen", "Ulm\0", "", "Bad Ü", "Bonn"];
    let mut rng = Rng::with_seed(1);
    for step in 0..400_u32 {
        let number = rng.u64(..40);
        if rng.u8(..4) == 0 {
            before.remove(number).unwrap();
            now.remove(number).unwrap();
        } else {
            let city = cities[rng.usize(..cities.len())].to_owned();
            let person = Person { name: format!("name {step}"), city };
            before.put(number, &person).unwrap();
            now.put(number, &person).unwrap();
        }
        if step % 20 == 0 {
            let mut all = 0;
            for city in cities {
                let people = now.of_city(city).unwrap();
                assert!(people.iter().all(|(_, person)| person.city == city));
                assert_eq!(before.of_city(city).unwrap(), people, "{city:?} after {step} steps");
                all += people.len();
            }
            assert!(all <= 40);
        }
    }
}

fn sums_of_records(count: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (before, now) = (database(&folder, "before"), database(&folder, "now"));
    let before = sums_before::Records::open(&before).unwrap();
    let now = sums_now::Records::open(&now).unwrap();
    let groups = [0, 7, 8, u32::MAX];
    let record = move |at: u64| ((groups[(at * 4 / count) as usize], at), at as Amount * 3 - 1000);
    let loaded = [before.load((0..count).map(record)).unwrap(), now.load((0..count).map(record)).unwrap()];
    assert_eq!(loaded, [count; 2]);
    let mut rng = Rng::with_seed(2);
    // Of every ten keys one has no record.
    let keys: Vec<RecordKey> = (0..count / 10)
        .map(|_| record(rng.u64(..count)).0)
        .map(|(group, at)| (group, at + count * u64::from(at % 10 == 0)))
        .collect();
    let sum: Amount = keys.iter().filter(|(_, at)| *at < count).map(|(_, at)| record(*at).1).sum();
    assert_eq!([before.sum_of(&keys).unwrap(), now.sum_of(&keys).unwrap()], [sum; 2]);
    for group in [0, 1, 7, 8, u32::MAX] {
        let pages = now.pages_of(group).unwrap();
        assert_eq!(before.pages_of(group).unwrap(), pages, "group {group}");
        let all = (0..count).map(record).filter(|((of, _), _)| *of == group).map(|(_, amount)| amount);
        assert_eq!(pages.iter().sum::<Amount>(), all.sum::<Amount>(), "group {group}");
    }
}

#[test]
fn sums_over_records_are_the_same_in_both_forms() {
    sums_of_records(20_000);
}

#[test]
#[ignore = "two million records in each form: a minute in a debug build"]
fn sums_over_two_million_records_are_the_same_in_both_forms() {
    sums_of_records(2_000_000);
}

/// Sends a request and returns the status and the body of the answer.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.into())
}

/// Makes requests to an inbox, one after the other but for some that are made together, and returns the answers.
async fn requests(address: SocketAddr, clock: &ManualClock) -> Vec<(u16, String)> {
    let posts: Vec<_> =
        (0..10).map(|_| tokio::spawn(async move { ask(address, "POST", "/inbox/ann", "hello").await })).collect();
    let mut answers = Vec::new();
    for post in posts {
        answers.push(post.await.unwrap());
    }
    // Which of them comes first is open: the numbers that they get are not.
    answers.sort_by_key(|(_, number)| number.trim().parse::<u64>().unwrap());
    let rest = [
        ("POST", "/inbox/anna", "of another"),
        ("POST", "/inbox/ann?seconds=60", "soon gone"),
        ("POST", "/inbox/ann?seconds=18446744073709551615", "too long"),
        ("POST", "/inbox/ann", ""),
        ("POST", "/inbox/ann", "last"),
        ("DELETE", "/inbox/ann/3", ""),
        ("DELETE", "/inbox/bob/3", ""),
        ("GET", "/inbox/ann?limit=5", ""),
        ("GET", "/inbox/ann?after=6&limit=5", ""),
        ("GET", "/inbox/ann?after=11", ""),
        ("GET", "/inbox/bob", ""),
    ];
    for (method, path, body) in rest {
        answers.push(ask(address, method, path, body).await);
    }
    for pass in [59_999, 1] {
        clock.advance(Duration::from_millis(pass));
        answers.push(ask(address, "GET", "/inbox/ann?after=9", "").await);
    }
    answers
}

#[test]
fn the_inbox_answers_alike_in_both_forms_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let mut answers = [Vec::new(), Vec::new()];
        for (form, answers) in answers.iter_mut().enumerate() {
            let clock = ManualClock::at(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000));
            for _ in 0..2 {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let (stop, stopped) = oneshot::channel::<()>();
                let stopped = async { drop(stopped.await) };
                let path = folder.path().join(["before", "now"][form]);
                let asked = async {
                    answers.extend(requests(address, &clock).await);
                    stop.send(()).unwrap();
                };
                let served = async {
                    if form == 0 {
                        let db = again_while_busy(async || inbox_before::open(&path).await).await;
                        inbox_before::serve(db, clock.clone().into(), listener, stopped).await.unwrap();
                    } else {
                        let db = again_while_busy(async || inbox_now::open(&path, clock.clone().into()).await).await;
                        inbox_now::serve(db, listener, stopped).await.unwrap();
                    }
                };
                tokio::join!(asked, served);
            }
        }
        let [before, now] = answers;
        assert!(now.iter().filter(|(status, _)| *status == 200).count() > 30, "{now:?}");
        for ((before_status, before), (now_status, now)) in before.into_iter().zip(now) {
            assert_eq!((before_status, before), (now_status, now));
        }
    });
}

/// Opens a database again for as long as a connection of the service before keeps it open.
async fn again_while_busy(open: impl AsyncFn() -> Result<nofault::Db, nofault::Error>) -> nofault::Db {
    loop {
        match open().await {
            Ok(db) => return db,
            Err(error) => assert_eq!(error.kind(), nofault::ErrorKind::Busy, "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

/// Returns the number of lines that hold code, and no comment only.
fn lines_of_code(text: &str) -> usize {
    text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[test]
fn the_documentation_has_the_lines_of_each_form() {
    let documented =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/features.md")).unwrap();
    let (_, table) = documented.split_once("\n## Three programs").unwrap();
    let inbox_now = include_str!("../../examples/axum.rs");
    let forms = [
        ("inbox", include_str!("programs/inbox_before.rs"), inbox_now),
        ("people", include_str!("programs/people_before.rs"), include_str!("programs/people_now.rs")),
        ("sums", include_str!("programs/sums_before.rs"), include_str!("programs/sums_now.rs")),
    ];
    for (name, before, now) in forms {
        let row = table.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap();
        let lines: Vec<&str> = row.split('|').map(str::trim).skip(2).take(2).collect();
        assert_eq!(lines, [lines_of_code(before).to_string(), lines_of_code(now).to_string()], "{name}");
    }
}
