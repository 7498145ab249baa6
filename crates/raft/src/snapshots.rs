//! The folder of a node's snapshots: one that is complete, and those that are being written or received.
//!
//! Files beside the database, and no table in it: a follower that reads slowly keeps a file, and not old pages of the
//! database, which it would lose to the limit on them; and openraft takes bytes to seek in.
//!
//! The database decides, not the folder. A complete snapshot has been synced before it gets its name. The state that it shows
//! may be lost in a power cut all the same, since applying is deferred: such a snapshot is removed when the node starts. So is
//! a damaged snapshot, and a snapshot with a gap between it and the log: a node that ends while it installs a newer snapshot may have the new state, a log that was
//! purged up to it, and the older file. openraft makes a new snapshot where there is none and the log begins later, but takes an older snapshot as it is.

use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openraft::{LogId, RaftTypeConfig, SnapshotMeta};
use tokio::fs::{self, File};
use tokio::io::{AsyncSeekExt, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, MutexGuard};

use crate::codec::decode;
use crate::error::{Error, Result};
use crate::snapshot_file::SnapshotFile;
use crate::snapshot_format::{Part, SnapshotReader};

/// The name of the complete snapshot.
const COMPLETE: &str = "snapshot";
/// What the names of incomplete ones begin with.
const PART: &str = "part-";

/// The metadata of a snapshot.
pub(crate) type Meta<C> = SnapshotMeta<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;

/// A lock on the folder of a group, until the last clone is dropped.
pub(crate) type FolderLock = Arc<std::fs::File>;

/// Locks a folder, also against other openings in this process. Makes it where there is none.
pub(crate) async fn lock(folder: &Path) -> Result<FolderLock> {
    fs::create_dir_all(folder).await.map_err(Error::file(format!("create {}", folder.display())))?;
    let action = || format!("lock {}", folder.display());
    let file = File::open(folder).await.map_err(Error::file(action()))?.into_std().await;
    match file.try_lock() {
        Ok(()) => Ok(Arc::new(file)),
        Err(TryLockError::WouldBlock) => {
            Err(Error::Busy(format!("{} is in use: its group is open, or has just been shut down", folder.display())))
        }
        Err(TryLockError::Error(error)) => Err(Error::file(action())(error)),
    }
}

/// The snapshots of a node.
#[derive(Debug)]
pub(crate) struct Snapshots<C: RaftTypeConfig> {
    folder: PathBuf,
    /// The folder itself, locked as long as a log store, a state machine or a builder of the group is there.
    lock: FolderLock,
    next_part: AtomicU64,
    /// The metadata of the complete snapshot. Locked while its file is replaced or opened.
    complete: Mutex<Option<Meta<C>>>,
}

impl<C: RaftTypeConfig> Snapshots<C> {
    /// Opens a locked folder, and removes the parts that a crash has left in it. Reads all of the complete snapshot.
    pub(crate) async fn open(
        folder: PathBuf,
        lock: FolderLock,
        last_applied: Option<&LogId<C::NodeId>>,
    ) -> Result<Arc<Self>> {
        let failed = || Error::file(format!("list {}", folder.display()));
        let mut files = fs::read_dir(&folder).await.map_err(failed())?;
        while let Some(file) = files.next_entry().await.map_err(failed())? {
            if file.file_name().to_string_lossy().starts_with(PART) {
                let path = file.path();
                fs::remove_file(&path).await.map_err(Error::file(format!("remove {}", path.display())))?;
            }
        }
        let snapshots = Self { folder, lock, next_part: AtomicU64::new(0), complete: Mutex::new(None) };
        if let Some(mut file) = SnapshotFile::open(&snapshots.folder.join(COMPLETE)).await? {
            match usable::<C>(&mut file, last_applied).await? {
                Some(meta) => *snapshots.complete.lock().await = Some(meta),
                None => snapshots.remove_complete().await?,
            }
        }
        Ok(Arc::new(snapshots))
    }

    /// Returns the lock that keeps the group from being opened again.
    pub(crate) fn lock(&self) -> FolderLock {
        self.lock.clone()
    }

    /// Removes the complete snapshot if it does not have all entries up to `gone`, which the log does not have either.
    pub(crate) async fn remove_before(&self, gone: Option<&LogId<C::NodeId>>) -> Result<()> {
        let mut complete = self.complete.lock().await;
        if complete.as_ref().is_some_and(|present| present.last_log_id.as_ref() < gone) {
            self.remove_complete().await?;
            *complete = None;
        }
        Ok(())
    }

