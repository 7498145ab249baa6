//! Reads long values, and lists the pages of those that have an index.
//!
//! The pages of several values are read together, a window of them at a time. A value is read either in a snapshot, for
//! a caller, or as of the newest commit, for a commit that replaces or frees it.

use super::loader::{Loader, READ_ALONE_MAX};
use super::pins::PinBudget;
use crate::btree::FoundValue;
use crate::btree::overflow::{LongRef, Reader};
use crate::error::Result;
use crate::format::cell::OverflowRef;
use crate::format::{CommitSeq, PageId};
use crate::pages::{Pages, Snapshot as _, Store, Versions as _, Wait};
use crate::transaction::OverflowPages;

/// Returns how many bytes of long values are read together at most.
pub(in crate::db) fn bytes_at_once<S: Store>(loader: &Loader<S>) -> u64 {
    (loader.window() * loader.store().page_bytes()) as u64
}

/// Returns the bytes of a value found in a leaf, as of a snapshot.
///
/// # Errors
/// The errors of reading its pages.
pub(in crate::db) async fn value<S: Store>(
    loader: &Loader<S>,
    snapshot: &S::Snapshot,
    found: FoundValue,
) -> Result<Vec<u8>> {
    match found {
        FoundValue::Inline(value) => Ok(value),
        FoundValue::Long(value) => Ok(values(loader, snapshot, vec![value]).await?.remove(0)),
    }
}

/// Returns long values as of a snapshot, in the order of `values`.
///
/// # Errors
/// The errors of reading their pages.
pub(in crate::db) async fn values<S: Store>(
    loader: &Loader<S>,
    snapshot: &S::Snapshot,
    values: Vec<LongRef>,
) -> Result<Vec<Vec<u8>>> {
    let page_bytes = loader.store().page_bytes();
    let readers: Result<Vec<Reader>> = values.into_iter().map(|value| Reader::new(page_bytes, value)).collect();
    let mut readers = readers?;
    let mut reading: Vec<&mut Reader> = readers.iter_mut().collect();
    let mut budget = PinBudget::default();
    read(loader, &mut reading, snapshot.seq(), &mut budget, READ_ALONE_MAX, || loader.store().view(snapshot)).await?;
    Ok(readers.into_iter().map(Reader::into_value).collect())
}

/// Reads long values as of a snapshot, after their pages were requested. Returns whether the read had to wait.
///
/// # Errors
/// The errors of reading their pages.
pub(in crate::db) async fn read_requested<S: Store>(
    loader: &Loader<S>,
    snapshot: &S::Snapshot,
    readers: &mut [&mut Reader],
) -> Result<bool> {
    let mut budget = PinBudget::default();
    read(loader, readers, snapshot.seq(), &mut budget, 0, || loader.store().view(snapshot)).await
}

/// Returns the pages of a long value as of a snapshot.
///
/// # Errors
/// The errors of reading them.
pub(in crate::db) async fn pages_in<S: Store>(
    loader: &Loader<S>,
    snapshot: &S::Snapshot,
    value: OverflowRef,
) -> Result<Vec<PageId>> {
    let mut reader = Reader::listing(loader.store().page_bytes(), value)?;
    read_requested(loader, snapshot, &mut [&mut reader]).await?;
    Ok(reader.into_pages())
}

/// The pages of a long value that commit `newest` or one before it wrote, as the newest pages have it.
///
/// # Errors
/// The errors of reading them.
pub(in crate::db) async fn newest_pages<S: Store>(
    loader: &Loader<S>,
    newest: CommitSeq,
    value: OverflowRef,
    budget: &mut PinBudget<S::Ticket>,
) -> Result<Vec<PageId>> {
    let mut reader = Reader::listing(loader.store().page_bytes(), value)?;
    read(loader, &mut [&mut reader], newest, budget, 0, || loader.store().latest_published()).await?;
    Ok(reader.into_pages())
}

/// A long value that a commit will replace, with its pages. `newest` is called for the newest commit once the first page
/// is there.
///
/// # Errors
/// The errors of reading its pages.
pub(in crate::db) async fn list<S: Store>(
    loader: &Loader<S>,
    newest: impl FnOnce() -> CommitSeq,
    value: OverflowRef,
    budget: &mut PinBudget<S::Ticket>,
) -> Result<OverflowPages> {
    let look = || loader.store().latest_published().written_in(value.root);
    let written_in = loader.attempt_within(budget, look).await?;
    let pages = newest_pages(loader, newest(), value, budget).await?;
    Ok(OverflowPages { value, written_in, pages })
}

/// Reads long values to their ends; up to `alone_max` times by the calling thread itself. Returns whether it had to wait.
async fn read<S: Store, P: Pages>(
    loader: &Loader<S>,
    readers: &mut [&mut Reader],
    at: CommitSeq,
    budget: &mut PinBudget<S::Ticket>,
    mut alone_max: usize,
    view: impl Fn() -> P,
) -> Result<bool> {
    let window = loader.window();
    // All readers before index `done` have reached the ends of their values.
    let (mut done, mut has_waited) = (0, false);
    loop {
        let mut waits: Vec<Wait> = Vec::new();
        {
            let view = view();
            let mut all_before = true;
            for reader in &mut readers[done..] {
                if waits.len() == window {
                    break;
                }
                all_before &= reader.advance(&view, at, window - waits.len(), &mut waits)?;
                done += usize::from(all_before);
            }
        }
        if done == readers.len() {
            return Ok(has_waited);
        }
        has_waited = true;
        if alone_max > 0 {
            let is_read = match waits[..] {
                // Perhaps the index of a value, with which its data can be read.
                [Wait::Miss(index)] => loader.read_with(index, readers[done].guess_data()).await?,
                _ => loader.read_here(&waits).await?,
            };
            if is_read {
                alone_max -= 1;
                continue;
            }
        }
        loader.load(budget, &waits).await?;
    }
}
