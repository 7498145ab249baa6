//! SQLite through `rusqlite`: a B+tree read by calls or through a map, a write-ahead log, one writer.
//!
//! An ordinary table with a blob as its primary key, as SQLite's documentation advises for rows of this size (WITHOUT ROWID
//! would spill each value of a kilobyte into a separate overflow page). The writers of a process share one connection behind a
//! lock: several connections would poll for SQLite's lock and sleep in between.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};

use super::{Key, LookAtEntry, LookAtValue, Reader, Room, Start, Store};
use crate::error::{LabError, LabErrorKind, Result};

/// SQLite as a store: a database with one table, and the connections of its threads.
pub(crate) struct Sqlite {
    file: PathBuf,
    /// Cache of each connection, in bytes.
    cache_bytes: u64,
    map_bytes: u64,
    writer: Mutex<Writer>,
    /// Idle connections of readers.
    idle: Mutex<Vec<Connection>>,
}

struct Writer {
    connection: Connection,
    durable: bool,
}

fn failed(error: rusqlite::Error) -> LabError {
    LabError::new(LabErrorKind::System, format!("sqlite: {error}"))
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sqlite {
    /// Creates a database in `folder`, or opens the existing one.
    pub(crate) fn start(folder: &Path, room: Room, start: Start, mapped: bool) -> Result<Self> {
        super::prepare(folder, start)?;
        let file = folder.join("data");
        let cache_bytes = room.cache_bytes / u64::from(room.threads.max(1) + 1);
        let map_bytes = if mapped { (room.data_bytes * 4 + (64 << 20)).next_multiple_of(1 << 20) } else { 0 };
        let connection = connect(&file, cache_bytes, map_bytes)?;
        let table = "CREATE TABLE IF NOT EXISTS main (key BLOB PRIMARY KEY, value BLOB NOT NULL)";
        connection.execute(table, []).map_err(failed)?;
        let writer = Mutex::new(Writer { connection, durable: true });
        Ok(Self { file, cache_bytes, map_bytes, writer, idle: Mutex::default() })
    }

    fn writer(&self, durable: bool) -> Result<MutexGuard<'_, Writer>> {
        let mut writer = held(&self.writer);
        if writer.durable != durable {
            writer.connection.pragma_update(None, "synchronous", mode(durable)).map_err(failed)?;
            writer.durable = durable;
        }
        Ok(writer)
    }

    fn number(&self, pragma: &str) -> Result<i64> {
        held(&self.writer).connection.pragma_query_value(None, pragma, |row| row.get(0)).map_err(failed)
    }
}

/// The value of `PRAGMA synchronous` for commits that are durable when they return, or deferred.
fn mode(durable: bool) -> &'static str {
    if durable { "FULL" } else { "NORMAL" }
}

fn connect(file: &Path, cache_bytes: u64, map_bytes: u64) -> Result<Connection> {
    let connection = Connection::open(file).map_err(failed)?;
    let log: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
    if !log.eq_ignore_ascii_case("wal") {
        return Err(LabError::new(LabErrorKind::Unsupported, format!("sqlite: no write-ahead log here, but {log}")));
    }
    connection.pragma_update(None, "synchronous", mode(true)).map_err(failed)?;
    let cache = i64::try_from(cache_bytes / 1024).unwrap_or(i64::MAX).max(64);
    // A negative value is in KiB.
    connection.pragma_update(None, "cache_size", -cache).map_err(failed)?;
    let map = i64::try_from(map_bytes).unwrap_or(i64::MAX);
    connection.pragma_update(None, "mmap_size", map).map_err(failed)?;
    connection.busy_timeout(std::time::Duration::from_secs(60)).map_err(failed)?;
    Ok(connection)
}

impl Store for Sqlite {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        let idle = held(&self.idle).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.file, self.cache_bytes, self.map_bytes)?,
        };
        Ok(Box::new(LentConnection { store: self, connection: Some(connection) }))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        let mut writer = self.writer(durable)?;
        let change = writer.connection.transaction().map_err(failed)?;
        {
            let put = "INSERT INTO main VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
            let mut put = change.prepare_cached(put).map_err(failed)?;
            for (key, value) in entries {
                put.execute(params![key.as_slice(), value.as_slice()]).map_err(failed)?;
            }
        }
        change.commit().map_err(failed)
    }

    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        let mut batch = Vec::new();
        while super::next_batch(entries, &mut batch) {
            self.write(&batch, false)?;
        }
        self.settle()
    }

    fn settle(&self) -> Result<()> {
        let writer = self.writer(true)?;
        let truncated = writer.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        match truncated.map_err(failed)? {
            0 => Ok(()),
            _ => Err(LabError::new(LabErrorKind::Busy, "sqlite: a reader kept the log from being emptied")),
        }
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        let bytes = |value: i64| crate::format::bytes(value.unsigned_abs());
        let got = if self.map_bytes > 0 { self.number("mmap_size")? } else { 0 };
        let mut map = bytes(got);
        if got.unsigned_abs() < self.map_bytes {
            let asked = crate::format::bytes(self.map_bytes);
            map += &format!(" of {asked} asked: this SQLite was built with a cap (SQLITE_MAX_MMAP_SIZE)");
        }
        Ok(vec![
            ("version", rusqlite::version().into()),
            ("page", bytes(self.number("page_size")?)),
            ("cache", format!("{} a connection", bytes(self.number("cache_size")? * 1024))),
            ("mmap_size", map),
            ("journal", "WAL, checkpoint each 1000 pages (the default)".into()),
            ("sync", "synchronous = FULL".into()),
            ("deferred", "synchronous = NORMAL".into()),
            (
                "filling",
                format!("{} a commit, synchronous = NORMAL, then a checkpoint", bytes(super::FILL_BYTES as i64)),
            ),
        ])
    }

    fn unequal(&self) -> &'static str {
        "sqlite: a statement is run for each operation, a table with an index on its key, checks no page, one writer at a time"
    }
}

/// A connection lent to one thread; dropping it returns the connection.
struct LentConnection<'a> {
    store: &'a Sqlite,
    connection: Option<Connection>,
}

impl Drop for LentConnection<'_> {
    fn drop(&mut self) {
        held(&self.store.idle).extend(self.connection.take());
    }
}

impl LentConnection<'_> {
    fn connection(&self) -> Result<&Connection> {
        self.connection.as_ref().ok_or_else(|| LabError::new(LabErrorKind::System, "sqlite: no connection"))
    }
}

fn bytes(value: ValueRef<'_>) -> Result<&[u8]> {
    value.as_blob().map_err(|error| LabError::new(LabErrorKind::System, format!("sqlite: {error}")))
}

impl Reader for LentConnection<'_> {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        let mut get = self.connection()?.prepare_cached("SELECT value FROM main WHERE key = ?1").map_err(failed)?;
        let mut rows = get.query(params![key.as_slice()]).map_err(failed)?;
        match rows.next().map_err(failed)? {
            Some(row) => look(Some(bytes(row.get_ref(0).map_err(failed)?)?)),
            None => look(None),
        }
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let scan = "SELECT key, value FROM main WHERE key >= ?1 ORDER BY key LIMIT ?2";
        let mut scan = self.connection()?.prepare_cached(scan).map_err(failed)?;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let mut rows = scan.query(params![from.as_slice(), count]).map_err(failed)?;
        let mut seen = 0;
        while let Some(row) = rows.next().map_err(failed)? {
            look(bytes(row.get_ref(0).map_err(failed)?)?, bytes(row.get_ref(1).map_err(failed)?)?)?;
            seen += 1;
        }
        Ok(seen)
    }
}
