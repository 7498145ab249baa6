//! Parameters of `claims`: the small cells that only this experiment needs.

use serde::{Deserialize, Serialize};

/// Parameters of `claims`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimsConfig {
    /// Length of a cell.
    pub cell_s: f64,
    /// Bytes of one read of cached data, from the smallest that is claimed to the largest.
    pub unit_bytes: Vec<u64>,
    /// Threads that map and unmap at the same time, besides one; 0 stands for one a CPU.
    pub map_threads: Vec<u32>,
    /// Pages copied in a private map before it is mapped anew.
    pub copied_pages: Vec<u32>,
    /// Also the cells that take longer: uncached buffered reads, commits through a map, growth under a reader.
    pub thorough: bool,
    /// Pages changed in one durable commit.
    pub commit_pages: Vec<u32>,
    /// Updates while a reader is held.
    pub reader_updates: u64,
    /// Keys that they go to.
    pub reader_keys: u64,
}

impl Default for ClaimsConfig {
    fn default() -> Self {
        Self::quick()
    }
}

impl ClaimsConfig {
    /// What a first answer takes.
    pub(super) fn quick() -> Self {
        Self {
            cell_s: 0.2,
            unit_bytes: vec![4096, 1 << 20],
            map_threads: vec![0],
            copied_pages: vec![256, 4096],
            thorough: false,
            commit_pages: vec![1, 256],
            reader_updates: 20_000,
            reader_keys: 2_000,
        }
    }

    /// All of it.
    pub(super) fn standard() -> Self {
        Self {
            cell_s: 0.5,
            unit_bytes: vec![4096, 16 << 10, 64 << 10, 1 << 20],
            map_threads: vec![0, 16],
            copied_pages: vec![64, 1024, 4096, 16_384],
            thorough: true,
            commit_pages: vec![1, 16, 256, 4096],
            reader_updates: 200_000,
            reader_keys: 10_000,
        }
    }

    /// Longer, and with what lies between.
    pub(super) fn paper() -> Self {
        Self {
            cell_s: 10.0,
            unit_bytes: vec![4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            reader_updates: 500_000,
            ..Self::standard()
        }
    }

    /// The first value that makes no sense.
    pub(super) fn check(&self) -> Result<(), String> {
        let pages = |name: &str, values: &[u32]| match values.iter().find(|pages| !(1..=1 << 20).contains(*pages)) {
            Some(pages) => Err(format!("{name} = {pages}: must be 1 to 2^20")),
            None if values.is_empty() => Err(format!("{name}: at least one is needed")),
            None => Ok(()),
        };
        if !(self.cell_s > 0.0 && self.cell_s.is_finite()) {
            return Err(format!("claims.cell_s = {}: must be more than zero", self.cell_s));
        }
        let unit = |bytes: &&u64| !(bytes.is_power_of_two() && (4096..=8 << 20).contains(*bytes));
        if let Some(bytes) = self.unit_bytes.iter().find(unit) {
            return Err(format!("claims.unit_bytes = {bytes}: must be a power of two from 4096 to 8 MiB"));
        }
        if let Some(threads) = self.map_threads.iter().find(|threads| **threads > 1024) {
            return Err(format!("claims.map_threads = {threads}: must be at most 1024"));
        }
        pages("claims.copied_pages", &self.copied_pages)?;
        pages("claims.commit_pages", &self.commit_pages)?;
        if self.reader_keys == 0 || self.reader_keys > 1 << 24 || self.reader_updates > 1 << 32 {
            return Err("claims.reader_keys must be 1 to 2^24, and claims.reader_updates at most 2^32".into());
        }
        Ok(())
    }
}
