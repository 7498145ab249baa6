//! Damage at rest: bit rot, or changes made to the files without the database. Seen at once and durable.

use std::ops::Range;

use super::SimWorld;
use super::bytes::FILE_BYTES_MAX;
use super::file::File;
use super::state::State;
use nofault_io::error::{Error, ErrorKind, Result};

/// The bytes of a file at some moment, to put back later. Shares its pages with the file.
#[derive(Clone, Debug)]
pub struct FileSnapshot(File);

/// Every method fails with `NotFound` when no file has the name, and `InvalidCall` when a range ends beyond the file.
/// They also work after a power cut, though only [`SimWorld::restart`] makes the files usable again.
impl SimWorld {
    /// Returns the whole file, as a read would see it now.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>> {
        self.on_file(name, "read", |file, _| Ok(all_of(file)))
    }

    /// Inverts bit `bit` (0 to 7) of one byte.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCall`.
    pub fn flip_bit(&self, name: &str, offset_bytes: u64, bit: u32) -> Result<()> {
        self.edit(name, "flip a bit", offset_bytes..offset_bytes.saturating_add(1), |bytes, _| {
            bytes[0] ^= 1 << (bit % 8)
        })
    }

    /// Turns a range into zeroes, as a trimmed or never written block reads.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCall`.
    pub fn zero_range(&self, name: &str, range: Range<u64>) -> Result<()> {
        self.edit(name, "zero a range", range, |bytes, _| bytes.fill(0))
    }

    /// Turns a range into garbage, from the world's seed.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCall`.
    pub fn garbage_range(&self, name: &str, range: Range<u64>) -> Result<()> {
        self.edit(name, "fill a range with garbage", range, |bytes, rng| rng.fill(bytes))
    }

    /// Overwrites bytes at an offset.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCall`.
    pub fn overwrite(&self, name: &str, offset_bytes: u64, data: &[u8]) -> Result<()> {
        let range = offset_bytes..offset_bytes.saturating_add(data.len() as u64);
        self.edit(name, "overwrite a range", range, |bytes, _| bytes.copy_from_slice(data))
    }

    /// Copies a range over another place of the file: a write that went astray.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCall`.
    pub fn misplace(&self, name: &str, from: Range<u64>, to_bytes: u64) -> Result<()> {
        let data = self.copy_range(name, from)?;
        self.overwrite(name, to_bytes, &data)
    }

    /// Exchanges the `len_bytes` bytes at `first_bytes` with the bytes at `second_bytes`.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCall`.
    pub fn swap_ranges(&self, name: &str, first_bytes: u64, second_bytes: u64, len_bytes: u64) -> Result<()> {
        let first = self.copy_range(name, first_bytes..first_bytes.saturating_add(len_bytes))?;
        let second = self.copy_range(name, second_bytes..second_bytes.saturating_add(len_bytes))?;
        self.overwrite(name, first_bytes, &second)?;
        self.overwrite(name, second_bytes, &first)
    }

    /// Remembers the file as it is now, for [`SimWorld::restore_range`] and [`SimWorld::restore_file`].
    ///
    /// # Errors
    /// `NotFound`.
    pub fn snapshot_file(&self, name: &str) -> Result<FileSnapshot> {
        self.on_file(name, "snapshot", |file, _| Ok(FileSnapshot(file.clone())))
    }

    /// Puts an older copy of a range back: valid bytes, but stale.
    ///
    /// # Errors
    /// `NotFound`, `InvalidCall` when the range ends beyond the file or the copy.
    pub fn restore_range(&self, name: &str, snapshot: &FileSnapshot, range: Range<u64>) -> Result<()> {
        check_range(&range, snapshot.0.len(), "restore a range from a snapshot", name)?;
        let mut data = vec![0; (range.end - range.start) as usize];
        snapshot.0.read(range.start, &mut data);
        self.overwrite(name, range.start, &data)
    }

    /// Puts an older copy of the whole file back, length included.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn restore_file(&self, name: &str, snapshot: &FileSnapshot) -> Result<()> {
        self.on_file(name, "restore", |file, _| {
            file.set_len(snapshot.0.len());
            file.damage(0, &all_of(&snapshot.0));
            Ok(())
        })
    }

    /// Sets the length of a file: cuts it, empties it (0), or extends it with zeroes.
    ///
    /// # Errors
    /// `NotFound`; `InvalidCall` beyond 16 GiB.
    pub fn set_len(&self, name: &str, len_bytes: u64) -> Result<()> {
        self.on_file(name, "set the length of", |file, _| {
            check_range(&(0..len_bytes), FILE_BYTES_MAX, "set the length", name)?;
            file.set_len(len_bytes);
            Ok(())
        })
    }

    fn copy_range(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
        self.on_file(name, "read", |file, _| {
            check_range(&range, file.len(), "read a range", name)?;
            let mut data = vec![0; (range.end - range.start) as usize];
            file.read(range.start, &mut data);
            Ok(data)
        })
    }

    fn edit(
        &self,
        name: &str,
        action: &str,
        range: Range<u64>,
        change: impl FnOnce(&mut [u8], &mut fastrand::Rng),
    ) -> Result<()> {
        self.on_file(name, action, |file, rng| {
            check_range(&range, file.len(), action, name)?;
            let mut data = vec![0; (range.end - range.start) as usize];
            file.read(range.start, &mut data);
            change(&mut data, rng);
            file.damage(range.start, &data);
            Ok(())
        })
    }

    fn on_file<T>(
        &self,
        name: &str,
        action: &str,
        body: impl FnOnce(&mut File, &mut fastrand::Rng) -> Result<T>,
    ) -> Result<T> {
        self.with(|State { names, files, rng, .. }| {
            let file = names.get(name).and_then(|id| files.get_mut(&id));
            let missing = || Error::from_errno(format!("{action} {name} of a simulated world"), libc::ENOENT);
            body(file.ok_or_else(missing)?, rng)
        })
    }
}

fn all_of(file: &File) -> Vec<u8> {
    let mut data = vec![0; file.len() as usize];
    file.read(0, &mut data);
    data
}

fn check_range(range: &Range<u64>, len: u64, action: &str, name: &str) -> Result<()> {
    if range.start > range.end || range.end > len {
        let why = format!("{}..{} of {name}, which ends at {len}", range.start, range.end);
        return Err(Error::new(ErrorKind::InvalidCall, action, why));
    }
    Ok(())
}
