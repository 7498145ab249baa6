//! A memory cgroup of the lab's own, version 2 or 1, below the group of this process (or its nearest ancestor that
//! permits one): so every limit that holds for the lab holds for its trials too.
//!
//! In version 2 a group that has processes cannot pass the memory controller on ("no internal processes"; the
//! root of the hierarchy can), so the new group usually goes below an ancestor. That works for root, and for users in a
//! subtree delegated to them (a systemd user session). In a container whose processes all sit in its topmost group
//! there is no such place. The same rule forbids moving processes up into the new group's parent: on removal they are
//! moved to the group of this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::leftovers::{self, Entry};
use crate::machine::system::{self, Mount, fail, human_bytes, meminfo_bytes, read_number, read_text};
use crate::paths::{self, shown};
use crate::record::{MemoryLimit, MemoryMethod};

const PREFIX: &str = "nofault-lab-";

/// A cgroup with a memory limit. Dropping the guard removes the cgroup, after moving the processes in it out.
#[derive(Debug)]
pub struct CgroupGuard {
    path: PathBuf,
    limit: MemoryLimit,
    entry: Option<Entry>,
}

/// Memory use of a cgroup now, and its memory events since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in use by the cgroup: page cache, anonymous memory, kernel memory.
    pub usage_bytes: u64,
    /// Bytes of page cache that are charged to the cgroup.
    pub cached_bytes: u64,
    /// Bytes of anonymous memory that are charged to the cgroup.
    pub anonymous_bytes: u64,
    /// How often memory use hit the limit (version 2: `max` events; version 1: failcnt).
    pub limit_hits: u64,
    /// Number of the cgroup's processes that the kernel killed because memory ran out.
    pub oom_kills: u64,
    /// Number of pages that reclaim scanned; `None` on version 1, which does not count them by cgroup.
    pub pages_scanned: Option<u64>,
    /// Number of pages that reclaim freed; `None` on version 1, which does not count them by cgroup.
    pub pages_reclaimed: Option<u64>,
}

/// A parent cgroup below which a new cgroup may be made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    method: MemoryMethod,
}

