//! What does one thread get from each way to read, overwrite and sync? After "The performance of memory mapping vs. traditional
//! read/write for database files on modern NVMe drives" (Leonardo Benicio, 2022), section 6.
//!
//! One thread, random 4 KiB blocks, data larger than memory. Five variants:
//! - `read`: a map, calls through the page cache, direct calls, and a ring in batches (submit B, wait for B, as the source does);
//! - `overwrite`: the same ways, whole blocks, with a sync every so many writes, or each write durable by itself. `op` is the
//!   time of the write, `sync` that of the sync; making the bytes is in the rate (half a microsecond for everyone), not in `op`;
//! - `sync-cost`: one block made durable each time. `op` is the whole, `sync` the call that makes it durable;
//! - `open-loop`: reads at a fixed rate, so that coordinated omission shows;
//! - `ring-setup`: what registered buffers, DEFER_TASKRUN and SQPOLL do for a ring.
//!
//! Kept true by: a block is only ever overwritten with what stands there already, and only after `place` has found the
//! lab's marker; raw devices are not even planned for.

mod batches;
mod blocking;
mod closed;
mod open_loop;
mod place;
mod wishes;

use std::path::Path;
use std::time::Duration;

use nofault_io::counters::Snapshot;
use nofault_io::probe::Probe;

use crate::config::{Config, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Context, Plan};
use crate::machine::content::BLOCK_BYTES;
use crate::measure::{self, Measurement, Work, Worker};
use crate::record::{
    CacheState, CellSpec, ExperimentId, MemoryLimit, MemoryMethod, Outcome, Params, Skip, Target, Tick,
};

use batches::Setup;
use blocking::Way;
use closed::{Go, Overwrite};
use place::Place;
use wishes::Wish;

/// Random reads.
pub const READ: &str = "read";
/// Random overwrites with a sync now and then.
pub const OVERWRITE: &str = "overwrite";
/// One write, one sync.
pub const SYNC_COST: &str = "sync-cost";
/// Reads at a fixed rate.
pub const OPEN_LOOP: &str = "open-loop";
/// A ring set up in different ways.
pub const RING_SETUP: &str = "ring-setup";

/// Share of an open-loop cell in which the contender's closed-loop rate is found.
const CALIBRATION_SHARE: f64 = 0.25;
/// A rate counts as kept when this share of it was started.
const RATE_KEPT_SHARE: f64 = 0.98;

/// The contenders: variant, id, how it reaches a block, whether each of its writes is durable.
const CONTENDERS: [(&str, &str, Way, bool); 21] = [
    (READ, "mmap", Way::Map { random: true }, false),
    (READ, "mmap-normal", Way::Map { random: false }, false),
    (READ, "pread-buffered", Way::Buffered, false),
    (READ, "pread-direct", Way::Direct, false),
    (READ, "uring-direct", Way::Ring, false),
    (OVERWRITE, "mmap", Way::Map { random: true }, false),
    (OVERWRITE, "pwrite-buffered", Way::Buffered, false),
    (OVERWRITE, "pwrite-direct", Way::Direct, false),
    (OVERWRITE, "pwrite-dsync", Way::Direct, true),
    (OVERWRITE, "uring-direct", Way::Ring, false),
    (OVERWRITE, "uring-dsync", Way::Ring, true),
    (SYNC_COST, "msync", Way::Map { random: true }, false),
    (SYNC_COST, "fdatasync", Way::Buffered, false),
    (SYNC_COST, "dsync-direct", Way::Direct, true),
    (SYNC_COST, "dsync-buffered", Way::Buffered, true),
    (SYNC_COST, FDATASYNC_CLEAN, Way::Buffered, false),
    (OPEN_LOOP, "mmap", Way::Map { random: true }, false),
    (OPEN_LOOP, "pread-buffered", Way::Buffered, false),
    (OPEN_LOOP, "pread-direct", Way::Direct, false),
    (OPEN_LOOP, "uring-direct", Way::Ring, false),
    (RING_SETUP, "uring-direct", Way::Ring, false),
];
const FDATASYNC_CLEAN: &str = "fdatasync-clean";

/// How a contender reaches a block, and whether each of its writes is durable.
fn contender(variant: &str, id: &str) -> Option<(Way, bool)> {
    CONTENDERS.iter().find(|(v, c, ..)| (*v, *c) == (variant, id)).map(|(_, _, way, durable)| (*way, *durable))
}

