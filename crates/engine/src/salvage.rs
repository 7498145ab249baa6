//! Salvages a damaged database: writes all of it that can be read into a new one, and lists what is lost.
//!
//! Nothing of the damaged database is trusted but what its checksums prove, and nothing of it is changed. From the newest
//! whole superblock the page table says where each page lies and which version of it belongs to the state. Every leaf says
//! which keys it holds, so entries are found without the nodes above them, and a range of keys that no leaf holds is lost.
//! The log is replayed on top.
//!
//! Where a part of the page table is lost, or both superblocks, the whole file is searched for pages. A page that was found
//! so may be an older version of itself: its entries are *unsure*, and go to separate tables.
//!
//! Kept true by: an entry in a table that is not unsure is exact as of the commit that the report names, or it is missing
//! and the report lists its key, its range or its table.
//!
//! Memory: 8 bytes for each page, and some 60 bytes and one key for each leaf.

mod file_id;
mod fill;
mod log;
mod page_map;
mod source;
mod survey;
#[cfg(test)]
mod tests;
mod values;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use self::fill::{Ending, Filler};
use self::page_map::{PageMap, Shape, no_superblock};
use self::source::Source;
use self::survey::{NamedTable, Survey, read_catalog};
use self::values::PageReader;
use crate::blocking::UnfinishedDb;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{CommitSeq, PageId, TableId};
use crate::settings::Settings;
use crate::transaction::CATALOG;

/// Number of pages or records between two reports of progress.
const PROGRESS_EVERY: u64 = 256;

/// How a database is salvaged.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # drop(nofault::blocking::Db::create(folder.path().join("shop"), &settings)?);
/// use nofault::salvage::{SalvageOptions, salvage};
///
/// let mut options = SalvageOptions::new(settings);
/// options.include_unsure = true;
/// let report = salvage(folder.path().join("shop"), folder.path().join("new"), &options, |_| true)?;
/// assert!(report.is_complete());
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SalvageOptions {
    /// The settings of the new database. It gets the page size of the old one.
    pub settings: Settings,
    /// Whether entries that may be outdated go to the table of their name, where it lacks them. Otherwise they go to a table
    /// whose name ends in `~unsure`.
    pub include_unsure: bool,
}

impl SalvageOptions {
    /// Creates options that keep unsure entries apart.
    pub fn new(settings: Settings) -> Self {
        Self { settings, include_unsure: false }
    }
}

/// How far salvaging is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SalvageProgress {
    /// The present step.
    pub step: SalvageStep,
    /// Pages, bytes or records of the step that are done.
    pub done: u64,
    /// All of them, where the number is known.
    pub all: Option<u64>,
    /// Entries written to the new database so far.
    pub entries: u64,
}

/// A step of salvaging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SalvageStep {
    /// The file is searched for pages, because a part of the page table is lost. Counts bytes.
    #[default]
    Search,
    /// All pages are read once, to list the leaves of each table. Counts pages.
    Survey,
    /// The entries are written to the new database. Counts leaves.
    Fill,
    /// The log is replayed. Counts records.
    Replay,
}

/// The result of salvaging.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SalvageReport {
    /// The tables of the new database.
    pub tables: Vec<SalvagedTable>,
    /// Ranges of keys that are lost, but for keys in them that the log has put since.
    pub lost_ranges: Vec<LostRange>,
    /// Keys of which the value is lost.
    pub lost_values: Vec<LostValue>,
    /// Parts of the catalog (the table of tables) that are lost: tables that they name have lost their names, and a table
    /// that held nothing is gone.
    pub lost_names: Vec<String>,
    /// Damaged pages and nodes of the page table, superblocks and other damage, in words for a person. Not all of it loses
    /// an entry.
    pub damage: Vec<String>,
    /// The commit of which the new database has the state.
    pub commit: CommitSeq,
    /// The reason why commits after it may be lost, if that is so.
    pub history_cut: Option<String>,
    /// Number of commits replayed from the log.
    pub commits_replayed: u64,
    /// Whether the caller stopped the work. There is no new database then.
    pub was_stopped: bool,
}

impl SalvageReport {
    /// Returns whether nothing is lost and nothing is unsure.
    pub fn is_complete(&self) -> bool {
        self.lost_ranges.is_empty()
            && self.lost_values.is_empty()
            && self.lost_names.is_empty()
            && self.history_cut.is_none()
            && !self.was_stopped
            && !self.tables.iter().any(|table| table.is_unsure)
    }
}

