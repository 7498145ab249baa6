//! Reads the text of `perf script`: finds the file and the position of each page fault by the mappings that perf shows before it.
//!
//! Lines are in the order of their times. A line that is no event of interest, or is cut short, is left out. perf prints names as they
//! are: a file whose name has a line break stands under the part before the break.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, Read as _};
use std::path::Path;
use std::rc::Rc;

use super::super::choice::{Files, is_special};
use super::super::{Access, Op};
use super::maps::{Mapping, Maps};

/// Most bytes of a line: the path of a file takes up to 4,096, and no other part is long.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// Starts of names that the kernel gives to memory without a file.
const NO_FILE: [&str; 4] = ["//", "/memfd:", "/SYSV", "/anon_hugepage"];

/// Numbers of faults of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Faults that waited for the device.
    pub(super) major: u64,
    /// Faults on pages in memory.
    pub(super) minor: u64,
}

impl Counts {
    pub(super) fn sum(self) -> u64 {
        self.major + self.minor
    }
}

/// The faults of a command, as far as the text is read.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Size of a page, in bytes.
    page_bytes: u64,
    /// Most faults kept of a file.
    accesses_max: usize,
    /// The faults by file, of each file the first ones.
    pub(super) files: Files,
    /// The numbers of all faults by file.
    pub(super) counts: BTreeMap<String, Counts>,
    /// The files mapped to be executed: programs and libraries.
    pub(super) executed: BTreeSet<Rc<str>>,
    /// Number of events that perf lost.
    pub(super) lost_count: u64,
    /// Number of faults at addresses without a known mapping.
    pub(super) unmapped_count: u64,
    /// Whether perf was allowed to see only the faults of the program's own code, and not the kernel's on its behalf.
    pub(super) is_user_only: bool,
    /// Whether a program was started.
    pub(super) is_started: bool,
    /// The mappings by process.
    maps: HashMap<u32, Rc<Maps>>,
    /// Each path once: processes share them.
    paths: HashMap<String, Rc<str>>,
    first_s: Option<f64>,
}

impl Reader {
    pub(super) fn new(page_bytes: u64, accesses_max: usize) -> Self {
        Self { page_bytes: page_bytes.max(1), accesses_max, ..Self::default() }
    }

    /// The numbers of the faults of a file.
    pub(super) fn counts_of(&self, file: &Path) -> Counts {
        file.to_str().and_then(|path| self.counts.get(path)).copied().unwrap_or_default()
    }

