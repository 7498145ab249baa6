//! The codecs by which pages are compressed. Which pages, and where their bytes lie, is decided elsewhere: this file
//! turns bytes into fewer bytes and back.
//!
//! Compressed bytes come from a disk, so decompressing takes any bytes, writes no more than it was asked for, and fails
//! with an error. `lz4_flex` is built in its safe variant: it has no `unsafe` code. Zstandard is a C library, and a
//! feature of this crate: without it this build reads and writes no table using it.

mod dictionary;
#[cfg(not(feature = "zstd"))]
mod no_zstd;
#[cfg(feature = "zstd")]
mod zstd;

pub(crate) use self::dictionary::{Dictionaries, Dictionary, DictionaryOrigin, RATIO_UNIT, trained};
#[cfg(not(feature = "zstd"))]
use self::no_zstd as zstd;

/// Whether this build can compress and decompress with Zstandard.
pub(crate) const HAS_ZSTD: bool = zstd::IS_AVAILABLE;

/// What to do about [`Compression::Small`] in a build without Zstandard.
pub(crate) const NEEDS_ZSTD: &str = "use a build of nofault with the feature `zstd`";

/// Whether the pages of a table are compressed in the data file, and how. In memory a page is never compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// Each page takes a block alone.
    #[default]
    None,
    /// LZ4. Several pages share a block. Reading one costs about a microsecond more.
    Fast,
    /// Zstandard with a dictionary of the table. Takes the least space; reading a page costs two or three microseconds
    /// more. The database trains the dictionary from the table's own pages: from the first megabyte of a bulk load; of a
    /// table that grows in other ways by automatic compaction, once some megabytes were written, or by
    /// [`Db::compact`](crate::Db::compact). For the moment of the training, some 100 ms, the library takes ten megabytes in addition to
    /// the cache. Needs the feature `zstd` of this crate: a build without it neither creates
    /// such tables nor opens a database with one (`Unsupported`).
    Small,
}

impl Compression {
    /// Returns the byte that stands for this compression in files.
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Fast => 1,
            Self::Small => 2,
        }
    }

    /// Returns the compression that a byte stands for.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Fast),
            2 => Some(Self::Small),
            _ => None,
        }
    }

    /// Returns whether this build can compress and decompress in this way.
    pub(crate) fn is_available(self) -> bool {
        self != Self::Small || HAS_ZSTD
    }
}

/// The reason why bytes cannot be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undecodable {
    /// The codec is not known, or not a part of this build.
    Codec,
    /// There is no dictionary of this number, or the codec takes none.
    Dictionary,
    /// The bytes are none that the codec made of so many bytes.
    Bytes,
}

impl Dictionaries {
    /// Compresses `bytes` into the end of `into`. Returns the number of bytes that were added; `None`, with `into` as
    /// before, when nothing is compressed.
    pub(crate) fn compress(
        &self,
        compression: Compression,
        dictionary: Option<&Dictionary>,
        bytes: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<usize> {
        let start = into.len();
        let compressed = match compression {
            Compression::None => return None,
            Compression::Fast => {
                into.resize(start + lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
                lz4_flex::block::compress_into(bytes, &mut into[start..]).ok()
            }
            Compression::Small => {
                into.resize(start + zstd::size_max(bytes.len()), 0);
                self.contexts().compress(dictionary.map(Dictionary::prepared), bytes, &mut into[start..])
            }
        };
        into.truncate(start + compressed.unwrap_or(0));
        compressed
    }

    /// Decompresses `bytes` into `into`, which has exactly the length of the bytes that were compressed. `codec` is the
    /// byte of a compression, `dictionary` the number of a dictionary, zero for none.
    ///
    /// # Errors
    /// When these are no such bytes: then `into` may be changed in part.
    pub(crate) fn decompress(
        &self,
        codec: u8,
        dictionary: u16,
        bytes: &[u8],
        into: &mut [u8],
    ) -> Result<(), Undecodable> {
        let len = match Compression::from_byte(codec) {
            Some(Compression::Fast) if dictionary == 0 => lz4_flex::block::decompress_into(bytes, into).ok(),
            Some(Compression::Small) if HAS_ZSTD => {
                let found =
                    if dictionary == 0 { None } else { Some(self.get(dictionary).ok_or(Undecodable::Dictionary)?) };
                self.contexts().decompress(found.as_deref().map(Dictionary::prepared), bytes, into)
            }
            Some(Compression::Fast) => return Err(Undecodable::Dictionary),
            Some(Compression::None | Compression::Small) | None => return Err(Undecodable::Codec),
        };
        if len == Some(into.len()) { Ok(()) } else { Err(Undecodable::Bytes) }
    }
}

#[cfg(test)]
mod tests;
