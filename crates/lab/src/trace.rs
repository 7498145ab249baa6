//! The accesses of a program of the user's, as a plain CSV file: read for a replay, and written from the system calls that
//! strace shows.
//!
//! One access a line: `offset,length,op,thread,time`. Offset and length in bytes, op `read` or `write`, thread any name, time in
//! seconds. The last three may be left out, and the first line may name the columns. Lines that begin with `#` are remarks.

mod strace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use crate::error::{LabError, LabErrorKind, Result};

pub use strace::record;

/// The first line of a trace that the lab writes.
const HEADER: &str = "offset,length,op,thread,time";
/// Most accesses that a replay takes from a file: a longer one would fill the memory of its trials.
const ACCESSES_MAX: usize = 1 << 22;
/// Bounds of the size of a block in which a trace is replayed.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 20;

/// One access of the recorded program.
#[derive(Debug, Clone, PartialEq)]
pub struct Access {
    /// Position in the file, in bytes.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub length_bytes: u64,
    /// Whether the bytes were written.
    pub is_write: bool,
    /// Name of the thread.
    pub thread: String,
    /// Time of the access, in seconds from any start.
    pub at_s: f64,
}

/// The accesses of a program to one file, in the order of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The accesses; at least one.
    pub accesses: Vec<Access>,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// `Usage` with the number of the first line that is no access, and for a file without any or with too many; the system's
    /// error.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| LabError::system(format!("read {}", path.display()), &error))?;
        Self::parse(&text).map_err(|why| {
            LabError::new(LabErrorKind::Usage, format!("{}: {why}; the form is {HEADER}", path.display()))
        })
    }

    /// Writes the trace as a new file.
    ///
    /// # Errors
    /// `Usage` when something is there; `System` when the file cannot be written.
    pub fn write_new(&self, path: &Path) -> Result<()> {
        let made = std::fs::File::options().write(true).create_new(true).open(path);
        let written = made.and_then(|mut file| file.write_all(self.csv().as_bytes()));
        written.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                let message = format!("{} exists, and is left as it is; name another file with --out", path.display());
                LabError::new(LabErrorKind::Usage, message)
            }
            _ => LabError::system(format!("write {}", path.display()), &error),
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut accesses = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let is_header = accesses.is_empty() && line.starts_with("offset");
            if line.is_empty() || line.starts_with('#') || is_header {
                continue;
            }
            if accesses.len() == ACCESSES_MAX {
                return Err(format!("more than {ACCESSES_MAX} accesses; take a part of it"));
            }
            accesses.push(access(line).map_err(|why| format!("line {}: {why}", index + 1))?);
        }
        if accesses.is_empty() { Err("no access".into()) } else { Ok(Self { accesses }) }
    }

    /// The size of the blocks in which the trace is replayed: its most common length, rounded up to a power of two, from 4 KiB to
    /// 1 MiB.
    pub fn block_bytes(&self) -> u64 {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for access in &self.accesses {
            let length = access.length_bytes.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
            *counts.entry(length.next_power_of_two()).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map_or(*BLOCK_BYTES.start(), |(length, _)| length)
    }

    /// Number of threads that made the accesses.
    pub fn thread_count(&self) -> usize {
        self.accesses.iter().map(|access| access.thread.as_str()).collect::<BTreeSet<_>>().len()
    }

    /// Share of the accesses that are writes.
    pub fn write_share(&self) -> f64 {
        let writes = self.accesses.iter().filter(|access| access.is_write).count();
        writes as f64 / self.accesses.len().max(1) as f64
    }

    /// The blocks that the accesses touch, in their order, in data of `count` blocks. A block beyond the data is counted from the
    /// start again.
    pub fn blocks(&self, block_bytes: u64, count: u64) -> Arc<[u64]> {
        let (block_bytes, count) = (block_bytes.max(1), count.max(1));
        let of = |access: &Access| {
            let first = access.offset_bytes / block_bytes;
            let last = access.offset_bytes.saturating_add(access.length_bytes.max(1) - 1) / block_bytes;
            first..=last.min(first + (1 << 16))
        };
        self.accesses.iter().flat_map(of).take(ACCESSES_MAX).map(|block| block % count).collect()
    }

    /// The trace as CSV.
    pub fn csv(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for access in &self.accesses {
            let op = if access.is_write { "write" } else { "read" };
            let Access { offset_bytes, length_bytes, thread, at_s, .. } = access;
            let _ = writeln!(text, "{offset_bytes},{length_bytes},{op},{thread},{at_s:.6}");
        }
        text
    }
}

fn access(line: &str) -> std::result::Result<Access, String> {
    let mut parts = line.split(',').map(str::trim);
    let mut number = |name: &str| {
        let text = parts.next().unwrap_or_default();
        text.parse::<u64>().map_err(|_| format!("{name} '{text}' is no number of bytes"))
    };
    let (offset_bytes, length_bytes) = (number("offset")?, number("length")?);
    if length_bytes == 0 {
        return Err("length 0 is no access".into());
    }
    let is_write = match parts.next().unwrap_or("read").to_ascii_lowercase().as_str() {
        "" | "r" | "read" => false,
        "w" | "write" => true,
        other => return Err(format!("op '{other}' is neither read nor write")),
    };
    let thread = parts.next().unwrap_or_default().to_owned();
    let time = parts.next().unwrap_or_default();
    let at_s = if time.is_empty() { Ok(0.0) } else { time.parse::<f64>() };
    let at_s = at_s.ok().filter(|at| at.is_finite()).ok_or_else(|| format!("time '{time}' is no number of seconds"))?;
    Ok(Access { offset_bytes, length_bytes, is_write, thread, at_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_with_and_without_its_optional_columns_and_comes_back_as_csv() {
        let trace =
            Trace::parse("offset,length,op,thread,time\n# remark\n0,4096,read,a,0.5\n8192, 100 ,W,b,1\n\n4096,4096\n")
                .unwrap();
        assert_eq!((trace.accesses.len(), trace.thread_count()), (3, 3));
        assert!(trace.accesses[1].is_write && trace.accesses[2].at_s == 0.0);
        assert!((trace.write_share() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(Trace::parse(&trace.csv()).unwrap(), trace);
    }

    #[test]
    fn a_line_that_is_no_access_is_named() {
        for (text, words) in [
            ("0,4096\nx,1", "line 2: offset 'x'"),
            ("0", "line 1: length ''"),
            ("0,0", "length 0"),
            ("0,1,erase", "op 'erase'"),
            ("0,1,read,a,soon", "time 'soon'"),
            ("0,1,read,a,inf", "time 'inf'"),
            ("-1,1", "offset '-1'"),
            ("# nothing\n", "no access"),
        ] {
            assert!(Trace::parse(text).unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn accesses_become_blocks_of_their_most_common_length_in_order() {
        let trace = Trace::parse("0,8192\n100000,8000\n8192,8192\n20000,30\n").unwrap();
        assert_eq!(trace.block_bytes(), 8192);
        // The second one lies in two blocks; the data has ten.
        assert_eq!(&*trace.blocks(8192, 10), &[0, 2, 3, 1, 2]);
        let huge = Trace::parse("18446744073709551615,18446744073709551615").unwrap();
        assert!(huge.block_bytes() == 1 << 20 && huge.blocks(1 << 20, 7).iter().all(|block| *block < 7));
    }
}
