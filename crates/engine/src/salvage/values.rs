//! Reads pages of a damaged database, and the values that leaves hold or refer to. Says of each whether it is *sure*: every
//! page of it is named by the page table, in the version belonging to the state.

use std::cell::{Cell as Flag, RefCell};

use super::page_map::{PageMap, Shape};
use super::source::Source;
use crate::btree::overflow::{LongRef, Reader};
use crate::btree::packed;
use crate::codec::Dictionaries;
use crate::error::{Error, Result};
use crate::format::cell::{Cell, PackedRef};
use crate::format::compressed::{FileCodec, restore_page};
use crate::format::node::table_of_data;
use crate::format::{CommitSeq, HEADER_BYTES, PageId, TableId, page_commit};
use crate::pages::{Attempt, Pages, Wait};

/// A page that was read and checked.
#[derive(Debug, Clone)]
pub(super) struct FoundPage {
    /// The bytes after the page's header.
    pub(super) body: Vec<u8>,
    /// The commit that changed the page last.
    pub(super) commit: CommitSeq,
    /// Whether the page table names the page.
    pub(super) is_sure: bool,
}

/// Reads pages by their ids.
pub(super) struct PageReader<'a> {
    pub(super) source: &'a Source,
    pub(super) map: &'a PageMap,
    pub(super) shape: Shape,
    pub(super) dictionaries: Dictionaries,
    /// The page of values read last: neighbours in a leaf share it.
    last: RefCell<Option<(PageId, FoundPage)>>,
}

impl<'a> PageReader<'a> {
    pub(super) fn new(source: &'a Source, map: &'a PageMap, shape: Shape) -> Self {
        Self { source, map, shape, dictionaries: Dictionaries::default(), last: RefCell::new(None) }
    }

    /// Reads a page.
    ///
    /// # Errors
    /// `Corrupt` when the page is damaged or nothing says where it lies; the error of the read.
    pub(super) fn page(&self, page: PageId) -> Result<FoundPage> {
        let (at, is_sure) = self.map.location(page)?;
        let page_bytes = self.shape.page_bytes;
        let file = FileCodec { file_id: self.shape.file_id, dictionaries: &self.dictionaries };
        let mut restored = vec![0; page_bytes];
        self.source.decode(at.block.0.saturating_mul(page_bytes as u64), page_bytes, |block| {
            restore_page(file, page, at, block, &mut restored)
        })?;
        let commit = page_commit(&restored);
        restored.drain(..HEADER_BYTES);
        Ok(FoundPage { body: restored, commit, is_sure })
    }

    fn with_values_page<R>(&self, page: PageId, look: impl FnOnce(&FoundPage) -> Result<R>) -> Result<R> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(known, _)| *known != page) {
            *last = Some((page, self.page(page)?));
        }
        match &*last {
            Some((_, found)) => look(found),
            None => Err(Error::corrupt_page(page, "cannot be read")),
        }
    }

    /// Returns the value in a cell of a leaf of `table`, and whether it is sure.
    ///
    /// # Errors
    /// The damage of a page that the value needs.
    pub(super) fn value(&self, table: TableId, cell: Cell<'_>) -> Result<(Vec<u8>, bool)> {
        let mut value = Vec::new();
        let mut is_sure = true;
        let mut take = |part: PackedRef| {
            self.with_values_page(part.page, |found| {
                refuse_foreign(table, part.page, &found.body)?;
                value.extend_from_slice(packed::value(part, &found.body)?);
                is_sure &= found.is_sure;
                Ok(())
            })
        };
        match cell {
            Cell::Inline(value) => return Ok((value.to_vec(), true)),
            Cell::Packed(at) => take(at)?,
            Cell::Spread(spread) => spread.parts(self.shape.page_bytes - HEADER_BYTES).try_for_each(take)?,
            Cell::Overflow(to) => {
                let pages = LongValue { reader: self, table, is_sure: Flag::new(true) };
                let mut reader = Reader::new(self.shape.page_bytes, LongRef::Overflow(to))?;
                // Every page is either there or an error, so the first call reads the value to its end.
                if !reader.advance(&pages, CommitSeq(0), 1, &mut Vec::new())? {
                    return Err(Error::corrupt_page(to.root, "its value cannot be read"));
                }
                return Ok((reader.into_value(), pages.is_sure.get()));
            }
        }
        Ok((value, is_sure))
    }
}

/// Refuses a page with data of another table.
fn refuse_foreign(table: TableId, page: PageId, body: &[u8]) -> Result<()> {
    match table_of_data(body) {
        Some(other) if other != table.0 as u32 => {
            Err(Error::corrupt_page(page, format_args!("holds data of table {other} where table {table} refers to it")))
        }
        _ => Ok(()),
    }
}

/// The pages of one long value.
struct LongValue<'r, 'a> {
    reader: &'r PageReader<'a>,
    table: TableId,
    is_sure: Flag<bool>,
}

impl Pages for LongValue<'_, '_> {
    type Page<'p>
        = Vec<u8>
    where
        Self: 'p;

    fn page_bytes(&self) -> usize {
        self.reader.shape.page_bytes
    }

    fn page(&self, id: PageId) -> Attempt<Vec<u8>> {
        let found = self.reader.page(id).map_err(Wait::Failed)?;
        refuse_foreign(self.table, id, &found.body).map_err(Wait::Failed)?;
        self.is_sure.set(self.is_sure.get() && found.is_sure);
        Ok(found.body)
    }
}
