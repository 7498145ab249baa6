//! Everything the public types do, over any store and any log, for tasks and threads alike.

use std::any::Any;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use super::bulk::Loads;
use super::catalog::in_catalog;
use super::pins::{Admission, PinBudget};
use super::room::MakeCheckpoint;
use super::tables::Tables;
use super::wait::{Call, attempt, attempt_within, load};
use crate::error::{Error, ErrorKind, Result};
use crate::format::node::OverflowRef;
use crate::format::{CommitSeq, PageId};
use crate::gate::Gate;
use crate::pages::{Attempt, CommitLog, Missing, Pages, Snapshot, Store, Versions as _, Wait};
use crate::tree::overflow::Reader;
use crate::tree::{self, Found, Position, Tree};
use crate::txn::{CATALOG, Commits, Listed, table_of};

/// Snapshots that one read takes before it says that they are given up faster than it reads.
const SNAPSHOTS_MAX: usize = 8;

/// The database over any store and log: the implementation of every call.
pub(crate) struct Core<S: Store, L: CommitLog> {
    pub(super) store: Arc<S>,
    pub(super) log: Arc<L>,
    pub(super) commits: Arc<Commits<S, L>>,
    pub(super) admission: Admission,
    pub(super) tables: Tables,
    /// Loads for which a thread of the caller is making the entries.
    pub(super) loads: Loads,
    /// Memory that a transaction may take for its read set, in bytes.
    pub(super) read_set_bytes_max: usize,
    /// Makes room in the log, where no background thread does. Blocks.
    pub(super) make_room: OnceLock<MakeRoom>,
    /// Makes a checkpoint, where something can.
    pub(super) make_checkpoint: OnceLock<MakeCheckpoint>,
    /// Held by the one that makes room in the data file.
    pub(super) making_room: Arc<Gate>,
    /// Commits refused because the data file had no room.
    pub(super) refused_for_space: AtomicU64,
    /// A source of guards that keep the database open, and other processes from opening it.
    owner: OnceLock<Keep>,
    /// Pages of dropped tables that could not be read when they were to be freed.
    pub(super) damaged_in_dropped: AtomicU64,
}

/// The answer of a lookup.
pub(super) type GetResult = Result<Option<Vec<u8>>>;

/// How far a lookup of the newest value had come when it missed a page, and in which commit. It goes on there if that one is the
/// newest still, which is nearly always so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached {
    position: Position,
    commit: CommitSeq,
}

/// Whether a table was created after this snapshot, which has nothing of it then, not even a root. A table's id is the number of the
/// commit that created it.
pub(super) fn is_younger(tree: Tree, snapshot: &impl Snapshot) -> bool {
    tree.table.0 > snapshot.seq().0
}

/// Whether a read that took its own snapshot should take another: its snapshot was invalidated, and the caller holds
/// none that could be too old.
pub(super) fn takes_another(error: &Error, taken: &mut usize) -> bool {
    *taken += 1;
    error.kind() == ErrorKind::SnapshotTooOld && *taken < SNAPSHOTS_MAX
}

/// Makes room for so many bytes on this thread, with a checkpoint if need be. False when it is worth another try.
pub(super) type MakeRoom = Box<dyn Fn(usize) -> Result<bool> + Send + Sync>;

/// Answers something that keeps the database open until it is dropped, unless it is closed already.
pub(super) type Keep = Box<dyn Fn() -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

impl<S: Store, L: CommitLog> Core<S, L> {
    /// Puts the parts together. The catalog exists.
    pub(crate) fn new(store: Arc<S>, log: Arc<L>, commits: Arc<Commits<S, L>>, read_set_bytes_max: usize) -> Self {
        let admission = Admission::new(store.pins_max());
        let (tables, damaged_in_dropped) = (Tables::default(), AtomicU64::new(0));
        Self {
            store,
            log,
            commits,
            admission,
            tables,
            loads: Loads::default(),
            read_set_bytes_max,
            make_room: OnceLock::new(),
            make_checkpoint: OnceLock::new(),
            making_room: Gate::new(1),
            refused_for_space: AtomicU64::new(0),
            owner: OnceLock::new(),
            damaged_in_dropped,
        }
    }