/// A table of the new database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvagedTable {
    /// Its name: the old table's, `unnamed-` and a number if the old name is lost, and with `~unsure` at the end for
    /// entries that may be outdated.
    pub name: String,
    /// Number of its entries.
    pub entries: u64,
    /// Whether its entries may be outdated, or deleted since.
    pub is_unsure: bool,
}

/// A range of keys that is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostRange {
    /// The table's name in the new database.
    pub table: String,
    /// The first key that may have been in the range.
    pub from: Vec<u8>,
    /// The first key after the range; `None` when it extends to the end of the table.
    pub to: Option<Vec<u8>>,
    /// The pages that held the range, as far as they are known.
    pub pages: Vec<PageId>,
    /// The defect.
    pub reason: String,
    /// Number of entries of the range that were found and may be outdated.
    pub unsure_entries: u64,
}

impl LostRange {
    /// Returns whether a key lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.from[..] && self.to.as_ref().is_none_or(|to| key < &to[..])
    }
}

/// A key of which the value is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostValue {
    /// The table's name in the new database.
    pub table: String,
    /// The key.
    pub key: Vec<u8>,
    /// The defect.
    pub reason: String,
}

/// Reports progress, and knows whether the caller stops the work.
struct Watch<'p> {
    call: &'p mut dyn FnMut(&SalvageProgress) -> bool,
    progress: SalvageProgress,
    is_stopped: bool,
}

impl Watch<'_> {
    fn begin(&mut self, step: SalvageStep, all: Option<u64>) {
        self.progress = SalvageProgress { step, done: 0, all, ..self.progress };
        self.is_stopped |= !(self.call)(&self.progress);
    }

    fn at(&mut self, done: u64) -> bool {
        self.progress.done = done;
        self.is_stopped = self.is_stopped || !(self.call)(&self.progress);
        !self.is_stopped
    }

    /// Counts one more page. Returns whether to go on.
    fn page(&mut self) -> bool {
        self.progress.done += 1;
        if self.progress.done.is_multiple_of(PROGRESS_EVERY) { self.at(self.progress.done) } else { !self.is_stopped }
    }

    fn record(&mut self) -> bool {
        self.page()
    }
}

/// Salvages the database in the folder `source` into a new database in the folder `dest`. Blocks, for as long as reading
/// every page twice takes. `source` stays as it is, byte for byte, and works on media that cannot be written; no other
/// process can open it until then. `go_on` gets the progress and returns whether to go on. The new database is nothing until all
/// of it is there ([`UnfinishedDb`](crate::db::UnfinishedDb)).
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # db.create_table("stock")?.put("apples", "12")?;
/// # drop(db);
/// use nofault::salvage::{SalvageOptions, salvage};
///
/// let options = SalvageOptions::new(settings.clone());
/// let report = salvage(folder.path().join("shop"), folder.path().join("new"), &options, |_| true)?;
/// for lost in &report.lost_ranges {
///     println!("table {}: keys from {:?} to {:?}: {}", lost.table, lost.from, lost.to, lost.reason);
/// }
/// assert!(report.is_complete());
/// let new = nofault::blocking::Db::open(folder.path().join("new"), &settings)?;
/// assert_eq!(new.table("stock")?.get("apples")?, Some(b"12".to_vec()));
/// # Ok::<(), nofault::error::Error>(())
/// ```
///
/// # Errors
/// `NotFound` when there is no data file in `source`, `Busy` when a process has it open, `Unsupported` when it was written by
/// a later version; `Corrupt` when not even two whole pages were found; `NoResources` and `NoPermission` when a part of it cannot
/// be read for such a reason, which is no loss. `AlreadyExists` or `InvalidCall` when there is
/// something in `dest` already, `NoSpace` and other errors of writing it: then there is no new database.
pub fn salvage(
    source: impl AsRef<Path>,
    dest: impl AsRef<Path>,
    options: &SalvageOptions,
    mut go_on: impl FnMut(&SalvageProgress) -> bool,
) -> Result<SalvageReport> {
    let (source, dest) = (source.as_ref(), dest.as_ref());
    let files = Source::open(source)?;
    refuse_inside(source, dest)?;
    let mut watch = Watch { call: &mut go_on, progress: SalvageProgress::default(), is_stopped: false };
    let create = |page_bytes| {
        let settings = Settings { page_bytes, ..options.settings.clone() };
        UnfinishedDb::create(dest, &settings)
    };
    run(&files, create, options.include_unsure, &mut watch)
}

/// Refuses to write into the folder that must not change.
fn refuse_inside(source: &Path, dest: &Path) -> Result<()> {
    let parent = dest.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (source.canonicalize(), parent.canonicalize()) {
        (Ok(source), Ok(parent)) if parent.starts_with(&source) => {
            let what = format!("{} lies inside of {}, which must not change", dest.display(), source.display());
            Err(Error::new(ErrorKind::InvalidCall, what))
        }
        _ => Ok(()),
    }
}

