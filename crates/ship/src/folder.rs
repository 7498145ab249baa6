//! A folder as a store that keeps to the conditions of puts, so that it fences shippers as a bucket does.
//!
//! `LocalFileSystem` cannot put on the condition that a version is still there. Here such a put takes a lock in the folder, compares the version,
//! and puts. The version of a manifest is a checksum of its content: inode, time and length, by which `LocalFileSystem` tells versions apart, may
//! come again within a tick of the clock.
//!
//! Kept true by: every put with a condition holds two locks: the lock of the folder itself, which cannot be removed, and the lock of
//! a file in it, which also works over a network. Both end with the process holding them.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::names::{FOLDER_STORE, MANIFEST};
use crate::object::checksum;

/// The name of the file that is locked.
const LOCK: &str = "lock";
/// Pause between two attempts to lock: a put takes some milliseconds.
const LOCK_PAUSE: Duration = Duration::from_millis(3);
/// Time after which a lock that is held is an error, which says so: the caller decides how often it is tried again.
const LOCK_WAIT: Duration = Duration::from_millis(250);

/// The store of a folder.
#[derive(Debug)]
pub(crate) struct FolderStore {
    inner: LocalFileSystem,
    root: PathBuf,
    /// The database around the place of the objects: nothing is put then.
    around: Option<PathBuf>,
}

/// The locks of a folder, held until this is dropped.
struct FolderLock {
    _of_folder: Option<File>,
    file: File,
    path: PathBuf,
}

impl FolderLock {
    /// Tries to take both locks; `None` while another one has them.
    fn try_take(folder: &std::path::Path) -> Result<Option<Self>> {
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        let of_folder = File::open(folder).map_err(at(folder))?;
        let of_folder = match of_folder.try_lock() {
            Ok(()) => Some(of_folder),
            Err(TryLockError::WouldBlock) => return Ok(None),
            // Some network file systems lock no folders.
            Err(TryLockError::Error(_)) => None,
        };
        let path = folder.join(LOCK);
        // A link is not followed, and a pipe would be waited for.
        if let Some(found) = std::fs::symlink_metadata(&path).ok().filter(|found| !found.is_file()) {
            let what = match (found.is_dir(), found.is_symlink()) {
                (true, _) => "a folder is in the place of the file that shippers lock: move it away",
                (_, true) => "a link is in the place of the file that shippers lock, and is not followed: remove it",
                _ => "no file, but something else is in the place of the file that shippers lock: remove it",
            };
            return Err(at(&path)(std::io::Error::new(std::io::ErrorKind::InvalidFilename, what)));
        }
        let file =
            File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
        }
        let lock = Self { _of_folder: of_folder, file, path };
        // The file may have been removed, and made by another process, before it was locked.
        Ok(if lock.is_in_place()? { Some(lock) } else { None })
    }

    fn is_in_place(&self) -> Result<bool> {
        let held = self.file.metadata().map_err(at(&self.path))?;
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) => Ok((held.dev(), held.ino()) == (found.dev(), found.ino())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(at(&self.path)(error)),
        }
    }
}

impl FolderStore {
    /// Opens the store of an existing folder, for objects below a name.
    pub(crate) fn open(root: &std::path::Path, name: &str) -> Result<Self> {
        let inner = LocalFileSystem::new_with_prefix(root)?.with_fsync(true).with_automatic_cleanup(true);
        let root = root.canonicalize().map_err(at(root))?;
        let around = nofault::db::database_around(root.join(name));
        Ok(Self { inner, root, around })
    }

    /// Returns the database in whose folder the objects would lie.
    pub(crate) fn database_around(&self) -> Option<&std::path::Path> {
        self.around.as_deref()
    }

