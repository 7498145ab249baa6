//! The options of a shipper.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::remote::Patience;

/// The options of a [`Ship`](crate::Ship).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShipOptions {
    /// The name under which the database is shipped: a prefix in the store, which no other database uses.
    pub name: String,
    /// Time for which commits are collected before they are shipped. The loss of commits when the machine is lost is about this and
    /// the time of two requests. [`Ship::durable`](crate::Ship::durable) does not wait for it.
    pub every: Duration,
    /// Bytes of commits, before compression, that are shipped at once without waiting for the time to pass.
    pub object_bytes: usize,
    /// Bytes of log that the database keeps while the store cannot be reached. Beyond that, and on a full disk, it continues without the shipper, which
    /// ships the whole database again afterwards.
    pub tail_bytes_max: u64,
    /// Time for which every commit can be restored, by the clock of the database
    /// ([`Settings::clock`](nofault::settings::Settings::clock)).
    pub keep: Duration,
    /// Time after which an object that is not needed any more is removed: as long as a restore may take that began before.
    pub grace: Duration,
    /// An increment is shipped – the content of pages that have changed since the last base or increment – once the log that was
    /// shipped since has so many hundredths of the size of the whole database as it was shipped last, and is larger than the increment before. A
    /// restore applies it in place of that log. 0 ships none, so that builds that do not know them can restore. There are none
    /// while the whole takes less than `object_bytes`.
    pub increment_percent: u32,
    /// The whole database is shipped again once the log shipped since the last time is so many times as large; where
    /// increments are shipped, only after they together have become as large as the whole.
    pub base_share: u32,
    /// Begin with the whole database, also where the log could be followed. For a store with a damaged object: points from
    /// then on need no older object. A manifest that is lost or damaged is rebuilt first; [`Ship::warnings`](crate::Ship::warnings) names the lost commits then.
    pub begin_with_base: bool,
    /// Take the name over also from another database, whose history stays until it is too old. Without it that is refused.
    pub take_over: bool,
    /// Believe the clock, also after a leap. Without it, history older than `keep` is forgotten only by time that has verifiably passed, and
    /// a day.
    pub is_clock_trusted: bool,
    /// Ship to a store without conditional puts. The manifest is looked at before each change, so a shipper that has lost the name is fenced, but two that
    /// write in the same moment may overwrite each other: the caller prevents that. A folder needs it only if its file system has no locks.
    pub single_writer: bool,
    /// Pause before a failed request is made again; each further one is twice as long.
    pub retry_first: Duration,
    /// Longest pause between two attempts.
    pub retry_longest: Duration,
    /// Time after which a request counts as failed.
    pub request_timeout: Duration,
    /// Attempts of the requests with which a shipper begins, so that a wrong address is an error; later ones are made until they succeed.
    pub attempts_at_start: u32,
    /// Time after which there is no further attempt of such a request. While another shipper holds the lock of a folder, attempts are made for as long, however
    /// many these are.
    pub start_timeout: Duration,
}

impl Default for ShipOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            every: Duration::from_secs(1),
            object_bytes: 1 << 20,
            tail_bytes_max: 1 << 30,
            keep: Duration::from_secs(30 * 24 * 3600),
            grace: Duration::from_secs(3600),
            increment_percent: 25,
            base_share: 4,
            begin_with_base: false,
            take_over: false,
            is_clock_trusted: false,
            single_writer: false,
            retry_first: Duration::from_millis(50),
            retry_longest: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            attempts_at_start: 6,
            start_timeout: Duration::from_secs(120),
        }
    }
}

impl ShipOptions {
    /// Returns the default options for a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidCall, what));
        if self.object_bytes == 0 || self.attempts_at_start == 0 || self.base_share == 0 {
            return wrong("object_bytes, base_share and attempts_at_start are 1 at the least");
        }
        if self.request_timeout.is_zero() {
            return wrong("a request needs some time: request_timeout is 0");
        }
        Ok(())
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience {
            first: self.retry_first,
            longest: self.retry_longest,
            timeout: self.request_timeout,
            attempts: Some(self.attempts_at_start),
            limit: self.start_timeout,
        }
    }
}

/// The patience of a call reading a store: it ends with an error where a shipper keeps trying.
pub(crate) const READING: Patience = Patience {
    first: Duration::from_millis(50),
    longest: Duration::from_secs(2),
    timeout: Duration::from_secs(60),
    attempts: Some(8),
    limit: Duration::from_secs(600),
};
