//! Bases: the content of all tables as of one commit, written from a snapshot in parts of bounded size. One of the whole is a dense
//! copy: key after key, without free space, so its size is that of the entries. An increment has the content of pages that
//! were written after the base before it. Also decides when one is due.

use nofault::db::Change;
use nofault::{CommitSeq, Db, Snapshot, Table};

use crate::error::Result;
use crate::manifest::{Base, Epoch, Foundation, NamedObject};
use crate::object::{ObjectWriter, time_to_ms};
use crate::options::ShipOptions;
use crate::remote::Remote;
use crate::writer::part_name;

/// Bytes of a part, about.
const PART_BYTES: usize = 8 << 20;
/// Bytes of a part before compression, about: the memory that reading it takes.
const PART_RAW_BYTES: u64 = 32 << 20;
/// Entries that are encoded together, and their bytes.
const ENTRIES_AT_ONCE: usize = 512;
const BYTES_AT_ONCE: usize = 1 << 20;
/// Most increments on a base of the whole: a restore applies each of them.
const INCREMENTS_MAX: usize = 64;

/// A base that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextBase {
    /// The content of all tables.
    Whole,
    /// The changes since the last base.
    Increment(Foundation),
}

/// Returns the base that is due, so that a restore has less log to apply.
///
/// Kept true by: increments on one base take no more than that and the last of them, each is written only after as much log
/// as the one before it took, and a base of the whole only after `base_share` times as much as it takes. So the log that is shipped
/// pays for all of them.
pub(crate) fn due(epoch: &Epoch, options: &ShipOptions) -> Option<NextBase> {
    let last = epoch.bases.last()?;
    let whole = epoch.bases.iter().rposition(|base| !base.is_increment())?;
    let (whole, increments) = (&epoch.bases[whole], &epoch.bases[whole + 1..]);
    let since = epoch.log.iter().filter(|log| log.last > last.commit).map(|log| log.object.bytes).sum::<u64>();
    let before = increments.iter().filter_map(|base| base.on).map(|on| on.log_bytes).sum::<u64>();
    let (whole_bytes, least) = (whole.bytes(), options.object_bytes as u64);
    let is_whole_due =
        || since.saturating_add(before) > whole_bytes.max(least).saturating_mul(options.base_share.into());
    let increments_bytes = increments.iter().map(Base::bytes).sum::<u64>();
    let wants_increments = options.increment_percent > 0
        && whole_bytes >= least
        && increments_bytes < whole_bytes
        && increments.len() < INCREMENTS_MAX;
    if !wants_increments {
        return is_whole_due().then_some(NextBase::Whole);
    }
    let step = (u128::from(whole_bytes) * u128::from(options.increment_percent) / 100) as u64;
    let step = step.max(least).max(increments.last().map_or(0, Base::bytes));
    (since > step).then_some(NextBase::Increment(Foundation { commit: last.commit, log_bytes: since }))
}

/// Writes the base of a snapshot. The names of its parts begin with `name`.
pub(crate) async fn write_base(
    remote: &Remote,
    db: &Db,
    snapshot: &Snapshot,
    next: NextBase,
    name: String,
) -> Result<Base> {
    let (commit, time_ms) = (snapshot.commit().0, time_to_ms(db.now()));
    let page_bytes = db.page_bytes() as u64;
    let writer = ObjectWriter::new();
    let mut parts =
        Parts { remote, name, commit, time_ms, writer, done: Vec::new(), changes: Vec::new(), changes_bytes: 0 };
    let on = match next {
        NextBase::Whole => {
            write_whole(&mut parts, snapshot).await?;
            None
        }
        NextBase::Increment(on) => {
            write_changes(&mut parts, snapshot, CommitSeq(on.commit)).await?;
            Some(on)
        }
    };
    parts.end_part().await?;
    Ok(Base { commit, time_ms, page_bytes, on, position: None, parts: parts.done })
}

/// Writes each table: its name and properties, and then its entries.
async fn write_whole(parts: &mut Parts<'_>, snapshot: &Snapshot) -> Result<()> {
    for of_table in snapshot.table_names().await? {
        let (table, description) = describe(snapshot, of_table).await?;
        parts.changes.extend(description);
        let mut range = snapshot.range::<&[u8]>(&table, ..)?;
        while let Some((key, value)) = range.next().await? {
            parts.add(Change::Put { table: table.id(), key, value, expiry: range.expiry() }).await?;
        }
        parts.end_commit().await?;
    }
    Ok(())
}

/// Writes the names and properties of all tables, in one commit, and then the changes of each.
async fn write_changes(parts: &mut Parts<'_>, snapshot: &Snapshot, since: CommitSeq) -> Result<()> {
    let mut tables = Vec::new();
    for of_table in snapshot.table_names().await? {
        let (table, description) = describe(snapshot, of_table).await?;
        parts.changes.extend(description);
        tables.push(table);
    }
    parts.end_commit().await?;
    for table in tables {
        let mut found = snapshot.changes_since(&table, since)?;
        while let Some(change) = found.next().await? {
            parts.add(change).await?;
        }
    }
    if parts.changes.is_empty() { Ok(()) } else { parts.end_commit().await }
}

