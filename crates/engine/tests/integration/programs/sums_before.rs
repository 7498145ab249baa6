//! Sums over records, over the calls of bytes.

use std::ops::Bound;

use nofault::Error;
use nofault::blocking::{Db, Table};

use super::{Amount, RecordKey};

/// Entries of a page.
const PAGE: usize = 1000;

pub(crate) struct Records {
    db: Db,
    records: Table,
}

fn key_of((group, number): RecordKey) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&group.to_be_bytes());
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

fn amount_in(value: &[u8]) -> Result<Amount, Error> {
    match value.first_chunk() {
        Some(amount) if value.len() == 8 => Ok(Amount::from_le_bytes(*amount)),
        _ => panic!("a record of {} bytes", value.len()),
    }
}

impl Records {
    pub(crate) fn open(db: &Db) -> Result<Self, Error> {
        let records = match db.table("records") {
            Err(error) if error.kind() == nofault::ErrorKind::NotFound => db.create_table("records")?,
            opened => opened?,
        };
        Ok(Self { db: db.clone(), records })
    }

    pub(crate) fn load(&self, records: impl Iterator<Item = (RecordKey, Amount)>) -> Result<u64, Error> {
        self.records.bulk_load(records.map(|(key, amount)| (key_of(key), amount.to_le_bytes())))
    }

    pub(crate) fn sum_of(&self, keys: &[RecordKey]) -> Result<Amount, Error> {
        let mut sum = 0;
        for keys in keys.chunks(PAGE) {
            let keys: Vec<[u8; 12]> = keys.iter().map(|key| key_of(*key)).collect();
            for value in self.records.get_many(&keys)?.into_iter().flatten() {
                sum += amount_in(&value)?;
            }
        }
        Ok(sum)
    }

    /// Returns the sums of the pages of a group, as another program would show them one by one.
    pub(crate) fn pages_of(&self, group: u32) -> Result<Vec<Amount>, Error> {
        let snapshot = self.db.snapshot();
        let mut pages = Vec::new();
        let mut start = Bound::Included(key_of((group, 0)).to_vec());
        let end = match group.checked_add(1) {
            Some(next) => Bound::Excluded(key_of((next, 0)).to_vec()),
            None => Bound::Unbounded,
        };
        loop {
            let (mut sum, mut count, mut last) = (0, 0, Vec::new());
            for entry in snapshot.range::<Vec<u8>>(&self.records, (start.clone(), end.clone()))? {
                let (key, value) = entry?;
                sum += amount_in(&value)?;
                count += 1;
                last = key;
                if count == PAGE {
                    break;
                }
            }
            if count == 0 {
                return Ok(pages);
            }
            pages.push(sum);
            start = Bound::Excluded(last);
        }
    }
}
