//! Makes changes of pages durable in two ways: stored in a writable map and synced with msync, as LMDB does under
//! MDB_WRITEMAP, or written with `pwrite` and synced with fdatasync, as LMDB does by default. The file has no name, so
//! a killed trial leaves none behind.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use nofault_io::mapped::{MappedFile, Protection, SyncMode};

use super::{MMAP_COMMIT, OWN, PWRITE_FDATASYNC, folder_of, number, run_timed};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::data::nameless;
use crate::measure::{Work, Worker};
use crate::methods;
use crate::read_loops::unknown;
use crate::record::{Outcome, TrialSpec};
use crate::workload::{PAGE_BYTES, first_word};

/// The methods: stores into a writable map with msync, and `pwrite` with fdatasync.
pub(super) const METHODS: [&str; 2] = [MMAP_COMMIT.id, PWRITE_FDATASYNC.id];

/// Number of pages of the file: 64 MiB.
const PAGES: u64 = 16 << 10;

/// Measures one method of `map-commit`: `op` is the time of a commit, `sync` the time of the call that makes it
/// durable.
pub(super) fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let count = number(spec, "commit_pages")?;
    if !(1..=PAGES).contains(&count) {
        let message = format!("{}: {count} pages a commit: must be 1 to {PAGES}", spec.key());
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let through_map = match methods::find(OWN, &spec.method) {
        Some(&MMAP_COMMIT) => true,
        Some(&PWRITE_FDATASYNC) => false,
        _ => return Err(unknown(spec)),
    };
    let file = nameless(&folder_of(spec))?;
    let failed = |what: &'static str| move |error: std::io::Error| LabError::system(what, &error);
    // The file is written and synced once, so that the timed writes change allocated blocks.
    for start in (0..PAGES).step_by(256) {
        file.write_all_at(&vec![0; 256 * PAGE_BYTES], start * PAGE_BYTES as u64).map_err(failed("fill a file"))?;
    }
    file.sync_all().map_err(failed("sync a file"))?;
    let file = &file;
    let seed = spec.seed;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        // SAFETY: the file has no name, so no other process can open it, and this work alone changes it: through this
        // map, or by calls while no slice of the map is alive.
        let mut map = unsafe { MappedFile::map(file, Protection::Shared, 0..PAGES * PAGE_BYTES as u64) }?;
        let mut expected = vec![0_u64; PAGES as usize];
        let mut chance = fastrand::Rng::with_seed(seed);
        let mut page = vec![7_u8; PAGE_BYTES];
        let mut next = 1_u64;
        worker.start();
        while worker.running() {
            let before = Instant::now();
            for _ in 0..count {
                let number = chance.usize(0..PAGES as usize);
                page[..8].copy_from_slice(&next.to_le_bytes());
                let at = number * PAGE_BYTES;
                if through_map {
                    map.guarded_mut(at..at + PAGE_BYTES, |bytes| bytes.copy_from_slice(&page))?;
                } else {
                    file.write_all_at(&page, at as u64).map_err(failed("write a page"))?;
                }
                expected[number] = next;
                next += 1;
            }
            let synced = Instant::now();
            if through_map {
                map.sync(0..map.len_bytes(), SyncMode::Wait)?;
            } else {
                file.sync_data().map_err(failed("fdatasync"))?;
            }
            worker.latency("sync", synced.elapsed());
            worker.latency("op", before.elapsed());
            worker.done(1, count * PAGE_BYTES as u64);
        }
        for (number, word) in expected.iter().enumerate() {
            file.read_exact_at(&mut page, (number * PAGE_BYTES) as u64).map_err(failed("read a page back"))?;
            worker.verified(first_word(&page) == *word);
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}
