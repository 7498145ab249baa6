//! The default size of a database's memory: a share of the smallest memory limit of this process.

use std::fs;
use std::path::{Path, PathBuf};

/// The default cache is the memory limit divided by this.
const SHARE: u64 = 8;
const LEAST_BYTES: u64 = 16 << 20;
const MOST_BYTES: u64 = 1 << 30;

/// Returns an eighth of the smallest memory limit that applies to this process, between fixed bounds.
pub(super) fn share_bytes() -> usize {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(machine_bytes);
    share_of(limit_bytes(Path::new("/sys/fs/cgroup"), &groups).into_iter().chain(machine).min())
}

fn share_of(limit_bytes: Option<u64>) -> usize {
    let share = limit_bytes.map_or(LEAST_BYTES, |limit| limit / SHARE);
    share.clamp(LEAST_BYTES, MOST_BYTES) as usize
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest memory limit of the cgroups that `groups` (a `/proc/self/cgroup`) names, and of the cgroups above them.
/// Version 1 keeps its memory controller in a separate folder. Inside a container the names may not exist; then its root
/// counts.
fn limit_bytes(mount: &Path, groups: &str) -> Option<u64> {
    let limit_of = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => (mount.to_path_buf(), "memory.max"),
            list if list.split(',').any(|name| name == "memory") => (mount.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let mut folder: PathBuf = root.join(path.trim_start_matches('/'));
        let mut least: Option<u64> = None;
        loop {
            let limit = fs::read_to_string(folder.join(file)).ok().and_then(|text| text.trim().parse().ok());
            least = least.into_iter().chain(limit).min();
            if folder == root || !folder.pop() {
                return least;
            }
        }
    };
    groups.lines().filter_map(limit_of).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_above_the_process_counts_in_both_versions_of_cgroups() {
        let mount = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = mount.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(limit_bytes(mount.path(), "0::/"), None);
        put("a/memory.max", "800\n");
        put("a/b/memory.max", "max\n");
        assert_eq!(limit_bytes(mount.path(), "0::/a/b\n"), Some(800));
        put("memory/c/memory.limit_in_bytes", "700\n");
        assert_eq!(limit_bytes(mount.path(), "4:cpu,memory:/c\n1:cpu:/x\n0::/a/b\n"), Some(700));
        // A container sees its own group as the root, under a name that is not there.
        put("memory/memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(limit_bytes(mount.path(), "4:memory:/docker/1234\n"), Some(9_223_372_036_854_771_712));
    }

    #[test]
    fn the_default_cache_is_an_eighth_of_the_limit_between_fixed_bounds() {
        assert_eq!(share_of(Some(1 << 30)), 128 << 20);
        assert_eq!(share_of(Some(1 << 20)), 16 << 20);
        assert_eq!(share_of(Some(1 << 40)), 1 << 30);
        assert_eq!(share_of(None), 16 << 20);
        assert_eq!(machine_bytes("MemFree: 1 kB\nMemTotal:       24000 kB\n"), Some(24_576_000));
        assert!((LEAST_BYTES..=MOST_BYTES).contains(&(share_bytes() as u64)));
    }
}
