//! Tells whether a manifest is the newest one of its history: an older file may have replaced it.
//!
//! Evidence is a copy of a later manifest, or an object whose label names a later one. Objects are listed before the manifest is read, so
//! a shipper's objects of later moments are no evidence: every listed object follows a manifest in place when the list was
//! made.
//!
//! An object that follows exactly the manifest in place and leads on from it proves nothing. Its shipper is about to name it, or ended before it could;
//! or the manifest was set back by one step. A shipper that is closed writes a copy of its last manifest, so the last case is evident then.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::error::{Error, ErrorKind, Result};
use crate::label::{Content, Label};
use crate::manifest::{Current, EpochName, Manifest, way_out};
use crate::names::{MANIFEST, copy_name, is_first_part, last_of_log, parse_copy, shipper_of};
use crate::object::commit_time;
use crate::remote::{ListedObject, Remote};

/// Looks at the manifest while an object leads on from it that it does not name: a shipper needs the time of a request to name it.
const LOOKS: u32 = 3;

/// The age of a manifest.
#[derive(Debug)]
pub(crate) enum Age {
    /// Nothing in the store is newer.
    Newest,
    /// An object may be newer, or the objects could not be listed; with a sentence for a person.
    Unsure(String),
    /// An older file has replaced it; with the error for a reader who needs the newest.
    SetBack(Error),
}

/// An object newer than a manifest.
#[derive(Debug)]
struct Newer<'l> {
    name: &'l str,
    /// The last commit known by it, and its time.
    commit: u64,
    time_ms: u64,
    /// Whether it follows a later manifest. Otherwise it follows this one, and leads on from it.
    is_certain: bool,
}

/// Reads the manifest, and tells its age. One request more than reading alone takes, and one for each object that may be newer.
///
/// # Errors
/// As [`Current::read`].
pub(crate) async fn read(remote: &Remote) -> Result<(Current, Age)> {
    let present = match remote.list().await {
        Ok(present) => present,
        // Reading and listing objects are separate rights.
        Err(error) if error.kind() == ErrorKind::NoPermission => {
            let what =
                format!("whether the manifest is the newest one is not known: the objects cannot be listed: {error}");
            return Ok((Current::read(remote).await?, Age::Unsure(what)));
        }
        Err(error) => return Err(error),
    };
    let mut look = 0;
    loop {
        let current = Current::read(remote).await?;
        match age(remote, &present, &current.manifest).await? {
            Age::Unsure(_) if look < LOOKS => {
                look += 1;
                remote.pause(look).await;
            }
            age => return Ok((current, age)),
        }
    }
}

/// Tells the age of a manifest by the objects listed before it was read.
pub(crate) async fn age(remote: &Remote, present: &[ListedObject], manifest: &Manifest) -> Result<Age> {
    let by_copy = newer_copy(remote, present, manifest).await?;
    let beyond = by_copy.as_ref().map_or_else(|| reached(manifest).0, |copy| copy.commit);
    let by_object = newer_object(remote, present, manifest, beyond, by_copy.is_none()).await?;
    Ok(match (by_copy, by_object) {
        (_, Some(newer)) if newer.is_certain => Age::SetBack(set_back(manifest, &newer)),
        (Some(newer), _) => Age::SetBack(set_back(manifest, &newer)),
        (None, Some(newer)) => Age::Unsure(format!(
            "{} leads to {}, and the manifest, which does not name it, to {}: a shipper ended before it could name it, or is about to; or an older \
             manifest was put in place (`nofault restore --rebuild` names it)",
            newer.name,
            commit_of((newer.commit, newer.time_ms)),
            commit_of(reached(manifest)),
        )),
        (None, None) => Age::Newest,
    })
}

/// Returns the objects of this history that the manifest does not name: their shippers ended before they could name them. The labels of all unnamed
/// objects are read.
///
/// An object without a label, with another history's, or that a rebuilding has spared, is not among them.
///
/// # Errors
/// `Corrupt` when one follows a later manifest: this one was set back, and objects that it does not name may be needed.
pub(crate) async fn orphans(remote: &Remote, present: &[ListedObject], current: &Current) -> Result<Vec<String>> {
    let manifest = &current.manifest;
    // Written by a version without labels.
    let is_without_labels = manifest.history.is_empty() && current.version.is_some();
    let mut orphans = Vec::new();
    for listed in unnamed(present, manifest) {
        let is_left = match Label::read(remote, &listed.name, listed.bytes).await? {
            Some(label) if is_newer(&label, manifest) => {
                return Err(set_back(manifest, &newer_by(&label, listed, true)));
            }
            Some(label) => label.history == manifest.history && label.sequence >= manifest.spared_before,
            // Earlier versions wrote no labels: the last shipper among them may have left something.
            None => is_without_labels && shipper_of(&listed.name) == Some(&*manifest.writer),
        };
        orphans.extend(is_left.then(|| listed.name.clone()));
    }
    Ok(orphans)
}

