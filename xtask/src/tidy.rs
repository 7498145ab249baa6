//! Rules of this repository that no compiler checks, tested against ARCHITECTURE.md:
//!
//! 1. A module imports only modules on lower lines of its crate's list; every top-level module stands in the list.
//! 2. A crate depends only on crates on lower lines.
//! 3. Every source file is reached from a crate root: no dead files.
//! 4. A file has at most [`LINES_MAX`] lines. Longer ones stand in `xtask/long-files.txt` with their length, which is a
//!    ratchet: it may shrink, never grow.
//! 5. No file in the repository contains a path of a developer's machine.
//! 6. The lab's experiments do not import each other, and nothing outside the folder of one names it, by its module or by its id, but the
//!    registry and [`EXPERIMENTS_NAMED`].
//! 7. No circle between files ([`circles`]).
//! 8. `unsafe` only in the files that are listed for it ([`unsafe_files`]).
//! 9. Every path of the repository that a document names exists ([`documents`]).
//! 10. Every `Type::name` in ARCHITECTURE.md and docs/walks.md exists ([`names`]).
//! 11. Names and comments use the words of the field, and types are nouns ([`words`]).
//! 12. Comments say whose a thing is by possessives, and use nouns instead of pronouns ([`phrases`]).
//!
//! It reads text, not syntax: `crate::name`, `super::name` and `use crate::{…}` outside comments and tests.

mod circles;
mod documents;
mod names;
mod phrases;
mod unsafe_files;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Most lines of a file: one idea may be long, and cutting it in two makes it longer to read.
const LINES_MAX: usize = 900;
const LONG_FILES: &str = "xtask/long-files.txt";

/// The places outside their folders where experiments may be named: file and name.
const EXPERIMENTS_NAMED: [(&str, &str); 4] = [
    // Hidden commands of the command line: a process that a trial starts, and that speaks the experiment's own protocol.
    ("crates/cli/src/lab.rs", "errors"),
    ("crates/cli/src/lab.rs", "rss"),
    ("crates/cli/src/lab.rs", "safety"),
    // A method of several experiments that happens to be called like an experiment.
    ("crates/lab/src/methods.rs", "engine"),
];

/// Runs every rule and reports all violations together.
pub(crate) fn run(root: &Path) -> Result<()> {
    let architecture = read(&root.join("ARCHITECTURE.md"))?;
    let files = tracked_files(root)?;
    let mut wrong = Vec::new();
    for list in layer_lists(&architecture)? {
        match &list.folder {
            Some(folder) => check_modules(root, &list, folder, &mut wrong)?,
            None => check_crates(root, &list, &mut wrong)?,
        }
    }
    circles::check(root, &mut wrong)?;
    unsafe_files::check(root, &files, &mut wrong)?;
    words::check(root, &files, &mut wrong)?;
    phrases::check(root, &files, &mut wrong)?;
    documents::check(root, &files, &mut wrong)?;
    names::check(root, &files, &mut wrong)?;
    check_dead_files(root, &files, &mut wrong)?;
    check_lengths(root, &files, &mut wrong)?;
    check_paths(root, &files, &mut wrong)?;
    check_experiments(root, &mut wrong)?;
    check_names_of_experiments(root, &mut wrong)?;
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{} house rules broken:\n  {}", wrong.len(), wrong.join("\n  "))
}

/// A fenced block of ARCHITECTURE.md with the layers of a crate: each name with the number of its line, 0 at the top.
struct Layers {
    owner: String,
    folder: Option<String>,
    level: BTreeMap<String, usize>,
}

fn layer_lists(architecture: &str) -> Result<Vec<Layers>> {
    let mut lists = Vec::new();
    let mut lines = architecture.lines();
    while let Some(line) = lines.next() {
        let Some(header) = line.strip_prefix("```layers ") else { continue };
        let mut words = header.split_whitespace().map(str::to_owned);
        let owner = words.next().context("a ```layers block names its crate")?;
        let mut list = Layers { owner, folder: words.next(), level: BTreeMap::new() };
        for (level, names) in lines.by_ref().take_while(|line| !line.starts_with("```")).enumerate() {
            list.level.extend(names.split_whitespace().map(|name| (name.to_owned(), level)));
        }
        lists.push(list);
    }
    if lists.is_empty() {
        bail!("ARCHITECTURE.md has no ```layers block");
    }
    Ok(lists)
}

