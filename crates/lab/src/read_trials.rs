//! Code shared by the experiments reading data larger than memory: planning within this machine's abilities, executing one
//! method, and the signs that a trial's figures are doubtful.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::disk::{DirectIo, DiskNoteKind, FileOptions};
use nofault_io::error::ErrorKind;
use nofault_io::psync::PsyncDisk;

use crate::config::{Choice, Config};
use crate::error::{LabError, Result};
use crate::experiment::{Available, Context, Plan};
use crate::machine::ram::is_zram;
use crate::measure::read_loops::fill::{self, Memory};
use crate::measure::read_loops::fio::{self, Engine};
use crate::measure::read_loops::pool::{self, Pool};
use crate::measure::read_loops::settle::{self, Reader};
use crate::measure::read_loops::sync::{self, Files, Means};
use crate::measure::read_loops::{self, Pattern, map, ring};
use crate::measure::workload::Layout;
use crate::measure::{self, Measurement};
use crate::methods::{self, Method, Way};
use crate::record::{
    ExperimentId, MemoryLimit, Outcome, Params, Skip, SkipCause, Target, TargetKind, TrialSpec, WarningKind,
};

/// Plans the trials of one experiment on one target.
pub(super) struct Planner<'a> {
    pub(super) experiment: ExperimentId,
    pub(super) config: &'a Config,
    pub(super) available: &'a Available,
    pub(super) target: &'a Target,
    pub(super) memory: MemoryLimit,
    pub(super) duration_s: f64,
    /// The reason why the engine's pool cannot do the same work as the others in this experiment, if there is one.
    pub(super) no_pool: Option<&'static str>,
    pub(super) plan: &'a mut Plan,
}

impl Planner<'_> {
    /// Adds a trial of a method for each of `params`; or one skip with the reason, where this machine cannot run the
    /// method.
    pub(super) fn add(&mut self, method: &Method, params: impl IntoIterator<Item = Params>) {
        let Some(way) = method.way else { return };
        if let Some(reason) = self.refusal(way) {
            self.skip(method, reason);
            return;
        }
        for params in params {
            self.push(method, params.clone());
            if way.reads_ahead() && self.available.root {
                for kib in &self.config.read_ahead_kb {
                    let mut params = params.clone();
                    params.extra.insert("read_ahead_kb".into(), kib.to_string());
                    self.push(method, params);
                }
            }
        }
        if way.reads_ahead() && !self.available.root && !self.config.read_ahead_kb.is_empty() {
            self.skip(method, "other values of read_ahead_kb: setting it needs root; run with sudo".into());
        }
    }

    /// Adds a trial of a method that reads ahead for each of `params`, with the device's read-ahead off, which needs root; or one
    /// skip with the reason.
    pub(super) fn add_without_read_ahead(&mut self, method: &Method, params: impl IntoIterator<Item = Params>) {
        if !self.available.root {
            self.skip(method, "with the device's read-ahead off: setting it needs root; run with sudo".into());
            return;
        }
        for mut params in params {
            params.extra.insert("read_ahead_kb".into(), "0".into());
            self.push(method, params);
        }
    }

    /// Records that a method is skipped on this target.
    pub(super) fn skip(&mut self, method: &Method, reason: String) {
        self.plan.skips.push(Skip::new(self.experiment, &self.target.label, method.id, reason));
    }

    /// Records that a larger preset measures a method on this target.
    pub(super) fn leave_to_larger_preset(&mut self, method: &Method, reason: &str) {
        let skip = Skip::new(self.experiment, &self.target.label, method.id, reason);
        self.plan.skips.push(skip.because(SkipCause::LargerPreset));
    }

    fn push(&mut self, method: &Method, params: Params) {
        let (target, params) = match (method.way, &self.available.pool) {
            // The same data, as a database of the engine.
            (Some(Way::Pool(_)), Some(pool)) => {
                let mut params = params;
                params.extra.insert(
                    "cache_bytes".into(),
                    pool::cache_bytes(self.memory, self.available.pool_bytes).to_string(),
                );
                (Target { data_bytes: self.target.data_bytes, ..pool.clone() }, params)
            }
            _ => (self.target.clone(), params),
        };
        let base = TrialSpec::of(self.experiment, self.config.seed, target, method.id);
        let (duration_s, memory) = (self.duration_s, self.memory);
        self.plan.trials.push(TrialSpec { params, duration_s, memory, ..base });
    }

    /// Why the engine's pool is left out of this plan; `None` when it takes part.
    fn no_pool(&self) -> Option<String> {
        if self.available.pool.is_none() {
            let unasked = !self.config.own_file.is_empty() && self.config.pool != Choice::Off;
            let why = if unasked {
                "beside a file of the user's only with --pool require"
            } else {
                "left out by the configuration (pool = 'off')"
            };
            return Some(why.into());
        }
        if self.target.kind() != TargetKind::File {
            return Some("the engine keeps its database in a folder; a bare device has none".into());
        }
        self.no_pool.map(str::to_owned)
    }

    /// Why this machine cannot run a method on this target; `None` when it can.
    fn refusal(&self, way: Way) -> Option<String> {
        if let Way::Fio(_) = way {
            if self.config.fio == Choice::Off {
                return Some("left out by the configuration (fio = 'off')".into());
            }
            if self.available.fio.is_none() {
                return Some(fio::NOT_INSTALLED.into());
            }
        }
        if let Way::Pool(_) = way {
            return self.no_pool();
        }
        self.target.paths.iter().find_map(|path| {
            let path = Path::new(path);
            let options = FileOptions { direct: DirectIo::Require, write: false, create: false };
            let opened = match way {
                Way::Map(_) | Way::Pool(_) => return None,
                Way::Sync(Means::Buffered | Means::BufferedRandom | Means::DontCache) => return None,
                Way::Sync(Means::Direct) | Way::Fio(Engine::Psync) => PsyncDisk::open(path, &options, 1).map(drop),
                Way::Ring | Way::Fio(Engine::Uring) => nofault_io::uring::UringDisk::open(path, &options).map(drop),
            };
            // Other errors are left to the trial: the file may be made only after planning.
            opened
                .err()
                .filter(|error| matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NoPermission))
                .map(|error| error.to_string())
        })
    }
}

