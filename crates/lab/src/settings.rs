//! A whole configuration: the presets, the checks, and the changes by a TOML file, `--set` and the flags. The
//! parameters of the experiments are their own; this module asks each experiment of the registry for its part.

use std::fmt;
use std::path::PathBuf;

use crate::config::check::{at_least, counts, larger};
use crate::config::flags::{FILE, Flag, FlagValue, Reach, SHARED, Value};
use crate::config::{Choice, Config, ExperimentId, GIB, MIB, MemoryChoice, Preset, Sections, WorkloadConfig, YesNo};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Experiment, LimitedTrials};
use crate::experiments;
use crate::paths::shown;
use crate::trace::{Op, Trace};

impl Default for Config {
    fn default() -> Self {
        Self::preset(Preset::Quick)
    }
}

impl Config {
    /// Returns the configuration of a preset.
    pub fn preset(preset: Preset) -> Self {
        let mut sections = Sections::default();
        for experiment in experiments::ALL {
            sections.put(experiment.id().name(), experiment.description().params.preset(preset));
        }
        let chosen = |experiment: &&dyn Experiment| {
            let description = experiment.description();
            experiment.command().is_none()
                && !description.needs_trace
                && (preset != Preset::Quick || description.in_quick)
        };
        let quick = Self {
            preset,
            experiments: experiments::ALL.into_iter().filter(chosen).map(Experiment::id).collect(),
            dir: PathBuf::from("nofault-lab"),
            repeats: 2,
            seed: 1,
            // Sixteen times the memory. Both are small, because making the data and filling memory before each trial is half
            // of the run on a slow device.
            data_bytes: 2 * GIB,
            memory_bytes: 128 * MIB,
            memory_method: MemoryChoice::Auto,
            memory_ballast: false,
            ram_device: Choice::Auto,
            ram_data_bytes: GIB,
            ram_memory_bytes: 128 * MIB,
            devices: Vec::new(),
            unmarked_devices: false,
            own_file: Vec::new(),
            trace: Vec::new(),
            stripe_over: Vec::new(),
            fio: Choice::Auto,
            pool: Choice::Auto,
            read_ahead_kb: Vec::new(),
            sections,
            workload: WorkloadConfig::default(),
        };
        let standard = |quick| Self {
            repeats: 3,
            // Twenty times the memory, as in the paper.
            data_bytes: 5 * GIB / 2,
            ram_data_bytes: 3 * GIB,
            ram_memory_bytes: 512 * MIB,
            // Linux's own default, and the machine's present value.
            read_ahead_kb: vec![128],
            ..quick
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self {
                data_bytes: 2000 * GIB,
                memory_bytes: 100 * GIB,
                memory_method: MemoryChoice::Ballast,
                ..standard(quick)
            },
        }
    }

    /// Whether a chosen experiment reads the data file under a memory limit smaller than the file.
    pub fn limits_file(&self) -> bool {
        self.chosen().any(|experiment| experiment.needs(self).limited != LimitedTrials::Nothing)
    }

