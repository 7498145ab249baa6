//! Puts bases and pieces of the log together to histories without a gap, by their labels.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::label::{Content, Label, Part, Piece};
use crate::manifest::{Base, Epoch, EpochName, LogObject, NamedObject};

/// An object that was read and is sound.
#[derive(Debug, Clone)]
pub(crate) struct Sound {
    pub(crate) label: Label,
    pub(crate) object: NamedObject,
}

/// The objects of one epoch that no copy of the manifest names.
#[derive(Debug, Default)]
struct UnnamedObjects {
    /// The newest manifest that one of them followed.
    sequence: u64,
    pieces: Vec<(Piece, NamedObject)>,
    /// The parts of bases, by commit, and by the number of the part.
    parts: BTreeMap<(u64, String), BTreeMap<u64, (Part, NamedObject)>>,
}

/// Epochs put together.
#[derive(Debug)]
pub(crate) struct Assembly {
    epochs: Vec<Epoch>,
    unnamed: BTreeMap<(u64, String, String), (EpochName, UnnamedObjects)>,
}

impl Assembly {
    /// Begins with the epochs of a copy of the manifest.
    pub(crate) fn new(epochs: Vec<Epoch>) -> Self {
        Self { epochs, unnamed: BTreeMap::new() }
    }

    /// Adds objects that the copy does not name.
    pub(crate) fn add(&mut self, objects: Vec<Sound>) {
        for Sound { label, object } in objects {
            let name = label.epoch;
            let key = (name.id, name.database.clone(), name.begun_by.clone());
            let (_, of_epoch) = self.unnamed.entry(key).or_insert_with(|| (name, UnnamedObjects::default()));
            of_epoch.sequence = of_epoch.sequence.max(label.sequence);
            match label.content {
                Content::Log(piece) => of_epoch.pieces.push((piece, object)),
                Content::Base(part) => {
                    // The parts of one base have one name before their numbers.
                    let base = object.name.rsplit_once('/').map_or("", |(base, _)| base).to_owned();
                    of_epoch.parts.entry((part.commit, base)).or_default().insert(part.number, (part, object));
                }
            }
        }
    }

    /// Returns the epochs. Useless and missing objects are added to the remarks.
    pub(crate) fn finish(self, remarks: &mut Vec<String>) -> Vec<Epoch> {
        let Self { mut epochs, unnamed } = self;
        // Of epochs with one number the first ones were never named: each was begun by a shipper that ended before.
        let mut newest: BTreeMap<u64, (EpochName, UnnamedObjects)> = BTreeMap::new();
        for (name, of_epoch) in unnamed.into_values() {
            let is_known = |epoch: &Epoch| EpochName::of(epoch) == name;
            let is_taken = epochs.iter().any(|epoch| epoch.id == name.id && !is_known(epoch));
            let is_older = newest.get(&name.id).is_some_and(|(_, other)| other.sequence > of_epoch.sequence);
            if !is_taken && !is_older {
                newest.insert(name.id, (name, of_epoch));
            }
        }
        for (name, of_epoch) in newest.into_values() {
            let known = epochs.iter().position(|epoch| EpochName::of(epoch) == name);
            let begun = known.map(|at| epochs.remove(at));
            let at = known.unwrap_or(epochs.len());
            let made = extend(begun, &name, of_epoch, remarks);
            epochs.splice(at..at, made);
        }
        epochs
    }
}

