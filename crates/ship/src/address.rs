//! Addresses of shipped databases, as people write them: a folder, or `s3://bucket/name`.

use std::fmt;
use std::path::{Path, PathBuf};
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
/// assert_eq!(&*address.name, "shop");
/// # Ok::<(), nofault_ship::Error>(())
/// ```
#[derive(Clone)]
pub struct Address {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The name in it.
    pub name: String,
    /// The database in whose folder the objects of a folder's address would lie.
    around: Option<PathBuf>,
}

/// The name in a folder whose own name is not UTF-8.
#[cfg(feature = "folder")]
const NAME_IN_OTHER_BYTES: &str = "database";

impl Address {
    /// Opens the store of an address: the path of a folder, of which the last part is the name and the others must exist
    /// (feature `folder`; `file://` may stand before it), or `s3://bucket/name` (feature `s3`).
    ///
    /// The store of a folder fences shippers by locks in it. S3 takes the variables of the environment that begin with `AWS_`: keys
    /// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), `AWS_REGION`, and for other servers `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` or
    /// `AWS_ENDPOINT`, the first of these that is set; one that begins with `http://` is used as it is. The files of `aws configure` are not read.
    ///
    /// # Errors
    /// `InvalidCall` for an address without a name, or of a folder that is not there; `NoPermission` and `NoResources` when the folder cannot be opened;
    /// `Unsupported` for an address that this build cannot use.
    pub fn parse(address: &str) -> Result<Self> {
        match address.split_once("://") {
            Some(("s3", rest)) => {
                let Some((bucket, name)) = rest.split_once('/').filter(|(_, name)| !name.is_empty()) else {
                    let what = format!("{address} names no database: write s3://bucket/name");
                    return Err(Error::new(ErrorKind::InvalidCall, what));
                };
                of_s3(bucket, name)
            }
            Some(("file", path)) => Self::of_folder(Path::new(path)),
            None => Self::of_folder(Path::new(address)),
            Some((scheme, _)) => {
                let what = format!("there is no store for {scheme}:// addresses: write a folder, or s3://bucket/name");
                Err(Error::new(ErrorKind::Unsupported, what))
            }
        }
    }

    /// Refuses to ship into the folder of a database. To restore from there, no call of this is needed.
    ///
    /// # Errors
    /// `InvalidCall` when the objects would lie in the folder of a database, also through links.
    pub fn check_target(&self) -> Result<()> {
        match &self.around {
            None => Ok(()),
            Some(around) => {
                let what = format!(
                    "{} in {} lies in the database {}: ship to a folder outside",
                    self.name,
                    self.store,
                    around.display()
                );
                Err(Error::new(ErrorKind::InvalidCall, what))
            }
        }
    }

    /// Opens the store of a folder, with any bytes in its path: the last part is the name, and the others must exist. Names in a store are
    /// text, so in a folder with another name, which must exist too, the database has the name `database`.
    ///
    /// # Errors
    /// As [`Address::parse`].
    pub fn of_folder(path: &Path) -> Result<Self> {
        of_folder(path)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} in {})", self.name, self.store)
    }
}

#[cfg(feature = "folder")]
fn of_folder(path: &Path) -> Result<Address> {
    use crate::error::{cause_in_system, kind_of_system};
    use crate::folder::FolderStore;

    let last = path
        .file_name()
        .ok_or_else(|| Error::new(ErrorKind::InvalidCall, format!("{} has no name at its end", path.display())))?;
    let (parent, name) = match last.to_str() {
        Some(name) => (path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")), name),
        None => (path, NAME_IN_OTHER_BYTES),
    };
    let store = FolderStore::open(parent, name).map_err(|error| {
        let what = format!("the folder {}", parent.display());
        match cause_in_system(&error) {
            // A wrong place is a wrong address.
            Some(cause) if kind_of_system(cause) != Some(ErrorKind::Refused) => {
                Error::of_system(what, cause, ErrorKind::InvalidCall)
            }
            _ => Error::new(ErrorKind::InvalidCall, format!("{what}: {error}")),
        }
    })?;
    let around = store.database_around().map(Path::to_path_buf);
    Ok(Address { store: Arc::new(store), name: name.into(), around })
}

#[cfg(not(feature = "folder"))]
fn of_folder(path: &Path) -> Result<Address> {
    let path = path.display();
    let what = format!("{path}: this build cannot use folders (feature `folder` of nofault-ship)");
    Err(Error::new(ErrorKind::Unsupported, what))
}

/// The variables with the endpoint of S3, the one that counts first.
#[cfg(feature = "s3")]
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

#[cfg(feature = "s3")]
fn of_s3(bucket: &str, name: &str) -> Result<Address> {
    let wrong = |what: String| Error::new(ErrorKind::InvalidCall, format!("the bucket {bucket}: {what}"));
    let endpoint = ENDPOINTS.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let mut builder = object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket);
    if let Some(endpoint) = endpoint {
        if !endpoint.contains("://") {
            return Err(wrong(format!("the endpoint {endpoint} has neither http:// nor https:// before it")));
        }
        builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
    }
    let store = builder.build().map_err(|error| wrong(error.to_string()))?;
    Ok(Address { store: Arc::new(store), name: name.trim_end_matches('/').into(), around: None })
}

#[cfg(not(feature = "s3"))]
fn of_s3(bucket: &str, _name: &str) -> Result<Address> {
    let what = format!(
        "s3://{bucket}: this build has no S3; build it with the feature (`cargo install nofault-cli --features s3`, or `s3` of nofault-ship)"
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

#[cfg(all(test, feature = "folder"))]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_folder_may_have_a_name_of_any_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
        assert_eq!(Address::of_folder(&odd).unwrap_err().kind(), ErrorKind::InvalidCall);
        std::fs::create_dir(&odd).unwrap();
        assert_eq!(Address::of_folder(&odd).unwrap().name, NAME_IN_OTHER_BYTES);
        assert_eq!(Address::of_folder(&odd.join("shop")).unwrap().name, "shop");
        assert_eq!(Address::of_folder(&folder.path().join("shop")).unwrap().name, "shop");
    }
}
