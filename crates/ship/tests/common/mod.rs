//! A database whose states are known, and a store whose requests fail as a test wants it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use nofault::clock::ManualClock;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, CommitSeq, Db, Durability};
use nofault_ship::ShipOptions;
use nofault_sim::content::Content;
use nofault_sim::{SimOptions, SimWorld};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::Notify;

pub(crate) fn options() -> ShipOptions {
    ShipOptions {
        every: Duration::from_millis(5),
        retry_first: Duration::from_millis(1),
        retry_longest: Duration::from_millis(4),
        ..ShipOptions::new("shop")
    }
}

pub(crate) async fn content(db: &Db) -> Content {
    try_content(db).await.unwrap()
}

async fn try_content(db: &Db) -> std::result::Result<Content, nofault::Error> {
    let mut content = Content::new();
    for name in db.table_names().await? {
        let mut range = db.table(&name).await?.range::<&[u8]>(..);
        let rows = content.entry(name).or_default();
        while let Some((key, value)) = range.next().await? {
            rows.insert(key, value);
        }
    }
    Ok(content)
}

/// A database with all of its states by commit, and the time of each by its clock.
pub(crate) struct Source {
    pub(crate) world: SimWorld,
    pub(crate) db: Db,
    pub(crate) clock: ManualClock,
    pub(crate) states: BTreeMap<u64, (Content, SystemTime)>,
    rng: fastrand::Rng,
}

impl Source {
    pub(crate) async fn new(seed: u64) -> Self {
        Self::in_world(SimWorld::new(seed, SimOptions::calm()), seed)
    }

    pub(crate) fn in_world(world: SimWorld, seed: u64) -> Self {
        let clock = ManualClock::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let settings = Settings { clock: clock.clone().into(), ..Settings::small(4, 1) };
        let db = Db::create_in(&world.directory(), &settings).unwrap();
        Self { world, db, clock, states: BTreeMap::new(), rng: fastrand::Rng::with_seed(seed) }
    }

    /// Cuts the power and opens the database again. Deferred commits may be lost.
    pub(crate) async fn restart(&mut self, seed: u64) {
        self.db = empty();
        self.world = self.world.restart(seed);
        let settings = Settings { clock: self.clock.clone().into(), ..Settings::small(4, 1) };
        self.db = Db::open_in(&self.world.directory(), &settings).unwrap();
        self.states.split_off(&(self.db.snapshot().commit().0 + 1));
        self.note().await;
    }

    /// Makes a commit of some kind, and notes the state after it.
    pub(crate) async fn commit(&mut self) {
        self.try_commit().await.unwrap();
    }

    /// Makes a commit, which may fail. Its changes are not noted then.
    pub(crate) async fn try_commit(&mut self) -> std::result::Result<(), nofault::Error> {
        self.clock.advance(Duration::from_millis(self.rng.u64(1..2000)));
        let name = format!("table {}", self.rng.u8(..3));
        let table = self.db.open_or_create_table(&name).await?;
        self.try_note().await?;
        match self.rng.u8(..24) {
            0 => self.db.drop_table(&name).await?,
            1 => match self.db.rename_table(&name, "another").await {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            },
            2 => table.put(b"long", vec![self.rng.u8(..); 20_000]).await?,
            _ => {
                let mut batch = Batch::new();
                for _ in 0..self.rng.usize(1..6) {
                    let key = [self.rng.u8(..40)];
                    if self.rng.u8(..3) == 0 {
                        batch.delete(&table, key);
                    } else {
                        batch.put(&table, key, vec![self.rng.u8(..); self.rng.usize(..50)]);
                    }
                }
                let durability = [Durability::Sync, Durability::Deferred][self.rng.usize(..2)];
                self.db.write(batch, durability).await?;
            }
        }
        self.try_note().await
    }

    /// Notes the present state, with the first time at which it was seen.
    pub(crate) async fn note(&mut self) {
        self.try_note().await.unwrap();
    }

    async fn try_note(&mut self) -> std::result::Result<(), nofault::Error> {
        let state = (try_content(&self.db).await?, self.db.now());
        let noted = self.states.entry(self.db.snapshot().commit().0).or_insert_with(|| state.clone());
        // After a power cut a commit may have the number of one that was lost.
        if noted.0 != state.0 {
            *noted = state;
        }
        Ok(())
    }

    /// Checks that a restored database has the state after this commit of the source.
    pub(crate) async fn check(&self, restored: &Db, commit: CommitSeq, what: &str) {
        assert!(self.had(commit, &content(restored).await), "{what}: not the state of commit {commit}");
    }

    /// Returns whether this was the state after a commit. Upkeep may follow a commit before it is noted: the number of that one is
    /// between two that were noted, so its state is one of theirs.
    pub(crate) fn had(&self, commit: CommitSeq, content: &Content) -> bool {
        let nothing = Content::new();
        let (at, before) =
            self.states.range(..=commit.0).next_back().map_or((&0, &nothing), |(at, state)| (at, &state.0));
        let after = self.states.range(commit.0 + 1..).next().filter(|_| *at < commit.0);
        before == content || after.is_some_and(|(_, (after, _))| after == content)
    }

    pub(crate) fn newest(&self) -> CommitSeq {
        CommitSeq(self.states.last_key_value().map_or(0, |(commit, _)| *commit))
    }
}

