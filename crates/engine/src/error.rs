//! The one public error type. [`ErrorKind`] tells which reaction is possible; the message names the failure, its place
//! and its cause.
//!
//! Errors are `Clone`: one failed read is reported to every task waiting for the page. An error has no `source`: its
//! message contains the cause, which a printer of whole chains would print a second time.

use std::fmt;
use std::sync::Arc;

use nofault_io::process::Process;

use crate::ids::PageId;

/// Result of everything in this crate.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// fn count(stock: &nofault::blocking::Table, name: &str) -> nofault::error::Result<usize> {
///     Ok(stock.get(name)?.map_or(0, |count| count.len()))
/// }
/// assert_eq!(count(&stock, "apples")?, 0);
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error: tells the caller which reaction is possible.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// use nofault::{blocking::Db, error::ErrorKind};
///
/// let path = folder.path().join("shop");
/// let db = match Db::open(&path, &settings) {
///     Err(error) if error.kind() == ErrorKind::NotFound => Db::create(&path, &settings)?,
///     other => other?,
/// };
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another transaction changed data that this one read. Nothing was written: run it again (`transact` does).
    Conflict,
    /// `transact` has made as many runs, or has taken as long, as its caller allows, and each run was in conflict with
    /// another commit. Nothing was written: report that the data is in demand, or try again later.
    RetriesExhausted,
    /// The transaction has read more single keys and ranges than it may remember: read neighbours as one range, read
    /// keys that need not be current in a snapshot, or set a larger cache.
    TransactionTooLarge,
    /// The snapshot held more old pages than the settings allow, and was given up: take a new one. Or a reader in another
    /// process stayed at a checkpoint for longer than the writer keeps it: call [`Db::refresh`](crate::Db::refresh).
    SnapshotTooOld,
    /// The database was opened for reading only, so nothing was written: open it with [`Db::open`](crate::Db::open).
    ReadOnly,
    /// Another process or handle has the database open; the message names the holder. Close it there first.
    Busy,
    /// The part of the log from which a tail was to go on is not there any more: begin with a snapshot
    /// ([`Db::begin_tail`](crate::Db::begin_tail)).
    TailTooOld,
    /// The call itself is wrong (key too long, empty name, settings that contradict each other): fix the call.
    InvalidCall,
    /// The table has keys or values of another type: open it with the types that the message names.
    WrongType,
    /// There is no such database, file or table: create it, or check the name.
    NotFound,
    /// The database, file or table exists already, or a part of it: open it, restore the missing part, or choose
    /// another name.
    AlreadyExists,
    /// Rights are missing: change them, or run as another user.
    NoPermission,
    /// The disk or a quota is full, or a size set when the database was made or opened, which the message names.
    /// Reads go on. Free some space, then repeat.
    NoSpace,
    /// The process, its user or the machine has no descriptors, threads, memory or address space left. Nothing was changed
    /// by an opening that failed so. Raise the limit that the message names, or close something, then repeat.
    NoResources,
    /// This kernel, file system or version of nofault does not support the call; the message says what is required.
    Unsupported,
    /// Bytes on disk differ from the bytes written there, or a file of the database is missing. The message
    /// names page and position, or the file. Put the file back; run `verify`, restore from a backup. Calls that do not
    /// touch a damaged page go on working.
    Corrupt,
    /// The device or its driver failed. A read may be tried again.
    Io,
    /// A write of the log or a sync failed earlier, so nothing more is promised: reads go on, commits fail until the
    /// database is reopened.
    Poisoned,
    /// The database was closed ([`Db::close`](crate::Db::close)), its disk stopped working, or this process was forked from
    /// the one that opened it: open it (again), in this process.
    Closed,
    /// nofault broke one of its promises. Please report it, with the message.
    Bug,
}

/// An error: its [kind](ErrorKind), a message, and the damaged page if it concerns one.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let error = db.create_table("stock").unwrap_err();
/// assert_eq!(error.kind(), nofault::error::ErrorKind::AlreadyExists);
/// assert_eq!(error.to_string(), "table \"stock\" exists already");
/// assert_eq!(error.page(), None);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Arc<Repr>);

struct Repr {
    kind: ErrorKind,
    message: String,
    page: Option<PageId>,
    /// For a conflict the position up to which the log must be durable before another run makes sense.
    conflict_position: Option<u64>,
}

impl Repr {
    fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, message, page: None, conflict_position: None }
    }
}