    async fn remove_complete(&self) -> Result<()> {
        let path = self.folder.join(COMPLETE);
        fs::remove_file(&path).await.map_err(Error::file(format!("remove {}", path.display())))
    }

    /// Creates the file of a snapshot that is to be written or received.
    pub(crate) async fn begin(&self) -> Result<SnapshotFile> {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        SnapshotFile::create(self.folder.join(format!("{PART}{number}"))).await
    }

    /// Makes a snapshot that was built the complete one, unless a newer one was received meanwhile.
    pub(crate) async fn complete_built(&self, file: &mut SnapshotFile, meta: &Meta<C>) -> Result<()> {
        let complete = self.complete.lock().await;
        if complete.as_ref().is_some_and(|present| present.last_log_id > meta.last_log_id) {
            return Ok(());
        }
        file.sync().await?;
        self.replace(complete, file, meta).await
    }

    /// Makes a received snapshot durable in this folder. Its bytes have their room on the disk then: only the name is left.
    pub(crate) async fn keep_received(&self, mut file: SnapshotFile) -> Result<SnapshotFile> {
        if file.part().is_none_or(|path| path.parent() != Some(self.folder.as_path())) {
            // It belongs to another node of this process: it stays there.
            let mut copy = self.begin().await?;
            file.rewind().await.map_err(Error::file("seek in a snapshot"))?;
            tokio::io::copy(&mut file, &mut copy).await.map_err(Error::file("copy a snapshot"))?;
            copy.flush().await.map_err(Error::file("write a snapshot"))?;
            file = copy;
        }
        file.sync().await?;
        Ok(file)
    }

    /// Makes a snapshot that was kept, and installed, the complete one.
    pub(crate) async fn complete_received(&self, file: &mut SnapshotFile, meta: &Meta<C>) -> Result<()> {
        self.replace(self.complete.lock().await, file, meta).await
    }

    async fn replace(
        &self,
        mut complete: MutexGuard<'_, Option<Meta<C>>>,
        file: &mut SnapshotFile,
        meta: &Meta<C>,
    ) -> Result<()> {
        file.complete(&self.folder.join(COMPLETE)).await?;
        *complete = Some(meta.clone());
        let failed = || Error::file(format!("sync {}", self.folder.display()));
        File::open(&self.folder).await.map_err(failed())?.sync_all().await.map_err(failed())
    }

    /// Opens the complete snapshot.
    pub(crate) async fn complete(&self) -> Result<Option<(Meta<C>, SnapshotFile)>> {
        let complete = self.complete.lock().await;
        let Some(meta) = complete.clone() else { return Ok(None) };
        Ok(SnapshotFile::open(&self.folder.join(COMPLETE)).await?.map(|file| (meta, file)))
    }
}

/// Begins to read a snapshot from its beginning, and returns its metadata.
pub(crate) async fn read_meta<C: RaftTypeConfig>(
    file: &mut SnapshotFile,
) -> Result<(Meta<C>, SnapshotReader<BufReader<&mut SnapshotFile>>)> {
    file.rewind().await.map_err(Error::file("seek in a snapshot"))?;
    let len = file.len().await.map_err(Error::file("read the length of a snapshot"))?;
    let mut reader = SnapshotReader::begin(BufReader::with_capacity(256 << 10, file), len).await?;
    match reader.next().await? {
        Some(Part::Meta(meta)) => Ok((decode(&meta, "the metadata of a snapshot")?, reader)),
        _ => Err(Error::Damaged("a snapshot has no metadata".into())),
    }
}

/// Returns the metadata of a snapshot if it is whole and shows nothing that the database does not have.
///
/// # Errors
/// `File` when it could not be read at all.
async fn usable<C: RaftTypeConfig>(
    file: &mut SnapshotFile,
    last_applied: Option<&LogId<C::NodeId>>,
) -> Result<Option<Meta<C>>> {
    let read = async {
        let (meta, mut reader) = read_meta::<C>(file).await?;
        while reader.next().await?.is_some() {}
        Ok(meta)
    };
    match read.await {
        Ok(meta) => Ok(Some(meta).filter(|meta: &Meta<C>| meta.last_log_id.as_ref() <= last_applied)),
        Err(Error::Damaged(_)) => Ok(None),
        // It ended early: the file is shorter than its frames.
        Err(Error::File { cause, .. }) if cause.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
