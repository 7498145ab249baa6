//! The shipper: a task that follows the commits of a database, writes them to the store, and names them in the manifest.
//!
//! Each round writes an object with the commits that became durable since the last one, and then the manifest naming it. Only after that
//! are the commits shipped, and may the database's log be used again. So whatever ends a shipper, the manifest
//! names a prefix of the history, with all that was reported as shipped; the next shipper continues where the manifest ends.
//!
//! Where the log does not lead on – a bulk load went past it, or the tail is too old – a new epoch begins with a base.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nofault::db::{Position, Tail, TailEvent};
use nofault::error::ErrorKind as DbErrorKind;
use nofault::{CommitSeq, Db};
use object_store::{Error as StoreError, ObjectStore, PutMode, UpdateVersion};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::base::{NextBase, due, write_base};
use crate::clock::is_set_back;
use crate::error::{Error, ErrorKind, Result};
use crate::label::{Content, Piece};
use crate::manifest::{Epoch, EpochName, LogObject, Manifest, NamedObject, bytes_of, hex, hex_of};
use crate::names::PROBE;
use crate::object::{ObjectWriter, time_to_ms};
use crate::options::ShipOptions;
use crate::remote::{Counts, Remote, failed};
use crate::upkeep;
use crate::writer::Writer;

/// Time between two looks at whether a load has ended that the log has announced.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Longest time without a look at objects that are not needed any more.
const CARE_EVERY: Duration = Duration::from_secs(60);
/// Most bytes of an object, before compression, while the shipper is behind.
const CATCH_UP_BYTES: u64 = 16 << 20;
/// Longest time for which an object waits for commits that are visible and not durable.
const COLLECT_AT_MOST: Duration = Duration::from_secs(1);

/// The progress of a shipper.
#[derive(Debug, Clone)]
struct Status {
    /// The last commit named by the manifest; `None` before the first base, also for a database without a commit.
    shipped: Option<u64>,
    bases: u64,
    increments: u64,
    /// The warnings for a person.
    warnings: Vec<String>,
    /// The reason why no more are.
    end: Option<Error>,
}

/// The wishes of the callers of a shipper.
#[derive(Debug, Clone, Copy, Default)]
struct Orders {
    /// The commit up to which all are to be shipped at once.
    wanted: u64,
    is_closing: bool,
}

/// The state that the handle and the task of a shipper share.
#[derive(Debug)]
struct Shared {
    orders: watch::Sender<Orders>,
    status: watch::Sender<Status>,
    counts: Arc<Counts>,
}

/// The work of a shipper since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShipStats {
    /// The newest commit in the store, with all before it; 0 before the first base.
    pub shipped: CommitSeq,
    /// Requests to the store.
    pub requests: u64,
    /// Requests that failed and were made again.
    pub requests_failed: u64,
    /// Objects that were written, manifests among them.
    pub objects_put: u64,
    /// Their bytes.
    pub bytes_put: u64,
    /// Number of copies of the whole database that were written.
    pub bases: u64,
    /// Number of increments that were written.
    pub increments: u64,
}

/// A name taken over: no other shipper advances its manifest any more.
pub(crate) struct Takeover {
    writer: Writer,
    /// Names of objects that the shippers before have left unnamed.
    orphans: Vec<String>,
}

impl Takeover {
    /// Takes a name over for a database. See [`Ship::start`].
    pub(crate) async fn begin(db: &Db, store: Arc<dyn ObjectStore>, options: ShipOptions) -> Result<Self> {
        options.check()?;
        // The tail is dropped: only the number of the database is wanted.
        let database = hex(db.begin_tail().await?.1.reached().database());
        let at_start = Remote::new(store, &options.name, options.patience())?;
        if !options.single_writer {
            probe(&at_start).await?;
        }
        let (writer, orphans) = Writer::begin(at_start, options, &database, db.now()).await?;
        Ok(Self { writer, orphans })
    }

    /// Returns the manifest as it was taken over.
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.writer.current.manifest
    }
}

