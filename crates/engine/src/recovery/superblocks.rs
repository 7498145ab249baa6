//! Decides which of the two superblocks is in force, and writes it to both slots.
//!
//! A checkpoint of version 3 writes the same superblock durably to one slot, then durably to the other, and only then
//! are blocks freed, segments of the log used again, and a load acknowledged. So of two slots, one of which is damaged,
//! the other holds either the same state or the one before, of which nothing was given up: either may stand in for a
//! damaged one.
//!
//! Up to version 2 a checkpoint wrote one slot only, the two by turns. There the slot that cannot be read may have been
//! the newer one, and a load in it is nowhere else: a database of such a version is refused, unless its other slot was
//! never written.

use nofault_io::aligned::{IoBuf, PageKind};

use crate::buffer_pool::BufferPool;
use crate::checkpoint::write_superblock;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    CONVERSION_OFFSET, CONVERSION_SLOT, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock, VERSION_MIRRORED,
};

/// The outcome of reading a slot: a valid superblock, or the reason why there is none.
pub(super) struct Slot {
    pub(super) found: Result<WholeSuperblock>,
    /// Whether the slot contains only zeroes, like a slot that was never written.
    pub(super) is_empty: bool,
}

/// A complete superblock, as read from its slot.
pub(super) struct WholeSuperblock {
    pub(super) superblock: Superblock,
    pub(super) version: u32,
    /// The bytes of the superblock.
    pub(super) sector: IoBuf,
}

impl WholeSuperblock {
    fn is_mirrored(&self) -> bool {
        self.version >= VERSION_MIRRORED
    }
}

/// The superblock from which opening starts, as it was found.
pub(super) struct CurrentSuperblock {
    whole: WholeSuperblock,
    slot: usize,
    /// Damage of the other slot, unless that slot is merely older; [`CurrentSuperblock::make_durable`] repairs it.
    pub(super) repairs: Vec<String>,
}

/// Chooses between slot A and slot B. `noted` reads the superblock that a conversion from an earlier version has noted;
/// it is called only where that decides, and fails where the reading says nothing about the data.
///
/// # Errors
/// `Unsupported` when one of them is whole and of a version or with a feature that this code does not know, even if the
/// other is sound. `Corrupt` when neither is whole, when they contradict each other, or when one of an earlier version
/// stands next to a damaged one. The error of the read where reading failed.
pub(super) fn choose(
    slots: [Slot; 2],
    noted: impl FnOnce() -> Result<Option<Superblock>>,
) -> Result<CurrentSuperblock> {
    let errors = || slots.iter().filter_map(|slot| slot.found.as_ref().err());
    // Neither damage nor a bad sector: the other slot does not stand in for it.
    let is_no_damage = |error: &&Error| !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io);
    let unknown = errors().find(|error| error.kind() == ErrorKind::Unsupported);
    if let Some(error) = unknown.or_else(|| errors().find(is_no_damage)) {
        return Err(error.clone());
    }
    let [a, b] = slots;
    match (a.found, b.found) {
        (Ok(a), Ok(b)) => newer_of(a, b),
        (Ok(whole), Err(error)) => stand_in(whole, 0, error, b.is_empty, noted),
        (Err(error), Ok(whole)) => stand_in(whole, 1, error, a.is_empty, noted),
        (Err(a), Err(b)) => {
            let kind = if a.kind() == ErrorKind::Corrupt { b.kind() } else { a.kind() };
            Err(Error::new(kind, format!("{a}; {b}; restore a backup")))
        }
    }
}

fn newer_of(a: WholeSuperblock, b: WholeSuperblock) -> Result<CurrentSuperblock> {
    let contradiction = |what: String| Err(Error::new(ErrorKind::Corrupt, what));
    if a.superblock.file_id != b.superblock.file_id {
        return contradiction("the superblocks A at 0 and B at 65536 belong to two databases".into());
    }
    let (whole, slot, older) = if a.superblock.sequence >= b.superblock.sequence { (a, 0, b) } else { (b, 1, a) };
    let (sequence, older_sequence) = (whole.superblock.sequence, older.superblock.sequence);
    if sequence == older_sequence && (whole.superblock != older.superblock || whole.version != older.version) {
        return contradiction(format!(
            "the superblocks A at 0 and B at 65536 are both of checkpoint {sequence} and differ"
        ));
    }
    if older.is_mirrored() && !whole.is_mirrored() {
        return contradiction(format!(
            "{} is of format {} and newer than {}, which is of format {}",
            Superblock::place(slot),
            whole.version,
            Superblock::place(1 - slot),
            older.version
        ));
    }
    let mut repairs = Vec::new();
    // A checkpoint that was cut short leaves them one apart.
    if older.is_mirrored() && sequence - older_sequence > 1 {
        repairs.push(format!(
            "{} is of checkpoint {older_sequence}, although {sequence} was the last one: a write of it was lost; it is rewritten from the other",
            Superblock::place(1 - slot)
        ));
    }
    Ok(CurrentSuperblock { whole, slot, repairs })
}

