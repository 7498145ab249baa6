//! The manifest: it lists the objects, and their writer. It is the only object that changes, and an object that it does not name does
//! not exist.
//!
//! It advances by conditional puts: each names the version that it replaces. A shipper that begins writes its own number into it. From
//! then on the put of any older shipper fails, as the version that it knows is gone: it is fenced. So of the manifests
//! of a name each follows from the one before.
//!
//! A put that failed may have been carried out. So after a failure the manifest is read: it is the new one (done), the old one (put
//! again), or another shipper's (fenced). A request carried out late finds another version and changes nothing.
//!
//! Where a store has no conditional puts (`single_writer`), the manifest is read before each put, which has no condition. So an older shipper is
//! fenced, unless two put at the same moment.
//!
//! Copies of the last manifests, under other names, and the labels of objects lead back when the manifest is lost (`rebuild`). The
//! absence of a manifest among objects is damage, and never a beginning.

use std::time::Instant;

use object_store::{Error as StoreError, PutMode, UpdateVersion};
use serde::{Deserialize, Serialize};

use crate::clock::ClockMark;
use crate::error::{Error, ErrorKind, Result};
use crate::names::{MANIFEST, parse_copy, shipper_of};
use crate::object::checksum;
use crate::remote::{ListedObject, Remote, failed, is_final};

/// The version of its form. Earlier ones had no increments (1), and no labels (2).
const FORMAT: u32 = 3;
/// Steps of the clock that are kept in the manifest.
const CLOCK_STEPS_MAX: usize = 32;
/// The way out for a user whose manifest is lost.
const WAY_OUT: &str = "make a manifest of the objects that are there (`nofault restore --rebuild ADDRESS`), or go on with a copy of the whole \
    database (`nofault ship --whole`), which does the same first";

/// An object that the manifest names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedObject {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// CRC-64/NVME of all bytes, in hexadecimal.
    pub(crate) checksum: String,
}

impl NamedObject {
    pub(crate) fn new(name: String, bytes: &[u8]) -> Self {
        Self { name, bytes: bytes.len() as u64, checksum: hex(checksum(bytes)) }
    }

    /// Reads the object.
    ///
    /// # Errors
    /// `Corrupt` when it differs from its original, or is gone.
    pub(crate) async fn read(&self, remote: &Remote) -> Result<Vec<u8>> {
        let bytes = remote.get(&self.name, self.bytes).await?;
        if bytes.len() as u64 != self.bytes || hex(checksum(&bytes)) != self.checksum {
            let what = format!("{} bytes, which are not the {} that were written", bytes.len(), self.bytes);
            return Err(Error::corrupt(what).met_in(&self.name));
        }
        Ok(bytes)
    }
}

/// The content of all tables as of one commit, or, of an increment, the changes that make it of the content of the base before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    pub(crate) commit: u64,
    pub(crate) time_ms: u64,
    pub(crate) page_bytes: u64,
    /// `None` for a base of the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) on: Option<Foundation>,
    /// Position at which a tail of the database continues behind the commit, in hexadecimal; `None` in the first base of an epoch, and
    /// in bases written by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
    /// In their order.
    pub(crate) parts: Vec<NamedObject>,
}

impl Base {
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    pub(crate) fn is_increment(&self) -> bool {
        self.on.is_some()
    }
}

/// The base on which an increment stands: the one before it in its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Foundation {
    pub(crate) commit: u64,
    /// Bytes of the log shipped between the two.
    pub(crate) log_bytes: u64,
}

/// A piece of the log: all commits after `after` up to `last`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogObject {
    pub(crate) level: u8,
    pub(crate) after: u64,
    pub(crate) last: u64,
    pub(crate) last_time_ms: u64,
    /// Its length before compression.
    pub(crate) raw_bytes: u64,
    pub(crate) object: NamedObject,
}