/// Plans the cells: everything on the file and on the RAM device, only reads on raw devices. The quick preset takes what
/// answers the question at its plainest.
pub fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let mut places = vec![(&available.file, available.memory, wishes::on_file(config))];
    match available.ram.first() {
        Some(ram) => places.push((ram, available.ram_memory, wishes::on_ram(config))),
        None => plan.skips.push(skip("ram", "", "no RAM-backed device here (root and zram make one)".into())),
    }
    for device in &available.devices {
        places.push((device, available.memory, wishes::on_device(config)));
        plan.skips.push(skip(&device.label, "", "overwrite, sync-cost: raw devices are only read".into()));
    }
    for (target, limit, wishes) in places {
        let Some(path) = target.paths.first().map(Path::new) else { continue };
        // A file that is still to be made is judged by its folder.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let probe = Probe::of(if path.exists() { path } else { folder });
        if wishes.iter().any(|wish| wish.variant == RING_SETUP) {
            plan.skips.push(skip(&target.label, "uring-direct", wishes::no_iopoll(&probe)));
        }
        let mut left_out = Vec::new();
        for wish in wishes {
            if config.preset == Preset::Quick && !wish.quick {
                left_out.push(wish.name());
            } else if let Some(reason) = wish.refusal(&probe) {
                plan.skips.push(skip(&target.label, wish.contender, format!("{}: {reason}", wish.name())));
            } else {
                plan.cells.push(cell(config, target, limit, wish));
            }
        }
        left_out.dedup();
        if !left_out.is_empty() {
            let reason = format!("measured from --preset standard on: {}", left_out.join(", "));
            plan.skips.push(skip(&target.label, "", reason));
        }
    }
    plan
}

fn skip(target: &str, contender: &str, reason: String) -> Skip {
    Skip { experiment: ExperimentId::Access, target: target.into(), contender: contender.into(), reason }
}

fn cell(config: &Config, target: &Target, memory: MemoryLimit, wish: Wish) -> CellSpec {
    CellSpec {
        experiment: ExperimentId::Access,
        variant: wish.variant.into(),
        target: target.clone(),
        contender: wish.contender.into(),
        params: Params { threads: 1, depth: wish.depth, block_bytes: BLOCK_BYTES as u64, extra: wish.extra },
        repeat: 0,
        duration_s: config.access.cell_s * wish.share_of_cell,
        memory,
        cache: CacheState::Cold,
        seed: config.seed,
    }
}

/// Measures one cell.
///
/// # Errors
/// `Usage` for what the experiment does not know, and for writes to what is only read; what the target's checks, opening, reading,
/// writing or syncing say; `Unsupported` for what this file system or kernel refuses.
pub fn execute(spec: &CellSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let usage = |what: String| LabError::new(LabErrorKind::Usage, format!("access: {what}"));
    let (way, durable) = contender(&spec.variant, &spec.contender)
        .ok_or_else(|| usage(format!("unknown contender '{}' of '{}'", spec.contender, spec.variant)))?;
    if spec.params.block_bytes != BLOCK_BYTES as u64 || spec.params.threads != 1 {
        return Err(usage(format!("it is one thread and blocks of {BLOCK_BYTES} bytes, not {}", spec.params)));
    }
    if !(1..=4096).contains(&spec.params.depth) || (way != Way::Ring && spec.params.depth != 1) {
        return Err(usage(format!("a depth of {} does not suit {}", spec.params.depth, spec.contender)));
    }
    let place = Place::of(spec)?;
    let mut outcome = match spec.variant.as_str() {
        OVERWRITE | SYNC_COST => {
            let content_seed = place.check_writable(&spec.target)?;
            let one_each = spec.variant == SYNC_COST;
            let writes_per_sync = if one_each { 1 } else { number(spec, "writes_per_sync", 1.0..=1e6)? as u64 };
            let how = Overwrite { way, durable, writes_per_sync, one_each };
            overwrites(spec, context, place, how, content_seed)?
        }
        OPEN_LOOP => open_loop(spec, context, place, way)?,
        _ => {
            let setup = Setup::of(spec.params.extra.get("flags").map(String::as_str))?;
            let mut missing = None;
            let outcome = measured(spec, 1.0, context, |worker, go| {
                missing = reads(worker, place, way, spec.params.depth, setup, go)?;
                Ok(())
            })?;
            with_warning(outcome, missing)
        }
    };
    add_spread(&mut outcome);
    Ok(outcome)
}

/// Reads in a closed loop, by whatever way. Answers what a ring had to do without.
fn reads(
    worker: &mut Worker<'_>,
    place: Place,
    way: Way,
    depth: u32,
    setup: Setup,
    go: &Go<'_>,
) -> Result<Option<String>> {
    match way {
        Way::Ring => closed::read_batches(worker, place, depth, setup, go),
        _ => closed::read(worker, place, way, go).map(|()| None),
    }
}

