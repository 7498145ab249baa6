//! The accesses of a program of the user's, as a plain CSV file: read for a replay, and written from the system calls that
//! strace shows, or the page faults that perf shows.
//!
//! One access a line: [`COLUMNS`]. The last three may be left out, and the first line may name the columns. Lines that begin
//! with `#` are remarks. A file is read line by line and a line has a bound, so that a file that is no trace costs no memory.

mod choice;
pub mod faults;
#[cfg(test)]
pub(crate) mod made;
pub mod strace;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write as _};
use std::path::Path;
use std::sync::Arc;

use crate::error::{LabError, LabErrorKind, Result};
use crate::lines::{LineError, Lines};
use crate::paths::{open_ordinary, shown};

pub use choice::Recording;

/// The first line of a trace that the lab writes.
const HEADER: &str = "offset,length,op,thread,time";
/// The columns of a trace, in words.
pub const COLUMNS: &str = "offset,length,op,thread,time: offset and length in bytes; op is read (r), write (w) or sync (s, without offset and \
    length); thread is any name, and the accesses of one thread wait for each other; time is when the access began, in seconds from any start";
/// Most accesses taken from a file: more would fill the memory of the trials. The rest is left out.
const ACCESSES_MAX: usize = 1 << 20;
/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 1024;
/// Bounds of the size of a block in which the reads of a trace are replayed by `random`.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 20;

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// Earlier writes are made durable.
    Sync,
}

impl Op {
    /// The name of the kind in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
        }
    }
}

/// One access of the recorded program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Access {
    /// Position in the file, in bytes.
    pub offset_bytes: u64,
    /// Number of bytes; 0 for a sync.
    pub length_bytes: u64,
    /// Read, write or sync.
    pub op: Op,
    /// Number of the thread, in the order in which the threads first appear.
    pub thread: u32,
    /// Time at which the access began, in seconds from any start.
    pub at_s: f64,
}

/// The accesses of a program to one file, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The accesses; at least one reads or writes.
    pub accesses: Vec<Access>,
    /// The names of the threads.
    pub threads: Vec<String>,
    /// Whether the file has more accesses than are taken from it.
    pub is_cut: bool,
}

impl Trace {
    /// Reads a trace: its first accesses, 1,048,576 at most.
    ///
    /// # Errors
    /// `Usage` with the number of the first line that is no access, for a file without a read or write, and for what is no ordinary file
    /// (a trace is read several times); the system's error.
    pub fn read(path: &Path) -> Result<Self> {
        let usage =
            |why: String| LabError::new(LabErrorKind::Usage, format!("{}: {why}; a line is {COLUMNS}", shown(path)));
        Self::parse(BufReader::new(open_ordinary(path)?)).map_err(|wrong| match wrong {
            Wrong::Text(LineError::TooLong { line, .. }) => usage(format!("line {line}: longer than any access")),
            Wrong::Text(error) => error.of(shown(path), LabErrorKind::Usage),
            Wrong::Line(why) => usage(why),
        })
    }