impl CgroupGuard {
    /// Makes a cgroup that may use `bytes` of memory, and no swap.
    ///
    /// # Errors
    /// `Unsupported` where there is no memory controller, `NoPermission` where no group may be made, with each place
    /// tried.
    pub fn create(bytes: u64) -> Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let places = places(&own, &system::mounts());
        if places.is_empty() {
            let message = "the kernel has no memory controller mounted (cgroup v2 or v1); mount one, or use ballast";
            return Err(LabError::new(LabErrorKind::Unsupported, message));
        }
        let mut refusals = Vec::new();
        for place in places {
            match Self::create_in(&place, bytes) {
                Ok(guard) => return Ok(guard),
                Err(error) => refusals.push(error.to_string()),
            }
        }
        let message = format!(
            "no memory cgroup may be made ({}); run as root, or inside `systemd-run --user --scope -p Delegate=yes`",
            refusals.join("; ")
        );
        Err(LabError::new(LabErrorKind::NoPermission, message))
    }

    fn create_in(place: &Place, bytes: u64) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.parent.join(format!("{PREFIX}{}-{number}", system::process_name()));
        if place.method == MemoryMethod::CgroupV2 {
            hand_memory_down(&place.parent)?;
        }
        let entry = Entry::record("cgroup", &paths::to_text(&path))?;
        if let Err(error) = fs::create_dir(&path) {
            entry.forget();
            return Err(LabError::system(format!("cannot create {}", shown(&path)), &error));
        }
        // From here on, dropping the guard removes the cgroup.
        let limit = MemoryLimit { method: place.method, bytes };
        let guard = Self { path, limit, entry: Some(entry) };
        guard.set_limits(bytes)?;
        Ok(guard)
    }

    fn set_limits(&self, bytes: u64) -> Result<()> {
        let file = match self.limit.method {
            MemoryMethod::CgroupV2 => "memory.max",
            _ => "memory.limit_in_bytes",
        };
        self.write(file, &bytes.to_string())?;
        // Swapping the process out would measure the swap device. Where the kernel does not account for swap the files
        // are absent, so a failure is ignored.
        match self.limit.method {
            MemoryMethod::CgroupV2 => drop(self.write("memory.swap.max", "0")),
            _ => {
                let _ = self.write("memory.swappiness", "0");
                // Only where there is swap: newer kernels count no limit hits when this limit is reached first.
                if meminfo_bytes("SwapTotal").is_some_and(|bytes| bytes > 0) {
                    let _ = self.write("memory.memsw.limit_in_bytes", &bytes.to_string());
                }
            }
        }
        match read_number(self.path.join(file)) {
            // The kernel rounds down to pages.
            Some(set) if set <= bytes && bytes - set < 1 << 20 => Ok(()),
            other => {
                let message = format!(
                    "{} does not hold the limit of {} (it says {other:?}); use ballast",
                    shown(&self.path),
                    human_bytes(bytes)
                );
                Err(LabError::new(LabErrorKind::Unsupported, message))
            }
        }
    }

    /// The folder of the cgroup in the cgroup file system.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The limit in the form that records store.
    pub fn limit(&self) -> MemoryLimit {
        self.limit
    }

    /// Moves a process into the cgroup. Memory that the process already uses stays charged to its former cgroup.
    ///
    /// # Errors
    /// `NotFound` when the process is gone, `NoPermission` when it may not be moved.
    pub fn add_pid(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Reads the cgroup's memory use and events by two to four small reads, which take some ten microseconds.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn usage(&self) -> Result<Usage> {
        let text = |file: &str| {
            let path = self.path.join(file);
            fs::read_to_string(&path).map_err(|error| fail("read", &path, &error))
        };
        let number = |text: &str| text.trim().parse().unwrap_or(0);
        let stat = text("memory.stat")?;
        Ok(match self.limit.method {
            MemoryMethod::CgroupV2 => {
                let events = text("memory.events")?;
                Usage {
                    usage_bytes: number(&text("memory.current")?),
                    cached_bytes: field(&stat, "file").unwrap_or(0),
                    anonymous_bytes: field(&stat, "anon").unwrap_or(0),
                    limit_hits: field(&events, "max").unwrap_or(0),
                    oom_kills: field(&events, "oom_kill").unwrap_or(0),
                    pages_scanned: field(&stat, "pgscan"),
                    pages_reclaimed: field(&stat, "pgsteal"),
                }
            }
            _ => Usage {
                usage_bytes: number(&text("memory.usage_in_bytes")?),
                cached_bytes: field(&stat, "total_cache").unwrap_or(0),
                anonymous_bytes: field(&stat, "total_rss").unwrap_or(0),
                limit_hits: number(&text("memory.failcnt")?),
                oom_kills: text("memory.oom_control").ok().and_then(|text| field(&text, "oom_kill")).unwrap_or(0),
                pages_scanned: None,
                pages_reclaimed: None,
            },
        })
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|error| fail("write", &path, &error))
    }
}

impl Drop for CgroupGuard {
    fn drop(&mut self) {
        if self.limit.method == MemoryMethod::CgroupV1 {
            // Cache left behind would go on being charged to a group that no longer exists.
            let _ = self.write("memory.force_empty", "0");
        }
        if remove_group(&self.path).is_ok()
            && let Some(entry) = self.entry.take()
        {
            entry.forget();
        }
    }
}

/// Removes the cgroups of labs that have ended. Returns a sentence for each removal and each failure.
///
/// # Errors
/// When the list of leftovers cannot be read.
pub fn remove_leftovers() -> Result<Vec<String>> {
    leftovers::sweep("cgroup", |content| {
        let path = &*paths::from_text(content);
        // The list is a plain file and may be wrong: a path is removed only when it looks like a group of the lab.
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        let in_hierarchy = |mount: &Mount| mount.kind.starts_with("cgroup") && path.starts_with(&mount.point);
        match ours && system::mounts().iter().any(in_hierarchy) || !path.exists() {
            true => remove_group(path),
            false => Err(LabError::new(LabErrorKind::Damaged, "does not look like a group of the lab")),
        }
    })
}

