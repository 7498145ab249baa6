//! An inbox over HTTP: messages are stored in a transaction, expire if the sender says so, are read page by page, and the
//! database is closed at the end.
//!
//! Run with `cargo run -p nofault --example axum [ADDRESS]`, then:
//!
//! ```sh
//! curl -d 'hello' localhost:3000/inbox/ann          # prints the number of the message
//! curl -d 'soon gone' 'localhost:3000/inbox/ann?seconds=60'
//! curl 'localhost:3000/inbox/ann?after=0&limit=20'  # a page: number, tab, message
//! curl -X DELETE localhost:3000/inbox/ann/1
//! curl localhost:3000/metrics                       # for Prometheus
//! ```
//!
//! A test (`tests/integration/axum_example.rs`) runs the same service over loopback.

use std::collections::HashMap;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use nofault::clock::{ClockSource, SystemClock};
use nofault::settings::Settings;
use nofault::{Db, Durability, Error, Table};

/// Most messages of one page.
const PAGE_MAX: u64 = 100;

/// The database and its tables. Cloning gives further handles.
#[derive(Clone)]
struct Inboxes {
    db: Db,
    /// Messages by user and number.
    messages: Table,
    /// The number of the newest message of each user.
    newest: Table,
}

/// A refused request, with the reason.
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

/// Returns what the keys of a user begin with. The length in front keeps the keys of "ann" and "anna" apart.
fn prefix_of(user: &str) -> Vec<u8> {
    [&[user.len().min(255) as u8], user.as_bytes()].concat()
}

/// Returns the key of a message. Big-endian, so that the order of the keys is the order of the numbers.
fn key_of(user: &str, number: u64) -> Vec<u8> {
    [&prefix_of(user)[..], &number.to_be_bytes()].concat()
}

fn number_in(bytes: &[u8]) -> u64 {
    bytes.last_chunk().map_or(0, |number| u64::from_be_bytes(*number))
}

async fn post_message(
    State(inboxes): State<Inboxes>,
    Path(user): Path<String>,
    Query(query): Query<HashMap<String, u64>>,
    message: String,
) -> Result<String, Refusal> {
    let Inboxes { db, messages, newest } = &inboxes;
    // Number and message become durable together. Two posts at the same time get two numbers: one of them runs again.
    let number = db.transact(Durability::Sync, async |change| {
        if message.is_empty() {
            return Err(Refusal(StatusCode::BAD_REQUEST, "an empty message".into()));
        }
        let number = change.get(newest, &user).await?.map_or(0, |number| number_in(&number)) + 1;
        change.put(newest, &user, number.to_be_bytes())?;
        let key = key_of(&user, number);
        match query.get("seconds") {
            // From then on no page shows it, and the database removes it.
            Some(seconds) => {
                let expiry = db.now().checked_add(Duration::from_secs(*seconds));
                let expiry = expiry.ok_or_else(|| Refusal(StatusCode::BAD_REQUEST, "too many seconds".into()))?;
                change.put_with_expiry(messages, key, &message, expiry)?;
            }
            None => change.put(messages, key, &message)?,
        }
        Ok(number)
    });
    Ok(format!("{}\n", number.await?))
}

async fn page(
    State(Inboxes { messages, .. }): State<Inboxes>,
    Path(user): Path<String>,
    Query(query): Query<HashMap<String, u64>>,
) -> Result<String, Refusal> {
    let after = key_of(&user, query.get("after").copied().unwrap_or(0));
    let limit = query.get("limit").copied().unwrap_or(PAGE_MAX).min(PAGE_MAX);
    let mut range = messages.prefix(prefix_of(&user)).after(after).limit(limit);
    let mut lines = String::new();
    while let Some((key, message)) = range.next_ref().await? {
        lines += &format!("{}\t{}\n", number_in(key), String::from_utf8_lossy(message));
    }
    Ok(lines)
}

/// The answer to Prometheus's scrapes.
async fn metrics(State(inboxes): State<Inboxes>) -> String {
    inboxes.db.stats().to_prometheus()
}

async fn delete_message(
    State(Inboxes { messages, .. }): State<Inboxes>,
    Path((user, number)): Path<(String, u64)>,
) -> Result<StatusCode, Refusal> {
    messages.delete(key_of(&user, number)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Opens the database in `folder`, and creates it at the first start. Messages expire by `clock`: a test has its own.
///
/// # Errors
/// The errors of opening.
pub(crate) async fn open(folder: &std::path::Path, clock: ClockSource) -> Result<Db, Error> {
    Db::open_or_create(folder, &Settings { cache_bytes: 64 << 20, clock, ..Settings::default() }).await
}

/// Serves the database until `stop` is ready, then closes it.
///
/// # Errors
/// The errors of the database and of the listener.
pub(crate) async fn serve(
    db: Db,
    listener: tokio::net::TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn std::error::Error>> {
    let messages = db.open_or_create_table("messages").await?;
    let newest = db.open_or_create_table("newest").await?;
    let service = Router::new()
        .route("/metrics", get(metrics))
        .route("/inbox/{user}", get(page).post(post_message))
        .route("/inbox/{user}/{number}", delete(delete_message))
        .with_state(Inboxes { db: db.clone(), messages, newest });
    axum::serve(listener, service).with_graceful_shutdown(stop).await?;
    // A connection that is just ending may have a handle still: its calls fail from now on.
    Ok(db.close().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    let db = open(&std::env::temp_dir().join("nofault-inbox"), SystemClock.into()).await?;
    println!("listening on {}", listener.local_addr()?);
    serve(db, listener, async { drop(tokio::signal::ctrl_c().await) }).await
}
