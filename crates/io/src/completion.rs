//! One operation on its way to a disk ([`Op`]), and its result ([`Completion`]).
//!
//! The operation owns its memory until its completion is taken: dropping the waiting side never frees bytes that the
//! kernel may still write.

use std::fmt;
use std::sync::Arc;

use crate::aligned::{IoBuf, StableBytes};
use crate::error::Result;

/// An operation: its kind, its position, and the number by which its owner recognises the completion.
#[derive(Debug)]
pub struct Op {
    /// A number that the caller chooses, and that the completion returns unchanged.
    pub token: u64,
    /// Position in the disk, in bytes. Ignored by `Sync`.
    pub offset_bytes: u64,
    /// The kind of operation, with its memory.
    pub kind: OpKind,
}

impl Op {
    /// Creates an operation at `offset_bytes`; `token` is returned with its completion.
    pub fn new(token: u64, offset_bytes: u64, kind: OpKind) -> Self {
        Self { token, offset_bytes, kind }
    }
}

/// The kind of an operation, with its memory.
#[derive(Debug)]
pub enum OpKind {
    /// Fill the buffer from the disk.
    Read(IoBuf),
    /// Put bytes on the disk; `durable` makes this write survive a power cut once it has completed (RWF_DSYNC).
    Write {
        /// The bytes to be written, in order.
        data: WriteData,
        /// Whether the write is durable when it completes.
        durable: bool,
    },
    /// Make every write that completed before this was submitted durable (fdatasync).
    Sync,
    /// Reserve `len_bytes` from the offset on, growing the disk if need be (fallocate). The new bytes read as zero.
    Allocate {
        /// Number of bytes to reserve.
        len_bytes: u64,
    },
}

impl OpKind {
    /// Creates a write of one owned buffer.
    pub fn write(buffer: IoBuf, durable: bool) -> Self {
        Self::Write { data: WriteData::Owned(buffer), durable }
    }

    /// Returns the number of bytes that the operation moves; zero for `Sync` and `Allocate`.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Read(buffer) => buffer.len(),
            Self::Write { data, .. } => data.len_bytes(),
            Self::Sync | Self::Allocate { .. } => 0,
        }
    }
}

/// The bytes of a write: one buffer or several.
pub enum WriteData {
    /// A buffer that the operation owns and gives back.
    Owned(IoBuf),
    /// Bytes that others may read at the same time: published page frames, gathered into one contiguous write.
    Gather(Vec<Arc<dyn StableBytes>>),
}

impl WriteData {
    /// Returns the total length of all pieces, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    /// Returns the bytes of the write, piece by piece, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (owned, gathered) = match self {
            Self::Owned(buffer) => (Some(&**buffer), None),
            Self::Gather(parts) => (None, Some(parts.iter().map(|part| part.bytes()))),
        };
        owned.into_iter().chain(gathered.into_iter().flatten())
    }
}

impl fmt::Debug for WriteData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owned(buffer) => buffer.fmt(f),
            Self::Gather(parts) => write!(f, "Gather({} parts, {} bytes)", parts.len(), self.len_bytes()),
        }
    }
}

/// A finished operation with its buffer and its result.
#[derive(Debug)]
pub struct Completion {
    /// The operation as it was pushed. After a failed read the buffer's content is unspecified.
    pub op: Op,
    /// Bytes moved, which on success is always the whole length: drivers repeat short transfers, and a read past
    /// the end of the disk is an error of kind `Short`, never a small number.
    pub result: Result<usize>,
}

impl Completion {
    /// Returns the buffer of a read or of an owned write.
    pub fn into_buffer(self) -> Option<IoBuf> {
        match self.op.kind {
            OpKind::Read(buffer) | OpKind::Write { data: WriteData::Owned(buffer), .. } => Some(buffer),
            _ => None,
        }
    }
}
