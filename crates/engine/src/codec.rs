//! The codecs by which pages are compressed. Which pages, and where their bytes lie, is decided elsewhere: this file
//! turns bytes into fewer bytes and back.
//!
//! Compressed bytes come from a disk, so decompressing takes any bytes, writes no more than it was asked for, and fails
//! with an error. `lz4_flex` is built in its safe variant: it has no `unsafe` code.

/// Whether the pages of a table are compressed in the data file, and how. In memory a page is never compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// A page takes a block of its own.
    #[default]
    None,
    /// LZ4. Several pages share a block. Reading one costs about a microsecond more.
    Fast,
}

impl Compression {
    /// Returns the byte that stands for this compression in files.
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Fast => 1,
        }
    }

    /// Returns the compression that a byte stands for.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Fast),
            _ => None,
        }
    }

    /// Compresses `bytes` into the end of `into`. Returns the number of bytes that were added; `None`, with `into` as
    /// before, when nothing is compressed.
    pub(crate) fn compress(self, bytes: &[u8], into: &mut Vec<u8>) -> Option<usize> {
        let start = into.len();
        match self {
            Self::None => None,
            Self::Fast => {
                into.resize(start + lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
                let compressed = lz4_flex::block::compress_into(bytes, &mut into[start..]).ok();
                into.truncate(start + compressed.unwrap_or(0));
                compressed
            }
        }
    }

    /// Decompresses `bytes` into `into`, which has exactly the length of the bytes that were compressed. Returns false,
    /// with `into` changed in part, when these are no such bytes.
    pub(crate) fn decompress(self, bytes: &[u8], into: &mut [u8]) -> bool {
        match self {
            Self::None => false,
            Self::Fast => lz4_flex::block::decompress_into(bytes, into).is_ok_and(|len| len == into.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_come_back(words in prop::collection::vec(0u8..4, 0..5000), before in 0usize..100) {
            let mut into = vec![9; before];
            let len = Compression::Fast.compress(&words, &mut into).unwrap();
            prop_assert_eq!(into.len(), before + len);
            let mut back = vec![7; words.len()];
            prop_assert!(Compression::Fast.decompress(&into[before..], &mut back));
            prop_assert_eq!(&back, &words);
            // Neither fewer nor more bytes than were compressed.
            prop_assert!(!Compression::Fast.decompress(&into[before..], &mut vec![0; words.len() + 1]));
            if let Some(less) = words.len().checked_sub(1) {
                prop_assert!(!Compression::Fast.decompress(&into[before..], &mut vec![0; less]));
            }
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_fill_the_page(bytes in prop::collection::vec(any::<u8>(), 0..300), len in 0usize..9000) {
            let mut into = vec![0; len];
            let _ = Compression::Fast.decompress(&bytes, &mut into);
        }
    }

    #[test]
    fn every_compression_has_a_byte_of_its_own() {
        for compression in [Compression::None, Compression::Fast] {
            assert_eq!(Compression::from_byte(compression.to_byte()), Some(compression));
        }
        assert_eq!(Compression::from_byte(255), None);
    }
}
