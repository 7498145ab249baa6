//! Frees the pages of dropped tables, a few at a time, after the commit that dropped them.
//!
//! That commit takes the name out of the catalog and notes there what is to be freed, under a key that is no name
//! (`format::catalog`). The root moves to another page at the same time, so handles of the table find a page that is gone. Then
//! leaves are freed from the end of the tree on, each step a commit of its own: what is left is a smaller tree, and at last an
//! empty root, which goes together with the note.
//!
//! Kept true by:
//! 1. Nobody but whoever frees it, one at a time, changes a tree that is to be freed: what was looked up outside of the section
//!    holds inside.
//! 2. The records of the steps are empty. A power cut takes back steps that no checkpoint has seen, each of them whole, and the
//!    note still leads to what is left: it is done again.
//! 3. A page of values is freed when the last leaf that refers to it goes, whichever that is: it counts its values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::core::Core;
use super::scan::Scan;
use super::wait::{Held, Mode, attempt, load};
use crate::bell::Bell;
use crate::error::{Error, ErrorKind, Result};
use crate::format::PageId;
use crate::format::catalog::{first_to_be_freed, to_be_freed};
use crate::format::node::{Cell, Node};
use crate::format::node_mut::{self, NodeSpec};
use crate::gate::block_on;
use crate::pages::{Attempt, CommitLog, Durability, Edits, Pages, Store};
use crate::tree::{Direction, Found, KeyRange, Tree, packed};
use crate::txn::{CATALOG, table_of};

/// Leaves that are freed in one step.
const LEAVES_AT_ONCE: usize = 64;
/// Pages of values, short and long, that end a step early.
const PAGES_AT_ONCE: usize = 4096;

/// What one step frees.
#[derive(Debug)]
struct Step {
    tree: Tree,
    /// Inner nodes, from the root to the parent of the leaves.
    path: Vec<PageId>,
    /// The last leaves; the root where that is one.
    leaves: Vec<PageId>,
    /// Pages that only these leaves refer to.
    pages: Vec<PageId>,
    /// A page of values that the leaf before these refers to as well, and how many values are left in it.
    shared: Option<(PageId, u16)>,
}

impl<S: Store, L: CommitLog> Core<S, L> {
    /// Frees the next pages of a dropped table. False when there is none. Blocks. Only one at a time may do this.
    ///
    /// # Errors
    /// `Corrupt` when the table is damaged; what reading or the log failed with.
    pub(super) async fn free_some(self: &Arc<Self>) -> Result<bool> {
        let mode = Mode::Blocking;
        let Some(tree) = self.next_to_free(mode).await? else { return Ok(false) };
        let step = self.next_step(mode, tree).await?;
        let mut held = Held::default();
        loop {
            let turn = self.commits.turn().acquire(1).await;
            let mut section = self.commits.occupy(turn)?;
            match section.edit(|edits, _| step.apply(edits)) {
                Ok(()) => {
                    let position = self.append_nothing(&mut section).await?;
                    section.settle_unseen(Durability::Deferred, position);
                    drop(section);
                    // Visible then, so the next step sees what this one has left.
                    self.wait_durable(mode, position).await?;
                    return Ok(true);
                }
                Err(wait) => {
                    drop(section);
                    load(&*self.store, &self.admission, mode, &mut held, &[wait]).await?;
                }
            }
        }
    }

    async fn next_to_free(self: &Arc<Self>, mode: Mode) -> Result<Option<Tree>> {
        let snapshot = Arc::new(self.store.snapshot());
        let mut scan = Scan::new(
            self.clone(),
            snapshot,
            CATALOG,
            KeyRange { start: first_to_be_freed(), end: None },
            Direction::Forward,
        );
        let Some((key, value)) = scan.next(mode).await? else { return Ok(None) };
        let tree = table_of(&key, &Found::Inline(value))?;
        if key != to_be_freed(tree.table) {
            return Err(Error::new(ErrorKind::Corrupt, "the catalog's note of a dropped table is of another one"));
        }
        Ok(Some(tree))
    }

