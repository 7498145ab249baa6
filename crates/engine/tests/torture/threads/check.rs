//! Checks that a database showed only states that it may show, given the commits that its threads attempted and their times.
//!
//! A view is the content at some moment: a snapshot of a running database, or the content after a power cut. The commits
//! have one order, in which a commit acknowledged before another was begun comes first, and every view shows a
//! first part of it. So from each view follows a position in every thread's list of commits, and:
//! 1. a view shows no commit that was begun after the view, or that was refused;
//! 2. it shows every commit that was acknowledged before the view was taken (a snapshot), or had become durable (a power cut);
//! 3. with a commit it shows every commit acknowledged before that one was begun;
//! 4. the keys that only one thread writes are exactly as its commits up to the position left them, a commit whole or missing;
//! 5. the keys that several threads write follow from the commits shown: a list has each of them once, in an order that agrees
//!    with time and with the other lists; a key has the value of a commit to it that no other such commit certainly came after;
//! 6. of two views one shows every commit that the other shows, and lists begin alike;
//! 7. a commit that was to be durable and that a snapshot showed is kept by every later power cut, acknowledged or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::history::{HistoryRecord, Op, Outcome, Tick, Write, id_of, value};
use crate::story::{Model, Rows, difference, key_of};

/// The content of the database at one moment, and the bounds of that moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View {
    pub(crate) found: Model,
    /// The latest tick of the moment: every commit in the view began before it.
    pub(crate) until: Tick,
    /// The earliest tick of the moment: every call that ended before it counts as having ended before the view.
    pub(crate) from: Tick,
    /// Whether the view is a snapshot, which shows every acknowledged commit; a power cut keeps only the durable ones.
    pub(crate) is_snapshot: bool,
}

/// Checks the views of one life of a database.
#[derive(Debug)]
pub(crate) struct Checker<'a> {
    /// The content at the beginning of the run.
    base: &'a Model,
    history: &'a HistoryRecord,
    thread_of: BTreeMap<u32, (usize, usize)>,
    seen: Vec<Vec<usize>>,
    /// For each snapshot, the tick at which it had been taken, and for each thread the position up to which it showed
    /// commits to be durable.
    shown_durable: Vec<(Tick, Vec<usize>)>,
    longest: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(crate) fn own(thread: usize) -> String {
    format!("own-{thread}")
}

pub(crate) const MARKS: &str = "marks";
pub(crate) const LISTS: &str = "lists";
pub(crate) const SHARED: &str = "shared";

/// Returns whether a table belongs to a loader.
pub(crate) fn is_loaded(table: &str, loader: usize) -> bool {
    table.starts_with(&format!("bulk-{loader}-"))
}

impl<'a> Checker<'a> {
    pub(crate) fn new(base: &'a Model, history: &'a HistoryRecord) -> Self {
        let mut thread_of = BTreeMap::new();
        for (thread, ops) in history.threads.iter().enumerate() {
            thread_of.extend(ops.iter().enumerate().map(|(at, op)| (op.id, (thread, at))));
        }
        Self { base, history, thread_of, seen: Vec::new(), shown_durable: Vec::new(), longest: BTreeMap::new() }
    }

    /// Checks a view, also against the views checked before.
    ///
    /// # Errors
    /// A description of the rule that the view breaks.
    pub(crate) fn check(&mut self, view: &View) -> Result<(), String> {
        let mut positions = vec![0; self.history.threads.len()];
        for (writer, position) in positions.iter_mut().enumerate().take(self.history.writers) {
            *position = self.position_of_writer(view, writer)?;
        }
        // The position of one loader may raise the least position of another.
        loop {
            let before = positions.clone();
            self.find_loaders(view, &mut positions)?;
            if positions == before {
                break;
            }
        }
        self.check_order(view, &positions)?;
        for (writer, position) in positions.iter().enumerate().take(self.history.writers) {
            self.check_own(view, writer, *position)?;
        }
        self.check_tables(view)?;
        self.check_shared(view, &positions)?;
        self.check_lists(view, &positions)?;
        if view.is_snapshot {
            let durable = |(thread, position): (usize, &usize)| {
                let ops = &self.history.threads[thread][..*position];
                ops.iter().rposition(|op| op.is_sync && op.outcome != Outcome::Refused).map_or(0, |at| at + 1)
            };
            // The position of a loader is the least one that fits, so its real position was not smaller.
            let shown = positions.iter().enumerate().map(durable).collect();
            self.shown_durable.push((view.until, shown));
        }
        self.check_others(positions)
    }

