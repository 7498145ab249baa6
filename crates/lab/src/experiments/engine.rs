//! Compares the engine with the raw device and with other databases, all in one run: `nofault db bench`.
//!
//! A work (`works`) has rows of results. A row is a variant on one set of data, measured for the engine, the raw device
//! and other databases, with the quantities to compare and the project's aims. A trial (`execute`, `trial`) finds its
//! database in the lab's folder or makes it (`place`), so that the user can measure any work alone, in any order.
//!
//! Kept true by: every value that is read is verified in full while it is timed. The engine and the device take turns,
//! so that a drift of the machine affects both. Where memory is limited, one store runs at a time and may use all of
//! the limit.

mod crash;
mod device;
mod execute;
mod figures;
mod findings;
mod gets;
mod lines;
mod literature;
mod loads;
mod params;
mod place;
mod reads;
mod space;
mod table;
mod tasks;
mod trial;
mod trials;
mod updates;
mod words;
mod works;
mod writes;
mod ycsb;

use crate::config::Config;
use crate::config::params::ParametersOf;
use crate::experiment::{Command, Description, Experiment, Needs, Section, Stores, TargetView};
use crate::literature::{Counterparts, LiteratureRow, LiteratureTable};
use crate::methods::{Family, Method, methods};
use crate::record::{ExperimentId, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::summary::{Basis, Metric, Summary};

methods! {
    /// The methods that only this experiment has.
    OWN:
    NOFAULT_POLLER = Method::new("nofault-poller", "nofault, executor's poller", Family::Pool).toned("t2").database();
    NOFAULT_BEFORE_TASK = Method::new("nofault-before-task", "nofault, before a task", Family::Pool).toned("t2").database();
    NO_READER = Method::new("no-reader", "nofault, no reader", Family::Pool).toned("t2").database();
    DEVICE = Method::new("device", "device", Family::Ring).huge().ready();
    DEVICE_BATCHES = Method::new("device-batches", "device, batches", Family::Ring).toned("t3").huge().ready();
    DEVICE_OVERWRITE = Method::new("device-overwrite", "device, overwrites", Family::Ring).huge().ready();
    IDLE_EXECUTOR = Method::new("idle-executor", "idle executor", Family::Baseline);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("engine");

/// The experiment `engine`, as the registry lists it.
pub(crate) struct Engine;

static DESCRIPTION: Description = Description {
    plan: trials::plan,
    execute: execute::execute,
    question: words::QUESTION,
    main_figure: words::MAIN_FIGURE,
    procedure: words::METHOD,
    change: words::CHANGE,
    rank: 10,
    methods: OWN,
    findings: findings::find,
    // A store's own cache can only be filled through the store.
    warms_itself: true,
    less_memory: |_| Some("--size, --memory-keys, --cache"),
    more_memory: |_| "--memory, or --limit of db bench",
    literature: literature::TABLES,
    ..Description::of(ID, &ParametersOf::<params::Params>::NEW)
};

impl Experiment for Engine {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn command(&self) -> Option<Command> {
        Some(Command {
            name: "db bench",
            parts: || works::WORKS.iter().map(|work| (work.name, works::described(work))).collect(),
        })
    }

    fn needs(&self, config: &Config) -> Needs {
        let engine: params::Params = config.params();
        let stores = Stores {
            data_bytes: engine.data_bytes,
            memory_bytes: engine.limit(),
            data_bytes_max: trials::data_bytes_max(&engine),
        };
        Needs { stores: Some(stores), ..Needs::default() }
    }

    fn preparation_s(&self, spec: &TrialSpec) -> f64 {
        trials::preparation_s(spec)
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        let quantity = works::row_of(&spec.variant).and_then(|row| row.quantities.first());
        Basis::by(quantity.map_or(Metric::OpsPerS, |quantity| quantity.metric))
    }

    fn overview(&self, summary: &Summary<'_>) -> Vec<Figure> {
        figures::overview(summary)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        figures::figures(section)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        table::sheets(place)
    }

    fn counterparts<'g, 'a>(&self, _: &LiteratureTable, _: &LiteratureRow, _: &'g Summary<'a>) -> Counterparts<'g, 'a> {
        Counterparts { groups: vec![None], on_file: false }
    }
}

#[cfg(test)]
mod tests;
