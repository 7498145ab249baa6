//! The format of a snapshot: frames, each with its length and checksum, so that a file that was cut, or in which a bit is
//! wrong, is recognised before anything of it counts.
//!
//! | frame | content |
//! |---|---|
//! | `Meta` | the metadata of openraft, encoded; the first frame |
//! | `Group` | the id of the group, 16 bytes; the second frame, absent while the group has no id, and in files of earlier versions |
//! | `Table` | the name of the table whose rows follow |
//! | `Rows` | rows in the order of their keys: length of the key and of the value (`u32`), key, value |
//! | `End` | the number of rows in all tables (`u64`); the last frame |
//!
//! Before each frame: its length in bytes (`u32`), the CRC-64/NVME of kind and content (`u64`), and its kind (`u8`); all numbers are
//! little-endian. The file begins with [`MAGIC`].

use crc_fast::{CrcAlgorithm, Digest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::{Error, Result};
use crate::identity::GroupId;

/// The first bytes of a snapshot, and the version of its format.
const MAGIC: &[u8; 16] = b"nofault-raft 1\r\n";
/// Length, checksum and kind before the content of a frame.
const HEADER_BYTES: usize = 4 + 8 + 1;
/// Bytes of rows after which a frame is written.
const ROWS_BYTES: usize = 64 << 10;

const META: u8 = 1;
const TABLE: u8 = 2;
const ROWS: u8 = 3;
const END: u8 = 4;
const GROUP: u8 = 5;

fn checksum(kind: u8, content: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&[kind]);
    digest.update(content);
    digest.finalize()
}

fn write_failed(error: std::io::Error) -> Error {
    Error::file("write a snapshot")(error)
}

/// Writes a snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotWriter<W> {
    to: W,
    rows: Vec<u8>,
    count: u64,
}

impl<W: AsyncWrite + Unpin> SnapshotWriter<W> {
    /// Begins a snapshot with its metadata.
    pub(crate) async fn begin(mut to: W, meta: &[u8]) -> Result<Self> {
        to.write_all(MAGIC).await.map_err(write_failed)?;
        let mut writer = Self { to, rows: Vec::new(), count: 0 };
        writer.frame(META, meta).await?;
        Ok(writer)
    }

    /// Says which group the snapshot is of. Follows the metadata.
    pub(crate) async fn group(&mut self, id: GroupId) -> Result<()> {
        self.frame(GROUP, &id.to_bytes()).await
    }

    /// Begins a table.
    pub(crate) async fn table(&mut self, name: &str) -> Result<()> {
        self.flush_rows().await?;
        self.frame(TABLE, name.as_bytes()).await
    }

    /// Writes a row of the table begun last. A snapshot keeps some 64 KiB of rows in memory, or one row longer.
    pub(crate) async fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        for part in [key, value] {
            let len = u32::try_from(part.len());
            let len = len.map_err(|_| Error::InvalidCall(format!("a row of {} bytes is too long", part.len())))?;
            self.rows.extend(len.to_le_bytes());
        }
        self.rows.extend(key);
        self.rows.extend(value);
        self.count += 1;
        if self.rows.len() >= ROWS_BYTES { self.flush_rows().await } else { Ok(()) }
    }

    /// Ends the snapshot.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.flush_rows().await?;
        let count = self.count.to_le_bytes();
        self.frame(END, &count).await?;
        self.to.flush().await.map_err(write_failed)
    }

    async fn flush_rows(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut rows = std::mem::take(&mut self.rows);
        self.frame(ROWS, &rows).await?;
        rows.clear();
        self.rows = rows;
        Ok(())
    }

    async fn frame(&mut self, kind: u8, content: &[u8]) -> Result<()> {
        let len = u32::try_from(content.len());
        let len = len.map_err(|_| Error::InvalidCall(format!("{} bytes are too many for a frame", content.len())))?;
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4..12].copy_from_slice(&checksum(kind, content).to_le_bytes());
        header[12] = kind;
        self.to.write_all(&header).await.map_err(write_failed)?;
        self.to.write_all(content).await.map_err(write_failed)
    }
}

/// A part of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Metadata, encoded.
    Meta(Vec<u8>),
    /// The id of the group.
    Group(GroupId),
    /// The beginning of a table, by its name.
    Table(String),
    /// Rows of that table.
    Rows(Vec<(Vec<u8>, Vec<u8>)>),
}

/// Reads a snapshot and checks all of it.
#[derive(Debug)]
pub(crate) struct SnapshotReader<R> {
    from: R,
    /// Bytes that are left: no frame is longer, and no memory is taken for more.
    left: u64,
    rows: u64,
    has_begun: bool,
    has_group: bool,
    has_table: bool,
}