/// Least number of reads for which a trial lasts on the calibrated device: enough for a 99th percentile.
pub(super) const READS_MIN: f64 = 1000.0;
/// The largest factor by which a slow device lengthens a trial.
const LONGER_MAX: f64 = 20.0;

/// The length in seconds of a trial on the calibrated device, which must make at least `reads` reads: the planned one, or
/// a longer one.
pub(super) fn long_enough(trial: &TrialSpec, available: &Available, reads: f64) -> f64 {
    let Some(device) = available.device_rate else { return trial.duration_s };
    let in_flight = trial.params.threads.saturating_mul(trial.params.depth);
    let needed_s = device.seconds(reads, in_flight);
    trial.duration_s.max(needed_s.min(trial.duration_s * LONGER_MAX))
}

/// Parameters of a trial without extras.
pub(super) fn params(threads: u32, depth: u32, block_bytes: u64) -> Params {
    Params { threads, depth, block_bytes, ..Params::default() }
}

/// Measures one method. With [`Memory::Full`] a method that fills memory as it reads finds it full when its clock starts; with
/// [`Memory::Settled`] a method that keeps pages in memory finds those that its own reads have left there.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
pub(super) fn execute(
    spec: &TrialSpec,
    layout: &Layout,
    (pattern, memory): (Pattern, Memory),
    context: &mut Context<'_>,
) -> Result<Outcome> {
    let way =
        methods::find(&[], &spec.method).and_then(|method| method.way).ok_or_else(|| read_loops::unknown(spec))?;
    let plan = Measurement {
        duration: read_loops::duration_of(spec)?,
        tick: read_loops::tick_of(spec),
        watch: context.watch,
        memory_bytes: read_loops::memory_limit_of(spec),
        // Direct reads never fill memory, and the pool takes all its memory when it is opened.
        fill_first: !way.is_direct() && !matches!(way, Way::Pool(_)),
        cancel: context.cancel,
    };
    let mut settled = true;
    let on_tick = &mut *context.on_tick;
    let mut outcome = match way {
        Way::Map(advice) => {
            let maps = map::Maps::open(layout, advice)?;
            match memory {
                Memory::Empty => {}
                Memory::Full => fill::fill(spec, layout, Some(&maps), context.cancel)?,
                Memory::Settled => settled &= settle_maps(spec, layout, pattern, &maps, context.cancel)?,
            }
            measure::run_then(&plan, map::works(spec, layout, &maps, pattern), on_tick, &|| maps.end_read_ahead())?
        }
        Way::Sync(means) => {
            let files = Files::open(layout, means)?;
            match memory {
                Memory::Full if means != Means::Direct => fill::fill(spec, layout, None, context.cancel)?,
                Memory::Settled if means != Means::Direct => {
                    settled &= settle_files(spec, layout, pattern, &files, context.cancel)?;
                }
                _ => {}
            }
            measure::run(&plan, sync::works(spec, layout, &files, pattern), on_tick)?
        }
        Way::Ring => {
            let disk = ring::disk_of(layout)?;
            let mut outcome = measure::run(&plan, ring::works(spec, layout, &*disk, pattern), on_tick)?;
            let missing = disk.info().notes.into_iter().filter(|note| note.kind == DiskNoteKind::Missing);
            outcome.warnings.extend(missing.map(|note| note.text.into()));
            outcome
        }
        Way::Pool(calls) => {
            if ring::pages_of(spec, pattern) == PageKind::Small {
                without_huge_pages()?;
            }
            let mut pool = Pool::open(spec)?;
            match memory {
                Memory::Empty => {}
                Memory::Full => pool.fill(layout, context.cancel)?,
                Memory::Settled => {
                    let reader = || -> Result<Reader<'_>> { Ok(Box::new(|blocks| pool.warm(blocks.iter().copied()))) };
                    let batches = (1, settle::IN_FLIGHT as usize);
                    settled &= settle::settle(spec, layout, pattern, batches, context.cancel, &reader)?;
                }
            }
            pool.count_misses_from_now();
            let mut outcome = measure::run(&plan, pool::works(spec, layout, &pool, calls, pattern), on_tick)?;
            pool.record_in(&mut outcome);
            outcome
        }
        Way::Fio(engine) => fio::run(&plan, spec, layout, pattern, engine, on_tick)?,
    };
    if !settled {
        outcome
            .warnings
            .push("memory had not settled when the clock started: the device is too slow for the time".into());
    }
    if matches!(way, Way::Ring | Way::Fio(Engine::Uring))
        && spec.target.paths.iter().any(|path| is_zram(Path::new(path)))
    {
        outcome.warnings.push(
            "zram has no asynchronous reads: the kernel hands them to worker threads; judge io_uring on a real device, and \
             mmap on this one against pread"
                .into(),
        );
    }
    // fio's ticks come from its own reports, and it loads itself from disk in the first: they cannot be compared with
    // the device's counters.
    if way.is_direct() && !matches!(way, Way::Fio(_)) {
        warn_of_foreign_bytes(spec, &mut outcome);
    }
    Ok(outcome)
}