/// Salvages `source` into the database that `create` makes for pages of the size that it is given.
fn run(
    source: &Source,
    create: impl FnOnce(usize) -> Result<UnfinishedDb>,
    include_unsure: bool,
    watch: &mut Watch<'_>,
) -> Result<SalvageReport> {
    let start = source.start()?;
    source.check()?;
    let mut report = SalvageReport { history_cut: start.cut, damage: start.notes, ..SalvageReport::default() };
    let (shape, mut map, until) = match &start.superblock {
        Some(superblock) => {
            let shape = Shape { file_id: superblock.file_id, page_bytes: superblock.page_bytes as usize };
            (shape, PageMap::load(source, superblock), superblock.commit)
        }
        None => {
            let error = no_superblock(&report.damage);
            let found = file_id::find(source);
            source.check()?;
            let Some((file_id, page_bytes)) = found else {
                return Err(Error::new(ErrorKind::Corrupt, format!("{error}; and no two whole pages were found")));
            };
            report.history_cut = Some("both superblocks are lost, and with them the place in the log from which it is replayed: the newest pages in the data file were taken".into());
            let shape = Shape { file_id, page_bytes };
            (shape, PageMap::unknown(shape, error), CommitSeq(u64::MAX))
        }
    };
    if !map.lost.is_empty() {
        report.damage.extend(map.lost.iter().map(|node| node.error.to_string()));
        watch.begin(SalvageStep::Search, Some(source.data_bytes()));
        map.search(source, shape, until, &mut |done| watch.at(done))?;
    }
    let mut reader = PageReader::new(source, &map, shape);
    watch.begin(SalvageStep::Survey, Some(map.page_count()));
    let mut survey = Survey::default();
    survey.look(&reader, false, &mut || watch.page());
    // The catalog is never compressed, and has the dictionaries that compressed pages need.
    let catalog = read_catalog(&reader, &survey);
    survey.look(&reader, true, &mut || watch.page());
    survey.outdate(&catalog.replaced);
    survey.complete(&reader);
    report.damage.extend(survey.unreadable.values().map(ToString::to_string));
    report.lost_names = survey.gaps(&reader, CATALOG.table).iter().map(|(from, _)| lost_names(from, &survey)).collect();
    report.lost_names.extend(catalog.problems.iter().map(ToString::to_string));
    source.check()?;
    let new = create(shape.page_bytes)?;
    let mut filler = Filler { db: new.db(), include_unsure, filled: HashMap::new(), left_out: catalog.dropped.clone() };
    watch.begin(SalvageStep::Fill, None);
    let mut targets: BTreeMap<TableId, Option<&NamedTable>> = survey
        .leaves
        .keys()
        .filter(|id| **id != CATALOG.table && !catalog.dropped.contains(id))
        .map(|id| (*id, None))
        .collect();
    targets.extend(catalog.tables.iter().map(|named| (named.tree.table, Some(named))));
    // Tables whose names are sure first: they get their names.
    let mut targets: Vec<_> = targets.into_iter().collect();
    targets.sort_by_key(|(_, named)| named.is_none_or(|named| !named.is_sure));
    let mut outcome = targets.into_iter().try_for_each(|(id, named)| filler.fill(id, named, &reader, &survey, watch));
    reader.dictionaries = Default::default();
    if let (Ok(()), Some(superblock)) = (&outcome, &start.superblock) {
        watch.begin(SalvageStep::Replay, None);
        outcome = log::replay(source, superblock, &mut filler, &mut report, watch);
    }
    match outcome {
        Ok(()) if !watch.is_stopped => {}
        Ok(()) | Err(Ending::Stopped) => report.was_stopped = true,
        Err(Ending::Failed(error)) => return Err(error),
    }
    source.check()?;
    filler.report(&mut report)?;
    if !report.was_stopped {
        new.finish()?;
    }
    Ok(report)
}

/// Describes a part of the catalog that no sure leaf holds.
fn lost_names(from: &[u8], survey: &Survey) -> String {
    let page = survey.missing.get(&CATALOG.table).and_then(|missing| missing.get(from));
    let why = page.and_then(|page| survey.unreadable.get(page)).map_or(String::new(), |error| format!(": {error}"));
    let first = if from.is_empty() { String::new() } else { format!(" from «{}» on", String::from_utf8_lossy(from)) };
    format!("a part of the catalog{first} is lost{why}")
}
