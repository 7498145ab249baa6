//! LMDB through `heed`: one map, one writer, readers that hold a transaction.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, PutFlags, RoTxn, WithTls};

use super::{Data, Key, LookAtEntry, LookAtValue, Reader, Store};
use crate::error::{LabError, LabErrorKind, Result};

/// An environment with one database.
pub(super) struct Lmdb {
    env: Env<WithTls>,
    database: Database<'static, Bytes, Bytes>,
}

fn failed(error: heed::Error) -> LabError {
    LabError::new(LabErrorKind::System, format!("lmdb: {error}"))
}

impl Lmdb {
    /// Makes one in `folder` and fills it in order, appending.
    pub(super) fn load(folder: &Path, data: Data) -> Result<Self> {
        std::fs::create_dir(folder).map_err(|error| LabError::system(folder.display(), &error))?;
        let mut options = EnvOpenOptions::new();
        let map_bytes = usize::try_from(data.user_bytes() * 4 + (1 << 30)).unwrap_or(usize::MAX);
        options.map_size(map_bytes.next_multiple_of(4096));
        // SAFETY: the folder was just made by us, no other process or environment has it open, and no flag is set that
        // gives up LMDB's locks; NO_READ_AHEAD only advises the kernel.
        let env = unsafe {
            options.flags(EnvFlags::NO_READ_AHEAD);
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
        let mut change = env.write_txn().map_err(failed)?;
        for (key, value) in data.entries() {
            database.put_with_flags(&mut change, PutFlags::APPEND, &key, &value).map_err(failed)?;
        }
        change.commit().map_err(failed)?;
        Ok(Self { env, database })
    }
}

impl Store for Lmdb {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        let held = self.env.read_txn().map_err(failed)?;
        Ok(Box::new(Held { held, database: self.database }))
    }

    fn write(&self, entries: &[(Key, Vec<u8>)], durable: bool) -> Result<()> {
        let mode = if durable { FlagSetMode::Disable } else { FlagSetMode::Enable };
        // SAFETY: NO_SYNC gives up durability at a crash of the machine and nothing else; the files are removed afterwards.
        unsafe { self.env.set_flags(EnvFlags::NO_SYNC, mode) }.map_err(failed)?;
        let mut change = self.env.write_txn().map_err(failed)?;
        for (key, value) in entries {
            self.database.put(&mut change, key, value).map_err(failed)?;
        }
        change.commit().map_err(failed)
    }

    fn unequal(&self) -> &'static str {
        "lmdb: mapped without read-ahead, values borrowed from the map, checks no page, cached by the kernel as memory allows"
    }
}

struct Held<'a> {
    held: RoTxn<'a, WithTls>,
    database: Database<'static, Bytes, Bytes>,
}

impl Reader for Held<'_> {
    fn get(&mut self, key: &Key, look: LookAtValue<'_>) -> Result<()> {
        look(self.database.get(&self.held, key).map_err(failed)?)
    }

    fn scan(&mut self, from: &Key, count: usize, look: LookAtEntry<'_>) -> Result<usize> {
        let range = (Bound::Included(from.as_slice()), Bound::Unbounded);
        let mut seen = 0;
        for entry in self.database.range(&self.held, &range).map_err(failed)?.take(count) {
            let (key, value) = entry.map_err(failed)?;
            look(key, value)?;
            seen += 1;
        }
        Ok(seen)
    }
}
