//! The record that a writer leaves for readers in other processes: 64 bytes in a separate file. It is not durable and
//! need not be: no reader outlives the machine.

use nofault_io::disk::READER_RECORD_BYTES;

use super::checksum::placed_checksum;
use super::fields::{Reader, Writer};

const MAGIC: &[u8; 8] = b"nfreader";
/// The place that enters the checksum.
const PLACE: u64 = 3;
/// Bytes that the checksum covers, behind it.
const SUMMED: std::ops::Range<usize> = 8..READER_RECORD_BYTES;

/// The statements of a writer for readers in other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderRecord {
    /// The random number of the database file.
    pub(crate) file_id: u64,
    /// Blocks that only checkpoints before this one name may have been used again.
    pub(crate) kept_from: u64,
    /// Changes of the log that readers could not be kept out of: twice their number, and odd during one.
    pub(crate) log_changes: u64,
    /// The inode of the record's file: a copy of the record tells nothing, as no writer replaces it.
    pub(crate) inode: u64,
}

impl ReaderRecord {
    /// Returns the bytes of the record.
    pub(crate) fn encode(&self) -> [u8; READER_RECORD_BYTES] {
        let mut bytes = [0; READER_RECORD_BYTES];
        let mut out = Writer { bytes: &mut bytes, at: 8 };
        out.put(MAGIC);
        let fields = [self.file_id, self.kept_from, self.log_changes, self.inode];
        fields.into_iter().for_each(|field| out.u64(field));
        let checksum = placed_checksum(self.file_id, PLACE, &bytes[SUMMED]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a record. `None` for other bytes: also for a record that is being replaced.
    pub(crate) fn decode(bytes: &[u8; READER_RECORD_BYTES]) -> Option<Self> {
        let mut fields = Reader { bytes, at: 0 };
        let checksum = fields.u64();
        if fields.take(MAGIC.len()) != MAGIC {
            return None;
        }
        let [file_id, kept_from, log_changes, inode] = std::array::from_fn(|_| fields.u64());
        let record = Self { file_id, kept_from, log_changes, inode };
        (placed_checksum(record.file_id, PLACE, &bytes[SUMMED]) == checksum).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_one_with_a_changed_bit_is_none() {
        let record = ReaderRecord { file_id: 7, kept_from: 41, log_changes: 6, inode: 12 };
        let bytes = record.encode();
        assert_eq!(ReaderRecord::decode(&bytes), Some(record));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ReaderRecord::decode(&changed), None, "bit {bit}");
        }
    }
}
