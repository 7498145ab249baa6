//! Names and comments use the field's words. `xtask/banned-words.txt` has the words that do not, each with the word to write instead;
//! and no type is named by a bare participle, which names a thing's state and not the thing.
//!
//! It reads text, not syntax: every word of a line counts, in comments, strings and the parts of identifiers (`bell_rings`, `BellRings`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::read;

const LIST: &str = "xtask/banned-words.txt";

/// The folders in which names and comments are checked.
pub(super) const FOLDERS: [&str; 8] =
    ["crates/cli", "crates/engine", "crates/io", "crates/lab", "crates/raft", "crates/ship", "crates/sim", "fuzz"];

/// Nouns that end as a participle does, and names of well-known types.
const NOUNS: [&str; 8] = ["Children", "Feed", "Need", "Screen", "Seed", "Shared", "Speed", "Token"];

/// Participles that do not end in -ed or -en, and adjectives that were once used as names.
const STATES: [&str; 9] = ["Begun", "Done", "Gone", "Held", "Kept", "Known", "Met", "Recent", "Sent"];

/// Reports banned words, bare participles, and exceptions that are no longer needed.
pub(super) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    let text = read(&root.join(LIST))?;
    let list = List::parse(&text)?;
    let mut used = vec![false; list.exceptions.len()];
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        if !FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let (name, text) = (path.to_string_lossy(), read(&root.join(path))?);
        for (line, found) in banned(&text, &list.words) {
            match list.exceptions.iter().position(|(file, word)| *file == name && *word == found.0) {
                Some(at) => used[at] = true,
                None => wrong.push(format!("{name}:{line}: `{}`: write {} ({LIST})", found.0, found.1)),
            }
        }
        for (line, participle) in participles(&text) {
            wrong.push(format!("{name}:{line}: the type `{participle}` is named by a bare participle: name the thing"));
        }
    }
    let unused = list.exceptions.iter().zip(used).filter(|(_, used)| !used);
    wrong.extend(unused.map(|((file, word), _)| format!("{LIST} allows `{word}` in {file}, which does not use it")));
    Ok(())
}

/// The parsed `xtask/banned-words.txt`: words with their replacements, and the files in which a word is allowed.
struct List<'a> {
    words: Vec<(&'a str, &'a str)>,
    exceptions: Vec<(&'a str, &'a str)>,
}

impl<'a> List<'a> {
    /// Parses the list. A line is `word: replacement`, or `path word: reason` for an exception.
    fn parse(text: &'a str) -> Result<Self> {
        let mut list = Self { words: Vec::new(), exceptions: Vec::new() };
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let (word, rest) = line.split_once(':').with_context(|| format!("{LIST}: no colon: {line}"))?;
            match word.split_once(' ') {
                Some((path, word)) => list.exceptions.push((path, word.trim())),
                None => list.words.push((word, rest.trim())),
            }
        }
        Ok(list)
    }
}

/// The banned words of a text, singular or plural, each with its line and its replacement.
fn banned<'a>(text: &str, words: &[(&'a str, &'a str)]) -> Vec<(usize, (&'a str, &'a str))> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let parts = parts(line);
        let is_there = |word: &str| parts.iter().any(|part| part == word || part.strip_suffix('s') == Some(word));
        found.extend(words.iter().filter(|(word, _)| is_there(word)).map(|word| (number, *word)));
    }
    found
}

/// Splits a line into words in lower case. An identifier is cut at underscores, and where a capital follows a small
/// letter.
fn parts(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for c in line.chars() {
        if !c.is_alphabetic() || (c.is_uppercase() && before.is_lowercase()) {
            parts.push(String::new());
        }
        if c.is_alphabetic() {
            parts.last_mut().expect("there is always one").extend(c.to_lowercase());
        }
        before = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The types in a text that are named by a single participle, each with its line.
fn participles(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let bare = line.trim_start();
        let after_visibility = bare.strip_prefix("pub").map_or(bare, |rest| {
            let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
            rest.trim_start()
        });
        let kinds = ["struct ", "enum ", "trait "];
        let Some(rest) = kinds.iter().find_map(|kind| after_visibility.strip_prefix(kind)) else { continue };
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..end];
        let is_participle = name.ends_with("ed") || name.ends_with("en") || STATES.contains(&name);
        if parts(name).len() == 1 && is_participle && !NOUNS.contains(&name) {
            found.push((number, name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_in(text: &str) -> Vec<(usize, &'static str)> {
        let words = [("bell", "notifier"), ("gate", "semaphore")];
        banned(text, &words).into_iter().map(|(line, (word, _))| (line, word)).collect()
    }

    #[test]
    fn a_banned_word_is_found_in_comments_strings_and_parts_of_identifiers() {
        for text in
            ["// The bell rings.", "let ring_bell = 1;", "struct BellTower;", "\"a Bell\"", "const BELLS: u8 = 1;"]
        {
            assert_eq!(words_in(text), [(1, "bell")], "{text}");
        }
        assert_eq!(words_in("fn f() {}\n// through the gates\n"), [(2, "gate")]);
    }

    #[test]
    fn a_banned_word_inside_another_word_is_not_reported() {
        assert!(words_in("// belligerent, labelled, to investigate\nlet aggregate = propagates;").is_empty());
    }

    #[test]
    fn a_type_that_is_a_bare_participle_is_found() {
        for text in
            ["struct Loaded;", "pub enum Held<'a> {", "    pub(crate) trait Broken {", "pub(super) struct Sent(u8);"]
        {
            assert_eq!(participles(text).len(), 1, "{text}");
        }
        let good = "struct LoadedWindow;\nenum Shared {}\nstruct Loader;\n// struct Loaded\nlet x = Loaded;\nstruct Seed(u64);";
        assert_eq!(participles(good), []);
    }

    #[test]
    fn the_list_has_words_with_replacements_and_files_with_exceptions() {
        let list = List::parse("# why\n\nbell: notifier\na/b.rs bell: it tolls\n").unwrap();
        assert_eq!((list.words, list.exceptions), (vec![("bell", "notifier")], vec![("a/b.rs", "bell")]));
        assert!(List::parse("bell notifier\n").is_err());
    }
}
