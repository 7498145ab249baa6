//! `completions` and `man`: descriptions of this program for a shell and for the manual, made from its own flags.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;
use nofault_lab::error::LabError;
use nofault_lab::paths::shown;

use crate::output;

/// Prints the completions of a shell.
pub(crate) fn completions(mut command: Command, shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "nofault", &mut script);
    write(&script)
}

/// Prints the manual page of the program, or writes the pages of all commands into a folder.
pub(crate) fn man(command: Command, dir: Option<&Path>) -> Result<ExitCode> {
    if let Some(dir) = dir {
        std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .map_err(|error| LabError::of_path(shown(&dir), &error))?;
        output::log(&format!("wrote the manual pages into {}", shown(&dir)));
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).map_err(|error| LabError::system("make the manual", &error))?;
    write(&page)
}

/// Writes bytes to standard output. A reader that has ended is no error.
fn write(bytes: &[u8]) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(LabError::system("write to standard output", &error).into())
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
