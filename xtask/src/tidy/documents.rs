//! Every path of this repository that a Markdown document names exists, and so does the place in a file to which a link leads.
//!
//! A path is
//!
//! - the target of a link, `[text](target)`, which starts at the document's own folder;
//! - a word in backticks or in a code block that starts with a file or folder of the repository's root and has a `/`;
//! - a word in backticks with an extension of [`SOURCES`]: `hypotheses.rs` or `format/record.rs` may leave out the folders above it.
//!
//! Of a pattern (`docs/*.md`, `experiments/<id>/tests.rs`) only the folders before it must exist. A path that git ignores is the output of some
//! command and need not exist.
//!
//! A link's fragment, `[text](guide.md#watch-it)`, is a heading of the linked document as GitHub names it; in a source it is a function.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::read;

/// Extensions of which every named file must be in this repository. Others, as `.json`, also belong to files that the
/// programs write.
const SOURCES: [&str; 6] = ["rs", "md", "toml", "yml", "cff", "js"];

/// Reports each path in a document that does not exist, with its line.
pub(super) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    let tree = Tree::new(files);
    for document in files.iter().filter(|path| path.extension().is_some_and(|end| end == "md")) {
        let text = read(&root.join(document))?;
        for (line, path) in missing(&text, document, &tree) {
            if !is_ignored(root, &path) {
                wrong.push(format!("{}:{line}: names `{path}`, which does not exist", document.display()));
            }
        }
        let linked = |path: &Path| std::fs::read_to_string(root.join(path)).ok();
        for (line, target) in missing_places(&text, document, linked) {
            wrong.push(format!(
                "{}:{line}: links `{target}`, where there is no such heading or function",
                document.display()
            ));
        }
    }
    Ok(())
}

/// The files of the repository, and all folders that hold them.
struct Tree {
    paths: BTreeSet<PathBuf>,
}

impl Tree {
    fn new(files: &[PathBuf]) -> Self {
        let paths = files.iter().flat_map(|file| file.ancestors()).map(Path::to_path_buf).collect();
        Self { paths }
    }

    /// Whether a path from the root exists.
    fn has(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }

    /// Whether the path of some file or folder ends in these components.
    fn has_ending(&self, path: &str) -> bool {
        self.paths.iter().any(|known| known.ends_with(path))
    }

    fn is_below_root(&self, path: &str) -> bool {
        path.split_once('/').is_some_and(|(first, _)| !first.is_empty() && self.has(Path::new(first)))
    }
}

/// The paths of a document that do not exist, with line numbers.
fn missing(text: &str, document: &Path, tree: &Tree) -> Vec<(usize, String)> {
    let folder = document.parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        let mut report = |path: &str| found.push((index + 1, path.to_owned()));
        if in_block {
            let below_root = words(line).filter(|word| tree.is_below_root(word));
            below_root.filter(|word| !tree.has(&normal(word))).for_each(&mut report);
            continue;
        }
        let spans = line.split('`').skip(1).step_by(2).flat_map(words);
        spans.filter(|word| !code_exists(word, folder, tree)).for_each(&mut report);
        links(line).filter(|target| !tree.has(&normal_from(folder, target))).for_each(&mut report);
    }
    found
}

/// Whether a word in backticks is not a path of this repository, or is one that exists.
fn code_exists(word: &str, folder: &Path, tree: &Tree) -> bool {
    let is_source = Path::new(word).extension().is_some_and(|end| SOURCES.iter().any(|source| end == *source));
    let is_absolute = word.starts_with('/') || word.starts_with('~') || word.contains("://");
    if is_absolute || !(is_source || tree.is_below_root(word)) {
        return true;
    }
    let is_partial = is_source && !word.starts_with('.') && !tree.is_below_root(word);
    tree.has(&normal(word)) || tree.has(&normal_from(folder, word)) || is_partial && tree.has_ending(word)
}

/// The words of a code span or of a line of code, each up to the first placeholder, without punctuation and line numbers around it.
fn words(code: &str) -> impl Iterator<Item = &str> {
    let outside = |c: char| !c.is_alphanumeric() && !"._-/*<{".contains(c);
    code.split([' ', '"', '\'', '(', ')', ';', '=']).map(move |word| {
        let word = word.trim_matches(outside).trim_end_matches(['.', ',']);
        let word = word.split_once(':').map_or(word, |(path, _)| path);
        match word.find(['*', '<', '{', '…', '$']) {
            Some(at) => word[..at].rfind('/').map_or("", |slash| &word[..=slash]),
            None => word,
        }
    })
}

/// The targets of a line's links that lead into the repository, without their fragments.
fn links(line: &str) -> impl Iterator<Item = &str> {
    targets(line).map(|target| target.split('#').next().unwrap_or_default()).filter(|path| !path.is_empty())
}

/// The targets of a line's links that lead into the repository, or to another place of the same document.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.match_indices("](").filter_map(|(at, mark)| Some(line[at + mark.len()..].split_once(')')?.0));
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

