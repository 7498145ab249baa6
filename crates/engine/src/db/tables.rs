//! Which tables there are, as far as this process has met them; and dropping one.
//!
//! A table's id is the number of the commit that created it, so no two tables ever have the same, and every node says which
//! table it belongs to. So a handle of a table that was dropped finds pages that are not its own, or none: an error, which
//! [`Tables::explain`] turns into the right one.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::core::Core;
use super::wait::{Held, Mode, attempt, load};
use crate::error::{Error, ErrorKind, Result};
use crate::format::TableId;
use crate::format::node::{Cell, Node};
use crate::pages::{CommitLog, Edits as _, Pages as _, Store};
use crate::tree::Tree;
use crate::txn::Exclusive;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tables(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By name: a root never moves.
    tables: HashMap<Vec<u8>, Tree>,
    /// Dropped since the database was opened: of others there are no handles.
    dropped: HashSet<TableId>,
}

impl Tables {
    /// The table of this name, if it was met.
    pub(super) fn known(&self, name: &[u8]) -> Option<Tree> {
        self.read().tables.get(name).copied()
    }

    /// The catalog has this table. It may have been dropped since it was looked up.
    pub(super) fn met(&self, name: &[u8], tree: Tree) {
        let mut known = self.write();
        if !known.dropped.contains(&tree.table) {
            known.tables.insert(name.to_vec(), tree);
        }
    }

    /// The table is being dropped, and will be whatever happens.
    pub(super) fn dropped(&self, tree: Tree, name: &[u8]) {
        let mut known = self.write();
        known.dropped.insert(tree.table);
        known.tables.remove(name);
    }

    /// Why nothing can be written to this table any more.
    pub(super) fn refusal(&self, tree: Tree) -> Option<Error> {
        let dropped = self.read().dropped.contains(&tree.table);
        dropped.then(|| Error::new(ErrorKind::NotFound, "the table was dropped; its handles are of no use any more"))
    }

    /// What an error in this table means.
    pub(super) fn explain(&self, tree: Tree, error: Error) -> Error {
        if error.kind() == ErrorKind::Corrupt { self.refusal(tree).unwrap_or(error) } else { error }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store, L: CommitLog> Core<S, L> {
    /// Frees all pages of a tree, in portions that are visible only when the commit is. From the root down: a node is read, then
    /// freed, then what hangs below it; nobody else changes pages meanwhile.
    pub(super) async fn free_tree(&self, section: &mut Exclusive<S, L>, tree: Tree) -> Result<()> {
        let mode = Mode::Blocking;
        let portion = self.admission.window();
        let mut todo = vec![tree.root];
        let mut free = Vec::new();
        let mut values = HashSet::new();
        while !todo.is_empty() {
            let now = todo.split_off(todo.len().saturating_sub(portion));
            let mut held = Held::default();
            // All of the portion at once, then one by one.
            let waits: Vec<_> = {
                let tip = self.store.tip();
                now.iter().filter_map(|page| tip.page(*page).err()).collect()
            };
            if !waits.is_empty() {
                load(&*self.store, &self.admission, mode, &mut held, &waits).await?;
            }
            for page in now {
                let read = || Ok(self.store.tip().page(page)?.to_vec());
                let body = attempt(&*self.store, &self.admission, mode, read).await?;
                let node = Node::open(page, &body)?;
                if node.table() != tree.table.0 {
                    return Err(node.corrupt(format_args!("belongs to table {}, not {}", node.table(), tree.table)));
                }
                free.push(page);
                if node.level() > 0 {
                    for child in 0..=node.count() {
                        todo.push(node.child(child)?);
                    }
                    continue;
                }
                for index in 0..node.count() {
                    match node.cell(index)? {
                        Cell::Inline(_) => {}
                        Cell::Overflow(value) => free.extend(self.pages_of(mode, value).await?),
                        // Freed once, whichever of the leaves that refer to it comes first.
                        Cell::Packed(at) => free.extend(values.insert(at.page).then_some(at.page)),
                    }
                }
            }
            drop(held);
            let freed = section.edit(|edits, _| {
                free.drain(..).for_each(|page| edits.free(page));
                Ok(())
            });
            freed.map_err(|wait| Error::new(ErrorKind::Bug, format!("freeing pages met {wait:?}")))?;
        }
        Ok(())
    }
}
