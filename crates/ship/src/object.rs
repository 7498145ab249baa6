//! The bytes of an object: commits with their changes, compressed in blocks, each with a checksum. Log objects and the parts of a base
//! have the same form.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `NFship2\n`, or `NFship1\n` without the label, as earlier versions wrote objects |
//! | … | the label: length (4), checksum (8), bytes (`label`) |
//! | … | blocks: length (4), length compressed (4), checksum (8), the bytes compressed with LZ4 |
//! | 16 | the end: four zero bytes, the number of blocks (4), checksum (8) |
//!
//! Numbers are little-endian. The checksum is CRC-64/NVME over the number of the block, its first eight bytes and its content. The blocks,
//! decompressed and put together, are commits: number, time, number of changes, changes; numbers in LEB128. A
//! change is a kind (1 byte) and numbers and strings, each string with its length before it (`Kind`).
//!
//! Kept true by: nothing is decoded before its checksum was compared, and no length is believed beyond the bytes that are there. An object
//! that was cut short has no end.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nofault::TableId;
use nofault::db::{Change, TableTypes};
use nofault::settings::Compression;

use crate::error::{Error, ErrorKind, Result};

const MAGIC: &[u8; 8] = b"NFship1\n";
const MAGIC_WITH_LABEL: &[u8; 8] = b"NFship2\n";
/// Bytes before the content of a label.
const LABEL_HEADER_BYTES: usize = MAGIC_WITH_LABEL.len() + 12;
/// Longest label. It is a few hundred bytes.
const LABEL_BYTES_MAX: usize = 16 << 10;
/// Bytes from the beginning of an object that have its label.
pub(crate) const HEAD_BYTES: u64 = (LABEL_HEADER_BYTES + LABEL_BYTES_MAX) as u64;
/// Bytes of a block before compression.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes before the content of a block.
const BLOCK_HEADER_BYTES: usize = 16;

const PUT: u8 = 1;
const PUT_WITH_EXPIRY: u8 = 2;
const DELETE: u8 = 3;
const CREATE_TABLE: u8 = 4;
const RENAME_TABLE: u8 = 5;
const DROP_TABLE: u8 = 6;
const SET_COMPRESSION: u8 = 7;
const SET_TYPES: u8 = 8;
/// A range of keys was removed: up to a key, and to the end of the table. In increments only.
const DELETE_RANGE: u8 = 9;
const DELETE_FROM: u8 = 10;

/// A commit as an object has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShippedCommit {
    pub(crate) commit: u64,
    /// Milliseconds since 1970; 0 when it is not known.
    pub(crate) time_ms: u64,
    pub(crate) changes: Vec<Change>,
}

/// Builds an object.
#[derive(Debug)]
pub(crate) struct ObjectWriter {
    /// Bytes that are not in a block yet.
    raw: Vec<u8>,
    out: Vec<u8>,
    blocks: u32,
    raw_bytes: u64,
}

impl ObjectWriter {
    pub(crate) fn new() -> Self {
        Self { raw: Vec::new(), out: Vec::new(), blocks: 0, raw_bytes: 0 }
    }

    /// Returns about the length that the object has by now.
    pub(crate) fn len_bytes(&self) -> usize {
        self.out.len() + self.raw.len()
    }

    /// Returns the length of all commits by now, before compression: the memory that reading the object takes.
    pub(crate) fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Adds a commit.
    ///
    /// # Errors
    /// `Unsupported` for a change that this version does not know.
    pub(crate) fn push(&mut self, commit: u64, time_ms: u64, changes: &[Change]) -> Result<()> {
        let start = self.raw.len();
        [commit, time_ms, changes.len() as u64].into_iter().for_each(|number| put_number(&mut self.raw, number));
        for change in changes {
            if let Err(error) = put_change(&mut self.raw, change) {
                self.raw.truncate(start);
                return Err(error);
            }
        }
        self.raw_bytes += (self.raw.len() - start) as u64;
        self.end_blocks(BLOCK_BYTES);
        Ok(())
    }

    /// Adds commits as another object has them.
    pub(crate) fn push_raw(&mut self, commits: &[u8]) {
        self.raw.extend_from_slice(commits);
        self.raw_bytes += commits.len() as u64;
        self.end_blocks(BLOCK_BYTES);
    }

    /// Returns the object, without a label.
    pub(crate) fn finish(self) -> Vec<u8> {
        [MAGIC.to_vec(), self.end()].concat()
    }

