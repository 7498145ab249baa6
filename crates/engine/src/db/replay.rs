//! Replays the log: the records of many commits together, so that a page that many of them changed is copied and sealed once.
//!
//! Nobody reads while this goes on, so the states in between are not missed: what counts is the state after the last record.
//!
//! Kept true by: ops are applied in the order of their keys, but of each key the youngest one alone; a commit that creates or removes
//! a table is applied by itself, after everything before it, because the table's id is the commit's number.

use std::collections::HashMap;
use std::sync::Arc;

use super::core::Core;
use super::wait::Mode;
use crate::error::Result;
use crate::format::{CommitSeq, TableId};
use crate::gate::block_on;
use crate::pages::{CommitLog, Store};
use crate::tree::Tree;
use crate::txn::{self, Op};

/// See the module.
pub(super) struct Replay<S: Store, L: CommitLog> {
    core: Arc<Core<S, L>>,
    tables: HashMap<TableId, Tree>,
    /// Bytes of records that are gathered before they are applied.
    bytes_max: usize,
    /// What is gathered: ops from old to young, their records' bytes, and the youngest commit.
    ops: Vec<Op>,
    bytes: usize,
    last: Option<CommitSeq>,
}

impl<S: Store, L: CommitLog> Replay<S, L> {
    /// Begins with the tables that there are before the first record.
    pub(super) fn new(core: Arc<Core<S, L>>, tables: HashMap<TableId, Tree>, bytes_max: usize) -> Self {
        Self { core, tables, bytes_max, ops: Vec::new(), bytes: 0, last: None }
    }

    /// Takes the next record. Blocks.
    ///
    /// # Errors
    /// `Corrupt` for a record that makes no sense, or what reading pages fails with.
    pub(super) fn take(&mut self, seq: CommitSeq, record: &[u8]) -> Result<()> {
        let ops = txn::decode(record, |table| self.tables.get(&table).copied())?;
        if ops.iter().any(|op| matches!(op, Op::CreateTable { .. } | Op::DropTable { .. })) {
            self.apply()?;
            self.core.replay(seq, &ops)?;
            return self.note_tables(ops);
        }
        self.ops.extend(ops);
        self.bytes += record.len();
        self.last = Some(seq);
        if self.bytes < self.bytes_max { Ok(()) } else { self.apply() }
    }

    /// Applies what is gathered. To be called after the last record. Blocks.
    ///
    /// # Errors
    /// What reading pages fails with.
    pub(super) fn apply(&mut self) -> Result<()> {
        // A commit without ops counts as well: the next one's number follows it.
        let Some(last) = self.last.take() else { return Ok(()) };
        let mut ops = std::mem::take(&mut self.ops);
        self.bytes = 0;
        // The youngest first, and stays so among those of one key, where it is the one that is kept.
        ops.reverse();
        ops.sort_by(|a, b| {
            let ((a_tree, a_key), (b_tree, b_key)) = (a.target(), b.target());
            (a_tree.table, a_key).cmp(&(b_tree.table, b_key))
        });
        ops.dedup_by(|older, younger| {
            let ((a_tree, a_key), (b_tree, b_key)) = (older.target(), younger.target());
            a_tree.table == b_tree.table && a_key == b_key
        });
        self.core.replay(last, &ops)
    }

    fn note_tables(&mut self, ops: Vec<Op>) -> Result<()> {
        for op in ops {
            match op {
                Op::CreateTable { name } => {
                    let tree = block_on(self.core.table(Mode::Blocking, &name))?;
                    self.tables.insert(tree.table, tree);
                }
                Op::DropTable { tree, name } => {
                    self.core.tables.dropped(tree, &name);
                    self.tables.remove(&tree.table);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