/// A shipper of one database. It ships until it is closed or dropped, in a task of the tokio runtime in which it was started. Keeps the
/// database open.
#[derive(Debug)]
pub struct Ship {
    db: Db,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Ship {
    /// Begins to ship a database to a store, or continues where an earlier shipper of the same name has ended. Takes the name over: any
    /// other shipper of it writes nothing more, and its calls end with `Fenced`.
    ///
    /// The database must have background threads
    /// ([`Settings::background_threads`](nofault::settings::Settings::background_threads)).
    ///
    /// # Errors
    /// `InvalidCall` for impossible options. `Unsupported` when the store has no conditional puts, or does not keep to their conditions, unless
    /// [`ShipOptions::single_writer`] is set. `Store` when it cannot be reached, `Refused`, `NoPermission` and `NoSpace` when it refuses, `Busy` while another
    /// process holds the lock of a folder, `NoResources`. `Corrupt` or `Unsupported` when
    /// its objects of that name cannot be read; also `Corrupt` when there are objects and their manifest is gone, or an older one has replaced it:
    /// [`rebuild`](crate::rebuild()) or [`ShipOptions::begin_with_base`] lead on. `AlreadyExists` when the name has the history of another database, unless
    /// [`ShipOptions::take_over`] is set. `Fenced` when others take the name over at the same time.
    pub async fn start(db: &Db, store: Arc<dyn ObjectStore>, options: ShipOptions) -> Result<Self> {
        Self::begin(db, Takeover::begin(db, store, options).await?).await
    }

    /// Begins to ship under a name taken over.
    pub(crate) async fn begin(db: &Db, Takeover { mut writer, orphans }: Takeover) -> Result<Self> {
        let orphans: Vec<&str> = orphans.iter().map(String::as_str).collect();
        upkeep::remove(&writer, &orphans).await?;
        writer.remote = writer.remote.with_attempts(None);
        let tail = if writer.options.begin_with_base { None } else { go_on(db, &writer).await };
        // The commits of an earlier shipper count only if this one continues there.
        let shipped = writer.current.manifest.epochs.last().filter(|_| tail.is_some()).map(|epoch| epoch.last);
        let shared = Arc::new(Shared {
            orders: watch::Sender::new(Orders::default()),
            status: watch::Sender::new(Status {
                shipped,
                bases: 0,
                increments: 0,
                warnings: writer.warnings.clone(),
                end: None,
            }),
            counts: Arc::clone(writer.remote.counts()),
        });
        let task = Task { db: db.clone(), writer, tail, shared: Arc::clone(&shared), cared_at: None };
        Ok(Self { db: db.clone(), shared, task: tokio::spawn(task.run()) })
    }

    /// Waits until everything is in the store that was committed before this call, also with
    /// [`Durability::Deferred`](nofault::Durability::Deferred): from then on a restore has it. Returns the newest of these commits. While
    /// the store cannot be reached it waits.
    ///
    /// # Errors
    /// `Fenced` when another shipper has taken over. `Database` after a failure of the database's log. `Closed` when it is being closed, or its
    /// task has ended.
    pub async fn durable(&self) -> Result<CommitSeq> {
        self.db.sync().await?;
        let commit = self.db.snapshot().commit();
        self.shared.orders.send_modify(|orders| orders.wanted = orders.wanted.max(commit.0));
        let mut status = self.shared.status.subscribe();
        let reached = status.wait_for(|status| status.shipped >= Some(commit.0) || status.end.is_some()).await;
        let reached = reached.map_err(|_| closed())?;
        match &reached.end {
            Some(error) if reached.shipped < Some(commit.0) => Err(error.clone()),
            _ => Ok(commit),
        }
    }

    /// Returns the newest commit in the store, with all before it; 0 before the first base.
    pub fn shipped(&self) -> CommitSeq {
        CommitSeq(self.shared.status.borrow().shipped.unwrap_or(0))
    }

    /// Returns the reason why nothing more is shipped; `None` while shipping continues.
    pub fn failure(&self) -> Option<Error> {
        self.shared.status.borrow().end.clone()
    }

    /// Returns the warnings for a person, in sentences: a wrong clock, a rebuilt manifest and the commits lost with it.
    pub fn warnings(&self) -> Vec<String> {
        self.shared.status.borrow().warnings.clone()
    }

    /// Returns the error of the last request to the store while it is made again; `None` when the last request was carried out. `Refused` and
    /// `NoPermission` do not pass by themselves; the shipper tries on all the same, in case that a person mends it.
    pub fn trouble(&self) -> Option<Error> {
        self.shared.counts.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the work since the start.
    pub fn stats(&self) -> ShipStats {
        let Shared { status, counts, .. } = &*self.shared;
        let (shipped, bases, increments) = {
            let status = status.borrow();
            (CommitSeq(status.shipped.unwrap_or(0)), status.bases, status.increments)
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShipStats {
            shipped,
            requests: count(&counts.requests),
            requests_failed: count(&counts.failed),
            objects_put: count(&counts.objects_put),
            bytes_put: count(&counts.bytes_put),
            bases,
            increments,
        }
    }

    /// Ships everything that was committed before this call, and ends. While the store cannot be reached it waits; dropping
    /// the shipper, or this future, ends it at once.
    ///
    /// # Errors
    /// As [`Ship::durable`]; it has ended then, too.
    pub async fn close(mut self) -> Result<()> {
        let outcome = self.durable().await.map(drop);
        self.shared.orders.send_modify(|orders| orders.is_closing = true);
        if outcome.is_err() {
            self.task.abort();
        }
        // A panic of the task has been printed.
        let _ = (&mut self.task).await;
        outcome
    }
}

impl Drop for Ship {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the shipper was closed")
}

/// Fails for a store that does not keep to the conditions of puts.
async fn probe(remote: &Remote) -> Result<()> {
    remote.put(PROBE, b"Is a condition kept?".to_vec()).await?;
    // A store uses one of the two, or both.
    let wrong_version = UpdateVersion { e_tag: Some("\"0-nofault\"".into()), version: Some("1".into()) };
    let modes = [PutMode::Create, PutMode::Update(wrong_version)];
    for mode in modes {
        let (mut attempt, begun) = (0, Instant::now().into_std());
        loop {
            attempt += 1;
            let why = match remote.try_put(PROBE, b"It is not.".to_vec(), mode.clone()).await {
                Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => break,
                Ok(_) => "it does not keep to the conditions of puts".to_owned(),
                Err(error @ (StoreError::NotImplemented { .. } | StoreError::NotSupported { .. })) => error.to_string(),
                Err(error) if remote.is_over(attempt, begun, &error) => {
                    return Err(failed(&PROBE.into(), &error));
                }
                Err(_) => {
                    remote.pause(attempt).await;
                    continue;
                }
            };
            let what =
                format!("the store cannot keep two shippers apart ({why}): set `single_writer` if there is one only");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
    }
    Ok(())
}

/// Continues with the log where the manifest ends, if that is possible.
async fn go_on(db: &Db, writer: &Writer) -> Option<Tail> {
    let epoch = writer.current.manifest.epochs.last()?;
    let from = async |position: &str| db.tail(&Position::from_bytes(&bytes_of(position)?).ok()?).await.ok();
    // A base may be ahead of the log. If the folder was set back since, the log leads to other commits than the base's.
    if let Some(ahead) = epoch.bases.last().filter(|base| base.commit > epoch.last) {
        from(ahead.position.as_deref()?).await?;
    }
    Some(from(&epoch.position).await?.bytes_max(writer.options.tail_bytes_max))
}

/// Why a round of collecting commits has ended.
#[derive(Debug)]
enum Ending {
    /// There is enough to ship, or the time has passed.
    Full,
    /// The log does not lead on: a base of this commit or a later one must follow.
    Broken(CommitSeq),
    /// No commit follows: the error of the database.
    Failed(nofault::Error),
    /// The shipper is closed.
    Closing,
}

/// Commits collected for an object.
struct Collection {
    writer: ObjectWriter,
    after: u64,
    last: u64,
    last_time_ms: u64,
    position: Position,
}

impl Collection {
    /// Adds an event, or returns why there is none to be added.
    fn take(&mut self, event: nofault::error::Result<TailEvent>, tail: &Tail) -> Result<Option<Ending>> {
        match event {
            Ok(TailEvent::Commit { commit, time, changes }) => {
                // Times ascend in an epoch: a clock that was set back begins another one.
                if time.is_some_and(|time| is_set_back(self.last_time_ms, time_to_ms(time))) {
                    return Ok(Some(Ending::Broken(commit)));
                }
                self.last_time_ms = time.map_or(self.last_time_ms, |time| time_to_ms(time).max(self.last_time_ms));
                self.writer.push(commit.0, self.last_time_ms, &changes)?;
                (self.last, self.position) = (commit.0, tail.reached());
                Ok(None)
            }
            Err(error) if error.kind() == DbErrorKind::Poisoned => Ok(Some(Ending::Failed(error))),
            // A load, or an event of a later version.
            Ok(other) => Ok(Some(Ending::Broken(other.commit()))),
            // The log is gone or cannot be read; the tables can.
            Err(_) => Ok(Some(Ending::Broken(CommitSeq(0)))),
        }
    }
}

/// The task of a shipper.
struct Task {
    db: Db,
    writer: Writer,
    tail: Option<Tail>,
    shared: Arc<Shared>,
    /// The time at which objects were last looked through that are not needed any more.
    cared_at: Option<Instant>,
}

impl Drop for Task {
    /// Tells the callers that wait, also after a panic and when the runtime ends.
    fn drop(&mut self) {
        let gone =
            || Error::new(ErrorKind::Closed, "the task of the shipper has ended: it was dropped, or it panicked");
        self.shared.status.send_modify(|status| _ = status.end.get_or_insert_with(gone));
    }
}

impl Task {
    async fn run(mut self) {
        let end = loop {
            match self.round().await {
                Ok(true) => {}
                Ok(false) => break closed(),
                Err(error) => break error,
            }
        };
        self.shared.status.send_modify(|status| status.end = Some(end));
    }

    /// Ships the commits since the last round. Returns whether there is more to do.
    async fn round(&mut self) -> Result<bool> {
        let Some(mut tail) = self.tail.take() else {
            self.begin_epoch().await?;
            return Ok(true);
        };
        let (collected, ending) = self.collect(&mut tail).await?;
        if let Some(collected) = collected {
            let position = collected.position;
            self.ship(collected).await?;
            tail.release(&position);
        }
        match ending {
            Ending::Full => self.tail = Some(tail),
            Ending::Broken(commit) => return self.await_visible(commit).await,
            Ending::Failed(error) => return Err(error.into()),
            Ending::Closing => {
                // So that the database can be closed when the shipper is.
                tail.close().await;
                self.writer.keep_last_copy().await;
                return Ok(false);
            }
        }
        let cared = upkeep::care(&mut self.writer, &mut self.cared_at, self.db.now()).await;
        self.report_warnings();
        match cared {
            // A piece of the log is damaged or gone, so no restore leads past it: the whole database must follow.
            Err(error) if error.kind() == ErrorKind::Corrupt => self.tail = None,
            done => {
                done?;
                let Writer { current, options, .. } = &self.writer;
                if let Some(next) = current.manifest.epochs.last().and_then(|epoch| due(epoch, options)) {
                    self.add_base(next).await?;
                }
            }
        }
        Ok(true)
    }

    /// Waits for a commit, and collects the commits made within the time or until a caller waits for them. The log keeps them until then:
    /// reading it once for all of them costs less than once for each.
    async fn collect(&self, tail: &mut Tail) -> Result<(Option<Collection>, Ending)> {
        let Writer { current, options, .. } = &self.writer;
        let Some(epoch) = current.manifest.epochs.last() else { return Ok((None, Ending::Broken(CommitSeq(0)))) };
        let mut collected = Collection {
            writer: ObjectWriter::new(),
            after: epoch.last,
            last: epoch.last,
            last_time_ms: epoch.last_time_ms,
            position: tail.reached(),
        };
        let first = tokio::select! {
            biased;
            () = self.ordered(|orders| orders.is_closing) => return Ok((None, Ending::Closing)),
            event = tail.next() => event,
            // Objects too old are removed also while nothing is committed.
            () = tokio::time::sleep(CARE_EVERY) => return Ok((None, Ending::Full)),
        };
        let mut ending = collected.take(first, tail)?;
        let (least_bytes, kept_bytes) = (options.object_bytes as u64, tail.kept_bytes());
        // Larger objects while there is much to catch up with: each takes two requests, whatever its length.
        let object_bytes = least_bytes.max(kept_bytes.min(CATCH_UP_BYTES));
        if ending.is_none() && kept_bytes < least_bytes {
            tokio::select! {
                () = tokio::time::sleep(options.every) => {}
                () = self.ordered(|orders| orders.is_closing || orders.wanted > epoch.last) => {}
            }
        }
        // All of them have a record in the log, and are durable soon. The others are left to the next object.
        let until = self.db.snapshot().commit().0;
        let time_is_over = tokio::time::sleep(COLLECT_AT_MOST);
        tokio::pin!(time_is_over);
        while ending.is_none() && collected.last < until && collected.writer.raw_bytes() < object_bytes {
            let event = match tail.try_next() {
                Some(event) => Ok(event),
                None => tokio::select! {
                    event = tail.next() => event,
                    () = &mut time_is_over => break,
                    () = self.ordered(|orders| orders.is_closing) => break,
                },
            };
            ending = collected.take(event, tail)?;
        }
        let is_any = collected.last > collected.after;
        Ok((is_any.then_some(collected), ending.unwrap_or(Ending::Full)))
    }

    /// Waits for orders like these. The task has the sender, too, so there may be orders for as long as it runs.
    async fn ordered(&self, are_they: impl Fn(&Orders) -> bool) {
        let mut orders = self.shared.orders.subscribe();
        if orders.wait_for(are_they).await.is_err() {
            std::future::pending().await
        }
    }

    /// Writes an object and the manifest naming it.
    async fn ship(&mut self, collected: Collection) -> Result<()> {
        let Collection { writer, after, last, last_time_ms, position } = collected;
        let Some(epoch) = self.writer.current.manifest.epochs.last().map(EpochName::of) else { return Ok(()) };
        let (raw_bytes, position) = (writer.raw_bytes(), hex_of(&position.to_bytes()));
        let content = Piece { level: 0, after, last, last_time_ms, raw_bytes, position: Some(position.clone()) };
        let bytes = self.writer.labelled(writer, epoch, Content::Log(content))?;
        let object = NamedObject::new(self.writer.log_name(last), &bytes);
        self.writer.remote.put(&object.name, bytes).await?;
        let log = LogObject { level: 0, after, last, last_time_ms, raw_bytes, object };
        let named = |manifest: &mut Manifest| {
            if let Some(epoch) = manifest.epochs.last_mut() {
                epoch.log.push(log);
                (epoch.last, epoch.last_time_ms, epoch.position) = (last, last_time_ms, position);
            }
        };
        self.writer.advance(named).await?;
        self.report(last);
        Ok(())
    }

    /// Waits until a commit is visible that is in the log already: a load still writes its pages then. Returns false when the shipper is
    /// closed while it waits. A load that fails after its record is in the log is a commit as well.
    async fn await_visible(&self, commit: CommitSeq) -> Result<bool> {
        while self.db.snapshot().commit() < commit {
            // Fails when nothing becomes visible any more.
            self.db.sync().await?;
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = self.ordered(|orders| orders.is_closing) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Ships the whole database, and begins to follow it.
    async fn begin_epoch(&mut self) -> Result<()> {
        let (snapshot, tail) = self.db.begin_tail().await?;
        let tail = tail.bytes_max(self.writer.options.tail_bytes_max);
        let position = tail.reached();
        let epoch = EpochName {
            id: self.writer.current.manifest.epochs.last().map_or(1, |before| before.id + 1),
            database: hex(position.database()),
            begun_by: self.writer.id(),
        };
        let base = write_base(&mut self.writer, &self.db, &snapshot, &position, NextBase::Whole, epoch.clone()).await?;
        drop(snapshot);
        let (last, last_time_ms) = (base.commit, base.time_ms);
        let begun = |manifest: &mut Manifest| {
            let EpochName { id, database, begun_by } = epoch;
            manifest.database = Some(database.clone());
            manifest.epochs.push(Epoch {
                id,
                database,
                begun_by,
                bases: vec![base],
                log: Vec::new(),
                position: hex_of(&position.to_bytes()),
                last,
                last_time_ms,
            });
        };
        self.writer.advance(begun).await?;
        self.report_base(last, NextBase::Whole);
        self.tail = Some(tail);
        self.writer.keep_copy().await
    }

    /// Ships the whole database once more, or the changes since the last base, within the epoch. Later commits wait until it
    /// is done. The base may be ahead of the log; the commits between are shipped next, as if there were no base.
    async fn add_base(&mut self, next: NextBase) -> Result<()> {
        // The epoch's tail continues: only this one's position is wanted.
        let (snapshot, tail) = self.db.begin_tail().await?;
        let position = tail.reached();
        drop(tail);
        let Some(epoch) = self.writer.current.manifest.epochs.last().map(EpochName::of) else { return Ok(()) };
        let base = write_base(&mut self.writer, &self.db, &snapshot, &position, next, epoch).await?;
        drop(snapshot);
        let commit = base.commit;
        let added = |manifest: &mut Manifest| {
            if let Some(epoch) = manifest.epochs.last_mut() {
                epoch.bases.push(base);
            }
        };
        self.writer.advance(added).await?;
        self.report_base(commit, next);
        self.writer.keep_copy().await
    }

    /// Gives the handle the warnings for a person.
    fn report_warnings(&self) {
        let warnings = &self.writer.warnings;
        self.shared.status.send_if_modified(|status| {
            let is_new = status.warnings.len() != warnings.len();
            status.warnings.clone_from(warnings);
            is_new
        });
    }

    /// Tells the handle that a base of a commit is shipped.
    fn report_base(&self, commit: u64, base: NextBase) {
        self.shared.status.send_modify(|status| match base {
            NextBase::Whole => status.bases += 1,
            NextBase::Increment(_) => status.increments += 1,
        });
        self.report(commit);
    }

    /// Tells the handle that everything up to a commit is shipped.
    fn report(&self, commit: u64) {
        self.shared.status.send_modify(|status| status.shipped = status.shipped.max(Some(commit)));
    }
}
