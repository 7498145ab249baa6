//! The folder of a node's snapshots: the complete one, and snapshots being written or received.
//!
//! Files next to the database, and no table in it: a follower that reads slowly keeps a file, and not old pages of the
//! database, which it would lose to the limit on them; and openraft takes bytes to seek in.
//!
//! The database decides, not the folder: a row names the id of the one snapshot that is the state's, and only the file with this id is offered. The row
//! is durable before the file gets its name. So no file is ever offered that another node or an older state has left there, whatever position it
//! claims, nor one that shows a state that a power cut has undone: the row went with that state. Such a file is removed when the node starts. A node that
//! ends between row and name loses a snapshot, and makes it again where its log begins later. So does a database of an earlier version, which has no row.
//!
//! A file with the id of another group is not removed: the folder is not the node's, and opening is refused.

use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nofault::{Batch, Durability, Table};
use openraft::{LogId, RaftTypeConfig, SnapshotMeta};
use tokio::fs::{self, File};
use tokio::io::{AsyncSeekExt, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, MutexGuard};

use crate::codec::{decode, encode};
use crate::error::{Error, Result};
use crate::identity::GroupId;
use crate::snapshot_file::SnapshotFile;
use crate::snapshot_format::{Part, SnapshotReader};
use crate::state::{GROUP, group_id};

/// The row with the id of the complete snapshot.
const SNAPSHOT: &str = "snapshot";
/// The name of the complete snapshot.
const COMPLETE: &str = "snapshot";
/// The start of the names of incomplete snapshots; a number follows.
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
    /// The table with the id of the complete snapshot.
    meta: Table,
    next_part: AtomicU64,
    /// The metadata of the complete snapshot. Locked while its file is replaced or opened.
    complete: Mutex<Option<Meta<C>>>,
}

impl<C: RaftTypeConfig> Snapshots<C> {
    /// Opens a locked folder, and removes the rests of a crash: parts, and a complete snapshot that is not the state's. Reads all of the
    /// complete snapshot.
    ///
    /// # Errors
    /// `Foreign` when the complete snapshot is of another group. Nothing was removed.
    pub(crate) async fn open(folder: PathBuf, lock: FolderLock, meta: Table) -> Result<Arc<Self>> {
        let path = folder.join(COMPLETE);
        let (own, own_group) = own_ids(&meta).await?;
        let mut complete = None;
        if let Some(mut file) = SnapshotFile::open(&path).await? {
            let found = whole::<C>(&mut file).await?;
            if let Some((_, Some(group))) = found
                && Some(group) != own_group
            {
                let own = own_group.map_or_else(|| "has no group yet".into(), |own| format!("is of group {own}"));
                let what = format!(
                    "{} is of group {group}, and {} {own}: the folder of the snapshots is another node's, or the database is not the one \
                     that belongs to it. Move the file away if it is not needed",
                    path.display(),
                    meta.name(),
                );
                return Err(Error::Foreign(what));
            }
            complete = found.map(|(meta, _)| meta).filter(|meta| Some(&meta.snapshot_id) == own.as_ref());
            if complete.is_none() {
                remove(&path).await?;
            }
        }
        let failed = || Error::file(format!("list {}", folder.display()));
        let mut files = fs::read_dir(&folder).await.map_err(failed())?;
        while let Some(file) = files.next_entry().await.map_err(failed())? {
            let name = file.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PART));
            if number.is_some_and(|number| number.parse::<u64>().is_ok()) {
                remove(&file.path()).await?;
            }
        }
        Ok(Arc::new(Self { folder, lock, meta, next_part: AtomicU64::new(0), complete: Mutex::new(complete) }))
    }

    /// Returns the lock that keeps the group from being opened again.
    pub(crate) fn lock(&self) -> FolderLock {
        self.lock.clone()
    }

    /// Removes the complete snapshot if it does not have all entries up to `gone`, which the log does not have either. openraft makes a new snapshot
    /// where there is none and the log begins later, but takes an older snapshot as it is.
    pub(crate) async fn remove_before(&self, gone: Option<&LogId<C::NodeId>>) -> Result<()> {
        let mut complete = self.complete.lock().await;
        if complete.as_ref().is_some_and(|present| present.last_log_id.as_ref() < gone) {
            remove(&self.folder.join(COMPLETE)).await?;
            *complete = None;
        }
        Ok(())
    }

    /// Creates the file of a snapshot to be written or received.
    pub(crate) async fn begin(&self) -> Result<SnapshotFile> {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        SnapshotFile::create(self.folder.join(format!("{PART}{number}"))).await
    }

    /// Makes a built snapshot the complete one, unless a newer one was received since.
    pub(crate) async fn complete_built(&self, file: &mut SnapshotFile, meta: &Meta<C>) -> Result<()> {
        let complete = self.complete.lock().await;
        if complete.as_ref().is_some_and(|present| present.last_log_id > meta.last_log_id) {
            return Ok(());
        }
        file.sync().await?;
        self.commit_with_id(Batch::new(), meta).await?;
        self.replace(complete, file, meta).await
    }

    /// Commits changes together with the row that makes this snapshot the state's, durably.
    async fn commit_with_id(&self, mut changes: Batch, meta: &Meta<C>) -> Result<()> {
        changes.put(&self.meta, SNAPSHOT, encode(&meta.snapshot_id)?);
        let db = self.meta.db();
        db.write(changes, Durability::Deferred).await?;
        Ok(db.await_durable().await?)
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

    /// Makes a received snapshot, which was kept, the state's, by one durable commit with `changes`, then the complete one. `committed` is called
    /// between the two. A snapshot that is being built becomes complete before, or never.
    pub(crate) async fn complete_received(
        &self,
        file: &mut SnapshotFile,
        meta: &Meta<C>,
        changes: Batch,
        committed: impl FnOnce(),
    ) -> Result<()> {
        let complete = self.complete.lock().await;
        self.commit_with_id(changes, meta).await?;
        committed();
        self.replace(complete, file, meta).await
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

async fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).await.map_err(Error::file(format!("remove {}", path.display())))
}

/// Returns the id of the snapshot that is the state's, and of the state's group.
async fn own_ids(meta: &Table) -> Result<(Option<String>, Option<GroupId>)> {
    let id = meta.get(SNAPSHOT).await?;
    let id = id.map(|id| decode(&id, format_args!("{SNAPSHOT} of {}", meta.name()))).transpose()?;
    Ok((id, group_id(meta.name(), meta.get(GROUP).await?.as_deref())?))
}

/// Returns the metadata of a snapshot, and the id of its group if it has one; `None` for a file that is not whole.
///
/// # Errors
/// `File` when it could not be read.
async fn whole<C: RaftTypeConfig>(file: &mut SnapshotFile) -> Result<Option<(Meta<C>, Option<GroupId>)>> {
    let read = async {
        let (meta, mut reader) = read_meta::<C>(file).await?;
        let mut group = None;
        while let Some(part) = reader.next().await? {
            if let Part::Group(id) = part {
                group = Some(id);
            }
        }
        Ok((meta, group))
    };
    match read.await {
        Ok(found) => Ok(Some(found)),
        Err(Error::Damaged(_)) => Ok(None),
        // It ended early: the file is shorter than its frames.
        Err(Error::File { cause, .. }) if cause.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
