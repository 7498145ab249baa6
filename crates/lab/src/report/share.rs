//! Makes one file of a result that can be given to others: every record in one JSON object, without the names of the machine, its
//! owner or their data. [`read`] turns such a file into records again.
//!
//! Kept true by: every text of every record is redacted, whatever field it stands in; a field holding a path by its name is
//! replaced entirely. The ticks and the raw histograms are left out to keep the file small, and it says so.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::{LabError, LabErrorKind, Result};
use crate::format;
use crate::lines::read_text;
use crate::paths::shown;
use crate::record::file::{RecordFile, parse_records};
use crate::record::{Record, Trial};

/// The name under which a shared file carries the version of its form.
const FORM: &str = "nofault_share";
/// Most bytes of a shared file.
const BYTES_MAX: usize = 32 << 20;
/// Version of the form of a shared file.
const VERSION: u64 = 1;
/// Fields that hold paths, in configurations and targets.
const PATH_FIELDS: [&str; 6] = ["dir", "devices", "stripe_over", "paths", "own_file", "trace"];
/// Words in the name of a fact that say that it identifies a device or a machine.
const IDENTIFYING: [&str; 7] = ["serial", "uuid", "wwid", "wwn", "mac_address", "hostname", "machine_id"];
/// Folders whose paths are the same on every machine.
const COMMON: [&str; 2] = ["/proc/", "/sys/"];

/// A result without names, paths and serial numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    /// The whole text of the file.
    pub text: String,
    /// The part that describes the machine and the run, for a person to look at before the file is given away.
    pub shown: String,
    /// How often each kind of text was replaced: the kind in words, and the number.
    pub replaced: Vec<(&'static str, usize)>,
}

/// Texts that name this machine or its user, which records made here may contain.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Names of the machine.
    pub hosts: Vec<String>,
    /// Names of the user.
    pub users: Vec<String>,
}

impl Names {
    /// The names of the machine and of the user that this process runs as.
    pub fn of_this_machine() -> Self {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        let users = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(|name| std::env::var(name).ok());
        Self { hosts: vec![host, short], users: users.filter(|user| user != "root").collect() }
    }
}

/// Makes the shared form of a result.
///
/// # Errors
/// `System` when a record has no JSON form; `Unsupported` for a result too large for one file.
pub fn share(file: &RecordFile, names: &Names) -> Result<Shared> {
    let mut redaction = Redaction { names, paths: 0, hosts: 0, users: 0, facts: 0 };
    let mut records = vec![redaction.record(&Record::Run(file.run.clone()))?];
    for trial in &file.trials {
        records.push(redaction.record(&Record::Trial(without_raw_data(trial)))?);
    }
    for skip in &file.skips {
        records.push(redaction.record(&Record::Skip(skip.clone()))?);
    }
    for note in &file.notes {
        records.push(redaction.record(&Record::Note(note.clone()))?);
    }
    if let Some(end) = &file.end {
        records.push(redaction.record(&Record::End(end.clone()))?);
    }
    let shown = text_of(&records[0])?;
    let left_out = "ticks and raw histograms; host and user names, paths, serial numbers";
    let text = text_of(&json!({ FORM: VERSION, "left_out": left_out, "records": records }))?;
    if text.len() >= BYTES_MAX {
        let why =
            format!("a shared file has at most {}: share a result with fewer trials", format::bytes(BYTES_MAX as u64));
        return Err(LabError::new(LabErrorKind::Unsupported, why));
    }
    let counts = [
        ("paths", redaction.paths),
        ("names of this machine", redaction.hosts),
        ("names of this user", redaction.users),
        ("facts that identify a device", redaction.facts),
    ];
    Ok(Shared { text: text + "\n", shown, replaced: counts.into_iter().filter(|(_, count)| *count > 0).collect() })
}

/// Whether a file with this beginning is a shared result.
pub fn is_one(head: &[u8]) -> bool {
    String::from_utf8_lossy(head).contains(&format!("\"{FORM}\""))
}

/// Reads a shared result.
///
/// # Errors
/// `Damaged` for text that is no shared result, and for one of a newer form; as for records otherwise.
pub fn read(path: &Path) -> Result<RecordFile> {
    let file = std::fs::File::open(path).map_err(|error| LabError::system(format!("read {}", shown(path)), &error))?;
    let text = read_text(file, BYTES_MAX).map_err(|error| error.of(shown(path), LabErrorKind::Damaged))?;
    let damaged = |why: &str| {
        LabError::new(LabErrorKind::Damaged, format!("{}: no shared result of the lab: {why}", shown(path)))
    };
    let value: Value = serde_json::from_str(&text).map_err(|error| damaged(&error.to_string()))?;
    match value.get(FORM).and_then(Value::as_u64) {
        Some(VERSION) => {}
        Some(newer) => return Err(damaged(&format!("it has form {newer}, and this nofault reads {VERSION}"))),
        None => return Err(damaged("it does not say its form; `nofault lab share` makes one")),
    }
    let records = value.get("records").and_then(Value::as_array).ok_or_else(|| damaged("it has no records"))?;
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    Ok(parse_records(path, lines.as_bytes())?)
}

fn text_of(value: &Value) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map_err(|error| LabError::new(LabErrorKind::System, format!("write a record as JSON: {error}")))
}

/// The trial without its ticks and raw histograms, which make nine tenths of a record.
fn without_raw_data(trial: &Trial) -> Trial {
    let mut trial = trial.clone();
    trial.outcome.ticks.clear();
    trial.outcome.latency.values_mut().for_each(|latency| latency.hdr.clear());
    trial
}

