//! Databases with a data file in stripes over several folders, one for each device.
//!
//! A small text file next to the database lists the folders. It is written before the folders hold anything: opening
//! needs only the one folder, and a device that moved needs only an edit of the list. A page in the wrong place is
//! found by its checksum, as always.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nofault_io::disk::Directory;
use nofault_io::error::{Error as IoError, ErrorKind as IoErrorKind};
use nofault_io::folder::{Backend, Folder, make_folder};
use nofault_io::striped::StripedDirectory;

use crate::error::{Error, ErrorKind, Result};
use crate::recovery::names::{Contents, DATA, DATA_NAMES, LOCK, NEW_STRIPES, STRIPES, contents_of};

const TITLE: &str = "nofault stripes 1";
const END: &str = "end";
/// Bytes of a stripe: a multiple of every page size, large enough that most runs of pages need one read.
const STRIPE_BYTES: u64 = 1 << 20;

/// Opens the folders of a striped database, on this machine or in a simulation.
pub(in crate::db) trait Places {
    /// Creates a folder if it does not exist, and returns its absolute path.
    ///
    /// # Errors
    /// The error of the system.
    fn make(&self, path: &Path) -> nofault_io::error::Result<PathBuf>;

    /// Opens a folder.
    ///
    /// # Errors
    /// The error of the system.
    fn open(&self, path: &Path) -> nofault_io::error::Result<Arc<dyn Directory>>;
}

/// The folders of this machine.
pub(in crate::db) struct ThisMachine;

impl Places for ThisMachine {
    fn make(&self, path: &Path) -> nofault_io::error::Result<PathBuf> {
        make_folder(path)?;
        path.canonicalize().map_err(|error| IoError::from_io("find", &error).at(path))
    }

    fn open(&self, path: &Path) -> nofault_io::error::Result<Arc<dyn Directory>> {
        Ok(Arc::new(Folder::open(path, Backend::Auto)?))
    }
}

/// Creates the given folders and the file that lists them, and returns a directory for a new database whose data file
/// is striped over them. Without folders, returns an ordinary directory.
///
/// # Errors
/// `InvalidCall` for paths that the list cannot hold; otherwise the error of the system.
pub(in crate::db) fn create(
    main: Arc<dyn Directory>,
    folders: &[PathBuf],
    id: u64,
    places: &dyn Places,
) -> Result<(Arc<dyn Directory>, Option<String>)> {
    if folders.is_empty() {
        return Ok((main, None));
    }
    let failed = |error| Error::from_io("stripe a database over a folder", error);
    let mut list = format!("{TITLE}\n{id:016x}\n{STRIPE_BYTES}\n");
    let mut others = Vec::new();
    for folder in folders {
        let path = places.make(folder).map_err(failed)?;
        let name = path.to_str().filter(|name| !name.contains('\n')).ok_or_else(|| {
            Error::new(ErrorKind::InvalidCall, format!("stripe over {}: the path is no line of text", path.display()))
        })?;
        list += &format!("{name}\n");
        others.push(places.open(&path).map_err(failed)?);
    }
    list += &format!("{END}\n");
    let id = format!("{id:016x}");
    Ok((Arc::new(striped(main, others, &id, STRIPE_BYTES)), Some(list)))
}

fn striped(main: Arc<dyn Directory>, others: Vec<Arc<dyn Directory>>, id: &str, stripe_bytes: u64) -> StripedDirectory {
    StripedDirectory::new(main, others, &DATA_NAMES, &part_name(id), stripe_bytes)
}

/// Returns the name of a database's part files, without the part number.
fn part_name(id: &str) -> String {
    format!("data-{id}")
}

/// Returns the name of one part file, as [`StripedDirectory`] forms it.
fn numbered(part: &str, number: usize) -> String {
    format!("{part}-{number}")
}

