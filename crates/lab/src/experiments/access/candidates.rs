//! The trials that can be measured on each kind of target, the requirements of each, and the selection for the quick
//! preset.

use std::collections::BTreeMap;

use nofault_io::probe::{Ability, Probe};

use super::batches::{SETUPS, Setup};
use super::blocking::Way;
use super::params::Params;
use super::{
    DSYNC_DIRECT, FDATASYNC, METHODS, MSYNC, OPEN_LOOP, OVERWRITE, PWRITE_DIRECT, READ, RING_SETUP, SYNC_COST,
    is_durable, way_of,
};
use crate::config::Config;
use crate::methods::{self, Method};
use crate::read_loops::sync::Means;

/// Batch sizes at which the ring set-ups are compared.
const SETUP_BATCHES: [u32; 3] = [1, 32, 128];

/// A trial that would be measured if the machine and the preset allow it.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) variant: &'static str,
    pub(super) method: &'static Method,
    pub(super) depth: u32,
    pub(super) extra: BTreeMap<String, String>,
    /// Length of the trial, as a share of `access.cell_s`.
    pub(super) share_of_trial: f64,
    /// Whether the quick preset measures the trial.
    pub(super) quick: bool,
}

impl Candidate {
    /// Names the trial for people: variant, method and batch size.
    pub(super) fn name(&self) -> String {
        match self.depth {
            1 => format!("{} {}", self.variant, self.method.id),
            depth => format!("{} {} x{depth}", self.variant, self.method.id),
        }
    }

    /// Returns why the trial cannot be measured here; `None` when it can.
    pub(super) fn refusal(&self, probe: &Probe) -> Option<String> {
        let (way, durable) = way_of(self.variant, self.method.id)?;
        let mut needs: Vec<&Ability> = Vec::new();
        if matches!(way, Way::Calls(Means::Direct) | Way::Ring) {
            needs.push(&probe.direct_io);
        }
        if durable {
            needs.push(&probe.durable_write);
        }
        if way == Way::Ring {
            needs.push(&probe.io_uring);
        }
        if self.variant == RING_SETUP
            && let Ok(setup) = Setup::of(self.extra.get("flags").map(String::as_str))
        {
            let flags = [
                (setup.registered, &probe.registered_buffers),
                (setup.defer, &probe.defer_taskrun),
                (setup.sqpoll, &probe.sqpoll),
            ];
            needs.extend(flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, ability)| ability));
        }
        needs.into_iter().find_map(Ability::reason).map(str::to_owned)
    }
}

/// Returns all trials to measure on the data file.
pub(super) fn on_file(config: &Config) -> Vec<Candidate> {
    let quick = |variant: &str, method: &Method, deepest: bool| match variant {
        READ => *method != methods::MMAP_NORMAL,
        OVERWRITE => deepest && [methods::MMAP, PWRITE_DIRECT, methods::URING_DIRECT].contains(method),
        SYNC_COST => [MSYNC, FDATASYNC, DSYNC_DIRECT].contains(method),
        OPEN_LOOP => [methods::MMAP, methods::URING_DIRECT].contains(method),
        _ => false,
    };
    let mut all = all(config, quick);
    if config.params::<Params>().ring_setups {
        for flags in SETUPS {
            for batch in SETUP_BATCHES {
                let extra = [("flags".to_owned(), flags.to_owned())].into();
                let (variant, method) = (RING_SETUP, &methods::URING_DIRECT);
                all.push(Candidate { variant, method, depth: batch, extra, share_of_trial: 0.5, quick: true });
            }
        }
    }
    all
}

/// Returns the trials to measure on the RAM device: all except ring set-ups. A ring passes requests for this device to
/// worker threads, which hides the effect of its set-up.
pub(super) fn on_ram(config: &Config) -> Vec<Candidate> {
    all(config, |variant, method, _| variant == READ && [methods::MMAP, methods::PREAD_DIRECT].contains(method))
}

/// Returns the trials to measure on a raw device: only reads.
pub(super) fn on_device(config: &Config) -> Vec<Candidate> {
    let quick = |_: &str, method: &Method, deepest: bool| {
        deepest && [methods::MMAP, methods::PREAD_DIRECT, methods::URING_DIRECT].contains(method)
    };
    all(config, quick).into_iter().filter(|candidate| candidate.variant == READ).collect()
}

/// Returns every method of every variant with its parameters. `quick` decides on the quick preset from variant, method,
/// and whether the batch is the deepest.
fn all(config: &Config, quick: impl Fn(&str, &Method, bool) -> bool) -> Vec<Candidate> {
    let access: Params = config.params();
    let mut batches = access.batches.clone();
    batches.sort_unstable();
    batches.dedup();
    let deepest = batches.last().copied().unwrap_or(1);
    let mut candidates = Vec::new();
    for (variant, method, way) in METHODS.into_iter().filter(|(variant, ..)| *variant != RING_SETUP) {
        let depths = match (way, variant) {
            (Way::Ring, OPEN_LOOP) => vec![deepest],
            (Way::Ring, _) if is_durable(method) => few(&batches),
            (Way::Ring, _) => batches.clone(),
            _ => vec![1],
        };
        for depth in depths {
            let is_deepest = way != Way::Ring || depth == deepest;
            let candidate = |extra: BTreeMap<String, String>, first: bool| Candidate {
                variant,
                method,
                depth,
                extra,
                share_of_trial: if variant == SYNC_COST { 0.5 } else { 1.0 },
                quick: first && quick(variant, method, is_deepest),
            };
            match variant {
                OVERWRITE => {
                    let every = access.writes_per_sync.to_string();
                    candidates.push(candidate([("writes_per_sync".to_owned(), every)].into(), true));
                }
                OPEN_LOOP => {
                    for (number, share) in access.open_loop_shares.iter().enumerate() {
                        candidates.push(candidate([("rate_share".to_owned(), share.to_string())].into(), number == 0));
                    }
                }
                _ => candidates.push(candidate(BTreeMap::new(), true)),
            }
        }
    }
    candidates
}

/// Returns the shallowest, a middle and the deepest of sorted batch sizes, because durable writes do not need the whole
/// sweep.
fn few(batches: &[u32]) -> Vec<u32> {
    let mut few: Vec<u32> =
        [batches.first(), batches.get(batches.len() / 2), batches.last()].into_iter().flatten().copied().collect();
    few.dedup();
    few
}

/// Returns why polled completions (IOPOLL) are not measured, for the record.
pub(super) fn no_iopoll(probe: &Probe) -> String {
    let why = match &probe.device {
        Ok(facts) if facts.io_poll == Some(true) => {
            "this device has polled queues, but the lab's rings do not use them yet"
        }
        Ok(_) => {
            "EOPNOTSUPP: the device has no polled queues (its queue/io_poll is 0); NVMe drives get them by nvme.poll_queues"
        }
        Err(_) => "EOPNOTSUPP: there is no block device beneath",
    };
    format!("{RING_SETUP}, flags=iopoll: {why}")
}
