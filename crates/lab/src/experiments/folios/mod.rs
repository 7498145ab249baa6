//! Measures the cost of a page fault of cached data by the size of the folio holding the page. The page cache keeps
//! a file in folios of one page, or of several where the file system supports large folios; a fault maps the pages of
//! the folio around the faulting page.
//!
//! Each trial writes a new file, which has no name, in calls of the requested folio size: a file system with
//! large folios caches the data of each call as one folio. Before the clock starts, the trial reads the real folio
//! sizes from `/proc/kpageflags`. When the file system used other sizes the trial is not measured, and the record names
//! these sizes. Then the file is mapped again and again, and the first word of each page is loaded and checked.
//!
//! Limits: nothing is evicted and all data is in the page cache, so the figures show the cost of the fault and no
//! other. The 2 MiB folio may be mapped by one entry of the page table's upper level, which also saves misses of the
//! TLB.

mod rules;
mod texts;
mod trial;

use serde::{Deserialize, Serialize};

use crate::config::check::{at_least, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, MIB, Preset};
use crate::experiment::{Available, Description, Experiment, Needs, Plan, Section, TargetView};
use crate::measure::workload::PAGE_BYTES;
use crate::methods::{self, Family, Method, methods};
use crate::record::{CacheState, ExperimentId, Skip, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::show::literature::{Counterparts, LiteratureRow, LiteratureTable};
use crate::summary::{Basis, Group, Metric, Summary};

methods! {
    /// The methods that only this experiment has: through a new map, page after page and in random order.
    OWN:
    MMAP_IN_ORDER = Method::new("mmap-in-order", "mmap, in order", Family::Mapped);
    MMAP_AT_RANDOM = Method::new("mmap-at-random", "mmap, at random", Family::Mapped).toned("t1");
}

/// The methods in the order of the report.
const ALL: [&Method; 3] = [&MMAP_IN_ORDER, &MMAP_AT_RANDOM, &methods::PREAD_CACHED];

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("folios");

/// Name of the extra parameter holding the size of the folios, in bytes.
const FOLIO: &str = "folio";

/// The experiment `folios`, as the registry lists it.
pub(crate) struct Folios;

static DESCRIPTION: Description = Description {
    plan,
    execute: trial::execute,
    texts: texts::TEXTS,
    rank: 9,
    in_quick: false,
    methods: OWN,
    findings: rules::find,
    warms_itself: true,
    less_memory: |_| Some("--set folios.file_bytes=BYTES"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Folios {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs::default()
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis::by(Metric::TimePerOp)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        vec![Sheet::new(texts::columns(place.summary, place.target))]
    }

    fn counterparts<'g, 'a>(
        &self,
        _: &LiteratureTable,
        row: &LiteratureRow,
        summary: &'g Summary<'a>,
    ) -> Counterparts<'g, 'a> {
        let mut own = summary.of_experiment(ID).filter(|group| group.spec.method == row.method);
        let size = if row.note.is_empty() { 64 << 10 } else { PAGE_BYTES as u64 };
        Counterparts { groups: vec![own.find(|group| folio_bytes(group) == Some(size))], on_file: true }
    }
}

/// Returns the folio size of a group's trials, in bytes.
fn folio_bytes(group: &Group<'_>) -> Option<u64> {
    group.spec.params.extra.get(FOLIO)?.parse().ok()
}

/// Returns the folio sizes of some groups, smallest first.
fn sizes(groups: &[&Group<'_>]) -> Vec<u64> {
    let mut sizes: Vec<u64> = groups.iter().filter_map(|group| folio_bytes(group)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Plans each method at each folio size.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    if !available.root {
        let reason =
            "not available: which folios the page cache has is in /proc/kpageflags, which takes root; run with sudo";
        plan.skips.push(Skip::new(ID, "file", "", reason));
        return plan;
    }
    let folios: Parameters = config.params();
    for folio_bytes in &folios.folio_bytes {
        for method in ALL {
            let target = Target {
                label: "file".into(),
                paths: vec![available.folder.clone()],
                data_bytes: folios.file_bytes,
                content_seed: None,
            };
            let base = TrialSpec::of(ID, config.seed, target, method.id);
            let mut trial = TrialSpec { duration_s: folios.cell_s, cache: CacheState::Warm, ..base };
            trial.params.extra.insert(FOLIO.into(), folio_bytes.to_string());
            plan.trials.push(trial);
        }
    }
    plan
}

/// Parameters of `folios`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial in seconds; the time for making its file comes on top.
    pub(crate) cell_s: f64,
    /// Bytes of the file, all of which is cached.
    pub(crate) file_bytes: u64,
    /// Sizes of the folios to measure, in bytes.
    pub(crate) folio_bytes: Vec<u64>,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::SIZE, "--set folios.file_bytes=BYTES"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { cell_s: 0.3, file_bytes: 64 * MIB, folio_bytes: vec![4 << 10, 64 << 10, 2 * MIB] };
        let all = vec![4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, MIB, 2 * MIB];
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self { cell_s: 0.5, folio_bytes: all, ..quick },
            Preset::Paper => Self { cell_s: 5.0, file_bytes: 1024 * MIB, folio_bytes: all },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("folios.cell_s", &[self.cell_s])?;
        at_least("folios.file_bytes", self.file_bytes, 4 * MIB)?;
        if !self.file_bytes.is_power_of_two() {
            return Err(format!("folios.file_bytes = {}: must be a power of two", self.file_bytes));
        }
        let fine = |bytes: &u64| bytes.is_power_of_two() && (4096..=2 * MIB).contains(bytes);
        match self.folio_bytes.iter().find(|bytes| !fine(bytes)) {
            Some(bytes) => Err(format!("folios.folio_bytes = {bytes}: must be a power of two from 4096 to 2 MiB")),
            None if self.folio_bytes.is_empty() => Err("folios.folio_bytes: at least one is needed".into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
