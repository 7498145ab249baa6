//! The superblock: identifies a database, and leads to its last checkpoint.
//!
//! There are two, A and B, at fixed places for every page size. A checkpoint writes its superblock to one slot and then
//! to the other, so each is the other's copy; `recovery::superblocks` decides which one is in force.
//!
//! Every version of the format keeps magic, version and file id where they are, and ends the 4,096 bytes with their
//! CRC-64. So this build tells a whole superblock of a later version, which it must refuse, from a damaged one, for
//! which the other slot stands in.

use super::checksum::{ALGORITHM_CRC64_NVME, placed_checksum};
use super::fields::{Reader, Writer, u64_at};
use super::location::BLOCK_LIMIT;
use super::{BlockId, CommitSeq, PAGE_BYTES_MAX, PAGE_BYTES_MIN, levels_for};
use crate::codec::{HAS_ZSTD, NEEDS_ZSTD};
use crate::error::{Error, ErrorKind, Result};

/// Bytes a superblock takes on disk: the largest sector in use.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;
/// Offsets of A and B in the data file. They are far apart, so that local damage does not reach both.
pub(crate) const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 65_536];
/// The first byte that pages may use.
pub(crate) const PAGES_START_BYTES: u64 = 131_072;
/// Offset at which a superblock of version 3 is stored while it replaces two of an earlier version
/// (`recovery::superblocks`).
pub(crate) const CONVERSION_OFFSET: u64 = 32_768;
/// The slot number of `CONVERSION_OFFSET`; A and B are slots 0 and 1.
pub(crate) const CONVERSION_SLOT: usize = 2;
/// The version of the format that this code writes. It also reads versions 1 and 2: version 1 has no dropped tables
/// that wait to be freed; up to version 2 the two superblocks took turns.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The first version in which a checkpoint writes both superblocks.
pub(crate) const VERSION_MIRRORED: u32 = 3;
const FORMAT_VERSIONS_READ: std::ops::RangeInclusive<u32> = 1..=FORMAT_VERSION;

/// Sequence numbers, commits and positions in the log are below this. No database reaches it, so code that increments
/// them need not check for overflow.
pub(crate) const COUNTED_MAX: u64 = 1 << 62;

const MAGIC: [u8; 8] = *b"nofault\x01";
/// Number of bytes that hold fields in versions up to 2; `USED_BYTES` is the number in later versions.
const USED_BYTES_2: usize = 104;
const USED_BYTES: usize = 120;
/// Bit of the incompatible feature that blocks may hold several compressed pages, and tables be compressed.
const FEATURE_COMPRESSION: u64 = 1;
/// Bit of the incompatible feature that a table is or was compressed with Zstandard.
const FEATURE_ZSTD: u64 = 2;
/// Bit of the incompatible feature that entries of tables in the catalog may have properties, and that the log may have
/// records that set them or rename tables.
const FEATURE_PROPERTIES: u64 = 4;
/// Bit of the incompatible feature that entries may expire, in leaves and in the log.
const FEATURE_EXPIRY: u64 = 8;
/// Incompatible features that this code knows. A superblock with another one is refused.
const FEATURES_INCOMPATIBLE: u64 = FEATURE_COMPRESSION | FEATURE_ZSTD | FEATURE_PROPERTIES | FEATURE_EXPIRY;
/// Compatible features that this code keeps true: none yet. Its checkpoints clear all others, see [`Superblock::compatible_features`].
pub(crate) const FEATURES_COMPATIBLE: u64 = 0;

/// The fields of a superblock. The byte layout is in `docs/format.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Chosen at random when the database is created; part of every checksum.
    pub(crate) file_id: u64,
    /// Bytes of a page and of a block.
    pub(crate) page_bytes: u32,
    /// Bytes of a log segment.
    pub(crate) segment_bytes: u64,
    /// Number of the superblock: of two valid ones the one with the higher number is in force.
    pub(crate) sequence: u64,
    /// The commit whose state the page table describes.
    pub(crate) commit: CommitSeq,
    /// Page ids below this have an entry in the page table.
    pub(crate) page_count: u64,
    /// Levels of the page table; zero when there are no pages.
    pub(crate) table_levels: u32,
    /// Block of the page table's root node; meaningless with zero levels.
    pub(crate) table_root: BlockId,
    /// Checksum of the page table's root node.
    pub(crate) table_checksum: u64,
    /// Position of the last log group before the records that recovery has to replay.
    pub(crate) log_anchor: u64,
    /// Sequence number of the log group at `log_anchor`.
    pub(crate) log_anchor_sequence: u64,
    /// Checksum of the log group at `log_anchor`. Recovery requires exactly this group there.
    pub(crate) log_anchor_checksum: u64,
    /// A bit for each feature of the state of `commit` that a build may ignore. Kept while this very state is in force;
    /// the next checkpoint clears the bits that it does not know, as it does not maintain those features.
    pub(crate) compatible_features: u64,
    /// Whether a table is or was compressed with Zstandard: then a build without it must refuse the database.
    pub(crate) needs_zstd: bool,
    /// Whether tables have, or once had, properties in the catalog (see `format::catalog`), or were renamed.
    pub(crate) has_properties: bool,
    /// Whether entries expire, or once did: then leaves and log may have the moments at which they do.
    pub(crate) has_expiry: bool,
}

