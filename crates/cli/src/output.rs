//! Text for the terminal, or for the program behind a pipe. Control characters of records and of names are made
//! visible, so that none acts on the terminal.

use std::io::ErrorKind;

use anyhow::{Context as _, Result};
use nofault_lab::error::LabError;
use nofault_lab::format::harmless;
use nofault_lab::progress::{put, put_line};

use crate::signals::STOP;

/// Most bytes of an answer on the terminal.
pub(crate) const ANSWER_BYTES_MAX: u64 = 4096;

/// Writes a line to standard error. An error is ignored: the reader of the stream may have ended (`2>&1 | head`). After a signal a reader
/// that takes nothing is not waited for.
pub(crate) fn log(line: &str) {
    put_line(line, &STOP);
}

/// Writes to standard output. A broken pipe is no error: its reader has ended (`| head`). After a signal a reader that takes nothing is not
/// waited for.
pub(crate) fn print(text: &str) -> Result<()> {
    match put(&mut std::io::stdout().lock(), &format!("{}\n", harmless(text.trim_end())), &STOP) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(LabError::interrupted().into()),
        other => other.context("write to standard output"),
    }
}

/// Formats a value as indented JSON.
pub(crate) fn serde_text(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).context("as JSON")
}

/// The number of columns of the terminal; 120 without one, or if it has fewer than 40.
pub(crate) fn width() -> u16 {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| size.ws_col);
    columns.ok().filter(|columns| *columns >= 40).unwrap_or(120)
}