    /// Puts an object under the locks of its folder if it has a version, or is missing without one; always with `None`. Once begun, this is
    /// done or not before the locks end, also when the future is dropped.
    async fn put_locked(
        &self,
        location: &Path,
        payload: PutPayload,
        condition: Option<Option<String>>,
    ) -> Result<PutResult> {
        let path = self.inner.path_to_filesystem(location)?;
        let folder = path.parent().unwrap_or(&self.root).to_owned();
        let begun = tokio::time::Instant::now();
        let lock = loop {
            let of_folder = folder.clone();
            match tokio::task::spawn_blocking(move || FolderLock::try_take(&of_folder)).await?? {
                Some(lock) => break lock,
                None if begun.elapsed() >= LOCK_WAIT => {
                    let held = "another process, or another shipper in this one, holds the lock of this folder";
                    return Err(at(&folder)(std::io::Error::new(std::io::ErrorKind::WouldBlock, held)));
                }
                None => tokio::time::sleep(LOCK_PAUSE).await,
            }
        };
        let location = location.to_string();
        let put = move || {
            let refused = |why: &str| StoreError::Precondition { path: location.clone(), source: why.into() };
            match (&condition, version_at(&path).map_err(at(&path))?) {
                (Some(Some(known)), Some(found)) if *known == found => {}
                (Some(Some(_)), _) => return Err(refused("it has another version")),
                (Some(None), Some(_)) => {
                    return Err(StoreError::AlreadyExists { path: location, source: "it is there".into() });
                }
                (Some(None) | None, _) => {}
            }
            if !lock.is_in_place()? {
                return Err(at(&lock.path)(std::io::Error::other("it was removed while it was held")));
            }
            let bytes: Vec<u8> = payload.iter().flat_map(|part| part.iter().copied()).collect();
            replace(&path, &bytes)?;
            drop(lock);
            Ok(PutResult { e_tag: Some(version_of(&bytes)), version: None, extensions: Default::default() })
        };
        tokio::task::spawn_blocking(put).await?
    }
}

/// Replaces a file durably. The name of the new one until then is one that `LocalFileSystem` does not list. A file left under it is removed before,
/// so no link is followed.
fn replace(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push("#0");
    let new = PathBuf::from(new);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(&new)(error)),
        _ => {}
    }
    let mut file = File::create_new(&new).map_err(at(&new))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(at(&new))?;
    std::fs::rename(&new, path).map_err(at(path))?;
    let Some(folder) = path.parent() else { return Ok(()) };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(at(folder))
}

fn version_at(path: &std::path::Path) -> std::io::Result<Option<String>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(version_of(&bytes))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn version_of(bytes: &[u8]) -> String {
    format!("{:016x}-{}", checksum(bytes), bytes.len())
}

fn is_manifest(location: &Path) -> bool {
    location.filename() == Some(MANIFEST)
}

/// An error of the system with its place.
#[derive(Debug)]
struct FolderError {
    place: PathBuf,
    cause: std::io::Error,
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place.display(), self.cause)
    }
}

impl std::error::Error for FolderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Returns a function that turns an error of the system into a store's.
fn at(place: &std::path::Path) -> impl Fn(std::io::Error) -> StoreError {
    move |cause| StoreError::Generic {
        store: FOLDER_STORE,
        source: Box::new(FolderError { place: place.to_path_buf(), cause }),
    }
}

impl fmt::Display for FolderStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the folder {}", self.root.display())
    }
}

#[async_trait]
impl ObjectStore for FolderStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if let Some(around) = &self.around {
            let what = format!("{self} lies in the database {}: choose a folder outside", around.display());
            return Err(StoreError::NotSupported { source: what.into() });
        }
        match options.mode {
            PutMode::Update(known) => self.put_locked(location, payload, Some(known.e_tag)).await,
            PutMode::Create if is_manifest(location) => self.put_locked(location, payload, Some(None)).await,
            PutMode::Overwrite if is_manifest(location) => self.put_locked(location, payload, None).await,
            // `LocalFileSystem` panics where this is so and the path is no text.
            PutMode::Create if self.inner.path_to_filesystem(location)?.exists() => {
                Err(StoreError::AlreadyExists { path: location.to_string(), source: "it is there".into() })
            }
            mode => self.inner.put_opts(location, payload, PutOptions::from(mode)).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !is_manifest(location) || options.range.is_some() || options.head {
            return self.inner.get_opts(location, options).await;
        }
        let mut found = self.inner.get_opts(location, GetOptions::default()).await?;
        let (mut meta, range) = (found.meta.clone(), found.range.clone());
        let (attributes, extensions) = (std::mem::take(&mut found.attributes), std::mem::take(&mut found.extensions));
        let bytes = found.bytes().await?;
        meta.e_tag = Some(version_of(&bytes));
        options.check_preconditions(&meta)?;
        let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<<PutPayload as IntoIterator>::Item>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