/// Opens the directory of a database: a striped directory if the database has a list of folders.
///
/// # Errors
/// `Corrupt` when the list of folders is damaged or a folder is missing; otherwise the error of the system.
pub(in crate::db) fn open(main: Arc<dyn Directory>, places: &dyn Places) -> Result<Arc<dyn Directory>> {
    let bytes = match main.read_text(STRIPES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(main),
        Err(error) if error.kind() == IoErrorKind::InvalidCall => {
            return Err(Error::new(ErrorKind::InvalidCall, format!("read the folders of a database: {error}")));
        }
        Err(error) => return Err(Error::from_io("read the folders of a database", error)),
    };
    let text = String::from_utf8_lossy(&bytes);
    let (id, stripe_bytes, folders) = parse(&text).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, format!("the file «{STRIPES}» is not a list of the folders of a database"))
    })?;
    let mut others = Vec::new();
    for folder in folders {
        let opened = places.open(Path::new(folder)).map_err(|error| {
            let what = format!(
                "a folder of the database is missing; if it was moved, write its new path into the file «{STRIPES}»"
            );
            match error.kind() {
                IoErrorKind::NotFound => Error::new(ErrorKind::Corrupt, format!("{what}: {error}")),
                _ => Error::from_io(what, error),
            }
        })?;
        others.push(opened);
    }
    Ok(Arc::new(striped(main, others, id, stripe_bytes)))
}

/// Removes the parts that a creation that was cut short has left in other folders, as its list names them. Without a
/// list that can be read there are no such parts, as the list is durable before they are made. Blocks.
///
/// # Errors
/// `Busy` when another process has one of them open; the error of the system, unless a folder is gone.
pub(in crate::db) fn remove_unfinished_parts(main: &dyn Directory, places: &dyn Places) -> Result<()> {
    let failed = |error| Error::from_io("remove the files of an unfinished creation", error);
    if contents_of(main)? != Contents::Unfinished {
        return Ok(());
    }
    for list in [NEW_STRIPES, STRIPES] {
        let bytes = match main.read_text(list) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == IoErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        let text = String::from_utf8_lossy(&bytes);
        let Some((id, _, folders)) = parse(&text) else { continue };
        for (index, folder) in folders.into_iter().enumerate() {
            let part = numbered(&part_name(id), index + 1);
            match places.open(Path::new(folder)).and_then(|folder| remove_part(&*folder, &part)) {
                Err(error) if error.kind() != IoErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn remove_part(folder: &dyn Directory, part: &str) -> nofault_io::error::Result<()> {
    let _lock = folder.lock(part, LOCK)?;
    folder.remove(part)?;
    folder.sync()
}

/// Bytes of the data file of the database in `folder`, with all its stripes, by the lengths of its files: for choosing
/// [`cache_bytes`](crate::settings::Settings::cache_bytes) before it is opened. Zero where there is none; parts that
/// are missing count nothing. Blocks for the time of asking for a few lengths.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// use nofault::{blocking::Db, db::data_bytes, settings::Settings};
///
/// let path = folder.path().join("shop");
/// assert_eq!(data_bytes(&path), 0);
/// drop(Db::create(&path, &Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() })?);
/// assert!(data_bytes(&path) > 0);
/// # Ok::<(), nofault::error::Error>(())
/// ```
pub fn data_bytes(folder: impl AsRef<Path>) -> u64 {
    let folder = folder.as_ref();
    let len = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
    let list = std::fs::read_to_string(folder.join(STRIPES)).unwrap_or_default();
    let parts = parse(&list).map_or(Vec::new(), |(id, _, others)| {
        let part = |(index, other): (usize, &&str)| Path::new(other).join(numbered(&part_name(id), index + 1));
        others.iter().enumerate().map(part).collect()
    });
    [folder.join(DATA)].into_iter().chain(parts).map(len).sum()
}

/// Parses a list of folders into the id, the bytes of a stripe and the folders; `None` unless the list is complete.
pub(crate) fn parse(text: &str) -> Option<(&str, u64, Vec<&str>)> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return None;
    }
    let id = lines.next().filter(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    let stripe_bytes = lines.next()?.parse().ok().filter(|bytes: &u64| *bytes > 0 && bytes.is_multiple_of(1 << 16))?;
    let mut folders: Vec<&str> = lines.collect();
    while folders.pop_if(|line| line.is_empty()).is_some() {}
    (folders.pop() == Some(END) && !folders.is_empty()).then_some((id, stripe_bytes, folders))
}
