//! Names of tests, as the list of faults has them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// The packages with tests that may notice a fault: name and folder of each.
pub(super) const PACKAGES: [(&str, &str); 6] = [
    ("nofault-io", "crates/io"),
    ("nofault-sim", "crates/sim"),
    ("nofault", "crates/engine"),
    ("nofault-tests", "crates/engine/tests"),
    ("nofault-ship", "crates/ship"),
    ("nofault-raft", "crates/raft"),
];

/// A test, named by its program and its path there: `nofault wal::tests::ends::some_test` for a unit test,
/// `nofault-tests/panics some_test` for one of a test program.
#[derive(Debug, Clone, Hash, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
pub(super) struct Test {
    pub(super) program: Program,
    pub(super) name: String,
}

/// A test program: the unit tests of a package, or one of its integration tests.
#[derive(Debug, Clone, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    pub(super) package: String,
    /// Name of the integration test; `None` for the library's unit tests.
    pub(super) target: Option<String>,
}

impl Program {
    /// The folder of the program's package; `None` for an unknown package.
    pub(super) fn folder(&self) -> Option<&'static str> {
        let found = PACKAGES.iter().find(|(package, _)| *package == self.package);
        found.map(|(_, folder)| *folder)
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.target {
            None => write!(f, "{}", self.package),
            Some(target) => write!(f, "{}/{target}", self.package),
        }
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.program, self.name)
    }
}

impl TryFrom<String> for Test {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let Some((program, name)) = text.split_once(' ') else {
            return Err(format!("'{text}' is no test: write its program, a space, and its path"));
        };
        let (package, target) = match program.split_once('/') {
            Some((package, target)) => (package, Some(target.to_owned())),
            None => (program, None),
        };
        let program = Program { package: package.to_owned(), target };
        if program.folder().is_none() {
            return Err(format!("'{text}': there is no package {package} here"));
        }
        Ok(Self { program, name: name.to_owned() })
    }
}

/// The Rust files of the packages, in which tests are looked up.
pub(super) struct TestSources(Vec<(PathBuf, String)>);

impl TestSources {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut found = Vec::new();
        let mut folders: Vec<PathBuf> = PACKAGES.iter().map(|(_, folder)| root.join(folder)).collect();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                    found.push((path.strip_prefix(root).map(Path::to_path_buf).unwrap_or(path), text));
                }
            }
        }
        Ok(Self(found))
    }

    /// Returns whether the file of the test's module, or of a module above it, has a function with the test's name. Reads text, not
    /// syntax: a module within a file is not looked up.
    pub(super) fn have(&self, test: &Test) -> bool {
        let Some(folder) = test.program.folder() else { return false };
        let mut modules: Vec<&str> = test.name.split("::").collect();
        let declared = format!("fn {}(", modules.pop().unwrap_or_default());
        let root = match &test.program.target {
            None => Path::new(folder).join("src"),
            // The engine's integration tests are a package of their folder.
            Some(target) => Path::new(folder.trim_end_matches("/tests")).join("tests").join(target),
        };
        self.0.iter().any(|(path, text)| {
            let Ok(below) = path.with_extension("").strip_prefix(&root).map(Path::to_path_buf) else { return false };
            let below = if below.ends_with("lib") || below.ends_with("main") { PathBuf::new() } else { below };
            modules.iter().collect::<PathBuf>().starts_with(below) && text.contains(&declared)
        })
    }
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn a_test_is_named_by_its_program_and_its_path() {
        let test = |text: &str| Test::try_from(text.to_owned());
        let unit = test("nofault wal::tests::a").unwrap();
        assert_eq!((unit.program.folder(), &unit.program.target), (Some("crates/engine"), &None));
        let integration = test("nofault-io/sim cuts::a").unwrap();
        assert_eq!((integration.program.folder(), &*integration.name), (Some("crates/io"), "cuts::a"));
        assert_eq!(integration.to_string(), "nofault-io/sim cuts::a");
        assert!(test("a").is_err() && test("other a").is_err());
        let sources = TestSources(vec![("crates/engine/src/wal/tests.rs".into(), "fn a() {}".into())]);
        assert!(sources.have(&unit) && !sources.have(&integration));
        assert!(!sources.have(&test("nofault wal::readers::a").unwrap()), "another module");
    }
}
