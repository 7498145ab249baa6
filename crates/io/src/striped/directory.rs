//! A directory in which some files lie in stripes over several directories.
//!
//! Invariant: a striped file's name is its first part's name, in the main directory; the other parts keep the name
//! they were created with. So a rename stays one step, for any number of parts, and parts without a first one belong
//! to no file.

use std::sync::Arc;

use super::StripedDisk;
use crate::disk::{Directory, Disk, FileLock, ReaderWatch};
use crate::error::{ErrorKind, Result};

/// A directory whose disks are striped over several folders.
#[derive(Debug)]
pub struct StripedDirectory {
    main: Arc<dyn Directory>,
    others: Vec<Arc<dyn Directory>>,
    /// Files in stripes, by all names they ever have. At most one of these names exists at a time.
    striped: Vec<String>,
    part: String,
    stripe_bytes: u64,
}

impl StripedDirectory {
    /// Creates a directory in which the file with a name in `striped` lies in stripes of `stripe_bytes` over `main` and
    /// `others`, in this order. Its part in the n-th of the others is called `part`-n. All other files lie in `main`.
    /// As with [`StripedDisk::new`], none of this is stored anywhere.
    pub fn new(
        main: Arc<dyn Directory>,
        others: Vec<Arc<dyn Directory>>,
        striped: &[&str],
        part: &str,
        stripe_bytes: u64,
    ) -> Self {
        let striped = striped.iter().map(|name| (*name).to_owned()).collect();
        Self { main, others, striped, part: part.into(), stripe_bytes }
    }

    fn is_striped(&self, name: &str) -> bool {
        self.striped.iter().any(|striped| striped == name)
    }

    fn parts(&self) -> impl Iterator<Item = (&Arc<dyn Directory>, String)> {
        self.others.iter().enumerate().map(|(index, other)| (other, format!("{}-{}", self.part, index + 1)))
    }

    fn whole(
        &self,
        first: Arc<dyn Disk>,
        part: impl Fn(&dyn Directory, &str) -> Result<Arc<dyn Disk>>,
    ) -> Result<Arc<dyn Disk>> {
        let mut disks = vec![first];
        for (other, name) in self.parts() {
            disks.push(part(&**other, &name)?);
        }
        Ok(Arc::new(StripedDisk::new(disks, self.stripe_bytes)?))
    }
}

impl Directory for StripedDirectory {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        let first = self.main.create(name)?;
        if !self.is_striped(name) {
            return Ok(first);
        }
        self.whole(first, |other, part| {
            // A part left behind by an interrupted creation.
            remove_if_there(other, part)?;
            other.create(part)
        })
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        let first = self.main.open(name)?;
        if self.is_striped(name) { self.whole(first, |other, part| other.open(part)) } else { Ok(first) }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.main.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.main.remove(name)?;
        if self.is_striped(name) {
            self.parts().try_for_each(|(other, part)| remove_if_there(&**other, &part))?;
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        self.main.list()
    }

    /// Syncs the other folders before the main one, because a name in the main folder stands for all parts.
    fn sync(&self) -> Result<()> {
        self.others.iter().try_for_each(|other| other.sync())?;
        self.main.sync()
    }

    fn write_text(&self, name: &str, text: &str) -> Result<()> {
        self.main.write_text(name, text)
    }

    fn read_text(&self, name: &str) -> Result<Vec<u8>> {
        self.main.read_text(name)
    }

    /// Locks every part of a striped file.
    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        let main = self.main.lock(name, signed)?;
        let mut parts = Vec::new();
        if self.is_striped(name) {
            for (other, part) in self.parts() {
                let lock = other.lock(&part, signed)?;
                parts.push((lock, part));
            }
        }
        Ok(Box::new(LockedParts { main, parts }))
    }

    fn sign(&self, name: &str) -> Result<Box<dyn FileLock>> {
        self.main.sign(name)
    }
}

/// The locks of all parts of a file.
#[derive(Debug)]
struct LockedParts {
    main: Box<dyn FileLock>,
    /// The locks of the parts, with the names of the parts.
    parts: Vec<(Box<dyn FileLock>, String)>,
}

impl FileLock for LockedParts {
    fn check(&self, name: &str) -> Result<()> {
        self.main.check(name)?;
        self.parts.iter().try_for_each(|(lock, part)| lock.check(part))
    }

    fn id(&self) -> Option<(u64, u64)> {
        self.main.id()
    }

    fn readers(&self, record: &str) -> Result<Option<Arc<dyn ReaderWatch>>> {
        self.main.readers(record)
    }
}

fn remove_if_there(directory: &dyn Directory, name: &str) -> Result<()> {
    match directory.remove(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
