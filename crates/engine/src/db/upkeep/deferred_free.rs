//! Frees the pages of dropped tables, a few at a time, after the commit that dropped them; and the pages of a table's
//! content before a bulk load into it.
//!
//! The commit takes the name out of the catalog and adds a note there that leads to the tree, under a key that is no
//! name (`format::catalog`). The root moves to another page at the same time, so handles of the table find a freed
//! page. Then leaves are freed from the end of the tree on. Each step is a separate commit and leaves a smaller tree,
//! in the end an empty root, which is freed together with the note.
//!
//! Kept true by:
//! 1. Only the thread that frees a tree changes it, and only one thread does so at a time: pages looked up outside of
//!    the section are still right inside.
//! 2. The records of the steps are empty. A power cut takes back steps that no checkpoint has seen, each of them whole,
//!    and the note still leads to the rest of the tree: the steps are done again.
//! 3. A page of values counts its values, and is freed with the last leaf referring to it, in any order of the
//!    leaves.
//! 4. Damage does not stop the work. A node that cannot be read is freed, and the pages that only it refers to stay in
//!    use forever, as they are unknown. A page of values that cannot be read stays in use as well, as later leaves may
//!    refer to it. `Stats` counts each.
//! 5. No reader of the commit that dropped the tree, or of a later one, reaches its pages. So snapshots from then on do not keep
//!    them ([`PageCopies::free_unread`]): otherwise a large table that is dropped would invalidate snapshots that never see it.
//!    The page to which the root was moved was written by that commit.
//! 6. Damage does not spread to other tables: when a damaged node names a page that is whole but no part of the table,
//!    only the reference is removed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::btree::overflow::{is_overflow, own_pages};
use crate::btree::{Direction, FoundValue, KeyRange, Tree, packed};
use crate::db::calls::core::Core;
use crate::db::calls::overflow;
use crate::db::calls::pins::PinBudget;
use crate::db::calls::reader::Reader;
use crate::db::calls::scan::Scan;
use crate::db::calls::structure::{CATALOG_PAGES, StructureCommits};
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{first_to_be_freed, is_note_of};
use crate::format::cell::{Cell, OverflowRef};
use crate::format::node::Node;
use crate::format::node_mut::{self, NodeSpec};
use crate::format::{CommitSeq, PageId};
use crate::pages::{Attempt, CommitLog, PageCopies, Pages, Store, Versions as _};
use crate::sync::background::{BackgroundWork, Kind, Next};
use crate::sync::driver::block_on;
use crate::transaction::{CATALOG, Commits, table_of};

/// Number of leaves freed in one step.
const LEAVES_AT_ONCE: usize = 64;
/// Number of pages of values, short and long, at which a step ends early.
const PAGES_AT_ONCE: usize = 4096;
/// Pages of values that leaves of one step share with others: the first and, where the one after it was damaged, the
/// last leaf.
const SHARED_MAX: usize = 2;

/// Pause of the background thread after a failure.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The pages of a dropped table that one step frees.
#[derive(Debug)]
struct Step {
    /// The catalog key of the note that leads to the tree.
    note: Vec<u8>,
    tree: Tree,
    /// Inner nodes from the root of the dropped table to the parent of the leaves.
    path: Vec<PageId>,
    /// The leaves to be freed.
    leaves: Vec<PageId>,
    /// A page that the parent refers to although it belongs to another table or to none: it is not freed.
    foreign: Option<PageId>,
    /// Pages to which only the leaves of this step refer.
    pages: Vec<PageId>,
    /// Pages of values to which other leaves refer as well, each with the number of values that stay in it.
    shared: Vec<(PageId, u16)>,
    /// Number of pages that could not be read, or did not belong to the table.
    damaged: u64,
    /// The commit since which no reader reaches the tree.
    unread_since: CommitSeq,
}