    /// From now on work that may outlive its caller keeps this alive.
    pub(super) fn belongs_to(&self, keep: Keep) {
        let set = self.owner.set(keep);
        debug_assert!(set.is_ok(), "said once, when the database is opened");
    }

    /// For work that may outlive its caller: to be kept until it is over.
    pub(super) fn owner(&self) -> Option<Box<dyn Any + Send + Sync>> {
        self.owner.get().and_then(|keep| keep())
    }

    /// Sets the function that a commit calls when it finds the log full.
    pub(super) fn make_checkpoints(&self, make_room: MakeRoom) {
        let set = self.make_room.set(make_room);
        debug_assert!(set.is_ok(), "said once, when the database is opened");
    }

    /// From now on a commit that finds no room in the data file calls this.
    pub(super) fn free_blocks_by(&self, make_checkpoint: MakeCheckpoint) {
        let set = self.make_checkpoint.set(make_checkpoint);
        debug_assert!(set.is_ok(), "said once, when the database is opened");
    }

    /// The table of this name.
    ///
    /// # Errors
    /// `NotFound`; the errors of reading the catalog.
    pub(crate) async fn table(&self, name: &[u8]) -> Result<Tree> {
        if let Some(tree) = self.tables.known(name) {
            return Ok(tree);
        }
        if let Some(answer) = self.tables.fixed_table(name) {
            return answer;
        }
        let found = attempt(&*self.store, &self.admission, || CATALOG.get(&self.store.latest(), name)).await;
        let Some(found) = found.map_err(in_catalog)? else {
            let name = String::from_utf8_lossy(name);
            return Err(Error::new(ErrorKind::NotFound, format!("there is no table {name:?}")));
        };
        let tree = table_of(name, &found)?;
        self.tables.met(name, tree);
        Ok(tree)
    }

    /// One look for the newest visible value of a key: all there is to do when the pages are in memory. `reached` goes from one look
    /// to the next.
    #[inline]
    fn look(&self, tree: Tree, key: &[u8], reached: &mut Option<Reached>) -> Attempt<Option<Found>> {
        self.look_with(tree, key, reached, |held| held.map(Found::from))
    }

