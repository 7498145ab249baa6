//! Rebuilds a manifest that was lost, damaged or set back: from the newest copy of it that can be read, and from the labels of the objects that
//! were written after that copy; without a copy, from the labels of all.
//!
//! Kept true by: an object counts only if its label names the history, and after all of it was read and compared with its checksums. Nothing is
//! removed: an object that the new manifest does not name stays where it is, also when shippers clean up later (`spared_before`).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use object_store::ObjectStore;
use tokio::task::{JoinSet, spawn_blocking};

use crate::assembly::{Assembly, Sound};
use crate::error::{Error, ErrorKind, Result};
use crate::history::{Span, spans};
use crate::label::{Content, Label};
use crate::manifest::{Base, Current, Damage, Epoch, Found, Manifest, NamedObject, hex};
use crate::names::{DAMAGED_MANIFEST, parse_copy, random_id, shipper_of};
use crate::newest::{Age, age, decode_copy, orphans, read_copy};
use crate::object::{commit_time, raw_commits, take_commit};
use crate::options::READING;
use crate::remote::{ListedObject, Remote};

/// Objects read at the same time.
const AT_ONCE: usize = 8;
/// Names of objects in one remark.
const NAMES_SHOWN: usize = 3;

/// The result of [`rebuild`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebuilt {
    /// The sources of the manifest, and the lost commits, in sentences for a person.
    pub remarks: Vec<String>,
    /// The history that can be restored.
    pub spans: Vec<Span>,
}