/// Puts the objects of one epoch together. A gap in the log ends one, and another begins behind it.
fn extend(begun: Option<Epoch>, name: &EpochName, of_epoch: UnnamedObjects, remarks: &mut Vec<String>) -> Vec<Epoch> {
    let UnnamedObjects { pieces, parts, .. } = of_epoch;
    let mut epochs: Vec<Epoch> = begun.into_iter().collect();
    let reached = reach(&pieces);
    let begins_at = |end: Option<u64>| match end {
        Some(end) if reached.contains_key(&end) => Some(end),
        end => reached.range(end.map_or(0, |end| end + 1)..).next().map(|(after, _)| *after),
    };
    while let Some(after) = begins_at(epochs.last().map(|epoch| epoch.last)) {
        let Some(at) = reached.get(&after).map(|(_, piece)| *piece) else { break };
        let (piece, object) = pieces[at].clone();
        let Piece { level, after, last, last_time_ms, raw_bytes, position } = piece;
        match epochs.last().map(|epoch| epoch.last) {
            Some(end) if after > end => {
                remarks.push(format!(
                    "commits after {end} and up to {after} are lost, unless a copy of the whole has them"
                ));
                epochs.push(empty(name, after));
            }
            Some(_) => {}
            None => epochs.push(empty(name, after)),
        }
        let Some(epoch) = epochs.last_mut() else { continue };
        epoch.log.push(LogObject { level, after, last, last_time_ms, raw_bytes, object });
        (epoch.last, epoch.last_time_ms) = (last, last_time_ms);
        epoch.position = position.unwrap_or_default();
    }
    for ((commit, _), parts) in parts {
        let count = parts.len() as u64;
        let is_whole = parts.keys().copied().eq(0..count) && parts.values().next_back().is_some_and(|it| it.0.is_last);
        let Some((first, _)) = parts.values().next().cloned().filter(|_| is_whole) else {
            remarks.push(format!("the copy of commit {commit} is not whole, and is not used"));
            continue;
        };
        let base = Base {
            commit,
            time_ms: first.time_ms,
            page_bytes: first.page_bytes,
            on: first.on,
            position: Some(first.position.clone()),
            parts: parts.into_values().map(|(_, object)| object).collect(),
        };
        add_base(&mut epochs, name, base, first.position);
    }
    epochs.retain_mut(|epoch| {
        drop_unfounded(epoch, remarks);
        let is_used = epoch.starts().next().is_some();
        if !is_used {
            remarks
                .push(format!("the commits up to {} have no copy of the whole before them, and are lost", epoch.last));
        }
        is_used
    });
    epochs
}

/// Returns, for each commit behind which a piece begins, the farthest commit to which pieces lead from there without a gap, and the piece that leads
/// there, by its place; of several the longest, to which others were put together. A shorter way may have a piece that was never named.
fn reach(pieces: &[(Piece, NamedObject)]) -> BTreeMap<u64, (u64, usize)> {
    let mut order: Vec<usize> = (0..pieces.len()).filter(|at| pieces[*at].0.last > pieces[*at].0.after).collect();
    order.sort_by_key(|at| Reverse((pieces[*at].0.after, pieces[*at].0.last)));
    let mut reached: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for at in order {
        let piece = &pieces[at].0;
        let end = reached.get(&piece.last).map_or(piece.last, |(end, _)| *end);
        if reached.get(&piece.after).is_none_or(|(other, _)| *other < end) {
            reached.insert(piece.after, (end, at));
        }
    }
    reached
}

fn empty(name: &EpochName, after: u64) -> Epoch {
    Epoch {
        id: name.id,
        database: name.database.clone(),
        begun_by: name.begun_by.clone(),
        bases: Vec::new(),
        log: Vec::new(),
        position: String::new(),
        last: after,
        last_time_ms: 0,
    }
}

/// Adds a base to the part of an epoch from which its log leads on; without one, to a new part.
fn add_base(epochs: &mut Vec<Epoch>, name: &EpochName, base: Base, position: String) {
    let commit = base.commit;
    let begins_at = |epoch: &Epoch| epoch.log.first().map_or(epoch.last, |log| log.after);
    // The first part whose end is not before the base; a base may also be ahead of the last one.
    let at = epochs.iter().position(|epoch| epoch.last >= commit).unwrap_or(epochs.len().saturating_sub(1));
    let fits = epochs.get(at).is_some_and(|epoch| at == 0 || begins_at(epoch) <= commit);
    if !fits {
        epochs.insert(at, Epoch { last_time_ms: base.time_ms, position, ..empty(name, commit) });
    }
    let Some(epoch) = epochs.get_mut(at) else { return };
    let place = epoch.bases.partition_point(|other| other.commit <= commit);
    epoch.bases.insert(place, base);
}