    /// Returns the commits of a thread that a view at `position` contains, in order.
    fn shown(&self, thread: usize, position: usize) -> impl Iterator<Item = &Op> {
        self.history.threads[thread][..position].iter().filter(|op| op.outcome != Outcome::Refused)
    }

    fn all_shown<'b>(&'b self, positions: &'b [usize]) -> impl Iterator<Item = &'b Op> {
        positions.iter().enumerate().flat_map(|(thread, position)| self.shown(thread, *position))
    }

    fn position_of_writer(&self, view: &View, writer: usize) -> Result<usize, String> {
        let mark = |model: &Model| model.get(MARKS)?.get(&key_of(writer as u32)).cloned();
        let found = mark(&view.found);
        if found == mark(self.base) {
            return Ok(0);
        }
        let id = found.as_ref().and_then(|found| id_of(found));
        let id = id.ok_or_else(|| format!("the mark of writer {writer} is {found:?}"))?;
        let Some((thread, at)) = self.thread_of.get(&id).copied() else {
            return Err(format!("writer {writer} is at commit {id}, which no thread tried in this life"));
        };
        let op = &self.history.threads[thread][at];
        if thread != writer || op.outcome == Outcome::Refused {
            return Err(format!("writer {writer} is at commit {id}, of thread {thread}: {:?}", op.outcome));
        }
        Ok(at + 1)
    }

    /// Sets the positions of the loaders to the states of their tables that the view shows; of several equal states to
    /// the oldest allowed one.
    fn find_loaders(&self, view: &View, positions: &mut [usize]) -> Result<(), String> {
        for (loader, thread) in (self.history.writers..self.history.threads.len()).enumerate() {
            let found = part(&view.found, |table| is_loaded(table, loader));
            let mut model = part(self.base, |table| is_loaded(table, loader));
            let least = self.least(view, thread, self.barrier(view, positions));
            let ops = &self.history.threads[thread];
            let mut position = None;
            for at in 0..=ops.len() {
                if at > 0 && ops[at - 1].outcome != Outcome::Refused {
                    apply(&mut model, &ops[at - 1]);
                }
                if at >= least && model == found {
                    position = Some(at);
                    break;
                }
            }
            positions[thread] = position.ok_or_else(|| {
                let names: Vec<_> = found.iter().map(|(name, rows)| format!("{name}: {} rows", rows.len())).collect();
                format!("loader {loader} must have done at least {least} of {}, not shown by {names:?}", ops.len())
            })?;
        }
        Ok(())
    }

    /// Returns a tick such that every call that ended before it must be in the view.
    fn barrier(&self, view: &View, positions: &[usize]) -> Tick {
        let shown = self.all_shown(positions).map(|op| op.invoked).max().unwrap_or(0);
        if view.is_snapshot {
            return shown.max(view.from);
        }
        let before = |ended: Tick| ended < view.from;
        let synced = self.history.syncs.iter().filter(|(_, ended)| before(*ended)).map(|(begun, _)| *begun);
        let committed = self.history.threads.iter().flatten();
        let committed = committed.filter(|op| op.is_sync && op.acknowledged().is_some_and(before)).map(|op| op.invoked);
        synced.chain(committed).max().unwrap_or(0).max(shown)
    }

    /// Returns the least position of a thread that the view allows.
    fn least(&self, view: &View, thread: usize, barrier: Tick) -> usize {
        let must = |op: &Op| {
            op.acknowledged().is_some_and(|at| at < barrier || at < view.from && (op.is_sync || view.is_snapshot))
        };
        let least = self.history.threads[thread].iter().rposition(must).map_or(0, |at| at + 1);
        let earlier = self.shown_durable.iter().filter(|(taken, _)| *taken < view.from);
        earlier.map(|(_, shown)| shown[thread]).max().unwrap_or(0).max(least)
    }