    /// Reads the text to its end. A last line without a line break is cut short, and is left out.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&mut self, mut text: impl BufRead) -> std::io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if text.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            if line.pop() == Some(b'\n') {
                self.line(&String::from_utf8_lossy(&line));
            }
        }
    }

    /// Takes a line: ` 71/72  34827.512365356: minor-faults:     7fc5f10ab000`. Returns `None` for one that is no event of interest.
    fn line(&mut self, line: &str) -> Option<()> {
        let (pid, rest) = line.trim_start().split_once('/')?;
        let (tid, rest) = rest.split_once(' ')?;
        let (time, event) = rest.trim_start().split_once(": ")?;
        let (pid, at_s) = (pid.parse().ok()?, time.parse::<f64>().ok().filter(|at| at.is_finite())?);
        // The kernel's own mappings stand before the start, at time 0.
        let first_s = if at_s > 0.0 { *self.first_s.get_or_insert(at_s) } else { at_s };
        let event = event.trim_start();
        match event.strip_prefix("PERF_RECORD_") {
            Some(record) => self.record(pid, record),
            None => self.fault(pid, tid, at_s - first_s, event),
        }
    }

    /// Takes an event about a process: a mapping, a fork, the start of a program, a loss.
    fn record(&mut self, pid: u32, record: &str) -> Option<()> {
        if record.starts_with("LOST") {
            let count = record.rsplit(' ').next()?.parse::<u64>().ok()?;
            self.lost_count = self.lost_count.saturating_add(count);
        } else if record.starts_with("COMM exec: ") {
            self.is_started = true;
            self.maps.remove(&pid);
        } else if let Some(ids) = record.strip_prefix("FORK(") {
            // `FORK(72:72):(71:71)`: the new process and thread, then their parents. A new thread shares the mappings.
            let (child, parent) = ids.split_once("):(")?;
            let [child, parent] = [child, parent].map(|ids| ids.split(':').next()?.parse::<u32>().ok());
            let (child, parent) = (child?, parent?);
            if child != parent {
                let maps = self.maps.get(&parent).cloned().unwrap_or_default();
                self.maps.insert(child, maps);
            }
        } else if let Some(mapping) = record.strip_prefix("MMAP2 ").or_else(|| record.strip_prefix("MMAP ")) {
            self.mapping(mapping)?;
        }
        Some(())
    }

    /// Takes a mapping: `71/72: [0x7fc5f0e78000(0x100000) @ 0x100000 fe:00 1010 11]: rw-s /x/db`.
    fn mapping(&mut self, text: &str) -> Option<()> {
        let (ids, rest) = text.split_once(": [")?;
        let pid = ids.split('/').next()?.parse::<u32>().ok()?;
        let (range, rest) = rest.split_once(" @ ")?;
        let (place, rest) = rest.split_once("]: ")?;
        let (start, length) = range.strip_suffix(')')?.split_once('(')?;
        let (start, length) = (hexadecimal(start)?, hexadecimal(length)?);
        let offset_bytes = hexadecimal(place.split(' ').next()?)?;
        let (protection, name) = rest.split_once(' ')?;
        let is_file =
            name.starts_with('/') && !is_special(name) && !NO_FILE.iter().any(|start| name.starts_with(start));
        let path = is_file.then(|| Rc::clone(self.paths.entry(name.to_owned()).or_insert_with(|| name.into())));
        if let Some(path) = path.as_ref().filter(|_| protection.contains('x')) {
            self.executed.insert(Rc::clone(path));
        }
        let mapping = Mapping { end: start.saturating_add(length), offset_bytes, path };
        Rc::make_mut(self.maps.entry(pid).or_default()).put(start, mapping);
        Some(())
    }

    /// Takes a fault: `minor-faults:u:     7fc5f10ab000`.
    fn fault(&mut self, pid: u32, thread: &str, at_s: f64, event: &str) -> Option<()> {
        let (name, address) = event.split_once(' ')?;
        let is_major = name.starts_with("major-faults:");
        if !is_major && !name.starts_with("minor-faults:") {
            return None;
        }
        let address = hexadecimal(address.trim())?;
        self.is_user_only |= name.ends_with(":u:");
        let Some((mapping, position)) = self.maps.get(&pid).and_then(|maps| maps.find(address)) else {
            self.unmapped_count += 1;
            return Some(());
        };
        let path = mapping.path.as_deref()?;
        let offset_bytes = position - position % self.page_bytes;
        let access = Access { offset_bytes, length_bytes: self.page_bytes, op: Op::Read, thread: 0, at_s };
        if !self.files.contains_key(path) {
            self.files.insert(path.to_owned(), Vec::new());
            self.counts.insert(path.to_owned(), Counts::default());
        }
        if let Some(accesses) = self.files.get_mut(path).filter(|accesses| accesses.len() < self.accesses_max) {
            accesses.push((thread.to_owned(), access));
        }
        let counts = self.counts.get_mut(path)?;
        *if is_major { &mut counts.major } else { &mut counts.minor } += 1;
        Some(())
    }
}

/// A number in hexadecimal, with `0x` or without, as perf writes addresses.
fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Reader {
        let mut reader = Reader::new(4096, 100);
        reader.read(text.as_bytes()).unwrap();
        reader
    }

    /// The faults of a file: position, thread and milliseconds.
    fn faults<'a>(reader: &'a Reader, path: &str) -> Vec<(u64, &'a str, u64)> {
        let faults = reader.files.get(path).into_iter().flatten();
        faults.map(|(thread, at)| (at.offset_bytes, thread.as_str(), (at.at_s * 1e3).round() as u64)).collect()
    }

    const START: &str = "\
    0/0         0.000000000: PERF_RECORD_MMAP -1/0: [0xffffffff81000000(0x120bb08) @ 0xffffffff81000000]: x [kernel.kallsyms]_text
   71/71      100.000000000: PERF_RECORD_COMM exec: reader:71/71
   71/71      100.001000000: PERF_RECORD_MMAP2 71/71: [0x1000(0x3000) @ 0 fe:00 7 0]: r--p /usr/bin/reader
   71/71      100.001100000: PERF_RECORD_MMAP2 71/71: [0x2000(0x1000) @ 0x1000 fe:00 7 0]: r-xp /usr/bin/reader
   71/71      100.002000000: PERF_RECORD_MMAP2 71/71: [0x10000(0x8000) @ 0 fe:00 9 1]: rw-s /x/my db