/// Opens a table of a snapshot. Also returns the changes that make a table like it.
async fn describe(snapshot: &Snapshot, name: String) -> Result<(Table, Vec<Change>)> {
    let table = snapshot.table(&name).await?;
    let (id, compression) = (table.id(), snapshot.compression(&name).await?);
    let types = snapshot.types(&name).await?.map(|types| Change::SetTypes { table: id, types });
    let description = [Change::CreateTable { table: id, name }, Change::SetCompression { table: id, compression }];
    Ok((table, description.into_iter().chain(types).collect()))
}

struct Parts<'r> {
    remote: &'r Remote,
    name: String,
    commit: u64,
    time_ms: u64,
    writer: ObjectWriter,
    done: Vec<NamedObject>,
    /// Changes that are not in the object yet, and their bytes.
    changes: Vec<Change>,
    changes_bytes: usize,
}

impl Parts<'_> {
    async fn add(&mut self, change: Change) -> Result<()> {
        self.changes_bytes += match &change {
            Change::Put { key, value, .. } => key.len() + value.len(),
            Change::DeleteRange { start, end, .. } => start.len() + end.as_ref().map_or(0, Vec::len),
            _ => 0,
        };
        self.changes.push(change);
        if self.changes.len() >= ENTRIES_AT_ONCE || self.changes_bytes >= BYTES_AT_ONCE {
            self.end_commit().await?;
            // Entries that are in memory are read without a wait, and other tasks of this thread wait, too.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Writes the changes that were added as one commit: the state after all of them counts, not those between.
    async fn end_commit(&mut self) -> Result<()> {
        self.writer.push(self.commit, self.time_ms, &std::mem::take(&mut self.changes))?;
        self.changes_bytes = 0;
        let is_full = self.writer.len_bytes() >= PART_BYTES || self.writer.raw_bytes() >= PART_RAW_BYTES;
        if is_full { self.end_part().await } else { Ok(()) }
    }

    async fn end_part(&mut self) -> Result<()> {
        let bytes = std::mem::replace(&mut self.writer, ObjectWriter::new()).finish();
        let object = NamedObject::new(part_name(&self.name, self.done.len()), &bytes);
        self.remote.put(&object.name, bytes).await?;
        self.done.push(object);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::LogObject;

    /// An epoch with a base of the whole of 1,000 bytes, increments with the bytes of each and of the log before it, and so many bytes
    /// of log behind them.
    fn epoch(increments: &[(usize, u64)], log_bytes: u64) -> Epoch {
        let base = |commit, bytes, on| {
            let object = NamedObject::new(String::new(), &vec![0; bytes]);
            Base { commit, time_ms: 0, page_bytes: 4096, on, position: None, parts: vec![object] }
        };
        let mut bases = vec![base(10, 1000, None)];
        for (at, (bytes, log_bytes)) in increments.iter().enumerate() {
            let on = Foundation { commit: 10 + at as u64, log_bytes: *log_bytes };
            bases.push(base(11 + at as u64, *bytes, Some(on)));
        }
        let last = bases.last().map_or(0, |base| base.commit);
        let piece = |after, last, bytes| {
            let object = NamedObject { bytes, ..NamedObject::new(String::new(), b"") };
            LogObject { level: 0, after, last, last_time_ms: 0, raw_bytes: bytes, object }
        };
        let log = vec![piece(9, last, 1 << 30), piece(last, last + 1, log_bytes)];
        Epoch {
            id: 1,
            database: String::new(),
            begun_by: String::new(),
            bases,
            log,
            position: String::new(),
            last: last + 1,
            last_time_ms: 0,
        }
    }

    #[test]
    fn an_increment_is_due_by_the_log_and_a_whole_base_when_increments_have_become_as_large() {
        let options = ShipOptions { object_bytes: 100, ..ShipOptions::default() };
        let of = |increments: &[(usize, u64)], log, options: &ShipOptions| due(&epoch(increments, log), options);
        let on = |commit, log_bytes| Some(NextBase::Increment(Foundation { commit, log_bytes }));
        assert_eq!(of(&[], 250, &options), None);
        assert_eq!(of(&[], 251, &options), on(10, 251));
        assert_eq!(of(&[(70, 251)], 250, &options), None);
        assert_eq!(of(&[(70, 251)], 251, &options), on(11, 251));
        // Not before as much log as the last one took.
        assert_eq!(of(&[(600, 251)], 600, &options), None);
        assert_eq!(of(&[(600, 251)], 601, &options), on(11, 601));
        // Together as large as the whole: next is the whole, after four times as much log in all.
        assert_eq!(of(&[(600, 251), (400, 700)], 3049, &options), None);
        assert_eq!(of(&[(600, 251), (400, 700)], 3050, &options), Some(NextBase::Whole));
        let many = vec![(1, 251); INCREMENTS_MAX];
        assert_eq!(of(&many[1..], 251, &options), on(9 + INCREMENTS_MAX as u64, 251));
        assert_eq!(of(&many, 251, &options), Some(NextBase::Whole));
        // Without increments, and for a database that takes less than an object.
        let none = ShipOptions { increment_percent: 0, ..options.clone() };
        let larger = ShipOptions { object_bytes: 1001, ..options.clone() };
        assert_eq!((of(&[], 4000, &none), of(&[], 4001, &none)), (None, Some(NextBase::Whole)));
        assert_eq!((of(&[], 4004, &larger), of(&[], 4005, &larger)), (None, Some(NextBase::Whole)));
        assert_eq!(of(&[], 101, &ShipOptions { increment_percent: 1, ..options }), on(10, 101));
    }
}
