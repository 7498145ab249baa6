//! Reads every block that the database refers to and checks it, while commits continue.
//!
//! Dirty pages are not on disk yet: the check covers the blocks that a recovery would read, and the blocks that
//! eviction has written since. A block is held while it is read, so it cannot be reused in that time. A block that fails
//! its check is read again before it is reported.

use std::collections::BTreeSet;

use nofault_io::disk::Disk;

use crate::blocks::reread::RepeatedReads;
use crate::blocks::{BLOCKS_AT_A_TIME, BlockReader, read_once};
use crate::buffer_pool::BufferPool;
use crate::error::{Error, ErrorKind, Result};
use crate::format::compressed::restore_page;
use crate::format::node::{KIND_NODE, Node};
use crate::format::{HEADER_BYTES, Location, NodeId, PageId, TableId, decode_node};
use crate::pages::Store as _;

/// Damaged blocks before which the last reread waits a moment. With more of them the device is unlikely to recover, and
/// the pauses would add up.
const PAUSES_MAX: usize = 64;

/// The report of a verification of blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockReport {
    /// Number of pages whose block was read.
    pub(crate) pages_checked: u64,
    /// Number of nodes of the page table whose block was read.
    pub(crate) nodes_checked: u64,
    /// Tables with a sound root on disk.
    pub(crate) rooted: BTreeSet<TableId>,
    /// All damage, one error for each block, with page and position.
    pub(crate) problems: Vec<Error>,
}

/// Reads all blocks. Blocks the thread; `progress` gets the number of pages done and of all pages.
///
/// # Errors
/// When reading is impossible altogether; `SnapshotTooOld` in a database that is only read, when its writer has given this
/// reader up; `Closed`; `NoResources` and other errors that are not about the data. Damage in single blocks is in the report.
pub(crate) fn verify_blocks(
    pool: &BufferPool,
    disk: &dyn Disk,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BlockReport> {
    let mut reader = BlockReader::open(disk)?;
    let mut report = BlockReport::default();
    let mut next_node = Some(NodeId { level: 0, index: 0 });
    while let Some(from) = next_node {
        let window: Vec<NodeId> = {
            let metadata = pool.metadata().lock();
            metadata.map.nodes_from(from).map(|(node, _)| node).take(BLOCKS_AT_A_TIME).collect()
        };
        next_node = window.last().map(|last| NodeId { level: last.level, index: last.index + 1 });
        let place = |node: &NodeId| pool.metadata().lock().map.node(*node);
        let check = |node: &NodeId, at, block: &[u8]| decode_node(pool.file_id(), *node, at, block).map(drop);
        report.nodes_checked += check_window(pool, (&mut reader, disk), &window, place, check, &mut report.problems)?;
    }
    let page_count = pool.metadata().lock().map.page_count();
    let mut restored = vec![0; pool.page_bytes()];
    // One leaf of the page table at a time is kept in memory; only leaves that exist, which may be few and far apart.
    let mut next_leaf = pool.leaves().next(0);
    while let Some(leaf) = next_leaf {
        next_leaf = pool.leaves().next(leaf + 1);
        // A leaf that is damaged has been reported with the nodes.
        let pinned = match pool.leaves().pin(leaf) {
            Err(error) if error.kind() == ErrorKind::Corrupt => continue,
            pinned => pinned?,
        };
        let pages: Vec<PageId> = pool.metadata().lock().map.pages_of_leaf(leaf).collect();
        for window in pages.chunks(BLOCKS_AT_A_TIME) {
            let place = |page: &PageId| pool.metadata().lock().map.get(*page);
            let rooted = &mut report.rooted;
            let check = |page: &PageId, at, block: &[u8]| {
                restore_page(pool.file_codec(), *page, at, block, &mut restored)?;
                rooted.extend(root_of(*page, &restored[HEADER_BYTES..]));
                Ok(())
            };
            report.pages_checked +=
                check_window(pool, (&mut reader, disk), window, place, check, &mut report.problems)?;
            progress(window.last().map_or(0, |last| last.0 + 1), page_count);
        }
        drop(pinned);
    }
    Ok(report)
}

/// Returns the table whose root a page is; `None` if it is no root. A root has no key at either fence.
fn root_of(page: PageId, body: &[u8]) -> Option<TableId> {
    if body[0] != KIND_NODE {
        return None;
    }
    let node = Node::open(page, body).ok()?;
    (node.lower().is_empty() && node.upper().is_none()).then(|| TableId(node.table()))
}

/// Checks the blocks of `window`. A block that is not right is read again, past the queue, before that counts: one bad read is no damage.
fn check_window<T>(
    pool: &BufferPool,
    (reader, disk): (&mut BlockReader, &dyn Disk),
    window: &[T],
    place: impl Fn(&T) -> Option<Location>,
    mut check: impl FnMut(&T, Location, &[u8]) -> Result<()>,
    problems: &mut Vec<Error>,
) -> Result<u64> {
    let page_bytes = pool.page_bytes();
    let mut held = Vec::new();
    for item in window {
        if let Some(at) = place(item) {
            pool.metadata().lock().allocator.deferred.hold(at.block);
            // Looked up again: a checkpoint may have moved it between the look and the hold.
            if place(item) == Some(at) {
                held.push((item, at));
            } else {
                pool.metadata().lock().allocator.unhold(at.block);
            }
        }
    }
    // Compressed pages share blocks, which are read once.
    let mut offsets: Vec<u64> = held.iter().map(|(_, at)| at.block.0 * page_bytes as u64).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let outcome = reader.try_read(page_bytes, &offsets);
    let checked = outcome.and_then(|mut blocks| {
        for (item, at) in &held {
            let offset = at.block.0 * page_bytes as u64;
            let Some(block) = offsets.binary_search(&offset).ok().and_then(|index| blocks.get_mut(index)) else {
                continue;
            };
            let reread =
                if problems.len() < PAUSES_MAX { RepeatedReads::on(disk) } else { RepeatedReads::without_pause() };
            let checked = reread.until_whole(|attempt| {
                if attempt > 0 {
                    *block = read_once(disk, page_bytes, offset);
                }
                match block {
                    Ok(block) => check(item, *at, block),
                    Err(error) => Err(error.clone()),
                }
            });
            match checked {
                // No damage: the writer of this database has used blocks again that this process only reads, the database was closed,
                // or the process lacks resources.
                Err(error) if error.is_of_the_moment() => {
                    return Err(error);
                }
                checked => problems.extend(checked.err()),
            }
        }
        reader.recycle(blocks.into_iter().flatten());
        Ok(held.len() as u64)
    });
    for (_, at) in &held {
        pool.metadata().lock().allocator.unhold(at.block);
    }
    checked
}