/// The pages of values that a leaf refers to.
#[derive(Debug, Default)]
struct References {
    long: Vec<OverflowRef>,
    /// Pages of values belonging to one value alone.
    own: Vec<PageId>,
    /// Pages of values, each with the number of its values that the leaf refers to.
    packed: BTreeMap<PageId, u16>,
}

impl References {
    fn of(tree: Tree, leaf: PageId, body: &[u8]) -> Result<Self> {
        let node = Node::open(leaf, body)?;
        if node.table() != tree.table.0 || node.level() != 0 {
            return Err(node.corrupt("is no leaf of the dropped table to which its parent belongs"));
        }
        let mut found = Self::default();
        for index in 0..node.count() {
            match node.cell(index)? {
                Cell::Inline(_) => {}
                Cell::Overflow(value) => found.long.push(value),
                Cell::Packed(at) => *found.packed.entry(at.page).or_default() += 1,
                Cell::Spread(at) => {
                    let shared = at.shared_pages();
                    found.own.extend(at.pages().filter(|page| !shared.contains(&Some(*page))));
                    shared.into_iter().flatten().for_each(|page| *found.packed.entry(page).or_default() += 1);
                }
            }
        }
        Ok(found)
    }
}

/// Counts a damaged page and returns `None` for it. Other errors stay errors.
fn unless_damaged<T>(result: Result<T>, damaged: &mut u64) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            *damaged += 1;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The dropped tables of a database, whose pages wait to be freed.
pub(crate) struct DroppedTables<S: Store, L: CommitLog> {
    reader: Reader<S>,
    commits: Arc<Commits<S, L>>,
    structure: Arc<StructureCommits<S, L>>,
    /// Number of pages that could not be read when they were to be freed.
    damaged: AtomicU64,
    /// The tree that is being freed, and the commit since which no reader reaches it.
    in_progress: Mutex<Option<(Vec<u8>, Tree, CommitSeq)>>,
}

impl<S: Store, L: CommitLog> DroppedTables<S, L> {
    pub(in crate::db) fn new(core: &Core<S, L>) -> Arc<Self> {
        let (reader, commits, structure) = (core.reader.clone(), core.commits.clone(), core.structure.clone());
        Arc::new(Self { reader, commits, structure, damaged: AtomicU64::new(0), in_progress: Mutex::default() })
    }

    /// Returns the number of pages that could not be read when they were to be freed, since the database was opened.
    pub(in crate::db) fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    fn store(&self) -> &S {
        self.reader.loader.store()
    }

    /// Frees the next pages of a dropped table. False when there is none. Blocks. Only one thread at a time may do
    /// this.
    ///
    /// # Errors
    /// `Corrupt` when the catalog is damaged; the errors of reading and of the log.
    pub(in crate::db) async fn free_some(&self) -> Result<bool> {
        let Some((note, tree)) = self.next_to_free().await? else { return Ok(false) };
        let step = self.next_step(note, tree).await?;
        let changed = step.path.len() + step.shared.len() + CATALOG_PAGES;
        self.structure.commit(changed, |copies| step.apply(copies)).await?;
        self.damaged.fetch_add(step.damaged, Ordering::Relaxed);
        if step.path.is_empty() {
            *self.in_progress() = None;
        }
        Ok(true)
    }

    fn in_progress(&self) -> MutexGuard<'_, Option<(Vec<u8>, Tree, CommitSeq)>> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the commit since which no reader reaches a tree, or a later one. Called before the first step, which may change
    /// the root, and remembered for the others.
    async fn unread_since(&self, note: &[u8], tree: Tree) -> CommitSeq {
        if let Some((known, of, since)) = &*self.in_progress()
            && (known.as_slice(), *of) == (note, tree)
        {
            return *since;
        }
        // The note was found, so the newest commit is no earlier than the drop.
        let newest = self.structure.newest();
        let look = || self.store().latest_published().written_in(tree.root);
        let since = self.reader.loader.attempt(look).await.unwrap_or(newest);
        *self.in_progress() = Some((note.to_vec(), tree, since));
        since
    }

