//! The `nofault` command: connects the command line with the libraries. Each command has a file of its own; this one
//! parses and turns errors into exit codes.

mod db;
mod db_args;
mod input;
mod lab;
mod lab_args;
mod output;
mod signals;
mod verdict;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
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
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let signals = Signals::handle();
    let result = match command {
        Command::Lab(arguments) => lab::run(*arguments, &signals),
        Command::Db(arguments) => db::run(arguments, &signals),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            output::log(&format!("nofault: {error:#}"));
            // An error of neither the engine nor the lab came from the system, and gets 9: 1 is for `compare`, and for
            // a missing key.
            let of_engine = error.downcast_ref::<nofault::error::Error>().map(db::exit_code);
            let of_lab = error.downcast_ref::<LabError>().map(LabError::exit_code);
            ExitCode::from(of_engine.or(of_lab).unwrap_or(9))
        }
    }
}