    /// Looks at the last leaves of a tree, and at what they refer to.
    async fn next_step(&self, mode: Mode, tree: Tree) -> Result<Step> {
        let look = || tree.last_leaves(&self.store.tip(), LEAVES_AT_ONCE.min(self.admission.window()));
        let (path, mut last) = attempt(&*self.store, &self.admission, mode, look).await?;
        let seq = self.commits.last().seq;
        self.prefetch(&last, seq);
        let (mut leaves, mut pages) = (Vec::new(), Vec::new());
        let mut referred: BTreeMap<PageId, u16> = BTreeMap::new();
        // From the last one on: they go from the end.
        while pages.len() + referred.len() < PAGES_AT_ONCE
            && let Some(leaf) = last.pop()
        {
            let read = || Ok(self.store.tip().page(leaf)?.to_vec());
            let body = attempt(&*self.store, &self.admission, mode, read).await?;
            let node = Node::open(leaf, &body)?;
            for index in 0..node.count() {
                match node.cell(index)? {
                    Cell::Inline(_) => {}
                    Cell::Overflow(value) => pages.extend(self.pages_of(mode, value).await?),
                    Cell::Packed(at) => *referred.entry(at.page).or_default() += 1,
                }
            }
            leaves.push(leaf);
        }
        let ahead: Vec<PageId> = referred.keys().copied().collect();
        let mut values = Vec::new();
        for (at, (page, count)) in referred.into_iter().enumerate() {
            if at % LEAVES_AT_ONCE == 0 {
                self.prefetch(&ahead[at..ahead.len().min(at + LEAVES_AT_ONCE)], seq);
            }
            let read = || Ok(packed::live(page, &self.store.tip().page(page)?)?);
            let live = attempt(&*self.store, &self.admission, mode, read).await?;
            match live.checked_sub(count) {
                Some(left) if left > 0 => values.push((page, left)),
                _ => pages.push(page),
            }
        }
        // Values were packed in the order of keys, so only the first of these leaves can share a page with one before it.
        if values.len() > 1 {
            let what = format_args!("has values of leaves that are not beside each other");
            return Err(Error::corrupt_page(values[1].0, what));
        }
        Ok(Step { tree, path, leaves, pages, shared: values.pop() })
    }
}

impl Step {
    fn apply<E: Edits>(&self, edits: &mut E) -> Attempt<()> {
        if let Some((page, left)) = self.shared {
            packed::set_live(edits.edit(page)?, left);
        }
        // How many of the last children of the node go.
        let mut gone = self.leaves.len();
        for (depth, page) in self.path.iter().copied().enumerate().rev() {
            let children = Node::open(page, &edits.page(page)?)?.count() + 1;
            if gone < children {
                let body = edits.edit(page)?;
                for key in (children - 1 - gone..children - 1).rev() {
                    node_mut::remove(page, body, key)?;
                }
                break;
            }
            if depth > 0 {
                edits.free(page);
                gone = 1;
            } else {
                let spec = NodeSpec { level: 0, table: self.tree.table, lower: &[], upper: None, first_child: None };
                node_mut::init(edits.edit(page)?, &spec);
            }
        }
        if self.path.is_empty() {
            CATALOG.delete(edits, &to_be_freed(self.tree.table))?;
        }
        self.leaves.iter().chain(&self.pages).for_each(|page| edits.free(*page));
        Ok(())
    }
}

/// A thread that frees what dropped tables have left; it ends when this is dropped.
pub(super) struct Freer {
    bell: Arc<Bell>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Freer {
    /// Starts it. It begins with what is left of tables dropped before.
    ///
    /// # Errors
    /// `NoSpace` when the system has no threads or descriptors left.
    pub(super) fn start<S: Store, L: CommitLog>(core: Arc<Core<S, L>>) -> Result<Self> {
        let (bell, stop) = (Arc::new(Bell::new()?), Arc::new(AtomicBool::new(false)));
        bell.set_listened(true);
        let (heard, stopped) = (Arc::clone(&bell), Arc::clone(&stop));
        let work = move || {
            while !stopped.load(Ordering::SeqCst) {
                // What cannot be freed now is tried again when the next table is dropped, or the database is opened.
                if !matches!(block_on(core.free_some()), Ok(true)) {
                    heard.wait(None, None);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("nofault-free".into())
            .spawn(work)
            .map_err(|error| Error::new(ErrorKind::NoSpace, format!("start a background thread: {error}")))?;
        Ok(Self { bell, stop, thread: Some(thread) })
    }

    /// There is something to be freed.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }
}

impl Drop for Freer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}
