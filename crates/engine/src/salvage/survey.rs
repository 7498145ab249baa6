//! Lists the leaves of all tables of a damaged database, and the pages that cannot be read.
//!
//! Every leaf says which keys it holds, those from its lower fence up to its upper one. So no inner node is needed to read a
//! table, and a range of keys that no leaf holds is lost. Inner nodes say which page would have held it.
//!
//! Memory: some 60 bytes and the first key for each leaf.

use std::collections::{BTreeMap, BTreeSet};

use super::values::{FoundPage, PageReader};
use crate::btree::Tree;
use crate::codec::{Compression, Dictionary};
use crate::error::{Error, Result};
use crate::format::catalog::{decode_dictionary, dictionary_number, is_name, is_without_rows, replaced_by};
use crate::format::node::{KIND_NODE, Node};
use crate::format::{CommitSeq, PageId, TableId};
use crate::transaction::{CATALOG, table_of};

/// A leaf of a table.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// No key of the leaf is smaller.
    pub(super) lower: Vec<u8>,
    pub(super) page: PageId,
    pub(super) commit: CommitSeq,
    pub(super) is_sure: bool,
}

/// The leaves of all tables.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) leaves: BTreeMap<TableId, Vec<Leaf>>,
    /// Nodes just above the leaves.
    parents: Vec<PageId>,
    pub(super) unreadable: BTreeMap<PageId, Error>,
    /// For each table, the leaves that cannot be read, by the first key that they may have held.
    pub(super) missing: BTreeMap<TableId, BTreeMap<Vec<u8>, PageId>>,
}

impl Survey {
    /// Lets no leaf count as sure that belongs to the content which a load has replaced.
    pub(super) fn outdate(&mut self, replaced: &[(Tree, CommitSeq)]) {
        for (tree, by) in replaced {
            let leaves = self.leaves.get_mut(&tree.table).into_iter().flatten();
            // The load copied the root of the old content.
            let old = leaves.filter(|leaf| leaf.commit < *by || leaf.page == tree.root);
            old.for_each(|leaf| leaf.is_sure = false);
        }
    }

    /// Looks at all compressed pages, or at all others. `go_on` is called for each.
    pub(super) fn look(&mut self, reader: &PageReader<'_>, compressed: bool, go_on: &mut dyn FnMut() -> bool) {
        for (page, _) in reader.map.pages().filter(|(_, at)| at.is_compressed == compressed) {
            if !go_on() {
                return;
            }
            match reader.page(page) {
                Ok(found) => {
                    if let Err(error) = self.take(page, &found) {
                        self.unreadable.insert(page, error);
                    }
                }
                Err(error) => drop(self.unreadable.insert(page, error)),
            }
        }
    }

    /// Returns the ranges of keys of a table that no sure leaf holds.
    pub(super) fn gaps(&self, reader: &PageReader<'_>, table: TableId) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let (mut gaps, mut reached) = (Vec::new(), Some(Vec::new()));
        for leaf in self.leaves.get(&table).into_iter().flatten().filter(|leaf| leaf.is_sure) {
            let Some(from) = reached.clone().filter(|reached| leaf.lower >= *reached) else { continue };
            let Ok(found) = reader.page(leaf.page) else { continue };
            let Ok(node) = Node::open(leaf.page, &found.body) else { continue };
            if leaf.lower > from {
                gaps.push((from, Some(leaf.lower.clone())));
            }
            reached = node.upper().map(<[u8]>::to_vec);
        }
        gaps.extend(reached.map(|from| (from, None)));
        gaps
    }

    fn take(&mut self, page: PageId, found: &FoundPage) -> Result<()> {
        if found.body.first() != Some(&KIND_NODE) {
            return Ok(());
        }
        let node = Node::open(page, &found.body)?;
        node.check()?;
        match node.level() {
            0 => {
                let (lower, commit, is_sure) = (node.lower().to_vec(), found.commit, found.is_sure);
                let leaf = Leaf { lower, page, commit, is_sure };
                self.leaves.entry(TableId(node.table())).or_default().push(leaf);
            }
            1 => self.parents.push(page),
            _ => {}
        }
        Ok(())
    }

