//! Prints the rate, the CPU time and the latency of gets out of core by tasks; with the name of another program, also the ratio of the
//! CPU times of both.
//!
//! `cargo bench -p nofault-benches --bench cold_tasks -- [FOLDER [SECONDS [TASKS [RUNTIME [BASELINE [ROUNDS]]]]]]`: 4 seconds with 64 tasks
//! without arguments, after 2 seconds that are not counted, over a million values of 1,000 random bytes and with a cache of 96 MiB. The folder
//! is on the disk to be measured, by default the current folder. `RUNTIME` is `one`, a runtime with a single thread (the default); `poller`,
//! such a runtime that takes completions by itself (`complete_on_tokio`); or `two`, a runtime with two threads.
//!
//! `BASELINE` is another build of this example, or any program that takes the first four arguments and prints `NUMBER us of CPU a get`: the
//! two run by turns, `ROUNDS` times (3), each as a separate process, and the last line has the median of the ratios with the
//! lowest and the highest.

mod cpu_times;
mod turns;

use std::path::Path;
use std::time::{Duration, Instant};

use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Db, Table};
use tokio::runtime::{Builder, Runtime};

use self::cpu_times::cpu_times;

const ENTRIES: u64 = 1_000_000;
const VALUE_BYTES: usize = 1_000;
const CPU: &str = " us of CPU a get";

/// Gets values in random order until `end`. Returns the latency of each get begun after `counted_from`.
async fn get_until(table: Table, task: u64, counted_from: Instant, end: Instant) -> Result<Vec<Duration>> {
    let (mut random, mut took) = (fastrand::Rng::with_seed(task), Vec::new());
    loop {
        let (number, begun) = (random.u64(..ENTRIES), Instant::now());
        let value = table.get(number.to_be_bytes()).await?;
        assert!(value.is_some_and(|value| value.len() == VALUE_BYTES && value[..8] == number.to_le_bytes()));
        let now = Instant::now();
        if now > end {
            return Ok(took);
        }
        if begun > counted_from {
            took.push(now - begun);
        }
    }
}

async fn run(folder: &Path, seconds: f64, tasks: u64, takes_completions: bool) -> Result<()> {
    let db = Db::create(folder, &Settings { cache_bytes: 96 << 20, ..Settings::default() }).await?;
    if takes_completions {
        db.complete_on_tokio()?;
    }
    let table = db.create_table("table").await?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut value = move |number: u64| {
        let mut value = vec![0; VALUE_BYTES];
        random.fill(&mut value);
        value[..8].copy_from_slice(&number.to_le_bytes());
        value
    };
    table.bulk_load((0..ENTRIES).map(move |number| (number.to_be_bytes(), value(number)))).await?;
    let counted_from = Instant::now() + Duration::from_secs(2);
    let end = counted_from + Duration::from_secs_f64(seconds);
    let begun = (0..tasks).map(|task| tokio::spawn(get_until(table.clone(), task, counted_from, end)));
    let begun: Vec<_> = begun.collect();
    tokio::time::sleep_until(counted_from.into()).await;
    let (_, cpu_before) = cpu_times();
    tokio::time::sleep_until(end.into()).await;
    let cpu = cpu_times().1.saturating_sub(cpu_before);
    let mut took = Vec::new();
    for task in begun {
        took.extend(task.await.expect("no task panics")?);
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_micros();
    println!(
        "{:.0} /s; {:.2}{CPU}; {} us at p50, {} us at p99, {} us at p99.9",
        took.len() as f64 / seconds,
        cpu.as_secs_f64() * 1e6 / took.len() as f64,
        at(0.5),
        at(0.99),
        at(0.999),
    );
    Ok(())
}

fn runtime(name: &str) -> Runtime {
    let mut builder = match name {
        "one" | "poller" => Builder::new_current_thread(),
        "two" => Builder::new_multi_thread(),
        other => panic!("{other} is no runtime: one, poller or two"),
    };
    builder.worker_threads(2).enable_all().build().expect("a runtime can be built")
}

fn main() -> Result<()> {
    turns::run(("cold-tasks", 4, CPU), |folder, arguments| {
        let (seconds, tasks) = (arguments.number(1, 4.0), arguments.number(2, 64));
        let name = arguments.text(3, "one");
        runtime(name).block_on(run(folder, seconds, tasks, name == "poller"))
    })
}