/// A history without a gap: bases, and the log that leads from the first of them on. A new one begins where commits went past the log,
/// or where the shipper has lost the thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Epoch {
    pub(crate) id: u64,
    /// The database, as `Position::database` tells, in hexadecimal.
    pub(crate) database: String,
    /// The shipper that began it.
    pub(crate) begun_by: String,
    /// In the order of their commits, and at least one.
    pub(crate) bases: Vec<Base>,
    /// In the order of their commits.
    pub(crate) log: Vec<LogObject>,
    /// Position at which the tail continues, in hexadecimal.
    pub(crate) position: String,
    /// The last commit, and its time.
    pub(crate) last: u64,
    pub(crate) last_time_ms: u64,
}

impl Epoch {
    /// Returns the objects of bases and log.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &NamedObject> {
        self.bases.iter().flat_map(|base| &base.parts).chain(self.log.iter().map(|log| &log.object))
    }

    /// Returns the newest commit in the store, and its time.
    pub(crate) fn newest(&self) -> (u64, u64) {
        let of_base = self.bases.last().map_or((0, 0), |base| (base.commit, base.time_ms));
        of_base.max((self.last, self.last_time_ms))
    }

    /// Returns whether the log continues behind a commit, or ends there.
    pub(crate) fn leads_on(&self, commit: u64) -> bool {
        let next = self.log.iter().find(|log| log.last > commit);
        next.map_or(commit >= self.last, |next| next.after <= commit)
    }

    /// Returns the bases from which the log leads on, with their places among all. Others were kept for the increments on them only: the log
    /// behind them is forgotten.
    pub(crate) fn starts(&self) -> impl DoubleEndedIterator<Item = (usize, &Base)> {
        self.bases.iter().enumerate().filter(|(_, base)| self.leads_on(base.commit))
    }

    /// Returns a base with the bases that it stands on: first one of the whole, then increments in their order.
    ///
    /// # Errors
    /// `Corrupt` when one of them is missing.
    pub(crate) fn chain(&self, base: usize) -> Result<&[Base]> {
        let upto = self.bases.get(..=base).unwrap_or_default();
        let whole = upto.iter().rposition(|base| !base.is_increment());
        let chain = whole.map(|whole| &upto[whole..]).unwrap_or_default();
        let is_on = |pair: &[Base]| pair[1].on.is_some_and(|on| on.commit == pair[0].commit);
        if chain.is_empty() || !chain.windows(2).all(is_on) {
            let what = format!("the base below the one of commit {} is missing", upto.last().map_or(0, |it| it.commit));
            return Err(Error::corrupt(what).met_in(MANIFEST));
        }
        Ok(chain)
    }
}

/// The distinction of an epoch from all others, also from the epochs of a store that was emptied and filled again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EpochName {
    pub(crate) id: u64,
    pub(crate) database: String,
    pub(crate) begun_by: String,
}

impl EpochName {
    pub(crate) fn of(epoch: &Epoch) -> Self {
        Self { id: epoch.id, database: epoch.database.clone(), begun_by: epoch.begun_by.clone() }
    }

    /// Returns whether both are epochs of one database, which numbers the commits of both.
    pub(crate) fn is_of_database(&self, other: &Self) -> bool {
        self.database == other.database
    }
}

/// An object that is not needed any more, and is removed some time after that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Garbage {
    pub(crate) name: String,
    pub(crate) since_ms: u64,
}

/// A step of the clock that a shipper has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FoundStep {
    /// The epoch, and the last commit shipped by then.
    pub(crate) epoch: u64,
    pub(crate) commit: u64,
    pub(crate) expected_ms: u64,
    pub(crate) found_ms: u64,
}

