//! The experiments: a line for each. Everything else about one stands in its folder; experiments do not import each other, and what
//! two of them share is in a module below.

pub mod access;
pub mod async_hazard;
pub mod claims;
pub mod engines;
pub mod errors;
pub mod eviction;
pub mod random;
pub mod safety;
pub mod scan;
pub mod stalls;
pub mod translate;

use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Experiment;
use crate::record::ExperimentId;
use crate::record::file::RecordFile;
use crate::summary::{Basis, Metric, Summary};

/// All of them, in the order they run and are reported.
pub(crate) static ALL: [&dyn Experiment; 11] = [
    &random::Random,
    &scan::Scan,
    &async_hazard::AsyncHazard,
    &access::Access,
    &safety::Safety,
    &stalls::Stalls,
    &errors::Errors,
    &eviction::Eviction,
    &translate::Translate,
    &engines::Engines,
    &claims::Claims,
];

/// The experiment of a name; `None` for one of a newer nofault, whose records are read all the same.
pub(crate) fn find(id: ExperimentId) -> Option<&'static dyn Experiment> {
    ALL.into_iter().find(|experiment| experiment.id() == id)
}

/// The experiment that a cell is of, to be planned or executed.
///
/// # Errors
/// `Usage` for a name that is not in the registry.
pub(crate) fn known(id: ExperimentId) -> Result<&'static dyn Experiment> {
    find(id).ok_or_else(|| LabError::new(LabErrorKind::Usage, format!("there is no experiment '{id}'")))
}

impl<'a> Summary<'a> {
    /// Groups a file's cells, each judged as its experiment says.
    pub fn of(file: &'a RecordFile) -> Self {
        let unknown = Basis::by(Metric::OpsPerS);
        Self::judged(file, |spec| find(spec.experiment).map_or(unknown, |experiment| experiment.basis(spec)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_experiment_stands_where_its_name_says() {
        for (experiment, id) in ALL.iter().zip(ExperimentId::ALL) {
            assert_eq!(experiment.id(), id);
            assert_eq!(find(id).map(|found| found.id()), Some(id));
        }
    }

    #[test]
    fn every_experiment_has_figures_of_others_and_every_row_a_value_for_each_column() {
        for experiment in ALL {
            assert!(!experiment.literature().is_empty(), "{}", experiment.id());
            for table in experiment.literature() {
                for row in table.rows {
                    assert_eq!(row.values.len(), table.columns.len(), "{}: {}", table.title, row.label);
                }
            }
        }
    }
}
