//! Records the accesses of a command by strace, and reads the lines that strace prints: reads, writes and syncs by system calls, with
//! their positions and the times at which they began. Accesses through a map and by an io_uring make no such calls, and are not
//! seen; an `msync` is, as the sync of the file mapped there.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::choice::{Files, Recording, choose, in_folder, is_special};
use super::{Access, Op};
use crate::error::{LabError, LabErrorKind, Result};
use crate::lines::{LineError, Lines};
use crate::paths;

/// The calls that are traced. `openat` and `lseek` give the positions of reads and writes that name none, and `mmap` the
/// file of an `msync`. A call with `?` is left out on machines without it.
const CALLS: &str = "trace=read,write,readv,writev,pread64,pwrite64,preadv,pwritev,preadv2,pwritev2,fsync,fdatasync,msync,mmap,openat,?open,lseek";

/// Most bytes of a line of strace: a call with the paths of its descriptors, without their content.
const LINE_BYTES_MAX: usize = 1 << 20;
/// The error of a command that moved no bytes.
const NOTHING: &str = "the command read and wrote no file by system calls; maps and io_uring are not seen by strace; for maps see --faults";

/// Runs a command under strace, and returns its accesses to one file: `of`, or the one of which it moved most bytes. The command has
/// the terminal; its own result is not looked at.
///
/// # Errors
/// `Unsupported` where strace is not installed or may not trace; `Usage` when the command made no such access.
pub fn record(command: &[impl AsRef<OsStr>], of: Option<&Path>) -> Result<Recording> {
    in_folder(|folder| choose(traced(command, &folder.join("strace.txt"))?, of, NOTHING))
}

/// Runs a command under strace, which writes into `output`, and returns its accesses by file.
fn traced(command: &[impl AsRef<OsStr>], output: &Path) -> Result<Files> {
    let started = Command::new("strace")
        .args(["-f", "-y", "-ttt", "-s", "0", "-qq", "-e", "signal=none", "-e", CALLS, "-o"])
        .arg(output)
        .arg("--")
        .args(command)
        .status();
    match started {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = "strace is not installed; install it (Debian: apt-get install strace), or write the CSV file by other means";
            return Err(LabError::new(LabErrorKind::Unsupported, message));
        }
        Err(error) => return Err(LabError::system("start strace", &error)),
        Ok(_) => {}
    }
    let written = File::open(output).map_err(|_| {
        let message = "strace wrote nothing: tracing may be forbidden here (see kernel.yama.ptrace_scope), or the command is not there";
        LabError::new(LabErrorKind::Unsupported, message)
    })?;
    accesses(BufReader::new(written)).map_err(|error| error.of("the output of strace", LabErrorKind::System))
}

/// Reads the output of strace: the accesses by file, in the order in which their calls returned.
fn accesses(text: impl BufRead) -> std::result::Result<Files, LineError> {
    let (mut reader, mut lines) = (Reader::default(), Lines::new(text, LINE_BYTES_MAX));
    while let Some(line) = lines.next_line()? {
        reader.line(&String::from_utf8_lossy(line));
    }
    Ok(reader.files)
}