/// The manifest of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    /// The shipper that may write the next one, in hexadecimal.
    pub(crate) writer: String,
    /// Counts the manifests of the name.
    pub(crate) sequence: u64,
    /// A random number, in hexadecimal, that all manifests of this history have, and its objects in their labels. Empty in manifests of earlier versions.
    #[serde(default)]
    pub(crate) history: String,
    /// The database of the shipper that may write the next one, as [`Epoch::database`], if it is known.
    #[serde(default)]
    pub(crate) database: Option<String>,
    /// The last look at the clock.
    #[serde(default)]
    pub(crate) clock: Option<ClockMark>,
    #[serde(default)]
    pub(crate) clock_steps: Vec<FoundStep>,
    /// Objects that were written before this manifest and that none names stay where they are: the manifest was rebuilt then. 0: it never was.
    #[serde(default)]
    pub(crate) spared_before: u64,
    /// In the order in which they began.
    pub(crate) epochs: Vec<Epoch>,
    pub(crate) garbage: Vec<Garbage>,
}

/// The manifest that a shipper or reader has found, or written last.
#[derive(Debug, Clone)]
pub(crate) struct Current {
    pub(crate) manifest: Manifest,
    /// `None` before there is one in the store.
    pub(crate) version: Option<UpdateVersion>,
    /// The bytes in the store where this manifest was rebuilt to replace them: they are damaged, or an older manifest's.
    pub(crate) damaged: Option<Vec<u8>>,
}

/// A manifest that cannot be read.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    pub(crate) error: Error,
    pub(crate) bytes: Vec<u8>,
    pub(crate) version: UpdateVersion,
}

/// The object under the name of the manifest.
#[derive(Debug)]
pub(crate) enum Found {
    /// With its bytes.
    Sound(Box<Current>, Vec<u8>),
    Damaged(Damage),
    Missing,
}

impl Found {
    /// Reads the manifest.
    ///
    /// # Errors
    /// `Unsupported` when a later version wrote it; `Store`.
    pub(crate) async fn look(remote: &Remote) -> Result<Self> {
        let Some((bytes, version)) = remote.find(MANIFEST, 0).await? else { return Ok(Self::Missing) };
        match Manifest::decode(&bytes) {
            Ok(manifest) => {
                Ok(Self::Sound(Box::new(Current { manifest, version: Some(version), damaged: None }), bytes))
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Self::Damaged(Damage { error, bytes, version })),
            Err(error) => Err(error),
        }
    }
}

/// Refuses to take the absence of a manifest for a beginning where objects have a shipper's form.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn refuse_lost(present: &[ListedObject]) -> Result<()> {
    let is_of_history = |it: &&ListedObject| shipper_of(&it.name).is_some() || parse_copy(&it.name).is_some();
    match present.iter().filter(is_of_history).count() {
        0 => Ok(()),
        count => {
            let what = format!("the manifest is gone, and {count} objects of its history are there");
            Err(Error::corrupt(what).met_in(MANIFEST).or(WAY_OUT))
        }
    }
}

/// Returns the error with the way out for a user.
pub(crate) fn way_out(error: &Error) -> Error {
    error.or(WAY_OUT)
}

impl Manifest {
    pub(crate) fn empty() -> Self {
        Self {
            format: FORMAT,
            writer: String::new(),
            sequence: 0,
            history: String::new(),
            database: None,
            clock: None,
            clock_steps: Vec::new(),
            spared_before: 0,
            epochs: Vec::new(),
            garbage: Vec::new(),
        }
    }

    /// Returns the database shipped under the name, if any is.
    pub(crate) fn database(&self) -> Option<&str> {
        self.database.as_deref().or_else(|| self.epochs.last().map(|epoch| epoch.database.as_str()))
    }

    /// Adds a step of the clock; of many, the last ones stay.
    pub(crate) fn add_clock_step(&mut self, step: FoundStep) {
        self.clock_steps.push(step);
        let surplus = self.clock_steps.len().saturating_sub(CLOCK_STEPS_MAX);
        self.clock_steps.drain(..surplus);
    }

