//! Databases whose data file lies in stripes over several folders, one for each device.
//!
//! Which folders is written in a small text file beside the database, before anything else of it: opening needs only the one
//! folder, and a device that moved needs only an editor. A page in the wrong place is found by its checksum, as always.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nofault_io::disk::Directory;
use nofault_io::folder::{Backend, Folder, make_folder};
use nofault_io::striped::StripedDirectory;

use crate::error::{Error, ErrorKind, Result};
use crate::recovery::DATA_NAMES;

/// The text file.
const NAME: &str = "stripes";
const TITLE: &str = "nofault stripes 1";
const END: &str = "end";
/// A multiple of every page size, and large enough that a run of pages is one read.
const STRIPE_BYTES: u64 = 1 << 20;

/// Makes the folders and writes down which they are; then the directory of a new database. Without folders, an ordinary one.
///
/// # Errors
/// `InvalidCall` for paths that cannot be written down, what the system says otherwise.
pub(super) fn create(main: Folder, folders: &[PathBuf], id: u64) -> Result<Arc<dyn Directory>> {
    let list = main.path().join(NAME);
    let failed = |error: &std::io::Error| {
        Error::from_io(
            "write down the folders of a database",
            nofault_io::error::Error::from_io("write", error).at(&list),
        )
    };
    if folders.is_empty() {
        // Of a creation that was cut short.
        return match std::fs::remove_file(&list) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(&error)),
            _ => Ok(Arc::new(main)),
        };
    }
    let mut text = format!("{TITLE}\n{id:016x}\n{STRIPE_BYTES}\n");
    for folder in folders {
        let failed = |error| Error::from_io("stripe a database over a folder", error);
        make_folder(folder).map_err(failed)?;
        let path = folder
            .canonicalize()
            .map_err(|error| failed(nofault_io::error::Error::from_io("find", &error).at(folder)))?;
        let name = path.to_str().filter(|name| !name.contains('\n')).ok_or_else(|| {
            Error::new(ErrorKind::InvalidCall, format!("stripe over {}: the path is no line of text", path.display()))
        })?;
        text += &format!("{name}\n");
    }
    text += &format!("{END}\n");
    let mut file = std::fs::File::create(&list).map_err(|error| failed(&error))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| failed(&error))?;
    open(main)
}

/// Whether a database says that it is striped.
pub(super) fn is_striped(main: &Folder) -> bool {
    main.path().join(NAME).exists()
}

/// The directory of a database, striped if it says so.
///
/// # Errors
/// `Corrupt` when the list of folders is damaged, `NotFound` and the like when one of them is.
pub(super) fn open(main: Folder) -> Result<Arc<dyn Directory>> {
    let list = main.path().join(NAME);
    let text = match std::fs::read_to_string(&list) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Arc::new(main)),
        Err(error) => {
            let error = nofault_io::error::Error::from_io("read", &error).at(&list);
            return Err(Error::from_io("read the folders of a database", error));
        }
    };
    let (id, stripe_bytes, folders) = parse(&text).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, format!("{}: not a list of the folders of a database", list.display()))
    })?;
    let mut others: Vec<Arc<dyn Directory>> = Vec::new();
    for folder in folders {
        let opened = Folder::open(Path::new(folder), Backend::Auto).map_err(|error| {
            let what = format!("a part of the database is missing; where it is now belongs into {}", list.display());
            Error::from_io(what, error)
        })?;
        others.push(Arc::new(opened));
    }
    Ok(Arc::new(StripedDirectory::new(Arc::new(main), others, &DATA_NAMES, &format!("data-{id}"), stripe_bytes)))
}

/// The id, the bytes of a stripe and the folders that a list names, if it is whole.
pub(crate) fn parse(text: &str) -> Option<(&str, u64, Vec<&str>)> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return None;
    }
    let id = lines.next().filter(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    let stripe_bytes = lines.next()?.parse().ok().filter(|bytes: &u64| *bytes > 0 && bytes.is_multiple_of(1 << 16))?;
    let mut folders: Vec<&str> = lines.collect();
    (folders.pop() == Some(END) && !folders.is_empty()).then_some((id, stripe_bytes, folders))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_folders_is_whole_or_refused() {
        let whole = format!("{TITLE}\n00000000000000ff\n1048576\n/a\n/b c\n{END}\n");
        assert_eq!(parse(&whole), Some(("00000000000000ff", 1 << 20, vec!["/a", "/b c"])));
        for end in 0..whole.len() - 1 {
            assert_eq!(parse(&whole[..end]), None, "{}", &whole[..end]);
        }
        assert_eq!(parse(&whole.replace("1048576", "1000")), None);
    }
}