/// An empty database to restore into.
pub(crate) fn empty() -> Db {
    Db::create_in(&SimWorld::new(77, SimOptions::calm()).directory(), &Settings::small(4, 1)).unwrap()
}

/// How requests fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    /// The first attempts of each request fail, so many of them, without effect.
    Before(u32),
    /// The first attempts of each request are carried out, and fail all the same.
    After(u32),
    /// The first attempts of each request are carried out, and do not return: they end by their time-out.
    LateAfter(u32),
    /// The first attempts of each put without a condition meet a conflict, and the first attempts of other requests fail.
    Conflict(u32),
    /// Puts are carried out whatever their condition is.
    Unconditional,
    /// From this request on none returns; the last one may have been carried out.
    HangFrom(u64, bool),
    /// This request waits until the test lets it go on, and is carried out then.
    PauseAt(u64),
}

/// A store with failing requests, before another store.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
}

#[derive(Debug)]
struct Requests {
    faults: Mutex<Faults>,
    attempts: Mutex<HashMap<String, u32>>,
    count: AtomicU64,
    /// Notified when a request hangs or pauses.
    stopped: Notify,
    resume: Notify,
}

/// The fate of a request.
enum Fate {
    Done,
    Refused,
    Lost,
    Late,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, faults: Faults) -> Arc<Self> {
        let requests = Requests {
            faults: Mutex::new(faults),
            attempts: Mutex::default(),
            count: AtomicU64::new(0),
            stopped: Notify::new(),
            resume: Notify::new(),
        };
        Arc::new(Self { inner, requests: Arc::new(requests) })
    }

    pub(crate) fn set(&self, faults: Faults) {
        *self.requests.faults.lock().unwrap() = faults;
    }

    /// Number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.count.load(Ordering::SeqCst)
    }

    /// Waits until a request hangs or pauses.
    pub(crate) async fn stopped(&self) {
        self.requests.stopped.notified().await;
    }

    /// Lets the request go on that pauses.
    pub(crate) fn resume(&self) {
        self.requests.resume.notify_one();
    }
}

impl Requests {
    /// Decides about a request; `what` distinguishes it from others.
    async fn fate(&self, what: String) -> Fate {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let faults = *self.faults.lock().unwrap();
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let attempt = attempts.entry(what).or_default();
            *attempt += 1;
            *attempt
        };
        match faults {
            Faults::Before(times) | Faults::Conflict(times) if attempt <= times => Fate::Refused,
            Faults::After(times) if attempt <= times => Fate::Lost,
            Faults::LateAfter(times) if attempt <= times => Fate::Late,
            Faults::HangFrom(from, is_done) if number >= from => {
                if number > from || !is_done {
                    self.hang().await;
                }
                Fate::Lost
            }
            Faults::PauseAt(at) if number == at => {
                self.stopped.notify_one();
                self.resume.notified().await;
                Fate::Done
            }
            _ => Fate::Done,
        }
    }

    async fn hang(&self) {
        self.stopped.notify_one();
        std::future::pending::<()>().await;
    }

    /// Carries a request out, or not, and ends it as its fate is.
    async fn carry_out<T>(&self, what: String, request: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fate(what).await {
            Fate::Done => request.await,
            Fate::Refused => Err(unreachable()),
            Fate::Lost => {
                drop(request.await);
                if matches!(*self.faults.lock().unwrap(), Faults::HangFrom(..)) {
                    self.hang().await;
                }
                Err(unreachable())
            }
            Fate::Late => {
                drop(request.await);
                std::future::pending().await
            }
        }
    }
}

fn unreachable() -> Error {
    Error::Generic { store: "faulty", source: "the store cannot be reached".into() }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        if *self.requests.faults.lock().unwrap() == Faults::Unconditional {
            options.mode = PutMode::Overwrite;
        }
        let is_overwriting = matches!(options.mode, PutMode::Overwrite);
        // Each version of the manifest is one request.
        let bytes: usize = payload.iter().map(|part| part.iter().map(|byte| usize::from(*byte)).sum::<usize>()).sum();
        let what = format!("put {location} {bytes}");
        let outcome = self.requests.carry_out(what, self.inner.put_opts(location, payload, options)).await;
        match *self.requests.faults.lock().unwrap() {
            Faults::Conflict(_) if is_overwriting => outcome.map_err(|error| {
                let source = error.to_string().into();
                Error::AlreadyExists { path: location.to_string(), source }
            }),
            _ => outcome,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.carry_out(format!("get {location}"), self.inner.get_opts(location, options)).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<<PutPayload as IntoIterator>::Item>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (requests, inner) = (self.requests.clone(), self.inner.clone());
        let delete = move |location: Result<Path>| {
            let (requests, inner) = (requests.clone(), inner.clone());
            async move {
                let location = location?;
                let what = format!("delete {location}");
                requests.carry_out(what, inner.delete(&location)).await.map(|()| location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (requests, inner, prefix) = (self.requests.clone(), self.inner.clone(), prefix.cloned());
        let list = async move {
            let found = async { Ok(inner.list(prefix.as_ref()).collect::<Vec<_>>().await) };
            requests.carry_out("list".into(), found).await.unwrap_or_else(|error| vec![Err(error)])
        };
        stream::once(list).flat_map(stream::iter).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
