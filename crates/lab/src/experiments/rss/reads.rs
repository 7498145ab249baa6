//! Reads as every experiment reads, and samples the memory of the process and of its cgroup.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::experiment::Context;
use crate::machine::footprint::{CgroupMemory, Footprint};
use crate::read_loops::Pattern;
use crate::read_loops::fill::Memory;
use crate::read_trials;
use crate::record::{Outcome, TrialSpec};
use crate::workload;

/// Names of the figures: the largest readings.
pub(super) const RSS: &str = "rss_bytes";
pub(super) const PSS: &str = "pss_bytes";
pub(super) const ANONYMOUS: &str = "anonymous_bytes";
pub(super) const CHARGED: &str = "charged_bytes";
pub(super) const WORKING_SET: &str = "working_set_bytes";

/// Time between two samples. A sample walks the page table of the process.
const SAMPLED_EVERY: Duration = Duration::from_millis(100);

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading; `Unsupported` where the kernel does not count the memory of
/// a process.
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let cgroup = context.watch.cgroup_path().map(std::path::Path::to_path_buf);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| -> Result<(Footprint, CgroupMemory)> {
            let (mut own, mut all) = (Footprint::default(), CgroupMemory::default());
            loop {
                own = own.max(Footprint::of_this_process()?);
                all = all.max(cgroup.as_deref().and_then(CgroupMemory::of).unwrap_or_default());
                if done.load(Ordering::Relaxed) {
                    return Ok((own, all));
                }
                std::thread::sleep(SAMPLED_EVERY);
            }
        });
        let outcome = read(spec, context);
        done.store(true, Ordering::Relaxed);
        let sampled = sampler.join();
        let mut outcome = outcome?;
        let (own, all) = sampled.unwrap_or_else(|_| Ok(Default::default()))?;
        let figures = [(RSS, own.rss_bytes), (PSS, own.pss_bytes), (ANONYMOUS, own.anonymous_bytes)];
        let charged = [(CHARGED, all.charged_bytes), (WORKING_SET, all.working_set_bytes)];
        let charged = charged.into_iter().filter(|_| cgroup.is_some());
        outcome.figures.extend(figures.into_iter().chain(charged).map(|(name, bytes)| (name.to_owned(), bytes as f64)));
        Ok(outcome)
    })
}

/// Reads random pages, once memory has settled by the method's own reads.
///
/// # Errors
/// As [`run`].
pub(super) fn read(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, spec.params.block_bytes)?;
    read_trials::execute(spec, &layout, (Pattern::Random, Memory::Settled), context)
}
