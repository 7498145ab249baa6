//! Tails with blocking calls, for threads.

use super::{Db, Snapshot, Table};
use crate::db::{self, Change, Position, TailEvent};
use crate::driver::block_on;
use crate::error::Result;
use crate::format::TableId;

impl Db {
    /// Begins to follow the commits. See [`db::Db::begin_tail`].
    ///
    /// # Errors
    /// As [`db::Db::begin_tail`].
    pub fn begin_tail(&self) -> Result<(Snapshot, Tail)> {
        let (snapshot, tail) = block_on(self.0.begin_tail())?;
        Ok((Snapshot::new(snapshot), Tail(tail)))
    }

    /// Continues to follow the commits behind a position. See [`db::Db::tail`].
    ///
    /// # Errors
    /// As [`db::Db::tail`].
    pub fn tail(&self, from: &Position) -> Result<Tail> {
        block_on(self.0.tail(from)).map(Tail)
    }
}

/// The durable commits of a database from a position on: an iterator whose `next` waits. It returns an error for as long as there is
/// one, and never ends. See [`db::Tail`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// use nofault::db::{Change, TailEvent};
///
/// let (snapshot, mut tail) = db.begin_tail()?;
/// stock.put("pears", "3")?;
/// let Some(TailEvent::Commit { commit, changes, .. }) = tail.next().transpose()? else { panic!("a commit") };
/// assert!(commit > snapshot.commit());
/// let (key, value) = (b"pears".to_vec(), b"3".to_vec());
/// assert_eq!(changes, [Change::Put { table: stock.id(), key, value, expiry: None }]);
/// # Ok::<(), nofault::Error>(())
/// ```
#[derive(Debug)]
pub struct Tail(db::Tail);

impl Tail {
    /// Limits the bytes of log that are kept. See [`db::Tail::bytes_max`].
    #[must_use]
    pub fn bytes_max(self, bytes: u64) -> Self {
        Self(self.0.bytes_max(bytes))
    }

    /// The place behind the last event that was returned. See [`db::Tail::reached`].
    pub fn reached(&self) -> Position {
        self.0.reached()
    }

    /// Allows the log to be used again before a position. See [`db::Tail::release`].
    pub fn release(&self, position: &Position) {
        self.0.release(position);
    }

    /// Returns the bytes of log that are kept. See [`db::Tail::kept_bytes`].
    pub fn kept_bytes(&self) -> u64 {
        self.0.kept_bytes()
    }

    /// Returns the next commit if it was read already. See [`db::Tail::try_next`].
    pub fn try_next(&mut self) -> Option<TailEvent> {
        self.0.try_next()
    }

    /// Ends the tail: it has no handle of the database any more. See [`db::Tail::close`].
    pub fn close(self) {
        block_on(self.0.close());
    }
}

impl Iterator for Tail {
    type Item = Result<TailEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(block_on(self.0.next()))
    }
}

/// Applies the changes of one database to another. See [`db::ChangeApplier`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let copy = nofault::blocking::Db::create(folder.path().join("copy"), &settings)?;
/// use nofault::{blocking::ChangeApplier, db::TailEvent};
///
/// let (_, mut tail) = db.begin_tail()?;
/// db.create_table("stock")?.put("pears", "3")?;
/// let mut applier = ChangeApplier::new(&copy);
/// while tail.reached().commit() < db.snapshot().commit() {
///     if let Some(TailEvent::Commit { changes, .. }) = tail.next().transpose()? {
///         applier.apply(&changes)?;
///     }
/// }
/// assert_eq!(copy.table("stock")?.get("pears")?, Some(b"3".to_vec()));
/// # Ok::<(), nofault::Error>(())
/// ```
#[derive(Debug)]
pub struct ChangeApplier(db::ChangeApplier);

impl ChangeApplier {
    /// Creates an applier to a database without tables. See [`db::ChangeApplier::new`].
    pub fn new(to: &Db) -> Self {
        Self(db::ChangeApplier::new(&to.0))
    }

    /// Notes that a table has the content of a table of the source. See [`db::ChangeApplier::learn`].
    pub fn learn(&mut self, of_source: TableId, table: &Table) {
        self.0.learn(of_source, AsRef::<db::Table>::as_ref(table).clone());
    }

    /// Applies the changes of one commit. See [`db::ChangeApplier::apply`].
    ///
    /// # Errors
    /// As [`db::ChangeApplier::apply`].
    pub fn apply(&mut self, changes: &[Change]) -> Result<()> {
        block_on(self.0.apply(changes))
    }
}
