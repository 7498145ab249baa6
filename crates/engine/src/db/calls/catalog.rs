//! Reads the catalog, the table of tables, and skips its damaged pages: the tables named in the intact pages can still
//! be opened.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::loader::Loader;
use super::tables::{FixedTables, Tables, in_catalog, is_damage};
use crate::blocks::reread::READS;
use crate::btree::{FoundValue, Tree};
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{dictionary_number, is_name, is_without_rows};
use crate::format::cell::{Cell, OverflowRef, PackedRef, SpreadRef};
use crate::format::node::Node;
use crate::format::{PageId, TableId};
use crate::pages::{Pages, Snapshot as _, Store};
use crate::transaction::{CATALOG, table_and_compression, table_of};

/// The tables of a database, as far as its catalog can be read.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let tables = db.list_tables()?;
/// assert_eq!(tables.names, ["stock"]);
/// for damage in &tables.damage {
///     println!("there may be more tables: {damage}");
/// }
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TableList {
    /// Names of tables, sorted: all of them, unless something is damaged.
    pub names: Vec<String>,
    /// One error for each page or entry of the catalog that cannot be read, with the page and its position. Tables
    /// named there cannot be opened.
    pub damage: Vec<Error>,
}

/// The part of the catalog that can be read.
#[derive(Debug, Default)]
pub(in crate::db) struct Entries {
    /// Keys in order, with their tables: names, and keys of dropped tables waiting to be freed.
    pub(in crate::db) tables: Vec<(Vec<u8>, Tree)>,
    /// The tables that are compressed.
    pub(in crate::db) compressed: Vec<(TableId, Compression)>,
    /// The numbers of the dictionaries.
    pub(in crate::db) dictionaries: Vec<u16>,
    /// Whether a bulk load has left a note that its entries have no rows in the index of expiry yet.
    pub(in crate::db) has_loads_without_rows: bool,
    /// One error for each page or entry that cannot be read.
    pub(in crate::db) damage: Vec<Error>,
}

impl Entries {
    fn take(&mut self, key: Vec<u8>, found: &FoundValue) {
        match table_and_compression(&key, found) {
            Ok((tree, compression)) => {
                self.tables.push((key, tree));
                if compression != Compression::None {
                    self.compressed.push((tree.table, compression));
                }
            }
            Err(error) => self.damage.push(error),
        }
    }
}

/// The catalog of a database.
pub(crate) struct Catalog<S: Store> {
    loader: Arc<Loader<S>>,
    tables: Arc<Tables>,
}

impl<S: Store> Catalog<S> {
    pub(in crate::db) fn new(loader: Arc<Loader<S>>, tables: Arc<Tables>) -> Self {
        Self { loader, tables }
    }

    /// Returns the number of bytes of a page.
    pub(in crate::db) fn page_bytes(&self) -> usize {
        self.loader.store().page_bytes()
    }

    /// Looks up the table of this name.
    ///
    /// # Errors
    /// `NotFound`; the errors of reading the catalog.
    pub(in crate::db) async fn table(&self, name: &[u8]) -> Result<Tree> {
        self.loader.store().check_process()?;
        if let Some(tree) = self.tables.known(name) {
            return Ok(tree);
        }
        if let Some(answer) = self.tables.fixed_table(name) {
            return answer;
        }
        // Not newer than the state that is read.
        let seen = self.loader.store().visible();
        let found = self.loader.attempt(|| CATALOG.get(&self.loader.store().latest(), name)).await;
        let Some(found) = found.map_err(in_catalog)? else {
            let name = String::from_utf8_lossy(name);
            return Err(Error::new(ErrorKind::NotFound, format!("there is no table {name:?}")));
        };
        let tree = table_of(name, &found)?;
        self.tables.remember(name, tree, seen);
        Ok(tree)
    }

    /// Reads the compression of a table, which must not have been dropped or renamed.
    ///
    /// # Errors
    /// `NotFound`; the errors of reading the catalog.
    pub(in crate::db) async fn compression(&self, tree: Tree, name: &[u8]) -> Result<Compression> {
        let entry = self.entry(tree, name).await?;
        table_and_compression(name, &FoundValue::Inline(entry)).map(|(_, compression)| compression)
    }

