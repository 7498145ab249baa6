//! Block devices of RAM (zram), which the lab makes, fills and removes itself: they show the software's ceiling even
//! where the disk is slow. The content is incompressible, so each takes as much memory as it holds.
//!
//! Kept true by: only devices that this process made are removed, or, after a crash, devices that [`leftovers`]
//! recorded. A recorded device must still have its name and its `diskseq`, a number that the kernel never gives twice.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nofault_io::counters::device::BlockDevice;

use super::data::{self, DataSpec, Progress};
use super::leftovers::{self, Entry};
use super::system::{self, fail, human_bytes, meminfo_bytes, read_text};
use super::{content::BLOCK_BYTES, device};
use crate::error::{LabError, LabErrorKind, Result};
use crate::record::Target;

const CONTROL: &str = "/sys/class/zram-control";
/// Bytes of memory that must stay available besides the devices.
const MARGIN_BYTES: u64 = 512 << 20;

/// A RAM-backed block device, filled with the lab's content. Removed when dropped.
#[derive(Debug)]
pub struct RamDevice {
    name: String,
    wanted: DataSpec,
    entry: Option<Entry>,
}

/// Checks that `count` RAM-backed devices of `data_bytes` each can be made here. Makes none.
///
/// # Errors
/// `NoPermission`, `Unsupported` or `NoSpace`, with the remedy.
pub fn check(count: u32, data_bytes: u64) -> Result<()> {
    let refuse = |kind, message: String| Err(LabError::new(kind, message));
    if !system::is_root() {
        return refuse(LabErrorKind::NoPermission, "a device of RAM (zram) needs root; run as root to have it".into());
    }
    if !Path::new(CONTROL).exists() {
        return refuse(LabErrorKind::Unsupported, "the kernel has no zram; try `modprobe zram`".into());
    }
    // A page of zram costs a little more than a page of memory.
    let needed =
        data_bytes.saturating_add(data_bytes / 16).saturating_mul(u64::from(count)).saturating_add(MARGIN_BYTES);
    let available = meminfo_bytes("MemAvailable").unwrap_or(0);
    if available < needed {
        let message = format!(
            "{count} devices of {} in RAM need {} of memory and {} are available; ask for less with --ram-size",
            human_bytes(data_bytes),
            human_bytes(needed),
            human_bytes(available)
        );
        return refuse(LabErrorKind::NoSpace, message);
    }
    Ok(())
}

impl RamDevice {
    /// Makes a RAM-backed device and fills it with the lab's content. Takes about half a second for each GiB on one
    /// core.
    ///
    /// # Errors
    /// As [`check`]; `Interrupted`; or the system's error. No device stays behind after an error.
    pub fn create(wanted: DataSpec, progress: &Progress<'_>, cancel: &AtomicBool) -> Result<Self> {
        wanted.check()?;
        check(1, wanted.data_bytes)?;
        let device = Self::add(wanted)?;
        let path = device.path();
        let file = device::open(&path, true)?;
        data::write_content(&file, &path, wanted, 0, progress, cancel)?;
        Ok(device)
    }

    /// Makes several RAM-backed devices with the same content, for striping.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_many(
        count: u32,
        wanted: DataSpec,
        progress: &Progress<'_>,
        cancel: &AtomicBool,
    ) -> Result<Vec<Self>> {
        wanted.check()?;
        check(count, wanted.data_bytes)?;
        let total = wanted.data_bytes.saturating_mul(u64::from(count));
        (0..count)
            .map(|number| {
                let before = wanted.data_bytes * u64::from(number);
                Self::create(wanted, &|done, _| progress(before + done, total), cancel)
            })
            .collect()
    }

    /// Returns the path of the device file.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// Returns the target over the data of this device.
    pub fn target(&self) -> Target {
        data::target("ram", &[&self.path()], self.wanted)
    }

    /// Makes an unfilled device of the right size.
    fn add(wanted: DataSpec) -> Result<Self> {
        let control = Path::new(CONTROL).join("hot_add");
        // Reading this file makes a device and answers its number.
        let number: u32 = std::fs::read_to_string(&control)
            .map_err(|error| fail("make a zram device through", &control, &error))?
            .trim()
            .parse()
            .map_err(|_| {
                LabError::new(LabErrorKind::System, "the kernel did not answer the number of a new zram device")
            })?;
        let name = format!("zram{number}");
        // From here on dropping removes the device. Until its size is set it holds no memory, so a crash before the
        // entry is written loses nothing.
        let mut device = Self { entry: None, wanted, name };
        device.entry = Some(Entry::record("zram", &identity(&device.name))?);
        let size = format!("/sys/block/{}/disksize", device.name);
        std::fs::write(&size, (wanted.data_bytes + BLOCK_BYTES as u64).to_string())
            .map_err(|error| fail("set the size of the zram device through", Path::new(&size), &error))?;
        Ok(device)
    }
}

impl Drop for RamDevice {
    fn drop(&mut self) {
        if remove(&self.name).is_ok()
            && let Some(entry) = self.entry.take()
        {
            entry.forget();
        }
    }
}

/// Returns whether a path belongs to a zram device, by the name that the kernel gives such devices.
pub(crate) fn is_zram(path: &Path) -> bool {
    let name = path.strip_prefix("/dev").ok().and_then(Path::to_str);
    name.is_some_and(is_zram_name)
}

