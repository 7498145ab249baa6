//! No circle between files: a reader of a file and then of its imports must come to an end.
//!
//! An arrow from one file to another is a path in its code – after `use` or inside an expression – whose longest prefix that names a
//! module leads there. A `mod` line by itself is no arrow, nor is a path from a module to one that contains it: the parts of a module may use
//! its types. Tests count for nothing, since they may look anywhere.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{module_path, read, rust_files, without_tests};

/// A module, as its path below the crate root.
type Module = Vec<String>;

/// Reports each circle between the files of a crate, with a line of code for each of its steps.
pub(super) fn check(root: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let crates = fs::read_dir(root.join("crates")).context("crates/")?.map(|entry| Ok(entry?.path()));
    let mut folders = crates.collect::<Result<Vec<_>>>()?;
    folders.push(root.join("xtask"));
    folders.sort();
    folders.iter().try_for_each(|folder| check_crate(root, &folder.join("src"), wrong))
}

fn check_crate(root: &Path, source: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let mut texts = BTreeMap::new();
    for path in rust_files(source)? {
        let module = module_path(source, &path);
        let is_test = module.iter().any(|part| part == "tests" || part == "model");
        if !is_test {
            texts.insert(module, (super::show(root, &path), without_tests(&read(&path)?)));
        }
    }
    let modules: BTreeSet<&Module> = texts.keys().collect();
    let arrows: BTreeMap<&Module, BTreeMap<Module, usize>> =
        texts.iter().map(|(module, (_, text))| (module, arrows_of(module, text, &modules))).collect();
    for circle in circles(&arrows) {
        let steps = circle.iter().zip(circle.iter().cycle().skip(1)).map(|(from, to)| {
            let line = arrows[*from][*to];
            format!("{}:{line} -> {}", texts[*from].0, texts[*to].0)
        });
        wrong.push(format!(
            "files import each other in a circle:\n      {}",
            steps.collect::<Vec<_>>().join("\n      ")
        ));
    }
    Ok(())
}

/// The modules that a file's code uses, each with the line of its first use.
fn arrows_of(module: &Module, text: &str, modules: &BTreeSet<&Module>) -> BTreeMap<Module, usize> {
    let mut found = BTreeMap::new();
    for (line, path) in paths(text) {
        let Some(absolute) = resolve(module, &path, modules) else { continue };
        let target =
            (0..=absolute.len()).rev().map(|len| &absolute[..len]).find(|prefix| modules.contains(&prefix.to_vec()));
        if let Some(target) = target.filter(|target| !module.starts_with(target)) {
            found.entry(target.to_vec()).or_insert(line);
        }
    }
    found
}

/// Resolves a path to one from the crate root; `None` when it leads out of the crate.
fn resolve(module: &Module, path: &[String], modules: &BTreeSet<&Module>) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    let mut base = match first.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.clone(),
        child => {
            let mut inside = module.clone();
            inside.push(child.to_owned());
            return modules.contains(&inside).then(|| [inside, rest.to_vec()].concat());
        }
    };
    let mut rest = rest;
    if first == "super" {
        base.pop()?;
        while let Some((_, further)) = rest.split_first().filter(|(name, _)| *name == "super") {
            base.pop()?;
            rest = further;
        }
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// Every path of at least two names in a text, with its line number; each branch of a list in braces is a separate
/// path.
fn paths(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let byte = bytes[at];
        line += usize::from(byte == b'\n');
        let starts = (byte.is_ascii_alphabetic() || byte == b'_') && !text[..at].ends_with("::");
        if !starts {
            at += 1;
            continue;
        }
        let name = name_at(text, at);
        if text[at + name.len()..].starts_with("::") {
            let len = branches(&text[at..], line, &mut Vec::new(), &mut found);
            line += text[at..at + len].matches('\n').count();
            at += len.max(1);
        } else {
            at += name.len();
        }
    }
    found
}

