//! The bytes of one snapshot: a file that openraft reads, or fills, as it likes.

use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::fs::{self, File};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use crate::error::{Error, Result};

/// A handle of a snapshot's bytes: openraft's `SnapshotData`. It stays readable when a newer snapshot takes the place of this one. The
/// file of one that is being received is removed with its handle, unless it was installed.
#[derive(Debug)]
pub struct SnapshotFile {
    file: File,
    /// The file to remove when the handle is dropped: it is not complete.
    part: Option<PathBuf>,
}

impl SnapshotFile {
    /// Creates an empty file removed with the handle.
    pub(crate) async fn create(path: PathBuf) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).await;
        let file = file.map_err(Error::file(format!("create {}", path.display())))?;
        Ok(Self { file, part: Some(path) })
    }

    /// Opens the file of a complete snapshot; `None` where there is none.
    pub(crate) async fn open(path: &Path) -> Result<Option<Self>> {
        match File::open(path).await {
            Ok(file) => Ok(Some(Self { file, part: None })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file(format!("open {}", path.display()))(error)),
        }
    }

    /// The file removed with the handle, if it is one.
    pub(crate) fn part(&self) -> Option<&Path> {
        self.part.as_deref()
    }

    /// Makes the bytes durable.
    pub(crate) async fn sync(&mut self) -> Result<()> {
        let Some(part) = &self.part else { return Ok(()) };
        self.file.sync_all().await.map_err(Error::file(format!("sync {}", part.display())))
    }

    /// Gives a file whose bytes are durable its final name.
    pub(crate) async fn complete(&mut self, path: &Path) -> Result<()> {
        let Some(part) = &self.part else { return Ok(()) };
        let action = format!("rename {} to {}", part.display(), path.display());
        fs::rename(part, path).await.map_err(Error::file(action))?;
        self.part = None;
        Ok(())
    }

    /// Number of bytes of the file.
    pub(crate) async fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata().await?.len())
    }
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // A part that cannot be removed now is removed when the state machine is opened.
            let _ = std::fs::remove_file(part);
        }
    }
}

impl AsyncRead for SnapshotFile {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_read(context, into)
    }
}

impl AsyncWrite for SnapshotFile {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.file).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_shutdown(context)
    }
}

impl AsyncSeek for SnapshotFile {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.file).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.file).poll_complete(context)
    }
}
