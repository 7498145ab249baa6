//! The memory of a process by the kernel's own counts, and the page cache of files.
//!
//! The counts differ in what they contain. RSS has all pages in the page table of the process, mapped files' too.
//! PSS divides each page by the number of processes that map it. Anonymous memory is allocated by the process itself.
//! None contains pages of the page cache that are not mapped.

use std::path::Path;

use nofault_io::counters::cachestat;

use super::system::{read_number, read_text};
use crate::error::{LabError, LabErrorKind, Result};

/// The memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Resident pages: of files, of shared memory, and the process's own.
    pub(crate) rss_bytes: u64,
    /// Resident pages, each divided by the number of processes that have it.
    pub(crate) pss_bytes: u64,
    /// Resident pages of no file, which the process allocated.
    pub(crate) anonymous_bytes: u64,
}

impl Footprint {
    /// Reads the memory of this process. The kernel walks the whole page table for it: some milliseconds for each GiB that
    /// is mapped.
    ///
    /// # Errors
    /// `Unsupported` before Linux 4.14, which has no `smaps_rollup`.
    pub(crate) fn of_this_process() -> Result<Self> {
        let text = read_text("/proc/self/smaps_rollup").ok_or_else(|| {
            LabError::new(LabErrorKind::Unsupported, "this kernel does not report /proc/self/smaps_rollup (Linux 4.14)")
        })?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
            kib.saturating_mul(1024)
        };
        Self { rss_bytes: bytes("Rss"), pss_bytes: bytes("Pss"), anonymous_bytes: bytes("Anonymous") }
    }

    /// The larger of two readings, count by count.
    #[must_use]
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            rss_bytes: self.rss_bytes.max(other.rss_bytes),
            pss_bytes: self.pss_bytes.max(other.pss_bytes),
            anonymous_bytes: self.anonymous_bytes.max(other.anonymous_bytes),
        }
    }
}

/// The memory that a cgroup is charged with, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CgroupMemory {
    /// All that is charged: memory of its processes, page cache, the kernel's own for them.
    pub(crate) charged_bytes: u64,
    /// The charged memory less the inactive page cache: the working set by which Kubernetes evicts.
    pub(crate) working_set_bytes: u64,
}

impl CgroupMemory {
    /// Reads the counts of a cgroup of either version, given its folder; `None` where it has none.
    pub(crate) fn of(folder: &Path) -> Option<Self> {
        let used = ["memory.current", "memory.usage_in_bytes"].into_iter();
        let charged_bytes = used.filter_map(|file| read_number(folder.join(file))).next()?;
        Some(Self::parse(charged_bytes, &read_text(folder.join("memory.stat"))?))
    }

    fn parse(charged_bytes: u64, stat: &str) -> Self {
        let number =
            |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
        // In version 1 a line without `total_` leaves out the groups below.
        let inactive = number("total_inactive_file").or_else(|| number("inactive_file")).unwrap_or(0);
        Self { charged_bytes, working_set_bytes: charged_bytes.saturating_sub(inactive) }
    }

    /// The larger of two readings, count by count.
    #[must_use]
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            charged_bytes: self.charged_bytes.max(other.charged_bytes),
            working_set_bytes: self.working_set_bytes.max(other.working_set_bytes),
        }
    }
}

/// Bytes of the first `len_bytes` of each of these files in the page cache; `None` where the kernel does not tell.
pub(crate) fn cached_bytes<'p>(paths: impl IntoIterator<Item = &'p Path>, len_bytes: u64) -> Option<u64> {
    paths
        .into_iter()
        .map(|path| {
            let file = std::fs::File::open(path).ok()?;
            Some(cachestat(&file, 0..len_bytes)?.cached_bytes)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_read_from_their_own_lines() {
        let text = "55d0-7ffd ---p 00000000 00:00 0 [rollup]\nRss:  2048 kB\nPss:  1024 kB\nPss_Anon: 7 kB\nAnonymous:  512 kB\n";
        let parsed = Footprint::parse(text);
        assert_eq!(
            parsed,
            Footprint { rss_bytes: 2 << 20, pss_bytes: 1 << 20, anonymous_bytes: 512 << 10 },
            "no line is taken for another that begins like it"
        );
        assert_eq!(Footprint::parse("rubbish\nRss: many kB"), Footprint::default());
        let other = Footprint { rss_bytes: 1, pss_bytes: 2 << 20, anonymous_bytes: 0 };
        assert_eq!(parsed.max(other), Footprint { pss_bytes: 2 << 20, ..parsed });
    }

    #[test]
    fn the_working_set_of_a_cgroup_leaves_out_inactive_page_cache() {
        let (one, two) = ("cache 5\ninactive_file 1\ntotal_inactive_file 30\n", "file 9\ninactive_file 30\n");
        for stat in [one, two] {
            let parsed = CgroupMemory::parse(100, stat);
            assert_eq!((parsed.charged_bytes, parsed.working_set_bytes), (100, 70), "{stat}");
            assert_eq!(parsed.max(CgroupMemory { charged_bytes: 101, working_set_bytes: 1 }).working_set_bytes, 70);
        }
        assert_eq!(CgroupMemory::parse(100, "rubbish").working_set_bytes, 100);
        assert_eq!(CgroupMemory::of(Path::new("/nonexistent")), None);
    }

    #[test]
    fn touched_memory_is_counted_as_this_processs_own() {
        let memory = vec![1_u8; 64 << 20];
        let own = Footprint::of_this_process().unwrap();
        assert!(own.anonymous_bytes >= std::hint::black_box(&memory).len() as u64, "{own:?}");
        assert!(own.rss_bytes >= own.anonymous_bytes, "{own:?}");
    }

    #[test]
    fn a_file_that_was_just_written_is_cached() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
        assert_eq!(cached_bytes([file.path()], 1 << 19), Some(1 << 19));
        assert_eq!(cached_bytes([Path::new("/nonexistent")], 1), None);
    }
}