    fn check_order(&self, view: &View, positions: &[usize]) -> Result<(), String> {
        let barrier = self.barrier(view, positions);
        for (thread, position) in positions.iter().enumerate() {
            let least = self.least(view, thread, barrier);
            if *position < least {
                let op = &self.history.threads[thread][least - 1];
                return Err(format!(
                    "thread {thread} shows {position} of {least} commits that it must: lost is {op:?}; all that ended before \
                     tick {barrier} is there"
                ));
            }
            if let Some(op) = self.shown(thread, *position).find(|op| op.invoked > view.until) {
                return Err(format!("thread {thread} shows a commit that was begun later: {op:?}"));
            }
        }
        Ok(())
    }

    fn check_own(&self, view: &View, writer: usize, position: usize) -> Result<(), String> {
        let name = own(writer);
        let mut expected = part(self.base, |table| table == name);
        for op in self.shown(writer, position) {
            apply(&mut expected, op);
        }
        expected.retain(|table, _| *table == name);
        let found = part(&view.found, |table| table == name);
        if found == expected {
            return Ok(());
        }
        let last = self.shown(writer, position).last();
        Err(format!("the keys of writer {writer} are not those after {last:?}: {}", difference(&expected, &found)))
    }

    fn check_tables(&self, view: &View) -> Result<(), String> {
        let loaders = self.history.threads.len() - self.history.writers;
        let fixed = |model: &Model| -> Vec<String> {
            let is_fixed = |name: &&String| !(0..loaders).any(|loader| is_loaded(name, loader));
            model.keys().filter(is_fixed).cloned().collect()
        };
        let (expected, found) = (fixed(self.base), fixed(&view.found));
        if found == expected { Ok(()) } else { Err(format!("tables are {found:?} instead of {expected:?}")) }
    }

    /// Checks the keys that all writers set and delete.
    fn check_shared(&self, view: &View, positions: &[usize]) -> Result<(), String> {
        let mut writers: BTreeMap<Vec<u8>, Vec<(&Op, Option<usize>)>> = BTreeMap::new();
        for op in self.all_shown(positions) {
            let mut last = BTreeMap::new();
            for write in &op.writes {
                match write {
                    Write::Put { table, key, len } if table == SHARED => last.insert(*key, Some(*len)),
                    Write::Delete { table, key } if table == SHARED => last.insert(*key, None),
                    _ => None,
                };
            }
            for (key, len) in last {
                writers.entry(key_of(key)).or_default().push((op, len));
            }
        }
        let (base, found) = (rows(self.base, SHARED), rows(&view.found, SHARED));
        for key in base.keys().chain(found.keys()).chain(writers.keys()).collect::<BTreeSet<_>>() {
            let (name, value_found) = (String::from_utf8_lossy(key), found.get(key));
            let Some(ops) = writers.get(key) else {
                if base.get(key) == value_found {
                    continue;
                }
                return Err(format!("{SHARED}/{name} changed and no commit shown changed it"));
            };
            let is_last = |op: &Op| {
                let after = |other: &&(&Op, Option<usize>)| op.acknowledged().is_some_and(|at| at < other.0.invoked);
                !ops.iter().any(|other| after(&other))
            };
            let explains = |(op, len): &(&Op, Option<usize>)| {
                len.map(|len| value(op.id, len)).as_deref() == value_found.map(|found| &**found) && is_last(op)
            };
            if !ops.iter().any(explains) {
                let id = value_found.and_then(|found| id_of(found));
                return Err(format!("{SHARED}/{name} is of commit {id:?}, which is not a last one of {ops:?}"));
            }
        }
        Ok(())
    }

