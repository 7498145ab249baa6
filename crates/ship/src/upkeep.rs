//! Upkeep of the objects in a store: pieces of the log are put together, history too old to be restored is forgotten, and
//! objects that no manifest needs are removed.
//!
//! An object is first taken out of the manifest, with a note, and removed some time after that: a restore that has read the manifest before still finds it.
//! Objects that no manifest names were written by a shipper that ended before it could name them; the next one removes them when it
//! begins.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::fetch::Fetcher;
use crate::label::{Content, Piece};
use crate::manifest::{Epoch, EpochName, FoundStep, Garbage, LogObject, Manifest, NamedObject};
use crate::object::ObjectWriter;
use crate::writer::Writer;

/// Number of objects of one level that become one of the next.
const MERGED_AT_ONCE: usize = 16;
/// Highest level: so many commits that a shipper needs years to reach it.
const LEVEL_MAX: u8 = 6;
/// Bytes of an object before compression beyond which it is not made longer: the memory that a restore takes for it.
const MERGED_BYTES_MAX: u64 = 32 << 20;
/// Most objects removed in one look, while the commits wait: more than the pieces that are written until the next one.
const REMOVED_MAX: usize = 256;
/// Number of objects removed at the same time.
const REMOVED_AT_ONCE: usize = 16;
/// Longest time between two looks at objects that are not needed any more.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Does the upkeep that is due. `looked_at` is the time of the last look at objects that are not needed any more, and `now` the
/// time by the clock of the database, from which commits have theirs.
///
/// # Errors
/// `Corrupt` when a piece of the log is damaged or gone; [`Writer::advance`]'s errors.
pub(crate) async fn care(writer: &mut Writer, looked_at: &mut Option<Instant>, now: SystemTime) -> Result<()> {
    merge(writer).await?;
    let pause = LOOK_EVERY.min(writer.options.grace);
    if looked_at.is_none_or(|at| at.elapsed() >= pause) {
        forget(writer, now).await?;
        *looked_at = Some(Instant::now());
    }
    Ok(())
}

/// Puts the last pieces of the log together where there are enough of one level. Every commit stays.
async fn merge(writer: &mut Writer) -> Result<()> {
    while let Some(place) = writer.current.manifest.epochs.last().and_then(|epoch| mergeable(&epoch.log)) {
        let Some(epoch) = writer.current.manifest.epochs.last() else { return Ok(()) };
        let pieces = epoch.log[place.clone()].to_vec();
        let pieces @ [first, .., last] = &pieces[..] else { return Ok(()) };
        let (name, is_newest) = (EpochName::of(epoch), last.last == epoch.last);
        let position = Some(epoch.position.clone()).filter(|_| is_newest);
        let mut fetcher = Fetcher::new(&writer.remote, pieces.iter().map(|piece| piece.object.clone()).collect());
        let mut commits = Vec::new();
        while let Some(piece) = fetcher.next().await {
            commits.push(piece?);
        }
        let joined = spawn_blocking(move || {
            let mut joined = ObjectWriter::new();
            commits.iter().for_each(|piece| joined.push_raw(piece));
            joined
        });
        let ended = |error| Error::new(ErrorKind::Closed, format!("putting objects together ended: {error}"));
        let joined = joined.await.map_err(ended)?;
        let (level, raw_bytes) = (first.level + 1, joined.raw_bytes());
        let LogObject { last: last_commit, last_time_ms, .. } = *last;
        let content = Piece { level, after: first.after, last: last_commit, last_time_ms, raw_bytes, position };
        let bytes = writer.labelled(joined, name, Content::Log(content))?;
        let object = NamedObject::new(writer.log_name(last.last), &bytes);
        writer.remote.put(&object.name, bytes).await?;
        let merged = LogObject { level, after: first.after, raw_bytes, object, ..last.clone() };
        let since_ms = writer.believed_ms();
        let replaced = |manifest: &mut Manifest| {
            let Some(epoch) = manifest.epochs.last_mut() else { return };
            drop(epoch.log.splice(place, [merged]));
            let names = pieces.iter().map(|piece| piece.object.name.clone());
            manifest.garbage.extend(names.map(|name| Garbage { name, since_ms }));
        };
        writer.advance(replaced).await?;
        writer.keep_copy().await?;
    }
    Ok(())
}

