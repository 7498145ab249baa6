//! `nofault db bench`: flags to options, the report to a table or JSON.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nofault_lab::bench::{self, BenchOptions};
use nofault_lab::error::{LabError, LabErrorKind};

use super::print;
use crate::db_args::BenchArguments;
use crate::output::{tell, width};

/// Least memory for a database to run without constant eviction.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Runs the benchmark, and prints its results also when it ended with an error.
pub(super) fn run(arguments: BenchArguments, cancel: &AtomicBool) -> Result<ExitCode> {
    if arguments.list {
        let list = bench::works().fold(String::new(), |text, (name, what)| text + &format!("{name:<12} {what}\n"));
        print(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.child {
        bench::child::serve(std::io::stdin(), std::io::stdout(), cancel)?;
        return Ok(ExitCode::SUCCESS);
    }
    let time = Duration::try_from_secs_f64(arguments.seconds)
        .map_err(|error| LabError::new(LabErrorKind::Usage, format!("--seconds {}: {error}", arguments.seconds)))?;
    let options = BenchOptions {
        works: arguments.works,
        dir: arguments.dir,
        data_bytes: arguments.size,
        memory_keys: arguments.memory_keys,
        cache_bytes: arguments.cache.unwrap_or((arguments.size / 8).max(CACHE_BYTES_MIN)),
        limit_bytes: arguments.limit,
        program: Some(std::env::current_exe().context("find this program, to start children with")?),
        value_bytes: arguments.values.iter().map(|bytes| *bytes as usize).collect(),
        log_bytes: arguments.log,
        time,
        repeats: arguments.repeats,
        seed: arguments.seed,
        only: None,
    };
    let mut say = |line: &str| {
        if !arguments.quiet {
            tell(line);
        }
    };
    let (report, trouble) = bench::run(&options, cancel, &mut say)?;
    if !report.rows.is_empty() {
        print(&if arguments.json { serde_json::to_string_pretty(&report)? } else { report.text(width()) })?;
    }
    match trouble {
        Some(error) => Err(error.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}
