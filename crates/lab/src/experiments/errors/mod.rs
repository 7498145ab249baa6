//! Measures the effects of failing I/O on each store, and the cost of detecting it. After §3.3 of "Are You Sure You
//! Want to Use MMAP in Your Database Management System?" (CIDR 2022).
//!
//! Five variants are faults. Each fault is real and happens in a separate process, which may die of it:
//! - `truncated`: another process cuts the file under an open store, at a page; `truncated-inside`: within its last
//!   page, so that the rest of the page reads as zeroes and no signal comes;
//! - `read-error`: the device fails one page (a file system of the lab's own), then delivers it again;
//! - `bit-flip`: one bit of one page changes on disk;
//! - `stray-write`: a stray pointer flips a bit of a page in memory; then the store writes as it normally would.
//!
//! A trial's figures are the signs that the program got (`detected`, `error_returned`, `signals`), the wrong pages that
//! it returned (`wrong_answers`), the damage on disk (`reached_disk`), and its recovery. These are outcomes, not rates,
//! so each fault is run once.
//!
//! A sixth variant, `checksum-cost`, measures the cost of detection: a checksum at every access, as a map must, against
//! one at every load, as a pool may.
//!
//! Kept true by: only files in the trial's own folder and memory of a process started for it are damaged; the
//! lab judges right and wrong by its own copy of the content, never by the store's.

pub(crate) mod rules;
pub mod stores;
mod texts;
mod trial;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::check::{at_least, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, MIB, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Context, Description, Experiment, Needs, Plan, Section, TargetView};
use crate::machine::faulty;
use crate::machine::scratch::Scratch;
use crate::measure::workload::PAGE_BYTES;
use crate::methods::{self, Family, Method, methods};
use crate::record::{ExperimentId, Outcome, Skip, SkipCause, Target, TrialSpec};
use crate::show::columns::{self, Sheet};
use crate::show::figures::{Figure, rates};
use crate::summary::{Basis, Metric, Summary};

/// The variant in which another process cuts the file at a page boundary.
pub const TRUNCATED: &str = "truncated";
/// The variant in which another process cuts the file within a page.
pub const TRUNCATED_INSIDE: &str = "truncated-inside";
/// The variant in which the device fails to read a page.
pub const READ_ERROR: &str = "read-error";
/// The variant in which a bit changes on disk.
pub const BIT_FLIP: &str = "bit-flip";
/// The variant in which a bit changes in memory.
pub const STRAY_WRITE: &str = "stray-write";
/// The variant that measures the cost of verifying checksums.
pub const CHECKSUM_COST: &str = "checksum-cost";

/// The variants that are faults, in the order of the report.
pub const FAULTS: [&str; 5] = [READ_ERROR, TRUNCATED, TRUNCATED_INSIDE, BIT_FLIP, STRAY_WRITE];

/// Planned seconds of a fault, in which processes are started and a store is made and opened several times.
const FAULT_S: f64 = 0.25;

/// Returns the stores that meet a fault under a preset.
fn stores(variant: &str, preset: Preset) -> &'static [&'static str] {
    match (variant, preset) {
        (TRUNCATED_INSIDE, Preset::Quick) => &[],
        (STRAY_WRITE, Preset::Quick) => &[methods::MMAP.id, methods::ENGINE.id],
        (_, Preset::Quick) => &[methods::MMAP.id, MMAP_GUARDED.id, methods::ENGINE.id],
        (STRAY_WRITE, _) => &[
            methods::MMAP.id,
            MMAP_READONLY.id,
            MMAP_GUARDED_CHECKED.id,
            methods::PREAD_DIRECT.id,
            PREAD_DIRECT_CHECKED.id,
            methods::OS_COW.id,
            methods::USER_COW.id,
            methods::USER_COW_PWRITE.id,
            methods::MAPPED_LOG.id,
            methods::SHADOW.id,
            methods::SHADOW_WRITEMAP.id,
            methods::ENGINE.id,
            ENGINE_DIRTY.id,
        ],
        (TRUNCATED_INSIDE, _) => &[
            methods::MMAP.id,
            MMAP_GUARDED.id,
            MMAP_GUARDED_CHECKED.id,
            methods::PREAD_DIRECT.id,
            PREAD_DIRECT_CHECKED.id,
            methods::ENGINE.id,
        ],
        _ => &[
            methods::MMAP.id,
            MMAP_GUARDED.id,
            MMAP_GUARDED_CHECKED.id,
            methods::PREAD_DIRECT.id,
            PREAD_DIRECT_CHECKED.id,
            methods::OS_COW.id,
            methods::USER_COW.id,
            methods::USER_COW_PWRITE.id,
            methods::MAPPED_LOG.id,
            methods::SHADOW.id,
            methods::SHADOW_WRITEMAP.id,
            SHADOW_CHECKED.id,
            methods::ENGINE.id,
        ],
    }
}

