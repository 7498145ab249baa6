//! Applies the changes of commits to private copies of pages.

use super::catalog::{entry_of, refuse_existing, refuse_types};
use super::commit_context::CommitContext;
use super::{CATALOG, Op};
use crate::btree::leaves::LeafFinder;
use crate::btree::overflow::{LongRef, Writer, is_overflow, own_pages};
use crate::btree::write::ReplacedValue;
use crate::btree::{Position, SEARCHED_BYTES, Tree};
use crate::codec::Compression;
use crate::error::{Error, ErrorKind};
use crate::format::catalog::{encode_table, to_be_freed, with_compression, with_types};
use crate::format::cell::{Cell, inline_value_bytes_max};
use crate::format::{CommitSeq, Moment, PageId, TableId};
use crate::pages::{Attempt, Missing, PageCopies, Versions, Wait};

/// How to treat pages that a damaged index wrongly lists as pages of a long value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// Refuse the change: nothing has changed yet.
    Refuse,
    /// Leave the pages allocated: the record is in the log, and an error would prevent the database from being opened.
    Leave,
}

/// Number of changes whose leaves are found before the first of them is applied.
const AT_ONCE: usize = 16;
/// Number of times that this is done under one pin of the epoch. Frames retired under the pin are not used again before it ends.
const TIMES_A_PIN: usize = 64;

/// Applies changes, in order of table and key, to private copies that will be published as commit `seq`. `at` refers to the
/// value of the only one if that was already written to overflow pages.
pub(super) fn apply<E: PageCopies + Versions>(
    copies: &mut E,
    ops: &[Op],
    seq: CommitSeq,
    at: Option<&LongRef>,
    context: &CommitContext,
    damage: Damage,
) -> Attempt<()> {
    if let [op] = ops {
        return apply_one(copies, op, seq, (at, None), context, damage);
    }
    for (time, ops) in ops.chunks(AT_ONCE).enumerate() {
        if time > 0 && time.is_multiple_of(TIMES_A_PIN) {
            copies.unpinned(|| ());
        }
        // The leaves are not in the CPU caches as a rule, and would be waited for one after the other.
        let mut leaves = [None; AT_ONCE];
        let mut finder = LeafFinder::new(&*copies);
        // Merges free leaves, and only deletes merge: a leaf found here stays one until the first of them. When it
        // has split, or is a root that has, the change notices.
        for (leaf, op) in leaves.iter_mut().zip(ops.iter().take_while(|op| matches!(op, Op::Put { .. }))) {
            let (tree, key) = op.target();
            *leaf = finder.find(tree, key).ok().map(Position::page);
        }
        leaves.iter().flatten().for_each(|leaf| copies.fetch(*leaf, 0..SEARCHED_BYTES));
        for (number, op) in ops.iter().enumerate() {
            if let Some(Some(next)) = leaves.get(number + 1) {
                // All of it will be copied.
                copies.fetch(*next, SEARCHED_BYTES..copies.page_bytes());
            }
            apply_one(copies, op, seq, (at, leaves[number]), context, damage)?;
        }
        copies.seal(seq);
    }
    Ok(())
}

/// Applies one change. `leaf` is the page in which its key was found to belong before other changes of the same commit.
fn apply_one<E: PageCopies + Versions>(
    copies: &mut E,
    op: &Op,
    seq: CommitSeq,
    (at, leaf): (Option<&LongRef>, Option<PageId>),
    context: &CommitContext,
    damage: Damage,
) -> Attempt<()> {
    let old = match op {
        Op::Put { tree, key, value, expiry } => {
            let written;
            let cell = match at {
                Some(at) => at.cell(),
                None if value.len() <= inline_value_bytes_max(copies.page_bytes()) => Cell::Inline(value),
                None if *expiry == Moment::NEVER && tree.overwrite(copies, key, value)? => return Ok(()),
                None => {
                    let mut writer = Writer::new(value);
                    // The whole value is written at once: a value too long for one set of copies comes with `at`.
                    let at = writer.write(copies, *tree, usize::MAX)?;
                    let missing = || Error::new(ErrorKind::Bug, "a long value was not written to its end");
                    written = at.ok_or_else(missing)?;
                    written.cell()
                }
            };
            tree.put_into(copies, leaf, key, cell, *expiry)?
        }
        Op::Delete { tree, key } => tree.delete_beside(copies, key, &context.unreadable)?,
        Op::DropTable { tree, name } => {
            let root = copies.page(tree.root)?.to_vec();
            let (moved, body) = copies.allocate(tree.root)?;
            body.copy_from_slice(&root);
            copies.free(tree.root);
            let note = encode_table(tree.table, moved, Compression::None);
            CATALOG.put(copies, &to_be_freed(tree.table), Cell::Inline(&note))?;
            CATALOG.delete_beside(copies, name, &context.unreadable)?
        }
        Op::CreateTable { name, compression } => {
            refuse_existing(copies, name)?;
            let tree = Tree::create(copies, TableId(seq.0), CATALOG.root)?;
            CATALOG.put(copies, name, Cell::Inline(&encode_table(tree.table, tree.root, *compression)))?
        }
        Op::SetCompression { tree, name, compression } => {
            let entry = entry_of(copies, *tree, name)?;
            CATALOG.put(copies, name, Cell::Inline(&with_compression(&entry, *compression)))?
        }
        Op::RenameTable { tree, name, to } => {
            let entry = entry_of(copies, *tree, name)?;
            refuse_existing(copies, to)?;
            CATALOG.put(copies, to, Cell::Inline(&entry))?;
            CATALOG.delete_beside(copies, name, &context.unreadable)?
        }
        Op::SetTypes { tree, name, key, value } => {
            let entry = entry_of(copies, *tree, name)?;
            refuse_types(name, &entry)?;
            CATALOG.put(copies, name, Cell::Inline(&with_types(&entry, key, value)))?
        }
    };
    if let Some(ReplacedValue::Long(value)) = old {
        // The value was written after `gather`: gather again.
        let again = || Wait::Miss(Missing { page: value.root, at: seq });
        let pages = context.pages_of(copies, &value)?.ok_or_else(again)?;
        let own = own_pages(copies, pages, is_overflow);
        if damage == Damage::Refuse && own.len() < pages.len() {
            let what = "a long value should begin here, but one of its pages holds something else or is named twice";
            return Err(Error::corrupt_page(value.root, what).into());
        }
        own.into_iter().for_each(|page| copies.free(page));
    }
    Ok(())
}