/// Settles memory through the maps of a trial.
pub(super) fn settle_maps(
    spec: &TrialSpec,
    layout: &Layout,
    pattern: Pattern,
    maps: &map::Maps,
    cancel: &AtomicBool,
) -> Result<bool> {
    let reader = || -> Result<Reader<'_>> {
        Ok(Box::new(|blocks: &[u64]| {
            blocks.iter().try_for_each(|block| {
                std::hint::black_box(maps.word_at(layout.place(*block))?);
                Ok(())
            })
        }))
    };
    settle::settle(spec, layout, pattern, (settle::IN_FLIGHT, 16), cancel, &reader)
}

/// Settles memory through read calls.
pub(super) fn settle_files(
    spec: &TrialSpec,
    layout: &Layout,
    pattern: Pattern,
    files: &Files,
    cancel: &AtomicBool,
) -> Result<bool> {
    let reader = || -> Result<Reader<'_>> {
        let mut buffer = IoBuf::zeroed(layout.block_bytes as usize, PageKind::Small)?;
        Ok(Box::new(move |blocks: &[u64]| {
            blocks.iter().try_for_each(|block| {
                let place = layout.place(*block);
                files.read(layout, place.file, place.offset_bytes, &mut buffer)
            })
        }))
    };
    settle::settle(spec, layout, pattern, (settle::IN_FLIGHT, 16), cancel, &reader)
}

/// Makes the memory that this process allocates from now on lie in small pages, like a map's. For a trial's process.
///
/// # Errors
/// `System` where the kernel refuses it.
pub(super) fn without_huge_pages() -> Result<()> {
    rustix::thread::disable_transparent_huge_pages(true)
        .map_err(|errno| LabError::system("switch huge pages off for this process", &errno.into()))
}

/// Largest difference between the device's bytes and the trial's own, as a fraction, at which no other user of the
/// device is assumed.
const FOREIGN_BYTES_MAX: f64 = 0.10;
/// Adds a warning where the device moved other amounts than the trial counts, tick by tick: for methods past the page cache,
/// for which the device must read exactly these bytes.
pub(super) fn warn_of_foreign_bytes(spec: &TrialSpec, outcome: &mut Outcome) {
    let foreign = foreign_ticks(spec, outcome);
    if foreign > 0 {
        outcome.warnings.push(WarningKind::DeviceTraffic.warning(format!(
            "in {foreign} of {} ticks the device moved more than {:.0} % more or less than this trial asked for: another \
             program uses it, or the device reads other amounts than it is asked for",
            outcome.ticks.len(),
            FOREIGN_BYTES_MAX * 100.0
        )));
    }
}

/// Number of ticks in which the bytes that the device read differ from the bytes that the trial counted.
fn foreign_ticks(spec: &TrialSpec, outcome: &Outcome) -> usize {
    // Bytes in flight at the end of a tick are counted by the device in one tick and by the trial in the next.
    let in_flight = u64::from(spec.params.threads) * u64::from(spec.params.depth) * spec.params.block_bytes * 2;
    let disagrees = |tick: &&crate::record::Tick| {
        let Some(device) = tick.counters.get("device_read_bytes") else { return false };
        let difference = (device - tick.bytes as f64).abs() - in_flight as f64;
        difference > FOREIGN_BYTES_MAX * device.max(tick.bytes as f64).max((1 << 20) as f64)
    };
    outcome.ticks.iter().filter(disagrees).count()
}
