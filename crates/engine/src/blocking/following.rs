//! Watches, tails and changes since a commit, for threads.

use super::faces::blocking;
use super::{Db, Table};
use crate::db::{self, Change, Position, TailEvent, WatchEvent};
use crate::error::Result;
use crate::format::{CommitSeq, TableId};
use crate::sync::driver::block_on;

/// The changes of commits from now on, in the order of the commits: an iterator whose `next` waits. After a failure of the log it
/// returns the error and ends. See [`db::Watch`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// use nofault::db::{Change, WatchEvent};
///
/// let mut watch = stock.watch("app")?.bytes_max(1 << 20);
/// let writer = std::thread::spawn(move || {
///     stock.put("pears", "3")?;
///     stock.put("apples", "12")?;
///     Ok::<_, nofault::Error>(stock)
/// });
/// let Some(WatchEvent::Commit { commit, changes }) = watch.next().transpose()? else { panic!("a commit") };
/// let stock = writer.join().unwrap()?;
/// assert!(commit > watch.since());
/// let (key, value) = (b"apples".to_vec(), b"12".to_vec());
/// assert_eq!(changes, [Change::Put { table: stock.id(), key, value, expiry: None }]);
/// assert!(watch.try_next()?.is_none());
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug)]
pub struct Watch(pub(super) db::Watch);

blocking! {
    impl Watch as db::Watch {
        /// Limits the memory of commits waiting to be read.
        #[must_use]
        fn bytes_max(self, bytes: usize) -> Self => Self;
        /// The last commit that is not reported.
        fn since(&self) -> CommitSeq;
        /// Returns the next event if it has happened already.
        fn try_next(&mut self) -> Result<Option<WatchEvent>>;
    }
}

impl Iterator for Watch {
    type Item = Result<WatchEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next()).transpose()
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
pub struct Tail(pub(super) db::Tail);

blocking! {
    impl Tail as db::Tail {
        /// Limits the bytes of log that are kept.
        #[must_use]
        fn bytes_max(self, bytes: u64) -> Self => Self;
        /// The place behind the last event that was returned.
        fn reached(&self) -> Position;
        /// Allows the log to be used again before a position.
        fn release(&self, position: &Position);
        /// Returns the bytes of log that are kept.
        fn kept_bytes(&self) -> u64;
        /// Returns the next commit if it was read already.
        fn try_next(&mut self) -> Option<TailEvent>;
        /// Ends the tail: it has no handle of the database any more.
        async fn close(self);
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
        self.0.learn(of_source, table.0.clone());
    }
}

blocking! {
    impl ChangeApplier as db::ChangeApplier {
        /// Applies the changes of one commit.
        async fn apply(&mut self, changes: &[Change]) -> Result<()>;
    }
}

/// The changes of a table since a commit: an iterator that returns an error once, and then `None`. See
/// [`db::Snapshot::changes_since`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// let stock = db.create_table("stock")?;
/// let before = db.snapshot().commit();
/// stock.put("pears", "3")?;
/// // The removal of a range, and the entries that it has now.
/// assert_eq!(db.snapshot().changes_since(&stock, before)?.count(), 2);
/// # Ok::<(), nofault::Error>(())
/// ```
#[derive(Debug)]
pub struct ChangesSince(pub(super) db::ChangesSince);

impl Iterator for ChangesSince {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Result<Change>> {
        block_on(self.0.next()).transpose()
    }
}