/// State while the output is read.
#[derive(Default)]
struct Reader {
    files: Files,
    /// The beginnings of calls that another thread interrupted, by thread, with their times.
    unfinished: BTreeMap<String, (String, f64)>,
    /// Positions of descriptors, by number and path, for calls naming no position.
    positions: BTreeMap<String, u64>,
    /// The mapped files: for the first address of each map, the address behind it and the path.
    maps: BTreeMap<u64, (u64, String)>,
    first_s: Option<f64>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        // `123 1700000000.123456 pread64(3</a/b>, ""..., 4096, 8192) = 4096`
        // The column of threads is padded.
        let Some((thread, rest)) = line.trim_start().split_once(' ') else { return };
        let Some((time, call)) = rest.trim_start().split_once(' ') else { return };
        let Ok(at_s) = time.parse::<f64>() else { return };
        let first_s = *self.first_s.get_or_insert(at_s);
        if let Some(beginning) = call.strip_suffix("<unfinished ...>") {
            self.unfinished.insert(thread.to_owned(), (beginning.to_owned(), at_s));
            return;
        }
        let (whole, at_s) = match call.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
            Some((_, end)) => match self.unfinished.remove(thread) {
                Some((beginning, began_s)) => (beginning + end, began_s),
                None => return,
            },
            None => (call.to_owned(), at_s),
        };
        self.call(thread, at_s - first_s, &whole);
    }

    fn call(&mut self, thread: &str, at_s: f64, call: &str) {
        let Some((name, rest)) = call.split_once('(') else { return };
        let Some((arguments, result)) = rest.rsplit_once(") = ") else { return };
        let result = result.trim();
        match name {
            // A descriptor that is opened begins at the start of its file.
            "openat" | "open" => drop(self.positions.insert(result.to_owned(), 0)),
            "mmap" => self.map(arguments, result),
            "msync" | "fsync" | "fdatasync" if result == "0" => {
                let path = if name == "msync" { self.mapped_at(arguments) } else { file(arguments) };
                if let Some(path) = path {
                    self.push(path, thread, Access { offset_bytes: 0, length_bytes: 0, op: Op::Sync, thread: 0, at_s });
                }
            }
            _ => self.moved(name, arguments, result, thread, at_s),
        }
    }

    /// Takes a call that reads or writes bytes, or changes a position.
    fn moved(&mut self, name: &str, arguments: &str, result: &str, thread: &str, at_s: f64) {
        let Some(count) = result.split([' ', '<']).next().and_then(|text| text.parse::<u64>().ok()) else { return };
        let Some((descriptor, path)) = descriptor(arguments) else { return };
        let last = |skip: usize| arguments.rsplit(", ").nth(skip).and_then(|text| text.trim().parse::<u64>().ok());
        let offset = match name {
            "lseek" => {
                self.positions.insert(descriptor, count);
                return;
            }
            "pread64" | "pwrite64" | "preadv" | "pwritev" => last(0),
            "preadv2" | "pwritev2" => last(1),
            "read" | "write" | "readv" | "writev" => {
                let position = self.positions.entry(descriptor).or_insert(0);
                let offset = *position;
                *position = position.saturating_add(count);
                Some(offset)
            }
            _ => None,
        };
        let Some(offset_bytes) = offset.filter(|_| count > 0) else { return };
        let op = if name.contains("write") { Op::Write } else { Op::Read };
        self.push(path, thread, Access { offset_bytes, length_bytes: count, op, thread: 0, at_s });
    }

    /// Notes a mapped file: `mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3</x/db>, 0) = 0x7f0000000000`.
    fn map(&mut self, arguments: &str, result: &str) {
        let mut parts = arguments.split(", ");
        let length = parts.nth(1).and_then(|text| text.parse::<u64>().ok());
        let path = parts.nth(2).and_then(file);
        if let (Some(from), Some(length), Some(path)) = (address(result), length, path) {
            self.maps.insert(from, (from.saturating_add(length), path));
        }
    }

    /// The file mapped at the first argument of an `msync`.
    fn mapped_at(&self, arguments: &str) -> Option<String> {
        let at = address(arguments.split(", ").next()?)?;
        let (_, (end, path)) = self.maps.range(..=at).next_back()?;
        (at < *end).then(|| path.clone())
    }

    fn push(&mut self, path: String, thread: &str, access: Access) {
        if paths::from_text(&path).is_absolute() && !is_special(&path) {
            self.files.entry(path).or_default().push((thread.to_owned(), access));
        }
    }
}

