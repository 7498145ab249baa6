//! The `nofault` command: connects the command line with the libraries. Each command has its own file; this one
//! parses and turns errors into exit codes.

mod db;
mod db_args;
mod examples;
mod input;
mod lab;
mod lab_args;
mod lab_flags;
mod manual;
mod new_file;
mod opening_args;
mod output;
mod ship;
mod ship_args;
mod signals;
mod times;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use nofault_lab::error::LabError;

use signals::Signals;

/// Measures the cost of paging a database with mmap on this machine; and has a storage engine that pages without it.
#[derive(Debug, Parser)]
#[command(name = "nofault", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the cost of mmap against explicit I/O on this machine, and report it.
    Lab(Box<lab_args::LabArguments>),
    /// Create, read, change, check and copy databases of the engine; measure the engine.
    Db(db_args::DbArguments),
    /// Ship a database to object storage: its news since the last time, or the whole of it. An application with its database
    /// open ships it itself, with the crate nofault-ship.
    Ship(ship_args::ShipArguments),
    /// Restore a database that was shipped, as of its newest commit, a time or a commit; or list the points to restore.
    Restore(ship_args::RestoreArguments),
    /// Print the completions of this program's commands and flags for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page of this program, or write the pages of all its commands.
    Man {
        /// Write a page for each command into this folder; created if need be.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
}

/// The program's commands, with the examples of their help.
fn command() -> clap::Command {
    examples::with_examples(Arguments::command())
}

fn main() -> ExitCode {
    // The matches come from the same definition, so an error here cannot be the user's.
    let Arguments { command } =
        Arguments::from_arg_matches(&self::command().get_matches()).unwrap_or_else(|e| e.exit());
    let signals = Signals::handle();
    let result = match command {
        Command::Lab(arguments) => lab::run(*arguments, &signals),
        Command::Db(arguments) => db::run(arguments, &signals),
        Command::Ship(arguments) => signals.heard(|| ship::ship(&arguments, &signals)),
        Command::Restore(arguments) => signals.heard(|| ship::restore(&arguments, &signals)),
        Command::Completions { shell } => manual::completions(self::command(), shell),
        Command::Man { dir } => manual::man(self::command(), dir.as_deref()),
    };
    let code = match result {
        Ok(code) => code,
        Err(error) => {
            // An error of the engine may name a folder with line breaks in its name.
            let text = match error.is::<LabError>() {
                true => format!("nofault: {error:#}"),
                false => format!("nofault: {error:#}").replace('\n', "\\n"),
            };
            output::log(&text);
            // An error of neither the engine nor the lab came from the system, and gets 9 if nothing more is known of it:
            // 1 is for `compare`, and for a missing key.
            let of_engine = error.downcast_ref::<nofault::error::Error>().map(db::exit_code);
            let of_ship = error.downcast_ref::<nofault_ship::Error>().map(ship::exit_code);
            let of_lab = error.downcast_ref::<LabError>().map(LabError::exit_code);
            let of_system =
                || error.downcast_ref::<std::io::Error>().map(|error| LabError::system("", error).exit_code());
            ExitCode::from(of_engine.or(of_ship).or(of_lab).or_else(of_system).unwrap_or(9))
        }
    };
    signals::remove_own_files();
    code
}
