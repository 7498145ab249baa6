//! Changes applied together.

use std::sync::Arc;
use std::time::SystemTime;

use super::table::Table;
use crate::db::calls::write_set::{NewValue, WriteSet};
use crate::db::open::handle::Db;
use crate::format::Moment;

/// Changes applied together. Of several changes of one key the last counts.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// use nofault::{Batch, Durability};
///
/// let mut batch = Batch::new();
/// assert!(batch.is_empty());
/// batch.put(&stock, "apples", "12").put(&stock, "apples", "11").delete(&stock, "pears");
/// assert_eq!(batch.len(), 2);
/// db.write(batch, Durability::Sync)?;
/// assert_eq!(stock.get("apples")?, Some(b"11".to_vec()));
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Default, Clone)]
pub struct Batch {
    pub(in crate::db) writes: WriteSet,
    /// The databases to which the tables of the batch belong: a batch with more than one is refused.
    pub(in crate::db) db: Vec<Db>,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a key. The table may be one of [`crate::blocking`] as well.
    pub fn put(&mut self, table: impl AsRef<Table>, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.set(table.as_ref(), key.as_ref(), Some(NewValue::lasting(value.as_ref().to_vec())))
    }

    /// Sets the value of a key, and the time from which it is absent. See [`Table::put_with_expiry`].
    pub fn put_with_expiry(
        &mut self,
        table: impl AsRef<Table>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> &mut Self {
        self.put_until(table.as_ref(), key.as_ref(), value.as_ref(), Moment::at_or_after(expiry))
    }

    /// Sets the value of a key, and the moment at which it expires, if it ever does.
    pub(crate) fn put_until(&mut self, table: &Table, key: &[u8], value: &[u8], expiry: Moment) -> &mut Self {
        let value = NewValue::until(value.to_vec(), expiry, table.db.core.store.clock().now());
        self.set(table, key, Some(value))
    }

    /// Removes a key.
    pub fn delete(&mut self, table: impl AsRef<Table>, key: impl AsRef<[u8]>) -> &mut Self {
        self.set(table.as_ref(), key.as_ref(), None)
    }

    /// Returns the number of keys that the batch changes.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns whether the batch changes nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    fn set(&mut self, table: &Table, key: &[u8], value: Option<NewValue>) -> &mut Self {
        if !self.db.iter().any(|db| Arc::ptr_eq(&db.core, &table.db.core)) {
            self.db.push(table.db.clone());
        }
        self.writes.set(table.tree, key.to_vec(), value);
        self
    }
}
