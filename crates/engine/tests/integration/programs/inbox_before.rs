//! The inbox of `examples/axum.rs`, over the calls of bytes: transactions and expiry by hand, closing on another thread.

use std::collections::HashMap;
use std::ops::Bound;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use nofault::clock::ClockSource;
use nofault::settings::Settings;
use nofault::{Db, Durability, Error, ErrorKind, Table, Transaction};

/// Most messages of one page.
const PAGE_MAX: u64 = 100;
/// The time in front of a message that does not expire.
const NEVER: u64 = u64::MAX;
/// Most messages removed in one transaction.
const SWEPT_AT_ONCE: usize = 32;
/// Time between two looks for messages that have expired.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Runs of a transaction, and the pause after the first of them, which doubles.
const RUNS_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone)]
struct Inboxes {
    db: Db,
    clock: ClockSource,
    /// Messages by user and number, each with its time in front.
    messages: Table,
    /// The number of the newest message of each user.
    newest: Table,
    /// The keys of messages that expire, behind their times.
    times: Table,
}

struct Refusal(StatusCode, String);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl axum::response::IntoResponse for Refusal {
    fn into_response(self) -> axum::response::Response {
        (self.0, self.1).into_response()
    }
}

fn prefix_of(user: &str) -> Vec<u8> {
    [&[user.len().min(255) as u8], user.as_bytes()].concat()
}

fn key_of(user: &str, number: u64) -> Vec<u8> {
    [&prefix_of(user)[..], &number.to_be_bytes()].concat()
}

fn number_in(bytes: &[u8]) -> u64 {
    bytes.last_chunk().map_or(0, |number| u64::from_be_bytes(*number))
}

/// Returns the first key after all that begin with `prefix`.
fn end_of(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 255 {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns the time of a message, and the message.
fn message_in(value: &[u8]) -> (u64, &[u8]) {
    value.split_first_chunk().map_or((NEVER, value), |(time, message)| (u64::from_be_bytes(*time), message))
}

impl Inboxes {
    fn now(&self) -> u64 {
        millis(self.clock.now())
    }

    async fn post(&self, change: &Transaction, user: &str, message: &str, expiry: u64) -> Result<u64, Error> {
        let number = change.get(&self.newest, user).await?.map_or(0, |number| number_in(&number)) + 1;
        change.put(&self.newest, user, number.to_be_bytes())?;
        let key = key_of(user, number);
        if expiry != NEVER {
            change.put(&self.times, [&expiry.to_be_bytes()[..], &key].concat(), "")?;
        }
        change.put(&self.messages, key, [&expiry.to_be_bytes()[..], message.as_bytes()].concat())?;
        Ok(number)
    }

    /// Removes a message, and what the table of times has of it.
    async fn remove(&self, change: &Transaction, key: &[u8]) -> Result<(), Error> {
        if let Some(value) = change.get(&self.messages, key).await? {
            let (time, _) = message_in(&value);
            if time != NEVER {
                change.delete(&self.times, [&time.to_be_bytes()[..], key].concat())?;
            }
            change.delete(&self.messages, key)?;
        }
        Ok(())
    }

    /// Removes messages that have expired, until there are none or the service stops.
    async fn sweep(&self, is_stopped: &AtomicBool) -> Result<(), Error> {
        while !is_stopped.load(Ordering::Relaxed) {
            let until = (self.now() + 1).to_be_bytes().to_vec();
            let mut due = self.times.range::<Vec<u8>>((Bound::Unbounded, Bound::Excluded(until)));
            let mut keys = Vec::new();
            while keys.len() < SWEPT_AT_ONCE
                && let Some((key, _)) = due.next().await?
            {
                keys.push(key);
            }
            drop(due);
            if keys.is_empty() {
                return Ok(());
            }
            let change = self.db.begin();
            for key in keys {
                self.remove(&change, &key[8..]).await?;
            }
            match change.commit(Durability::Deferred).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                ended => ended?,
            }
        }
        Ok(())
    }
}

async fn post_message(
    State(inboxes): State<Inboxes>,
    Path(user): Path<String>,
    Query(query): Query<HashMap<String, u64>>,
    message: String,
) -> Result<String, Refusal> {
    if message.is_empty() {
        return Err(Refusal(StatusCode::BAD_REQUEST, "an empty message".into()));
    }
    let expiry = match query.get("seconds") {
        Some(seconds) => {
            let expiry = seconds.checked_mul(1000).and_then(|millis| inboxes.now().checked_add(millis));
            expiry.ok_or_else(|| Refusal(StatusCode::BAD_REQUEST, "too many seconds".into()))?
        }
        None => NEVER,
    };
    let mut pause = PAUSE;
    for _ in 0..RUNS_MAX {
        let change = inboxes.db.begin();
        let number = inboxes.post(&change, &user, &message, expiry).await?;
        match change.commit(Durability::Sync).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            ended => return Ok(ended.map(|()| format!("{number}\n"))?),
        }
    }
    Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, "too many posts at a time".into()))
}