    /// Puts the leaves of each table in the order of their keys, and finds out which keys the unreadable ones held.
    pub(super) fn complete(&mut self, reader: &PageReader<'_>) {
        for leaves in self.leaves.values_mut() {
            leaves.sort_unstable_by(|a, b| (&a.lower, a.commit).cmp(&(&b.lower, b.commit)));
        }
        for parent in &self.parents {
            // It could be read before.
            let Ok(found) = reader.page(*parent) else { continue };
            let Ok(node) = Node::open(*parent, &found.body) else { continue };
            for index in 0..=node.count() {
                let Ok(child) = node.child(index) else { continue };
                let is_missing = self.unreadable.contains_key(&child) || reader.map.location(child).is_err();
                let lower = if index == 0 { Ok(node.lower().to_vec()) } else { node.key(index - 1) };
                if let (true, Ok(lower)) = (is_missing, lower) {
                    self.missing.entry(TableId(node.table())).or_default().insert(lower, child);
                }
            }
        }
    }
}

/// A table that the catalog names.
#[derive(Debug, Clone)]
pub(super) struct NamedTable {
    pub(super) name: String,
    pub(super) tree: Tree,
    pub(super) compression: Compression,
    /// Whether the entry is sure.
    pub(super) is_sure: bool,
}

/// The tables that the readable leaves of the catalog name.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) tables: Vec<NamedTable>,
    /// Tables that were dropped, and are being freed, and the index of expiry: the new database makes its own.
    pub(super) dropped: BTreeSet<TableId>,
    /// The content that tables had before a load, which is being freed, with the commit of the load.
    pub(super) replaced: Vec<(Tree, CommitSeq)>,
    pub(super) problems: Vec<Error>,
}

/// Reads the readable leaves of the catalog, and adds its dictionaries to the reader's.
pub(super) fn read_catalog(reader: &PageReader<'_>, survey: &Survey) -> Catalog {
    let mut catalog = Catalog::default();
    let mut leaves: Vec<&Leaf> = survey.leaves.get(&CATALOG.table).into_iter().flatten().collect();
    // Where several leaves hold one entry, the sure one counts, and then the newest.
    leaves.sort_by_key(|leaf| (std::cmp::Reverse(leaf.is_sure), std::cmp::Reverse(leaf.commit)));
    let mut known: BTreeSet<Vec<u8>> = BTreeSet::new();
    for leaf in leaves {
        let entries = match entries_of(reader, CATALOG.table, leaf) {
            Ok(entries) => entries,
            Err(error) => {
                catalog.problems.push(error);
                continue;
            }
        };
        for (key, value) in entries {
            if !known.insert(key.clone()) {
                continue;
            }
            match value {
                Ok((value, is_sure)) => catalog.take(reader, &key, value, is_sure && leaf.is_sure),
                Err(error) => catalog.problems.push(error),
            }
        }
    }
    catalog
}

/// The entries of a leaf: each key with its value, and whether the value is sure.
type Entries = Vec<(Vec<u8>, Result<(Vec<u8>, bool)>)>;

fn entries_of(reader: &PageReader<'_>, table: TableId, leaf: &Leaf) -> Result<Entries> {
    let found = reader.page(leaf.page)?;
    let node = Node::open(leaf.page, &found.body)?;
    (0..node.count()).map(|index| Ok((node.key(index)?, reader.value(table, node.cell(index)?)))).collect()
}

impl Catalog {
    fn take(&mut self, reader: &PageReader<'_>, key: &[u8], value: Vec<u8>, is_sure: bool) {
        if let Some(number) = dictionary_number(key) {
            let dictionary =
                decode_dictionary(&value).and_then(|(origin, bytes)| Dictionary::new(number, origin, bytes));
            reader.dictionaries.add(number, dictionary.map(std::sync::Arc::new));
            return;
        }
        // The new database makes its own rows.
        if is_without_rows(key) {
            return;
        }
        let compression = crate::format::catalog::decode_table(key, &value).map(|(_, _, compression)| compression);
        let replaced = replaced_by(&value);
        match table_of(key, &crate::btree::FoundValue::Inline(value)).and_then(|tree| Ok((tree, compression?))) {
            Ok((tree, _)) if !is_name(key) => match replaced {
                None => drop(self.dropped.insert(tree.table)),
                Some(by) => self.replaced.push((tree, by)),
            },
            Ok((tree, compression)) => {
                let name = String::from_utf8_lossy(key).into_owned();
                self.tables.push(NamedTable { name, tree, compression, is_sure });
            }
            Err(error) => self.problems.push(error),
        }
    }
}
