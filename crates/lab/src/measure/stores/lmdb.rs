//! LMDB through `heed`: one map, one writer, readers holding a transaction.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, PutFlags, RoTxn, WithTls};

use super::{Key, LookAtEntry, LookAtValue, Reader, Room, Start, Store};
use crate::error::{LabError, LabErrorKind, Result};

/// LMDB as a store: an environment with one database.
pub(crate) struct Lmdb {
    env: Env<WithTls>,
    database: Database<'static, Bytes, Bytes>,
    map_bytes: u64,
}

fn failed(error: heed::Error) -> LabError {
    LabError::new(LabErrorKind::System, format!("lmdb: {error}"))
}

impl Lmdb {
    /// Creates an environment in `folder`, or opens the existing one.
    pub(crate) fn start(folder: &Path, room: Room, start: Start, read_ahead: bool) -> Result<Self> {
        super::prepare(folder, start)?;
        let mut options = EnvOpenOptions::new();
        // Address space, not disk: the file may grow to this size while readers hold old pages.
        let map_bytes = (room.data_bytes * 4 + (1 << 30)).next_multiple_of(4096);
        options.map_size(usize::try_from(map_bytes).unwrap_or(usize::MAX));
        options.max_readers(room.threads.max(126));
        // SAFETY: the folder was made by us, no other process or environment has it open, and no flag is set that
        // gives up LMDB's locks; NO_READ_AHEAD only advises the kernel.
        let env = unsafe {
            if !read_ahead {
                options.flags(EnvFlags::NO_READ_AHEAD);
            }
            options.open(folder)
        }
        .map_err(failed)?;
        let change = env.write_txn().map_err(failed)?;
        let made = env.create_databases_and_commit(change, |opener, change| {
            opener.create_database::<Bytes, Bytes>(change, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        let CommitOrAbort::Commit(database) = made.map_err(failed)? else {
            return Err(LabError::new(LabErrorKind::System, "lmdb: its database was not made"));
        };
        Ok(Self { env, database, map_bytes })
    }

    fn synced(&self, durable: bool) -> Result<()> {
        let mode = if durable { FlagSetMode::Disable } else { FlagSetMode::Enable };
        // SAFETY: NO_SYNC gives up durability at a crash of the machine and nothing else; the files are removed afterwards.
        unsafe { self.env.set_flags(EnvFlags::NO_SYNC, mode) }.map_err(failed)
    }
}

impl Store for Lmdb {
    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        let transaction = self.env.read_txn().map_err(failed)?;
        Ok(Box::new(ReadView { transaction, database: self.database }))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        self.synced(durable)?;
        let mut change = self.env.write_txn().map_err(failed)?;
        for (key, value) in entries {
            self.database.put(&mut change, key, value).map_err(failed)?;
        }
        change.commit().map_err(failed)
    }

    fn fill(&self, entries: &mut dyn Iterator<Item = (Key, Vec<u8>)>) -> Result<()> {
        self.synced(false)?;
        let mut batch = Vec::new();
        while super::next_batch(entries, &mut batch) {
            let mut change = self.env.write_txn().map_err(failed)?;
            for (key, value) in &batch {
                self.database.put_with_flags(&mut change, PutFlags::APPEND, key, value).map_err(failed)?;
            }
            change.commit().map_err(failed)?;
        }
        self.settle()
    }

    fn settle(&self) -> Result<()> {
        self.env.force_sync().map_err(failed)
    }

    fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        let flags = self.env.flags().map_err(failed)?;
        let version = heed::lmdb_version();
        Ok(vec![
            ("version", format!("{}.{}.{}", version.major, version.minor, version.patch)),
            ("map", crate::format::bytes(self.map_bytes)),
            ("flags", flags.map_or("none".into(), |flags| format!("{flags:?}"))),
            ("sync", "data pages by pwrite, then fdatasync, then the meta page, synced".into()),
            ("deferred", "MDB_NOSYNC: after a power cut the file may be broken, not only old".into()),
            (
                "filling",
                format!("MDB_APPEND, {} a commit, a sync at the end", crate::format::bytes(super::FILL_BYTES as u64)),
            ),
        ])
    }

    fn unequal(&self) -> &'static str {
        "lmdb: values borrowed from the map, checks no page, cached by the kernel as memory allows, one writer at a time"
    }
}

struct ReadView<'a> {
    transaction: RoTxn<'a, WithTls>,
    database: Database<'static, Bytes, Bytes>,
}

impl Reader for ReadView<'_> {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        look(self.database.get(&self.transaction, key).map_err(failed)?)
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let range = (Bound::Included(from.as_slice()), Bound::Unbounded);
        let mut seen = 0;
        for entry in self.database.range(&self.transaction, &range).map_err(failed)?.take(count) {
            let (key, value) = entry.map_err(failed)?;
            look(key, value)?;
            seen += 1;
        }
        Ok(seen)
    }
}
