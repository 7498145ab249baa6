//! Everything the public types do, over any store and any log, for tasks and threads alike.

use std::sync::{Arc, OnceLock};

use super::tables::Tables;
use super::wait::{Admission, Held, Mode, attempt, load};
use crate::error::{Error, ErrorKind, Result};
use crate::format::node::OverflowRef;
use crate::format::{CommitSeq, PageId};
use crate::pages::{CommitLog, Missing, Pages, Snapshot, Store, Wait};
use crate::tree::overflow::Reader;
use crate::tree::{Found, Tree};
use crate::txn::{CATALOG, Commits, table_of};

/// See the module.
pub(crate) struct Core<S: Store, L: CommitLog> {
    pub(super) store: Arc<S>,
    pub(super) log: Arc<L>,
    pub(super) commits: Arc<Commits<S, L>>,
    pub(super) admission: Admission,
    pub(super) tables: Tables,
    /// Makes room in the log, where no background thread does. Blocks.
    pub(super) make_room: OnceLock<MakeRoom>,
}

/// Makes a checkpoint on this thread.
pub(super) type MakeRoom = Box<dyn Fn() -> Result<()> + Send + Sync>;

impl<S: Store, L: CommitLog> Core<S, L> {
    /// Puts the parts together. The catalog exists.
    pub(crate) fn new(store: Arc<S>, log: Arc<L>, commits: Arc<Commits<S, L>>) -> Self {
        let admission = Admission::new(store.pins_max());
        Self { store, log, commits, admission, tables: Tables::default(), make_room: OnceLock::new() }
    }

    /// From now on whoever finds the log full calls this.
    pub(super) fn make_checkpoints(&self, make_room: MakeRoom) {
        let set = self.make_room.set(make_room);
        debug_assert!(set.is_ok(), "said once, when the database is opened");
    }

    /// The table of this name.
    ///
    /// # Errors
    /// `NotFound`; what reading failed with.
    pub(crate) async fn table(&self, mode: Mode, name: &[u8]) -> Result<Tree> {
        if let Some(tree) = self.tables.known(name) {
            return Ok(tree);
        }
        let found = attempt(&*self.store, &self.admission, mode, || CATALOG.get(&self.store.latest(), name)).await?;
        let Some(found) = found else {
            let name = String::from_utf8_lossy(name);
            return Err(Error::new(ErrorKind::NotFound, format!("there is no table {name:?}")));
        };
        let tree = table_of(name, &found)?;
        self.tables.met(name, tree);
        Ok(tree)
    }

    /// The newest visible value of a key.
    pub(crate) async fn get(&self, mode: Mode, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = attempt(&*self.store, &self.admission, mode, || tree.get(&self.store.latest(), key)).await;
        match found.map_err(|error| self.tables.explain(tree, error))? {
            None => Ok(None),
            Some(Found::Inline(value)) => Ok(Some(value)),
            // A long value takes several steps, which must all see one commit.
            Some(Found::Overflow(_)) => self.get_at(mode, &self.store.snapshot(), tree, key).await,
        }
    }

    /// The value of a key in a snapshot.
    pub(crate) async fn get_at(
        &self,
        mode: Mode,
        snapshot: &S::Snapshot,
        tree: Tree,
        key: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let look = || tree.get(&self.store.view(snapshot), key);
        let found = attempt(&*self.store, &self.admission, mode, look).await;
        match found.map_err(|error| self.tables.explain(tree, error))? {
            None => Ok(None),
            Some(found) => self.value(mode, snapshot, found).await.map(Some),
        }
    }

    /// The values of many keys at one moment, in the order asked.
    pub(crate) async fn get_many(&self, mode: Mode, tree: Tree, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        {
            let view = self.store.latest();
            let look = |key: &&[u8]| match tree.get(&view, key) {
                Ok(None) => Some(None),
                Ok(Some(Found::Inline(value))) => Some(Some(value)),
                _ => None,
            };
            if let Some(values) = keys.iter().map(look).collect() {
                return Ok(values);
            }
        }
        self.get_many_at(mode, &self.store.snapshot(), tree, keys).await
    }