/// The targets with a fragment that leads nowhere in a file that exists, with line numbers. `linked` reads a file.
fn missing_places(text: &str, document: &Path, linked: impl Fn(&Path) -> Option<String>) -> Vec<(usize, String)> {
    let folder = document.parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for target in targets(line) {
            let Some((path, fragment)) = target.split_once('#') else { continue };
            let there = if path.is_empty() { Some(text.to_owned()) } else { linked(&normal_from(folder, path)) };
            let is_source = path.ends_with(".rs");
            let has_place = |text: String| match is_source {
                true => text.contains(&format!("fn {fragment}(")),
                false => prose(&text).any(|(_, line)| line.starts_with('#') && anchor(line) == fragment),
            };
            if !there.is_none_or(has_place) {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// The numbered lines of a document that are in no code block.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !is_fence && !in_block
    })
}

/// The name of a heading in links, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn normal(path: &str) -> PathBuf {
    normal_from(Path::new(""), path)
}

/// Resolves `.` and `..` in a path. A path that leads out of the repository stays as written, and exists nowhere.
fn normal_from(folder: &Path, path: &str) -> PathBuf {
    let mut whole = folder.to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if whole.pop() => {}
            other => whole.push(other),
        }
    }
    whole
}

fn is_ignored(root: &Path, path: &str) -> bool {
    let status = Command::new("git").args(["check-ignore", "--quiet", "--", path]).current_dir(root).status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing_in(document: &str, text: &str) -> Vec<(usize, String)> {
        let files = ["README.md", "docs/format.md", "docs/decisions/0001-a.md", "crates/a/src/b/c.rs", ".ci/run"];
        missing(text, Path::new(document), &Tree::new(&files.map(PathBuf::from)))
    }

    #[test]
    fn a_link_starts_at_the_folder_of_its_document() {
        assert!(missing_in("docs/x.md", "[a](format.md#head) [b](../README.md) [c](decisions)").is_empty());
        let broken = missing_in("docs/x.md", "\n[a](docs/format.md) ![b](none.svg)");
        assert_eq!(broken, [(2, "docs/format.md".to_owned()), (2, "none.svg".to_owned())]);
        assert!(missing_in("README.md", "[a](https://x.org/a.md) [b](#c) [d](mailto:a@b.c)").is_empty());
        assert_eq!(missing_in("README.md", "[a](../b.md)"), [(1, "../b.md".to_owned())]);
    }

    #[test]
    fn a_fragment_is_a_heading_of_a_document_or_a_function_of_a_source() {
        let text = "# Top\n[a](x.md#watch-it-2) [b](x.md#gone) [c](#top) [d](#no) [e](c.rs#works) [f](c.rs#fails) [g](none.md#h)\n```\n[h](#x)";
        let linked = |path: &Path| match path.to_str() {
            Some("docs/x.md") => Some("## `Watch` it, 2!\n```\n# gone\n```\n".to_owned()),
            Some("docs/c.rs") => Some("fn works() {}\n// fails".to_owned()),
            _ => None,
        };
        let found = missing_places(text, Path::new("docs/d.md"), linked);
        assert_eq!(found, [(2, "x.md#gone".to_owned()), (2, "#no".to_owned()), (2, "c.rs#fails".to_owned())]);
    }

    #[test]
    fn a_path_in_backticks_starts_at_the_root_or_at_the_document() {
        let good = "`crates/a/src/b/` `crates/a/src/b/c.rs:12`, `bash .ci/run`, `../README.md` `--list docs/format.md`";
        assert!(missing_in("docs/x.md", good).is_empty());
        let broken = missing_in("docs/x.md", "`crates/a/src/gone` and `docs/gone.md`");
        assert_eq!(broken, [(1, "crates/a/src/gone".to_owned()), (1, "docs/gone.md".to_owned())]);
    }

    #[test]
    fn a_source_may_be_named_by_its_last_parts() {
        assert!(missing_in("README.md", "`c.rs` and `b/c.rs` and `format.md`").is_empty());
        let broken = missing_in("README.md", "`d.rs` and `a/c.rs`");
        assert_eq!(broken, [(1, "d.rs".to_owned()), (1, "a/c.rs".to_owned())]);
    }

    #[test]
    fn of_a_pattern_the_folder_before_it_must_exist() {
        assert!(missing_in("README.md", "`crates/a/src/<id>/x.rs` `docs/*.md` `*.rs` `docs/{a,b}.md`").is_empty());
        assert_eq!(missing_in("README.md", "`crates/z/<id>/x.rs`"), [(1, "crates/z/".to_owned())]);
    }

    #[test]
    fn paths_of_the_machine_and_of_outputs_are_left_alone() {
        let text = "`/proc/stat` `nofault-lab/<time>/` `records.ndjson` `a/b` `self/io` `std::fs` `~/x.rs` `and/or`";
        assert!(missing_in("README.md", text).is_empty());
    }

    #[test]
    fn a_code_block_is_read_for_paths_below_the_root_only() {
        let text = "```sh\ncat crates/a/gone.rs x.rs out/y.md /mnt/a // # docs/format.md\n```\n`d.rs`";
        assert_eq!(missing_in("README.md", text), [(2, "crates/a/gone.rs".to_owned()), (4, "d.rs".to_owned())]);
    }
}