async fn page(
    State(inboxes): State<Inboxes>,
    Path(user): Path<String>,
    Query(query): Query<HashMap<String, u64>>,
) -> Result<String, Refusal> {
    let after = key_of(&user, query.get("after").copied().unwrap_or(0));
    let limit = query.get("limit").copied().unwrap_or(PAGE_MAX).min(PAGE_MAX);
    let end = end_of(&prefix_of(&user));
    let mut range = inboxes.messages.range::<Vec<u8>>((Bound::Excluded(after), end));
    let (now, mut count, mut lines) = (inboxes.now(), 0, String::new());
    while count < limit
        && let Some((key, value)) = range.next().await?
    {
        let (time, message) = message_in(&value);
        if time > now {
            lines += &format!("{}\t{}\n", number_in(&key), String::from_utf8_lossy(message));
            count += 1;
        }
    }
    Ok(lines)
}

async fn delete_message(
    State(inboxes): State<Inboxes>,
    Path((user, number)): Path<(String, u64)>,
) -> Result<StatusCode, Refusal> {
    for _ in 0..RUNS_MAX {
        let change = inboxes.db.begin();
        inboxes.remove(&change, &key_of(&user, number)).await?;
        match change.commit(Durability::Sync).await {
            Err(error) if error.kind() == ErrorKind::Conflict => tokio::time::sleep(PAUSE).await,
            ended => return Ok(ended.map(|()| StatusCode::NO_CONTENT)?),
        }
    }
    Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, "too many changes at a time".into()))
}

pub(crate) async fn open(folder: &FilePath) -> Result<Db, Error> {
    let settings = Settings { cache_bytes: 64 << 20, ..Settings::default() };
    match Db::open(folder, &settings).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Db::create(folder, &settings).await,
        opened => opened,
    }
}

async fn open_or_create(db: &Db, name: &str) -> Result<Table, Error> {
    match db.table(name).await {
        Err(error) if error.kind() == ErrorKind::NotFound => db.create_table(name).await,
        opened => opened,
    }
}

pub(crate) async fn serve(
    db: Db,
    clock: ClockSource,
    listener: tokio::net::TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn std::error::Error>> {
    let messages = open_or_create(&db, "messages").await?;
    let newest = open_or_create(&db, "newest").await?;
    let times = open_or_create(&db, "times").await?;
    let inboxes = Inboxes { db, clock, messages, newest, times };
    let is_stopped = Arc::new(AtomicBool::new(false));
    let (sweeper, is_over) = (inboxes.clone(), Arc::clone(&is_stopped));
    let sweeping = tokio::spawn(async move {
        while !is_over.load(Ordering::Relaxed) {
            sweeper.sweep(&is_over).await?;
            tokio::time::sleep(SWEEP_EVERY).await;
        }
        Ok::<(), Error>(())
    });
    let service = Router::new()
        .route("/inbox/{user}", get(page).post(post_message))
        .route("/inbox/{user}/{number}", delete(delete_message))
        .with_state(inboxes.clone());
    axum::serve(listener, service).with_graceful_shutdown(stop).await?;
    is_stopped.store(true, Ordering::Relaxed);
    sweeping.await??;
    // Dropping the last handle waits for the disk.
    tokio::task::spawn_blocking(move || drop(inboxes)).await?;
    Ok(())
}
