//! A work in a process of its own, inside a memory cgroup: the data is then larger than memory for every store, also
//! for stores whose cache is the kernel's.
//!
//! The parent starts `nofault db bench --child`, puts it into the group, and only then sends the options as one line of
//! JSON. The child answers with lines: its current step, and at the end its rows.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::row::Row;
use super::{BenchOptions, run};
use crate::child::{self, Orders, Running};
use crate::error::{LabError, LabErrorKind, Result};
use crate::format;
use crate::machine::memory::CgroupGuard;

/// Memory that a process needs beside 1.3 times its cache: the engine's own rule.
const BESIDE_CACHE_BYTES: u64 = 64 << 20;

/// A line from child to parent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Doing(String),
    Done { rows: Vec<Row>, trouble: Option<(String, String)> },
}

/// The least limit under which a process with a cache of this size is not killed.
pub(super) fn limit_bytes(cache_bytes: u64) -> u64 {
    cache_bytes + cache_bytes.div_ceil(10) * 3 + BESIDE_CACHE_BYTES
}

/// Runs one work in a child of `program`. Returns its rows, each with a note of its memory limit, and the failure if
/// there was one.
///
/// # Errors
/// `System` when the child cannot be started, or dies.
pub(super) fn run_work(
    program: &Path,
    options: &BenchOptions,
    cancel: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<(Vec<Row>, Option<LabError>)> {
    let bytes = options.limit_bytes.unwrap_or_else(|| limit_bytes(options.cache_bytes));
    let group = CgroupGuard::create(bytes);
    let alone = if options.only.is_some() { "each store by itself " } else { "" };
    let note = match &group {
        Ok(_) if bytes >= options.data_bytes => {
            format!("{alone}in a memory cgroup of {}, which is not less than the data", format::bytes(bytes))
        }
        Ok(_) => format!("{alone}in a memory cgroup of {}, page cache included", format::bytes(bytes)),
        Err(error) => format!("no memory cgroup ({error}): rivals may keep everything in the page cache"),
    };
    let mut child = Running::start(Command::new(program).args(["db", "bench", "--child"]))?;
    if let Ok(group) = &group {
        group.add_pid(child.0.id())?;
    }
    child.send(options)?;
    let if_killed = match &group {
        Ok(_) => "out of memory under its limit; give it more (--limit)",
        Err(_) => "the machine ran out of memory; ask for less (--size, --memory-keys, --cache)",
    };
    let (mut rows, trouble) = child.follow(if_killed, None, cancel, &mut |message| match message {
        // The parent has printed the name of the work already.
        Message::Doing(what) => {
            say(&what);
            None
        }
        Message::Done { rows, trouble } => Some(Ok((rows, trouble))),
    })?;
    let trouble = trouble.map(|(kind, message)| LabError::new(LabErrorKind::of_name(&kind), message));
    rows.iter_mut().for_each(|row| row.note(note.clone()));
    Ok((rows, trouble))
}

/// The child's part: reads options from `input`, works, writes messages to `output`.
///
/// # Errors
/// `Usage` when the input is not of this program; `System` when the parent has gone.
pub fn serve(input: impl Read, mut output: impl Write, cancel: &AtomicBool) -> Result<()> {
    let options: BenchOptions = Orders::new(input, "nofault db bench --child").first()?;
    let mut send = |message: &Message| child::say(&mut output, message);
    // A failed write is ignored: when the parent ends, this process is killed.
    let (report, trouble) = run(&options, cancel, &mut |what| drop(send(&Message::Doing(what.to_owned()))))?;
    let trouble = trouble.map(|error| (error.kind().name().to_owned(), error.to_string()));
    send(&Message::Done { rows: report.rows, trouble })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_are_no_options_is_refused_with_a_word_about_who_calls_this() {
        let error = serve(&b"hello\n"[..], Vec::new(), &AtomicBool::new(false)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Usage);
        assert!(error.to_string().contains("called by nofault itself"));
    }

    #[test]
    fn a_child_answers_with_rows_that_the_parent_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let options = BenchOptions {
            data_bytes: 1 << 20,
            memory_keys: 1000,
            ..super::super::tests::tiny(folder.path(), &["space"])
        };
        let mut said = Vec::new();
        let line = serde_json::to_string(&options).unwrap() + "\n";
        serve(line.as_bytes(), &mut said, &AtomicBool::new(false)).unwrap();
        let last = String::from_utf8(said).unwrap().lines().last().unwrap().to_owned();
        let Message::Done { rows, trouble } = serde_json::from_str(&last).unwrap() else { panic!("{last}") };
        assert!(trouble.is_none() && rows.len() == 4 && rows[0].engine.is_some(), "{rows:?}");
    }
}
