//! Text for the terminal, or for the program behind a pipe. Control characters of records and of names are made
//! visible, so that none acts on the terminal.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use nofault_lab::format::harmless;

/// Writes a line to standard error. An error is ignored: the reader of the stream may have ended (`2>&1 | head`).
pub(crate) fn log(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", harmless(line));
}

/// Writes to standard output. A broken pipe is no error: its reader has ended (`| head`).
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", harmless(text.trim_end())) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
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
