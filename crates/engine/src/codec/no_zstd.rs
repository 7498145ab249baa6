//! Stands in for `zstd` in a build without it. Nothing is compressed or decompressed.

pub(super) const IS_AVAILABLE: bool = false;

pub(super) fn size_max(_: usize) -> usize {
    0
}

/// A dictionary, of which there is none.
pub(super) enum PreparedDictionary {}

impl PreparedDictionary {
    pub(super) fn new(_: &[u8]) -> Option<Self> {
        None
    }

    pub(super) fn memory_bytes(&self) -> usize {
        match *self {}
    }
}

/// The working memory of a codec, of which there is none.
#[derive(Default)]
pub(super) struct Contexts;

impl Contexts {
    pub(super) fn compress(&self, _: Option<&PreparedDictionary>, _: &[u8], _: &mut [u8]) -> Option<usize> {
        None
    }

    pub(super) fn decompress(&self, _: Option<&PreparedDictionary>, _: &[u8], _: &mut [u8]) -> Option<usize> {
        None
    }

    pub(super) fn memory_bytes(&self) -> usize {
        0
    }
}

pub(super) fn train(_: &[u8], _: &[usize], _: usize) -> Option<Vec<u8>> {
    None
}