/// Drops bases that no manifest named, and increments without the base on which they stand.
fn drop_unfounded(epoch: &mut Epoch, remarks: &mut Vec<String>) {
    let mut founded: Vec<Base> = Vec::new();
    for base in epoch.bases.drain(..) {
        let Some(on) = base.on else {
            founded.push(base);
            continue;
        };
        // An increment stands on the base before it, so bases between the two were never named.
        let place = founded.iter().rposition(|other| other.commit == on.commit);
        match place {
            Some(place) => {
                founded.truncate(place + 1);
                founded.push(base);
            }
            None => remarks.push(format!("the increment of commit {} lacks the base on which it stands", base.commit)),
        }
    }
    epoch.bases = founded;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Foundation;

    fn sound(sequence: u64, content: Content, name: &str) -> Sound {
        let epoch = EpochName::of(&empty_epoch());
        let label = Label { history: "h".into(), sequence, epoch, content };
        Sound { label, object: NamedObject::new(name.into(), b"") }
    }

    fn empty_epoch() -> Epoch {
        Epoch {
            id: 1,
            database: "d".into(),
            begun_by: "s".into(),
            bases: Vec::new(),
            log: Vec::new(),
            position: String::new(),
            last: 0,
            last_time_ms: 0,
        }
    }

    fn log(after: u64, last: u64) -> Sound {
        let position = Some(format!("p{last}"));
        let piece = Piece { level: 0, after, last, last_time_ms: last, raw_bytes: 1, position };
        sound(last, Content::Log(piece), &format!("log {after} {last}"))
    }

    fn part(commit: u64, on: Option<u64>, number: u64, is_last: bool) -> Sound {
        let on = on.map(|commit| Foundation { commit, log_bytes: 0 });
        let position = format!("p{commit}");
        let part = Part { commit, time_ms: commit, page_bytes: 512, on, position, number, is_last };
        sound(commit, Content::Base(part), &format!("base {commit}/{number}"))
    }

    /// The commits of the bases of an epoch, and the pieces of its log.
    type Outline = (Vec<u64>, Vec<(u64, u64)>);

    /// Puts objects together in any order. Returns of each epoch the commits of its bases and the pieces of its log, and the number of remarks.
    fn assembled(begun: Vec<Epoch>, mut objects: Vec<Sound>) -> (Vec<Outline>, usize) {
        let mut outcomes = Vec::new();
        for seed in 0..5 {
            fastrand::Rng::with_seed(seed).shuffle(&mut objects);
            let (mut assembly, mut remarks) = (Assembly::new(begun.clone()), Vec::new());
            assembly.add(objects.clone());
            let epochs = assembly.finish(&mut remarks);
            let commits = |epoch: &Epoch| epoch.bases.iter().map(|base| base.commit).collect();
            let pieces = |epoch: &Epoch| epoch.log.iter().map(|log| (log.after, log.last)).collect();
            outcomes.push((epochs.iter().map(|it| (commits(it), pieces(it))).collect(), remarks.len()));
        }
        assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]), "{outcomes:?}");
        outcomes.remove(0)
    }

    #[test]
    fn pieces_and_bases_become_the_longest_history_without_a_gap() {
        let objects = vec![part(5, None, 0, false), part(5, None, 1, true), log(5, 8), log(8, 9), log(9, 20)];
        assert_eq!(assembled(vec![], objects.clone()), (vec![(vec![5], vec![(5, 8), (8, 9), (9, 20)])], 0));
        // Two that were put together, and one that no manifest named and that leads nowhere.
        let more = [objects.clone(), vec![log(5, 9), log(8, 12)]].concat();
        assert_eq!(assembled(vec![], more), (vec![(vec![5], vec![(5, 9), (9, 20)])], 0));
        // An increment, one without its base, and a base that was begun and not named.
        let more = [
            objects.clone(),
            vec![
                part(9, Some(5), 0, true),
                part(15, Some(9), 0, true),
                part(12, None, 0, true),
                part(18, Some(7), 0, true),
            ],
        ];
        assert_eq!(assembled(vec![], more.concat()), (vec![(vec![5, 9, 15], vec![(5, 8), (8, 9), (9, 20)])], 1));
        // A base that lacks its last part counts for nothing.
        assert_eq!(assembled(vec![], objects[..1].to_vec()), (vec![], 1));
        assert_eq!(assembled(vec![], objects[2..].to_vec()), (vec![], 1));
    }

    #[test]
    fn a_gap_ends_a_history_and_a_base_behind_it_begins_another() {
        let objects = vec![part(5, None, 0, true), log(5, 8), log(12, 20), part(15, None, 0, true), log(20, 22)];
        let expected = vec![(vec![5], vec![(5, 8)]), (vec![15], vec![(12, 20), (20, 22)])];
        assert_eq!(assembled(vec![], objects.clone()), (expected, 1));
        // The gap has a base, and the end is behind the log.
        let more = [objects, vec![part(10, None, 0, true), part(30, None, 0, true)]].concat();
        let expected = vec![(vec![5], vec![(5, 8)]), (vec![10], vec![]), (vec![15, 30], vec![(12, 20), (20, 22)])];
        assert_eq!(assembled(vec![], more), (expected, 1));
    }

    #[test]
    fn a_copy_of_the_manifest_is_continued_by_what_was_written_after_it() {
        let (begun, _) = {
            let mut assembly = Assembly::new(vec![]);
            assembly.add(vec![part(5, None, 0, true), log(5, 8)]);
            (assembly.finish(&mut Vec::new()), ())
        };
        let more = vec![log(8, 11), part(9, Some(5), 0, true), log(5, 11)];
        assert_eq!(assembled(begun, more), (vec![(vec![5, 9], vec![(5, 8), (8, 11)])], 0));
    }
}
