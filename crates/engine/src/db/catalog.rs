//! Reads the catalog, the table of tables, past pages of it that are damaged: the tables named in the others are there all the same.

use rustc_hash::FxHashSet;

use super::core::Core;
use super::tables::Fixed;
use super::verify::{Expected, Value, look};
use super::wait::attempt;
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::is_name;
use crate::pages::{CommitLog, Pages, Store};
use crate::reread::READS;
use crate::tree::{Found, Tree};
use crate::txn::{CATALOG, table_of};

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
pub struct TableList {
    /// Names of tables, sorted: all of them, unless something is damaged.
    pub names: Vec<String>,
    /// One error for each page or entry of the catalog that cannot be read: it names the page and where that is. Tables named there cannot
    /// be opened.
    pub damage: Vec<Error>,
}

/// The part of the catalog that can be read.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Keys in order, with their tables: names, and keys of dropped tables that wait to be freed.
    pub(super) tables: Vec<(Vec<u8>, Tree)>,
    /// One error for each page or entry that cannot be read.
    pub(super) damage: Vec<Error>,
}

/// Whether the error is about bytes on the disk.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io)
}

/// An error that reading or changing the catalog failed with: says that it is the catalog, if it is about bytes on the disk.
pub(super) fn in_catalog(error: Error) -> Error {
    if is_damage(&error) { error.met_in("the catalog (the table of tables) is damaged") } else { error }
}

impl Entries {
    fn take(&mut self, key: Vec<u8>, found: &Found) {
        match table_of(&key, found) {
            Ok(tree) => self.tables.push((key, tree)),
            Err(error) => self.damage.push(error),
        }
    }
}

impl<S: Store, L: CommitLog> Core<S, L> {
    /// The tables that `snapshot` shows.
    ///
    /// # Errors
    /// Errors other than damage.
    pub(super) async fn list_tables(&self, snapshot: &S::Snapshot) -> Result<TableList> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        if let Some(Fixed { tables, error }) = self.tables.fixed() {
            return Ok(TableList {
                names: tables.keys().map(|name| text(name)).collect(),
                damage: vec![error.clone()],
            });
        }
        let found = self.read_catalog(snapshot).await?;
        let names = found.tables.iter().map(|(key, _)| key).filter(|key| is_name(key)).map(|key| text(key)).collect();
        Ok(TableList { names, damage: found.damage })
    }

    /// All of the catalog that can be read.
    ///
    /// # Errors
    /// Errors other than damage.
    pub(super) async fn read_catalog(&self, snapshot: &S::Snapshot) -> Result<Entries> {
        let mut entries = Entries::default();
        let mut met = FxHashSet::default();
        let mut todo = vec![Expected::root(CATALOG)];
        while let Some(expected) = todo.pop() {
            let page = expected.page;
            let read = || Ok(self.store.view(snapshot).page(page)?.to_vec());
            let mut body = attempt(&*self.store, &self.admission, read).await;
            for _ in 1..READS {
                // The pool repeats a read with wrong bytes, not one that failed.
                if !body.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io) {
                    break;
                }
                body = attempt(&*self.store, &self.admission, read).await;
            }
            let (before, mut found) = (todo.len(), Vec::new());
            let looked = body.and_then(|body| {
                if !met.insert(page) {
                    return Err(Error::corrupt_page(page, "is part of more than one node"));
                }
                look(CATALOG, &expected, &body, &mut todo, &mut found)
            });
            match looked {
                Err(error) if is_damage(&error) => entries.damage.push(in_catalog(error)),
                Err(error) => return Err(error),
                Ok(()) => {
                    // Leaves come next: those that are in no memory are read side by side.
                    let children: Vec<_> = todo[before..].iter().rev().map(|child| child.page).collect();
                    self.prefetch(&children, crate::pages::Snapshot::seq(snapshot));
                }
            }
            for (key, value) in found {
                match value {
                    Value::Here(value) => entries.take(key, &Found::Inline(value)),
                    Value::Elsewhere(_) | Value::Packed(_) => entries.take(key, &Found::Inline(Vec::new())),
                }
            }
        }
        Ok(entries)
    }
}