/// Uses the complete superblock in `slot` although the other one cannot be read.
fn stand_in(
    whole: WholeSuperblock,
    slot: usize,
    error: Error,
    other_is_empty: bool,
    noted: impl FnOnce() -> Result<Option<Superblock>>,
) -> Result<CurrentSuperblock> {
    let sequence = whole.superblock.sequence;
    if whole.is_mirrored() {
        let what = format!(
            "{error}: damaged, or cut short while it was written; it is rewritten from {}, which loses nothing",
            Superblock::place(slot)
        );
        return Ok(CurrentSuperblock { whole, slot, repairs: vec![what] });
    }
    // Creation made one checkpoint, which wrote slot B.
    let is_only_one = other_is_empty && slot == 1 && sequence == 1;
    // From the write of the conversion slot to the last write of a conversion, only the two slots are written.
    if is_only_one || noted()?.is_some_and(|noted| noted == whole.superblock.converted()) {
        return Ok(CurrentSuperblock { whole, slot, repairs: Vec::new() });
    }
    let what = format!(
        "{error}; it may have been the newer one, of checkpoint {}, and {} of checkpoint {sequence} does not stand in for it: databases of format {} wrote the two by turns, so that loaded tables could be missing without an error. Restore a backup",
        sequence + 1,
        Superblock::place(slot),
        whole.version
    );
    Err(Error::new(error.kind(), what))
}

impl CurrentSuperblock {
    /// Returns the superblock in force.
    pub(super) fn superblock(&self) -> &Superblock {
        &self.whole.superblock
    }

    /// Makes the superblock durable in both slots, before anything else is written. Returns the superblock that both
    /// slots hold then: the same state, in the version that this code writes.
    ///
    /// First it writes the superblock's own slot, with the same bytes. They may have been read from a cache and be
    /// nowhere else: their write failed, or the process that wrote them ended before the flush. Then the other slot may
    /// hold the only durable superblock, and all its blocks and segments are unchanged, so it must not be touched yet.
    /// A sync would not do: after a failed sync, the next one does not cover the same writes. Where the slot is durable
    /// already, a torn write of the same bytes leaves these bytes (`docs/assumptions.md`).
    ///
    /// Then it writes the other slot, which from there on can replace the first.
    ///
    /// Two superblocks of an earlier format version are replaced by two of the current version. A write that is cut
    /// short would leave a damaged slot next to one of the earlier version, which [`choose`] refuses. Therefore:
    /// 1. the new superblock is first written, durably, to a third place, the conversion slot;
    /// 2. then both slots are written;
    /// 3. at the end the conversion slot is erased.
    ///
    /// An opening that finds the conversion slot written accepts the earlier superblock next to it and converts again.
    ///
    /// # Errors
    /// The error of the disk: then nothing may be written to this database.
    pub(super) fn make_durable(self, pool: &BufferPool) -> Result<Superblock> {
        let WholeSuperblock { superblock, sector, version } = self.whole;
        pool.writer().write_superblock(SUPERBLOCK_OFFSETS[self.slot], sector)?;
        if version >= VERSION_MIRRORED {
            write_superblock(pool, &superblock, 1 - self.slot)?;
            return Ok(superblock);
        }
        let superblock = superblock.converted();
        for slot in [CONVERSION_SLOT, 1 - self.slot, self.slot] {
            write_superblock(pool, &superblock, slot)?;
        }
        let nothing = IoBuf::zeroed(SUPERBLOCK_BYTES, PageKind::Small)
            .map_err(|error| Error::from_io("take memory for a superblock", error))?;
        pool.writer().write_superblock(CONVERSION_OFFSET, nothing)?;
        Ok(superblock)
    }
}
