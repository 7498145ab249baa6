//! Writes what can be read of each table into the new database.
//!
//! Entries that are sure go to the table of their name. A key range that no sure leaf holds is lost; entries that are unsure
//! and lie in such a range go to a second table, or to the same one where the caller accepts them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::survey::{Leaf, NamedTable, Survey};
use super::values::PageReader;
use super::{LostRange, LostValue, SalvageReport, SalvagedTable, Watch};
use crate::blocking::{Db, Table};
use crate::db::Batch;
use crate::error::{Error, ErrorKind, Result};
use crate::format::node::Node;
use crate::format::{Moment, PageId, TableId};
use crate::pages::Durability;
use crate::settings::Compression;

/// Bytes of entries committed together.
const BATCH_BYTES: usize = 1 << 20;
/// The end of the names of tables with entries that may be outdated.
const UNSURE: &str = "~unsure";

/// The reason why filling a table ended early.
pub(super) enum Ending {
    /// The caller stops the work.
    Stopped,
    Failed(Error),
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A table of the new database.
pub(super) struct FilledTable {
    pub(super) table: Table,
    /// The table with the entries that may be outdated.
    pub(super) unsure: Option<Table>,
    /// Whether all of the table may be outdated, because its name may be.
    is_unsure: bool,
    pub(super) losses: Losses,
}

/// The losses of one table.
#[derive(Default)]
pub(super) struct Losses {
    pub(super) ranges: Vec<LostRange>,
    pub(super) values: BTreeMap<Vec<u8>, String>,
}

/// Fills the new database.
pub(super) struct Filler<'a> {
    pub(super) db: &'a Db,
    pub(super) include_unsure: bool,
    pub(super) filled: HashMap<TableId, FilledTable>,
    /// Tables left out: the index of expiry, of which the new database makes its own.
    pub(super) left_out: BTreeSet<TableId>,
}

