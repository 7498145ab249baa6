//! Walks every table and collects the damage that it finds.
//!
//! Memory: a bit for each page that exists (the page table has 64 bits for each), and the references to those pages of
//! values of which some references were found and others not yet. Values were packed in the order of their keys, so in a
//! sound database there are few of these at a time. A node that cannot be read may have held further references: a page
//! of values may then have more values in use than the other leaves refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use nofault_io::disk::Directory;
use nofault_io::overlay::Overlay;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::btree::overflow::LongRef;
use crate::btree::{FoundValue, Tree, packed};
use crate::db::calls::catalog::{ExpectedNode, Value, check_node};
use crate::db::calls::loader::Loader;
use crate::db::calls::{overflow, thread};
use crate::db::open::handle::Db;
use crate::db::open::opening::open_in;
use crate::db::open::read_only::read_only;
use crate::error::{Error, Result};
use crate::format::catalog::{EXPIRY_INDEX_KEY, dictionary_number, is_name, is_without_rows};
use crate::format::cell::{OverflowRef, PackedRef, VALUES_HEADER_BYTES};
use crate::format::{PageId, TableId};
use crate::pages::{Pages, Store};
use crate::recovery::Purpose;
use crate::settings::{CompactionMode, Settings};
use crate::sync::driver::block_on;
use crate::transaction::{CATALOG, table_of};

/// The name under which damage of the catalog is reported; the catalog itself has no name.
const CATALOG_NAME: &str = "the catalog";
const EXPIRY_INDEX_NAME: &str = "the index of expiry";

/// The report of a verification of the whole database.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// stock.put("apples", "12")?;
/// let found = db.verify()?;
/// assert!(found.is_clean() && found.blocks > 0);
/// // The catalog is a table, too, with an entry for the other.
/// assert_eq!((found.tables, found.entries), (2, 2));
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Verification {
    /// Number of tables, the catalog included.
    pub tables: u64,
    /// Number of keys in all tables, the catalog included.
    pub entries: u64,
    /// Number of pages of tables found undamaged: nodes and the pages of long values.
    pub pages: u64,
    /// Number of blocks of the data file that were read and checked.
    pub blocks: u64,
    /// All damage, in the order in which it was found.
    pub problems: Vec<Problem>,
    /// Names of the tables that can be opened and have no damage.
    pub sound_tables: Vec<String>,
    /// Names of the other tables that the catalog names. Their sound pages can be read, unless the root is damaged.
    pub damaged_tables: Vec<String>,
    /// Number of damaged pages of the catalog, the table of tables. The tables that they name cannot be opened.
    pub catalog_pages_damaged: u64,
    /// Numbers of tables with a sound root that no readable page of the catalog names, while some cannot be read: their names are unknown.
    /// One of them may be a dropped table, of which not all pages were freed yet.
    pub unnamed_tables: Vec<TableId>,
    /// Damage that was found when the database was opened and has been repaired without loss, in words for a person:
    /// see [`super::stats::Stats::repairs`]. Does not count as broken.
    pub repairs: Vec<String>,
}

impl Verification {
    /// Returns whether no damage was found.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Notes damage in a table. An error that says nothing about the data, such as an invalidated snapshot or a limit of the
    /// process, ends the verification.
    fn note(&mut self, table: &str, error: Error) -> Result<()> {
        if error.is_of_the_moment() {
            return Err(error);
        }
        self.problems.push(Problem { table: Some(table.into()), error });
        Ok(())
    }
}

/// One finding of damage by a verification.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// for problem in db.verify()?.problems {
///     match &problem.table {
///         Some(table) => println!("table {table}: {} (page {:?})", problem.error, problem.error.page()),
///         None => println!("{}", problem.error),
///     }
/// }
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Problem {
    /// The table in which the damage was found; `None` for damage of a block by itself.
    pub table: Option<String>,
    /// The damage, with its page.
    pub error: Error,
}

/// A set of pages: a bit for each, in pieces for page ids that lie close together. The pages were read, so they exist;
/// but a page table may have few pages whose ids lie far apart.
#[derive(Debug, Default)]
struct PageSet(FxHashMap<u64, Box<[u64; PIECE_WORDS]>>);

/// Number of words in a piece, which covers 4,096 pages.
const PIECE_WORDS: usize = 64;

impl PageSet {
    /// Adds a page. Returns false when the set already contains it.
    fn insert(&mut self, page: PageId) -> bool {
        let (word, bit) = ((page.0 / 64) as usize % PIECE_WORDS, 1 << (page.0 % 64));
        let piece = self.0.entry(page.0 / 64 / PIECE_WORDS as u64).or_insert_with(|| Box::new([0; PIECE_WORDS]));
        let is_new = piece[word] & bit == 0;
        piece[word] |= bit;
        is_new
    }
}

