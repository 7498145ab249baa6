//! The dictionaries of tables with the compression `Small`: read when a database is opened, and trained from the
//! table's own pages, from the first megabyte of a bulk load or, for tables that grow in other ways, by compaction.
//!
//! A dictionary is an entry of the catalog, put there by an ordinary durable commit before any page names it; which
//! pages may name it from then on is decided where pages are packed (`TableCodecs::use_dictionary`). It never changes.
//! A new one is trained when pages have become much larger than when the last one was trained, and the old one stays
//! for the pages naming it. The dictionaries of a dropped table are removed after the next opening: then no
//! checkpoint has a page of the table.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashSet;

use crate::btree::Tree;
use crate::btree::sample::SamplePages;
use crate::buffer_pool::{BufferPool, TableCodecs};
use crate::codec::{Compression, Dictionary, DictionaryOrigin, HAS_ZSTD, NEEDS_ZSTD, RATIO_UNIT, trained};
use crate::db::calls::catalog::{Catalog, Entries};
use crate::db::calls::commit::Committer;
use crate::db::calls::core::Core;
use crate::db::calls::loads::{SortedEntries, WithFront};
use crate::db::calls::reader::Reader;
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{decode_dictionary, dictionary_key, encode_dictionary, is_name};
use crate::format::{CommitSeq, Moment, PageId};
use crate::pages::{Pages as _, Snapshot as _, Store as _};
use crate::sync::driver::block_on;
use crate::transaction::{CATALOG, Op};
use crate::wal::Log;

/// Most bytes and most pages from which a dictionary is trained.
const SAMPLE_BYTES: usize = 1 << 20;
const SAMPLE_PAGES: usize = 256;
/// Fewest pages from which one is trained, and most leaves drawn to find them.
const SAMPLES_MIN: usize = 64;
const DRAWS_MAX: u64 = 1024;
/// Most pages of values taken with the leaf referring to them.
const VALUES_A_LEAF: usize = 8;
/// Bytes of pages of a table that are written between two looks at whether it needs a dictionary, as a multiple of the
/// bytes from which one is trained.
const LOOK_SHARE: usize = 4;
/// A new dictionary is considered when compressed pages are so many times as large as when the last one was trained …
const WORSE: f64 = 1.15;
/// … and used if it makes them smaller by one part in so many.
const GAIN_SHARE: u32 = 16;
/// Most dictionaries of a table.
const ORDINAL_MAX: u16 = 255;

/// The space that compressing the pages of a table would save, estimated from pages chosen at random.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CompressionEstimate {
    /// Number of pages looked at.
    pub pages: u64,
    /// Bytes of their compressed content for a byte of it with [`Compression::Fast`]. Several compressed pages share a
    /// block, which leaves some of it empty: expect up to a tenth more.
    pub fast: f64,
    /// The same with [`Compression::Small`], with a dictionary trained from other pages of the table; `None` in a build
    /// without the feature `zstd`.
    pub small: Option<f64>,
}

/// Fails for a compression that this build does not have.
///
/// # Errors
/// `Unsupported` for such a compression; the message names the feature that is missing.
pub(in crate::db) fn refuse_unavailable(compression: Compression) -> Result<()> {
    if compression.is_available() {
        return Ok(());
    }
    let what = format!("the compression of a table is Zstandard: {NEEDS_ZSTD}");
    Err(Error::new(ErrorKind::Unsupported, what))
}

/// Makes known to the pool how the tables in the catalog are compressed, and the dictionaries in it. `since` is the
/// commit from which on the dictionaries are sure to be in the catalog.
///
/// # Errors
/// `Unsupported` when this build does not have a codec that a table uses.
pub(in crate::db) fn learn_from(core: &Core<BufferPool, Log>, catalog: &Entries, since: CommitSeq) -> Result<()> {
    catalog.compressed.iter().try_for_each(|(_, compression)| refuse_unavailable(*compression))?;
    if !catalog.dictionaries.is_empty() {
        refuse_unavailable(Compression::Small)?;
    }
    let (store, snapshot) = (&core.store, core.store.snapshot());
    for number in &catalog.dictionaries {
        if store.dictionaries().get(*number).is_some() {
            continue;
        }
        let value = block_on(core.reader.get_at(&snapshot, CATALOG, &dictionary_key(*number)));
        // Damage, which reading the pages naming the dictionary reports.
        let decoded = value.as_ref().ok().and_then(|value| decode_dictionary(value.as_ref()?));
        let dictionary = decoded.and_then(|(origin, bytes)| Dictionary::new(*number, origin, bytes));
        store.dictionaries().add(*number, dictionary.map(Arc::new));
    }
    store.writer().codecs().reset(&catalog.compressed, store.dictionaries().all(), since);
    Ok(())
}