/// Rebuilds the manifest of a name that was lost, damaged or set back to an older one. A shipper that runs is fenced. Removes nothing; a damaged manifest stays as
/// `manifest-damaged`. Reads each object that no copy of the manifest names; of others their names are compared.
///
/// # Errors
/// `InvalidCall` when the manifest is sound. `NotFound` when there is nothing to make one of; `Corrupt` when no copy of the whole database is there, or objects of
/// several histories lie under the name. `Unsupported` for a store without conditional puts. `Fenced` when a shipper begins at the same time; the errors of the store.
pub async fn rebuild(store: Arc<dyn ObjectStore>, name: &str) -> Result<Rebuilt> {
    let remote = Remote::new(store, name, READING)?;
    let present = remote.list().await?;
    let found = Found::look(&remote).await?;
    if let Found::Sound(current, _) = &found
        && is_newest(&remote, &present, current).await?
    {
        let what = format!("the manifest of '{name}' is sound: there is nothing to rebuild");
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    let (mut current, remarks) = recovered(&remote, &present, found).await?;
    if !has_base(&current.manifest, &present) {
        let is_of_a_history = current.manifest.sequence > 0;
        let kind = if is_of_a_history { ErrorKind::Corrupt } else { ErrorKind::NotFound };
        return Err(Error::new(kind, remarks.join("; ")).or("ship the whole database (`nofault ship --whole`)"));
    }
    current.advance(&remote, false, |_| {}).await?;
    Ok(Rebuilt { remarks, spans: spans(&current.manifest) })
}

/// Returns whether no object is, or may be, newer than a manifest.
async fn is_newest(remote: &Remote, present: &[ListedObject], current: &Current) -> Result<bool> {
    match age(remote, present, &current.manifest).await? {
        Age::Newest => {}
        Age::Unsure(_) | Age::SetBack(_) => return Ok(false),
    }
    match orphans(remote, present, current).await {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
        found => found.map(|_| true),
    }
}

/// Returns a manifest that replaces the object under the manifest's name, and the remarks about it.
pub(crate) async fn recovered(
    remote: &Remote,
    present: &[ListedObject],
    found: Found,
) -> Result<(Current, Vec<String>)> {
    let (bytes, version, in_place) = match found {
        Found::Sound(current, bytes) => (Some(bytes), current.version, Some(current.manifest)),
        Found::Damaged(Damage { bytes, version, .. }) => (Some(bytes), Some(version), None),
        Found::Missing => (None, None, None),
    };
    if let Some(bytes) = &bytes {
        remote.put(DAMAGED_MANIFEST, bytes.clone()).await?;
    }
    let (manifest, remarks) = recover(remote, present, in_place).await?;
    Ok((Current { manifest, version, damaged: bytes }, remarks))
}

/// Checks the copies of the manifest. Returns a sentence for each that is damaged: problems, and remarks about older ones, which nothing needs while a newer one
/// is sound.
pub(crate) async fn check_copies(
    remote: &Remote,
    present: &[ListedObject],
    manifest: &Manifest,
) -> Result<(Vec<String>, Vec<String>)> {
    let (mut damaged, mut newest_sound) = (Vec::new(), None);
    for listed in present {
        let Some((sequence, _)) = parse_copy(&listed.name).filter(|(_, of)| *of == manifest.history) else { continue };
        // A shipper may have removed an old one since the list was made.
        let Some((bytes, _)) = remote.find(&listed.name, listed.bytes).await? else { continue };
        match decode_copy(&bytes, &listed.name) {
            Some(_) => newest_sound = newest_sound.max(Some(sequence)),
            None => damaged.push((sequence, &listed.name)),
        }
    }
    let (mut problems, mut remarks) = (Vec::new(), Vec::new());
    for (sequence, name) in damaged {
        let what = format!("{name}: this copy of the manifest is damaged");
        if newest_sound > Some(sequence) {
            remarks.push(format!("{what}; a newer one is sound"));
        } else if sequence > manifest.sequence {
            problems.push(format!(
                "{what}, and no shipper replaces it, as its number is later than the manifest's: move it away"
            ));
        } else {
            problems.push(what);
        }
    }
    Ok((problems, remarks))
}

/// Makes a manifest of copies and objects. The one in place, if it can be read, counts as a copy.
async fn recover(
    remote: &Remote,
    present: &[ListedObject],
    in_place: Option<Manifest>,
) -> Result<(Manifest, Vec<String>)> {
    let mut remarks = Vec::new();
    let objects: Vec<&ListedObject> = present.iter().filter(|it| shipper_of(&it.name).is_some()).collect();
    let names: HashSet<&str> = objects.iter().map(|it| &*it.name).collect();
    let copy = newest_copy(remote, present, &objects, &mut remarks).await?;
    let is_newer = |found: &Manifest| {
        copy.as_ref().is_none_or(|copy| copy.history == found.history && copy.sequence < found.sequence)
    };
    let copy = in_place.filter(|found| !found.history.is_empty() && is_newer(found)).or(copy);
    let named: HashSet<String> = copy.iter().flat_map(Manifest::names).map(str::to_owned).collect();
    let unnamed: Vec<&ListedObject> = objects.into_iter().filter(|it| !named.contains(&it.name)).collect();
    let mut labels = Vec::new();
    let mut without_label = 0;
    for listed in unnamed {
        match Label::read(remote, &listed.name, listed.bytes).await? {
            Some(label) => labels.push((label, listed.clone())),
            None => without_label += 1,
        }
    }
    if without_label > 0 {
        remarks.push(format!("{without_label} objects have no label, as an earlier version wrote them, or it is damaged: they stay, and are not used"));
    }
    let histories: BTreeSet<String> = labels.iter().map(|(label, _)| label.history.clone()).collect();
    let history = match (&copy, histories.len()) {
        (Some(copy), _) => copy.history.clone(),
        (None, 0) => random_id(),
        (None, 1) => histories.into_iter().next().unwrap_or_default(),
        (None, _) => {
            let what = format!(
                "objects of {} histories lie here: keep one history's and move the others away",
                histories.len()
            );
            return Err(Error::corrupt(what));
        }
    };
    let (all, is_known) = (labels.len(), copy.is_some() || !labels.is_empty());
    labels.retain(|(label, _)| label.history == history);
    if labels.len() < all {
        remarks.push(format!("{} objects of another history stay, and are not used", all - labels.len()));
    }
    let copied = copy.as_ref().map_or(0, |copy| copy.sequence);
    let of_copies = present.iter().filter_map(|it| parse_copy(&it.name));
    let of_copies = of_copies.filter(|(_, of)| *of == history).map(|(sequence, _)| sequence).max();
    let sequence = labels.iter().map(|(label, _)| label.sequence).chain(of_copies).max().unwrap_or(0).max(copied);
    // Earlier ones are named by the copy, or by no manifest.
    labels.retain(|(label, _)| label.sequence >= copied);
    let mut assembly = Assembly::new(copy.as_ref().map(|copy| copy.epochs.clone()).unwrap_or_default());
    let sound = read_all(remote, labels, &mut remarks).await?;
    let count = sound.len();
    assembly.add(sound);
    let epochs = assembly.finish(&mut remarks);
    let gone: BTreeSet<&str> = epochs.iter().flat_map(|it| it.objects()).map(|it| &*it.name).collect();
    let gone: Vec<&str> = gone.into_iter().filter(|name| !names.contains(name)).collect();
    if !gone.is_empty() {
        let shown = gone.iter().take(NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
        remarks.push(format!("{} objects are gone, and points that need them are lost: {shown}", gone.len()));
    }
    let from = match &copy {
        Some(copy) => {
            format!("copy number {} of the manifest and {count} objects that were written after it", copy.sequence)
        }
        None => format!("{count} objects; no copy of the manifest is left"),
    };
    let manifest = Manifest {
        sequence,
        history,
        spared_before: sequence + 1,
        writer: hex(0),
        database: None,
        epochs,
        ..copy.unwrap_or_else(Manifest::empty)
    };
    let to = match manifest.epochs.last().map(|epoch| epoch.newest()) {
        Some((commit, time_ms)) if has_base(&manifest, present) => {
            let time = humantime::format_rfc3339_millis(commit_time(time_ms));
            format!("it leads to commit {commit} of {time}; what was shipped after that, if anything, is lost")
        }
        _ if is_known => "no copy of the whole database is there, so no commit can be restored".into(),
        _ => "no object tells to which history it belongs".into(),
    };
    remarks.insert(0, format!("a manifest was made of {from}: {to}"));
    Ok((manifest, remarks))
}

/// Returns whether a copy of the whole database is there from which a commit can be restored, with the increments on it.
fn has_base(manifest: &Manifest, present: &[ListedObject]) -> bool {
    let names: HashSet<&str> = present.iter().map(|it| &*it.name).collect();
    let is_there = |base: &Base| base.parts.iter().all(|part| names.contains(&*part.name));
    let of_epoch =
        |epoch: &Epoch| epoch.starts().any(|(at, _)| epoch.chain(at).is_ok_and(|chain| chain.iter().all(is_there)));
    manifest.epochs.iter().any(of_epoch)
}

/// Returns the newest copy that can be read, of the history whose objects are here.
async fn newest_copy(
    remote: &Remote,
    present: &[ListedObject],
    objects: &[&ListedObject],
    remarks: &mut Vec<String>,
) -> Result<Option<Manifest>> {
    let names: HashSet<&str> = objects.iter().map(|it| &*it.name).collect();
    let mut copies: Vec<_> = present.iter().filter(|it| parse_copy(&it.name).is_some()).collect();
    // The newest first, as their names begin with the same letters and a number of fixed length.
    copies.sort_by(|a, b| b.name.cmp(&a.name));
    let mut newest: BTreeMap<String, Manifest> = BTreeMap::new();
    for listed in copies {
        let Some(copy) = read_copy(remote, listed).await? else {
            remarks.push(format!("{} is damaged", listed.name));
            continue;
        };
        let is_of_these =
            names.is_empty() || copy.names().next().is_none() || copy.names().any(|it| names.contains(it));
        // All objects that it names may be gone, and later ones be there.
        if is_of_these || is_any_of(remote, objects, &copy.history).await? {
            newest.entry(copy.history.clone()).or_insert(copy);
        } else {
            remarks.push(format!("{} is of another history", listed.name));
        }
    }
    // A copy that names nothing counts only if no other history is left.
    if newest.len() > 1 {
        newest.retain(|_, copy| copy.names().next().is_some());
    }
    if newest.len() > 1 {
        let what = format!(
            "copies of the manifests of {} histories lie here: keep one history's and move the others away",
            newest.len()
        );
        return Err(Error::corrupt(what));
    }
    Ok(newest.into_values().next())
}

/// Returns whether any object is of a history, by its label.
async fn is_any_of(remote: &Remote, objects: &[&ListedObject], history: &str) -> Result<bool> {
    for listed in objects {
        if Label::read(remote, &listed.name, listed.bytes).await?.is_some_and(|label| label.history == history) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads objects, and checks all of each.
async fn read_all(
    remote: &Remote,
    labels: Vec<(Label, ListedObject)>,
    remarks: &mut Vec<String>,
) -> Result<Vec<Sound>> {
    let mut sound = Vec::new();
    for chunk in labels.chunks(AT_ONCE) {
        let mut reading = JoinSet::new();
        for (label, listed) in chunk.iter().cloned() {
            let remote = remote.clone();
            reading.spawn(async move {
                let bytes = remote.get(&listed.name, listed.bytes).await?;
                let checked = spawn_blocking(move || {
                    let object = NamedObject::new(listed.name.clone(), &bytes);
                    check(&label, &bytes).map(|()| Sound { label, object }).map_err(|error| error.met_in(&listed.name))
                });
                checked.await.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))?
            });
        }
        while let Some(read) = reading.join_next().await {
            match read.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))? {
                Ok(object) => sound.push(object),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    remarks.push(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(sound)
}

/// Checks that an object has the commits of which its label tells.
fn check(label: &Label, object: &[u8]) -> Result<()> {
    let raw = raw_commits(object)?;
    let (mut rest, mut last) = (&raw[..], None);
    while let Some(commit) = take_commit(&mut rest)? {
        let is_right = match &label.content {
            Content::Log(piece) => commit.commit > last.unwrap_or(piece.after),
            Content::Base(part) => commit.commit == part.commit,
        };
        if !is_right {
            return Err(Error::corrupt(format!("it has commit {}, which its label excludes", commit.commit)));
        }
        last = Some(commit.commit);
    }
    match &label.content {
        Content::Log(piece) if last != Some(piece.last) => {
            Err(Error::corrupt(format!("it does not end with commit {}, as its label says", piece.last)))
        }
        _ => Ok(()),
    }
}