fn remove_group(path: &Path) -> Result<()> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = system::mounts();
    let together = |folder: &PathBuf| {
        let hierarchies = mounts.iter().filter(|mount| mount.kind.starts_with("cgroup"));
        hierarchies.into_iter().any(|mount| path.starts_with(&mount.point) && folder.starts_with(&mount.point))
    };
    let own = places(&own, &mounts).into_iter().map(|place| place.parent).find(together);
    empty(path, own.as_deref());
    // A process that has just ended keeps its group busy for a moment.
    for wait_ms in [0, 1, 5, 20, 50, 100, 200] {
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(fail("remove", path, &error)),
        }
    }
    Err(LabError::new(LabErrorKind::Busy, format!("{} still has processes in it", shown(&path))))
}

/// Moves the processes of a cgroup to its parent, or, where the parent may hold no processes, to this process's cgroup
/// (`own`). Processes that neither accepts are killed where the kernel can do that (5.14): their lab has given the
/// cgroup up.
fn empty(path: &Path, own: Option<&Path>) {
    let refuges = path.parent().into_iter().chain(own);
    for pid in read_text(path.join("cgroup.procs")).unwrap_or_default().lines() {
        let moved = refuges.clone().any(|folder| fs::write(folder.join("cgroup.procs"), pid).is_ok());
        let kill = path.join("cgroup.kill");
        if !moved && kill.exists() {
            let _ = fs::write(kill, "1");
        }
    }
}

/// Makes sure that the children of a version 2 cgroup get the memory controller.
fn hand_memory_down(parent: &Path) -> Result<()> {
    let has = |file: &str| {
        read_text(parent.join(file)).is_some_and(|text| text.split_whitespace().any(|name| name == "memory"))
    };
    if !has("cgroup.controllers") {
        let message = format!("{} has no memory controller", shown(&parent));
        return Err(LabError::new(LabErrorKind::Unsupported, message));
    }
    // To move a process, one must be allowed to write the ancestor that both groups share.
    let procs = parent.join("cgroup.procs");
    fs::OpenOptions::new().write(true).open(&procs).map_err(|error| fail("write", &procs, &error))?;
    let control = parent.join("cgroup.subtree_control");
    match has("cgroup.subtree_control") {
        true => Ok(()),
        false => fs::write(&control, "+memory").map_err(|error| cannot_hand_down(parent, &control, &error)),
    }
}

fn cannot_hand_down(parent: &Path, control: &Path, error: &std::io::Error) -> LabError {
    if error.raw_os_error() == Some(libc::EBUSY) {
        let message = format!("{} has processes itself, and then may limit no groups below it", shown(&parent));
        return LabError::new(LabErrorKind::Busy, message);
    }
    fail("write", control, error)
}

/// The tightest memory limit that already holds for this process, such as the limit of a container or a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Enclosing {
    pub(super) limit_bytes: u64,
    /// Bytes of memory that may still be used under the limit; page cache that can be dropped counts as free.
    pub(super) available_bytes: u64,
}

/// Finds the tightest memory limit around this process; `None` where there is none, or this process cannot see it.
pub(super) fn enclosing() -> Option<Enclosing> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let places = places(&own, &system::mounts());
    let groups = places.iter().flat_map(|place| place.parent.ancestors().map(|folder| (folder, place.method)));
    groups.filter_map(|(folder, method)| limit_of(folder, method)).min_by_key(|limit| limit.available_bytes)
}

fn limit_of(folder: &Path, method: MemoryMethod) -> Option<Enclosing> {
    let (limit, usage, [active, inactive]) = match method {
        MemoryMethod::CgroupV2 => ("memory.max", "memory.current", ["active_file", "inactive_file"]),
        _ => ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_active_file", "total_inactive_file"]),
    };
    // Version 2 says "max" for no limit, version 1 a number larger than any memory.
    let limit_bytes = read_number(folder.join(limit)).filter(|bytes| *bytes < 1 << 60)?;
    let stat = read_text(folder.join("memory.stat"))?;
    let cached = field(&stat, active).unwrap_or(0).saturating_add(field(&stat, inactive).unwrap_or(0));
    let used = read_number(folder.join(usage))?.saturating_sub(cached);
    Some(Enclosing { limit_bytes, available_bytes: limit_bytes.saturating_sub(used) })
}

