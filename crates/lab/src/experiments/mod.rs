//! The registry of the experiments, with one line for each. Everything else about an experiment stands in its own
//! folder; experiments do not import each other, and code shared by two of them is in a module below.

pub mod access;
pub mod async_hazard;
pub mod bulk;
pub mod claims;
pub mod crossover;
pub mod databases;
pub mod errors;
pub mod eviction;
pub mod folios;
pub mod random;
pub mod replay;
pub mod rss;
pub mod safety;
pub mod scan;
pub mod stalls;
pub mod translate;

pub use bulk::{batch, load};
pub use databases::{engine, engines};

use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Command, Experiment};
use crate::methods::{self, Method};
use crate::record::ExperimentId;
use crate::record::file::RecordFile;
use crate::summary::{Basis, Metric, Summary};

/// All experiments, in the order in which they run and are reported.
pub(crate) static ALL: [&dyn Experiment; 18] = [
    &random::Random,
    &replay::Replay,
    &scan::Scan,
    &async_hazard::AsyncHazard,
    &access::Access,
    &crossover::Crossover,
    &batch::Batch,
    &load::Load,
    &rss::Rss,
    &safety::Safety,
    &stalls::Stalls,
    &errors::Errors,
    &eviction::Eviction,
    &folios::Folios,
    &translate::Translate,
    &engines::Engines,
    &engine::Engine,
    &claims::Claims,
];

/// The experiment with this id; `None` for an experiment of a newer nofault, whose records can be read even so.
pub(crate) fn find(id: ExperimentId) -> Option<&'static dyn Experiment> {
    ALL.into_iter().find(|experiment| experiment.id() == id)
}

/// Returns the experiment of a trial to be planned or executed.
///
/// # Errors
/// `Usage` for a name that is not in the registry.
pub(crate) fn known(id: ExperimentId) -> Result<&'static dyn Experiment> {
    find(id).ok_or_else(|| LabError::new(LabErrorKind::Usage, format!("there is no experiment '{id}'")))
}

/// Returns the ids of all experiments, in the order of `ALL`.
pub fn ids() -> impl Iterator<Item = ExperimentId> {
    ALL.into_iter().map(Experiment::id)
}

/// Returns the position of an experiment in `ALL`; for an experiment of a newer nofault, the position after the last.
pub(crate) fn place(id: ExperimentId) -> usize {
    ALL.iter().position(|experiment| experiment.id() == id).unwrap_or(ALL.len())
}

/// Returns the id of the experiment whose name a user wrote.
///
/// # Errors
/// A sentence that lists the known experiments.
pub fn parse(name: &str) -> std::result::Result<ExperimentId, String> {
    ids().find(|id| id.name() == name).ok_or_else(|| {
        let known: Vec<_> = ids().map(ExperimentId::name).collect();
        format!("unknown experiment '{name}'; the experiments are {}", known.join(", "))
    })
}

/// Returns the command of this name and the id of the experiment that it runs alone; `None` when no experiment has such
/// a command.
pub fn of_command(name: &str) -> Option<(ExperimentId, Command)> {
    ALL.into_iter().find_map(|experiment| {
        let command = experiment.command().filter(|command| command.name == name)?;
        Some((experiment.id(), command))
    })
}

/// Whether any of these experiments is about memory maps: every experiment is, except the ones that are commands
/// themselves.
pub fn are_about_maps(ids: &[ExperimentId]) -> bool {
    ids.iter().any(|id| find(*id).is_none_or(|experiment| experiment.command().is_none()))
}

/// Finds a method of an experiment by its id; `None` for a method of a newer nofault.
pub(crate) fn method(experiment: ExperimentId, id: &str) -> Option<&'static Method> {
    methods::find(find(experiment).map_or(&[], |experiment| experiment.description().methods), id)
}

/// Returns a method's title for tables and charts.
pub(crate) fn method_title(experiment: ExperimentId, id: &str) -> String {
    methods::title(method(experiment, id), id)
}

impl<'a> Summary<'a> {
    /// Groups the trials of a record file; each group is judged by the rules of its experiment.
    pub fn of(file: &'a RecordFile) -> Self {
        Self::judged(file, |spec| {
            let basis = find(spec.experiment).map(|experiment| experiment.basis(spec));
            (basis.unwrap_or(Basis::by(Metric::OpsPerS)), method(spec.experiment, &spec.method))
        })
    }
}