methods! {
    /// The methods that only this experiment has.
    OWN:
    MMAP_GUARDED = Method::new("mmap-guarded", "mmap, guarded", Family::Mapped);
    MMAP_GUARDED_CHECKED = Method::new("mmap-guarded-checked", "mmap, guarded, checked at every access", Family::Mapped);
    PREAD_DIRECT_CHECKED = Method::new("pread-direct-checked", "pread O_DIRECT, checked at load", Family::Direct);
    SHADOW_CHECKED = Method::new("shadow-checked", "shadow paging, checked", Family::Mapped).shadow();
    MMAP_READONLY = Method::new("mmap-readonly", "mmap, read-only", Family::Mapped);
    ENGINE_DIRTY = Method::new("engine-dirty", "engine, changed page", Family::Ring);
    NO_CHECK = Method::new("no-check", "mmap, no check", Family::Mapped).ready();
    CHECK_EVERY_ACCESS = Method::new("check-every-access", "mmap, checked at every access", Family::Mapped).ready();
    CHECK_EVERY_LOAD = Method::new("check-every-load", "own memory, checked at load", Family::Direct).ready();
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("errors");

/// The experiment `errors`, as the registry lists it.
pub(crate) struct Errors;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 6,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    contributions: &[("lmdb-is-crash-proof", rules::damage)],
    evidence: rules::EVIDENCE,
    less_memory: |_| Some("--set errors.working_sets=[BYTES]"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Errors {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, ..Needs::default() }
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        let is_fault = FAULTS.contains(&spec.variant.as_str());
        Basis::by(if is_fault { Metric::Figure("detected") } else { Metric::OpsPerS })
    }

    fn overview(&self, summary: &Summary<'_>) -> Vec<Figure> {
        texts::faults(summary)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        // Outcomes of faults are shown above, all in one table.
        let checked = (section.variant == CHECKSUM_COST).then(|| section.by_family());
        let rates = checked.and_then(|groups| rates(&groups, &section.title, Metric::OpsPerS, "accesses per second"));
        rates.into_iter().collect()
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        let faults = texts::columns(place.summary, place.target, &columns::title(self.id(), place.target));
        let checked: Vec<&str> = place.variants.iter().copied().filter(|variant| *variant == CHECKSUM_COST).collect();
        let cost = (!checked.is_empty()).then(|| columns::operations(place.summary, self.id(), place.target, &checked));
        faults.map(Sheet::new).into_iter().chain(cost).collect()
    }
}

/// Plans the faults, once each, and the trials of the cost of checking, which are repeated.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let skip = |target: &str, method: &str, reason: String| Skip::new(ID, target, method, reason);
    let no_fuse = faulty::check().err();
    for variant in FAULTS {
        if let (READ_ERROR, Some(error)) = (variant, &no_fuse) {
            plan.skips.push(skip("file", "", format!("{READ_ERROR}: {error}")));
            continue;
        }
        let stores = stores(variant, config.preset);
        if stores.is_empty() {
            let skip = skip("file", "", format!("measured from --preset standard on: {variant}"));
            plan.skips.push(skip.because(SkipCause::LargerPreset));
        }
        plan.once.extend(stores.iter().map(|store| fault_trial(config, available, variant, store)));
    }
    if config.preset == Preset::Quick {
        let reason = "measured from --preset standard on: read calls, checked maps, dirty pages";
        plan.skips.push(skip("file", "", reason.into()).because(SkipCause::LargerPreset));
    }
    if available.file.paths.is_empty() {
        plan.skips.push(skip("file", "", format!("{CHECKSUM_COST}: no data file, as memory cannot be limited here")));
        return plan;
    }
    let errors: Parameters = config.params();
    for bytes in &errors.working_sets {
        // A working set must fit in memory twice.
        let bytes = (*bytes).min(available.file.data_bytes);
        for method in trial::CHECK_METHODS {
            let base = TrialSpec::of(ID, config.seed, available.file.clone(), method);
            let mut trial = TrialSpec { variant: CHECKSUM_COST.into(), duration_s: errors.cell_s, ..base };
            trial.params.extra.insert("working_set".into(), bytes.to_string());
            plan.trials.push(trial);
        }
    }
    plan
}

fn fault_trial(config: &Config, available: &Available, variant: &str, store: &str) -> TrialSpec {
    let target = Target {
        label: "file".into(),
        paths: vec![available.folder.clone()],
        data_bytes: trial::PAGE_COUNT * PAGE_BYTES as u64,
        content_seed: None,
    };
    TrialSpec { variant: variant.into(), duration_s: FAULT_S, ..TrialSpec::of(ID, config.seed, target, store) }
}

/// Runs one fault, or measures one way of checking pages.
///
/// # Errors
/// `Usage` for unknown variants and methods; `Unsupported` where a fault cannot be made; otherwise the system's error.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    if spec.variant == CHECKSUM_COST {
        return trial::run_check(spec, context);
    }
    let folder = spec.target.paths.first().map(Path::new).ok_or_else(|| {
        LabError::new(LabErrorKind::Usage, format!("errors: {} needs a folder to work in", spec.variant))
    })?;
    let scratch = Scratch::make(folder, "errors")?;
    let outcome = trial::run_fault(spec, scratch.path())?;
    scratch.remove()?;
    Ok(outcome)
}

/// Parameters of `errors`. They concern only `checksum-cost`: each fault is made once, without parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length in seconds of a trial that measures the cost of checking.
    pub(crate) cell_s: f64,
    /// Sizes in bytes of the data, all in memory, whose pages `checksum-cost` accesses.
    pub(crate) working_sets: Vec<u64>,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] =
        &[Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)), Use::shared(&flags::SIZE)];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self { cell_s: 0.4, working_sets: vec![64 * MIB] },
            Preset::Standard => Self { cell_s: 2.0, working_sets: vec![MIB, 512 * MIB] },
            Preset::Paper => Self { cell_s: 20.0, working_sets: vec![MIB, 64 * MIB, 512 * MIB, 2048 * MIB] },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("errors.cell_s", &[self.cell_s])?;
        self.working_sets.iter().try_for_each(|bytes| at_least("errors.working_sets", *bytes, 4096))
    }
}

#[cfg(test)]
mod tests;
