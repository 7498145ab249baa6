//! Applies the log of a damaged database to the new one: what the commits after the last checkpoint changed.
//!
//! Records are in terms of tables and keys, so they need no page of the old database. They are applied in order, up to
//! the first damage of the log: the result is the state of one moment.

use super::fill::{Ending, Filler};
use super::source::Source;
use super::{SalvageReport, Watch};
use crate::db::Batch;
use crate::error::{Error, Result};
use crate::format::catalog::is_name;
use crate::format::record::Change;
use crate::format::{CommitSeq, Moment, Superblock, TableId};
use crate::pages::Durability;
use crate::settings::Compression;
use crate::transaction::CATALOG;
use crate::wal::{Anchor, LogOptions, LogPurpose, read_damaged_log};

/// Bytes of changes committed together.
const BATCH_BYTES: usize = 1 << 20;
/// Memory for parts of the log.
const BUFFER_BYTES: usize = 1 << 20;

/// Applies the records after the superblock's commit.
pub(super) fn replay(
    source: &Source,
    superblock: &Superblock,
    filler: &mut Filler<'_>,
    report: &mut SalvageReport,
    watch: &mut Watch<'_>,
) -> std::result::Result<(), Ending> {
    report.commit = superblock.commit;
    let options = LogOptions {
        file_id: superblock.file_id,
        segment_bytes: superblock.segment_bytes,
        log_bytes: 4 * superblock.segment_bytes,
        buffer_bytes: BUFFER_BYTES,
        seed: None,
        purpose: LogPurpose::Read,
    };
    let anchor = Anchor {
        position: superblock.log_anchor,
        sequence: superblock.log_anchor_sequence,
        checksum: superblock.log_anchor_checksum,
    };
    let read = source.log.as_ref().map_err(Error::clone);
    let (mut records, damage) = match read.and_then(|log| read_damaged_log(&**log, &options, anchor, superblock.commit))
    {
        Ok(read) => read,
        Err(error) => return Ok(note_cut(report, error)?),
    };
    let mut pending = Pending::default();
    let mut record = Vec::new();
    loop {
        record.clear();
        if !watch.record() {
            return Err(Ending::Stopped);
        }
        let commit = match records.next_into(&mut record) {
            Ok(Some(commit)) => commit,
            Ok(None) => break,
            Err(error) => {
                note_cut(report, error)?;
                break;
            }
        };
        // A record that is malformed although its checksum is right is skipped entirely.
        let mut rest = &record[..];
        let mut changes = Vec::new();
        let decoded = loop {
            match Change::decode(&mut rest) {
                Ok(Some(change)) => changes.push(change),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = decoded {
            note_cut(report, error.met_in(format_args!("commit {commit}")))?;
            break;
        }
        for change in changes {
            pending.apply(filler, commit, change)?;
        }
        report.commit = commit;
        report.commits_replayed += 1;
    }
    pending.flush(filler)?;
    if let Some(damage) = damage {
        note_cut(report, damage)?;
    }
    Ok(())
}

/// Notes that the log ends with damage.
///
/// # Errors
/// An error that says nothing about the log's content.
fn note_cut(report: &mut SalvageReport, why: Error) -> Result<()> {
    if why.is_of_the_moment() {
        return Err(why);
    }
    let what = format!("the state is of commit {}, and later commits may be lost: {why}", report.commit);
    report.history_cut.get_or_insert(what);
    Ok(())
}

/// Changes of keys waiting to be committed together.
#[derive(Default)]
struct Pending {
    batch: Batch,
    bytes: usize,
}

impl Pending {
    fn apply(&mut self, filler: &mut Filler<'_>, commit: CommitSeq, change: Change<'_>) -> Result<()> {
        match change {
            // The entries of dictionaries: the new database makes its own.
            Change::Put { table, .. } | Change::Delete { table, .. }
                if table == CATALOG.table || filler.left_out.contains(&table) =>
            {
                Ok(())
            }
            Change::Put { table, key, value, expiry } => self.set(filler, table, key, Some((value, expiry))),
            Change::Delete { table, key } => self.set(filler, table, key, None),
            Change::CreateTable { name, .. } if !is_name(name) => {
                filler.left_out.insert(TableId(commit.0));
                Ok(())
            }
            Change::CreateTable { name, compression } => {
                let id = TableId(commit.0);
                // Pages younger than the checkpoint may have named it.
                if filler.filled.contains_key(&id) {
                    return Ok(());
                }
                filler.create(id, &String::from_utf8_lossy(name), compression)
            }
            Change::DropTable { table, .. } => {
                self.flush(filler)?;
                let Some(dropped) = filler.filled.remove(&table) else { return Ok(()) };
                for table in std::iter::once(&dropped.table).chain(&dropped.unsure) {
                    filler.db.drop_table(table.name())?;
                }
                Ok(())
            }
            Change::RenameTable { table, to, .. } => {
                let Some(filled) = filler.filled.get(&table) else { return Ok(()) };
                let name = filled.table.name().to_owned();
                self.flush(filler)?;
                // Handles go by the table's number, and have the name that they were opened with.
                filler.rename(table, &name, &String::from_utf8_lossy(to))
            }
            // Opening the new table as a typed one sets its types again.
            Change::SetTypes { .. } => Ok(()),
            Change::SetCompression { table, compression, .. } => match filler.filled.get(&table) {
                Some(filled) => filler.db.set_compression(filled.table.name(), compression),
                None => Ok(()),
            },
        }
    }

    fn set(
        &mut self,
        filler: &mut Filler<'_>,
        table: TableId,
        key: &[u8],
        value: Option<(&[u8], Moment)>,
    ) -> Result<()> {
        if !filler.filled.contains_key(&table) {
            filler.create(table, &format!("unnamed-{table}"), Compression::None)?;
        }
        let Some(filled) = filler.filled.get_mut(&table) else { return Ok(()) };
        filled.losses.values.remove(key);
        match value {
            Some((value, expiry)) => drop(self.batch.put_until(filled.table.as_ref(), key, value, expiry)),
            None => drop(self.batch.delete(&filled.table, key)),
        }
        if let Some(unsure) = &filled.unsure {
            self.batch.delete(unsure, key);
        }
        self.bytes += key.len() + value.map_or(0, |(value, _)| value.len());
        if self.bytes > BATCH_BYTES { self.flush(filler) } else { Ok(()) }
    }

    fn flush(&mut self, filler: &Filler<'_>) -> Result<()> {
        self.bytes = 0;
        filler.db.write(std::mem::take(&mut self.batch), Durability::Deferred)
    }
}
