//! The `nofault` command: connects the command line with the libraries. Each command has a file of its own; this one
//! parses, handles Ctrl-C and turns errors into exit codes.

mod db;
mod db_args;
mod input;
mod lab;
mod lab_args;
mod output;
mod verdict;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};
use nofault_lab::error::LabError;

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
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    let handler = ctrlc::set_handler(move || {
        // The second Ctrl-C ends the process at once. Trials die with it, and the next start removes its stale
        // resources.
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
    if let Err(error) = handler {
        output::log(&format!(
            "nofault: Ctrl-C cannot be handled ({error}): files of an interrupted run are removed at the next start"
        ));
    }
    let result = match command {
        Command::Lab(arguments) => lab::run(*arguments, &cancel),
        Command::Db(arguments) => db::run(arguments, &cancel),
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
