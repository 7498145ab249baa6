//! One operation that a queue has accepted and not completed, and the part of it that a power cut may leave in the file.

use super::bytes::FILE_BYTES_MAX;
use super::file::{PendingChange, WriteSeq};
use super::names::FileId;
use super::options::Effect;
use nofault_io::completion::{Op, OpKind, WriteData};

pub(super) type QueueId = u64;

/// An operation accepted and not completed.
pub(super) struct Operation {
    pub(super) op: Op,
    pub(super) queue: QueueId,
    pub(super) file: FileId,
    /// The name under which the file was opened.
    pub(super) name: String,
    /// Whether `submit` was called for it. Before that it waits, though a power cut may find it begun.
    pub(super) submitted: bool,
    /// Bytes moved so far, when a short transfer must be continued by the driver.
    pub(super) moved: usize,
    /// For a sync, the last write that it covers.
    pub(super) covered: WriteSeq,
    pub(super) effect: Option<Effect>,
}

impl Operation {
    /// Returns the change that the operation may leave in the file when the power is cut now.
    pub(super) fn begun(&self) -> Option<PendingChange> {
        let offset = self.op.offset_bytes;
        match &self.op.kind {
            OpKind::Write { data, .. } => Some(PendingChange::Write { offset, data: copy_of(data) }),
            OpKind::Allocate { len_bytes } => Some(PendingChange::Allocate { range: offset..offset + len_bytes }),
            OpKind::Read(_) | OpKind::Sync => None,
        }
        .filter(|_| offset.saturating_add(self.op.kind.len_bytes() as u64) <= FILE_BYTES_MAX)
    }
}

/// Returns all bytes of a write, joined.
pub(super) fn copy_of(data: &WriteData) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len_bytes());
    data.parts().for_each(|part| bytes.extend_from_slice(part));
    bytes
}