    /// Returns the names of all objects that it names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let of_epochs = self.epochs.iter().flat_map(Epoch::objects).map(|object| object.name.as_str());
        of_epochs.chain(self.garbage.iter().map(|garbage| garbage.name.as_str()))
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)
            .map_err(|error| Error::new(ErrorKind::Unsupported, format!("write the manifest: {error}")))?;
        let sum = hex(checksum(&bytes));
        bytes.extend_from_slice(format!("\n{sum}\n").as_bytes());
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::corrupt(what).met_in(MANIFEST);
        let without_end = bytes.strip_suffix(b"\n").ok_or_else(|| wrong("it was cut short"))?;
        let at = without_end.iter().rposition(|byte| *byte == b'\n').ok_or_else(|| wrong("it was cut short"))?;
        let (json, sum) = (&without_end[..at], &without_end[at + 1..]);
        if hex(checksum(json)).as_bytes() != sum {
            return Err(wrong("its checksum is wrong"));
        }
        let of_format: Format = serde_json::from_slice(json).map_err(|error| wrong(&error.to_string()))?;
        if !(1..=FORMAT).contains(&of_format.format) {
            let what = format!("a later version of nofault wrote the manifest, in form {}", of_format.format);
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        serde_json::from_slice(json).map_err(|error| wrong(&error.to_string()))
    }
}

/// The part that the manifests of all versions have.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Current {
    /// Reads the manifest.
    ///
    /// # Errors
    /// `NotFound` when nothing was shipped under the name; `Corrupt` when the manifest is damaged, or lost.
    pub(crate) async fn read(remote: &Remote) -> Result<Self> {
        match Found::look(remote).await? {
            Found::Sound(current, _) => Ok(*current),
            Found::Damaged(damage) => Err(way_out(&damage.error)),
            Found::Missing => {
                refuse_lost(&remote.list().await?)?;
                let (_, name) = remote.place();
                Err(Error::new(ErrorKind::NotFound, format!("no database was shipped under the name '{name}'")))
            }
        }
    }

    /// Reads the manifest unless it is still the one of this version; `None` then.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub(crate) async fn find_newer(remote: &Remote, known: Option<&UpdateVersion>) -> Result<Option<Self>> {
        let Some((bytes, version)) = remote.get_newer(MANIFEST, known).await? else { return Ok(None) };
        Ok(Some(Self { manifest: Manifest::decode(&bytes)?, version: Some(version), damaged: None }))
    }

    /// Begins with an empty one.
    pub(crate) fn new() -> Self {
        Self { manifest: Manifest::empty(), version: None, damaged: None }
    }

    /// Returns whether these bytes are the manifest in the store that this one stands for.
    fn is(&self, found: &[u8]) -> bool {
        match &self.damaged {
            Some(damaged) => damaged == found,
            None => Manifest::decode(found).is_ok_and(|found| found == self.manifest),
        }
    }

    /// Replaces the manifest in the store by the one that `change` makes of this one. Puts it again until it is there.
    ///
    /// # Errors
    /// `Fenced` when another shipper has written it; this one is as it was then.
    pub(crate) async fn advance(
        &mut self,
        remote: &Remote,
        single_writer: bool,
        change: impl FnOnce(&mut Manifest),
    ) -> Result<()> {
        let fenced =
            || Error::new(ErrorKind::Fenced, "another shipper has taken over this name; this one writes nothing more");
        let mut next = self.manifest.clone();
        change(&mut next);
        next.sequence = self.manifest.sequence + 1;
        next.format = FORMAT;
        let bytes = next.encode()?;
        let (mut attempt, begun) = (0, Instant::now());
        loop {
            attempt += 1;
            if single_writer {
                match remote.find(MANIFEST, bytes.len() as u64).await? {
                    Some((found, _)) if self.is(&found) || found == bytes => {}
                    None if self.version.is_none() => {}
                    _ => return Err(fenced()),
                }
            }
            let mode = match &self.version {
                _ if single_writer => PutMode::Overwrite,
                Some(version) => PutMode::Update(version.clone()),
                None => PutMode::Create,
            };
            let error = match remote.try_put(MANIFEST, bytes.clone(), mode).await {
                Ok(version) => {
                    *self = Self { manifest: next, version: Some(version), damaged: None };
                    return Ok(());
                }
                Err(error) => error,
            };
            let is_refused = matches!(error, StoreError::Precondition { .. } | StoreError::AlreadyExists { .. });
            if is_final(&error) && !is_refused {
                return Err(failed(&MANIFEST.into(), &error));
            }
            match remote.find(MANIFEST, bytes.len() as u64).await? {
                Some((found, version)) if found == bytes => {
                    *self = Self { manifest: next, version: Some(version), damaged: None };
                    return Ok(());
                }
                Some((found, version)) if self.is(&found) => self.version = Some(version),
                None if self.version.is_none() => {}
                _ => return Err(fenced()),
            }
            if remote.is_over(attempt, begun, &error) {
                return Err(failed(&MANIFEST.into(), &error));
            }
            remote.pause(attempt).await;
        }
    }
}

