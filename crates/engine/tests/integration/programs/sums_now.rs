//! Sums over records, over the calls of today.

use nofault::Error;
use nofault::blocking::{Db, TypedTable};

use super::{Amount, RecordKey};

/// Entries of a page.
const PAGE: usize = 1000;

pub(crate) struct Records {
    db: Db,
    records: TypedTable<RecordKey, Amount>,
}

impl Records {
    pub(crate) fn open(db: &Db) -> Result<Self, Error> {
        Ok(Self { db: db.clone(), records: db.open_or_create_typed_table("records")? })
    }

    pub(crate) fn load(&self, records: impl Iterator<Item = (RecordKey, Amount)>) -> Result<u64, Error> {
        self.records.bulk_load(records)
    }

    pub(crate) fn sum_of(&self, keys: &[RecordKey]) -> Result<Amount, Error> {
        let mut sum = 0;
        for keys in keys.chunks(PAGE) {
            sum += self.records.get_many(keys)?.into_iter().flatten().sum::<Amount>();
        }
        Ok(sum)
    }

    /// Returns the sums of the pages of a group, as another program would show them one by one.
    pub(crate) fn pages_of(&self, group: u32) -> Result<Vec<Amount>, Error> {
        let snapshot = self.db.begin_read();
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let mut page = self.records.in_snapshot(&snapshot).prefix(&(group,))?.limit(PAGE as u64);
            if let Some(last) = &after {
                page = page.after(last);
            }
            let mut sum = 0;
            let before = after;
            for entry in page {
                let (key, amount) = entry?;
                sum += amount;
                after = Some(key);
            }
            if after == before {
                return Ok(pages);
            }
            pages.push(sum);
        }
    }
}
