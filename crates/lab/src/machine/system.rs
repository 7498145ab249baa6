//! Small readers of /proc and /sys that the machine's modules share. All of them return `None` where the kernel gives
//! no value: absence is an answer here, not an error.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::LabError;
use crate::paths::shown;

/// Builds the error of doing `action` to `path`, with the next step where one is known.
pub(super) fn fail(action: &str, path: &Path, error: &std::io::Error) -> LabError {
    let next = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => "; run as a user with the right, or choose another place",
        Some(libc::ENOSPC | libc::EDQUOT) => "; free some space, or ask for less data",
        _ => "",
    };
    let plain = LabError::system(format!("cannot {action} {}", shown(&path)), error);
    LabError::new(plain.kind(), format!("{plain}{next}"))
}

/// Whether the process runs as root (effective user 0).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reads a small kernel file and trims its text.
pub fn read_text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Reads a small kernel file holding one number.
pub fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read_text(path)?.parse().ok()
}

/// Reads a line of /proc/meminfo and returns its value in bytes: `MemAvailable`, `MemTotal`, `SwapTotal`.
pub fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns when a process started, in clock ticks after boot. Process id and start time together identify a process for
/// ever. `None` when there is no such process (or only its zombie).
pub fn process_start(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command may hold anything, also spaces and parentheses: fields are counted from the last one.
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// Seconds of CPU that each thread of a process has used so far, oldest thread first; the first is the process's main
/// one. `None` where there is no such process, or the kernel does not account for threads (CONFIG_SCHED_INFO).
pub fn threads_cpu_s(pid: u32) -> Option<Vec<f64>> {
    let folder = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut threads: Vec<(u32, PathBuf)> =
        folder.flatten().filter_map(|task| Some((task.file_name().to_str()?.parse().ok()?, task.path()))).collect();
    threads.sort_unstable();
    // A thread that has ended is left out.
    let cpu_ns = |path: &Path| read_text(path.join("schedstat"))?.split_whitespace().next()?.parse::<u64>().ok();
    let all: Vec<f64> = threads.iter().filter_map(|(_, path)| Some(cpu_ns(path)? as f64 / 1e9)).collect();
    (!all.is_empty()).then_some(all)
}

/// Names this process so that a later start can tell whether it still lives: `pid-start-namespace-boot`, the last two where
/// the kernel tells them.
pub fn process_name() -> String {
    let pid = std::process::id();
    let place = place().map_or(String::new(), |(namespace, boot)| format!("-{namespace}-{boot}"));
    format!("{pid}-{}{place}", process_start(pid).unwrap_or(0))
}

/// Returns the PID namespace of this process and the boot of its kernel, as eight hexadecimal digits. Process ids mean something
/// in these only.
fn place() -> Option<(u64, String)> {
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let namespace = namespace.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
    let boot = read_text("/proc/sys/kernel/random/boot_id")?.get(..8)?.to_owned();
    Some((namespace, boot))
}

/// Whether the process that [`process_name`] named still lives. A process of another PID namespace (another container that
/// shares a folder with this one) counts as alive until the machine restarts, because its id means another process here. So
/// does a name that cannot be parsed, so that an unknown format never leads to a removal.
pub fn is_alive(name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let (pid, start, made_in) = match parts[..] {
        [pid, start] => (pid, start, None),
        [pid, start, namespace, boot] => (pid, start, Some((namespace, boot))),
        _ => return true,
    };
    let (Ok(pid), Ok(start)) = (pid.parse::<u32>(), start.parse::<u64>()) else { return true };
    match (made_in, place()) {
        (Some((_, boot)), Some((_, here))) if boot != here => false,
        (Some((namespace, _)), Some((here, _))) if namespace != here.to_string() => true,
        (Some(_), None) => true,
        _ => process_start(pid) == Some(start),
    }
}

/// One mount, as /proc/self/mountinfo lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` number of the mounted device.
    pub device_number: String,
    /// The folder inside the mounted file system that appears at the mount point.
    pub root: String,
    /// The mount point.
    pub point: PathBuf,
    /// Type of the file system: `ext4`, `cgroup2`.
    pub kind: String,
    /// Device or other source of the mount.
    pub source: String,
    /// Options of the file system itself; for a cgroup hierarchy they name its controllers.
    pub options: String,
}

/// Returns all mounts that this process sees, in order: a later mount covers an earlier one at the same point.
pub fn mounts() -> Vec<Mount> {
    parse_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let mut right = right.split(' ');
        Some(Mount {
            device_number: left.next()?.to_owned(),
            root: unescape(left.next()?),
            point: PathBuf::from(unescape(left.next()?)),
            kind: right.next()?.to_owned(),
            source: unescape(right.next()?),
            options: right.next().unwrap_or_default().to_owned(),
        })
    };
    text.lines().filter_map(parse).collect()
}

/// Undoes mountinfo's octal escapes of space, tab, newline and backslash.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

/// Returns the current time in milliseconds since 1970 UTC.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a size for people: `1.5 GiB`, `64 MiB`, `512 bytes`.
pub fn human_bytes(bytes: u64) -> String {
    let steps = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in steps {
        if bytes >= unit {
            let value = bytes as f64 / unit as f64;
            return if bytes.is_multiple_of(unit) {
                format!("{value:.0} {name}")
            } else {
                format!("{value:.1} {name}")
            };
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_a_process_that_never_existed_is_not() {
        assert!(is_alive(&process_name()));
        assert!(!is_alive(&format!("{}-1", std::process::id())), "same id, other start: another process");
        assert!(!is_alive("4294967294-77"));
        assert!(is_alive("not-a-name"), "a name that cannot be parsed counts as alive");
        let Some((namespace, boot)) = place() else { return eprintln!("not checked: /proc tells no PID namespace") };
        let started = format!("{}-{}", std::process::id(), process_start(std::process::id()).unwrap());
        let dead = "4294967294-77";
        assert!(is_alive(&format!("{started}-{namespace}-{boot}")) && !is_alive(&format!("{dead}-{namespace}-{boot}")));
        assert!(
            is_alive(&format!("{dead}-{}-{boot}", namespace + 1)),
            "a number of another container proves nothing here"
        );
        assert!(!is_alive(&format!("{started}-{namespace}-00000000")), "from before the machine was started");
    }

    #[test]
    fn a_mount_line_is_read_with_its_escapes() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\nrubbish\n";
        let [mount] = &parse_mounts(text)[..] else { panic!("one mount") };
        assert_eq!((mount.device_number.as_str(), mount.kind.as_str()), ("98:0", "ext3"));
        assert_eq!(mount.point, Path::new("/mnt 2"));
        assert_eq!(mount.options, "rw,errors=continue");
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        let sizes = [(0, "0 bytes"), (4096, "4 KiB"), (3 << 29, "1.5 GiB"), (64 << 20, "64 MiB")];
        for (bytes, text) in sizes {
            assert_eq!(human_bytes(bytes), text);
        }
    }
}