/// Reads a copy of the manifest; `None` when it is gone, damaged, or not the one that its name says.
pub(crate) async fn read_copy(remote: &Remote, listed: &ListedObject) -> Result<Option<Manifest>> {
    let found = remote.find(&listed.name, listed.bytes).await?;
    Ok(found.and_then(|(bytes, _)| decode_copy(&bytes, &listed.name)))
}

/// Decodes a copy of the manifest; `None` when it is damaged, or not the one that its name says.
pub(crate) fn decode_copy(bytes: &[u8], name: &str) -> Option<Manifest> {
    Manifest::decode(bytes).ok().filter(|copy| copy_name(copy.sequence, &copy.history) == name)
}

/// Returns the newest copy of a later manifest. A name alone proves nothing: a copy of another database may have been put there.
async fn newer_copy<'l>(
    remote: &Remote,
    present: &'l [ListedObject],
    manifest: &Manifest,
) -> Result<Option<Newer<'l>>> {
    let is_later = |listed: &&ListedObject| {
        parse_copy(&listed.name).is_some_and(|(it, of)| of == manifest.history && it > manifest.sequence)
    };
    let mut later: Vec<_> = present.iter().filter(is_later).collect();
    later.sort_by_key(|listed| Reverse(&listed.name));
    for listed in later {
        if let Some(copy) = read_copy(remote, listed).await? {
            let (commit, time_ms) = reached(&copy);
            return Ok(Some(Newer { name: &listed.name, commit, time_ms, is_certain: true }));
        }
    }
    Ok(None)
}

/// Returns an object that follows a later manifest; without one, an object that follows this one and leads on from it. Pieces of the log with commits behind
/// `beyond` are looked at, and bases if wanted: no other object tells of a newer commit.
async fn newer_object<'l>(
    remote: &Remote,
    present: &'l [ListedObject],
    manifest: &Manifest,
    beyond: u64,
    with_bases: bool,
) -> Result<Option<Newer<'l>>> {
    let is_base = |listed: &ListedObject| with_bases && is_first_part(&listed.name);
    let is_behind = |listed: &ListedObject| last_of_log(&listed.name).is_some_and(|last| last > beyond);
    let mut candidates: Vec<_> =
        unnamed(present, manifest).into_iter().filter(|it| is_base(it) || is_behind(it)).collect();
    // The piece with the latest commit first.
    candidates.sort_by_key(|listed| Reverse(last_of_log(&listed.name)));
    let mut unsure = None;
    for listed in candidates {
        let Some(label) = Label::read(remote, &listed.name, listed.bytes).await? else { continue };
        if is_newer(&label, manifest) {
            return Ok(Some(newer_by(&label, listed, true)));
        }
        if unsure.is_none() && leads_on(&label, manifest) {
            unsure = Some(newer_by(&label, listed, false));
        }
    }
    Ok(unsure)
}

/// Returns whether an object was written after a later manifest than this one.
fn is_newer(label: &Label, manifest: &Manifest) -> bool {
    label.history == manifest.history && label.sequence > manifest.sequence
}

/// Returns whether an object is a piece of the log that was written after this manifest, and leads on from it.
fn leads_on(label: &Label, manifest: &Manifest) -> bool {
    let (Some(epoch), Content::Log(piece)) = (manifest.epochs.last(), &label.content) else { return false };
    let end = epoch.newest().0;
    let follows = label.history == manifest.history && label.sequence == manifest.sequence;
    follows && label.epoch == EpochName::of(epoch) && piece.after <= end && end < piece.last
}

fn newer_by<'l>(label: &Label, listed: &'l ListedObject, is_certain: bool) -> Newer<'l> {
    let (commit, time_ms) = match &label.content {
        Content::Log(piece) => (piece.last, piece.last_time_ms),
        Content::Base(part) => (part.commit, part.time_ms),
    };
    Newer { name: &listed.name, commit, time_ms, is_certain }
}

/// Returns the objects in a shipper's form that a manifest does not name.
fn unnamed<'l>(present: &'l [ListedObject], manifest: &Manifest) -> Vec<&'l ListedObject> {
    let named: HashSet<&str> = manifest.names().collect();
    present.iter().filter(|it| shipper_of(&it.name).is_some() && !named.contains(&*it.name)).collect()
}

/// Returns the newest commit to which a manifest leads, and its time.
fn reached(manifest: &Manifest) -> (u64, u64) {
    manifest.epochs.last().map_or((0, 0), |epoch| epoch.newest())
}

fn commit_of((commit, time_ms): (u64, u64)) -> String {
    format!("commit {commit} of {}", humantime::format_rfc3339_millis(commit_time(time_ms)))
}

/// Creates the error for a manifest older than an object in the store.
fn set_back(manifest: &Manifest, newer: &Newer<'_>) -> Error {
    let what = format!(
        "it was set back to number {}, which leads to {}: {} is newer and leads to {}, so an older file was put in its place",
        manifest.sequence,
        commit_of(reached(manifest)),
        newer.name,
        commit_of((newer.commit, newer.time_ms)),
    );
    way_out(&Error::corrupt(what).met_in(MANIFEST))
}