/// Returns whether a file or folder lies on a zram device, by the device under its file system; false where the system
/// shows no device.
pub(crate) fn holds(path: &Path) -> bool {
    BlockDevice::under(path).is_ok_and(|device| is_zram_name(device.name()))
}

fn is_zram_name(name: &str) -> bool {
    name.strip_prefix("zram").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Removes the RAM-backed devices of labs that have ended. Returns a sentence for each removal and each failure.
///
/// # Errors
/// When the list of leftovers cannot be read.
pub fn remove_leftovers() -> Result<Vec<String>> {
    leftovers::sweep("zram", |noted| {
        let name = noted.split(' ').next().unwrap_or_default();
        if !is_zram_name(name) || !Path::new("/sys/block").join(name).exists() {
            // The device is gone already.
            return Ok(());
        }
        // The kernel may have given the device's number to a foreign device since.
        match identity(name) == noted && (noted.contains(' ') || carries_marker(name)) {
            true => remove(name),
            false => Ok(()),
        }
    })
}

/// Returns the device's name and, where the kernel has it, the sequence number that no other device ever gets.
fn identity(name: &str) -> String {
    match read_text(format!("/sys/block/{name}/diskseq")) {
        Some(sequence) => format!("{name} diskseq={sequence}"),
        None => name.to_owned(),
    }
}

fn carries_marker(name: &str) -> bool {
    let path = Path::new("/dev").join(name);
    device::open(&path, false).and_then(|file| data::read_header(&file, &path)).is_ok_and(|header| header.is_ok())
}

fn remove(name: &str) -> Result<()> {
    let control = Path::new(CONTROL).join("hot_remove");
    let number = name.trim_start_matches("zram");
    // A reader that was just killed, or udev, may still have the device open.
    for wait_ms in [0, 10, 50, 100, 200, 400, 800] {
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        match std::fs::write(&control, number) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(fail("remove the zram device through", &control, &error)),
        }
    }
    Err(LabError::new(LabErrorKind::Busy, format!("/dev/{name} is still in use")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::machine::{cache, content};

    const WANTED: DataSpec = DataSpec { seed: 4, data_bytes: 8 << 20 };

    /// Makes a RAM-backed device; `None`, after printing the reason, where none can be made.
    fn ram() -> Option<RamDevice> {
        if let Err(error) = check(1, WANTED.data_bytes) {
            eprintln!("skipped: {error}");
            return None;
        }
        Some(RamDevice::create(WANTED, &|_, _| (), &AtomicBool::new(false)).unwrap())
    }

    /// Whether the device of this name is still the same one: another test may get the name as soon as it is free, but
    /// never the sequence number.
    fn is_there(name: &str, before: &str) -> bool {
        Path::new("/sys/block").join(name).exists() && identity(name) == before
    }

    #[test]
    fn a_device_of_ram_holds_the_content_and_goes_with_its_guard() {
        let Some(device) = ram() else { return };
        let path = device.path();
        let (name, before) = (device.name.clone(), identity(&device.name));
        let target = device.target();
        assert_eq!((target.label.as_str(), target.content_seed), ("ram", Some(4)));
        let file = device::open(&path, false).unwrap();
        let mut block = data::buffer(BLOCK_BYTES).unwrap();
        for index in [0, 1, 1000, 2047] {
            file.read_exact_at(&mut block, content::block_offset(index)).unwrap();
            assert!(content::check_block_fully(&block, 4, index), "block {index}");
        }
        drop(file);
        drop(device);
        assert!(!is_there(&name, &before));
    }

    #[test]
    fn pages_read_from_a_device_stay_cached_while_it_is_open() {
        let Some(device) = ram() else { return };
        let path = device.path();
        let read_bytes = 4 << 20;
        // Any process on the machine may drop caches during this test.
        let stays = (0..10).any(|_| {
            let (warm, _held) = cache::make_warm(&[&path], read_bytes).unwrap();
            warm.resident_bytes.is_none_or(|bytes| bytes >= read_bytes)
        });
        assert!(stays, "none of the pages that were read is in the page cache");
    }

    #[test]
    fn a_device_that_a_crash_left_behind_is_removed_and_other_devices_are_not() {
        let (Some(mut left), Some(alive)) = (ram(), ram()) else { return };
        let dead = format!("{}-1", std::process::id());
        left.entry.take().unwrap().forget();
        let (name, before) = (left.name.clone(), identity(&left.name));
        leftovers::record_as("zram", &dead, &before);
        std::mem::forget(left);
        let messages = remove_leftovers().unwrap();
        assert!(messages.iter().any(|line| line.contains("removed zram")), "{messages:?}");
        assert!(!is_there(&name, &before));
        // The recorded number is the same, but the kernel has given it to another device.
        leftovers::record_as("zram", &dead, &format!("{} diskseq=1", alive.name));
        remove_leftovers().unwrap();
        assert!(alive.path().exists());
    }

    #[test]
    fn a_cancelled_device_is_gone() {
        if check(1, WANTED.data_bytes).is_err() {
            eprintln!("skipped: no zram here");
            return;
        }
        let error = RamDevice::create(WANTED, &|_, _| (), &AtomicBool::new(true)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Interrupted);
    }

    #[test]
    fn more_than_memory_is_refused_with_the_next_step() {
        let error = check(2, 1 << 50).unwrap_err().to_string();
        assert!(["--ram-size", "as root", "modprobe"].iter().any(|next| error.contains(next)), "{error}");
    }
}
