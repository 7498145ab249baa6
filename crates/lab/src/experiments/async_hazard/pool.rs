//! The files' content as a database of the engine, read by tasks of the executor through the engine's own async calls:
//! a page in the pool is returned at once, an absent page is awaited by the task.

use std::rc::Rc;
use std::time::Instant;

use super::tasks::{Notes, on_executor};
use super::work::{Job, Order, StepResult};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::BLOCK_BYTES;
use crate::machine::pool as database;
use crate::measure::Worker;
use crate::read_loops::pool::Pool;
use crate::record::{CacheState, TrialSpec};

/// Opens the database of a trial. For a warm trial, first reads all blocks that the jobs will touch.
pub(super) fn open(spec: &TrialSpec, jobs: &[Job]) -> Result<Pool> {
    let pool = Pool::open(spec)?;
    if spec.cache == CacheState::Warm {
        for job in jobs {
            let Order::Touches(blocks) = &job.order else { continue };
            pool.warm(blocks.iter().map(|block| job.content.first_block + block))?;
        }
    }
    Ok(pool)
}

/// Runs all jobs as tasks over one database.
pub(super) fn run(worker: &mut Worker<'_>, jobs: Vec<Job>, pool: &Pool) -> Result<()> {
    on_executor(worker, move |notes| {
        pool.complete_on_executor()?;
        Ok(jobs.into_iter().map(move |job| touch(job, pool.table(), Rc::clone(&notes))))
    })
}

async fn touch(mut job: Job, table: nofault::Table, notes: Rc<Notes>) -> Result<()> {
    if let Order::Sequential { .. } = job.order {
        return Err(LabError::new(LabErrorKind::Usage, "async: the engine's database has no bytes to sum in a row"));
    }
    while let Some(range) = job.next_range() {
        let (started, block) = (Instant::now(), job.content.first_block + range.start);
        let value = table.get(database::key(block, 0)).await?.unwrap_or_default();
        let right = job.content.seed.is_none_or(|seed| database::is_right(&value, seed, block));
        notes.keep(StepResult {
            ops: 1,
            bytes: BLOCK_BYTES as u64,
            verified: 1,
            wrong: u64::from(!right),
            // The blocks of all files are numbered consecutively, so the sum differs from the other methods'. The
            // blocks are verified above; the sums are not compared.
            sum: 0,
            elapsed: started.elapsed(),
        });
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}