/// Returns a number in hexadecimal.
pub(crate) fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// Returns bytes in hexadecimal.
pub(crate) fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of [`hex_of`]; `None` for another text.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_back_and_any_change_of_it_is_found() {
        let base = Base {
            commit: 3,
            time_ms: 5,
            page_bytes: 4096,
            on: None,
            position: None,
            parts: vec![NamedObject::new("a".into(), b"bytes")],
        };
        let epoch = Epoch {
            id: 1,
            database: hex(7),
            begun_by: hex(1),
            bases: vec![base],
            log: Vec::new(),
            position: hex_of(&[1, 255]),
            last: 3,
            last_time_ms: 5,
        };
        // As earlier versions wrote it.
        let json = r#"{"format":1,"writer":"w","sequence":4,"epochs":[],"garbage":[]}"#;
        let old = Manifest::decode(format!("{json}\n{}\n", hex(checksum(json.as_bytes()))).as_bytes()).unwrap();
        assert_eq!(old, Manifest { format: 1, writer: "w".into(), sequence: 4, ..Manifest::empty() });
        let mut epoch = epoch;
        let on = Some(Foundation { commit: 3, log_bytes: 70 });
        epoch.bases.push(Base { commit: 8, on, ..epoch.bases[0].clone() });
        let manifest = Manifest { writer: hex(1), epochs: vec![epoch], ..Manifest::empty() };
        let bytes = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Manifest::decode(&changed).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
        let later = Manifest { format: FORMAT + 1, ..manifest }.encode().unwrap();
        assert_eq!(Manifest::decode(&later).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!((bytes_of("01ff"), bytes_of("01f"), bytes_of("zz")), (Some(vec![1, 255]), None, None));
    }

    #[test]
    fn an_increment_stands_on_the_base_before_it_and_on_all_that_this_stands_on() {
        let base = |commit, on: Option<u64>| {
            let on = on.map(|commit| Foundation { commit, log_bytes: 0 });
            Base { commit, time_ms: commit, page_bytes: 4096, on, position: None, parts: Vec::new() }
        };
        let mut epoch = Epoch {
            id: 1,
            database: String::new(),
            begun_by: String::new(),
            bases: vec![base(3, None), base(5, Some(3)), base(8, Some(5)), base(9, None), base(12, Some(8))],
            log: Vec::new(),
            position: String::new(),
            last: 3,
            last_time_ms: 3,
        };
        let commits =
            |epoch: &Epoch, at| epoch.chain(at).map(|chain| chain.iter().map(|it| it.commit).collect::<Vec<_>>());
        assert_eq!(commits(&epoch, 0).unwrap(), [3]);
        assert_eq!(commits(&epoch, 2).unwrap(), [3, 5, 8]);
        assert_eq!(commits(&epoch, 3).unwrap(), [9]);
        // It names another one than stands before it.
        assert_eq!(commits(&epoch, 4).unwrap_err().kind(), ErrorKind::Corrupt);
        epoch.bases.remove(0);
        assert_eq!(commits(&epoch, 1).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(commits(&epoch, 9).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
