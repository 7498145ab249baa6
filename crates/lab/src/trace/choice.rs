//! What all recordings have in common: a folder for the output of the tool, and the choice of one file among those that the command
//! used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Access, Trace};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::{self, shown};

/// The accesses to the files of a command, by the path of the file as [`paths::to_text`] writes it. Threads are named as the tool names them.
pub(super) type Files = BTreeMap<String, Vec<(String, Access)>>;

/// The recorded accesses of a command to one of its files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recording {
    /// The path of the file.
    pub file: PathBuf,
    /// Its accesses.
    pub trace: Trace,
    /// What the reader of the trace should know about it, in sentences: accesses that are missing, and why.
    pub notes: Vec<String>,
}

/// Calls a function with a new folder for temporary files, which is removed afterwards.
pub(super) fn in_folder<T>(work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    // A process of another container may have the same number, and the same folder for temporary files.
    let folder = std::env::temp_dir().join(format!("nofault-record-{:016x}", fastrand::u64(..)));
    std::fs::create_dir(&folder).map_err(|error| LabError::system(format!("create {}", shown(&folder)), &error))?;
    let result = work(&folder);
    // It is in the system's folder of temporary files; a part that stays harms nothing.
    let _ = std::fs::remove_dir_all(&folder);
    result
}

/// Takes the accesses of one file among all: of `of`, or of the file of which most bytes were moved.
///
/// # Errors
/// `Usage` when there are no accesses to that file; `nothing` is the message when there are none to any file.
pub(super) fn choose(mut files: Files, of: Option<&Path>, nothing: &str) -> Result<Recording> {
    let usage = |why: String| LabError::new(LabErrorKind::Usage, why);
    let bytes = |accesses: &[(String, Access)]| accesses.iter().map(|(_, access)| access.length_bytes).sum::<u64>();
    let path = match of {
        // The tools name a file without symbolic links. The command may have removed it.
        Some(of) => {
            let whole = of.canonicalize().or_else(|_| std::path::absolute(of)).unwrap_or_else(|_| of.to_path_buf());
            let text = paths::to_text(&whole);
            // perf prints the bytes of a name, which are read as text.
            if files.contains_key(&text) { text } else { whole.to_string_lossy().into_owned() }
        }
        None => {
            let moved = files.iter().map(|(path, accesses)| (bytes(accesses), path)).filter(|(bytes, _)| *bytes > 0);
            let most = moved.max().map(|(_, path)| path.clone());
            most.ok_or_else(|| usage(nothing.into()))?
        }
    };
    match files.remove(&path).filter(|accesses| bytes(accesses) > 0) {
        Some(mut accesses) => {
            // strace prints a call when it returns.
            accesses.sort_by(|(_, a), (_, b)| a.at_s.total_cmp(&b.at_s));
            let (mut trace, mut names) = (Trace::default(), BTreeMap::new());
            accesses.iter().for_each(|(thread, access)| trace.push(*access, thread, &mut names));
            Ok(Recording { file: paths::from_text(&path), trace, notes: Vec::new() })
        }
        None if files.is_empty() => Err(usage(format!("no access to {}: {nothing}", shown_text(&path)))),
        None => {
            let known: Vec<String> = files.into_keys().take(10).map(|path| shown_text(&path)).collect();
            Err(usage(format!("no access to {}; the command used {}", shown_text(&path), known.join(", "))))
        }
    }
}

fn shown_text(path: &str) -> String {
    shown(&paths::from_text(path)).to_string()
}

/// Whether a path is no file with data: a terminal, a pipe, a file of the kernel.
pub(super) fn is_special(path: &str) -> bool {
    ["/dev/", "/proc/", "/sys/"].iter().any(|start| path.starts_with(start))
}