    /// The values of many keys in a snapshot. At most one wait per tree level and window of keys.
    pub(crate) async fn get_many_at(
        &self,
        mode: Mode,
        snapshot: &S::Snapshot,
        tree: Tree,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let window = self.admission.window();
        let mut found: Vec<Option<Found>> = vec![None; keys.len()];
        let mut open: Vec<usize> = (0..keys.len()).collect();
        let mut held = Held::default();
        loop {
            let mut waits = Vec::new();
            let mut asked = std::collections::HashSet::new();
            {
                let view = self.store.view(snapshot);
                let mut still = Vec::new();
                for (at, index) in open.iter().copied().enumerate() {
                    if waits.len() == window {
                        still.extend_from_slice(&open[at..]);
                        break;
                    }
                    match tree.get(&view, keys[index]) {
                        Ok(value) => found[index] = value,
                        Err(Wait::Failed(error)) => return Err(self.tables.explain(tree, error)),
                        Err(wait) => {
                            still.push(index);
                            if let Wait::Miss(missing) = &wait
                                && !asked.insert(missing.page)
                            {
                                continue;
                            }
                            waits.push(wait);
                        }
                    }
                }
                open = still;
            }
            if open.is_empty() {
                break;
            }
            load(&*self.store, &self.admission, mode, &mut held, &waits).await?;
        }
        drop(held);
        let mut values = Vec::with_capacity(keys.len());
        for found in found {
            values.push(match found {
                None => None,
                Some(found) => Some(self.value(mode, snapshot, found).await?),
            });
        }
        Ok(values)
    }

    /// What a leaf held, with long values read in.
    pub(crate) async fn value(&self, mode: Mode, snapshot: &S::Snapshot, found: Found) -> Result<Vec<u8>> {
        match found {
            Found::Inline(value) => Ok(value),
            Found::Overflow(value) => {
                let mut reader = Reader::new(self.store.page_bytes(), value)?;
                let seq = snapshot.seq();
                self.read_long(mode, &mut reader, seq, || self.store.view(snapshot)).await?;
                Ok(reader.into_value())
            }
        }
    }

    /// The pages of a long value that a commit will replace, as the newest pages have it.
    pub(super) async fn pages_of(&self, mode: Mode, value: OverflowRef) -> Result<Vec<PageId>> {
        let mut reader = Reader::listing(self.store.page_bytes(), value)?;
        let seq = self.commits.last().seq;
        self.read_long(mode, &mut reader, seq, || self.store.tip()).await?;
        Ok(reader.into_pages())
    }

    /// The pages of a long value in a snapshot.
    pub(super) async fn pages_of_at(
        &self,
        mode: Mode,
        snapshot: &S::Snapshot,
        value: OverflowRef,
    ) -> Result<Vec<PageId>> {
        let mut reader = Reader::listing(self.store.page_bytes(), value)?;
        self.read_long(mode, &mut reader, snapshot.seq(), || self.store.view(snapshot)).await?;
        Ok(reader.into_pages())
    }

    async fn read_long<P: Pages>(
        &self,
        mode: Mode,
        reader: &mut Reader,
        seq: CommitSeq,
        view: impl Fn() -> P,
    ) -> Result<()> {
        let mut held = Held::default();
        let mut waits: Vec<Wait> = Vec::new();
        let mut rounds_without_end = 0usize;
        while !reader.advance(&view(), seq, self.admission.window(), &mut waits)? {
            load(&*self.store, &self.admission, mode, &mut held, &waits).await?;
            waits.clear();
            // Each round reads on, so there is no limit on rounds but the length of the value.
            held.new_round();
            rounds_without_end += 1;
            debug_assert!(rounds_without_end <= 1 << 20, "a long value never ends");
        }
        Ok(())
    }

    /// Queues reads of what a scan will come to.
    pub(super) fn prefetch(&self, pages: &[PageId], at: CommitSeq) {
        let missing: Vec<_> = pages.iter().map(|page| Missing { page: *page, at }).collect();
        self.store.prefetch(&missing);
    }
}
