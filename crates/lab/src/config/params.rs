//! The parameters of an experiment: a section of the configuration with names and types, its presets, its check, and the flags that
//! reach it.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::flags::{Flag, FlagValue, Reach, Use};
use super::sections::Section;
use super::{Config, ExperimentId, Preset};

/// The parameters of an experiment, as a type.
pub trait Params: Serialize + DeserializeOwned + Sized + 'static {
    /// The experiment that has these parameters. Its name is the name of their section.
    const OF: ExperimentId;

    /// The flags of values that all experiments share and that this one obeys, without more.
    const SHARED: &'static [&'static Flag] = &[];

    /// What each other flag of the command line means for the experiment.
    const FLAGS: &'static [Use<Self>];

    /// Returns the parameters of a preset.
    fn preset(preset: Preset) -> Self;

    /// Checks conditions beyond the types: that sizes, counts and lengths make sense together.
    ///
    /// # Errors
    /// The first value that makes no sense, by its full name, with the permitted range.
    fn check(&self) -> Result<(), String>;
}

impl Config {
    /// Returns the parameters of the experiment of `P`. A missing value is the preset's. A section that cannot be read
    /// is entirely the preset's; [`Config::validate`] refuses such a configuration.
    pub fn params<P: Params>(&self) -> P {
        self.try_params().unwrap_or_else(|_| P::preset(self.preset))
    }

    /// Changes parameters of the experiment of `P`.
    pub fn change<P: Params>(&mut self, change: impl FnOnce(&mut P)) {
        let mut params = self.params();
        change(&mut params);
        self.sections.put(P::OF.name(), Section::of(&params));
    }

    fn try_params<P: Params>(&self) -> Result<P, toml::de::Error> {
        let preset = P::preset(self.preset);
        match self.sections.get(P::OF.name()) {
            Some(section) => section.read(Section::of(&preset)),
            None => Ok(preset),
        }
    }
}

/// An experiment's [`Params`] as a trait object, for code that knows the experiment only by its name.
pub(crate) trait Parameters: Sync {
    /// Returns the experiment's section with the values of a preset.
    fn preset(&self, preset: Preset) -> Section;

    /// Rewrites the experiment's section, in the declared order and with each value in its declared type.
    ///
    /// # Errors
    /// The value that cannot be read.
    fn normalise(&self, config: &mut Config) -> Result<(), String>;

    /// Checks the values of the experiment's section.
    ///
    /// # Errors
    /// The first value that makes no sense.
    fn check(&self, config: &Config) -> Result<(), String>;

    /// The flags for which the experiment has a parameter, each with its note for the help.
    fn flags(&self) -> Vec<(&'static Flag, &'static str)>;

    /// Whether a flag changes the measurement of the experiment, as the configuration has it.
    fn takes(&self, given: &FlagValue, config: &Config) -> bool;

    /// Whether a flag changes the measurement of the experiment by the value that all experiments share.
    fn shares(&self, given: &FlagValue, config: &Config) -> bool;

    /// Names the closest alternative to a flag that does not apply to the experiment.
    fn nearest(&self, flag: &Flag) -> Option<&'static str>;

    /// Stores a flag's value in the experiment's own parameter, if it has one.
    fn put(&self, given: &FlagValue, config: &mut Config);
}

/// Implements [`Parameters`] for the type `P`.
pub(crate) struct ParametersOf<P>(PhantomData<fn() -> P>);

impl<P> ParametersOf<P> {
    pub(crate) const NEW: Self = Self(PhantomData);
}

fn use_of<P: Params>(flag: &Flag) -> Option<Use<P>> {
    uses::<P>().find(|own| own.flag.name == flag.name)
}

/// The uses of all flags of an experiment.
fn uses<P: Params>() -> impl Iterator<Item = Use<P>> {
    P::FLAGS.iter().copied().chain(P::SHARED.iter().copied().map(Use::shared))
}

fn unreadable<P: Params>(error: &toml::de::Error) -> String {
    format!("[{}] {}", P::OF, error.to_string().trim_end().replace('\n', " "))
}

impl<P: Params> Parameters for ParametersOf<P> {
    fn preset(&self, preset: Preset) -> Section {
        Section::of(&P::preset(preset))
    }

    fn normalise(&self, config: &mut Config) -> Result<(), String> {
        let params: P = config.try_params().map_err(|error| unreadable::<P>(&error))?;
        config.sections.put(P::OF.name(), Section::of(&params));
        Ok(())
    }

    fn check(&self, config: &Config) -> Result<(), String> {
        let params: P = config.try_params().map_err(|error| unreadable::<P>(&error))?;
        params.check()
    }

    fn flags(&self) -> Vec<(&'static Flag, &'static str)> {
        uses::<P>().map(|own| (own.flag, own.note)).collect()
    }

    fn takes(&self, given: &FlagValue, config: &Config) -> bool {
        use_of::<P>(given.flag).is_some_and(|own| (own.reaches)(&config.params(), &given.value))
    }

    fn shares(&self, given: &FlagValue, config: &Config) -> bool {
        use_of::<P>(given.flag).is_some_and(|own| own.shares) && self.takes(given, config)
    }

    fn nearest(&self, flag: &Flag) -> Option<&'static str> {
        use_of::<P>(flag)?.nearest
    }

    fn put(&self, given: &FlagValue, config: &mut Config) {
        let Some(own) = use_of::<P>(given.flag) else { return };
        let mut params: P = config.params();
        let everywhere = !matches!(given.flag.reach, Reach::Chosen | Reach::Takers);
        if everywhere || (own.reaches)(&params, &given.value) {
            (own.put)(&mut params, &given.value);
            config.sections.put(P::OF.name(), Section::of(&params));
        }
    }
}