    /// The experiments that are chosen and that this build has.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = &'static dyn Experiment> {
        self.experiments.iter().filter_map(|id| experiments::find(*id))
    }

    /// Checks conditions beyond the types: that sizes, counts and lengths make sense together.
    ///
    /// # Errors
    /// `Usage`, naming the first value that makes no sense and its permitted range.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(|wrong| LabError::new(LabErrorKind::Usage, format!("configuration: {wrong}")))
    }

    fn check(&self) -> std::result::Result<(), String> {
        for (at, id) in self.experiments.iter().enumerate() {
            experiments::parse(id.name())?;
            if self.experiments[..at].contains(id) {
                return Err(format!("experiments: {id} is named twice"));
            }
        }
        if let Some((_, path)) = self.devices.iter().enumerate().find(|(at, path)| self.devices[..*at].contains(path)) {
            return Err(format!("devices: {} is named twice", shown(&path)));
        }
        if self.experiments.is_empty() {
            return Err("experiments: at least one is needed".to_owned());
        }
        self.check_own_file()?;
        self.check_trace()?;
        counts("repeats", &[self.repeats], 1000)?;
        at_least("data_bytes", self.data_bytes, 64 * MIB)?;
        at_least("memory_bytes", self.memory_bytes, 32 * MIB)?;
        if self.limits_file() {
            larger(("data_bytes (--size)", self.data_bytes), ("memory_bytes (--memory)", self.memory_bytes))?;
        }
        at_least("ram_data_bytes", self.ram_data_bytes, 64 * MIB)?;
        at_least("ram_memory_bytes", self.ram_memory_bytes, 32 * MIB)?;
        larger(
            ("ram_data_bytes (--ram-size)", self.ram_data_bytes),
            ("ram_memory_bytes (--set ram_memory_bytes=BYTES)", self.ram_memory_bytes),
        )?;
        experiments::ALL.into_iter().try_for_each(|experiment| experiment.description().params.check(self))
    }

    /// Checks that every chosen experiment that reads the data file only reads it, where that is a file of the user's.
    fn check_own_file(&self) -> std::result::Result<(), String> {
        match self.own_file.as_slice() {
            [] => return Ok(()),
            [_] => {}
            several => return Err(format!("own_file (--file): {} files, and a run reads one", several.len())),
        }
        let given = FlagValue { flag: &FILE, value: Value::Paths(self.own_file.clone()) };
        let other = |experiment: &&dyn Experiment| {
            experiment.needs(self).file && !experiment.description().params.takes(&given, self)
        };
        match self.chosen().find(other) {
            Some(experiment) => {
                Err(given.refused(&Self { experiments: vec![experiment.id()], ..self.clone() }).to_string())
            }
            None => Ok(()),
        }
    }

    /// Checks that there is at most one trace, that it can be read, and that a chosen replay has one.
    fn check_trace(&self) -> std::result::Result<(), String> {
        match self.trace.as_slice() {
            [] => {
                let lacks = |experiment: &dyn Experiment| experiment.description().needs_trace;
                let lacking = self.chosen().find(|experiment| lacks(*experiment));
                lacking.map_or(Ok(()), |found| {
                    Err(format!("{} replays a recorded program: name its trace with --trace FILE", found.id()))
                })
            }
            [path] => Trace::read(path).map(|_| ()).map_err(|error| error.to_string()),
            several => Err(format!("trace (--trace): {} files, and a run replays one", several.len())),
        }
    }

    /// Answers the questions about the workload that a trace answers and the user left open: whether it writes, and its threads.
    fn answer_from_trace(&mut self) {
        let Some(Ok(trace)) = self.trace.first().map(|path| Trace::read(path)) else { return };
        if self.workload.read_only == YesNo::Nothing {
            self.workload.read_only = (trace.count(Op::Write) == 0).into();
        }
        if self.workload.threads == 0 {
            self.workload.threads = u32::try_from(trace.threads.len()).unwrap_or(u32::MAX);
        }
    }

    /// Parses a TOML file's text. Missing values come from the preset that the file names (`quick` where it names
    /// none).
    ///
    /// # Errors
    /// `Usage` with line and reason for bad TOML, unknown names and values of the wrong type.
    pub fn from_toml(text: &str) -> Result<Self> {
        let usage = |error: &dyn fmt::Display| LabError::new(LabErrorKind::Usage, format!("configuration: {error}"));
        let given: toml::Table = text.parse().map_err(|error| usage(&error))?;
        let preset = match given.get("preset") {
            Some(name) => name.clone().try_into().map_err(|error| usage(&error))?,
            None => Preset::Quick,
        };
        Self::preset(preset).with(given).map_err(|error| usage(&error))
    }

    /// Formats the whole configuration as TOML, which can be edited and read again.
    ///
    /// # Errors
    /// `Usage` when a value has no TOML form (an integer beyond 2^63).
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| LabError::new(LabErrorKind::Usage, format!("configuration: {error}")))
    }

    /// Returns the configuration with one value changed. `assignment` is `name=value`, as in a TOML file; quotes around
    /// a word may be left out.
    ///
    /// # Errors
    /// `Usage` for a text that is no assignment, for unknown names and for values of the wrong type.
    pub fn assign(&self, assignment: &str) -> Result<Self> {
        let usage = |why: String| LabError::new(LabErrorKind::Usage, format!("--set {assignment}: {why}"));
        let (name, value) = assignment
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .ok_or_else(|| usage("a name and a value are needed, as in random.block_bytes=8192".into()))?;
        if name == "preset" {
            return Err(usage("other values begin with the preset; say --preset".into()));
        }
        let quoted = toml::Value::from(value);
        let given: toml::Table = format!("{name} = {value}")
            .parse()
            .or_else(|_| format!("{name} = {quoted}").parse())
            .map_err(|error: toml::de::Error| usage(error.message().to_owned()))?;
        self.with(given).map_err(usage)
    }

    /// Returns the configuration with the values of a TOML table in place of the present ones.
    fn with(&self, given: toml::Table) -> std::result::Result<Self, String> {
        let whole = self.clone().normalised()?;
        let mut all = toml::Table::try_from(&whole).map_err(|error| error.to_string())?;
        merge(&mut all, given, "")?;
        let wrong = |error: toml::de::Error| error.to_string().trim_end().replace('\n', " ");
        let mut config: Self = all.try_into().map_err(wrong)?;
        // A table sorts its names.
        config.sections = config.sections.in_order_of(&whole.sections);
        config.normalised()
    }

    /// Returns the configuration with every section complete, its values in the declared order and of the declared
    /// types.
    fn normalised(mut self) -> std::result::Result<Self, String> {
        experiments::ALL.into_iter().try_for_each(|experiment| experiment.description().params.normalise(&mut self))?;
        Ok(self)
    }

    /// Returns the configuration changed by the flags of the command line and then by the assignments of `--set`. The
    /// assignments also decide to which experiments the flags apply.
    ///
    /// # Errors
    /// `Usage` for an assignment that fails, and for a flag for which none of the chosen experiments has a parameter: a
    /// run that ignored a flag would seem to have obeyed it.
    pub fn with_flags(self, given: &[FlagValue], assignments: &[String]) -> Result<Self> {
        let assigned = |config: Self| assignments.iter().try_fold(config, |config, text| config.assign(text));
        let usage = |why: String| LabError::new(LabErrorKind::Usage, format!("configuration: {why}"));
        let mut config = self.normalised().map_err(usage)?;
        let seen = assigned(config.clone())?;
        for given in given {
            given.put(&mut config, &seen);
        }
        let mut config = assigned(config)?;
        config.answer_from_trace();
        let unused = |given: &&FlagValue| {
            let taken = || config.chosen().any(|experiment| experiment.description().params.takes(given, &config));
            given.value.asks() && given.flag.reach != Reach::Run && !taken()
        };
        match given.iter().find(unused) {
            Some(given) => Err(given.refused(&config)),
            None => Ok(config),
        }
    }
}