/// Returns which pieces at the end of the log are to become one: the oldest pieces of one level, if there are enough of them, up to a
/// piece's maximum length.
fn mergeable(log: &[LogObject]) -> Option<Range<usize>> {
    let level = log.last()?.level;
    let start = log.len() - log.iter().rev().take_while(|piece| piece.level == level).count();
    if log.len() - start < MERGED_AT_ONCE || level >= LEVEL_MAX {
        return None;
    }
    let mut bytes = 0;
    let fits = |piece: &&LogObject| {
        bytes += piece.raw_bytes;
        bytes <= MERGED_BYTES_MAX
    };
    let count = log[start..].iter().take_while(fits).count();
    (count >= 2).then(|| start..start + count)
}

/// Takes old objects out of the manifest, and removes the objects taken out long enough ago: by the believed time, so that a clock that is
/// ahead removes nothing early.
async fn forget(writer: &mut Writer, now: SystemTime) -> Result<()> {
    let (forgetting_ms, step) = writer.look_at_clock(now);
    let (now_ms, ms) = (writer.believed_ms(), |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let (grace_ms, keep_ms) = (ms(writer.options.grace), ms(writer.options.keep));
    let is_over = |garbage: &Garbage| garbage.since_ms.saturating_add(grace_ms) <= now_ms;
    let over: Vec<_> =
        writer.current.manifest.garbage.iter().filter(|it| is_over(it)).take(REMOVED_MAX).cloned().collect();
    let names: Vec<&str> = over.iter().map(|garbage| garbage.name.as_str()).collect();
    remove(writer, &names).await?;
    let mut kept = writer.current.manifest.clone();
    forget_before(&mut kept, forgetting_ms.saturating_sub(keep_ms), now_ms);
    kept.garbage.retain(|garbage| !over.contains(garbage));
    step.into_iter().for_each(|step: FoundStep| kept.add_clock_step(step));
    if kept == writer.current.manifest {
        return Ok(());
    }
    writer.advance(|manifest| *manifest = kept).await?;
    writer.keep_copy().await
}

/// Takes objects out of the manifest that no restore of a time from `from_ms` on needs.
fn forget_before(manifest: &mut Manifest, from_ms: u64, now_ms: u64) {
    // The newest base that is old enough to restore the earliest time from: of the objects before it, only the bases are needed
    // that it stands on.
    let old_enough = |epoch: &Epoch| epoch.starts().rev().find(|(_, base)| base.time_ms <= from_ms).map(|(at, _)| at);
    let Some((at, base)) = manifest.epochs.iter().enumerate().rev().find_map(|(at, it)| Some((at, old_enough(it)?)))
    else {
        return;
    };
    // A chain that is not whole is left for `verify` to report.
    let Ok(needed) = manifest.epochs[at].chain(base).map(<[_]>::len) else { return };
    let mut names: Vec<String> = Vec::new();
    for epoch in manifest.epochs.drain(..at) {
        names.extend(epoch.bases.into_iter().flat_map(|base| base.parts).map(|part| part.name));
        names.extend(epoch.log.into_iter().map(|log| log.object.name));
    }
    let epoch = &mut manifest.epochs[0];
    let commit = epoch.bases[base].commit;
    names.extend(epoch.bases.drain(..base + 1 - needed).flat_map(|base| base.parts).map(|part| part.name));
    let old = epoch.log.iter().take_while(|log| log.last <= commit).count();
    names.extend(epoch.log.drain(..old).map(|log| log.object.name));
    manifest.garbage.extend(names.into_iter().map(|name| Garbage { name, since_ms: now_ms }));
}

/// Removes objects, several at the same time. Missing ones count as removed.
pub(crate) async fn remove(writer: &Writer, names: &[&str]) -> Result<()> {
    for names in names.chunks(REMOVED_AT_ONCE) {
        let mut removed = JoinSet::new();
        for name in names {
            let (remote, name) = (writer.remote.clone(), (*name).to_owned());
            removed.spawn(async move { remote.delete(&name).await });
        }
        while let Some(outcome) = removed.join_next().await {
            outcome.map_err(|error| Error::new(ErrorKind::Closed, format!("removing an object ended: {error}")))??;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::manifest::{Base, Foundation};
    use crate::object::ms_to_time;
    use crate::restore::{Point, choose};

    #[test]
    fn the_oldest_pieces_of_the_last_level_are_put_together_up_to_a_length() {
        let log = |pieces: &[(u8, u64, usize)]| -> Vec<LogObject> {
            let piece = |level, raw_bytes| LogObject {
                level,
                after: 0,
                last: 0,
                last_time_ms: 0,
                raw_bytes,
                object: NamedObject::new(String::new(), b""),
            };
            pieces.iter().flat_map(|(level, bytes, count)| vec![piece(*level, *bytes); *count]).collect()
        };
        assert_eq!(mergeable(&log(&[])), None);
        assert_eq!(mergeable(&log(&[(1, 5, 20), (0, 5, 15)])), None);
        assert_eq!(mergeable(&log(&[(1, 5, 20), (0, 5, 16)])), Some(20..36));
        assert_eq!(mergeable(&log(&[(2, 5, 1), (1, 3 << 20, 16)])), Some(1..11));
        assert_eq!(mergeable(&log(&[(1, 20 << 20, 40)])), None);
        assert_eq!(mergeable(&log(&[(LEVEL_MAX, 5, 40)])), None);
    }

    /// Commits with their times: one a millisecond, so the number of a commit is its time as well.
    fn random_manifest(rng: &mut fastrand::Rng) -> Manifest {
        let object = |name: String| NamedObject::new(name, b"");
        let mut manifest = Manifest::empty();
        let mut time_ms = 1000;
        for id in 1..=rng.u64(1..5) {
            time_ms += rng.u64(1..50);
            let mut epoch = Epoch {
                id,
                database: String::new(),
                begun_by: String::new(),
                bases: Vec::new(),
                log: Vec::new(),
                position: String::new(),
                last: time_ms,
                last_time_ms: time_ms,
            };
            for piece in 0..rng.u64(1..12) {
                if piece == 0 || rng.u8(..4) == 0 {
                    let parts = vec![object(format!("base {id} {piece}"))];
                    let before = epoch.bases.last().filter(|_| rng.bool());
                    let on = before.map(|base| Foundation { commit: base.commit, log_bytes: 0 });
                    epoch.bases.push(Base { commit: time_ms, time_ms, page_bytes: 512, on, position: None, parts });
                }
                let after = time_ms;
                time_ms += rng.u64(1..20);
                (epoch.last, epoch.last_time_ms) = (time_ms, time_ms);
                let (last, object) = (time_ms, object(format!("log {id} {piece}")));
                epoch.log.push(LogObject { level: 0, after, last, last_time_ms: last, raw_bytes: 1, object });
            }
            manifest.epochs.push(epoch);
        }
        manifest
    }

    /// The objects from which a time is restored.
    fn needed(manifest: &Manifest, time_ms: u64) -> Vec<String> {
        let Ok(way) = choose(manifest, Point::Time(ms_to_time(time_ms))) else { return Vec::new() };
        let base = way.last_base().unwrap();
        let is_needed = |log: &&LogObject| log.last > base.commit && log.after < time_ms;
        let log = way.epoch.log.iter().filter(is_needed).map(|log| &log.object);
        way.bases.iter().flat_map(|base| &base.parts).chain(log).map(|object| object.name.clone()).collect()
    }

    #[test]
    fn what_is_forgotten_is_needed_for_no_time_that_is_kept_and_nothing_else_is_kept() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let whole = random_manifest(&mut rng);
            let end = whole.epochs.last().map_or(0, |epoch| epoch.last) + 5;
            let from = rng.u64(990..end);
            let mut kept = whole.clone();
            forget_before(&mut kept, from, 7);
            for time in from..end {
                assert_eq!(needed(&kept, time), needed(&whole, time), "seed {seed}: {time} of {from}..{end}");
            }
            for time in 990..from {
                let found = needed(&kept, time);
                assert!(found.is_empty() || found == needed(&whole, time), "seed {seed}: {time}, before {from}");
            }
            let all: HashSet<&str> = whole.names().collect();
            assert_eq!(kept.names().collect::<HashSet<_>>(), all, "seed {seed}: an object was lost");
            let garbage: HashSet<&str> = kept.garbage.iter().map(|garbage| &*garbage.name).collect();
            assert!(needed(&whole, from).iter().all(|name| !garbage.contains(&**name)), "seed {seed}");
            // The first base is the one from which the first time is restored.
            if let Some(first) = needed(&whole, from).first() {
                assert_eq!(&kept.epochs[0].bases[0].parts[0].name, first, "seed {seed}");
            }
        }
    }
}
