//! The signs of other load during a trial, by the kernel's counters: the same for every experiment. A trial gets a warning
//! for each; what they mean for the confidence in a result is decided by the rules, from the warnings.

use std::collections::BTreeMap;

use crate::record::{Outcome, WarningKind};

/// Largest fraction of the machine's CPU time that the hypervisor may take without a warning.
const STEAL_MAX: f64 = 0.02;
/// Largest fraction of the machine's CPU time that other processes may use without a warning. It includes the kernel's
/// work for the trial in interrupts and kernel threads, so it cannot be lower.
const OTHER_LOAD_MAX: f64 = 0.20;
/// Largest fraction of the device's reads that may be others' without a warning, from [`FOREIGN_BYTES_MIN`] on.
const FOREIGN_MAX: f64 = 0.10;
const FOREIGN_BYTES_MIN: f64 = 8e6;

/// Counters of CPU time that is the trial's own: of its process, its children and its helpers, and of the kernel's reclaim
/// for it.
const OWN: [&str; 6] = [
    "own_cpu_user_s",
    "own_cpu_system_s",
    "children_cpu_user_s",
    "children_cpu_system_s",
    "helpers_cpu_s",
    "kswapd_cpu_s",
];

/// Adds a warning to an outcome for each sign of other load. `around` holds the counters of the whole trial, its
/// preparation included, for experiments that count nothing themselves.
pub(super) fn warn(outcome: &mut Outcome, around: &BTreeMap<String, f64>) {
    let own = outcome.counters.contains_key("system_busy_s");
    let counters = if own { &outcome.counters } else { around };
    let counter = |name: &str| counters.get(name).copied();
    let Some(elapsed_s) = counter("wall_s").or((outcome.elapsed_s > 0.0).then_some(outcome.elapsed_s)) else { return };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let capacity_s = (elapsed_s * cpus).max(1e-9);
    let mut found = Vec::new();
    if let Some(share) = counter("steal_s").map(|steal_s| steal_s / capacity_s).filter(|share| *share > STEAL_MAX) {
        found.push(WarningKind::Steal.warning(format!("the hypervisor took {:.0} % of the CPU time", share * 100.0)));
    }
    if let Some(busy_s) = counter("system_busy_s") {
        let ours_s: f64 = OWN.iter().filter_map(|name| counter(name)).sum();
        let others = (busy_s - ours_s) / capacity_s;
        if others > OTHER_LOAD_MAX {
            found.push(WarningKind::OtherLoad.warning(format!("others used {:.0} % of the CPU time", others * 100.0)));
        }
    }
    if let (Some(device), Some(ours)) = (counter("device_read_bytes"), counter("own_device_read_bytes")) {
        let foreign = device - ours;
        if foreign > FOREIGN_BYTES_MIN && foreign > FOREIGN_MAX * device {
            let share = foreign / device * 100.0;
            found.push(
                WarningKind::ForeignReads
                    .warning(format!("others read {share:.0} % of the bytes that the device gave")),
            );
        }
    }
    outcome.warnings.extend(found);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(counters: &[(&str, f64)], around: &[(&str, f64)]) -> Vec<WarningKind> {
        let named = |all: &[(&str, f64)]| all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let mut outcome = Outcome { elapsed_s: 1.0, counters: named(counters), ..Outcome::default() };
        warn(&mut outcome, &named(around));
        outcome.warnings.iter().filter_map(|warning| warning.kind).collect()
    }

    #[test]
    fn steal_other_load_and_other_readers_are_told_and_a_trials_own_helpers_are_not_others() {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let busy = ("system_busy_s", cpus);
        assert_eq!(kinds(&[("wall_s", 1.0), busy], &[]), [WarningKind::OtherLoad]);
        // fio is a separate process, and the trial's.
        for own in ["own_cpu_user_s", "children_cpu_system_s", "helpers_cpu_s"] {
            assert!(kinds(&[("wall_s", 1.0), busy, (own, cpus * 0.9)], &[]).is_empty(), "{own}");
        }
        assert_eq!(
            kinds(&[("wall_s", 1.0), ("system_busy_s", 0.0), ("steal_s", 0.05 * cpus)], &[]),
            [WarningKind::Steal]
        );
        let reads = |own| [("system_busy_s", 0.0), ("device_read_bytes", 1e9), ("own_device_read_bytes", own)];
        assert_eq!(kinds(&reads(5e8), &[]), [WarningKind::ForeignReads]);
        assert!(kinds(&reads(9.5e8), &[]).is_empty());
    }

    #[test]
    fn an_experiment_without_counters_is_judged_by_those_around_it() {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let around = [("wall_s", 1.0), ("system_busy_s", cpus)];
        assert_eq!(kinds(&[], &around), [WarningKind::OtherLoad]);
        assert!(kinds(&[("system_busy_s", 0.0)], &around).is_empty());
    }
}