impl Filler<'_> {
    /// Creates a table under a name, or under one like it if that is taken. `compression` is the old table's.
    pub(super) fn create(&mut self, id: TableId, name: &str, compression: Compression) -> Result<()> {
        self.create_with(id, name, compression, false)
    }

    fn create_with(&mut self, id: TableId, name: &str, compression: Compression, is_unsure: bool) -> Result<()> {
        let table = self.new_table(name, compression)?;
        self.filled.insert(id, FilledTable { table, unsure: None, is_unsure, losses: Losses::default() });
        Ok(())
    }

    /// Gives a table another name, unless that is taken.
    pub(super) fn rename(&mut self, id: TableId, from: &str, to: &str) -> Result<()> {
        match self.db.rename_table(from, to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                if let Some(filled) = self.filled.get_mut(&id) {
                    filled.table = self.db.table(to)?;
                }
                Ok(())
            }
        }
    }

    fn new_table(&self, name: &str, compression: Compression) -> Result<Table> {
        let mut free = name.to_owned();
        let mut number = 1;
        let table = loop {
            match self.db.create_table(&free) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    number += 1;
                    free = format!("{name}~{number}");
                }
                created => break created?,
            }
        };
        self.db.set_compression(&free, compression)?;
        Ok(table)
    }

    /// Fills a table from its leaves. `named` is its entry in the catalog, if there is one.
    pub(super) fn fill(
        &mut self,
        id: TableId,
        named: Option<&NamedTable>,
        reader: &PageReader<'_>,
        survey: &Survey,
        watch: &mut Watch<'_>,
    ) -> std::result::Result<(), Ending> {
        let is_unsure = named.is_some_and(|named| !named.is_sure && !self.include_unsure);
        let name = match named {
            Some(named) if is_unsure => format!("{}{UNSURE}", named.name),
            Some(named) => named.name.clone(),
            None => format!("unnamed-{id}"),
        };
        self.create_with(id, &name, named.map_or(Compression::None, |named| named.compression), is_unsure)?;
        let leaves: &[Leaf] = survey.leaves.get(&id).map_or(&[], Vec::as_slice);
        let Some(table) = self.filled.get(&id).map(|filled| filled.table.clone()) else { return Ok(()) };
        let mut walk = SureEntries {
            reader,
            id,
            leaves: leaves.iter(),
            current: None,
            reached: Some(Vec::new()),
            gaps: Vec::new(),
            lost: BTreeMap::new(),
            aside: Vec::new(),
            watch,
        };
        table.as_ref().try_load_until(std::iter::from_fn(|| walk.next().transpose()))?;
        let SureEntries { gaps, aside, lost: values, watch, .. } = walk;
        let ranges = gaps.into_iter().map(|(from, to)| lost_range(survey, id, from, to)).collect();
        if let Some(filled) = self.filled.get_mut(&id) {
            filled.losses = Losses { ranges, values };
        }
        let beside = self.include_unsure || is_unsure;
        self.fill_unsure(id, &name, leaves, &aside, beside, reader, watch)
    }

    /// Writes the entries that are unsure: entries in lost ranges, and entries of `aside`, sure leaves with unsure values.
    #[expect(clippy::too_many_arguments, reason = "one call, and no group of its arguments means anything by itself")]
    fn fill_unsure(
        &mut self,
        id: TableId,
        name: &str,
        leaves: &[Leaf],
        aside: &[PageId],
        beside: bool,
        reader: &PageReader<'_>,
        watch: &mut Watch<'_>,
    ) -> std::result::Result<(), Ending> {
        let aside: HashSet<PageId> = aside.iter().copied().collect();
        let mut unsure: Vec<(&Leaf, bool)> =
            leaves.iter().filter(|leaf| !leaf.is_sure).map(|leaf| (leaf, false)).collect();
        unsure.extend(leaves.iter().filter(|leaf| aside.contains(&leaf.page)).map(|leaf| (leaf, true)));
        // Later versions of an entry replace earlier ones.
        unsure.sort_by_key(|(leaf, _)| leaf.commit);
        let (mut batch, mut bytes) = (Batch::new(), 0);
        for (leaf, only_values) in unsure {
            if !watch.page() {
                return Err(Ending::Stopped);
            }
            let Ok(found) = reader.page(leaf.page) else { continue };
            let node = Node::open(leaf.page, &found.body)?;
            for index in 0..node.count() {
                let key = node.key(index)?;
                let (expiry, cell) = node.entry(index)?;
                let Ok((value, is_value_sure)) = reader.value(id, cell) else { continue };
                let Some(filled) = self.filled.get_mut(&id) else { continue };
                if only_values {
                    if is_value_sure {
                        continue;
                    }
                } else {
                    let ranges = &mut filled.losses.ranges;
                    // In the order of their keys.
                    let next = ranges.partition_point(|range| range.from <= key);
                    let gap = next.checked_sub(1).and_then(|index| ranges.get_mut(index));
                    let Some(gap) = gap.filter(|range| range.contains(&key)) else { continue };
                    gap.unsure_entries += 1;
                }
                let into = if beside {
                    filled.table.clone()
                } else if let Some(table) = &filled.unsure {
                    table.clone()
                } else {
                    let table = self.new_table(&format!("{name}{UNSURE}"), Compression::None)?;
                    if let Some(filled) = self.filled.get_mut(&id) {
                        filled.unsure = Some(table.clone());
                    }
                    table
                };
                bytes += key.len() + value.len();
                batch.put_until(into.as_ref(), &key, &value, expiry);
                watch.progress.entries += 1;
                if bytes > BATCH_BYTES {
                    self.db.write(std::mem::take(&mut batch), Durability::Deferred)?;
                    bytes = 0;
                }
            }
        }
        self.db.write(batch, Durability::Deferred)?;
        Ok(())
    }

    /// Moves the losses into the report, and describes the tables.
    pub(super) fn report(self, into: &mut SalvageReport) -> Result<()> {
        let mut filled: Vec<FilledTable> = self.filled.into_values().collect();
        filled.sort_by(|a, b| a.table.name().cmp(b.table.name()));
        for FilledTable { table, unsure, is_unsure, losses } in filled {
            let describe = |table: &Table, is_unsure: bool| -> Result<SalvagedTable> {
                Ok(SalvagedTable { name: table.name().to_owned(), entries: table.len()?, is_unsure })
            };
            into.tables.push(describe(&table, is_unsure)?);
            if let Some(unsure) = &unsure {
                into.tables.push(describe(unsure, true)?);
            }
            let named = |mut range: LostRange| {
                range.table = table.name().to_owned();
                range
            };
            into.lost_ranges.extend(losses.ranges.into_iter().map(named));
            let value = |(key, reason)| LostValue { table: table.name().to_owned(), key, reason };
            into.lost_values.extend(losses.values.into_iter().map(value));
        }
        Ok(())
    }
}

