//! Shares out `cache_bytes`, and computes the memory that a database takes when the setting is too small.
//!
//! A database is created only with a cache in which an empty one fits. Opening takes the page table and the smallest
//! pool that works, even if that is more. A database may have outgrown the setting that it was filled with, and its
//! data must stay readable all the same.

use nofault_io::aligned::require_address_space;

use crate::buffer_pool::{BufferPool, LoadedTable};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Location, NodeId, PageId, Tag};
use crate::settings::Settings;
use crate::wal::GROUPS_IN_FLIGHT_BYTES;

/// Smallest cache whose frames may be registered with the kernel.
const REGISTERED_BYTES_MIN: usize = 16 << 20;

/// Returns whether the frames of a cache may be registered with the kernel. That takes a ring and memory for all of the cache at once,
/// which a process with many small databases must not pay for each of them.
pub(super) fn may_register(cache_bytes: usize) -> bool {
    cache_bytes >= REGISTERED_BYTES_MIN
}

/// Returns the bytes of memory for the list of recent commits, against which transactions are validated.
pub(crate) fn recent_commits_bytes(cache_bytes: usize) -> usize {
    cache_bytes / 32
}

/// Returns the bytes of memory that one transaction may take for its read set, in addition to the cache.
pub(crate) fn read_set_bytes(cache_bytes: usize) -> usize {
    cache_bytes / 8
}

/// Memory for records replayed together: the share that later belongs to records that wait for the log and to
/// the list of recent commits.
pub(crate) fn replay_bytes(cache_bytes: usize) -> usize {
    log_buffer_bytes(cache_bytes) + recent_commits_bytes(cache_bytes)
}

/// Returns the bytes of memory for records waiting to be written to the log.
pub(super) fn log_buffer_bytes(cache_bytes: usize) -> usize {
    (cache_bytes / 16).clamp(64 << 10, 4 << 20)
}

/// Returns the bytes of the cache that are not used for frames.
pub(crate) fn spent_bytes(cache_bytes: usize) -> u64 {
    (log_buffer_bytes(cache_bytes) + recent_commits_bytes(cache_bytes) + GROUPS_IN_FLIGHT_BYTES) as u64
}

/// Returns the smallest cache in which a new database with pages of this size works.
fn least_bytes(page_bytes: usize) -> usize {
    let mut first = LoadedTable::new(page_bytes, 0);
    let somewhere = Location::of_whole(crate::format::BlockId(0), Tag::of(0));
    first.map.set(PageId::CATALOG_ROOT, Some(somewhere));
    first.map.set_node(NodeId { level: 0, index: 0 }, somewhere);
    let needed = |cache_bytes: usize| (BufferPool::bytes_min(page_bytes, &first) + spent_bytes(cache_bytes)) as usize;
    let mut least = 0;
    // More cache makes larger buffers: a tenth of it, so this ends.
    while needed(least) > least {
        least = needed(least);
    }
    least
}

/// Refuses to create a database with a cache in which not even an empty database fits. The message says how many bytes
/// would be enough.
///
/// # Errors
/// `InvalidCall`.
pub(super) fn refuse_small_cache(settings: &Settings) -> Result<()> {
    let (page_bytes, least) = (settings.page_bytes, least_bytes(settings.page_bytes));
    if settings.cache_bytes >= least {
        return Ok(());
    }
    let what = format!(
        "cache_bytes is {}: this database, with pages of {page_bytes} bytes, needs at least {least}",
        settings.cache_bytes
    );
    Err(Error::new(ErrorKind::InvalidCall, what))
}

/// Address space in addition to the cache in bytes: the stacks of the threads, the rings and the small allocations.
const BESIDE_CACHE_BYTES: u64 = 32 << 20;

/// Refuses to create or open a database needing more address space than a limit of this process leaves: before anything is made,
/// and before an allocation that cannot fail but by ending the process.
///
/// # Errors
/// `NoResources`.
pub(super) fn refuse_little_address_space(settings: &Settings) -> Result<()> {
    let bytes = (settings.cache_bytes as u64).saturating_add(BESIDE_CACHE_BYTES);
    require_address_space(bytes).map_err(|error| Error::from_io("take memory for a database", error))
}

/// Returns the cache size from which the sizes of buffers are derived when a database is opened: the setting, or the
/// smallest cache in which an empty database works, if that is larger.
pub(super) fn shared_out_bytes(settings: &Settings, page_bytes: usize) -> usize {
    settings.cache_bytes.max(least_bytes(page_bytes))
}

/// Returns the most leaves of a page table that are kept in memory while it is loaded.
pub(super) fn leaves_loaded_max(shared_out_bytes: usize, page_bytes: usize) -> u64 {
    let left_bytes = (shared_out_bytes as u64).saturating_sub(spent_bytes(shared_out_bytes));
    BufferPool::leaves_loaded_max(page_bytes, left_bytes)
}

/// Returns the cache size that a pool with this page table gets: `shared_out_bytes`, or more where the table leaves too
/// little of them for the smallest pool.
pub(super) fn pool_cache_bytes(shared_out_bytes: usize, page_bytes: usize, table: &LoadedTable) -> u64 {
    (shared_out_bytes as u64).max(BufferPool::bytes_min(page_bytes, table) + spent_bytes(shared_out_bytes))
}