fn check_modules(root: &Path, list: &Layers, folder: &str, wrong: &mut Vec<String>) -> Result<()> {
    // The list of a crate, or of the rooms inside one of its modules: `nofault::db`.
    let inner = list.owner.split_once("::").map(|(_, module)| module);
    let source = if inner.is_some() { root.join(folder) } else { root.join(folder).join("src") };
    let base = inner.map_or("crate::".to_owned(), |module| format!("crate::{module}::"));
    let mut seen = BTreeSet::new();
    for path in rust_files(&source)? {
        let inside: Vec<String> = module_path(&source, &path);
        let Some(module) = inside.first().filter(|module| *module != "tests") else { continue };
        seen.insert(module.clone());
        let Some(level) = list.level.get(module) else {
            wrong.push(format!(
                "{}: module `{module}` is not in ARCHITECTURE.md's list of {}",
                show(root, &path),
                list.owner
            ));
            continue;
        };
        if inside.iter().any(|part| part == "tests") {
            continue;
        }
        for (number, name) in imports(&read(&path)?, &base, inside.len()) {
            match list.level.get(&name) {
                Some(below) if below > level || name == *module => {}
                Some(_) => wrong.push(format!(
                    "{}:{number}: `{module}` uses `{name}`, which is not below it in ARCHITECTURE.md",
                    show(root, &path)
                )),
                None => {}
            }
        }
    }
    for name in list.level.keys().filter(|name| !seen.contains(*name)) {
        wrong.push(format!("ARCHITECTURE.md lists `{name}` in {}, which has no such module", list.owner));
    }
    Ok(())
}

fn check_crates(root: &Path, list: &Layers, wrong: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root.join("crates")).context("crates/")? {
        let manifest = entry?.path().join("Cargo.toml");
        let text = read(&manifest)?;
        let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or("").trim_matches('"');
        let Some(level) = list.level.get(name) else {
            wrong.push(format!("crate `{name}` is not in ARCHITECTURE.md's list of crates"));
            continue;
        };
        // Tests may import from anywhere: only the text before the development dependencies counts.
        let used = text.split("[dev-dependencies]").next().unwrap_or("");
        for other in used.lines().filter_map(|line| line.split(['.', ' ', '=']).next()) {
            if list.level.get(other).is_some_and(|below| below <= level) && other != name {
                wrong.push(format!("crate `{name}` depends on `{other}`, which is not below it"));
            }
        }
    }
    Ok(())
}

/// The modules below `base`, such as `crate::`, that a file imports, with line numbers. `depth` is the depth of the file's module below
/// `base`: from depth 1, `super::x` is `crate::x`.
fn imports(text: &str, base: &str, depth: usize) -> Vec<(usize, String)> {
    let code = without_tests(text);
    let is_begin = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$' || c == ':');
    let ends_of = |word: &str| -> Vec<usize> {
        code.match_indices(word).filter(|(at, _)| is_begin(*at)).map(|(at, _)| at + word.len()).collect()
    };
    let mut ends = [ends_of(base), ends_of(&"super::".repeat(depth))].concat();
    ends.sort_unstable();
    let (mut found, mut number, mut seen) = (Vec::new(), 1, 0);
    for end in ends {
        number += code[seen..end].matches('\n').count();
        seen = end;
        found.extend(top_names(&code[end..]).into_iter().map(|name| (number, name)));
    }
    found
}

/// The first path segments after `crate::`: one name, or the names of a braced list.
fn top_names(text: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(list) = text.strip_prefix('{') else { return vec![name(text)] };
    let (mut depth, mut names, mut start) = (0, Vec::new(), true);
    for (at, c) in list.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            c if start && !c.is_whitespace() => {
                names.push(name(&list[at..]));
                start = false;
            }
            _ => {}
        }
    }
    names
}

/// Blanks comments and the items after `#[cfg(test)]`; line numbers stay. An item ends with a semicolon, or with a
/// closing brace at the indentation of its first line.
fn without_tests(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    // The indentation of the item that is being left out.
    let mut inside: Option<&str> = None;
    for line in text.lines() {
        let bare = line.trim_start();
        let indentation = &line[..line.len() - bare.len()];
        if let Some(begun) = inside {
            let is_item = !bare.starts_with("#[") && !bare.starts_with("//") && indentation == begun;
            if is_item && (line.ends_with(';') || line.ends_with('}')) {
                inside = None;
            }
        } else if bare.starts_with("#[cfg(test)]") || bare.starts_with("#[cfg(all(test") {
            inside = Some(indentation);
        } else if !bare.starts_with("//") {
            code.push_str(line);
        }
        code.push('\n');
    }
    code
}

/// The module of a source file: `src/sim/files.rs` is `[sim, files]`; `lib.rs` and `main.rs` are the root, `[]`.
fn module_path(source: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(source).unwrap_or(file).with_extension("");
    let mut parts: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        parts.pop();
    }
    parts
}