impl<R: AsyncRead + Unpin> SnapshotReader<R> {
    /// Begins to read a snapshot of `len` bytes.
    pub(crate) async fn begin(mut from: R, len: u64) -> Result<Self> {
        let mut magic = [0; MAGIC.len()];
        from.read_exact(&mut magic).await.map_err(Error::file("read the first bytes of a snapshot"))?;
        if magic != *MAGIC {
            return Err(damaged("it does not begin as a snapshot of this version does"));
        }
        let left = len.saturating_sub(MAGIC.len() as u64);
        Ok(Self { from, left, rows: 0, has_begun: false, has_group: false, has_table: false })
    }

    /// Returns the next part; `None` behind the last one, when the snapshot is known to be complete.
    pub(crate) async fn next(&mut self) -> Result<Option<Part>> {
        let (kind, content) = self.frame().await?;
        if std::mem::replace(&mut self.has_begun, true) == (kind == META) {
            return Err(damaged("its metadata are not at its beginning"));
        }
        match kind {
            META => Ok(Some(Part::Meta(content))),
            GROUP if !self.has_group && !self.has_table => {
                self.has_group = true;
                let id = content.try_into().map_err(|_| damaged("the id of its group does not have 16 bytes"))?;
                Ok(Some(Part::Group(GroupId::from_bytes(id))))
            }
            TABLE => {
                self.has_table = true;
                let name = String::from_utf8(content).map_err(|_| damaged("the name of a table is not UTF-8"))?;
                Ok(Some(Part::Table(name)))
            }
            ROWS if self.has_table => {
                let rows = rows_of(&content).ok_or_else(|| damaged("a row is longer than its frame"))?;
                self.rows += rows.len() as u64;
                Ok(Some(Part::Rows(rows)))
            }
            END if content == self.rows.to_le_bytes() && self.left == 0 => Ok(None),
            END => Err(damaged("it does not have as many rows, or bytes, as its end says")),
            _ => Err(damaged("it has a frame that this version does not know, or in the wrong place")),
        }
    }

    async fn frame(&mut self) -> Result<(u8, Vec<u8>)> {
        let cut = || damaged("it ends before its last frame");
        self.left = self.left.checked_sub(HEADER_BYTES as u64).ok_or_else(cut)?;
        let mut header = [0; HEADER_BYTES];
        self.from.read_exact(&mut header).await.map_err(Error::file("read a snapshot"))?;
        let [l0, l1, l2, l3, sum @ .., kind] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        self.left = self.left.checked_sub(u64::from(len)).ok_or_else(cut)?;
        let mut content = vec![0; len as usize];
        self.from.read_exact(&mut content).await.map_err(Error::file("read a snapshot"))?;
        if u64::from_le_bytes(sum) != checksum(kind, &content) {
            return Err(damaged("the checksum of a frame is wrong"));
        }
        Ok((kind, content))
    }
}

fn damaged(why: &str) -> Error {
    Error::Damaged(format!("a snapshot is damaged: {why}"))
}

fn rows_of(mut content: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut rows = Vec::new();
    while !content.is_empty() {
        let (key_len, rest) = content.split_first_chunk()?;
        let (value_len, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
        rows.push((key.to_vec(), value.to_vec()));
        content = rest;
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = SnapshotWriter::begin(&mut bytes, b"meta").await.unwrap();
        writer.group(GroupId::from_bytes([7; 16])).await.unwrap();
        writer.table("empty").await.unwrap();
        writer.table("t").await.unwrap();
        for row in 0..40u8 {
            writer.row(&[row], &vec![row; usize::from(row) * 200]).await.unwrap();
        }
        writer.end().await.unwrap();
        bytes
    }

    async fn read(bytes: &[u8]) -> Result<Vec<Part>> {
        let mut reader = SnapshotReader::begin(bytes, bytes.len() as u64).await?;
        let mut parts = Vec::new();
        while let Some(part) = reader.next().await? {
            parts.push(part);
        }
        Ok(parts)
    }

    #[tokio::test]
    async fn a_snapshot_is_read_as_it_was_written() {
        let parts = read(&written().await).await.unwrap();
        assert_eq!(parts[0], Part::Meta(b"meta".to_vec()));
        let tables = [Part::Table("empty".into()), Part::Table("t".into())];
        assert_eq!((&parts[1], &parts[2..4]), (&Part::Group(GroupId::from_bytes([7; 16])), &tables[..]));
        let rows = parts[4..].iter().flat_map(|part| match part {
            Part::Rows(rows) => rows.clone(),
            other => panic!("{other:?}"),
        });
        let expected = (0..40u8).map(|row| (vec![row], vec![row; usize::from(row) * 200]));
        assert!(rows.eq(expected));
        assert!(parts.len() > 5, "rows in more than one frame");
    }

    #[tokio::test]
    async fn any_cut_any_longer_file_and_any_flipped_bit_are_noticed() {
        let whole = written().await;
        for len in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
            assert!(read(&whole[..len]).await.is_err(), "cut to {len} bytes");
        }
        assert!(read(&[&whole[..], &[0]].concat()).await.is_err());
        for at in (0..whole.len()).step_by(11).chain(0..80) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(read(&flipped).await.is_err(), "a bit of byte {at}");
        }
    }
}