impl FlagValue {
    /// Stores the value in the parameters of the experiments that the configuration `seen` selects.
    fn put(&self, config: &mut Config, seen: &Config) {
        let shared = || seen.chosen().any(|experiment| experiment.description().params.shares(self, seen));
        if let Some(put) = self.flag.shared
            && (self.flag.reach == Reach::Run || !self.value.asks() || shared())
        {
            put(config, &self.value);
        }
        for experiment in experiments::ALL {
            let of_chosen = matches!(self.flag.reach, Reach::Chosen | Reach::Takers);
            if !of_chosen || seen.experiments.contains(&experiment.id()) {
                experiment.description().params.put(self, config);
            }
        }
    }

    /// The error for a flag that no chosen experiment takes: it names the experiments with such a parameter, and the
    /// closest alternative in the chosen ones.
    fn refused(&self, config: &Config) -> LabError {
        let names = |names: Vec<ExperimentId>| {
            let names: Vec<&str> = names.into_iter().map(ExperimentId::name).collect();
            match names.as_slice() {
                [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
                names => names.join(""),
            }
        };
        let takes = |experiment: &&dyn Experiment| experiment.description().params.takes(self, config);
        let takers = experiments::ALL.into_iter().filter(takes).map(Experiment::id).collect();
        let nearest: Vec<&str> =
            config.chosen().filter_map(|experiment| experiment.description().params.nearest(self.flag)).collect();
        let nearest = if nearest.is_empty() { String::new() } else { format!("; nearest: {}", nearest.join("; ")) };
        let (chosen, takers) = (names(config.experiments.clone()), names(takers));
        let message = format!("--{} changes nothing in {chosen}: it is for {takers}{nearest}", self.flag.name);
        LabError::new(LabErrorKind::Usage, message)
    }
}

/// The experiments of a run that names none, where flags of [`Reach::Takers`] are given: those that take them all.
pub fn chosen_by(given: &[FlagValue]) -> Option<Vec<ExperimentId>> {
    let flags: Vec<&FlagValue> = given.iter().filter(|given| given.flag.reach == Reach::Takers).collect();
    flags.first()?;
    let config = Config::default();
    let takes = |experiment: &&dyn Experiment| {
        let params = experiment.description().params;
        experiment.command().is_none() && flags.iter().all(|flag| params.takes(flag, &config))
    };
    Some(experiments::ALL.into_iter().filter(takes).map(Experiment::id).collect())
}

/// All flags with their help, including the notes that experiments add.
pub fn flags() -> Vec<(&'static Flag, String)> {
    let mut flags: Vec<(&'static Flag, String)> = SHARED.into_iter().map(|flag| (flag, flag.help.to_owned())).collect();
    for (flag, note) in experiments::ALL.into_iter().flat_map(|experiment| experiment.description().params.flags()) {
        match flags.iter_mut().find(|(known, _)| known.name == flag.name) {
            Some((_, help)) => help.push_str(note),
            None => flags.push((flag, format!("{}{note}", flag.help))),
        }
    }
    flags
}

/// Merges the table `given` into `base`, nested tables included. A name that `base` does not have is an error, which
/// names it as part of `inside`.
fn merge(base: &mut toml::Table, given: toml::Table, inside: &str) -> std::result::Result<(), String> {
    for (name, value) in given {
        match (base.get_mut(&name), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(value)) => merge(inner, value, &format!("{name}."))?,
            (Some(old), value) => *old = value,
            (None, _) => {
                let known: Vec<&str> = base.keys().map(String::as_str).collect();
                return Err(format!("unknown name '{inside}{name}'; known: {}", known.join(", ")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    // A configuration is changed by name, refused by name, and printed as it was declared.
    use super::*;
    use crate::config::YesNo;

    #[test]
    fn every_preset_is_valid_and_survives_toml() {
        for preset in [Preset::Quick, Preset::Standard, Preset::Paper] {
            let config = Config::preset(preset);
            config.validate().unwrap();
            assert_eq!(Config::from_toml(&config.to_toml().unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn a_configuration_file_changes_only_the_values_that_it_names() {
        let config = Config::from_toml("preset = 'standard'\n[random]\nthreads = [7]\n").unwrap();
        assert_eq!(config, Config::preset(Preset::Standard).assign("random.threads=[7]").unwrap());
        assert_ne!(config, Config::preset(Preset::Standard));
        let config = Config::from_toml("[workload]\nread_only = 'yes'\nthreads = 4\n").unwrap();
        let said = WorkloadConfig { read_only: YesNo::Yes, threads: 4, ..WorkloadConfig::default() };
        assert_eq!(config, Config { workload: said, ..Config::default() });
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused =
            |text: &str| Config::from_toml(text).and_then(|config| config.validate()).unwrap_err().to_string();
        assert!(refused("[random]\nthread = [7]").contains("thread"));
        assert!(refused("[workload]\nread_only = 'perhaps'").contains("perhaps"));
        assert!(refused("experiments = ['nothing']").contains("nothing"));
        assert!(refused("[random]\ncell_s = -1.0").contains("random.cell_s"));
        assert!(refused("memory_bytes = 4294967296").contains("data_bytes"));
        assert!(refused("[scan]\nblock_bytes = 5000").contains("scan.block_bytes"));
        assert!(refused("this is not toml").contains("configuration"));
    }

    #[test]
    fn every_value_of_a_printed_configuration_can_be_set_by_its_name() {
        let from = Config::preset(Preset::Quick);
        let to = Config { preset: Preset::Quick, ..Config::preset(Preset::Paper) };
        let mut now = from;
        let mut table = String::new();
        let mut count = 0;
        for line in to.to_toml().unwrap().lines() {
            match line.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
                Some(name) => table = format!("{name}."),
                None if line.contains(" = ") && !line.starts_with("preset") => {
                    now = now.assign(&format!("{table}{line}")).unwrap();
                    count += 1;
                }
                None => {}
            }
        }
        assert_eq!(now, to);
        assert!(count > 80, "{count}");
    }

    #[test]
    fn words_need_no_quotes_and_nonsense_is_named() {
        let config = Config::default();
        assert_eq!(config.assign("fio=off").unwrap().fio, Choice::Off);
        assert_eq!(config.assign(" fio = 'off' ").unwrap().fio, Choice::Off);
        let threads = config.assign("random.threads=[3, 5]").unwrap();
        assert_eq!(threads, Config::from_toml("[random]\nthreads = [3, 5]").unwrap());
        for (assignment, words) in [
            ("random.block_bytes", "a name and a value"),
            ("random.block_byte=4096", "random.block_byte"),
            ("random.threads=many", "random.threads"),
            ("=3", "a name and a value"),
            ("preset=paper", "--preset"),
            ("a b=3", "--set a b=3"),
        ] {
            let error = config.assign(assignment).unwrap_err();
            assert_eq!(error.kind(), LabErrorKind::Usage);
            assert!(error.to_string().contains(words), "{assignment}: {error}");
        }
    }
}
