//! The sections of a configuration: one for each experiment, as data. The names and types in a section are defined by
//! its experiment's `Params`; here it is a list of named values that keeps its order, so that it is written as it was
//! read.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Value;

/// The parameters of one experiment: their names and values, in order.
#[derive(Debug, Clone, Default)]
pub struct Section(Vec<(String, Value)>);

/// The sections of a configuration: names of experiments and their parameters.
#[derive(Debug, Clone, Default)]
pub struct Sections(Vec<(String, Section)>);

impl Section {
    /// Creates a section with the fields of `params`, in the order of their declaration.
    pub(super) fn of(params: &impl Serialize) -> Self {
        // A TOML table holds every value that a parameter may have, and sorts the names; JSON keeps their order.
        let mut table = toml::Table::try_from(params).unwrap_or_default();
        let names: Entries<IgnoredAny> =
            serde_json::to_string(params).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Self(names.0.into_iter().filter_map(|(name, _)| Some((table.remove(&name)?, name))).map(swap).collect())
    }

    /// Reads the values as `P`. A missing value is taken from `base`; a name that `base` does not have is ignored.
    pub(super) fn read<P: DeserializeOwned>(&self, base: Self) -> Result<P, toml::de::Error> {
        let value = |name: &str, old: Value| self.get(name).cloned().unwrap_or(old);
        let fields = base.0.into_iter().map(|(name, old)| (name.clone(), value(&name, old)));
        Value::Table(fields.collect()).try_into()
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }
}

fn swap((value, name): (Value, String)) -> (String, Value) {
    (name, value)
}

impl Sections {
    /// Returns the section with this name.
    pub fn get(&self, name: &str) -> Option<&Section> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, section)| section)
    }

    /// Replaces the section of this name, or appends it.
    pub(crate) fn put(&mut self, name: &str, section: Section) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = section,
            None => self.0.push((name.to_owned(), section)),
        }
    }

    /// Returns these sections in the order of `other`, without sections that `other` lacks.
    pub(crate) fn in_order_of(mut self, other: &Self) -> Self {
        let place = |(name, _): &(String, Section)| other.0.iter().position(|(known, _)| known == name);
        self.keep_common(other);
        self.0.sort_by_key(place);
        self
    }

    /// Removes the sections of experiments that `other` lacks.
    pub(crate) fn keep_common(&mut self, other: &Self) {
        self.0.retain(|(name, _)| other.get(name).is_some());
    }
}

/// Compares two lists of named values. Equality ignores the order, which only affects printing.
fn same<T: PartialEq>(a: &[(String, T)], b: &[(String, T)]) -> bool {
    let has = |(name, value): &(String, T)| b.iter().any(|(other, same)| (other, same) == (name, value));
    a.len() == b.len() && a.iter().all(has)
}

impl PartialEq for Section {
    fn eq(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl PartialEq for Sections {
    fn eq(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl Serialize for Section {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Serialize for Sections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, section)| (name, section)))
    }
}

impl<'de> Deserialize<'de> for Section {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Entries::deserialize(deserializer)?.0))
    }
}

impl<'de> Deserialize<'de> for Sections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Entries::deserialize(deserializer)?.0))
    }
}

/// A map that keeps the order of the text it was read from.
struct Entries<T>(Vec<(String, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names with values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        width: u64,
        area: Vec<f64>,
    }

    #[test]
    fn a_section_keeps_the_order_of_its_fields_and_takes_missing_values_from_the_preset() {
        let sample = Sample { width: 3, area: vec![1.5] };
        let section = Section::of(&sample);
        assert_eq!(serde_json::to_string(&section).unwrap(), r#"{"width":3,"area":[1.5]}"#);
        let other: Section = serde_json::from_str(r#"{"colour":"red","area":[2.0]}"#).unwrap();
        assert_eq!(other.read::<Sample>(section.clone()).unwrap(), Sample { width: 3, area: vec![2.0] });
        let wrong: Section = serde_json::from_str(r#"{"width":"wide"}"#).unwrap();
        assert!(wrong.read::<Sample>(section).is_err());
    }

    #[test]
    fn sections_are_the_same_in_any_order() {
        let read = |text: &str| serde_json::from_str::<Sections>(text).unwrap();
        let (a, b) = (read(r#"{"x":{"n":1},"y":{"m":2,"k":3}}"#), read(r#"{"y":{"k":3,"m":2},"x":{"n":1}}"#));
        assert_eq!(a, b);
        assert_ne!(a, read(r#"{"x":{"n":1}}"#));
        assert_eq!(serde_json::to_string(&b).unwrap(), r#"{"y":{"k":3,"m":2},"x":{"n":1}}"#, "as it was read");
    }
}