impl Db {
    /// Reads a whole database that no process has open and checks it, as [`Db::verify`] does, without writing a byte in its
    /// folders: a backup, also on media that cannot be written. Other processes may check it at the same time, and none can open it.
    /// Takes the memory that `settings` allows; pages that the log changes and that do not fit go to a temporary file.
    ///
    /// ```
    /// use nofault::{Db, settings::Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
    /// # let db = Db::create(folder.path().join("shop"), &settings).await?;
    /// db.backup(folder.path().join("copy")).await?;
    /// let found = Db::check(folder.path().join("copy"), &settings).await?;
    /// assert!(found.is_clean() && found.repairs.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Db::open`], for a database that cannot be opened; `Busy` when a process has it open; the error of the disk.
    pub async fn check(folder: impl AsRef<Path>, settings: &Settings) -> Result<Verification> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        thread::run("nofault-check", move || check(&folder, &settings)).await?
    }
}

/// Checks the database in a folder. Blocks. It is opened as ever, over files that are only read: the superblocks that opening writes, and
/// the pages that the log changes, stay in this process ([`Overlay`]). So a clean answer says that opening works too.
fn check(folder: &Path, settings: &Settings) -> Result<Verification> {
    let directory: Arc<dyn Directory> = Arc::new(Overlay::new(read_only(folder)?));
    // Without threads nothing is done to the copy that the check does not need.
    let settings = Settings { background_threads: false, compaction: CompactionMode::Manual, ..settings.clone() };
    let db = open_in(&directory, &settings, Purpose::Use, None)?;
    verify(&db)
}

/// Verifies a database, as [`Db::verify`] documents. Blocks.
pub(in crate::db) fn verify(db: &Db) -> Result<Verification> {
    let blocks = db.owner.verify_blocks()?;
    // This snapshot is never invalidated: a page that is gone because it was replaced would otherwise count as broken.
    let snapshot = db.core.store.essential_snapshot();
    let mut found = block_on(verify_tables(&db.core.reader.loader, &snapshot, &blocks.rooted))?;
    found.blocks = blocks.pages_checked + blocks.nodes_checked;
    found.repairs = db.owner.repairs().to_vec();
    found.problems.extend(blocks.problems.into_iter().map(|error| Problem { table: None, error }));
    Ok(found)
}

/// Walks the tables in `snapshot`; `rooted` are the tables with a sound root on the disk.
///
/// # Errors
/// An error that is no damage.
pub(in crate::db) async fn verify_tables<S: Store>(
    loader: &Loader<S>,
    snapshot: &S::Snapshot,
    rooted: &BTreeSet<TableId>,
) -> Result<Verification> {
    let mut verifier = Verifier { loader, snapshot, seen: PageSet::default(), found: Verification::default() };
    let (mut tables, mut named) = (Vec::new(), FxHashSet::from_iter([CATALOG.table]));
    verifier
        .tree(CATALOG_NAME, CATALOG, |name, value| {
            if dictionary_number(&name).is_some() || is_without_rows(&name) {
                return;
            }
            let tree = table_of(&name, &value);
            named.extend(tree.iter().map(|tree| tree.table));
            // A dropped table that is being freed is no longer the tree of a whole table.
            if name == EXPIRY_INDEX_KEY {
                tables.push((EXPIRY_INDEX_NAME.into(), tree));
            } else if is_name(&name) {
                tables.push((String::from_utf8_lossy(&name).into_owned(), tree));
            }
        })
        .await?;
    verifier.found.catalog_pages_damaged = verifier.found.problems.len() as u64;
    if verifier.found.catalog_pages_damaged > 0 {
        verifier.found.unnamed_tables = rooted.iter().filter(|table| !named.contains(*table)).copied().collect();
    }
    for (name, tree) in tables {
        let before = verifier.found.problems.len();
        match tree {
            Ok(tree) => verifier.tree(&name, tree, |_, _| {}).await?,
            Err(error) => verifier.found.note(&name, error)?,
        }
        let found = &mut verifier.found;
        let is_sound = found.problems.len() == before;
        if is_sound { &mut found.sound_tables } else { &mut found.damaged_tables }.push(name);
    }
    Ok(verifier.found)
}

/// A verification under way.
struct Verifier<'a, S: Store> {
    loader: &'a Loader<S>,
    snapshot: &'a S::Snapshot,
    /// Pages that belong to a node or value checked before.
    seen: PageSet,
    found: Verification,
}

