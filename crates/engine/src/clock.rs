//! The time by which entries expire: a clock of the caller's choice, and moments as the format has them.
//!
//! Right because a database asks its clock through `GuardedClock` alone, which never goes back while the database is
//! open. So an entry that has expired for one read has expired for every read that begins later.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time by which entries expire: see [`Settings::clock`](crate::settings::Settings::clock).
///
/// ```
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
///
/// /// A clock that is an hour ahead.
/// struct Ahead;
///
/// impl nofault::clock::Clock for Ahead {
///     fn now(&self) -> SystemTime {
///         SystemTime::now() + Duration::from_secs(3600)
///     }
/// }
///
/// let settings = nofault::settings::Settings { clock: Ahead.into(), ..Default::default() };
/// assert!(settings.clock.now() > SystemTime::now());
/// ```
pub trait Clock: Send + Sync + 'static {
    /// Returns the time. Called by reads that meet an entry that expires, by each snapshot, range and transaction when it
    /// begins, by each write to the log, for which later commits wait, and by a thread of the database once a second. It must not use
    /// the database.
    fn now(&self) -> SystemTime;
}

/// The clock of the system: the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// A clock that stands still until it is set, for tests. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use nofault::{clock::ManualClock, settings::Settings};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let clock = ManualClock::new();
/// let settings = Settings { clock: clock.clone().into(), cache_bytes: 16 << 20, ..Settings::default() };
/// let db = nofault::blocking::Db::create(folder.path().join("sessions"), &settings)?;
/// let sessions = db.create_table("sessions")?;
/// sessions.put_with_expiry("ann", "token", db.now() + Duration::from_secs(60))?;
/// clock.advance(Duration::from_secs(59));
/// assert!(sessions.contains_key("ann")?);
/// clock.advance(Duration::from_secs(1));
/// assert!(!sessions.contains_key("ann")?);
/// # Ok::<(), nofault::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock that shows the time of the system at this moment.
    pub fn new() -> Self {
        Self::at(SystemTime::now())
    }

    /// Creates a clock that shows `time`, in whole milliseconds since 1970.
    pub fn at(time: SystemTime) -> Self {
        Self(Arc::new(AtomicU64::new(Moment::at_or_before(time).0)))
    }

    /// Sets the time, which may also go back.
    pub fn set(&self, time: SystemTime) {
        self.0.store(Moment::at_or_before(time).0, Ordering::SeqCst);
    }

    /// Lets this much time pass, in whole milliseconds.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap_or(0), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        Moment(self.0.load(Ordering::SeqCst)).to_time()
    }
}

/// A clock among the settings of a database. Any [`Clock`] converts into one.
#[derive(Clone, Default)]
pub struct ClockSource(
    /// `None` for the clock of the system.
    Option<Arc<dyn Clock>>,
);

impl ClockSource {
    /// Returns the time that the clock shows.
    pub fn now(&self) -> SystemTime {
        self.0.as_ref().map_or_else(SystemTime::now, |clock| clock.now())
    }
}

impl<C: Clock> From<C> for ClockSource {
    fn from(clock: C) -> Self {
        Self(Some(Arc::new(clock)))
    }
}

impl fmt::Debug for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClockSource").field(&self.now()).finish()
    }
}

/// Two sources are equal when one is a clone of the other, or both are the default.
impl PartialEq for ClockSource {
    fn eq(&self, other: &Self) -> bool {
        let address = |source: &Self| source.0.as_ref().map(|clock| Arc::as_ptr(clock).cast::<()>());
        address(self) == address(other)
    }
}

impl Eq for ClockSource {}

/// A moment in milliseconds since 1970, in UTC: the unit of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// The moment that never comes: when an entry expires that does not expire.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// Returns the last moment that is not after `time`; of a time before 1970 the first moment.
    pub(crate) fn at_or_before(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX).min(Self::NEVER.0 - 1))
    }

    /// Returns the first moment that is not before `time`, and comes some day. An entry never expires too early.
    pub(crate) fn at_or_after(time: SystemTime) -> Self {
        let before = Self::at_or_before(time);
        let is_before = before.to_time() < time;
        Self((before.0 + u64::from(is_before)).min(Self::NEVER.0 - 1))
    }

    /// Returns the time of this moment.
    pub(crate) fn to_time(self) -> SystemTime {
        // Every number of milliseconds is a time on the systems that the database runs on.
        UNIX_EPOCH.checked_add(Duration::from_millis(self.0)).unwrap_or(UNIX_EPOCH)
    }

    /// Returns the time of this moment; `None` of the moment that never comes.
    pub(crate) fn to_expiry(self) -> Option<SystemTime> {
        (self != Self::NEVER).then(|| self.to_time())
    }
}

/// The clock of an open database. It never goes back: while its source does, it stands still.
#[derive(Debug)]
pub(crate) struct GuardedClock {
    source: ClockSource,
    /// The latest moment that was returned.
    latest: AtomicU64,
}

impl GuardedClock {
    /// Creates a clock that has not been asked yet.
    pub(crate) fn new(source: ClockSource) -> Self {
        Self { source, latest: AtomicU64::new(0) }
    }

    /// Returns the present moment.
    pub(crate) fn now(&self) -> Moment {
        let now = Moment::at_or_before(self.source.now());
        // A read that follows another one, on whichever thread, sees a moment that is not before the other's. The
        // moments are milliseconds, so the memory that all threads share is written to a thousand times a second.
        let latest = Moment(self.latest.load(Ordering::Acquire));
        if now <= latest {
            return latest;
        }
        Moment(self.latest.fetch_max(now.0, Ordering::AcqRel)).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_between_two_moments_is_never_early() {
        let time = UNIX_EPOCH + Duration::from_micros(5_500);
        assert_eq!((Moment::at_or_before(time), Moment::at_or_after(time)), (Moment(5), Moment(6)));
        let whole = UNIX_EPOCH + Duration::from_millis(5);
        assert_eq!((Moment::at_or_before(whole), Moment::at_or_after(whole)), (Moment(5), Moment(5)));
        assert_eq!(Moment::at_or_after(UNIX_EPOCH - Duration::from_secs(1)), Moment(0));
        assert_eq!(Moment(5).to_expiry(), Some(whole));
        assert_eq!(Moment::NEVER.to_expiry(), None);
        let end = Moment(u64::MAX - 1);
        assert_eq!(Moment::at_or_after(end.to_time() + Duration::from_secs(1)), end, "it comes some day");
    }

    #[test]
    fn a_guarded_clock_stands_still_while_its_source_goes_back() {
        let source = ManualClock::at(UNIX_EPOCH + Duration::from_millis(100));
        let clock = GuardedClock::new(source.clone().into());
        assert_eq!(clock.now(), Moment(100));
        source.set(UNIX_EPOCH + Duration::from_millis(40));
        assert_eq!(clock.now(), Moment(100));
        source.advance(Duration::from_millis(90));
        assert_eq!(clock.now(), Moment(130));
    }

    #[test]
    fn the_default_clock_is_equal_to_itself_and_to_no_other() {
        let manual: ClockSource = ManualClock::new().into();
        assert_eq!(ClockSource::default(), ClockSource::default());
        assert_eq!(manual, manual.clone());
        assert_ne!(manual, ClockSource::default());
        assert_ne!(manual, ManualClock::new().into());
    }
}
