//! The log record of a commit to a mapped file: the bytes of pages that it changed.
//!
//! | bytes | content |
//! |---|---|
//! | 24 | the state after the commit (`meta`) |
//! | 6 + 2 | a page, and the number of runs that follow |
//! | 2 + 2 + n | a run: offset, length, bytes; then the next run or page |
//!
//! **Why byte runs make torn pages whole.** The file was durable as of the checkpoint before the first record. Each
//! byte of a page in it is then from the checkpoint or from some later commit, wherever a power cut tore the page; all
//! bytes that any commit changed since are in the log. After a replay of all records in order each byte comes from the
//! last commit that changed it.

use super::meta::State;
use crate::error::{Error, ErrorKind, Result};
use crate::format::PageId;
use crate::format::cell::{CHILD_BYTES, decode_child, encode_child};

/// Longest stretch of equal bytes that is still logged as part of a run of changed bytes.
const GAP_BYTES: usize = 16;
const RUN_BYTES_MAX: usize = 32768;
const WORD: usize = 8;

/// Begins the record of a commit that leaves the store in `state`.
pub(super) fn begin(state: State) -> Vec<u8> {
    state.to_bytes().to_vec()
}

/// Appends the byte ranges of `new` that differ from `old`; nothing when the pages are equal.
pub(super) fn push_page(record: &mut Vec<u8>, id: PageId, old: &[u8], new: &[u8]) {
    let runs = runs(old, new);
    if runs.is_empty() {
        return;
    }
    record.extend_from_slice(&encode_child(id));
    record.extend_from_slice(&(runs.len() as u16).to_le_bytes());
    for (start, end) in runs {
        record.extend_from_slice(&(start as u16).to_le_bytes());
        record.extend_from_slice(&((end - start) as u16).to_le_bytes());
        record.extend_from_slice(&new[start..end]);
    }
}

fn runs(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (index, (before, after)) in old.chunks(WORD).zip(new.chunks(WORD)).enumerate() {
        if before == after {
            continue;
        }
        let (start, end) = (index * WORD, index * WORD + after.len());
        match runs.last_mut() {
            Some(last) if start - last.1 <= GAP_BYTES && end - last.0 <= RUN_BYTES_MAX => last.1 = end,
            _ => runs.push((start, end)),
        }
    }
    runs
}

/// Calls `write` for each run of a record, in order. Returns the state after the commit.
///
/// # Errors
/// `Corrupt` when the bytes are no record; the errors of `write`.
pub(super) fn replay(record: &[u8], mut write: impl FnMut(PageId, usize, &[u8]) -> Result<()>) -> Result<State> {
    let damaged =
        || Error::new(ErrorKind::Corrupt, "a record of the log is damaged: it is shorter than its lengths require");
    let mut rest = record.get(State::BYTES..).ok_or_else(damaged)?;
    let mut take = |len: usize| {
        let (taken, after) = rest.split_at_checked(len)?;
        rest = after;
        Some(taken)
    };
    let number = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    while let Some(head) = take(CHILD_BYTES) {
        let id = decode_child(head).ok_or_else(damaged)?;
        for _ in 0..take(2).map(number).ok_or_else(damaged)? {
            let (start, len) = (take(2).map(number).ok_or_else(damaged)?, take(2).map(number).ok_or_else(damaged)?);
            write(id, start, take(len).ok_or_else(damaged)?)?;
        }
    }
    if !rest.is_empty() {
        return Err(damaged());
    }
    State::from_bytes(record).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn replaying_runs_over_any_mixture_of_old_and_new_gives_the_new_page(
            old in prop::collection::vec(any::<u8>(), 1024),
            changes in prop::collection::vec((0usize..1024, any::<u8>()), 0..40),
            mixture in any::<u64>(),
        ) {
            let mut new = old.clone();
            changes.iter().for_each(|(at, byte)| new[*at] = *byte);
            let state = State { table: PageId(2), free: PageId(3), page_count: 9 };
            let mut record = begin(state);
            push_page(&mut record, PageId(7), &old, &new);
            let mut random = fastrand::Rng::with_seed(mixture);
            let mut torn: Vec<u8> = old.iter().zip(&new).map(|(a, b)| if random.bool() { *a } else { *b }).collect();
            let found = replay(&record, |id, start, bytes| {
                assert_eq!(id, PageId(7));
                torn[start..start + bytes.len()].copy_from_slice(bytes);
                Ok(())
            });
            prop_assert_eq!(found.unwrap(), state);
            prop_assert_eq!(torn, new);
        }

        #[test]
        fn arbitrary_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = replay(&bytes, |_, _, _| Ok(()));
        }
    }
}
