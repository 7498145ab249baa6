//! `nofault db stat`: the tables of a database, its space and memory, and the space that compression would save.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use nofault::blocking::Db;
use nofault::db::{CompressionEstimate, TableList};
use nofault::error::{Error, ErrorKind};
use nofault::settings::Compression;
use nofault_lab::format;

use nofault_lab::paths::{shown, to_text};

use super::{DAMAGED, compression_name};
use crate::output::{log, print};

/// Prints the facts about a database.
pub(super) fn stat(db: &Db, path: &Path, (count, compressible): (bool, bool), json: bool) -> Result<ExitCode> {
    let (TableList { names, damage: mut problems, .. }, stats) = (db.list_tables()?, db.stats());
    let mut tables = BTreeMap::new();
    for name in names {
        let entries = match count.then(|| count_entries(db, &name)).transpose() {
            Err(error) => match error.downcast::<Error>() {
                Ok(error) if error.kind() == ErrorKind::Corrupt => {
                    problems.push(error);
                    None
                }
                Ok(error) => return Err(error.into()),
                Err(error) => return Err(error),
            },
            Ok(entries) => entries,
        };
        tables.insert(name, entries);
    }
    // Tables without compression, or with an unreadable entry, are left out.
    let compression: BTreeMap<&String, &str> = tables
        .keys()
        .filter_map(|name| Some((name, db.compression(name).ok().filter(|of| *of != Compression::None)?)))
        .map(|(name, of)| (name, compression_name(of)))
        .collect();
    let estimates: BTreeMap<&String, CompressionEstimate> = tables
        .keys()
        .filter(|_| compressible)
        .filter_map(|name| Some((name, db.estimate_compression(name).ok().flatten()?)))
        .collect();
    let problems: Vec<String> = problems.iter().map(Error::to_string).collect();
    let code = ExitCode::from(if problems.is_empty() { 0 } else { DAMAGED });
    let length = |name: &str| std::fs::metadata(path.join(name)).map_or(0, |file| file.len());
    let log_bytes = length("log");
    let of_blocks = |blocks: u64| blocks * db.page_bytes() as u64;
    let (data_bytes, used_bytes) = (of_blocks(stats.pool.blocks_file), of_blocks(stats.pool.blocks_used));
    if json {
        let answer = serde_json::json!({
            "path": to_text(path), "page_bytes": db.page_bytes(), "key_bytes_max": db.key_bytes_max(),
            "commit": stats.visible_commit.0, "tables": tables, "problems": problems, "repairs": stats.repairs,
            "data_bytes": data_bytes, "data_bytes_used": used_bytes,
            "data_bytes_excess": stats.data_bytes_excess,
            "compressible": estimates.iter().map(|(name, of)| {
                (name.to_string(), serde_json::json!({ "pages": of.pages, "fast": of.fast, "small": of.small }))
            }).collect::<serde_json::Map<_, _>>(),
            "compression": compression, "pages_compressed": stats.pool.pages_compressed,
            "blocks_compressed": stats.pool.blocks_compressed, "blocks_loose": stats.pool.blocks_loose,
            "data_bytes_live": of_blocks(stats.pool.blocks_used - stats.pool.blocks_deferred),
            "data_bytes_free": of_blocks(stats.pool.blocks_free),
            "log_bytes": log_bytes, "log_bytes_live": stats.log.live_bytes,
            "cache_bytes": stats.cache_bytes, "memory_over_bytes": stats.memory_over_bytes,
            "memory_bytes": stats.memory_bytes, "memory_frames_bytes": stats.pool.memory_frames_bytes,
            "memory_table_bytes": stats.pool.memory_table_bytes, "table_bytes": stats.pool.table_bytes,
            "pages_hit": stats.pool.hits, "pages_read": stats.pool.misses, "pages_restored": stats.pool.tier_hits,
            "disk": { "kind": stats.disk.kind, "direct": stats.disk.direct,
                      "align_bytes": stats.disk.align_bytes, "notes": stats.disk.notes.iter().map(ToString::to_string).collect::<Vec<_>>() },
        });
        print(&serde_json::to_string_pretty(&answer)?)?;
        return Ok(code);
    }
    let listed = tables.iter().map(|(name, entries)| match entries {
        Some(entries) => format!("{name} ({entries})"),
        None => name.clone(),
    });
    let listed: Vec<_> = listed.collect();
    let way = if stats.disk.direct { "direct" } else { "through the page cache" };
    let mut lines = vec![
        ("database", shown(&path).to_string()),
        ("tables", if listed.is_empty() { "none".into() } else { listed.join(", ") }),
        ("last commit", stats.visible_commit.to_string()),
        (
            "page",
            format!(
                "{}, keys up to {}",
                format::bytes(db.page_bytes() as u64),
                format::bytes(db.key_bytes_max() as u64)
            ),
        ),
        (
            "data",
            format!(
                "{} in use of {}{}",
                format::bytes(used_bytes),
                format::bytes(data_bytes),
                excess_text(stats.data_bytes_excess)
            ),
        ),
        (
            "log",
            format!(
                "{} since the checkpoint, file of {}",
                format::bytes(stats.log.live_bytes),
                format::bytes(log_bytes)
            ),
        ),
        (
            "memory",
            format!(
                "{} for a cache of {}: {} in frames, {} in the page table (all of it: {})",
                format::bytes(stats.memory_bytes),
                format::bytes(stats.cache_bytes),
                format::bytes(stats.pool.memory_frames_bytes),
                format::bytes(stats.pool.memory_table_bytes),
                format::bytes(stats.pool.table_bytes)
            ),
        ),
        ("disk", format!("{}, {way}", stats.disk.kind)),
    ];
    if stats.pool.pages_compressed > 0 || !compression.is_empty() {
        let tables: Vec<String> = compression.iter().map(|(name, of)| format!("{name} ({of})")).collect();
        let (pages, blocks) = (stats.pool.pages_compressed, stats.pool.blocks_compressed);
        let tables = if tables.is_empty() { "none".into() } else { tables.join(", ") };
        let (pages, loose) = (format!("{pages} pages in {blocks} blocks"), of_blocks(stats.pool.blocks_loose));
        let loose = if loose > 0 { format!(", {} of them empty", format::bytes(loose)) } else { String::new() };
        lines.insert(5, ("compressed", format!("{pages}{loose}; compressed tables: {tables}")));
    }
    if compressible {
        lines.extend(estimate_lines(&estimates, tables.len()));
    }
    lines.extend(stats.disk.notes.iter().map(|note| ("", note.to_string())));
    lines.extend(stats.repairs.iter().map(|repair| ("repaired", repair.clone())));
    let text = lines.iter().fold(String::new(), |text, (name, value)| text + &format!("{name:<12} {value}\n"));
    print(&text)?;
    for problem in problems {
        log(&format!("nofault: {problem}"));
    }
    Ok(code)
}

/// Returns a line for each table with an estimate of the space that compression would save.
fn estimate_lines(estimates: &BTreeMap<&String, CompressionEstimate>, tables: usize) -> Vec<(&'static str, String)> {
    let share = |bytes: f64| format!("{:.0} %", bytes * 100.0);
    let line = |(name, of): (&&String, &CompressionEstimate)| {
        let small = of.small.map_or(String::new(), |small| format!(", {} with small", share(small)));
        ("compressible", format!("{name} to {} with fast{small}", share(of.fast)))
    };
    let mut lines: Vec<_> = estimates.iter().map(line).collect();
    if lines.len() < tables {
        lines.push(("compressible", "the other tables are too small to tell".into()));
    }
    lines
}

/// Counts the entries of a table.
pub(super) fn count_entries(db: &Db, table: &str) -> Result<u64> {
    Ok(db.table(table)?.len()?)
}

/// Returns the end of the line of `db stat` about the data file: the bytes that can be given back, if there are any.
fn excess_text(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", {} can be given back (`db compact --shrink`)", format::bytes(bytes)),
    }
}