/// Describes a range of keys that no sure leaf holds.
fn lost_range(survey: &Survey, id: TableId, from: Vec<u8>, to: Option<Vec<u8>>) -> LostRange {
    let missing = survey.missing.get(&id);
    let within = |lower: &&Vec<u8>| to.as_ref().is_none_or(|to| *lower < to);
    let mut pages: Vec<PageId> = missing
        .map(|missing| {
            missing.range(from.clone()..).take_while(|(lower, _)| within(lower)).map(|(_, page)| *page).collect()
        })
        .unwrap_or_default();
    pages.dedup();
    let reason = match pages.iter().find_map(|page| survey.unreadable.get(page)) {
        Some(error) => error.to_string(),
        None => "no readable leaf that the page table names holds these keys".into(),
    };
    LostRange { table: String::new(), from, to, pages, reason, unsure_entries: 0 }
}

/// A key, its value, and the moment at which it expires.
type Entry = (Vec<u8>, Vec<u8>, Moment);

/// The sure entries of one table in the order of their keys, with what is missing between them.
struct SureEntries<'w, 'r, 'p> {
    reader: &'w PageReader<'r>,
    id: TableId,
    leaves: std::slice::Iter<'w, Leaf>,
    /// The leaf being read, and its next entry.
    current: Option<(PageId, Vec<u8>, usize)>,
    /// The keys below this are done; `None` when all are.
    reached: Option<Vec<u8>>,
    gaps: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    lost: BTreeMap<Vec<u8>, String>,
    /// Leaves with values that are not sure.
    aside: Vec<PageId>,
    watch: &'w mut Watch<'p>,
}

impl SureEntries<'_, '_, '_> {
    fn next(&mut self) -> std::result::Result<Option<Entry>, Ending> {
        loop {
            if let Some((page, body, index)) = self.current.take() {
                let node = Node::open(page, &body)?;
                if index < node.count() {
                    let (expiry, cell) = node.entry(index)?;
                    let (key, value) = (node.key(index)?, self.reader.value(self.id, cell));
                    self.current = Some((page, body, index + 1));
                    match value {
                        Ok((value, true)) => {
                            self.watch.progress.entries += 1;
                            return Ok(Some((key, value, expiry)));
                        }
                        Ok((_, false)) => {
                            let why = "the node of the page table that names its pages is lost: what is there may be outdated";
                            self.lost.insert(key, why.into());
                            if self.aside.last() != Some(&page) {
                                self.aside.push(page);
                            }
                        }
                        Err(error) => drop(self.lost.insert(key, error.to_string())),
                    }
                    continue;
                }
            }
            if !self.begin_leaf()? {
                return Ok(None);
            }
        }
    }

    /// Moves to the next sure leaf. Returns false after the last one.
    fn begin_leaf(&mut self) -> std::result::Result<bool, Ending> {
        loop {
            if !self.watch.page() {
                return Err(Ending::Stopped);
            }
            let Some(leaf) = self.leaves.next() else {
                self.gaps.extend(self.reached.take().map(|reached| (reached, None)));
                return Ok(false);
            };
            // A page that could be read before and cannot be read now leaves a gap.
            let Some(found) = self.reader.page(leaf.page).ok().filter(|_| leaf.is_sure) else { continue };
            let node = Node::open(leaf.page, &found.body)?;
            // Two leaves with the same keys contradict each other. The first one counts, and the keys of the other one that
            // lie behind it are lost.
            let Some(reached) = self.reached.as_ref().filter(|reached| node.lower() >= &reached[..]) else { continue };
            if node.lower() > &reached[..] {
                self.gaps.push((reached.clone(), Some(node.lower().to_vec())));
            }
            self.reached = node.upper().map(<[u8]>::to_vec);
            self.current = Some((leaf.page, found.body, 0));
            return Ok(true);
        }
    }
}