    /// Reads the entry of a table, which must not have been dropped or renamed.
    ///
    /// # Errors
    /// `NotFound`; the errors of reading the catalog.
    pub(in crate::db) async fn entry(&self, tree: Tree, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.loader.attempt(|| CATALOG.get(&self.loader.store().latest(), name)).await;
        match found.map_err(in_catalog)? {
            Some(found) if table_of(name, &found)? == tree => match found {
                FoundValue::Inline(entry) => Ok(entry),
                _ => Err(Error::new(ErrorKind::Corrupt, "an entry of the catalog lies outside of its leaf")),
            },
            _ => {
                let name = String::from_utf8_lossy(name);
                Err(Error::new(ErrorKind::NotFound, format!("there is no table {name:?} any more")))
            }
        }
    }

    /// Lists the tables that `snapshot` contains.
    ///
    /// # Errors
    /// Errors other than damage.
    pub(in crate::db) async fn list(&self, snapshot: &S::Snapshot) -> Result<TableList> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        if let Some(FixedTables { tables, error }) = self.tables.fixed() {
            return Ok(TableList {
                names: tables.keys().map(|name| text(name)).collect(),
                damage: vec![error.clone()],
            });
        }
        let found = self.read(snapshot).await?;
        let names = found.tables.iter().map(|(key, _)| key).filter(|key| is_name(key)).map(|key| text(key)).collect();
        Ok(TableList { names, damage: found.damage })
    }

    /// Reads all of the catalog that is readable.
    ///
    /// # Errors
    /// Errors other than damage.
    pub(in crate::db) async fn read(&self, snapshot: &S::Snapshot) -> Result<Entries> {
        let mut entries = Entries::default();
        let mut seen = FxHashSet::default();
        let mut todo = vec![ExpectedNode::root(CATALOG)];
        while let Some(expected) = todo.pop() {
            let page = expected.page;
            let read = || Ok(self.loader.store().view(snapshot).page(page)?.to_vec());
            let mut body = self.loader.attempt(read).await;
            for _ in 1..READS {
                // The pool repeats a read with wrong bytes, not one that failed.
                if !body.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io) {
                    break;
                }
                body = self.loader.attempt(read).await;
            }
            let (before, mut found) = (todo.len(), Vec::new());
            let looked = body.and_then(|body| {
                if !seen.insert(page) {
                    return Err(Error::corrupt_page(page, "is part of more than one node"));
                }
                check_node(CATALOG, &expected, &body, &mut todo, &mut found)
            });
            match looked {
                Err(error) if is_damage(&error) => entries.damage.push(in_catalog(error)),
                Err(error) => return Err(error),
                Ok(()) => {
                    // The leaves come next: leaves that are not in memory are read side by side.
                    let children: Vec<_> = todo[before..].iter().rev().map(|child| child.page).collect();
                    self.loader.prefetch(&children, snapshot.seq());
                }
            }
            for (key, value) in found {
                if let Some(number) = dictionary_number(&key) {
                    entries.dictionaries.push(number);
                    continue;
                }
                if is_without_rows(&key) {
                    entries.has_loads_without_rows = true;
                    continue;
                }
                match value {
                    Value::Here(value) => entries.take(key, &FoundValue::Inline(value)),
                    Value::Elsewhere(_) | Value::Packed(_) | Value::Spread(_) => {
                        entries.take(key, &FoundValue::Inline(Vec::new()))
                    }
                }
            }
        }
        Ok(entries)
    }
}

/// A node still to be checked, with the level and the bounds that its parent gives it.
pub(in crate::db) struct ExpectedNode {
    pub(in crate::db) page: PageId,
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

impl ExpectedNode {
    /// Returns the root of a tree as the first node to be checked.
    pub(in crate::db) fn root(tree: Tree) -> Self {
        Self { page: tree.root, level: None, lower: Vec::new(), upper: None }
    }
}

/// A value as a leaf records it: the value itself, or a reference to its pages.
pub(in crate::db) enum Value {
    Here(Vec<u8>),
    Elsewhere(OverflowRef),
    Packed(PackedRef),
    Spread(SpreadRef),
}

/// Checks one node and lists its children or its entries.
pub(in crate::db) fn check_node(
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