    #[inline]
    fn look_with<R>(
        &self,
        tree: Tree,
        key: &[u8],
        reached: &mut Option<Reached>,
        look: impl FnOnce(Option<tree::Held<'_>>) -> R,
    ) -> Attempt<R> {
        let view = self.store.latest();
        let before = reached.take().filter(|reached| reached.commit == S::commit_of(&view));
        let mut position = before.map_or_else(|| tree.start(), |reached| reached.position);
        let looked = tree.get_from(&view, key, &mut position, look);
        if let Err(Wait::Miss(missing)) = &looked {
            *reached = Some(Reached { position, commit: missing.at });
        }
        looked
    }

    /// The newest visible value of a key.
    #[inline]
    pub(crate) fn get(&self, tree: Tree, key: &[u8]) -> Call<GetResult, impl Future<Output = GetResult>> {
        let mut reached = None;
        match self.look(tree, key, &mut reached) {
            Ok(None) => Call::Done(Ok(None)),
            Ok(Some(Found::Inline(value))) => Call::Done(Ok(Some(value))),
            looked => Call::Waits(self.get_after(tree, key, looked, reached)),
        }
    }

    /// Shows the newest visible value of a key to `look`, without a copy unless the value is long. `get` does not use
    /// this: it reads a long value into memory of its own in either case, and returns that memory without another copy.
    #[inline]
    pub(crate) fn get_with<R>(
        &self,
        tree: Tree,
        key: &[u8],
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Call<Result<R>, impl Future<Output = Result<R>>> {
        let (mut look, mut reached) = (Some(look), None);
        match self.show(tree, key, &mut reached, &mut look) {
            Ok(Some(shown)) => Call::Done(Ok(shown)),
            shown => Call::Waits(self.show_after(tree, key, look, shown, reached)),
        }
    }

    /// Shows the newest visible value of a key to `look`, which is taken out when it has been called. `None` when nothing
    /// could be shown yet because the value is long.
    fn show<R>(
        &self,
        tree: Tree,
        key: &[u8],
        reached: &mut Option<Reached>,
        look: &mut Option<impl FnOnce(Option<&[u8]>) -> R>,
    ) -> Attempt<Option<R>> {
        self.look_with(tree, key, reached, |held| {
            let value = match held {
                None => None,
                Some(tree::Held::Here(value)) => Some(value),
                Some(tree::Held::Overflow(_)) => return None,
            };
            look.take().map(|look| look(value))
        })
    }

    /// Shows the newest visible value of a key to `look`, after a first try.
    async fn show_after<R>(
        &self,
        tree: Tree,
        key: &[u8],
        mut look: Option<impl FnOnce(Option<&[u8]>) -> R>,
        shown: Attempt<Option<R>>,
        mut reached: Option<Reached>,
    ) -> Result<R> {
        let mut shown = Some(shown);
        let again = || shown.take().unwrap_or_else(|| self.show(tree, key, &mut reached, &mut look));
        let shown = attempt(&*self.store, &self.admission, again).await;
        if let Some(shown) = shown.map_err(|error| self.explain_latest(tree, error))? {
            return Ok(shown);
        }
        let value = self.get_in_steps(tree, key).await?;
        match look {
            Some(look) => Ok(look(value.as_deref())),
            None => Err(Error::new(ErrorKind::Bug, "a value was shown and its answer lost")),
        }
    }

    /// The newest visible value of a key, after a first look.
    async fn get_after(
        &self,
        tree: Tree,
        key: &[u8],
        looked: Attempt<Option<Found>>,
        mut reached: Option<Reached>,
    ) -> Result<Option<Vec<u8>>> {
        let mut looked = Some(looked);
        let look = || looked.take().unwrap_or_else(|| self.look(tree, key, &mut reached));
        let found = attempt(&*self.store, &self.admission, look).await;
        match found.map_err(|error| self.explain_latest(tree, error))? {
            None => Ok(None),
            Some(Found::Inline(value)) => Ok(Some(value)),
            Some(Found::Overflow(_)) => self.get_in_steps(tree, key).await,
        }
    }

    /// Explains an error that a view of the newest visible commit met. That commit may be an older one than the newest now, which
    /// says no less of tables that were dropped.
    fn explain_latest(&self, tree: Tree, error: Error) -> Error {
        self.tables.explain(tree, self.store.visible(), error)
    }

    /// The newest visible value of a key, where that takes several steps, which must all see one commit.
    async fn get_in_steps(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut taken = 0;
        loop {
            match self.get_at(&self.store.snapshot(), tree, key).await {
                Err(error) if takes_another(&error, &mut taken) => {}
                result => return result,
            }
        }
    }

    /// The value of a key in a snapshot.
    pub(crate) async fn get_at(&self, snapshot: &S::Snapshot, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if is_younger(tree, snapshot) {
            return Ok(None);
        }
        let mut position = tree.start();
        let look = || tree.get_from(&self.store.view(snapshot), key, &mut position, |held| held.map(Found::from));
        let found = attempt(&*self.store, &self.admission, look).await;
        match found.map_err(|error| self.tables.explain(tree, snapshot.seq(), error))? {
            None => Ok(None),
            Some(found) => self.value(snapshot, found).await.map(Some),
        }
    }

    /// The bytes of a value found in a leaf; long values are read.
    pub(crate) async fn value(&self, snapshot: &S::Snapshot, found: Found) -> Result<Vec<u8>> {
        match found {
            Found::Inline(value) => Ok(value),
            Found::Overflow(value) => Ok(self.long_values(snapshot, vec![value]).await?.remove(0)),
        }
    }

    /// Long values in a snapshot, in the order asked. Their pages are read together, a window of them at a time.
    pub(super) async fn long_values(&self, snapshot: &S::Snapshot, values: Vec<OverflowRef>) -> Result<Vec<Vec<u8>>> {
        let page_bytes = self.store.page_bytes();
        let readers: Result<Vec<Reader>> = values.into_iter().map(|value| Reader::new(page_bytes, value)).collect();
        let mut readers = readers?;
        let mut budget = PinBudget::default();
        self.read_long(&mut readers, snapshot.seq(), &mut budget, || self.store.view(snapshot)).await?;
        Ok(readers.into_iter().map(Reader::into_value).collect())
    }

    /// Bytes of long values that are read together at the most.
    pub(super) fn long_bytes_at_once(&self) -> u64 {
        (self.admission.window() * self.store.page_bytes()) as u64
    }

    /// A long value that a commit will replace, with its pages.
    pub(super) async fn list(&self, value: OverflowRef, budget: &mut PinBudget<S::Ticket>) -> Result<Listed> {
        let look = || self.store.tip().written_in(value.root);
        let written_in = attempt_within(&*self.store, &self.admission, budget, look).await?;
        let pages = self.pages_within(value, budget).await?;
        Ok(Listed { value, written_in, pages })
    }

    /// The pages of a long value that is being replaced or given up, as the newest pages have it.
    pub(super) async fn pages_of(&self, value: OverflowRef) -> Result<Vec<PageId>> {
        self.pages_within(value, &mut PinBudget::default()).await
    }

    async fn pages_within(&self, value: OverflowRef, budget: &mut PinBudget<S::Ticket>) -> Result<Vec<PageId>> {
        let mut reader = Reader::listing(self.store.page_bytes(), value)?;
        let seq = self.commits.last().seq;
        let reading = std::slice::from_mut(&mut reader);
        self.read_long(reading, seq, budget, || self.store.tip()).await?;
        Ok(reader.into_pages())
    }

    /// The pages of a long value in a snapshot.
    pub(super) async fn pages_of_at(&self, snapshot: &S::Snapshot, value: OverflowRef) -> Result<Vec<PageId>> {
        let mut reader = Reader::listing(self.store.page_bytes(), value)?;
        let reading = std::slice::from_mut(&mut reader);
        let mut budget = PinBudget::default();
        self.read_long(reading, snapshot.seq(), &mut budget, || self.store.view(snapshot)).await?;
        Ok(reader.into_pages())
    }

    async fn read_long<P: Pages>(
        &self,
        readers: &mut [Reader],
        seq: CommitSeq,
        budget: &mut PinBudget<S::Ticket>,
        view: impl Fn() -> P,
    ) -> Result<()> {
        let window = self.admission.window();
        // Those before it have come to their end.
        let mut done = 0;
        loop {
            let mut waits: Vec<Wait> = Vec::new();
            {
                let view = view();
                let mut all_before = true;
                for reader in &mut readers[done..] {
                    if waits.len() == window {
                        break;
                    }
                    all_before &= reader.advance(&view, seq, window - waits.len(), &mut waits)?;
                    done += usize::from(all_before);
                }
            }
            if done == readers.len() {
                return Ok(());
            }
            load(&*self.store, &self.admission, budget, &waits).await?;
        }
    }

    /// Queues reads of pages that a scan will need.
    pub(super) fn prefetch(&self, pages: &[PageId], at: CommitSeq) {
        let missing: Vec<_> = pages.iter().map(|page| Missing { page: *page, at }).collect();
        self.store.prefetch(&missing);
    }
}
