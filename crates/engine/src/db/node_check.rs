//! Checks one node of a tree against the level and the bounds that its parent gives it. Walks of the catalog and of all
//! tables use this, because they go on past damage.

use crate::btree::Tree;
use crate::error::Result;
use crate::format::PageId;
use crate::format::cell::{Cell, OverflowRef, PackedRef, SpreadRef};
use crate::format::node::Node;

/// A node still to be checked, with the level and the bounds that its parent gives it.
pub(super) struct ExpectedNode {
    pub(super) page: PageId,
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

impl ExpectedNode {
    /// Returns the root of a tree as the first node to be checked.
    pub(super) fn root(tree: Tree) -> Self {
        Self { page: tree.root, level: None, lower: Vec::new(), upper: None }
    }
}

/// A value as a leaf records it: the value itself, or a reference to its pages.
pub(super) enum Value {
    Here(Vec<u8>),
    Elsewhere(OverflowRef),
    Packed(PackedRef),
    Spread(SpreadRef),
}

/// Checks one node and lists its children or its entries.
pub(super) fn check_node(
    tree: Tree,
    expected: &ExpectedNode,
    body: &[u8],
    todo: &mut Vec<ExpectedNode>,
    entries: &mut Vec<(Vec<u8>, Value)>,
) -> Result<()> {
    let node = Node::open(expected.page, body)?;
    node.check()?;
    if node.table() != tree.table.0 {
        return Err(node.corrupt(format_args!("belongs to table {} and not to {}", node.table(), tree.table)));
    }
    if expected.level.is_some_and(|level| level != node.level()) {
        return Err(node.corrupt(format_args!("is at level {}, which contradicts its parent", node.level())));
    }
    if node.lower() != expected.lower || node.upper() != expected.upper.as_deref() {
        return Err(node.corrupt("its fences are not the keys beside it in its parent"));
    }
    if node.level() == 0 {
        for index in 0..node.count() {
            let value = match node.cell(index)? {
                Cell::Inline(value) => Value::Here(value.to_vec()),
                Cell::Overflow(value) => Value::Elsewhere(value),
                Cell::Packed(at) => Value::Packed(at),
                Cell::Spread(at) => Value::Spread(at.into()),
            };
            entries.push((node.key(index)?, value));
        }
        return Ok(());
    }
    // Pushed in reverse, so that the walk goes in key order.
    for index in (0..=node.count()).rev() {
        let lower = if index == 0 { expected.lower.clone() } else { node.key(index - 1)? };
        let upper = if index == node.count() { expected.upper.clone() } else { Some(node.key(index)?) };
        todo.push(ExpectedNode { page: node.child(index)?, level: Some(node.level() - 1), lower, upper });
    }
    Ok(())
}