fn check_dead_files(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    let sources = files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs"));
    for path in sources.filter(|path| path.components().any(|part| part.as_os_str() == "src")) {
        // The file of a folder stands for the folder.
        let module = if path.ends_with("mod.rs") { path.parent().unwrap_or(path) } else { path };
        let stem = module.file_stem().unwrap_or_default().to_string_lossy();
        if matches!(&*stem, "lib" | "main") {
            continue;
        }
        let folder = module.parent().unwrap_or(module);
        let beside = folder.with_extension("rs");
        let parents = [beside, folder.join("mod.rs"), folder.join("lib.rs"), folder.join("main.rs")];
        let declared = parents.iter().filter_map(|parent| fs::read_to_string(root.join(parent)).ok()).any(|text| {
            text.lines().any(|line| {
                let line = line.trim();
                line.ends_with(&format!("mod {stem};")) && !line.starts_with("//")
            })
        });
        if !declared {
            wrong.push(format!("{}: no module declares this file", path.display()));
        }
    }
    Ok(())
}

fn check_lengths(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    let mut allowed = BTreeMap::new();
    for line in fs::read_to_string(root.join(LONG_FILES)).unwrap_or_default().lines() {
        let Some((count, path)) = line.split_once(' ') else { continue };
        allowed.insert(path.to_owned(), count.parse::<usize>().with_context(|| format!("{LONG_FILES}: {line}"))?);
    }
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let lines = read(&root.join(path))?.lines().count();
        let name = path.to_string_lossy().into_owned();
        match allowed.remove(&name) {
            Some(limit) if lines > limit => wrong.push(format!("{name}: {lines} lines, {LONG_FILES} allows {limit}")),
            Some(_) if lines <= LINES_MAX => {
                wrong.push(format!("{name}: short enough now, take it out of {LONG_FILES}"))
            }
            Some(limit) if lines < limit => {
                wrong.push(format!("{name}: {lines} lines, tighten {LONG_FILES} from {limit}"))
            }
            Some(_) => {}
            None if lines > LINES_MAX => {
                wrong.push(format!(
                    "{name}: {lines} lines; look for the seam, at most {LINES_MAX} (or see {LONG_FILES})"
                ));
            }
            None => {}
        }
    }
    wrong.extend(allowed.keys().map(|name| format!("{LONG_FILES} names {name}, which is gone")));
    Ok(())
}

fn check_paths(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    // Written in two halves, so that this file does not break its own rule.
    let banned = [concat!("../sha", "red"), concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];
    for path in files {
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        for (number, line) in text.lines().enumerate() {
            if let Some(word) = banned.iter().find(|word| line.contains(**word)) {
                wrong.push(format!("{}:{}: names `{word}`", path.display(), number + 1));
            }
        }
    }
    Ok(())
}

fn check_experiments(root: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let source = root.join("crates/lab/src");
    for path in rust_files(&source.join("experiments"))? {
        let inside = module_path(&source, &path);
        let Some(own) = inside.get(1).filter(|_| !inside.iter().any(|part| part == "tests")) else { continue };
        for (number, other) in other_experiments(&read(&path)?, own) {
            wrong.push(format!("{}:{number}: `{own}` uses the experiment `{other}`", show(root, &path)));
        }
    }
    Ok(())
}

/// Reports names of experiments in code of the lab and of the command line outside the experiments' folders.
fn check_names_of_experiments(root: &Path, wrong: &mut Vec<String>) -> Result<()> {
    let folder = root.join("crates/lab/src/experiments");
    let mut names = BTreeSet::new();
    for path in rust_files(&folder)? {
        names.extend(module_path(&folder, &path).into_iter().next());
        names.extend(declared_id(&read(&path)?));
    }
    for source in ["crates/lab/src", "crates/cli/src"] {
        for path in rust_files(&root.join(source))? {
            let inside = module_path(&root.join(source), &path);
            if inside.first().is_some_and(|first| first == "experiments") || inside.iter().any(|part| part == "tests") {
                continue;
            }
            let file = show(root, &path);
            for (number, name) in named_experiments(&read(&path)?, &names) {
                if !EXPERIMENTS_NAMED.contains(&(file.as_str(), name.as_str())) {
                    wrong.push(format!("{file}:{number}: names the experiment `{name}` outside its folder"));
                }
            }
        }
    }
    Ok(())
}

/// The id that an experiment's own module declares: `pub const ID: ExperimentId = ExperimentId::new("random");`.
fn declared_id(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("const ID: ExperimentId = ExperimentId::new(\"")?;
    rest.split_once('"').map(|(id, _)| id.to_owned())
}

