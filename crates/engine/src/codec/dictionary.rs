//! Dictionaries: bytes that the pages of a table have in common, and that compressed pages reference. Each belongs to
//! one table, has a unique number in the database, and never changes. Where they are kept is decided elsewhere.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustc_hash::FxHashMap;

use super::Compression;
use super::zstd::{self, Contexts, PreparedDictionary};
use crate::ids::TableId;

/// Most bytes of a dictionary. Larger ones save no more: the pages of a table have hardly more in common.
const BYTES_MAX: usize = 4096;
/// One of so many samples is left out of the training, to measure what the dictionary saves.
const MEASURED_SHARE: usize = 8;
/// Unit of a dictionary's ratio, for "one".
pub(crate) const RATIO_UNIT: usize = 10_000;

/// The facts about a dictionary apart from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DictionaryOrigin {
    /// The table from whose pages it was trained.
    pub(crate) table: TableId,
    /// Counts the dictionaries of the table: the highest one is in use.
    pub(crate) ordinal: u16,
    /// Compressed bytes of pages of the table for 10,000 bytes of them, measured when it was trained.
    pub(crate) ratio: u16,
}

/// A dictionary, ready for use.
pub(crate) struct Dictionary {
    number: u16,
    origin: DictionaryOrigin,
    prepared: PreparedDictionary,
}

impl Dictionary {
    /// Prepares a dictionary. Returns `None` for bytes that are none, and in a build without the codec.
    pub(crate) fn new(number: u16, origin: DictionaryOrigin, bytes: &[u8]) -> Option<Self> {
        Some(Self { number, origin, prepared: PreparedDictionary::new(bytes)? })
    }

    /// Returns the number by which compressed pages name it: never zero.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn origin(&self) -> DictionaryOrigin {
        self.origin
    }

    pub(super) fn prepared(&self) -> &PreparedDictionary {
        &self.prepared
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} of table {})", self.number, self.origin.table)
    }
}

/// The dictionaries of a database, by number, and the working memory of their codec.
#[derive(Default)]
pub(crate) struct Dictionaries {
    /// Numbers that are taken. A dictionary that cannot be read is `None`.
    taken: RwLock<FxHashMap<u16, Option<Arc<Dictionary>>>>,
    contexts: Contexts,
}

impl Dictionaries {
    fn read(&self) -> RwLockReadGuard<'_, FxHashMap<u16, Option<Arc<Dictionary>>>> {
        self.taken.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, FxHashMap<u16, Option<Arc<Dictionary>>>> {
        self.taken.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// Returns the dictionary of this number.
    pub(crate) fn get(&self, number: u16) -> Option<Arc<Dictionary>> {
        self.read().get(&number)?.clone()
    }

    /// Returns all dictionaries that can be used.
    pub(crate) fn all(&self) -> Vec<Arc<Dictionary>> {
        self.read().values().flatten().cloned().collect()
    }

    /// Adds a dictionary; `None` for one that cannot be read, whose number stays taken.
    pub(crate) fn add(&self, number: u16, dictionary: Option<Arc<Dictionary>>) {
        self.write().insert(number, dictionary);
    }

    /// Forgets a dictionary that no page names.
    pub(crate) fn remove(&self, number: u16) {
        self.write().remove(&number);
    }

    /// Returns the lowest number free.
    pub(crate) fn free_number(&self) -> Option<u16> {
        let taken = self.read();
        (1..=u16::MAX).find(|number| !taken.contains_key(number))
    }

    /// Returns the bytes of memory of all dictionaries and of the working memory that is kept.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let of_one = |dictionary: &Arc<Dictionary>| size_of::<Dictionary>() + dictionary.prepared.memory_bytes();
        let dictionaries: usize = self.read().values().flatten().map(of_one).sum();
        (dictionaries + self.contexts.memory_bytes()) as u64
    }

    /// Returns the compressed bytes of these samples for 10,000 bytes of them, with Zstandard.
    pub(crate) fn ratio<'s>(
        &self,
        dictionary: Option<&Dictionary>,
        samples: impl IntoIterator<Item = &'s [u8]>,
    ) -> u16 {
        self.ratio_with(Compression::Small, dictionary, samples)
    }

    /// Returns the compressed bytes of these samples for 10,000 bytes of them.
    pub(crate) fn ratio_with<'s>(
        &self,
        compression: Compression,
        dictionary: Option<&Dictionary>,
        samples: impl IntoIterator<Item = &'s [u8]>,
    ) -> u16 {
        let (mut raw, mut compressed, mut into) = (0, 0, Vec::new());
        for sample in samples {
            into.clear();
            raw += sample.len();
            let len = self.compress(compression, dictionary, sample, &mut into);
            compressed += len.unwrap_or(sample.len()).min(sample.len());
        }
        (compressed * RATIO_UNIT).checked_div(raw).map_or(RATIO_UNIT as u16, |ratio| ratio as u16)
    }
}

/// Trains a dictionary for pages of `page_bytes` from samples of a table's pages. Returns it with its ratio, which is
/// measured on samples that it was not trained from; `None` when it would save nothing. Takes some 100 ms for a
/// megabyte, on the calling thread.
pub(crate) fn trained(dictionaries: &Dictionaries, samples: &[Vec<u8>], page_bytes: usize) -> Option<(Vec<u8>, u16)> {
    let is_measured = |at: usize| at % MEASURED_SHARE == MEASURED_SHARE - 1;
    let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
    for (_, sample) in samples.iter().enumerate().filter(|(at, _)| !is_measured(*at)) {
        bytes.extend_from_slice(sample);
        lengths.push(sample.len());
    }
    let dictionary = zstd::train(&bytes, &lengths, BYTES_MAX.min(page_bytes))?;
    let nowhere = DictionaryOrigin { table: TableId(0), ordinal: 0, ratio: 0 };
    let prepared = Dictionary::new(1, nowhere, &dictionary)?;
    let measured = || samples.iter().enumerate().filter(|(at, _)| is_measured(*at)).map(|(_, sample)| &sample[..]);
    let ratio = dictionaries.ratio(Some(&prepared), measured());
    (ratio < dictionaries.ratio(None, measured())).then_some((dictionary, ratio))
}