/// Replaces texts, and counts them.
struct Redaction<'a> {
    names: &'a Names,
    paths: usize,
    hosts: usize,
    users: usize,
    facts: usize,
}

impl Redaction<'_> {
    fn record(&mut self, record: &Record) -> Result<Value> {
        let mut value = serde_json::to_value(record)
            .map_err(|error| LabError::new(LabErrorKind::System, format!("write a record as JSON: {error}")))?;
        self.value(&mut value);
        Ok(value)
    }

    fn value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(fields) => self.fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>) {
        let before = fields.len();
        fields.retain(|name, _| !IDENTIFYING.iter().any(|word| name.to_ascii_lowercase().contains(word)));
        self.facts += before - fields.len();
        for (name, value) in fields.iter_mut() {
            match value {
                Value::String(_) | Value::Array(_) if PATH_FIELDS.contains(&name.as_str()) => self.path_field(value),
                value => self.value(value),
            }
        }
    }

    /// Replaces the content of a field that holds paths; it stays of its type, so that the record can be read.
    fn path_field(&mut self, value: &mut Value) {
        match value {
            Value::String(text) if !text.is_empty() => {
                *text = "path".into();
                self.paths += 1;
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.path_field(value)),
            _ => {}
        }
    }

    fn text(&mut self, text: &str) -> String {
        let (mut text, paths) = without_paths(text);
        self.paths += paths;
        for (names, with, count) in
            [(&self.names.hosts, "(host)", &mut self.hosts), (&self.names.users, "(user)", &mut self.users)]
        {
            // A name of one or two letters is part of too many words.
            for name in names.iter().filter(|name| name.len() > 2) {
                let found = word_places(&text, name);
                *count += found.len();
                for at in found.into_iter().rev() {
                    text.replace_range(at..at + name.len(), with);
                }
            }
        }
        text
    }
}

/// The places at which a name stands as a separate word.
fn word_places(text: &str, name: &str) -> Vec<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let free = |(at, _): &(usize, &str)| !text[..*at].ends_with(part) && !text[at + name.len()..].starts_with(part);
    text.match_indices(name).filter(free).map(|(at, _)| at).collect()
}

/// Replaces each absolute path by `(path)`, also in the middle of a text; returns the number of them. Units such as `K/s` are no paths.
fn without_paths(text: &str) -> (String, usize) {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ';' | ')' | ']' | '>' | '|');
    let (mut clean, mut count, mut rest) = (String::with_capacity(text.len()), 0, text);
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        let starts =
            before.chars().last().is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '.' | '-' | '_' | '/' | '~'));
        let home = before.ends_with('~');
        let length = from.find(ends).unwrap_or(from.len());
        let path = from[..length].trim_end_matches([':', '.']);
        let is_path = (starts || home) && path.len() > 1 && !COMMON.iter().any(|common| path.starts_with(common));
        clean.push_str(before);
        if is_path {
            clean.push_str("(path)");
            count += 1;
            rest = &from[path.len()..];
        } else {
            let kept = if starts { path.len().max(1) } else { 1 };
            clean.push_str(&from[..kept]);
            rest = &from[kept..];
        }
    }
    clean.push_str(rest);
    (clean, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_replaced_wherever_they_stand_and_units_are_not() {
        for (text, clean, paths) in [
            ("/srv/jane/db: read 7", "(path): read 7", 1),
            ("read (/mnt/x y/z) and '/a/b'.", "read ((path) y/z) and '(path)'.", 2),
            ("~/secret/my.db", "~(path)", 1),
            ("16.7 K/s, 3 GB/s and I/O", "16.7 K/s, 3 GB/s and I/O", 0),
            ("/sys/kernel/mm/lru_gen is off; see /proc/meminfo", "/sys/kernel/mm/lru_gen is off; see /proc/meminfo", 0),
            ("mmap ÷ pread / 2", "mmap ÷ pread / 2", 0),
            ("file=/data/x.db,size=7", "file=(path),size=7", 1),
            ("é/ü /ö/ß", "é/ü (path)", 1),
            ("", "", 0),
        ] {
            assert_eq!(without_paths(text), (clean.to_owned(), paths), "{text}");
        }
    }

    #[test]
    fn names_are_replaced_as_words_only() {
        let names = Names { hosts: vec!["box".into()], users: vec!["jane".into(), "x".into()] };
        let mut redaction = Redaction { names: &names, paths: 0, hosts: 0, users: 0, facts: 0 };
        let clean = redaction.text("box of jane: boxes, mailbox, box-2, jane_2, x");
        assert_eq!(clean, "(host) of (user): boxes, mailbox, (host)-2, jane_2, x");
        assert_eq!((redaction.hosts, redaction.users), (2, 1));
    }

    #[test]
    fn fields_with_paths_keep_their_type_and_identifying_facts_go() {
        let mut redaction = Redaction { names: &Names::default(), paths: 0, hosts: 0, users: 0, facts: 0 };
        let mut value =
            json!({ "dir": "customers/acme", "devices": ["x", "y"], "facts": { "device_serial": "S1", "cpu": "Z" } });
        redaction.value(&mut value);
        assert_eq!(value, json!({ "dir": "path", "devices": ["path", "path"], "facts": { "cpu": "Z" } }));
        assert_eq!((redaction.paths, redaction.facts), (3, 1));
    }
}