/// Trains dictionaries, one at a time, and keeps them in the catalog.
pub(in crate::db) struct DictionaryTrainer {
    pool: BufferPool,
    reader: Reader<BufferPool>,
    catalog: Catalog<BufferPool>,
    committer: Arc<Committer<BufferPool, Log>>,
    /// The numbers of dictionaries of tables that no longer existed when the database was opened. Held during a
    /// training, so that two do not choose the same number.
    unused: Mutex<Vec<u16>>,
}

impl DictionaryTrainer {
    /// Creates the trainer of a database. `before` and `after` are its catalog before and after the replay of the log.
    pub(in crate::db) fn new(
        core: &Core<BufferPool, Log>,
        pool: &BufferPool,
        before: &Entries,
        after: &Entries,
    ) -> Self {
        let mut tables: BTreeSet<u64> = BTreeSet::new();
        tables.extend(before.tables.iter().chain(&after.tables).map(|(_, tree)| tree.table.0));
        let is_unused = |dictionary: &Arc<Dictionary>| !tables.contains(&dictionary.origin().table.0);
        // An entry that cannot be read may be the table's.
        let is_whole = before.damage.is_empty() && after.damage.is_empty();
        let unused = pool.dictionaries().all().into_iter().filter(|dictionary| is_whole && is_unused(dictionary));
        Self {
            pool: pool.clone(),
            catalog: Catalog::new(core.reader.loader.clone(), core.tables.clone()),
            reader: core.reader.clone(),
            committer: core.committer.clone(),
            unused: Mutex::new(unused.map(|dictionary| dictionary.number()).collect()),
        }
    }

    /// Returns the bytes of pages from which a dictionary is trained.
    fn sample_bytes(&self) -> usize {
        SAMPLE_BYTES.min(SAMPLE_PAGES * self.pool.page_bytes())
    }

    fn codecs(&self) -> &TableCodecs {
        self.pool.writer().codecs()
    }

    /// Returns whether a bulk load of a table should begin with training: it has none, and is to have one.
    pub(in crate::db) fn is_wanted(&self, tree: Tree) -> bool {
        HAS_ZSTD
            && self.codecs().of_table(tree.table) == Compression::Small
            && self.codecs().dictionary_of(tree.table).is_none()
    }