/// Measures a trial in this process, as the tests of all experiments do.
#[cfg(test)]
pub(crate) fn run_here(spec: &crate::record::TrialSpec) -> Result<crate::record::Outcome> {
    let (watch, cancel) = (nofault_io::counters::Watch::new(), std::sync::atomic::AtomicBool::new(false));
    let mut context =
        crate::experiment::Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} };
    known(spec.experiment)?.execute(spec, &mut context)
}

/// How trials of tests empty the page cache: by advice, in a deep run as well as the rights allow.
#[cfg(test)]
pub(crate) fn cold_in_tests() -> crate::machine::cache::Means {
    use crate::machine::cache::Means;
    if nofault_sim::depth::is_deep() { Means::best() } else { Means::Advise }
}

/// Whether this machine lacks a means that a trial needs. The test then prints the missing means.
#[cfg(test)]
pub(crate) fn is_missing(spec: &crate::record::TrialSpec, error: &LabError) -> bool {
    let missing = [LabErrorKind::Unsupported, LabErrorKind::NoPermission].contains(&error.kind());
    if missing {
        eprintln!("skipped: {}: {error}", spec.key());
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Preset};
    use crate::experiment::Available;

    #[test]
    fn experiment_names_are_unique_and_each_finds_its_experiment() {
        for experiment in ALL {
            let id = experiment.id();
            assert_eq!(ids().filter(|other| *other == id).count(), 1, "{id}");
            assert_eq!(parse(id.name()), Ok(id));
            assert_eq!(find(ExperimentId::of(id.name())).map(|found| found.id()), Some(id));
        }
        assert!(parse("telepathy").unwrap_err().contains("random, replay, scan"));
    }

    #[test]
    fn every_experiment_states_its_question_procedure_and_conditions() {
        for experiment in ALL {
            let description = experiment.description();
            assert!(
                !description.texts.question.is_empty() && !description.texts.procedure.is_empty(),
                "{}",
                experiment.id()
            );
            assert!(!description.texts.change.is_empty() && description.rank < u32::MAX, "{}", experiment.id());
        }
    }

    #[test]
    fn the_main_figures_fit_a_terminal_and_stand_in_the_documents() {
        let documents = include_str!("../../../../docs/claims.md");
        for description in ALL.map(|experiment| experiment.description()) {
            let (id, figure) = (description.id, description.texts.main_figure);
            assert!(figure.chars().count() <= 64, "{id}: {figure}");
            assert!(figure.is_empty() || documents.contains(&format!("| `{id}` | {figure} |")), "{id}: {figure}");
        }
    }

    #[test]
    fn every_planned_method_is_known_and_method_ids_are_unique() {
        let config = Config::preset(Preset::Standard);
        for experiment in ALL {
            let plan = experiment.plan(&config, &Available::default());
            for spec in plan.trials.iter().chain(&plan.once) {
                assert!(method(spec.experiment, &spec.method).is_some(), "{}", spec.key());
            }
            let ids: Vec<&str> =
                experiment.description().methods.iter().chain(methods::SHARED).map(|method| method.id).collect();
            assert!(ids.iter().all(|id| ids.iter().filter(|other| *other == id).count() == 1), "{ids:?}");
        }
    }

    #[test]
    fn a_method_of_a_newer_nofault_is_shown_and_is_on_no_side() {
        let rates = [("mmap-of-tomorrow", 5e4), ("pread-direct", 9e4)];
        let file = crate::report::verdict::tests::file(random::ID, "", &rates);
        let summary = Summary::of(&file);
        let unknown = &summary.groups[0];
        assert_eq!((unknown.family(), unknown.title()), (methods::Family::Other, "mmap of tomorrow".to_owned()));
        let compared = |finding: &crate::judge::Finding| finding.rule == "mapped-against-explicit";
        assert!(!crate::report::findings::findings(&file, &summary).iter().any(compared));
        let verdict = crate::report::verdict::judge(&file, &summary, crate::report::verdict::Workload::default());
        assert!(verdict.reasons.is_empty(), "{:?}", verdict.reasons);
    }

    #[test]
    fn every_experiment_has_published_figures_with_a_value_for_every_column() {
        for experiment in ALL {
            // A program of the user's has no published figures.
            let description = experiment.description();
            assert_eq!(description.literature.is_empty(), description.needs_trace, "{}", experiment.id());
            for table in experiment.description().literature {
                for row in table.rows {
                    assert_eq!(row.values.len(), table.columns.len(), "{}: {}", table.title, row.label);
                }
            }
        }
    }
}
