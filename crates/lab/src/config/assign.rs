//! One parameter by its name in TOML, from the command line: `random.block_bytes=8192`.

use super::{Config, merge};
use crate::error::{LabError, LabErrorKind, Result};

impl Config {
    /// The same with one value changed: `name=value`, as a TOML file would say it; quotes around a word may be left out.
    ///
    /// # Errors
    /// `Usage` for what is no assignment, for unknown names and for values of the wrong type.
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
        let mut all = toml::Table::try_from(self).map_err(|error| usage(error.to_string()))?;
        merge(&mut all, given, "").map_err(|error| usage(error.to_string()))?;
        all.try_into().map_err(|error: toml::de::Error| usage(error.message().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Choice, Preset};
    use super::*;

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
        assert_eq!(config.assign("random.threads=[3, 5]").unwrap().random.threads, [3, 5]);
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