    /// Returns the object, with a label.
    pub(crate) fn finish_with(self, label: &[u8]) -> Vec<u8> {
        let (len, sum) = ((label.len() as u32).to_le_bytes(), checksum(label).to_le_bytes());
        [&MAGIC_WITH_LABEL[..], &len, &sum, label, &self.end()].concat()
    }

    fn end(mut self) -> Vec<u8> {
        self.end_blocks(1);
        let blocks = self.blocks;
        self.put_block(0, blocks, &[]);
        self.out
    }

    /// Compresses the collected bytes, in blocks, for as long as there are `least` bytes.
    fn end_blocks(&mut self, least: usize) {
        // Whole blocks first, and the rest is moved once: a commit that ends no block moves no bytes.
        let mut done = 0;
        while self.raw.len() - done >= least.max(1) {
            let end = self.raw.len().min(done + BLOCK_BYTES);
            let compressed = lz4_flex::block::compress(&self.raw[done..end]);
            self.put_block((end - done) as u32, compressed.len() as u32, &compressed);
            self.blocks += 1;
            done = end;
        }
        self.raw.drain(..done);
    }

    fn put_block(&mut self, len: u32, compressed_len: u32, content: &[u8]) {
        let sum = checksum_of_block(self.blocks, len, compressed_len, content);
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out.extend_from_slice(&compressed_len.to_le_bytes());
        self.out.extend_from_slice(&sum.to_le_bytes());
        self.out.extend_from_slice(content);
    }
}

fn checksum_of_block(block: u32, len: u32, compressed_len: u32, content: &[u8]) -> u64 {
    let head = [block.to_le_bytes(), len.to_le_bytes(), compressed_len.to_le_bytes()].concat();
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&head);
    digest.update(content);
    digest.finalize()
}

/// The checksum of a whole object, as the manifest has it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// Splits an object, or the head of one, behind its label; `None` for one without a label.
///
/// # Errors
/// `Corrupt` when it does not begin as an object does, or the label is damaged.
pub(crate) fn split_label(object: &[u8]) -> Result<(Option<&[u8]>, &[u8])> {
    if let Some(rest) = object.strip_prefix(MAGIC) {
        return Ok((None, rest));
    }
    let rest = object.strip_prefix(MAGIC_WITH_LABEL);
    let mut rest = rest.ok_or_else(|| Error::corrupt("it does not begin as an object does"))?;
    let (len, sum) = (take_u32(&mut rest)? as usize, take_u64(&mut rest)?);
    let (label, rest) = rest.split_at_checked(len).ok_or_else(|| Error::corrupt("it was cut short"))?;
    if len > LABEL_BYTES_MAX || checksum(label) != sum {
        return Err(Error::corrupt("the checksum of its label is wrong"));
    }
    Ok((Some(label), rest))
}

/// Returns the commits of an object, still encoded.
///
/// # Errors
/// `Corrupt` when it is not as it was written.
pub(crate) fn raw_commits(object: &[u8]) -> Result<Vec<u8>> {
    let (_, mut rest) = split_label(object)?;
    let (mut raw, mut blocks) = (Vec::new(), 0);
    loop {
        let short = || Error::corrupt("it was cut short");
        let (head, after) = rest.split_at_checked(BLOCK_HEADER_BYTES).ok_or_else(short)?;
        let mut from = head;
        let (len, compressed_len, sum) = (take_u32(&mut from)?, take_u32(&mut from)?, take_u64(&mut from)?);
        let content_len = if len == 0 { 0 } else { compressed_len as usize };
        let (content, after) = after.split_at_checked(content_len).ok_or_else(short)?;
        if sum != checksum_of_block(blocks, len, compressed_len, content) {
            return Err(Error::corrupt(format!("the checksum of block {blocks} is wrong")));
        }
        if len == 0 {
            return match compressed_len == blocks && after.is_empty() {
                true => Ok(raw),
                false => Err(Error::corrupt("it does not end as an object does")),
            };
        }
        if len as usize > BLOCK_BYTES {
            return Err(Error::corrupt(format!("block {blocks} is too long")));
        }
        let block = lz4_flex::block::decompress(content, len as usize);
        let block = block.map_err(|error| Error::corrupt(format!("block {blocks}: {error}")))?;
        raw.extend_from_slice(&block);
        blocks += 1;
        rest = after;
    }
}

/// Takes the next commit off the front of the commits of an object; `None` at their end.
///
/// # Errors
/// `Corrupt` when the bytes are no commit.
pub(crate) fn take_commit(from: &mut &[u8]) -> Result<Option<ShippedCommit>> {
    if from.is_empty() {
        return Ok(None);
    }
    let (commit, time_ms, count) = (take_number(from)?, take_number(from)?, take_number(from)?);
    let mut changes = Vec::new();
    for _ in 0..count {
        changes.push(take_change(from)?);
    }
    Ok(Some(ShippedCommit { commit, time_ms, changes }))
}

