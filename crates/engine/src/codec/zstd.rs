//! Zstandard, by the C library. Frames have no checksum, as records have one, and no id of a dictionary, as records
//! name it.
//!
//! Bytes are decompressed in one step into memory of the right length, whatever the frame says of its content, its
//! window or its blocks: nothing is allocated for them. The old formats of the library are not built.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use zstd_safe::{CCtx, CDict, DCtx, DDict};

pub(super) const IS_AVAILABLE: bool = true;

/// Higher levels take more time and, for pages of 4 KiB with a dictionary, save a fiftieth at most.
const LEVEL: i32 = 1;
/// Contexts kept for the next caller, for either direction: more are only in use while so many threads
/// compress or decompress at a time.
const CONTEXTS_KEPT: usize = 4;
/// Place and length of the dictionary's id in its bytes. Without an id the frames using it have none.
const ID: std::ops::Range<usize> = 4..8;

/// Returns the most bytes that compressing so many bytes makes.
pub(super) fn size_max(bytes: usize) -> usize {
    zstd_safe::compress_bound(bytes)
}

/// A dictionary with the tables that the library makes of it. They take some ten times its own bytes, and are made with
/// the first page needing them: of the dictionaries of a table only the last one compresses, and of those before it
/// there may be pages or none.
pub(super) struct PreparedDictionary {
    bytes: Vec<u8>,
    decoder: OnceLock<Option<DDict<'static>>>,
    encoder: OnceLock<Option<CDict<'static>>>,
}

impl PreparedDictionary {
    /// Prepares a dictionary. Returns `None` for bytes that the library refuses.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        drop(DDict::try_create(bytes)?);
        Some(Self { bytes: bytes.to_vec(), decoder: OnceLock::new(), encoder: OnceLock::new() })
    }

    fn decoder(&self) -> Option<&DDict<'static>> {
        self.decoder.get_or_init(|| DDict::try_create(&self.bytes)).as_ref()
    }

    fn encoder(&self) -> Option<&CDict<'static>> {
        self.encoder.get_or_init(|| CDict::try_create(&self.bytes, LEVEL)).as_ref()
    }

    /// Returns the bytes of memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let encoder = self.encoder.get().and_then(Option::as_ref).map_or(0, CDict::sizeof);
        let decoder = self.decoder.get().and_then(Option::as_ref).map_or(0, DDict::sizeof);
        self.bytes.capacity() + decoder + encoder
    }
}

/// Working memory of the library, used by one caller at a time each.
#[derive(Default)]
pub(super) struct Contexts {
    encoders: Mutex<Vec<CCtx<'static>>>,
    decoders: Mutex<Vec<DCtx<'static>>>,
}

impl Contexts {
    /// Compresses `bytes` into `into`. Returns the length; `None` when there is no memory or no room.
    pub(super) fn compress(
        &self,
        dictionary: Option<&PreparedDictionary>,
        bytes: &[u8],
        into: &mut [u8],
    ) -> Option<usize> {
        let mut context = lock(&self.encoders).pop().or_else(CCtx::try_create)?;
        let len = match dictionary {
            Some(dictionary) => context.compress_using_cdict(into, bytes, dictionary.encoder()?),
            None => context.compress(into, bytes, LEVEL),
        };
        keep(&self.encoders, context);
        len.ok()
    }

    /// Decompresses `bytes` into `into`. Returns the length; `None` when they cannot be decompressed.
    pub(super) fn decompress(
        &self,
        dictionary: Option<&PreparedDictionary>,
        bytes: &[u8],
        into: &mut [u8],
    ) -> Option<usize> {
        let mut context = lock(&self.decoders).pop().or_else(DCtx::try_create)?;
        let len = match dictionary {
            Some(dictionary) => context.decompress_using_ddict(into, bytes, dictionary.decoder()?),
            None => context.decompress(into, bytes),
        };
        keep(&self.decoders, context);
        len.ok()
    }

    /// Returns the bytes of memory of the contexts that are kept.
    pub(super) fn memory_bytes(&self) -> usize {
        let encoders: usize = lock(&self.encoders).iter().map(CCtx::sizeof).sum();
        encoders + lock(&self.decoders).iter().map(DCtx::sizeof).sum::<usize>()
    }
}

fn lock<T>(contexts: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    contexts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep<T>(contexts: &Mutex<Vec<T>>, context: T) {
    let mut kept = lock(contexts);
    if kept.len() < CONTEXTS_KEPT {
        kept.push(context);
    }
}

/// Trains a dictionary of at most `bytes_max` bytes from samples of these lengths, which lie one after the other.
/// Returns `None` when they are too few or have nothing in common. Takes some 100 ms for a megabyte.
pub(super) fn train(samples: &[u8], lengths: &[usize], bytes_max: usize) -> Option<Vec<u8>> {
    let mut dictionary = vec![0; bytes_max];
    let len = zstd_safe::train_from_buffer(dictionary.as_mut_slice(), samples, lengths).ok()?;
    dictionary.truncate(len);
    dictionary.get_mut(ID)?.fill(0);
    Some(dictionary)
}