    async fn next_to_free(&self) -> Result<Option<(Vec<u8>, Tree)>> {
        let snapshot = Arc::new(self.store().snapshot());
        let mut scan = Scan::new(
            self.reader.clone(),
            snapshot,
            CATALOG,
            KeyRange { start: first_to_be_freed(), end: None },
            Direction::Forward,
        );
        let Some((key, value)) = scan.next().await? else { return Ok(None) };
        let tree = table_of(&key, &FoundValue::Inline(value))?;
        if !is_note_of(&key, tree.table, tree.root) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "the catalog's note of a dropped table describes another table",
            ));
        }
        Ok(Some((key, tree)))
    }

    /// Reads the last leaves of a tree, and determines the pages that the next step frees.
    async fn next_step(&self, note: Vec<u8>, tree: Tree) -> Result<Step> {
        let mut damaged = 0;
        let unread_since = self.unread_since(&note, tree).await;
        let look =
            || tree.last_leaves(&self.store().latest_published(), LEAVES_AT_ONCE.min(self.reader.loader.window()));
        let (path, mut last) = match self.reader.loader.attempt(look).await {
            Ok(found) => found,
            Err(error) => {
                let Some(page) = error.page().filter(|_| error.kind() == ErrorKind::Corrupt) else { return Err(error) };
                let look = || tree.last_way(&self.store().latest_published(), page);
                let way = self.reader.loader.attempt(look).await?;
                let Some(path) = way else { return Err(error) };
                let foreign = self.is_foreign(tree, page).await?.then_some(page);
                // The damaged page is freed as if it were a leaf, without the pages below it.
                let (leaves, pages, shared) = (vec![page], Vec::new(), Vec::new());
                return Ok(Step { note, tree, path, leaves, foreign, pages, shared, damaged: 1, unread_since });
            }
        };
        let seq = self.commits.last().seq;
        self.reader.loader.prefetch(&last, seq);
        let (mut leaves, mut foreign, mut pages) = (Vec::new(), None, Vec::new());
        let mut referred: BTreeMap<PageId, u16> = BTreeMap::new();
        // From the last leaf on, because leaves are freed from the end of the tree. A damaged leaf ends the step, so
        // that few pages of values are shared.
        while damaged == 0
            && pages.len() + referred.len() < PAGES_AT_ONCE
            && let Some(leaf) = last.pop()
        {
            leaves.push(leaf);
            let read = || Ok(self.store().latest_published().page(leaf)?.to_vec());
            let body = self.reader.loader.attempt(read).await;
            let found = body.and_then(|body| References::of(tree, leaf, &body));
            let Some(found) = unless_damaged(found, &mut damaged)? else {
                foreign = self.is_foreign(tree, leaf).await?.then_some(leaf);
                break;
            };
            for value in found.long {
                let listed = unless_damaged(self.pages_of(value).await, &mut damaged)?.unwrap_or_default();
                let own = own_pages(&self.store().latest_published(), &listed, is_overflow);
                damaged += (listed.len() - own.len()) as u64;
                pages.extend(own);
            }
            let own = own_pages(&self.store().latest_published(), &found.own, packed::is_own);
            damaged += (found.own.len() - own.len()) as u64;
            pages.extend(own);
            for (page, count) in found.packed {
                *referred.entry(page).or_default() += count;
            }
        }
        let ahead: Vec<PageId> = referred.keys().copied().collect();
        let mut shared = Vec::new();
        for (at, (page, count)) in referred.into_iter().enumerate() {
            if at % LEAVES_AT_ONCE == 0 {
                self.reader.loader.prefetch(&ahead[at..ahead.len().min(at + LEAVES_AT_ONCE)], seq);
            }
            let read = || Ok(packed::live(page, &self.store().latest_published().page(page)?)?);
            let live = self.reader.loader.attempt(read).await;
            match unless_damaged(live, &mut damaged)?.map(|live| live.checked_sub(count)) {
                None => {}
                Some(Some(left)) if left > 0 => shared.push((page, left)),
                Some(_) => pages.push(page),
            }
        }
        // Values were packed in the order of keys, so more pages than these are shared only where something is damaged.
        // The counts of the others do not matter then, as those pages stay.
        damaged += shared.len().saturating_sub(SHARED_MAX) as u64;
        shared.truncate(SHARED_MAX);
        Ok(Step { note, tree, path, leaves, foreign, pages, shared, damaged, unread_since })
    }

    /// Returns the pages of a long value, according to the newest pages of its index.
    async fn pages_of(&self, value: OverflowRef) -> Result<Vec<PageId>> {
        let newest = self.commits.last().seq;
        overflow::newest_pages(&self.reader.loader, newest, value, &mut PinBudget::default()).await
    }

    /// Whether a page that the tree refers to is whole but no node of the table. A page that cannot be read counts as a
    /// node of the table, as nothing contradicts the tree; the root of the catalog never does.
    async fn is_foreign(&self, tree: Tree, page: PageId) -> Result<bool> {
        let read = || Ok(self.store().latest_published().page(page)?.to_vec());
        let body = unless_damaged(self.reader.loader.attempt(read).await, &mut 0)?;
        let is_own = |body: Vec<u8>| Node::open(page, &body).is_ok_and(|node| node.table() == tree.table.0);
        Ok(page == PageId::CATALOG_ROOT || body.is_some_and(|body| !is_own(body)))
    }
}