/// Reads the path that starts at a text's beginning, and adds its branches to `found`. Returns its length in bytes.
fn branches(text: &str, line: usize, before: &mut Vec<String>, found: &mut Vec<(usize, Vec<String>)>) -> usize {
    let name = name_at(text, 0);
    let depth = before.len();
    before.push(name.to_owned());
    let mut at = name.len();
    if text[at..].starts_with("::{") {
        at += 3;
        while at < text.len() && !text[at..].starts_with('}') {
            if name_at(text, at).is_empty() {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            } else {
                let below = line + text[..at].matches('\n').count();
                at += branches(&text[at..], below, before, found);
            }
        }
        at = (at + 1).min(text.len());
    } else if text[at..].starts_with("::") && !name_at(text, at + 2).is_empty() {
        at += 2 + branches(&text[at + 2..], line, before, found);
    } else {
        found.push((line, before.clone()));
    }
    before.truncate(depth);
    at
}

fn name_at(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    &rest[..end]
}

/// Finds one circle for each group of modules that reach each other: the shortest through its first module.
fn circles<'a>(arrows: &'a BTreeMap<&'a Module, BTreeMap<Module, usize>>) -> Vec<Vec<&'a Module>> {
    let mut found: Vec<Vec<&Module>> = Vec::new();
    for start in arrows.keys() {
        if found.iter().any(|circle| circle.contains(start)) {
            continue;
        }
        // The search is breadth first, so that the first way back is the shortest.
        let mut before: BTreeMap<&Module, &Module> = BTreeMap::new();
        let mut queue = VecDeque::from([*start]);
        'search: while let Some(module) = queue.pop_front() {
            for next in arrows[module].keys() {
                if next == *start {
                    let mut circle = vec![module];
                    while let Some(previous) = before.get(circle[circle.len() - 1]) {
                        circle.push(*previous);
                    }
                    circle.reverse();
                    found.push(circle);
                    break 'search;
                }
                if let Some((next, _)) = arrows.get_key_value(next).filter(|(next, _)| !before.contains_key(**next)) {
                    before.insert(*next, module);
                    queue.push_back(*next);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> Module {
        path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let names: Vec<Module> = files.iter().map(|(name, _)| module(name)).collect();
        let modules: BTreeSet<&Module> = names.iter().collect();
        let arrows = names.iter().zip(files).map(|(name, (_, text))| (name, arrows_of(name, text, &modules))).collect();
        circles(&arrows).iter().map(|circle| circle.iter().map(|module| module.join("::")).collect()).collect()
    }

    #[test]
    fn a_circle_is_found_in_every_form_of_path() {
        for text in ["use crate::b::B;", "use super::b;", "use crate::{c, b::{B, C}};", "fn f() { crate::b::g() }"] {
            let found = circles_of(&[("a", text), ("b", "use crate::a::A;"), ("c", "")]);
            assert_eq!(found, [["a", "b"]], "{text}");
        }
    }

    #[test]
    fn a_part_may_use_its_module_and_no_other_part_that_uses_it() {
        assert!(circles_of(&[("a", "mod b;\nuse self::b::B;"), ("a::b", "use super::A;")]).is_empty());
        let parts = [("a", "mod b; mod c;"), ("a::b", "use super::c::C;"), ("a::c", "fn f() { super::b::g() }")];
        assert_eq!(circles_of(&parts), [["a::b", "a::c"]]);
        assert_eq!(
            circles_of(&[("a", "mod b;\nuse b::B;"), ("a::b", "use crate::c::C;"), ("c", "use crate::a::A;")]),
            [["a", "a::b", "c"]]
        );
    }

    #[test]
    fn longer_circles_are_found_once() {
        let found =
            circles_of(&[("a", "use crate::b::x;"), ("b", "use super::c::x;"), ("c", "fn f() { crate::a::x() }")]);
        assert_eq!(found, [["a", "b", "c"]]);
    }

    #[test]
    fn other_crates_and_children_of_others_are_no_arrows() {
        assert!(circles_of(&[("a", "use std::b::B; use other::a;"), ("b", "use crate::a::A;")]).is_empty());
    }
}