/// An address as strace writes it: `0x7f00`.
fn address(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// The path of the descriptor with which the text begins.
fn file(text: &str) -> Option<String> {
    descriptor(text).map(|(_, path)| path)
}

/// The descriptor of a call with its path, as strace writes it: `3</a/b>`; and the text of the path alone, as [`paths::to_text`] writes it.
fn descriptor(arguments: &str) -> Option<(String, String)> {
    let (number, rest) = arguments.split_once('<')?;
    number.parse::<u32>().ok()?;
    let end = rest.find(">,").or_else(|| rest.find('>'))?;
    Some((format!("{number}<{}>", &rest[..end]), paths::to_text(&unescaped(&rest[..end]))))
}

/// The path that strace writes in the escapes of C, where it is not plain ASCII: `caf\303\251`.
fn unescaped(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let Some((escape, after)) = after.split_first().filter(|_| *first == b'\\') else {
            bytes.push(*first);
            continue;
        };
        let digits = rest.iter().take(3).take_while(|digit| (b'0'..=b'7').contains(digit)).count();
        bytes.push(match escape {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            _ if digits > 0 => rest[..digits].iter().fold(0u8, |byte, digit| byte << 3 | (digit - b'0')),
            other => *other,
        });
        rest = if digits > 0 { &rest[digits..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"10 100.000000 openat(AT_FDCWD</x>, "db", O_RDONLY) = 3</x/db>
10    100.100000 read(3</x/db>, ""..., 100) = 100
10 100.200000 pread64(3</x/db>, ""..., 4096, 8192) = 4096
11 100.250000 pread64(3</x/db>,  <unfinished ...>
10 100.300000 read(3</x/db>, ""..., 4096) = 50
11 100.350000 <... pread64 resumed>""..., 4096, 12288) = 4096
10 100.400000 lseek(3</x/db>, 1000, SEEK_SET) = 1000
10 100.500000 write(3</x/db>, ""..., 7) = 7
10 100.550000 fdatasync(3</x/db>) = 0
10 100.560000 fsync(3</x/db>) = -1 EIO (Input/output error)
10 100.600000 preadv2(3</x/db>, [{iov_base=""..., iov_len=10}], 1, 20480, 0) = 10
10 100.610000 mmap(NULL, 65536, PROT_READ|PROT_WRITE, MAP_SHARED, 3</x/db>, 0) = 0x7f0000010000
10 100.620000 msync(0x7f0000011000, 4096, MS_SYNC) = 0
10 100.630000 msync(0x7f0000090000, 4096, MS_SYNC) = 0
12 100.640000 <... pread64 resumed>""..., 4096, 0) = 4096
10 100.700000 pread64(3</x/db>, 0x7f, 4096, 8192) = -1 EIO (Input/output error)
10 100.800000 write(1</dev/pts/0>, ""..., 9000) = 9000
10 100.900000 read(4</x/small>, ""..., 10) = 10
10 100.950000 fsync(5</x/only-synced>) = 0
rubbish"#;

    #[test]
    fn calls_with_and_without_positions_interrupted_ones_and_syncs_are_read_in_the_order_of_their_beginning() {
        let Recording { file, trace, .. } = choose(accesses(OUTPUT.as_bytes()).unwrap(), None, NOTHING).unwrap();
        assert_eq!(file, Path::new("/x/db"));
        let read: Vec<(u64, u64, Op, &str, u64)> = trace
            .accesses
            .iter()
            .map(|access| {
                let thread = trace.threads[access.thread as usize].as_str();
                (access.offset_bytes, access.length_bytes, access.op, thread, (access.at_s * 1e3).round() as u64)
            })
            .collect();
        let expected = [
            (0, 100, Op::Read, "10", 100),
            (8192, 4096, Op::Read, "10", 200),
            (12_288, 4096, Op::Read, "11", 250),
            (100, 50, Op::Read, "10", 300),
            (1000, 7, Op::Write, "10", 500),
            (0, 0, Op::Sync, "10", 550),
            (20_480, 10, Op::Read, "10", 600),
            (0, 0, Op::Sync, "10", 620),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn a_file_may_be_named_and_one_that_was_not_used_is_refused_with_those_that_were() {
        let small = choose(accesses(OUTPUT.as_bytes()).unwrap(), Some(Path::new("/x/small")), NOTHING).unwrap();
        assert_eq!(small.trace.accesses.len(), 1);
        let error = choose(accesses(OUTPUT.as_bytes()).unwrap(), Some(Path::new("/y")), NOTHING).unwrap_err();
        assert!(error.to_string().contains("/x/db, /x/only-synced, /x/small"), "{error}");
        assert!(
            choose(accesses(&b""[..]).unwrap(), None, NOTHING).unwrap_err().to_string().contains("maps and io_uring")
        );
    }

    #[test]
    fn a_path_is_found_behind_the_escapes_of_strace() {
        for (text, bytes) in [
            ("/a/b c", &b"/a/b c"[..]),
            (r"caf\303\251\33\nx", b"caf\xc3\xa9\x1b\nx"),
            (r#"\"q\"\\z\76\0011"#, b"\"q\"\\z>\x011"),
            (r"\t\r\v\f\777\", b"\t\r\x0b\x0c\xff\\"),
        ] {
            assert_eq!(unescaped(text), PathBuf::from(OsString::from_vec(bytes.to_vec())), "{text}");
        }
    }

    #[test]
    fn a_command_is_recorded_where_strace_is_installed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![7; 20_000]).unwrap();
        let command =
            ["dd", &format!("if={}", path.display()), "of=/dev/null", "bs=4096", "status=none"].map(str::to_owned);
        let Recording { file, trace, .. } = match record(&command, Some(&path)) {
            Err(error) if error.kind() == LabErrorKind::Unsupported => return eprintln!("skipped: {error}"),
            recorded => recorded.unwrap(),
        };
        assert!(file == path && trace.accesses.len() == 5, "{trace:?}");
        assert_eq!((trace.accesses[1].offset_bytes, trace.accesses[4].length_bytes), (4096, 20_000 - 4 * 4096));
    }
}