";

    #[test]
    fn a_fault_is_a_read_of_the_page_of_the_file_that_is_mapped_there() {
        let reader = read(&format!(
            "{START}   71/71      100.010000000: minor-faults:            10004
   71/72      100.020000000: major-faults:            17fff
   71/71      100.030000000: minor-faults:            18000
   71/71      100.040000000: minor-faults:             2010
   71/71      100.050000000: page-faults:            10000
"
        ));
        assert_eq!(faults(&reader, "/x/my db"), [(0, "71", 10), (0x7000, "72", 20)]);
        assert_eq!(reader.counts["/x/my db"], Counts { major: 1, minor: 1 });
        assert_eq!(reader.files["/x/my db"][1].1.length_bytes, 4096);
        assert_eq!(faults(&reader, "/usr/bin/reader"), [(0x1000, "71", 40)]);
        assert!(reader.executed.contains("/usr/bin/reader") && !reader.executed.contains("/x/my db"));
        assert_eq!((reader.unmapped_count, reader.lost_count, reader.is_user_only), (1, 0, false));
        assert!(reader.is_started && !read("").is_started);
    }

    #[test]
    fn a_later_mapping_replaces_an_earlier_one_and_memory_without_a_file_counts_for_none() {
        let reader = read(&format!(
            "{START}71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x12000(0x1000) @ 0x40000 fe:00 9 1]: rw-s /x/other
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x13000(0x1000) @ 0 00:00 0 0]: rw-p //anon
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x14000(0x1000) @ 0 00:01 5 0]: rw-s /memfd:pool (deleted)
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x15000(0x1000) @ 0 00:01 5 0]: rw-s /dev/shm/pool
71/71 100.2: minor-faults:u:  11000
71/71 100.2: minor-faults:u:  12000
71/71 100.2: minor-faults:u:  13000
71/71 100.2: minor-faults:u:  14000
71/71 100.2: minor-faults:u:  15000
71/71 100.3: minor-faults:u:  16000
"
        ));
        assert_eq!(faults(&reader, "/x/my db"), [(0x1000, "71", 200), (0x6000, "71", 300)]);
        assert_eq!(faults(&reader, "/x/other"), [(0x40000, "71", 200)]);
        assert_eq!((reader.files.len(), reader.unmapped_count, reader.is_user_only), (2, 0, true));
    }

    #[test]
    fn a_new_process_has_the_mappings_of_its_parent_until_it_starts_a_program() {
        let reader = read(&format!(
            "{START}71/71 100.1: PERF_RECORD_FORK(71:72):(71:71)
71/71 100.1: PERF_RECORD_FORK(80:80):(71:71)
80/80 100.2: minor-faults:  10000
80/80 100.3: PERF_RECORD_MMAP2 80/80: [0x10000(0x1000) @ 0x9000 fe:00 9 1]: rw-s /x/my db
80/80 100.3: minor-faults:  10000
71/72 100.4: minor-faults:  10000
80/80 100.5: PERF_RECORD_COMM exec: PERF_RECORD_LOST lost 5:80/80
80/80 100.6: minor-faults:  10000
99/99 100.7: minor-faults:  10000
"
        ));
        assert_eq!(faults(&reader, "/x/my db"), [(0, "80", 200), (0x9000, "80", 300), (0, "72", 400)]);
        assert_eq!((reader.unmapped_count, reader.lost_count), (2, 0));
    }

    #[test]
    fn lost_events_are_counted_and_lines_cut_short_are_left_out() {
        let whole = format!(
            "{START}71/71 100.1: PERF_RECORD_LOST lost 70
71/71 100.1: PERF_RECORD_LOST_SAMPLES lost 1114
71/71 100.1: PERF_RECORD_LOST lost
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x50000(0x1000) @ 0x100
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x50000(zzz) @ 0]: r /x/no
71/71 100.1: PERF_RECORD_MMAP2 71/71: [0xffffffffffff0000(0xffffffff) @ 0xffffffffffffffff 1]: r--s /x/top
71/71 100.1: PERF_RECORD_FORK(
71/71 100.1: minor-faults:
71/71 inf: minor-faults:  10000
71/71 100.2: minor-faults:  fffffffffffffff0
71/71 100.2: minor-faults:  10000
71/71 100.3: minor-faults:  11000"
        );
        let reader = read(&whole);
        assert_eq!((reader.lost_count, faults(&reader, "/x/my db")), (1184, vec![(0, "71", 200)]));
        assert_eq!(reader.counts["/x/top"].sum(), 1);
        // Any beginning of the text is read, and finds no more than the whole.
        for end in 0..whole.len() {
            let part = read(&whole[..end]);
            assert!(part.lost_count <= 1184 && part.counts.values().all(|counts| counts.sum() <= 1), "{end}");
        }
        assert!(read(&"7".repeat(100_000)).files.is_empty());
    }

    #[test]
    fn names_of_other_programs_do_not_change_the_events_that_follow() {
        let name = "/x/a\nb \u{1b}[2J ]: [c";
        let mut text = START.replace("/x/my db", name).into_bytes();
        text.extend_from_slice(
            b"71/71 100.1: PERF_RECORD_MMAP2 71/71: [0x30000(0x1000) @ 0 fe:00 9 1]: r--s /x/\xff\x1b]: [d\n",
        );
        text.extend_from_slice(b"71/71 100.2: minor-faults:  10000\n71/71 100.2: minor-faults:  30000\n");
        let mut reader = Reader::new(4096, 100);
        reader.read(&*text).unwrap();
        assert_eq!(faults(&reader, "/x/a").len(), 1);
        assert_eq!(faults(&reader, "/x/\u{fffd}\u{1b}]: [d").len(), 1);
    }
}
