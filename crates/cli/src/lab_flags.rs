//! The flags of experiments as arguments of the command line. The lab has the flags as data; their names, values and
//! help are made from it, so that a flag that an experiment declares is available here too.

use std::path::PathBuf;

use clap::builder::EnumValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, ValueEnum, value_parser};
use nofault_lab::config::flags::{Flag, FlagValue, Kind, Value};
use nofault_lab::config::{Choice, MemoryChoice, parse_bytes};
use nofault_lab::settings;

/// The experiments' flags given on the command line, with their values.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExperimentFlags {
    pub(crate) given: Vec<FlagValue>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MemoryName {
    Auto,
    Cgroup,
    Ballast,
    LargeFile,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ChoiceName {
    Auto,
    Require,
    Off,
}

impl From<ChoiceName> for Choice {
    fn from(name: ChoiceName) -> Self {
        match name {
            ChoiceName::Auto => Self::Auto,
            ChoiceName::Require => Self::Require,
            ChoiceName::Off => Self::Off,
        }
    }
}

impl From<MemoryName> for MemoryChoice {
    fn from(name: MemoryName) -> Self {
        match name {
            MemoryName::Auto => Self::Auto,
            MemoryName::Cgroup => Self::Cgroup,
            MemoryName::Ballast => Self::Ballast,
            MemoryName::LargeFile => Self::LargeFile,
        }
    }
}

/// Makes the clap argument of a flag.
fn argument(flag: &'static Flag, help: String) -> Arg {
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .value_name(flag.value_name)
        .help(help)
        .help_heading(flag.heading.title())
        .action(ArgAction::Set);
    let list = |argument: Arg| argument.action(ArgAction::Append).value_delimiter(',');
    match flag.kind {
        Kind::Seconds => argument.value_parser(value_parser!(f64)),
        Kind::Bytes => argument.value_parser(parse_bytes),
        Kind::Count => argument.value_parser(value_parser!(u32)),
        Kind::Counts => list(argument).value_parser(value_parser!(u32)),
        Kind::Numbers => list(argument).value_parser(value_parser!(u64)),
        Kind::Choice => argument.value_parser(EnumValueParser::<ChoiceName>::new()),
        Kind::Memory => argument.value_parser(EnumValueParser::<MemoryName>::new()),
        Kind::Paths => argument.action(ArgAction::Append).value_parser(value_parser!(PathBuf)),
        Kind::Switch => argument.action(ArgAction::SetTrue),
    }
}

/// The value of a flag on the command line; `None` where it was not given.
fn value(flag: &Flag, matches: &ArgMatches) -> Result<Option<Value>, Error> {
    fn one<T: Clone + Send + Sync + 'static>(name: &str, matches: &ArgMatches) -> Result<Option<T>, Error> {
        let found = matches.try_get_one(name).map_err(|error| Error::raw(ErrorKind::ArgumentConflict, error))?;
        Ok(found.cloned())
    }
    fn all<T: Clone + Send + Sync + 'static>(name: &str, matches: &ArgMatches) -> Result<Option<Vec<T>>, Error> {
        let found = matches.try_get_many(name).map_err(|error| Error::raw(ErrorKind::ArgumentConflict, error))?;
        Ok(found.map(|values| values.cloned().collect()))
    }
    let name = flag.name;
    Ok(match flag.kind {
        Kind::Seconds => one(name, matches)?.map(Value::Seconds),
        Kind::Bytes => one(name, matches)?.map(Value::Bytes),
        Kind::Count => one(name, matches)?.map(Value::Count),
        Kind::Counts => all(name, matches)?.map(Value::Counts),
        Kind::Numbers => all(name, matches)?.map(Value::Numbers),
        Kind::Choice => one::<ChoiceName>(name, matches)?.map(|choice| Value::Choice(choice.into())),
        Kind::Memory => one::<MemoryName>(name, matches)?.map(|method| Value::Memory(method.into())),
        Kind::Paths => all(name, matches)?.map(Value::Paths),
        Kind::Switch => one::<bool>(name, matches)?.filter(|given| *given).map(|_| Value::Switch),
    })
}

impl Args for ExperimentFlags {
    fn augment_args(command: Command) -> Command {
        settings::flags().into_iter().fold(command, |command, (flag, help)| command.arg(argument(flag, help)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ExperimentFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for (flag, _) in settings::flags() {
            self.given.extend(value(flag, matches)?.map(|value| FlagValue { flag, value }));
        }
        Ok(())
    }
}