/// Returns the number in the line `name number` of a kernel file's text.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The parent cgroups below which a new cgroup may be made, best first: in version 2 this process's own cgroup and its
/// ancestors, then the own cgroup of version 1.
fn places(own: &str, mounts: &[Mount]) -> Vec<Place> {
    let mut places = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let is_v2 = controllers.is_empty();
        let holds = |mount: &&Mount| match is_v2 {
            true => mount.kind == "cgroup2",
            false => mount.kind == "cgroup" && mount.options.split(',').any(|option| option == "memory"),
        };
        if !is_v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some(mount) = mounts.iter().rev().find(holds) else { continue };
        // In a container the mount shows only a part of the hierarchy.
        let Ok(inside) = Path::new(path).strip_prefix(&mount.root) else { continue };
        let group = mount.point.join(inside);
        if is_v2 {
            let up = group.ancestors().take_while(|folder| folder.starts_with(&mount.point));
            let hands_down = |folder: &&Path| {
                read_text(folder.join("cgroup.controllers")).is_none_or(|text| text.contains("memory"))
            };
            let found = up
                .filter(hands_down)
                .map(|folder| Place { parent: folder.to_path_buf(), method: MemoryMethod::CgroupV2 });
            places.splice(0..0, found.collect::<Vec<_>>());
        } else {
            places.push(Place { parent: group, method: MemoryMethod::CgroupV1 });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, root: &str, point: &str, options: &str) -> Mount {
        Mount {
            device_number: "0:1".into(),
            root: root.into(),
            point: point.into(),
            kind: kind.into(),
            source: "cgroup".into(),
            options: options.into(),
        }
    }

    #[test]
    fn version_2_is_tried_from_the_own_group_upwards() {
        let mounts = [mount("cgroup2", "/", "/nowhere/cg", "rw")];
        let found = places("0::/user.slice/a.scope\n", &mounts);
        let parents: Vec<_> = found.iter().map(|place| place.parent.to_str().unwrap()).collect();
        assert_eq!(parents, ["/nowhere/cg/user.slice/a.scope", "/nowhere/cg/user.slice", "/nowhere/cg"]);
        assert!(found.iter().all(|place| place.method == MemoryMethod::CgroupV2));
    }

    #[test]
    fn version_1_is_used_below_the_own_group_also_inside_a_container() {
        let mounts = [
            mount("cgroup", "/docker/abc", "/nowhere/memory", "rw,memory"),
            mount("cgroup", "/", "/nowhere/cpu", "rw,cpu"),
        ];
        let found = places("9:cpu:/\n4:memory:/docker/abc/inner\n", &mounts);
        let place = Place { parent: "/nowhere/memory/inner".into(), method: MemoryMethod::CgroupV1 };
        assert_eq!(found, [place]);
    }

    /// Makes a folder with the same files as a cgroup of the kernel.
    fn fake(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(file, text)| fs::write(folder.path().join(file), text).unwrap());
        folder
    }

    fn text(folder: &tempfile::TempDir, file: &str) -> String {
        fs::read_to_string(folder.path().join(file)).unwrap()
    }

    #[test]
    fn a_parent_passes_the_memory_controller_on_where_it_has_it_and_only_once() {
        let without = fake(&[("cgroup.controllers", "cpu io\n"), ("cgroup.procs", ""), ("cgroup.subtree_control", "")]);
        assert_eq!(hand_memory_down(without.path()).unwrap_err().kind(), LabErrorKind::Unsupported);
        assert_eq!(text(&without, "cgroup.subtree_control"), "");
        let with = |control| {
            fake(&[("cgroup.controllers", "cpu memory\n"), ("cgroup.procs", ""), ("cgroup.subtree_control", control)])
        };
        let asked = with("cpu\n");
        hand_memory_down(asked.path()).unwrap();
        assert_eq!(text(&asked, "cgroup.subtree_control"), "+memory");
        let done = with("cpu memory\n");
        hand_memory_down(done.path()).unwrap();
        assert_eq!(text(&done, "cgroup.subtree_control"), "cpu memory\n");
        // A group that is not delegated: its processes may not be moved from or to it.
        let foreign = fake(&[("cgroup.controllers", "memory\n"), ("cgroup.subtree_control", "memory\n")]);
        assert!(hand_memory_down(foreign.path()).unwrap_err().to_string().contains("cgroup.procs"));
    }

    #[test]
    fn a_parent_with_processes_of_its_own_is_named_as_such() {
        let busy = std::io::Error::from_raw_os_error(libc::EBUSY);
        let error = cannot_hand_down(Path::new("/nowhere/cg/a"), Path::new("/nowhere/cg/a/x"), &busy);
        assert_eq!(error.kind(), LabErrorKind::Busy);
        assert!(error.to_string().starts_with("/nowhere/cg/a has processes itself"), "{error}");
    }

    fn version_2(folder: &tempfile::TempDir) -> CgroupGuard {
        let limit = MemoryLimit { method: MemoryMethod::CgroupV2, bytes: 32 << 20 };
        CgroupGuard { path: folder.path().join("."), limit, entry: None }
    }

    #[test]
    fn version_2_limits_memory_and_leaves_no_swap() {
        let folder = fake(&[("memory.max", "max\n"), ("memory.swap.max", "max\n"), ("cgroup.procs", "")]);
        let guard = version_2(&folder);
        guard.set_limits(32 << 20).unwrap();
        guard.add_pid(4711).unwrap();
        let set = ["memory.max", "memory.swap.max", "cgroup.procs"].map(|file| text(&folder, file));
        assert_eq!(set, ["33554432", "0", "4711"]);
        // No trial may be measured in a group that does not keep its limit.
        fs::remove_file(folder.path().join("memory.max")).unwrap();
        std::os::unix::fs::symlink("/dev/null", folder.path().join("memory.max")).unwrap();
        assert_eq!(guard.set_limits(32 << 20).unwrap_err().kind(), LabErrorKind::Unsupported);
        std::mem::forget(guard);
    }

    #[test]
    fn version_2_reports_memory_use_and_limit_hits() {
        let folder = fake(&[
            ("memory.stat", "anon 100\nfile 300\nfile_mapped 7\npgscan 50\npgsteal 40\n"),
            ("memory.current", "500\n"),
            ("memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n"),
        ]);
        let guard = version_2(&folder);
        let expected = Usage {
            usage_bytes: 500,
            cached_bytes: 300,
            anonymous_bytes: 100,
            limit_hits: 9,
            oom_kills: 2,
            pages_scanned: Some(50),
            pages_reclaimed: Some(40),
        };
        assert_eq!(guard.usage().unwrap(), expected);
        std::mem::forget(guard);
    }

    #[test]
    fn processes_move_to_the_parent_or_the_own_group_and_are_killed_only_where_neither_accepts_them() {
        let above = fake(&[]);
        let group = above.path().join("group");
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.procs"), "4711\n").unwrap();
        fs::write(group.join("cgroup.kill"), "").unwrap();
        let killed = || fs::read_to_string(group.join("cgroup.kill")).unwrap();
        let own = fake(&[]);
        empty(&group, Some(own.path()));
        assert_eq!((text(&above, "cgroup.procs").as_str(), own.path().join("cgroup.procs").exists()), ("4711", false));
        // Writing to a folder fails, as writing to the processes of a group that limits others does.
        fs::remove_file(above.path().join("cgroup.procs")).unwrap();
        fs::create_dir(above.path().join("cgroup.procs")).unwrap();
        empty(&group, Some(own.path()));
        assert_eq!((text(&own, "cgroup.procs").as_str(), killed().as_str()), ("4711", ""));
        empty(&group, None);
        assert_eq!(killed(), "1");
    }

    #[test]
    fn an_enclosing_limit_is_found_with_the_memory_free_under_it() {
        let folder = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        put("memory.stat", "anon 7000\nactive_file 100\ninactive_file 200\n");
        put("memory.current", "7300\n");
        put("memory.max", "max\n");
        assert_eq!(limit_of(folder.path(), MemoryMethod::CgroupV2), None);
        put("memory.max", "10000\n");
        let around = Enclosing { limit_bytes: 10_000, available_bytes: 3000 };
        assert_eq!(limit_of(folder.path(), MemoryMethod::CgroupV2), Some(around));
        put("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit_of(folder.path(), MemoryMethod::CgroupV1), None);
    }

    #[test]
    fn a_machine_without_a_memory_controller_has_no_place() {
        assert_eq!(places("", &[]), []);
        assert_eq!(places("rubbish\n4:memory:/a\n", &[mount("cgroup", "/", "/nowhere/cpu", "cpu")]), []);
    }
}