impl<S: Store> Verifier<'_, S> {
    async fn tree(&mut self, name: &str, tree: Tree, mut entry: impl FnMut(Vec<u8>, FoundValue)) -> Result<()> {
        self.found.tables += 1;
        let mut values: BTreeMap<PageId, ValuesPage> = BTreeMap::new();
        // Nodes that could not be read so far, and up to the last reference to a page of values.
        let (mut unread, mut unread_before) = (0, 0);
        let mut todo = vec![ExpectedNode::root(tree)];
        while let Some(expected) = todo.pop() {
            let page = expected.page;
            let body = match self.read(page).await {
                Ok(body) if self.seen.insert(page) => body,
                Ok(_) => {
                    unread += 1;
                    self.found.note(name, Error::corrupt_page(page, "is part of more than one node or value"))?;
                    continue;
                }
                Err(error) => {
                    unread += 1;
                    self.found.note(name, error)?;
                    continue;
                }
            };
            let (mut entries, mut long) = (Vec::new(), Vec::new());
            match check_node(tree, &expected, &body, &mut todo, &mut entries) {
                Ok(()) => self.found.pages += 1,
                Err(error) => {
                    unread += 1;
                    self.found.note(name, error)?;
                }
            }
            self.found.entries += entries.len() as u64;
            for (key, value) in entries {
                match value {
                    Value::Packed(at) => {
                        self.part(name, &mut values, at, unread_before).await?;
                        unread_before = unread;
                    }
                    Value::Spread(value) => {
                        for at in value.cell().parts(body.len()) {
                            self.part(name, &mut values, at, unread_before).await?;
                            unread_before = unread;
                        }
                    }
                    Value::Elsewhere(value) => long.push(value),
                    Value::Here(value) => entry(key, FoundValue::Inline(value)),
                }
            }
            for value in long {
                self.long_value(name, value).await?;
            }
        }
        for (page, values) in values {
            let are_unread = unread > values.unread_before;
            match values.check(page, are_unread) {
                Ok(()) => self.found.pages += 1,
                Err(error) => self.found.note(name, error)?,
            }
        }
        Ok(())
    }

    /// Notes that a leaf refers to a part of a page of values, and checks the page with its last reference.
    /// `unread_before` counts the nodes that could not be read before the last reference to any page of values.
    async fn part(
        &mut self,
        name: &str,
        values: &mut BTreeMap<PageId, ValuesPage>,
        at: PackedRef,
        unread_before: u64,
    ) -> Result<()> {
        let page = at.page;
        if let Some(found) = values.get_mut(&page) {
            found.parts.push((at.offset, at.len_bytes));
        } else {
            let looked = match self.read(page).await {
                Ok(_) if !self.seen.insert(page) => {
                    Err(Error::corrupt_page(page, "is part of more than one node or value"))
                }
                Ok(body) => packed::live(page, &body).map(|live| (live, body.len())),
                Err(error) => Err(error),
            };
            // A page that is no page of values is reported once, with its first reference.
            let (live, body_bytes) = match looked {
                Ok(found) => found,
                Err(error) => return self.found.note(name, error),
            };
            values.insert(page, ValuesPage { live, body_bytes, parts: vec![(at.offset, at.len_bytes)], unread_before });
        }
        let is_whole = |values: &&ValuesPage| values.parts.len() == usize::from(values.live);
        if values.get(&page).as_ref().is_some_and(is_whole)
            && let Some(values) = values.remove(&page)
        {
            match values.check(page, false) {
                Ok(()) => self.found.pages += 1,
                Err(error) => self.found.note(name, error)?,
            }
        }
        Ok(())
    }

    async fn long_value(&mut self, name: &str, value: OverflowRef) -> Result<()> {
        if let Err(error) =
            overflow::value(self.loader, self.snapshot, FoundValue::Long(LongRef::Overflow(value))).await
        {
            return self.found.note(name, error);
        }
        match overflow::pages_in(self.loader, self.snapshot, value).await {
            Ok(pages) => {
                self.found.pages += pages.len() as u64;
                for page in pages.into_iter().filter(|page| !self.seen.insert(*page)) {
                    self.found.note(name, Error::corrupt_page(page, "is part of more than one node or value"))?;
                }
                Ok(())
            }
            Err(error) => self.found.note(name, error),
        }
    }
    async fn read(&self, page: PageId) -> Result<Vec<u8>> {
        self.loader.attempt(|| Ok(self.loader.store().view(self.snapshot).page(page)?.to_vec())).await
    }
}

/// A page of values, described by the references of the leaves.
struct ValuesPage {
    /// Number of its values to which leaves refer, as the page itself says.
    live: u16,
    body_bytes: usize,
    /// Offset and length of each value, or part of one, to which a leaf refers.
    parts: Vec<(u16, u16)>,
    /// Number of nodes that cannot contain a reference to this page, among those that could not be read: the walk goes in
    /// key order, and they came before the last reference to a page before this one.
    unread_before: u64,
}

impl ValuesPage {
    /// Compares the page with the references of the leaves. With `are_unread`, there are leaves that could not be read.
    fn check(mut self, page: PageId, are_unread: bool) -> Result<()> {
        let (live, count) = (usize::from(self.live), self.parts.len());
        if live < count || (live > count && !are_unread) {
            let what = format_args!("says that {live} of its values are in use; leaves refer to {count}");
            return Err(Error::corrupt_page(page, what));
        }
        self.parts.sort_unstable();
        let mut end = VALUES_HEADER_BYTES;
        for (offset, len_bytes) in self.parts {
            if usize::from(offset) < end {
                return Err(Error::corrupt_page(page, "two of its values overlap"));
            }
            end = usize::from(offset) + usize::from(len_bytes);
        }
        if end > self.body_bytes {
            return Err(Error::corrupt_page(page, "a leaf refers to a value outside of it"));
        }
        Ok(())
    }
}
