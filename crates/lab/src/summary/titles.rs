//! Names of parameters and targets for people: the same in tables, findings and figures.

use crate::record::{Params, TargetKind};

/// Parameters that give the amount of work and its layout: the same for all methods, so no part of a name.
const SIZE_OF_WORK: [&str; 16] = [
    "limit_bytes",
    "blocks",
    "files",
    "touches",
    "part_bytes",
    "stripe_bytes",
    "writes_per_sync",
    "cache_bytes",
    "fit",
    "durability",
    "memory",
    "keys",
    "value_bytes",
    "log_bytes",
    "updates",
    "trace",
];

/// Whether a trial sets no parameters but threads, depth, block and the size of the work.
pub fn is_plain(params: &Params) -> bool {
    params.extra.keys().all(|name| SIZE_OF_WORK.contains(&name.as_str()))
}

/// Describes parameters for people; values that are 1 or usual are left out.
pub fn parameters(params: &Params) -> String {
    let mut parts = Vec::new();
    if params.threads > 1 {
        parts.push(format!("{} threads", params.threads));
    }
    if params.depth > 1 {
        parts.push(format!("depth {}", params.depth));
    }
    let telling = params.extra.iter().filter(|(name, _)| !SIZE_OF_WORK.contains(&name.as_str()));
    parts.extend(telling.map(|(name, value)| match name.as_str() {
        "rate_per_s" => format!("at {value}/s"),
        "rate_share" => format!("rate ×{value}"),
        "buffers" => format!("{value} buffers"),
        "data_per_memory" => format!("data {value}× memory"),
        "read_ahead_kb" if value == "0" => "read-ahead off".into(),
        "pages" => format!("{value} pages"),
        "pin" => "on one CPU".into(),
        "working_set" => {
            value.parse().map_or_else(|_| value.clone(), |bytes| format!("{} of data", crate::format::bytes(bytes)))
        }
        // The id has no space between number and unit.
        "unit" => format!("units of {}", value.replace("KiB", " KiB").replace("MiB", " MiB")),
        "copied_pages" => format!("{value} copied pages"),
        "commit_pages" => format!("{value} pages a commit"),
        "reader" if value == "none" => "no reader".into(),
        name => format!("{} {value}", name.replace('_', " ")),
    }));
    parts.join(", ")
}

/// The name of a target for headings and sentences.
pub fn target_title(label: &str) -> String {
    match TargetKind::of(label) {
        TargetKind::None => "the whole machine".into(),
        TargetKind::Ram => "RAM-backed device".into(),
        TargetKind::InMemory => "all in memory".into(),
        TargetKind::Device(None) => "raw device".into(),
        TargetKind::Device(Some(name)) => format!("raw device {name}"),
        TargetKind::File | TargetKind::Memory | TargetKind::Striped { .. } | TargetKind::Other => label.into(),
    }
}