    /// Trains a dictionary from the first of `entries`, if there are enough. Returns all of them.
    ///
    /// # Errors
    /// As [`DictionaryTrainer::train`]; the first error in the entries.
    pub(in crate::db) fn train_from<'e>(
        &self,
        tree: Tree,
        entries: &'e mut dyn SortedEntries,
    ) -> Result<WithFront<'e>> {
        let mut pages = SamplePages::new(tree.table, self.pool.page_bytes());
        let mut bytes = 0;
        let entries = WithFront::take(entries, |key, value| {
            bytes += key.len() + value.len();
            pages.push(key, value);
            bytes >= self.sample_bytes()
        })?;
        if bytes >= self.sample_bytes() {
            self.train(tree, &pages.into_bodies())?;
        }
        Ok(entries)
    }

    /// Trains dictionaries for the tables of which enough was written, if they have none or pages have become much
    /// larger. `checkpoint` makes a checkpoint.
    ///
    /// # Errors
    /// As [`DictionaryTrainer::train`].
    pub(in crate::db) fn train_due(&self, checkpoint: &dyn Fn() -> Result<()>) -> Result<()> {
        self.remove_unused()?;
        let due = self.codecs().take_untrained((self.sample_bytes() * LOOK_SHARE) as u64, WORSE);
        if due.is_empty() {
            return Ok(());
        }
        let found = block_on(self.catalog.read(&self.pool.snapshot()))?;
        let is_due = |(key, tree): &(Vec<u8>, Tree)| is_name(key) && due.contains(&(tree.table.0 as u32));
        found.tables.into_iter().filter(is_due).try_for_each(|(_, tree)| self.train_from_leaves(tree, checkpoint))
    }

    /// Trains a dictionary for a table from some of its pages, if it is compressed with one, is large enough, and has
    /// none or one with which pages have become much larger. `checkpoint` makes a checkpoint.
    ///
    /// # Errors
    /// As [`DictionaryTrainer::train`]; the errors of reading.
    pub(in crate::db) fn train_from_leaves(&self, tree: Tree, checkpoint: &dyn Fn() -> Result<()>) -> Result<()> {
        if !HAS_ZSTD || self.codecs().of_table(tree.table) != Compression::Small {
            return Ok(());
        }
        let samples = block_on(self.sample(tree))?;
        if samples.len() < SAMPLES_MIN {
            return Ok(());
        }
        if let Some(before) = self.codecs().dictionary_of(tree.table) {
            let ratio = self.pool.dictionaries().ratio(Some(&before), samples.iter().map(Vec::as_slice));
            if f64::from(ratio) <= f64::from(before.origin().ratio) * WORSE {
                return Ok(());
            }
        }
        if self.train(tree, &samples)? {
            // From then on all pages may use it.
            checkpoint()?;
        }
        Ok(())
    }

    /// Estimates the space that compressing a table would save; `None` where it has too few pages to tell. Changes nothing.
    ///
    /// # Errors
    /// The errors of reading; `NotFound` when the table was dropped.
    pub(in crate::db) fn estimate(&self, tree: Tree) -> Result<Option<CompressionEstimate>> {
        let samples = block_on(self.sample(tree))?;
        if samples.len() < SAMPLES_MIN {
            return Ok(None);
        }
        let dictionaries = self.pool.dictionaries();
        let pages = || samples.iter().map(Vec::as_slice);
        let share = |ratio: u16| f64::from(ratio) / RATIO_UNIT as f64;
        let small = || match trained(dictionaries, &samples, self.pool.page_bytes()) {
            Some((_, ratio)) => ratio,
            None => dictionaries.ratio(None, pages()),
        };
        Ok(Some(CompressionEstimate {
            pages: samples.len() as u64,
            fast: share(dictionaries.ratio_with(Compression::Fast, None, pages())),
            small: HAS_ZSTD.then(|| share(small())),
        }))
    }

    /// Removes the dictionaries of tables that no longer existed when the database was opened.
    ///
    /// # Errors
    /// The errors of the commit.
    pub(in crate::db) fn remove_unused(&self) -> Result<()> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(number) = unused.last().copied() {
            block_on(self.committer.commit_op(Op::Delete { tree: CATALOG, key: dictionary_key(number) }))?;
            self.pool.dictionaries().remove(number);
            unused.pop();
        }
        Ok(())
    }

    /// Returns the bodies of pages of a table, chosen at random.
    async fn sample(&self, tree: Tree) -> Result<Vec<Vec<u8>>> {
        let (mut bodies, mut bytes, mut seen) = (Vec::new(), 0, FxHashSet::default());
        let seed = self.pool.visible().0.wrapping_mul(DRAWS_MAX);
        let snapshot = self.pool.snapshot();
        let explain = |error| self.reader.tables.explain(tree, snapshot.seq(), error);
        for draw in 0..DRAWS_MAX {
            if bytes >= self.sample_bytes() {
                break;
            }
            let look = || {
                let view = self.pool.view(&snapshot);
                let (leaf, mut values) = (tree.random_leaf(&view, seed.wrapping_add(draw))?, Vec::new());
                tree.name_all_values(&view, leaf, &mut values)?;
                Ok((leaf, values))
            };
            let (leaf, values) = self.reader.loader.attempt(look).await.map_err(explain)?;
            let step = values.len().div_ceil(VALUES_A_LEAF).max(1);
            let pages: Vec<PageId> = std::iter::once(leaf).chain(values.into_iter().step_by(step)).collect();
            for page in pages.into_iter().filter(|page| seen.insert(*page)) {
                let look = || Ok(self.pool.view(&snapshot).page(page)?.to_vec());
                let body = self.reader.loader.attempt(look).await.map_err(explain)?;
                bytes += body.len();
                bodies.push(body);
            }
        }
        Ok(bodies)
    }

    /// Trains a dictionary from bodies of pages, makes it durable, and uses it for pages written from now on.
    /// Returns false when it would gain too little.
    ///
    /// # Errors
    /// The errors of the commit.
    fn train(&self, tree: Tree, samples: &[Vec<u8>]) -> Result<bool> {
        let _turn = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let dictionaries = self.pool.dictionaries();
        let Some((bytes, ratio)) = trained(dictionaries, samples, self.pool.page_bytes()) else { return Ok(false) };
        let before = self.codecs().dictionary_of(tree.table);
        if let Some(before) = &before {
            let with_it = u32::from(dictionaries.ratio(Some(before), samples.iter().map(Vec::as_slice)));
            if u32::from(ratio) + with_it / GAIN_SHARE > with_it {
                return Ok(false);
            }
        }
        let ordinal = before.map_or(0, |before| before.origin().ordinal) + 1;
        let Some(number) = dictionaries.free_number().filter(|_| ordinal <= ORDINAL_MAX) else { return Ok(false) };
        let origin = DictionaryOrigin { table: tree.table, ordinal, ratio };
        let Some(dictionary) = Dictionary::new(number, origin, &bytes).map(Arc::new) else { return Ok(false) };
        let value = encode_dictionary(origin, &bytes);
        let op = Op::Put { tree: CATALOG, key: dictionary_key(number), value, expiry: Moment::NEVER };
        block_on(self.committer.commit_op(op))?;
        dictionaries.add(number, Some(Arc::clone(&dictionary)));
        self.codecs().use_dictionary(dictionary, self.pool.visible());
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