    /// Writes the trace as a new file.
    ///
    /// # Errors
    /// `Usage` when something is there; `System` when the file cannot be written.
    pub fn write_new(&self, path: &Path) -> Result<()> {
        let made = File::options().write(true).create_new(true).open(path);
        let written = made.and_then(|mut file| file.write_all(self.csv().as_bytes()));
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                let message = format!("{} exists, and is left as it is; name another file with --out", shown(&path));
                LabError::new(LabErrorKind::Usage, message)
            }
            _ => LabError::system(format!("write {}", shown(&path)), &error),
        })
    }

    fn parse(text: impl BufRead) -> std::result::Result<Self, Wrong> {
        let (mut trace, mut names) = (Self::default(), BTreeMap::new());
        let mut lines = Lines::new(text, LINE_BYTES_MAX);
        while lines.next_line()?.is_some() {
            let number = lines.number();
            let wrong = |why: &str| Wrong::Line(format!("line {number}: {why}"));
            let line = std::str::from_utf8(lines.line()).map_err(|_| wrong("this is no text"))?.trim();
            let is_header = trace.accesses.is_empty() && line.starts_with("offset");
            if line.is_empty() || line.starts_with('#') || is_header {
                continue;
            }
            let (access, thread) = access(line).map_err(|why| wrong(&why))?;
            if trace.accesses.len() == ACCESSES_MAX {
                trace.is_cut = true;
                break;
            }
            trace.push(access, thread, &mut names);
        }
        if trace.accesses.iter().any(|access| access.op != Op::Sync) {
            Ok(trace)
        } else {
            Err(Wrong::Line("no read and no write".into()))
        }
    }

    /// Adds an access of a thread, whose number is found, or made, by its name.
    fn push(&mut self, access: Access, thread: &str, names: &mut BTreeMap<String, u32>) {
        let thread = match names.get(thread) {
            Some(number) => *number,
            None => {
                let number = self.threads.len() as u32;
                names.insert(thread.to_owned(), number);
                self.threads.push(thread.to_owned());
                number
            }
        };
        self.accesses.push(Access { thread, ..access });
    }

    /// The size of the blocks in which the reads are replayed: their most common length, rounded up to a power of two, from 4 KiB
    /// to 1 MiB.
    pub fn block_bytes(&self) -> u64 {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for access in self.of(Op::Read) {
            let length = access.length_bytes.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
            *counts.entry(length.next_power_of_two()).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map_or(*BLOCK_BYTES.start(), |(length, _)| length)
    }

    fn of(&self, op: Op) -> impl Iterator<Item = &Access> {
        self.accesses.iter().filter(move |access| access.op == op)
    }

    /// Number of accesses of a kind.
    pub fn count(&self, op: Op) -> usize {
        self.of(op).count()
    }

    /// Bytes of data from the start of the file to the end of the last access.
    pub fn data_bytes(&self) -> u64 {
        let end = |access: &Access| access.offset_bytes.saturating_add(access.length_bytes);
        self.accesses.iter().map(end).max().unwrap_or_default()
    }

    /// The time of the first access, and the seconds from it to the last.
    pub fn span(&self) -> (f64, f64) {
        let times = || self.accesses.iter().map(|access| access.at_s);
        let (first, last) = (times().fold(f64::INFINITY, f64::min), times().fold(f64::NEG_INFINITY, f64::max));
        if last > first { (first, last - first) } else { (first, 0.0) }
    }

    /// The blocks that the reads touch, in their order, in data of `count` blocks. A block beyond the data is counted from the
    /// start again.
    pub fn blocks(&self, block_bytes: u64, count: u64) -> Arc<[u64]> {
        let (block_bytes, count) = (block_bytes.max(1), count.max(1));
        let blocks = |access: &Access| {
            let first = access.offset_bytes / block_bytes;
            let last = access.offset_bytes.saturating_add(access.length_bytes.max(1) - 1) / block_bytes;
            first..=last.min(first + (1 << 16))
        };
        self.of(Op::Read).flat_map(blocks).take(ACCESSES_MAX).map(|block| block % count).collect()
    }

    /// The trace as CSV.
    pub fn csv(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for Access { offset_bytes, length_bytes, op, thread, at_s } in &self.accesses {
            let thread = self.threads.get(*thread as usize).map_or("", String::as_str);
            let _ = writeln!(text, "{offset_bytes},{length_bytes},{},{thread},{at_s:.6}", op.name());
        }
        text
    }
}

/// Why a text is no trace.
#[derive(Debug)]
enum Wrong {
    Text(LineError),
    Line(String),
}

impl From<LineError> for Wrong {
    fn from(error: LineError) -> Self {
        Self::Text(error)
    }
}

/// Reads one line: the access, and the name of its thread.
fn access(line: &str) -> std::result::Result<(Access, &str), String> {
    let mut parts = line.split(',').map(str::trim);
    let [offset, length, op, thread, time] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    if parts.next().is_some() {
        return Err("more than five columns".into());
    }
    let op = match op.to_ascii_lowercase().as_str() {
        "" | "r" | "read" => Op::Read,
        "w" | "write" => Op::Write,
        "s" | "sync" => Op::Sync,
        other => return Err(format!("op '{}' is neither read nor write nor sync", other.escape_debug())),
    };
    let number = |name: &str, text: &str| match text {
        "" if op == Op::Sync => Ok(0),
        _ => text.parse::<u64>().map_err(|_| format!("{name} '{}' is no number of bytes", text.escape_debug())),
    };
    let (offset_bytes, length_bytes) = (number("offset", offset)?, number("length", length)?);
    if length_bytes == 0 && op != Op::Sync {
        return Err("length 0 is no access".into());
    }
    let at_s = if time.is_empty() { Ok(0.0) } else { time.parse::<f64>() };
    let at_s = at_s
        .ok()
        .filter(|at| at.is_finite())
        .ok_or_else(|| format!("time '{}' is no number of seconds", time.escape_debug()))?;
    Ok((Access { offset_bytes, length_bytes, op, thread: 0, at_s }, thread))
}

