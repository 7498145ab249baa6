//! `nofault db bench`: the lab with the one experiment that has this command; its flags become the experiment's parameters.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use nofault_lab::config::{Config, ExperimentId, Preset};
use nofault_lab::error::{LabError, LabErrorKind};
use nofault_lab::experiments;

use crate::db_args::BenchArguments;
use crate::lab;
use crate::output::print;
use crate::signals::Signals;

/// The command under which the lab has the experiment.
const COMMAND: &str = "db bench";
/// Name of the folder for databases and results, inside the folder that the user names; the default of `nofault lab`.
const FOLDER: &str = "nofault-lab";

/// Runs the benchmark as a run of the lab, whose result is kept.
pub(super) fn run(arguments: &BenchArguments, signals: &Signals) -> Result<ExitCode> {
    let Some((experiment, command)) = experiments::of_command(COMMAND) else {
        return Err(LabError::new(LabErrorKind::Unsupported, format!("no experiment has the command {COMMAND}")).into());
    };
    if arguments.list {
        let parts = (command.parts)();
        print(&parts.iter().fold(String::new(), |text, (name, what)| text + &format!("{name:<15} {what}\n")))?;
        return Ok(ExitCode::SUCCESS);
    }
    lab::measure(config(arguments, experiment)?, false, &arguments.results, signals)
}

/// Makes the configuration of the run from the flags.
fn config(arguments: &BenchArguments, experiment: ExperimentId) -> nofault_lab::error::Result<Config> {
    let dir = if arguments.dir == Path::new(".") { FOLDER.into() } else { arguments.dir.join(FOLDER) };
    let config = Config {
        experiments: vec![experiment],
        dir,
        seed: arguments.seed,
        repeats: arguments.repeats,
        ..Config::preset(Preset::Quick)
    };
    // A flag that is not given leaves the preset's value.
    let bytes = [("cache_bytes", arguments.cache), ("limit_bytes", arguments.limit)];
    let chosen = bytes.into_iter().filter_map(|(name, value)| Some((name, value?.to_string())));
    let given = [
        ("works", format!("{:?}", arguments.works)),
        ("data_bytes", arguments.size.to_string()),
        ("memory_keys", arguments.memory_keys.to_string()),
        ("value_bytes", format!("{:?}", arguments.values)),
        ("log_bytes", arguments.log.to_string()),
        ("cell_s", format!("{:?}", arguments.seconds)),
    ];
    let assigned = given
        .into_iter()
        .chain(chosen)
        .try_fold(config, |config, (name, value)| config.assign(&format!("{experiment}.{name}={value}")))?;
    assigned.validate()?;
    Ok(assigned)
}
