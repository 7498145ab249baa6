//! Addresses of shipped databases, as people write them: a folder, or `s3://bucket/name`.

use std::fmt;
use std::sync::Arc;

use object_store::ObjectStore;

use crate::error::{Error, ErrorKind, Result};

/// Where a database is shipped: a store, and the name in it.
///
/// ```
/// use nofault_ship::Address;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let backups = folder.path().to_str().unwrap();
/// let address = Address::parse(&format!("{backups}/eu/shop")).unwrap_err();
/// assert!(address.to_string().contains("eu"), "the folder must be there");
/// let address = Address::parse(&format!("{backups}/shop"))?;
/// assert_eq!((&*address.name, address.single_writer), ("shop", true));
/// # Ok::<(), nofault_ship::Error>(())
/// ```
#[derive(Clone)]
pub struct Address {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The name in it.
    pub name: String,
    /// Whether the store has no conditional puts, as a folder: see [`ShipOptions::single_writer`](crate::ShipOptions::single_writer).
    pub single_writer: bool,
}

impl Address {
    /// Opens the store of an address: the path of a folder, of which the last part is the name and the others must exist
    /// (feature `folder`; `file://` may stand before it), or `s3://bucket/name` (feature `s3`). Keys, region and endpoint of S3
    /// are those of the environment (`AWS_ACCESS_KEY_ID` and the like).
    ///
    /// # Errors
    /// `InvalidCall` for an address without a name, or of a folder that is not there; `Unsupported` for one that this build cannot
    /// use.
    pub fn parse(address: &str) -> Result<Self> {
        match address.split_once("://") {
            Some(("s3", rest)) => {
                let Some((bucket, name)) = rest.split_once('/').filter(|(_, name)| !name.is_empty()) else {
                    let what = format!("{address} names no database: write s3://bucket/name");
                    return Err(Error::new(ErrorKind::InvalidCall, what));
                };
                of_s3(bucket, name)
            }
            Some(("file", path)) => of_folder(path),
            None => of_folder(address),
            Some((scheme, _)) => {
                let what = format!("there is no store for {scheme}:// addresses: write a folder, or s3://bucket/name");
                Err(Error::new(ErrorKind::Unsupported, what))
            }
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} in {})", self.name, self.store)
    }
}

#[cfg(feature = "folder")]
fn of_folder(path: &str) -> Result<Address> {
    use std::path::Path;

    use object_store::local::LocalFileSystem;

    let path = Path::new(path);
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        Error::new(ErrorKind::InvalidCall, format!("{} has no name at its end that is text", path.display()))
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let store = LocalFileSystem::new_with_prefix(parent)
        .map_err(|error| Error::new(ErrorKind::InvalidCall, format!("the folder {}: {error}", parent.display())))?
        .with_fsync(true)
        .with_automatic_cleanup(true);
    Ok(Address { store: Arc::new(store), name: name.into(), single_writer: true })
}

#[cfg(not(feature = "folder"))]
fn of_folder(path: &str) -> Result<Address> {
    let what = format!("{path}: this build cannot use folders (feature `folder` of nofault-ship)");
    Err(Error::new(ErrorKind::Unsupported, what))
}

#[cfg(feature = "s3")]
fn of_s3(bucket: &str, name: &str) -> Result<Address> {
    let store = object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket).build();
    let store = store.map_err(|error| Error::new(ErrorKind::InvalidCall, format!("the bucket {bucket}: {error}")))?;
    Ok(Address { store: Arc::new(store), name: name.trim_end_matches('/').into(), single_writer: false })
}

#[cfg(not(feature = "s3"))]
fn of_s3(bucket: &str, _name: &str) -> Result<Address> {
    let what = format!("s3://{bucket}: this build cannot use S3 (feature `s3`)");
    Err(Error::new(ErrorKind::Unsupported, what))
}