/// A feature of the format that a database has from the moment on at which it is used first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateFeature {
    /// Tables have properties in the catalog, or were renamed.
    Properties,
    /// Entries expire.
    Expiry,
}

impl Superblock {
    /// Returns whether the database has the feature.
    pub(crate) fn has(&self, feature: LateFeature) -> bool {
        match feature {
            LateFeature::Properties => self.has_properties,
            LateFeature::Expiry => self.has_expiry,
        }
    }

    /// Encodes the superblock into `sector`, for slot `slot` (0 is A, 1 is B), in the newest version of the format.
    pub(crate) fn encode(&self, slot: usize, sector: &mut [u8]) {
        sector.fill(0);
        let mut out = Writer { bytes: sector, at: 0 };
        out.put(&MAGIC);
        out.u32(FORMAT_VERSION);
        out.u32(ALGORITHM_CRC64_NVME);
        out.u64(self.file_id);
        out.u64(self.sequence);
        out.u64(self.commit.0);
        out.u32(self.page_bytes);
        out.u32(self.table_levels);
        out.u64(self.segment_bytes);
        out.u64(self.page_count);
        out.u64(self.table_root.0);
        out.u64(self.table_checksum);
        out.u64(self.log_anchor);
        out.u64(self.log_anchor_sequence);
        out.u64(self.log_anchor_checksum);
        let features = [
            (self.needs_zstd, FEATURE_ZSTD),
            (self.has_properties, FEATURE_PROPERTIES),
            (self.has_expiry, FEATURE_EXPIRY),
        ];
        let features = features.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit);
        out.u64(features.fold(FEATURE_COMPRESSION, |all, bit| all | bit));
        out.u64(self.compatible_features);
        debug_assert!(out.at == USED_BYTES, "the fields overlap the reserved bytes");
        let end = SUPERBLOCK_BYTES - 8;
        let sum = placed_checksum(self.file_id, slot as u64, &sector[..end]);
        sector[end..SUPERBLOCK_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads slot `slot` from the bytes found there.
    ///
    /// # Errors
    /// `Corrupt` for anything that is not a whole superblock; `Unsupported` for a whole one of another version or checksum algorithm, or
    /// with an incompatible feature or a reserved byte that this code knows nothing of.
    pub(crate) fn decode(slot: usize, sector: &[u8]) -> Result<Self> {
        let broken = |what: &str| Self::broken(slot, what);
        if sector.len() < SUPERBLOCK_BYTES {
            return Err(Self::cut_off(slot));
        }
        let mut from = Reader { bytes: sector, at: 0 };
        if from.take(8) != MAGIC {
            let empty = sector[..SUPERBLOCK_BYTES].iter().all(|byte| *byte == 0);
            return Err(broken(if empty { "only zeroes" } else { "not a nofault database" }));
        }
        let (version, algorithm) = (from.u32(), from.u32());
        let file_id = from.u64();
        let end = SUPERBLOCK_BYTES - 8;
        // The checksum comes first, for every version: in damaged bytes the version means nothing.
        if u64_at(sector, end) != placed_checksum(file_id, slot as u64, &sector[..end]) {
            return Err(broken("checksum does not match"));
        }
        let unsupported = |what: String| {
            let place = Self::place(slot);
            let what = format!("{place} is whole and has {what}: open the database with the version that wrote it");
            Err(Error::new(ErrorKind::Unsupported, what))
        };
        if !FORMAT_VERSIONS_READ.contains(&version) || algorithm != ALGORITHM_CRC64_NVME {
            return unsupported(format!(
                "format {version} with checksum {algorithm}; this version of nofault reads formats up to {FORMAT_VERSION} with checksum {ALGORITHM_CRC64_NVME}"
            ));
        }
        let (sequence, commit) = (from.u64(), CommitSeq(from.u64()));
        let (page_bytes, table_levels) = (from.u32(), from.u32());
        let (segment_bytes, page_count, table_root, table_checksum) = (from.u64(), from.u64(), from.u64(), from.u64());
        let (log_anchor, log_anchor_sequence, log_anchor_checksum) = (from.u64(), from.u64(), from.u64());
        let (mut incompatible_features, mut compatible_features, mut used_bytes) = (0, 0, USED_BYTES_2);
        if version >= VERSION_MIRRORED {
            (incompatible_features, compatible_features, used_bytes) = (from.u64(), from.u64(), USED_BYTES);
        }
        if incompatible_features & !FEATURES_INCOMPATIBLE != 0 {
            return unsupported(format!(
                "incompatible features {incompatible_features:#x}; this version of nofault knows {FEATURES_INCOMPATIBLE:#x}"
            ));
        }
        let needs_zstd = incompatible_features & FEATURE_ZSTD != 0;
        if needs_zstd && !HAS_ZSTD {
            let what = format!("{} names tables that are compressed with Zstandard: {NEEDS_ZSTD}", Self::place(slot));
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if let Some(at) = (used_bytes..end).find(|at| sector[*at] != 0) {
            return unsupported(format!("byte {at} set, which has no meaning in this version of nofault"));
        }
        if [sequence, commit.0, log_anchor, log_anchor_sequence].iter().any(|number| *number >= COUNTED_MAX) {
            return Err(broken("a sequence, commit or position that no database reaches"));
        }
        if !page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&(page_bytes as usize)) {
            return Err(broken(&format!("pages of {page_bytes} bytes")));
        }
        if page_count > 1 << 48
            || table_levels != levels_for(page_count, page_bytes as usize)
            || table_root >= BLOCK_LIMIT
        {
            return Err(broken("a page table of impossible size or place"));
        }
        if segment_bytes < 8192 || segment_bytes % 4096 != 0 || segment_bytes > 1 << 40 || log_anchor % 4096 != 0 {
            return Err(broken("a log of impossible shape"));
        }
        Ok(Self {
            file_id,
            page_bytes,
            segment_bytes,
            sequence,
            commit,
            page_count,
            table_levels,
            table_root: BlockId(table_root),
            table_checksum,
            log_anchor,
            log_anchor_sequence,
            log_anchor_checksum,
            compatible_features,
            needs_zstd,
            has_properties: incompatible_features & FEATURE_PROPERTIES != 0,
            has_expiry: incompatible_features & FEATURE_EXPIRY != 0,
        })
    }

    /// Creates the error for slot `slot` of a file that ends before the slot does.
    pub(crate) fn cut_off(slot: usize) -> Error {
        Self::broken(slot, "the file ends before it does")
    }

    /// Returns the same state for a checkpoint that replaces two superblocks of an earlier version.
    pub(crate) fn converted(&self) -> Self {
        Self { sequence: self.sequence + 1, ..*self }
    }

    /// Names a slot and its position, for messages.
    pub(crate) fn place(slot: usize) -> String {
        match slot {
            0 | 1 => format!("superblock {} at {}", ["A", "B"][slot], SUPERBLOCK_OFFSETS[slot]),
            _ => format!("the superblock noted at {CONVERSION_OFFSET}"),
        }
    }

    fn broken(slot: usize, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("{}: {what}", Self::place(slot)))
    }
}

