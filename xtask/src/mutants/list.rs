//! The list of faults: how they are planted, and the checks that need no build.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::tests::{Test, TestSources};

pub(super) const LIST: &str = "xtask/mutants.toml";
/// Placeholder in a replacement for the text that was found.
const CODE: &str = "CODE";
/// Placeholder in a replacement for the switch of the fault: an expression that is true while the fault is on.
const FAULT: &str = "FAULT";
/// The environment variable with the number of the fault that is on.
pub(super) const SWITCH: &str = "NOFAULT_PLANTED";
/// The file that declares the switches. `CALLED_AS` has the path by which each crate calls them.
const DECLARED_IN: &str = "crates/io/src/lib.rs";
const CALLED_AS: [(&str, &str); 4] = [
    ("crates/io/", "crate::planted"),
    ("crates/engine/", "nofault_io::planted"),
    ("crates/ship/", "nofault::io::planted"),
    ("crates/raft/", "nofault::io::planted"),
];

/// One planted fault: the changes that plant it, and the tests that notice it.
#[derive(Debug, Deserialize, Hash)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutant {
    pub(super) name: String,
    /// Description of the fault, in a sentence.
    pub(super) fault: String,
    /// Path of the changed file from the root of the repository.
    file: String,
    /// The text to find, which occurs in the file exactly once.
    find: String,
    /// The text to put in place of the text found.
    replace: String,
    /// Further changes, for a fault that takes more than one.
    #[serde(default)]
    also: Vec<Change>,
    /// The tests that notice the fault.
    #[serde(default)]
    pub(super) killed_by: Vec<Test>,
    /// The reason why no test can notice the fault, or why that is accepted.
    pub(super) survives_because: Option<String>,
}

/// A further change that plants a fault.
#[derive(Debug, Deserialize, Hash)]
#[serde(deny_unknown_fields)]
struct Change {
    file: String,
    find: String,
    replace: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

impl Mutant {
    /// Every change of the fault: file, text to find, text to replace it.
    fn changes(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let also = self.also.iter().map(|change| (&*change.file, &*change.find, &*change.replace));
        std::iter::once((&*self.file, &*self.find, &*self.replace)).chain(also)
    }

    /// A digest of the fault, its tests and the sources (by their own digest).
    pub(super) fn digest(&self, sources: u64) -> String {
        let mut hasher = DefaultHasher::new();
        (self, sources).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// Plants every fault in the sources under `root`, each behind a separate switch. Returns the changed files by their
/// paths from `root`. Several faults may change the same text: each is applied to the result of the earlier ones.
///
/// # Errors
/// Texts that do not occur exactly once in their file: all of them, in one message.
pub(super) fn planted(root: &Path, mutants: &[Mutant]) -> Result<BTreeMap<PathBuf, String>> {
    let read = |file: &str| fs::read_to_string(root.join(file)).with_context(|| file.to_owned());
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    files.insert(DECLARED_IN.into(), read(DECLARED_IN)? + &declaration());
    let mut wrong = Vec::new();
    for (number, mutant) in mutants.iter().enumerate() {
        for (file, find, replace) in mutant.changes() {
            let Some((_, call)) = CALLED_AS.iter().find(|(folder, _)| file.starts_with(folder)) else {
                wrong.push(format!("mutant {}: {file} has no switches", mutant.name));
                continue;
            };
            let text = match files.get(Path::new(file)) {
                Some(text) => text.clone(),
                None => read(file).with_context(|| format!("mutant {}", mutant.name))?,
            };
            let faulty = replace.replace(FAULT, &format!("{call}({})", number + 1)).replace(CODE, find);
            match replace_once(&text, find, &faulty) {
                Ok(text) => drop(files.insert(file.into(), text)),
                Err(error) => wrong.push(format!("mutant {}: {file}: {find:?}: {error}", mutant.name)),
            }
        }
    }
    if wrong.is_empty() { Ok(files) } else { bail!("{LIST}:\n  {}", wrong.join("\n  ")) }
}

/// Returns the Rust source of the function that tells whether a planted fault is switched on. The code that is put in
/// the place of the original calls it.
fn declaration() -> String {
    format!(
        r#"
/// Whether the planted fault of this number is on.
#[doc(hidden)]
pub fn planted(number: u32) -> bool {{
    static ON: std::sync::LazyLock<Option<u32>> =
        std::sync::LazyLock::new(|| std::env::var("{SWITCH}").ok().and_then(|number| number.parse().ok()));
    *ON == Some(number)
}}
"#
    )
}

fn replace_once(text: &str, find: &str, replace: &str) -> Result<String> {
    match text.matches(find).count() {
        1 => Ok(text.replacen(find, replace, 1)),
        count => bail!("this text stands there {count} times, not once"),
    }
}

/// Reads the list, and checks that names are unique, every fault applies to the repository at `root`, and every test
/// exists.
pub(super) fn read_list(root: &Path) -> Result<Vec<Mutant>> {
    let text = fs::read_to_string(root.join(LIST)).context(LIST)?;
    let List { mutant: mutants } = toml::from_str(&text).context(LIST)?;
    planted(root, &mutants)?;
    let sources = TestSources::read(root)?;
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for mutant in &mutants {
        if !names.insert(&mutant.name) {
            wrong.push(format!("mutant {} stands twice", mutant.name));
        }
        if mutant.killed_by.is_empty() == mutant.survives_because.is_none() {
            wrong.push(format!("mutant {} needs tests that notice it, or else a reason why none does", mutant.name));
        }
        let missing = mutant.killed_by.iter().filter(|test| !sources.have(test));
        wrong.extend(missing.map(|test| format!("mutant {}: there is no test {test}", mutant.name)));
    }
    if wrong.is_empty() { Ok(mutants) } else { bail!("{LIST}:\n  {}", wrong.join("\n  ")) }
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn every_planted_fault_applies_to_the_code_as_it_is_and_names_tests_that_exist() {
        read_list(&crate::root()).unwrap();
    }

    #[test]
    fn a_fault_is_planted_where_its_text_stands_once() {
        assert_eq!(replace_once("abc", "b", "x").unwrap(), "axc");
        assert!(replace_once("abcb", "b", "x").unwrap_err().to_string().contains("2 times"));
        assert!(replace_once("ac", "b", "x").is_err());
    }
}
