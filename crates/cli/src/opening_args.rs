//! The flags that say how a command opens a database.

use std::path::Path;

use clap::Args;
use nofault::db::data_bytes;
use nofault::settings::Settings;
use nofault_lab::config::parse_bytes;

/// The memory with which a database is opened.
#[derive(Debug, Args)]
pub(crate) struct OpenArguments {
    /// Memory for pages, page table and log buffers. The default is 64 MiB or a 32nd of the data file with all its
    /// stripes, the larger of the two, but at most an eighth of the memory that this process may use, and at most 1
    /// GiB. A size too small for the page table (a 256th of the data with pages of 4 KiB) and the smallest pool
    /// is exceeded, with a warning.
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    cache: Option<u64>,
}

/// How a command that only reads opens the database.
#[derive(Debug, Args)]
pub(crate) struct ReadingArguments {
    /// Open the database for reading only, also while a program has it open, and write nothing: on media that cannot be
    /// written, and of a backup. Shows the state committed before; the changes in the program's log since its last
    /// checkpoint must fit into --cache, which is 256 MiB then by default, where that much memory may be used.
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    open: OpenArguments,
}

impl ReadingArguments {
    /// The settings for opening the database in `path`.
    pub(crate) fn settings(&self, path: &Path) -> Settings {
        let settings = self.open.settings(path);
        if !self.read_only || self.open.cache.is_some() {
            return settings;
        }
        let cache_bytes = settings.cache_bytes.max(READING_CACHE_BYTES.min(Settings::default().cache_bytes));
        Settings { cache_bytes, ..settings }
    }

    /// As [`ReadingArguments::settings`], for a command that may run for long: `db top` shows its progress.
    pub(crate) fn watched(&self, path: &Path) -> Settings {
        Settings { stats_socket: true, ..self.settings(path) }
    }
}

/// Cache in bytes of a database that is only read, where no size is given: pages that the log has changed are kept in it.
const READING_CACHE_BYTES: usize = 256 << 20;
/// Cache of a small database in bytes, where no size is given.
const CACHE_BYTES: u64 = 64 << 20;
/// The cache is the data file divided by this number, where no size is given.
const CACHE_SHARE: u64 = 32;

impl OpenArguments {
    /// The settings for opening or creating the database in `path`.
    pub(crate) fn settings(&self, path: &Path) -> Settings {
        let most = Settings::default();
        let cache_bytes = self.cache.unwrap_or_else(|| cache_bytes_for(data_bytes(path), most.cache_bytes as u64));
        Settings { cache_bytes: usize::try_from(cache_bytes).unwrap_or(usize::MAX), ..most }
    }
}

impl OpenArguments {
    /// As [`OpenArguments::settings`], for a command that may run for long: `db top` shows its progress.
    pub(crate) fn watched(&self, path: &Path) -> Settings {
        Settings { stats_socket: true, ..self.settings(path) }
    }
}

fn cache_bytes_for(data_bytes: u64, most_bytes: u64) -> u64 {
    (data_bytes / CACHE_SHARE).max(CACHE_BYTES).min(most_bytes)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_cache_follows_the_data_within_the_share_of_the_machine() {
        const GIB: u64 = 1 << 30;
        assert_eq!(cache_bytes_for(0, GIB), 64 << 20);
        assert_eq!(cache_bytes_for(11 * GIB, GIB), 11 * GIB / 32);
        assert_eq!(cache_bytes_for(1 << 40, GIB), GIB);
        assert_eq!(cache_bytes_for(1 << 40, 16 << 20), 16 << 20, "a small machine");
    }

    #[test]
    fn the_cache_follows_the_data_of_all_stripes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let others = ["second", "third"].map(|name| folder.path().join(name));
        let settings = Settings {
            cache_bytes: 16 << 20,
            log_bytes: 1 << 20,
            stripe_folders: others.to_vec(),
            ..Settings::default()
        };
        drop(nofault::blocking::Db::create(&path, &settings).unwrap());
        // A sparse file: no data is written to the disk.
        let grow = |folder: &Path| {
            let is_data =
                |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("data"));
            let file = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_data).unwrap();
            std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(1 << 30).unwrap();
        };
        grow(&path);
        others.iter().for_each(|other| grow(other));
        let most_bytes = Settings::default().cache_bytes as u64;
        let expected = cache_bytes_for(3 << 30, most_bytes);
        assert_eq!(OpenArguments { cache: None }.settings(&path).cache_bytes as u64, expected);
        assert_eq!(
            OpenArguments { cache: None }.settings(folder.path()).cache_bytes as u64,
            cache_bytes_for(0, most_bytes)
        );
    }
}
