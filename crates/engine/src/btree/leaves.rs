//! Finds leaves without a look into them: for relocation, which needs their places rather than their content, and for
//! commits, which look into many of them together.

use super::{Position, Tree};
use crate::format::PageId;
use crate::pages::{Attempt, Pages, Wait};

impl Tree {
    /// Returns the inner nodes from the root to the last inner node of level 1, and up to `most` of its last leaves in
    /// key order. If the root is a leaf, it is the only leaf.
    pub(crate) fn last_leaves<P: Pages>(&self, pages: &P, most: usize) -> Attempt<(Vec<PageId>, Vec<PageId>)> {
        let (mut id, mut level) = (self.root, None);
        let mut path = Vec::new();
        loop {
            let page = pages.page(id)?;
            let node = self.open(id, &page, level)?;
            if node.level() == 0 {
                return Ok((path, vec![id]));
            }
            path.push(id);
            if node.level() == 1 {
                let mut leaves = Vec::new();
                for index in (node.count() + 1).saturating_sub(most)..=node.count() {
                    leaves.push(node.child(index)?);
                }
                return Ok((path, leaves));
            }
            (id, level) = (node.child(node.count())?, Some(node.level() - 1));
        }
    }

    /// Returns the inner nodes from the root down to the parent of `to`, if `to` is the root or the last node of some
    /// level. The node `to` itself is not read.
    pub(crate) fn last_way<P: Pages>(&self, pages: &P, to: PageId) -> Attempt<Option<Vec<PageId>>> {
        let (mut id, mut level) = (self.root, None);
        let mut path = Vec::new();
        while id != to {
            let page = pages.page(id)?;
            let node = self.open(id, &page, level)?;
            if node.level() == 0 {
                return Ok(None);
            }
            path.push(id);
            (id, level) = (node.child(node.count())?, Some(node.level() - 1));
        }
        Ok(Some(path))
    }

    /// Returns the leaves of the level-1 node that contains key `start`, in key order, and the first key after that
    /// node; `None` at the end of the table. No leaf is read.
    pub(crate) fn leaves<P: Pages>(&self, pages: &P, start: &[u8]) -> Attempt<(Vec<PageId>, Option<Vec<u8>>)> {
        let (mut id, mut level) = (self.root, None);
        loop {
            let page = pages.page(id)?;
            let node = self.open(id, &page, level)?;
            if node.level() == 0 {
                return Ok((vec![id], None));
            }
            if node.level() == 1 {
                let mut leaves = Vec::with_capacity(node.count() + 1);
                for index in 0..=node.count() {
                    leaves.push(node.child(index)?);
                }
                let next = node.upper().map(<[u8]>::to_vec);
                // Without this check a scan would go in circles.
                if next.as_ref().is_some_and(|next| next.as_slice() <= start) {
                    return Err(Wait::Failed(node.corrupt("its upper fence is not above the keys that led here")));
                }
                return Ok((leaves, next));
            }
            (id, level) = (node.child(node.child_index(start)?)?, Some(node.level() - 1));
        }
    }
}

/// Finds the leaves of keys that ascend: begins at the parent of the leaf before, if the key belongs below it.
pub(crate) struct LeafFinder<'p, P: Pages> {
    pages: &'p P,
    /// The tree of the key before, and the parent of its leaf.
    parent: Option<(Tree, PageId)>,
}

impl<'p, P: Pages> LeafFinder<'p, P> {
    /// Creates a search beginning at the root.
    pub(crate) fn new(pages: &'p P) -> Self {
        Self { pages, parent: None }
    }

    /// Returns the position of the leaf in which `key` belongs. The leaf itself is looked at only where it is the root.
    pub(crate) fn find(&mut self, tree: Tree, key: &[u8]) -> Attempt<Position> {
        if let Some((of, parent)) = self.parent
            && of == tree
        {
            let page = self.pages.page(parent)?;
            // Other commits may have changed it since.
            if let Ok(node) = tree.open(parent, &page, Some(1))
                && node.covers(key)
            {
                return Ok(Position::Node(node.child(node.child_index(key)?)?, Some(0)));
            }
        }
        self.parent = None;
        let (mut id, mut level) = (tree.root, None);
        loop {
            let page = self.pages.page(id)?;
            let node = tree.open(id, &page, level)?;
            if node.level() == 0 {
                return Ok(tree.start());
            }
            let child = node.child(node.child_index(key)?)?;
            if node.level() == 1 {
                self.parent = Some((tree, id));
                return Ok(Position::Node(child, Some(0)));
            }
            (id, level) = (child, Some(node.level() - 1));
        }
    }
}