/// Returns the version in a complete superblock.
pub(crate) fn version_of(sector: &[u8]) -> u32 {
    Reader { bytes: sector, at: 8 }.u32()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Superblock {
        Superblock {
            file_id: 0x1234_5678_9ABC_DEF0,
            page_bytes: 4096,
            segment_bytes: 1 << 20,
            sequence: 7,
            commit: CommitSeq(99),
            page_count: 1000,
            table_levels: 2,
            table_root: BlockId(40),
            table_checksum: 5,
            log_anchor: 8192,
            log_anchor_sequence: 3,
            log_anchor_checksum: 11,
            compatible_features: 0,
            needs_zstd: false,
            has_properties: false,
            has_expiry: false,
        }
    }

    /// Changes the version in an encoded superblock. Earlier versions have no features.
    pub(crate) fn set_version(slot: usize, sector: &mut [u8], version: u32) {
        Writer { bytes: sector, at: 8 }.u32(version);
        if version < VERSION_MIRRORED {
            sector[USED_BYTES_2] &= !(FEATURE_COMPRESSION as u8);
        }
        seal(slot, sector);
    }

    /// Recomputes the checksum of an encoded superblock.
    pub(crate) fn seal(slot: usize, sector: &mut [u8]) {
        let (file_id, end) = (u64_at(sector, 16), SUPERBLOCK_BYTES - 8);
        let sum = placed_checksum(file_id, slot as u64, &sector[..end]);
        sector[end..SUPERBLOCK_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    #[test]
    fn a_superblock_is_read_back_from_its_own_slot_only() {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        example().encode(1, &mut sector);
        assert_eq!(Superblock::decode(1, &sector).unwrap(), example());
        assert_eq!(Superblock::decode(0, &sector).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        example().encode(0, &mut sector);
        for bit in (0..SUPERBLOCK_BYTES * 8).step_by(5) {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(0, &sector).is_err(), "bit {bit}");
            sector[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn emptied_foreign_and_newer_files_are_told_apart() {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        assert!(Superblock::decode(0, &sector).unwrap_err().to_string().contains("only zeroes"));
        assert!(Superblock::decode(0, &sector[..100]).unwrap_err().to_string().contains("file ends"));
        sector[..5].copy_from_slice(b"PK\x03\x04!");
        assert!(Superblock::decode(0, &sector).unwrap_err().to_string().contains("not a nofault database"));
        example().encode(0, &mut sector);
        for version in FORMAT_VERSIONS_READ {
            set_version(0, &mut sector, version);
            assert_eq!(Superblock::decode(0, &sector).unwrap(), example(), "version {version}");
        }
        for version in [0, FORMAT_VERSION + 1] {
            set_version(0, &mut sector, version);
            assert_eq!(Superblock::decode(0, &sector).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn a_whole_superblock_with_a_feature_or_a_byte_that_is_not_known_is_unsupported_and_a_damaged_one_is_damage() {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        Superblock { compatible_features: 1 << 63 | 5, ..example() }.encode(0, &mut sector);
        assert_eq!(Superblock::decode(0, &sector).unwrap().compatible_features, 1 << 63 | 5);
        for (at, version) in [(12, 3), (104, 3), (111, 3), (120, 3), (4087, 3), (104, 2), (112, 2), (119, 1), (4087, 1)]
        {
            let mut sector = vec![0; SUPERBLOCK_BYTES];
            example().encode(0, &mut sector);
            sector[at] ^= 0x10;
            set_version(0, &mut sector, version);
            let error = Superblock::decode(0, &sector).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "byte {at} of version {version}: {error}");
            assert!(error.to_string().contains("superblock A at 0"), "{error}");
            // The same bytes without the checksum belonging to them are no version of anything.
            sector[4090] ^= 1;
            assert_eq!(Superblock::decode(0, &sector).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
        }
    }

    #[test]
    fn a_database_with_tables_in_zstandard_is_refused_by_a_build_without_it() {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        let superblock = Superblock { needs_zstd: true, ..example() };
        superblock.encode(1, &mut sector);
        assert_eq!(sector[104], 3);
        match Superblock::decode(1, &sector) {
            Ok(decoded) => assert!(HAS_ZSTD && decoded == superblock),
            Err(error) => {
                assert!(!HAS_ZSTD && error.kind() == ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("the feature `zstd`"), "{error}");
            }
        }
    }

    #[test]
    fn the_features_that_come_with_their_use_are_read_back() {
        let mut sector = vec![0; SUPERBLOCK_BYTES];
        let superblock = Superblock { has_properties: true, ..example() };
        superblock.encode(0, &mut sector);
        assert_eq!(sector[104], 5);
        assert_eq!(Superblock::decode(0, &sector).unwrap(), superblock);
        let superblock = Superblock { has_expiry: true, ..example() };
        superblock.encode(0, &mut sector);
        assert_eq!(sector[104], 9);
        assert_eq!(Superblock::decode(0, &sector).unwrap(), superblock);
    }

    #[test]
    fn numbers_too_large_to_be_incremented_are_refused() {
        for field in 0..4 {
            for (number, is_sound) in [(COUNTED_MAX - 4096, true), (COUNTED_MAX, false), (u64::MAX << 12, false)] {
                let mut superblock = example();
                *[
                    &mut superblock.sequence,
                    &mut superblock.commit.0,
                    &mut superblock.log_anchor,
                    &mut superblock.log_anchor_sequence,
                ][field] = number;
                let mut sector = vec![0; SUPERBLOCK_BYTES];
                superblock.encode(0, &mut sector);
                let found = Superblock::decode(0, &sector);
                assert_eq!(found.as_ref().ok(), is_sound.then_some(&superblock), "field {field}: {number}");
                assert!(found.is_ok() || found.is_err_and(|error| error.kind() == ErrorKind::Corrupt));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..5000), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= SUPERBLOCK_BYTES {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..16].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
                let file_id = u64_at(&bytes, 16);
                let sum = placed_checksum(file_id, 0, &bytes[..SUPERBLOCK_BYTES - 8]);
                bytes[SUPERBLOCK_BYTES - 8..SUPERBLOCK_BYTES].copy_from_slice(&sum.to_le_bytes());
            }
            let _ = Superblock::decode(0, &bytes);
        }
    }
}
