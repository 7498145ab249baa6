//! Every `Type::name` in the documents that lead through the code exists, so that a renaming takes them along.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::read;

/// The documents that name functions and types of the code.
const DOCUMENTS: [&str; 2] = ["ARCHITECTURE.md", "docs/walks.md"];

/// Reports each name in the documents that no source file defines, with its line.
pub(super) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    let sources = files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let sources = sources.map(|path| Ok((path.clone(), read(&root.join(path))?))).collect::<Result<Vec<_>>>()?;
    for document in DOCUMENTS {
        for (line, name) in missing(&read(&root.join(document))?, &sources) {
            wrong.push(format!("{document}:{line}: names `{name}`, which no source file has"));
        }
    }
    Ok(())
}

/// The names in backticks that are nowhere defined, with line numbers.
fn missing(text: &str, sources: &[(PathBuf, String)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        in_block ^= line.starts_with("```");
        let spans = line.split('`').skip(1).step_by(2).filter(|_| !in_block);
        let names =
            spans.filter(|span| span.contains("::") && span.chars().all(|c| c.is_alphanumeric() || "_:".contains(c)));
        found.extend(names.filter(|name| !exists(name, sources)).map(|name| (index + 1, name.to_owned())));
    }
    found
}

/// Whether a source file defines `owner::name`: the owner is a module, or a type defined or with methods there; the
/// name is a function, type or variant of the same file, or a module below it.
fn exists(name: &str, sources: &[(PathBuf, String)]) -> bool {
    let mut parts = name.rsplit("::");
    let (Some(last), Some(owner)) = (parts.next(), parts.next()) else { return false };
    sources.iter().any(|(path, text)| {
        // The file of a folder stands for the folder.
        let module = if path.ends_with("mod.rs") { path.parent() } else { Some(path.as_path()) };
        let is_module = module.and_then(Path::file_stem).is_some_and(|stem| stem == owner);
        // Nearly all files have neither name.
        if !text.contains(last) || !(is_module || text.contains(owner)) {
            return false;
        }
        let is_type = ["struct", "enum", "trait"].iter().any(|kind| has_words(text, kind, owner));
        let has_methods = text.lines().any(|line| line.starts_with("impl") && has_word(line, owner));
        let is_function =
            ["fn", "struct", "enum", "trait", "mod", "type", "const"].iter().any(|kind| has_words(text, kind, last));
        let is_variant = || text.lines().any(|line| line.trim_start().starts_with(last) && has_word(line, last));
        (is_module && is_function) || ((is_type || has_methods) && (is_function || is_variant()))
    })
}

/// Whether `kind name` stands in the text, as two whole words.
fn has_words(text: &str, kind: &str, name: &str) -> bool {
    text.match_indices(&format!("{kind} {name}")).any(|(at, found)| is_whole(text, at, found.len()))
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, found)| is_whole(text, at, found.len()))
}

fn is_whole(text: &str, at: usize, len: usize) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    !text[..at].ends_with(inside) && !text[at + len..].starts_with(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_where_its_owner_is_and_nowhere_else() {
        let code =
            "pub struct Pool;\nimpl Pool {\n    fn read(&self) {}\n}\nenum Wait {\n    Miss(u8),\n}\nfn start() {}\n";
        let sources = [
            (PathBuf::from("src/pool.rs"), code.to_owned()),
            (
                PathBuf::from("src/log.rs"),
                "fn append() {}\nimpl Ticket for Writer {\n    fn poll(&self) {}\n}".to_owned(),
            ),
        ];
        let text = "`Pool::read` `Wait::Miss` `pool::start` `log::append` `Writer::poll` `Pool` `a b::c`\n```\n`Gone::x`\n```\n";
        assert!(missing(text, &sources).is_empty());
        let broken = missing("x\n`Pool::append` `Pool::rea` `pool::read_all` `Gone::read`", &sources);
        let names: Vec<&str> = broken.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["Pool::append", "Pool::rea", "pool::read_all", "Gone::read"]);
        assert!(broken.iter().all(|(line, _)| *line == 2));
    }
}