fn overwrites(
    spec: &CellSpec,
    context: &mut Context<'_>,
    place: Place,
    how: Overwrite,
    content_seed: u64,
) -> Result<Outcome> {
    let (blocks, depth) = (place.blocks, spec.params.depth);
    let (mut written, mut missing) = (0, None);
    let before = Snapshot::take(context.watch);
    let mut outcome = measured(spec, 1.0, context, |worker, go| {
        if spec.contender == FDATASYNC_CLEAN {
            return closed::sync_clean(worker, &place);
        }
        (written, missing) = match how.way {
            Way::Ring => closed::overwrite_batches(worker, place, depth, how, content_seed, go)?,
            _ => (closed::overwrite(worker, place, how, content_seed, go)?, None),
        };
        Ok(())
    })?;
    let moved = Snapshot::take(context.watch).since(&before).device_write_bytes;
    if let (Some(moved), true) = (moved, written > 0) {
        outcome.figures.insert("device_bytes_per_write".into(), moved as f64 / written as f64);
        // What stands there is what was there before, so that content alone does not prove the write. Of k random
        // blocks among n, at least 0.63 min(k, n) are different ones.
        if (moved as f64) < 0.5 * (written.min(blocks) * BLOCK_BYTES as u64) as f64 {
            outcome.warnings.push(format!("the device was written only {moved} bytes for {written} overwrites"));
        }
    }
    Ok(with_warning(outcome, missing))
}

/// Finds the contender's closed-loop rate, then asks for a share of it.
fn open_loop(spec: &CellSpec, context: &mut Context<'_>, place: Place, way: Way) -> Result<Outcome> {
    let share = number(spec, "rate_share", 1e-3..=10.0)?;
    let (depth, setup) = (spec.params.depth, Setup::of(None)?);
    // Other blocks than the ones measured: those would be in memory already.
    let elsewhere = place.clone().reordered();
    let mut quiet = Context { watch: context.watch, cancel: context.cancel, on_tick: &mut |_| {} };
    let calibration = measured(spec, CALIBRATION_SHARE, &mut quiet, |worker, go| {
        reads(worker, elsewhere, way, depth, setup, go).map(|_| ())
    })?;
    let closed_loop = calibration.ops as f64 / calibration.elapsed_s.max(1e-9);
    if calibration.partial || calibration.ops == 0 {
        return Ok(with_warning(
            Outcome { partial: true, ..calibration },
            Some("stopped while finding the rate".into()),
        ));
    }
    let rate = closed_loop * share;
    let mut outcome = measured(spec, 1.0 - CALIBRATION_SHARE, context, |worker, go| match way {
        Way::Ring => open_loop::ring(worker, place, depth, setup, rate, go),
        _ => open_loop::blocking(worker, place, way, rate, go),
    })?;
    outcome.checks.wrong += calibration.checks.wrong;
    outcome.figures.insert("closed_loop_ops_per_s".into(), closed_loop);
    outcome.figures.insert("rate_per_s".into(), rate);
    let figure = |name: &str| outcome.figures.get(name).copied().unwrap_or(0.0);
    let (scheduled, started) = (figure("reads_scheduled"), figure("reads_started"));
    if started < scheduled * RATE_KEPT_SHARE {
        outcome.warnings.push(format!(
            "the rate of {rate:.0}/s could not be kept: {started:.0} of {scheduled:.0} reads were started; those that never were have no \
             latency here, so open_loop is a lower bound"
        ));
    }
    Ok(outcome)
}

/// Runs one worker for a share of the cell's time.
fn measured<'a>(
    spec: &CellSpec,
    share: f64,
    context: &'a mut Context<'_>,
    work: impl FnOnce(&mut Worker<'_>, &Go<'_>) -> Result<()> + Send + 'a,
) -> Result<Outcome> {
    let duration = Duration::try_from_secs_f64(spec.duration_s * share)
        .map_err(|error| LabError::new(LabErrorKind::Usage, format!("access: duration_s: {error}")))?;
    let plan = Measurement {
        duration,
        // Some ticks also in a short cell: the first one does not count in tables.
        tick: (duration / 8).clamp(Duration::from_millis(10), Duration::from_secs(1)),
        watch: context.watch,
        memory_bytes: (spec.memory.method != MemoryMethod::None).then_some(spec.memory.bytes),
        cancel: context.cancel,
    };
    let cancel = context.cancel;
    let work: Work<'_> = Box::new(move |worker| work(worker, &Go { cancel }));
    measure::run(&plan, vec![work], context.on_tick as &mut dyn FnMut(&Tick))
}

/// A number among the parameters.
fn number(spec: &CellSpec, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64> {
    let text = spec.params.extra.get(name).map(String::as_str).unwrap_or_default();
    text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| {
        let message = format!("access: {name} = '{text}' must be a number from {} to {}", range.start(), range.end());
        LabError::new(LabErrorKind::Usage, message)
    })
}

/// Standard deviation and largest value beside each latency: means of syncs say little without.
fn add_spread(outcome: &mut Outcome) {
    for (name, latency) in &outcome.latency {
        if let Some(histogram) = latency.histogram() {
            outcome.figures.insert(format!("{name}_stddev_ns"), histogram.stdev());
            outcome.figures.insert(format!("{name}_max_ns"), histogram.max() as f64);
        }
    }
}

fn with_warning(mut outcome: Outcome, warning: Option<String>) -> Outcome {
    outcome.warnings.extend(warning);
    outcome
}

#[cfg(test)]
mod tests;