/// The places where code names an experiment, with line numbers: `experiments::random`, or the name as a whole string.
fn named_experiments(text: &str, names: &BTreeSet<String>) -> Vec<(usize, String)> {
    let code = without_tests(text);
    let number_at = |at: usize| code[..at].matches('\n').count() + 1;
    let paths = code.match_indices("experiments::").map(|(at, word)| (number_at(at), &code[at + word.len()..]));
    let modules = paths.flat_map(|(number, rest)| top_names(rest).into_iter().map(move |name| (number, name)));
    let strings = code
        .lines()
        .enumerate()
        .flat_map(|(index, line)| line.split('"').skip(1).step_by(2).map(move |text| (index + 1, text.to_owned())));
    modules.chain(strings).filter(|(_, name)| names.contains(name)).collect()
}

/// The names of other experiments in an experiment's file, with line numbers.
fn other_experiments(text: &str, own: &str) -> Vec<(usize, String)> {
    let code = without_tests(text);
    let lines = code.lines().enumerate();
    let named = lines.flat_map(|(index, line)| {
        let rest = line.match_indices("experiments::").map(|(at, word)| &line[at + word.len()..]);
        rest.flat_map(top_names).map(move |name| (index + 1, name))
    });
    named.filter(|(_, name)| name != own && !name.is_empty()).collect()
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// All files that git does not ignore: new files count before they are added.
fn tracked_files(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git could not be started")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(names.lines().map(PathBuf::from).filter(|path| root.join(path).is_file()).collect())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn show(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, depth: usize) -> Vec<String> {
        imports(text, "crate::", depth).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn imports_are_found_in_every_form() {
        assert_eq!(names("use crate::disk::Disk;\nfn f() { crate::error::Error::new() }", 1), ["disk", "error"]);
        assert_eq!(names("use crate::{disk::{Disk, Queue}, error};", 1), ["disk", "error"]);
        assert_eq!(names("use super::disk;", 1), ["disk"]);
        assert_eq!(names("use super::sibling; use super::super::disk;", 2), ["disk"]);
        assert_eq!(imports("use crate::db::open::X; use crate::disk;", "crate::db::", 2), [(1, "open".to_owned())]);
    }

    #[test]
    fn comments_tests_and_other_crates_do_not_count() {
        assert!(names("// use crate::disk;\n/// [`crate::disk`]\nuse other_crate::x;", 1).is_empty());
        assert!(names("fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::disk;\n}", 1).is_empty());
        let after = "#[cfg(test)]\nuse crate::x;\nuse crate::disk;\n#[cfg(test)]\nmod tests {\n    use crate::y;\n}\nuse crate::error;";
        assert_eq!(names(after, 1), ["disk", "error"]);
    }

    #[test]
    fn an_import_upwards_is_reported_with_its_line() {
        let found = imports("\n\nuse crate::disk;", "crate::", 1);
        assert_eq!(found, [(3, "disk".to_owned())]);
    }

    #[test]
    fn an_experiment_that_names_another_is_reported_with_its_line() {
        let text = "use super::words;\nuse crate::experiments::scan::PART;\nfn f() { crate::experiments::random::g() }";
        assert_eq!(other_experiments(text, "random"), [(2, "scan".to_owned())]);
        assert!(
            other_experiments("// crate::experiments::scan\n#[cfg(test)]\nuse crate::experiments::scan;", "x")
                .is_empty()
        );
    }

    #[test]
    fn an_experiment_that_is_named_outside_its_folder_is_reported_with_its_line() {
        let text = "/// ID.\npub const ID: ExperimentId = ExperimentId::new(\"async\");\n";
        let names: BTreeSet<String> = [declared_id(text).unwrap(), "scan".to_owned()].into();
        let code = "use crate::experiments::{scan, find};\nlet a = of(\"async\");\n// \"scan\"\nlet b = \"a scan\";\n";
        let found = named_experiments(code, &names);
        assert_eq!(found, [(1, "scan".to_owned()), (2, "async".to_owned())]);
        assert!(named_experiments("#[cfg(test)]\nuse crate::experiments::scan;", &names).is_empty());
    }

    #[test]
    fn layers_are_read_top_first() {
        let lists = layer_lists("```layers a crates/a\nx y\nz\n```\n").unwrap();
        assert_eq!((lists[0].level["x"], lists[0].level["y"], lists[0].level["z"]), (0, 0, 1));
        assert!(layer_lists("nothing").is_err());
    }

    #[test]
    fn this_repository_keeps_its_rules() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        run(root).unwrap();
    }
}
