//! `unsafe` stands only in the files that `xtask/unsafe-files.txt` lists, each with its reason: more of it is a decision, not an accident.
//! Tests may use it anywhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{read, without_tests};

const LIST: &str = "xtask/unsafe-files.txt";

/// Reports files with `unsafe` that are not listed, and files that are listed and have none.
pub(super) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    let text = read(&root.join(LIST))?;
    let mut listed = reasons(&text)?;
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        if path.iter().any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        let name = path.to_string_lossy();
        match (first_unsafe(&without_tests(&read(&root.join(path))?)), listed.remove(&*name)) {
            (Some(line), None) => wrong.push(format!("{name}:{line}: `unsafe` in a file that {LIST} does not list")),
            (None, Some(_)) => wrong.push(format!("{name}: has no `unsafe`, take it out of {LIST}")),
            _ => {}
        }
    }
    wrong.extend(listed.keys().map(|name| format!("{LIST} names {name}, which is gone")));
    Ok(())
}

/// Parses the list of files: each line is a path and a reason.
fn reasons(text: &str) -> Result<BTreeMap<&str, &str>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (path, reason) = line.split_once(' ').with_context(|| format!("{LIST}: no reason: {line}"))?;
            Ok((path, reason.trim()))
        })
        .collect()
}

/// The number of the first line with `unsafe`, in code without comments and tests.
fn first_unsafe(code: &str) -> Option<usize> {
    let starts_unsafe = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.match_indices("unsafe").any(|(at, word)| {
            let after = code[at + word.len()..].trim_start();
            let starts = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '"');
            starts && ["{", "fn ", "impl", "trait ", "extern "].iter().any(|next| after.starts_with(next))
        })
    };
    code.lines().position(starts_unsafe).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_found_in_code_and_not_in_words() {
        assert_eq!(first_unsafe("fn f() {\n    let x = unsafe { g() };\n}"), Some(2));
        assert_eq!(first_unsafe("unsafe impl Send for X {}"), Some(1));
        assert_eq!(first_unsafe("pub(crate) unsafe fn f() {}"), Some(1));
        assert_eq!(first_unsafe("// unsafe { }\nlet unsafe_files = 1; let text = \"unsafe \";"), None);
    }

    #[test]
    fn a_listed_file_has_a_reason() {
        assert_eq!(reasons("# why\n\na.rs  it must\n").unwrap(), BTreeMap::from([("a.rs", "it must")]));
        assert!(reasons("a.rs\n").is_err());
    }
}