    fn check_lists(&mut self, view: &View, positions: &[usize]) -> Result<(), String> {
        let mut expected: BTreeMap<Vec<u8>, BTreeSet<u32>> = BTreeMap::new();
        for op in self.all_shown(positions) {
            for write in &op.writes {
                if let Write::Append { list } = write {
                    expected.entry(key_of(*list)).or_default().insert(op.id);
                }
            }
        }
        let (base, found) = (rows(self.base, LISTS), rows(&view.found, LISTS));
        let mut pairs: BTreeMap<(u32, u32), Vec<u8>> = BTreeMap::new();
        for key in base.keys().chain(found.keys()).chain(expected.keys()).collect::<BTreeSet<_>>() {
            let name = String::from_utf8_lossy(key);
            let empty: Arc<[u8]> = Arc::default();
            let (before, now) = (base.get(key).unwrap_or(&empty), found.get(key).unwrap_or(&empty));
            let Some(added) = now.strip_prefix(&**before) else {
                return Err(format!("list {name} does not begin as it did"));
            };
            let added: Vec<u32> = added.chunks(4).filter_map(id_of).collect();
            let unique: BTreeSet<u32> = added.iter().copied().collect();
            let wanted = expected.get(key).cloned().unwrap_or_default();
            if unique != wanted || unique.len() != added.len() {
                return Err(format!("list {name} has {added:?}, and the commits shown appended {wanted:?}"));
            }
            for (at, first) in added.iter().enumerate() {
                for second in &added[at + 1..] {
                    let (before, after) = (self.op(*first), self.op(*second));
                    if after.acknowledged().is_some_and(|ended| ended < before.invoked) {
                        return Err(format!("list {name} has {first} before {second}, which had ended earlier"));
                    }
                    if pairs.contains_key(&(*second, *first)) {
                        return Err(format!("list {name} has {first} before {second}, another list the other way"));
                    }
                    pairs.insert((*first, *second), key.clone());
                }
            }
            let longest = self.longest.entry(key.clone()).or_default();
            let shared = longest.len().min(now.len());
            if longest[..shared] != now[..shared] {
                return Err(format!("list {name} is {now:?} here and {longest:?} in another view"));
            }
            if now.len() > longest.len() {
                *longest = now.to_vec();
            }
        }
        Ok(())
    }

    fn op(&self, id: u32) -> &Op {
        let (thread, at) = self.thread_of[&id];
        &self.history.threads[thread][at]
    }

    /// Checks, for any two views, that one shows everything in the other (rule 6). Loaders are left out: their position is
    /// the least possible one.
    fn check_others(&mut self, mut positions: Vec<usize>) -> Result<(), String> {
        positions.truncate(self.history.writers);
        for (thread, position) in positions.iter_mut().enumerate() {
            *position = self.shown(thread, *position).count();
        }
        for other in &self.seen {
            let pairs = || positions.iter().zip(other);
            if pairs().any(|(a, b)| a < b) && pairs().any(|(a, b)| a > b) {
                return Err(format!("one view shows {positions:?} commits of the writers, another {other:?}"));
            }
        }
        self.seen.push(positions);
        Ok(())
    }
}

fn rows(model: &Model, table: &str) -> Arc<Rows> {
    model.get(table).cloned().unwrap_or_default()
}

fn part(model: &Model, keep: impl Fn(&str) -> bool) -> Model {
    model.iter().filter(|(name, _)| keep(name)).map(|(name, rows)| (name.clone(), rows.clone())).collect()
}

/// Applies a commit to the tables in `model`. Its writes to other tables are left out, and so are appends to lists.
pub(crate) fn apply(model: &mut Model, op: &Op) {
    for write in &op.writes {
        match write {
            Write::Put { table, key, len } => {
                if let Some(rows) = model.get_mut(table) {
                    Arc::make_mut(rows).insert(key_of(*key), value(op.id, *len).into());
                }
            }
            Write::Delete { table, key } => {
                if let Some(rows) = model.get_mut(table) {
                    Arc::make_mut(rows).remove(&key_of(*key));
                }
            }
            Write::Append { .. } => {}
            Write::Create { table } => drop(model.insert(table.clone(), Arc::default())),
            Write::Load { table, first, count } => {
                let rows = loaded(op.id, *first, *count).map(|(key, value)| (key, value.into())).collect();
                model.insert(table.clone(), Arc::new(rows));
            }
            Write::Drop { table } => drop(model.remove(table)),
        }
    }
}

/// Returns the rows of a bulk load, in order.
pub(crate) fn loaded(id: u32, first: u32, count: u32) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (first..first + count).map(move |key| (key_of(key), value(id, 4 + (key as usize * 13) % 70)))
}

mod tests;
