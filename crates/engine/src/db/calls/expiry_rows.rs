//! The rows of the index of expiry: of each entry that expires, the moment at which to look at it.
//!
//! A row is the id of the entry's table (8 bytes, big-endian), the moment (8 bytes, big-endian), and the key of the entry. Its
//! value is empty.

use crate::format::{Moment, TableId};

/// Bytes of a row of the index before the key of the entry.
pub(in crate::db) const ROW_HEADER_BYTES: usize = 16;
/// The part of the time for which an entry was put, as a divisor, by which it may be removed later than it expires. An entry
/// that is put again and again has so many rows, and as many more, at the most.
const LATENESS_SHARE: u64 = 8;
/// Returns the row of an entry put at the moment `now` and expires at `expiry`.
///
/// The moment at which to look is rounded up, to one of few: a session that is put again with each request then has a few
/// rows, and not one for each request.
pub(in crate::db) fn row_of(table: TableId, key: &[u8], expiry: Moment, now: Moment) -> Vec<u8> {
    let unit = match expiry.0.saturating_sub(now.0) / LATENESS_SHARE {
        0 => 1,
        late_max => 1 << late_max.ilog2(),
    };
    let look = expiry.0.checked_next_multiple_of(unit).unwrap_or(expiry.0);
    [&table.0.to_be_bytes()[..], &look.to_be_bytes(), key].concat()
}

/// Splits a row into its table, the moment at which to look at the entry, and the entry's key; `None` for other bytes.
pub(in crate::db) fn parts_of(row: &[u8]) -> Option<(TableId, Moment, &[u8])> {
    let (table, rest) = row.split_first_chunk::<8>()?;
    let (look, key) = rest.split_first_chunk::<8>()?;
    Some((TableId(u64::from_be_bytes(*table)), Moment(u64::from_be_bytes(*look)), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_put_again_and_again_has_few_rows_that_are_late_by_an_eighth() {
        let (hour, mut looks) = (3_600_000, std::collections::BTreeSet::new());
        for now in (0..hour).step_by(977) {
            let expiry = Moment(now + hour);
            let row = row_of(TableId(7), b"k", expiry, Moment(now));
            let (table, look, key) = parts_of(&row).unwrap();
            assert_eq!((table, key), (TableId(7), &b"k"[..]));
            assert!(look >= expiry && look.0 - expiry.0 <= hour / LATENESS_SHARE, "{look:?} of {expiry:?}");
            looks.insert(look);
        }
        assert!(looks.len() as u64 <= 2 * LATENESS_SHARE + 1, "{looks:?}");
    }

    #[test]
    fn the_row_of_any_entry_is_not_due_before_the_entry_expires() {
        for (expiry, now) in [(0, 0), (5, 9), (9, 5), (u64::MAX - 1, 0), (u64::MAX - 1, u64::MAX - 1), (100, 0)] {
            let row = row_of(TableId(u64::MAX), b"", Moment(expiry), Moment(now));
            let (_, look, _) = parts_of(&row).unwrap();
            assert!(look.0 >= expiry && look.0 - expiry <= expiry.saturating_sub(now) / LATENESS_SHARE, "{look:?}");
        }
    }
}
