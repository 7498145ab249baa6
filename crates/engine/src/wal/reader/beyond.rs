//! Looks behind the end of a log for a later group that says that the group missing there was durable.
//!
//! A log fills segment after segment, each from its beginning. So groups written later than the missing one
//! lie behind it in its segment, or in a slot in which the first group names a later segment; a slot with an older
//! segment needs no look, unless the missing group should have begun a segment, or come right after the group that does,
//! which a device may have written to the wrong slot. Each place is read for as long as there
//! are groups of this life of the log, and [`SILENCE_BYTES`] further: that is more than all groups in flight, and only
//! groups in flight can be missing between whole groups unless there is damage.

use std::hash::{DefaultHasher, Hasher};

use super::Chain;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{GroupHeader, LOG_BLOCK_BYTES, has_header_checksum, is_header_intact};

/// Number of bytes without the beginning of any group of this log, after which the search ends.
const SILENCE_BYTES: u64 = 1 << 20;
/// Most slots that are searched although their first block is not a group: more than slots of the usual size have been
/// prepared and never used.
pub(super) const UNKNOWN_SLOTS_MAX: usize = 512;

impl Chain {
    /// Searches for a later group which states that the group missing at the end of the chain was durable. Returns a
    /// hash of all bytes read.
    ///
    /// # Errors
    /// `Corrupt` when there is such a group; otherwise the error of the disk.
    pub(super) fn refuse_damage(&mut self) -> Result<u64> {
        let (place, segment_bytes) = (self.place, self.file.segment_bytes);
        let at = place.position % segment_bytes;
        let mut seen = DefaultHasher::new();
        seen.write_u64(place.last.checksum);
        self.directory.checksums.iter().for_each(|checksum| seen.write_u64(*checksum));
        let own = place.slot.filter(|_| at != 0);
        let mut places: Vec<(usize, u64)> = own.map(|slot| (slot, at)).into_iter().collect();
        let later = self.directory.held.range(place.position / segment_bytes..).flat_map(|(_, slots)| slots);
        let unknown = self.directory.unknown.iter().take(UNKNOWN_SLOTS_MAX);
        places.extend(later.chain(unknown).filter(|slot| Some(**slot) != own).map(|slot| (*slot, 0)));
        if at == 0 || place.last.position.is_multiple_of(segment_bytes) {
            // The beginning of a segment is missing, or all after its first group. In its slot there may be an older segment, or
            // the first group of one, if a device has exchanged the first groups of two slots.
            let earlier = self.directory.held.range(..place.position / segment_bytes).flat_map(|(_, slots)| slots);
            places.extend(earlier.filter(|slot| self.slots[**slot].is_none()).map(|slot| (*slot, 0)));
        }
        for (slot, from) in places {
            if let Some(later) = self.later_group(slot, from, &mut seen)? {
                let what = format!(
                    "log group {} at {} is damaged: group {} at {} was written after it had been made durable. Commits from there on cannot be replayed; restore from a backup",
                    place.last.sequence + 1,
                    place.position,
                    later.sequence,
                    later.position
                );
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
        }
        Ok(seen.finish())
    }

    /// Returns the first group of a slot, from byte `from` on, that lies behind the missing group and states that the
    /// missing group was durable. Adds the checksums in all headers found to `seen`.
    fn later_group(&mut self, slot: usize, from: u64, seen: &mut DefaultHasher) -> Result<Option<GroupHeader>> {
        let (position, missing) = (self.place.position, self.place.last.sequence + 1);
        let (mut at, mut silence) = (from, 0);
        while at < self.file.segment_bytes && silence < SILENCE_BYTES {
            let block_at = at;
            at += LOG_BLOCK_BYTES as u64;
            silence += LOG_BLOCK_BYTES as u64;
            let Some((header, start)) = self.file.claim(slot, block_at)? else { continue };
            seen.write_u64(header.checksum);
            if header.position % self.file.segment_bytes != block_at || header.position < position {
                continue;
            }
            silence = 0;
            if header.sequence > missing
                && header.durable_sequence >= missing
                && self.is_intact(slot, &header, start)?
            {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Returns whether the header of the group at this place is intact, by the header's checksum. Earlier versions had
    /// none: there the whole group's checksum is verified instead, and its length is bounded.
    fn is_intact(&mut self, slot: usize, header: &GroupHeader, start: usize) -> Result<bool> {
        let (file_id, segment_bytes) = (self.file.file_id, self.file.segment_bytes);
        if has_header_checksum(&self.file.window[start..]) {
            return Ok(is_header_intact(file_id, segment_bytes, header, &self.file.window[start..]));
        }
        let Some(start) = self.file.bring(slot, header)? else { return Ok(false) };
        Ok(is_header_intact(file_id, segment_bytes, header, &self.file.window[start..]))
    }
}
