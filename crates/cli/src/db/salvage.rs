//! `salvage`: writes the readable part of a damaged database into a new one, and prints the losses.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nofault::salvage::{SalvageOptions, SalvageProgress, SalvageReport, SalvageStep, salvage as salvage_into};
use nofault::settings::Settings;
use nofault_lab::error::LabError;
use nofault_lab::format;
use nofault_lab::paths::shown;
use serde_json::json;

use super::{DAMAGED, codec};
use crate::output::{log, print};
use crate::signals::{STOP, Signals};

/// Losses of one kind that are printed; `--json` has all of them.
const PRINTED_MAX: usize = 100;

/// Salvages the database in `source` into `dest`. There is no new database when the work fails or is stopped.
pub(super) fn salvage(
    source: &Path,
    dest: &Path,
    settings: Settings,
    (include_unsure, json, quiet): (bool, bool, bool),
    signals: &Signals,
) -> Result<ExitCode> {
    let mut options = SalvageOptions::new(settings);
    options.include_unsure = include_unsure;
    let mut display = Shown::new(quiet);
    let found = signals.heard(|| {
        salvage_into(source, dest, &options, |progress| {
            display.show(progress);
            !STOP.load(Ordering::Relaxed)
        })
    });
    display.bar.finish_and_clear();
    let found = found?;
    if found.was_stopped {
        return Err(LabError::interrupted().into());
    }
    if json {
        print_json(&found)?
    } else {
        print_text(&found)?
    }
    let entries: u64 = found.tables.iter().map(|table| table.entries).sum();
    log(&format!("salvaged {entries} entries of {} tables into {}", found.tables.len(), shown(&dest)));
    if found.is_complete() {
        return Ok(ExitCode::SUCCESS);
    }
    log("nofault: not all of the database could be read: what is lost is listed above");
    Ok(ExitCode::from(DAMAGED))
}

fn print_text(found: &SalvageReport) -> Result<()> {
    for table in &found.tables {
        let unsure = if table.is_unsure { ", which may be outdated or deleted since" } else { "" };
        print(&format!("table {}: {} entries{unsure}", table.name, table.entries))?;
    }
    for range in found.lost_ranges.iter().take(PRINTED_MAX) {
        let to = range.to.as_ref().map_or("the end".into(), |to| format!("«{}»", codec::escape(to)));
        let from =
            if range.from.is_empty() { "the first".into() } else { format!("«{}»", codec::escape(&range.from)) };
        let unsure = match range.unsure_entries {
            0 => String::new(),
            entries => format!("; {entries} entries of it, which may be outdated, were found"),
        };
        print(&format!("lost in table {}: keys from {from} to {to}: {}{unsure}", range.table, range.reason))?;
    }
    for value in found.lost_values.iter().take(PRINTED_MAX) {
        print(&format!(
            "lost in table {}: the value of «{}»: {}",
            value.table,
            codec::escape(&value.key),
            value.reason
        ))?;
    }
    for (kind, count) in [("ranges", found.lost_ranges.len()), ("values", found.lost_values.len())] {
        if count > PRINTED_MAX {
            print(&format!("and {} further lost {kind}: --json lists all", count - PRINTED_MAX))?;
        }
    }
    found.lost_names.iter().try_for_each(|lost| print(&format!("lost names of tables: {lost}")))?;
    found.history_cut.iter().try_for_each(|cut| print(&format!("lost commits: {cut}")))?;
    for damage in found.damage.iter().take(PRINTED_MAX) {
        print(&format!("damage: {damage}"))?;
    }
    Ok(())
}

fn print_json(found: &SalvageReport) -> Result<()> {
    // Keys as in a dump: as text, or in base64.
    let key = |name: &str, key: &[u8]| match std::str::from_utf8(key) {
        Ok(text) => (name.to_owned(), json!(text)),
        Err(_) => (format!("{name}_base64"), json!(codec::base64(key))),
    };
    let range = |range: &nofault::salvage::LostRange| {
        let mut object = serde_json::Map::from_iter([
            ("table".to_owned(), json!(range.table)),
            key("from", &range.from),
            ("pages".to_owned(), json!(range.pages.iter().map(|page| page.0).collect::<Vec<_>>())),
            ("reason".to_owned(), json!(range.reason)),
            ("unsure_entries".to_owned(), json!(range.unsure_entries)),
        ]);
        object.extend(range.to.as_ref().map(|to| key("to", to)));
        object
    };
    let value = |value: &nofault::salvage::LostValue| {
        let (table, reason) = (json!(value.table), json!(value.reason));
        serde_json::Map::from_iter([("table".to_owned(), table), key("key", &value.key), ("reason".to_owned(), reason)])
    };
    let tables = found
        .tables
        .iter()
        .map(|table| json!({ "name": table.name, "entries": table.entries, "unsure": table.is_unsure }));
    let answer = json!({
        "complete": found.is_complete(), "commit": found.commit.0, "commits_replayed": found.commits_replayed,
        "tables": tables.collect::<Vec<_>>(),
        "lost_ranges": found.lost_ranges.iter().map(range).collect::<Vec<_>>(),
        "lost_values": found.lost_values.iter().map(value).collect::<Vec<_>>(),
        "lost_names": found.lost_names, "lost_commits": found.history_cut, "damage": found.damage,
    });
    print(&serde_json::to_string_pretty(&answer)?)
}

/// The progress on standard error: a redrawn line on a terminal, a line for each step and every ten seconds elsewhere.
struct Shown {
    bar: ProgressBar,
    quiet: bool,
    last: Option<(SalvageStep, Instant)>,
}

impl Shown {
    fn new(quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, quiet, last: None }
    }

    fn show(&mut self, progress: &SalvageProgress) {
        let every = if self.bar.is_hidden() { Duration::from_secs(10) } else { Duration::from_millis(250) };
        if self.quiet || self.last.is_some_and(|(step, at)| step == progress.step && at.elapsed() < every) {
            return;
        }
        self.last = Some((progress.step, Instant::now()));
        let amount = |done: u64| match progress.step {
            SalvageStep::Search => format::bytes(done),
            _ => done.to_string(),
        };
        let (what, things) = match progress.step {
            SalvageStep::Search => ("searching the file for pages", ""),
            SalvageStep::Survey => ("reading all pages", " pages"),
            SalvageStep::Fill => ("copying entries", " leaves"),
            _ => ("replaying the log", " commits"),
        };
        let of = progress.all.map_or(String::new(), |all| format!(" of {}", amount(all)));
        let line = format!("{what}: {}{of}{things}, {} entries so far", amount(progress.done), progress.entries);
        if self.bar.is_hidden() { log(&line) } else { self.bar.set_message(line) }
    }
}
