//! Bases: the content of all tables as of one commit, written from a snapshot in parts of bounded size. A base of the whole is a
//! dense copy: key after key, without free space, so it is as large as the entries. An increment has the content of the pages
//! written after the base before it. Also decides when one is due.

use nofault::db::{Change, Position};
use nofault::{CommitSeq, Db, Snapshot, Table};

use crate::error::Result;
use crate::label::{Content, Part};
use crate::manifest::{Base, Epoch, EpochName, Foundation, NamedObject, hex_of};
use crate::names::part_name;
use crate::object::{ObjectWriter, time_to_ms};
use crate::options::ShipOptions;
use crate::writer::Writer;

/// Bytes of a part, about.
const PART_BYTES: usize = 8 << 20;
/// Bytes of a part before compression, about: the memory that reading it takes.
const PART_RAW_BYTES: u64 = 32 << 20;
/// Entries encoded together, and their bytes.
const ENTRIES_AT_ONCE: usize = 512;
const BYTES_AT_ONCE: usize = 1 << 20;
/// Most increments on a base of the whole: a restore applies each of them.
const INCREMENTS_MAX: usize = 64;

/// A base to be written.
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

/// Writes the base of a snapshot for an epoch. `position` is the place behind its commit.
pub(crate) async fn write_base(
    writer: &mut Writer,
    db: &Db,
    snapshot: &Snapshot,
    position: &Position,
    next: NextBase,
    epoch: EpochName,
) -> Result<Base> {
    let base = Base {
        commit: snapshot.commit().0,
        time_ms: time_to_ms(db.now()),
        page_bytes: db.page_bytes() as u64,
        on: if let NextBase::Increment(on) = next { Some(on) } else { None },
        position: Some(hex_of(&position.to_bytes())),
        parts: Vec::new(),
    };
    let (name, object) = (writer.base_name(), ObjectWriter::new());
    let mut parts = Parts { writer, name, epoch, base, object, changes: Vec::new(), changes_bytes: 0 };
    match next {
        NextBase::Whole => write_whole(&mut parts, snapshot).await?,
        NextBase::Increment(on) => write_changes(&mut parts, snapshot, CommitSeq(on.commit)).await?,
    }
    parts.end_part(true).await?;
    Ok(parts.base)
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

struct Parts<'w> {
    writer: &'w mut Writer,
    name: String,
    epoch: EpochName,
    /// With the parts that are done.
    base: Base,
    object: ObjectWriter,
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
            // Entries in memory are read without a wait, and other tasks of this thread wait, too.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Writes the added changes as one commit: the state after all of them counts, and no state between.
    async fn end_commit(&mut self) -> Result<()> {
        self.object.push(self.base.commit, self.base.time_ms, &std::mem::take(&mut self.changes))?;
        self.changes_bytes = 0;
        let is_full = self.object.len_bytes() >= PART_BYTES || self.object.raw_bytes() >= PART_RAW_BYTES;
        if is_full { self.end_part(false).await } else { Ok(()) }
    }

    async fn end_part(&mut self, is_last: bool) -> Result<()> {
        let Base { commit, time_ms, page_bytes, on, position, parts } = &self.base;
        let part = Part {
            commit: *commit,
            time_ms: *time_ms,
            page_bytes: *page_bytes,
            on: *on,
            position: position.clone().unwrap_or_default(),
            number: parts.len() as u64,
            is_last,
        };
        let name = part_name(&self.name, parts.len());
        let object = std::mem::replace(&mut self.object, ObjectWriter::new());
        let bytes = self.writer.labelled(object, self.epoch.clone(), Content::Base(part))?;
        let object = NamedObject::new(name, &bytes);
        self.writer.remote.put(&object.name, bytes).await?;
        self.base.parts.push(object);
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