#[cfg(test)]
mod tests {
    use super::made::Shape;
    use super::*;

    fn parse(text: &str) -> std::result::Result<Trace, String> {
        Trace::parse(text.as_bytes()).map_err(|wrong| match wrong {
            Wrong::Line(why) => why,
            Wrong::Text(error) => error.to_string(),
        })
    }

    #[test]
    fn a_trace_is_read_with_and_without_its_optional_columns_and_comes_back_as_csv() {
        let text =
            "offset,length,op,thread,time\n# remark\n0,4096,read,a,0.5\n8192, 100 ,W,b,1\n\n4096,4096\n,,s,a,1.5\n";
        let trace = parse(text).unwrap();
        assert_eq!((trace.accesses.len(), trace.threads.as_slice()), (4, ["a", "b", ""].map(str::to_owned).as_slice()));
        assert!(trace.accesses[1].op == Op::Write && trace.accesses[2].at_s == 0.0);
        assert_eq!([Op::Read, Op::Write, Op::Sync].map(|op| trace.count(op)), [2, 1, 1]);
        assert_eq!((trace.data_bytes(), trace.span()), (8292, (0.0, 1.5)));
        assert_eq!(parse(&trace.csv()).unwrap(), trace);
        // As other programs write it.
        assert_eq!(parse(&format!("\u{feff}{}", text.replace('\n', "\r\n"))).unwrap(), trace);
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(matches!(Trace::parse(&wide[..]), Err(Wrong::Text(LineError::Wide(_)))));
    }

    #[test]
    fn made_traces_come_back_as_csv() {
        for seed in 0..20 {
            let trace = Trace::made(seed, Shape { count: 50, threads: 3, ..Shape::default() });
            let again = parse(&trace.csv()).unwrap();
            assert_eq!((again.accesses.len(), &again.threads), (trace.accesses.len(), &trace.threads), "seed {seed}");
            for (a, b) in again.accesses.iter().zip(&trace.accesses) {
                assert!((a.at_s - b.at_s).abs() < 1e-6, "seed {seed}");
                assert_eq!(Access { at_s: 0.0, ..*a }, Access { at_s: 0.0, ..*b }, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_line_that_is_no_access_is_named_without_its_control_characters() {
        for (text, words) in [
            ("0,4096\nx,1", "line 2: offset 'x'"),
            ("0,0", "length 0"),
            ("0,4096,erase", "'erase'"),
            ("0,4096,r,a,late", "time 'late'"),
            ("0,4096,r,a,NaN", "time 'NaN'"),
            ("-1,4096", "offset '-1'"),
            ("0,4096,r,a,0,more", "five columns"),
            ("\u{1b}[2J,1", r"offset '\u{1b}[2J'"),
            ("# nothing\n", "no read and no write"),
            (",,sync,a,1\n", "no read and no write"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(words) && !told.contains('\u{1b}'), "{text}: {told}");
        }
        assert!(parse(&"1".repeat(5000)).unwrap_err().contains("line 1 is longer"));
        let Err(Wrong::Line(told)) = Trace::parse(&b"0,4096\n\xff\xfe\n"[..]) else { panic!("no error") };
        assert!(told.contains("line 2: this is no text"), "{told}");
    }

    #[test]
    fn reads_become_blocks_of_their_most_common_length_in_order() {
        let trace = parse("0,8192\n100000,8000\n8192,8192\n4096,1,w\n20000,30\n").unwrap();
        assert_eq!(trace.block_bytes(), 8192);
        // The second one lies in two blocks; the data has ten.
        assert_eq!(&*trace.blocks(8192, 10), &[0, 2, 3, 1, 2]);
        let huge = parse("18446744073709551615,18446744073709551615").unwrap();
        assert!(huge.block_bytes() == 1 << 20 && huge.blocks(1 << 20, 7).iter().all(|block| *block < 7));
        assert_eq!(huge.data_bytes(), u64::MAX);
    }
}