impl Step {
    fn apply<E: PageCopies>(&self, copies: &mut E) -> Attempt<()> {
        for (page, left) in &self.shared {
            packed::set_live(copies.edit(*page)?, *left);
        }
        // Number of children to be removed from the end of the node.
        let mut gone = self.leaves.len();
        for (depth, page) in self.path.iter().copied().enumerate().rev() {
            let children = Node::open(page, &copies.page(page)?)?.count() + 1;
            if gone < children {
                let body = copies.edit(page)?;
                for key in (children - 1 - gone..children - 1).rev() {
                    node_mut::remove(page, body, key)?;
                }
                break;
            }
            if depth > 0 {
                copies.free_unread(page, self.unread_since);
                gone = 1;
            } else {
                let spec = NodeSpec { level: 0, table: self.tree.table, lower: &[], upper: None, first_child: None };
                node_mut::init(copies.edit(page)?, &spec);
            }
        }
        if self.path.is_empty() {
            CATALOG.delete(copies, &self.note)?;
        }
        let leaves = self.leaves.iter().filter(|leaf| Some(**leaf) != self.foreign);
        leaves.chain(&self.pages).for_each(|page| copies.free_unread(*page, self.unread_since));
        Ok(())
    }
}

/// Frees the pages of dropped tables, until this is dropped.
pub(in crate::db) struct Freeing(BackgroundWork);

impl Freeing {
    /// Starts the work. It begins with the pages of tables dropped before. `in_panic` is called when it panics.
    ///
    /// # Errors
    /// `NoResources` when the system has no threads left.
    pub(in crate::db) fn start<S: Store, L: CommitLog>(
        dropped: Arc<DroppedTables<S, L>>,
        in_panic: impl FnOnce(&Error) + Send + 'static,
    ) -> Result<Self> {
        let round = move |_: &_, _| match block_on(dropped.free_some()) {
            Ok(true) => Next::Again,
            Ok(false) => Next::Wait(None),
            // The cause of the error may go away, or the next drop or opening tries again.
            Err(_) => Next::Wait(Some(TRY_AGAIN_AFTER)),
        };
        BackgroundWork::start(Kind::Freeing, Arc::default(), Next::Again, in_panic, round).map(Self)
    }

    /// Wakes the work: a table was dropped.
    pub(in crate::db) fn wake(&self) {
        self.0.notify();
    }
}