fn put_change(into: &mut Vec<u8>, change: &Change) -> Result<()> {
    let mut put = |kind: u8, table: TableId, strings: &[&[u8]]| {
        into.push(kind);
        put_number(into, table.0);
        for string in strings {
            put_number(into, string.len() as u64);
            into.extend_from_slice(string);
        }
    };
    match change {
        Change::Put { table, key, value, expiry: None } => put(PUT, *table, &[key, value]),
        Change::Put { table, key, value, expiry: Some(expiry) } => {
            put(PUT_WITH_EXPIRY, *table, &[key, value]);
            put_number(into, time_to_ms(*expiry));
        }
        Change::Delete { table, key } => put(DELETE, *table, &[key]),
        Change::DeleteRange { table, start, end: Some(end) } => put(DELETE_RANGE, *table, &[start, end]),
        Change::DeleteRange { table, start, end: None } => put(DELETE_FROM, *table, &[start]),
        Change::CreateTable { table, name } => put(CREATE_TABLE, *table, &[name.as_bytes()]),
        Change::RenameTable { table, from, to } => put(RENAME_TABLE, *table, &[from.as_bytes(), to.as_bytes()]),
        Change::DropTable { table, name } => put(DROP_TABLE, *table, &[name.as_bytes()]),
        Change::SetCompression { table, compression } => put(SET_COMPRESSION, *table, &[name_of(*compression)?]),
        Change::SetTypes { table, types } => put(SET_TYPES, *table, &[types.key.as_bytes(), types.value.as_bytes()]),
        other => {
            let what = format!("a change that this version cannot ship: {other:?}");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
    }
    Ok(())
}

fn take_change(from: &mut &[u8]) -> Result<Change> {
    let (kind, rest) = from.split_first().ok_or_else(too_short)?;
    *from = rest;
    let table = TableId(take_number(from)?);
    Ok(match *kind {
        kind @ (PUT | PUT_WITH_EXPIRY) => {
            let (key, value) = (take_bytes(from)?.to_vec(), take_bytes(from)?.to_vec());
            let expiry = if kind == PUT { None } else { Some(ms_to_time(take_number(from)?)) };
            Change::Put { table, key, value, expiry }
        }
        DELETE => Change::Delete { table, key: take_bytes(from)?.to_vec() },
        kind @ (DELETE_RANGE | DELETE_FROM) => {
            let start = take_bytes(from)?.to_vec();
            let end = if kind == DELETE_FROM { None } else { Some(take_bytes(from)?.to_vec()) };
            Change::DeleteRange { table, start, end }
        }
        CREATE_TABLE => Change::CreateTable { table, name: take_text(from)? },
        RENAME_TABLE => Change::RenameTable { table, from: take_text(from)?, to: take_text(from)? },
        DROP_TABLE => Change::DropTable { table, name: take_text(from)? },
        SET_COMPRESSION => Change::SetCompression { table, compression: compression_of(take_bytes(from)?)? },
        SET_TYPES => Change::SetTypes { table, types: TableTypes::new(take_text(from)?, take_text(from)?) },
        kind => {
            let what = format!("a change of kind {kind}: a later version of nofault wrote it");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
    })
}

fn name_of(compression: Compression) -> Result<&'static [u8]> {
    match compression {
        Compression::None => Ok(b"none"),
        Compression::Fast => Ok(b"fast"),
        Compression::Small => Ok(b"small"),
        other => Err(Error::new(ErrorKind::Unsupported, format!("a compression that cannot be shipped: {other:?}"))),
    }
}

fn compression_of(name: &[u8]) -> Result<Compression> {
    match name {
        b"none" => Ok(Compression::None),
        b"fast" => Ok(Compression::Fast),
        b"small" => Ok(Compression::Small),
        _ => Err(Error::new(ErrorKind::Unsupported, "a compression that a later version of nofault wrote")),
    }
}

/// Returns whole milliseconds since 1970.
pub(crate) fn time_to_ms(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time of so many milliseconds since 1970.
pub(crate) fn ms_to_time(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

/// Returns the time of a commit. One that is later than the year 9999, which texts of times cannot show, is its end.
pub(crate) fn commit_time(ms: u64) -> SystemTime {
    const LAST_MS: u64 = 253_402_300_799_999;
    ms_to_time(ms.min(LAST_MS))
}

fn too_short() -> Error {
    Error::corrupt("its content is shorter than its lengths require")
}

fn put_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn take_number(from: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first().ok_or_else(too_short)?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::corrupt("a number is too large"))
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Result<&'a [u8]> {
    let len = usize::try_from(take_number(from)?).map_err(|_| too_short())?;
    let (taken, rest) = from.split_at_checked(len).ok_or_else(too_short)?;
    *from = rest;
    Ok(taken)
}

fn take_text(from: &mut &[u8]) -> Result<String> {
    String::from_utf8(take_bytes(from)?.to_vec()).map_err(|_| Error::corrupt("a name is not UTF-8"))
}

fn take_u32(from: &mut &[u8]) -> Result<u32> {
    let (taken, rest) = from.split_first_chunk::<4>().ok_or_else(too_short)?;
    *from = rest;
    Ok(u32::from_le_bytes(*taken))
}

fn take_u64(from: &mut &[u8]) -> Result<u64> {
    let (taken, rest) = from.split_first_chunk::<8>().ok_or_else(too_short)?;
    *from = rest;
    Ok(u64::from_le_bytes(*taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits() -> Vec<ShippedCommit> {
        let (table, key) = (TableId(7), b"key".to_vec());
        let time = ms_to_time(1_700_000_000_123);
        let changes = vec![
            Change::CreateTable { table, name: "stock".into() },
            Change::SetCompression { table, compression: Compression::Small },
            Change::SetTypes { table, types: TableTypes::new("u64", "string") },
            Change::Put { table, key: key.clone(), value: vec![3; 100], expiry: None },
            Change::Put { table, key: Vec::new(), value: Vec::new(), expiry: Some(time) },
            Change::Delete { table, key },
            Change::DeleteRange { table, start: b"a".to_vec(), end: Some(b"b".to_vec()) },
            Change::DeleteRange { table, start: Vec::new(), end: None },
            Change::RenameTable { table, from: "stock".into(), to: "store".into() },
            Change::DropTable { table, name: "store".into() },
        ];
        let many = (0..40_000_u32).map(|key| Change::Put {
            table,
            key: key.to_be_bytes().to_vec(),
            value: vec![key as u8; 60],
            expiry: None,
        });
        vec![
            ShippedCommit { commit: 3, time_ms: 0, changes },
            ShippedCommit { commit: 4, time_ms: 9, changes: Vec::new() },
            ShippedCommit { commit: u64::MAX, time_ms: 10, changes: many.collect() },
        ]
    }

    fn writer(commits: &[ShippedCommit]) -> ObjectWriter {
        let mut writer = ObjectWriter::new();
        commits.iter().for_each(|it| writer.push(it.commit, it.time_ms, &it.changes).unwrap());
        writer
    }

    fn object(commits: &[ShippedCommit]) -> Vec<u8> {
        writer(commits).finish_with(b"a label")
    }

    fn decode(object: &[u8]) -> Result<Vec<ShippedCommit>> {
        let raw = raw_commits(object)?;
        let mut rest = &raw[..];
        let mut commits = Vec::new();
        while let Some(commit) = take_commit(&mut rest)? {
            commits.push(commit);
        }
        Ok(commits)
    }

    #[test]
    fn an_object_of_several_blocks_is_read_back_also_put_together_from_two() {
        let commits = commits();
        let whole = object(&commits);
        assert!(decode(&whole).unwrap() == commits);
        let mut joined = ObjectWriter::new();
        for part in [&commits[..1], &commits[1..]] {
            joined.push_raw(&raw_commits(&object(part)).unwrap());
        }
        assert!(decode(&joined.finish()).unwrap() == commits);
        assert!(decode(&ObjectWriter::new().finish()).unwrap().is_empty());
        // Earlier versions wrote no label.
        let without = writer(&commits).finish();
        assert!(without.starts_with(b"NFship1\n") && decode(&without).unwrap() == commits);
        assert_eq!((split_label(&without).unwrap().0, split_label(&whole).unwrap().0), (None, Some(&b"a label"[..])));
    }

    #[test]
    fn an_object_that_was_cut_short_or_changed_is_an_error() {
        let whole = object(&commits()[..2]);
        for len in 0..whole.len() {
            assert_eq!(decode(&whole[..len]).unwrap_err().kind(), ErrorKind::Corrupt, "{len} bytes");
        }
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&changed).unwrap_err().kind(), ErrorKind::Corrupt, "bit {bit}");
        }
        assert!(decode(&[&whole[..], b"more"].concat()).is_err());
    }
}
