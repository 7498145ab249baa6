//! Bases: the content of all tables as of one commit, written from a snapshot in parts of bounded size. A dense copy: key after key,
//! without free space, so its size is that of the entries.

use nofault::db::Change;
use nofault::{Db, Snapshot};

use crate::error::Result;
use crate::manifest::{Base, NamedObject};
use crate::object::{ObjectWriter, time_to_ms};
use crate::remote::Remote;
use crate::writer::part_name;

/// Bytes of a part, about.
const PART_BYTES: usize = 8 << 20;
/// Bytes of a part before compression, about: the memory that reading it takes.
const PART_RAW_BYTES: u64 = 32 << 20;
/// Entries that are encoded together, and their bytes.
const ENTRIES_AT_ONCE: usize = 512;
const BYTES_AT_ONCE: usize = 1 << 20;

/// Writes the base of a snapshot. The names of its parts begin with `name`.
pub(crate) async fn write_base(remote: &Remote, db: &Db, snapshot: &Snapshot, name: String) -> Result<Base> {
    let (commit, time_ms) = (snapshot.commit().0, time_to_ms(db.now()));
    let page_bytes = db.page_bytes() as u64;
    let mut parts = Parts { remote, name, commit, time_ms, writer: ObjectWriter::new(), done: Vec::new() };
    for of_table in snapshot.table_names().await? {
        let table = snapshot.table(&of_table).await?;
        let (id, compression) = (table.id(), snapshot.compression(&of_table).await?);
        let mut changes = vec![
            Change::CreateTable { table: id, name: of_table.clone() },
            Change::SetCompression { table: id, compression },
        ];
        changes.extend(snapshot.types(&of_table).await?.map(|types| Change::SetTypes { table: id, types }));
        let mut range = snapshot.range::<&[u8]>(&table, ..)?;
        let mut bytes = 0;
        while let Some((key, value)) = range.next().await? {
            bytes += key.len() + value.len();
            changes.push(Change::Put { table: id, key, value, expiry: range.expiry() });
            if changes.len() >= ENTRIES_AT_ONCE || bytes >= BYTES_AT_ONCE {
                parts.push(&std::mem::take(&mut changes)).await?;
                bytes = 0;
                // Entries that are in memory are read without a wait, and other tasks of this thread wait, too.
                tokio::task::yield_now().await;
            }
        }
        parts.push(&changes).await?;
    }
    parts.end_part().await?;
    Ok(Base { commit, time_ms, page_bytes, parts: parts.done })
}

struct Parts<'r> {
    remote: &'r Remote,
    name: String,
    commit: u64,
    time_ms: u64,
    writer: ObjectWriter,
    done: Vec<NamedObject>,
}

impl Parts<'_> {
    async fn push(&mut self, changes: &[Change]) -> Result<()> {
        self.writer.push(self.commit, self.time_ms, changes)?;
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
