//! Reads a log that may be damaged, for salvaging: its records up to the damage.

use nofault_io::disk::Disk;

use super::{Chain, RecordIter, Records};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, GroupHeader, payload_of, take_fragment};
use crate::wal::{Anchor, LogOptions};

/// Reads the chain of groups after `anchor` as far as it goes, and writes nothing. Returns the complete records in it, and
/// the damage at which it ends: after that, commits that were acknowledged may be missing.
///
/// # Errors
/// When the log cannot be read, or for a reason that says nothing about its content.
pub(crate) fn read_damaged_log(
    disk: &dyn Disk,
    options: &LogOptions,
    anchor: Anchor,
    after: CommitSeq,
) -> Result<(RecordIter, Option<Error>)> {
    let mut chain = Chain::open(disk, options, anchor)?;
    let begin = chain.place;
    let mut records = Records::new(after);
    let mut damage = None;
    while damage.is_none() {
        match chain.next() {
            Ok(Some((header, at))) => damage = take_group(&mut records, &header, &chain.file.window[at..]).err(),
            Ok(None) => break,
            Err(error) if error.is_of_the_moment() => return Err(error),
            Err(error) => damage = Some(error),
        }
    }
    if damage.is_none() && chain.place.at_anchor {
        let what = format!(
            "the log does not contain group {} at {}, after which the last checkpoint begins: it is damaged, or older than the data file",
            anchor.sequence, anchor.position
        );
        damage = Some(Error::new(ErrorKind::Corrupt, what));
    } else if damage.is_none() && chain.slots_claimed > chain.slots.len() as u64 {
        let what =
            format!("the log file has been cut short: {} of {} segments", chain.slots.len(), chain.slots_claimed);
        damage = Some(Error::new(ErrorKind::Corrupt, what));
    } else if damage.is_none() {
        damage = chain.refuse_damage().err();
    }
    chain.place = begin;
    let until = records.commit;
    Ok((RecordIter::new(chain, after, until), damage))
}

fn take_group(records: &mut Records, header: &GroupHeader, block: &[u8]) -> Result<()> {
    let mut rest = payload_of(header, block)?;
    while let Some((head, _)) = take_fragment(header, &mut rest)? {
        records.take(header, head)?;
    }
    Ok(())
}