impl Error {
    /// Creates an error of this kind with this message.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Repr::new(kind, message.into())))
    }

    /// Creates an error about the damaged page `page`; `what` completes the sentence "page 7: …".
    pub(crate) fn corrupt_page(page: PageId, what: impl fmt::Display) -> Self {
        let message = format!("page {page}: {what}");
        Self(Arc::new(Repr { page: Some(page), ..Repr::new(ErrorKind::Corrupt, message) }))
    }

    /// Creates the error of a transaction that lost to another commit. Another run makes sense once the log is durable
    /// up to `position`.
    pub(crate) fn conflict(position: u64) -> Self {
        let message = "another transaction changed data that this one read; run it again".into();
        Self(Arc::new(Repr { conflict_position: Some(position), ..Repr::new(ErrorKind::Conflict, message) }))
    }

    /// Creates the error of a call that would change a database that is only read.
    pub(crate) fn read_only() -> Self {
        Self::new(ErrorKind::ReadOnly, "the database was opened for reading only: open it with `Db::open` to write")
    }

    /// Returns the error with the part of the database where it occurred put before its message.
    pub(crate) fn met_in(&self, place: impl fmt::Display) -> Self {
        let Repr { kind, message, page, conflict_position } = &*self.0;
        let message = format!("{place}: {message}");
        Self(Arc::new(Repr { kind: *kind, message, page: *page, conflict_position: *conflict_position }))
    }

    /// Creates an error from one of the I/O layer that occurred while doing `action`.
    pub(crate) fn from_io(action: impl fmt::Display, source: nofault_io::error::Error) -> Self {
        use nofault_io::error::ErrorKind as Io;
        let kind = match source.kind() {
            Io::InvalidCall | Io::Other => ErrorKind::Io,
            Io::Unsupported => ErrorKind::Unsupported,
            Io::NoPermission => ErrorKind::NoPermission,
            Io::NotFound => ErrorKind::NotFound,
            Io::AlreadyExists => ErrorKind::AlreadyExists,
            Io::Busy => ErrorKind::Busy,
            Io::NoSpace => ErrorKind::NoSpace,
            Io::NoResources => ErrorKind::NoResources,
            Io::Short => ErrorKind::Corrupt,
            Io::TooOld => ErrorKind::SnapshotTooOld,
            Io::Stopped => ErrorKind::Closed,
            _ => ErrorKind::Io,
        };
        Self(Arc::new(Repr::new(kind, format!("{action}: {source}"))))
    }

    /// Fails in a process forked from `process`, which opened the database: its threads, rings and pages are there
    /// and not here.
    ///
    /// # Errors
    /// `Closed`.
    #[inline]
    pub(crate) fn unless_here(process: Process) -> Result<()> {
        if process.is_here() { Ok(()) } else { Err(Self::forked()) }
    }

    /// Creates the error of a call in a forked process.
    #[cold]
    pub(crate) fn forked() -> Self {
        let what = "the database was opened before this process was forked, and belongs to the parent: open it in this process";
        Self::new(ErrorKind::Closed, what)
    }

    /// Creates the error of a thread that the system does not start.
    pub(crate) fn from_spawn(error: &std::io::Error) -> Self {
        let error = nofault_io::error::Error::from_spawn("start a thread", error);
        Self::new(ErrorKind::NoResources, error.to_string())
    }

    /// Returns the kind of the error, which decides what the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the error is about this process or this machine at the moment, such as a limit or missing rights, and says nothing
    /// about the data to be read: another attempt may read it. It never counts as damage.
    pub(crate) fn is_of_the_moment(&self) -> bool {
        use ErrorKind::{Busy, Closed, NoPermission, NoResources, NoSpace, SnapshotTooOld};
        matches!(self.kind(), NoResources | NoPermission | NoSpace | Busy | SnapshotTooOld | Closed)
    }

    /// Returns the position up to which the log must be durable before the transaction that lost runs again; `None` for
    /// an error other than a conflict.
    pub(crate) fn conflict_position(&self) -> Option<u64> {
        self.0.conflict_position
    }

    /// Returns the page that the error is about, if it is about one.
    pub fn page(&self) -> Option<PageId> {
        self.0.page
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_page_and_the_kind_says_what_to_do() {
        let error = Error::corrupt_page(PageId(4711), "slot 3 points past the end");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.page(), Some(PageId(4711)));
        assert_eq!(error.to_string(), "page 4711: slot 3 points past the end");
    }

    #[test]
    fn a_chain_of_errors_prints_the_cause_once() {
        let cause = nofault_io::error::Error::from_errno("read 512 bytes at 0", libc::EIO);
        let error = Error::from_io("read page 7", cause.clone());
        assert_eq!(error.to_string(), format!("read page 7: {cause}"));
        assert!(std::error::Error::source(&error).is_none());
    }
}
