//! Filling a table from sorted input, past the log: an empty table, or one whose content is replaced (`load` puts
//! that content into the input).
//!
//! The section is held from the first page to the end of the checkpoint that makes the pages durable: so no later commit
//! can become durable before this one. The log has no record of its entries: it is durable when recovery starts from it, and visible after
//! that. A crash before leaves the table as it was. The log has a record that there was a load, for those that follow the log
//! (`tail`); replay changes nothing by it, and it may be of a load that was taken back.
//!
//! Nothing of the content before is changed. The last step moves its root to another page, with a note in the catalog
//! that lets its pages be freed later, as a dropped table's are (`deferred_free`), and writes the new root.
//!
//! The caller's iterator runs while the section is held, so a call in the iterator that waits for the section would
//! never return: such a call is refused (`loads`).
//!
//! Where entries of the load expire, the commit has a note in the catalog that they have no rows in the index of expiry yet
//! (`expiry_removal`).
//!
//! A load stopped before that is taken back: its pages are freed in its own commit, which never becomes
//! visible, or is one without changes if the log has its record. Taking back reads and writes nothing and needs no frame, as a
//! failed disk may be the reason.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::SystemTime;

use super::core::Core;
use super::loads::{SortedEntries, refuse_too_long};
use super::pins::PinBudget;
use super::structure::CATALOG_PAGES;
use crate::btree::Tree;
use crate::btree::build::Builder;
use crate::btree::overflow::{LongRef, Writer, data_bytes, spread_at_once_max};
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{encode_replaced, encode_table, load_marker, replaced_to_be_freed, without_rows};
use crate::format::cell::{Cell, inline_value_bytes_max};
use crate::format::node::Node;
use crate::format::record::Change;
use crate::format::{CommitSeq, PageId};
use crate::ids::PageRuns;
use crate::pages::{Attempt, CommitLog, Durability, LogPosition, PageCopies, Pages, ReservationKind, Store, Wait};
use crate::sync::driver::block_on;
use crate::transaction::{CATALOG, Exclusive};

#[cfg(test)]
mod tests;

/// Bytes of pages published together: few enough that they are still in a core's cache when they are summed up, and that the
/// first are on their way to the disk while the next are filled.
const PORTION_BYTES: usize = 1 << 20;
/// Fewest free pages at which a load that ran out of free blocks continues.
const RESUME_FREE_PAGES: usize = 256;

/// The reason why a portion of a load ended.
enum Step {
    /// The portion is full: the next one begins at once.
    More,
    /// The next portion begins after this wait.
    Wait(Wait),
    /// The load is abandoned.
    Stopped(StopCause),
    /// All entries are in the tree; the nodes that are not full yet, and the root, are still to be written.
    Filled,
}

impl From<Wait> for Step {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Failed(error) => Self::Stopped(error.into()),
            wait => Self::Wait(wait),
        }
    }
}

/// The reason why a load is abandoned.
enum StopCause {
    /// The caller's entries are wrong, or a page could not be written.
    Failed(Error),
    /// The caller's iterator panicked with this payload.
    Panicked(Box<dyn Any + Send>),
}

impl From<Error> for StopCause {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A load's treatment of the entries that the table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum Present {
    /// There are none; where there are, the load is refused.
    Refuse,
    /// The entries of the load replace them all.
    Replace,
    /// All are removed, and there are none in their place: as with any removal, the reserve of free blocks may be used.
    Remove,
}

impl Present {
    fn reservation(self) -> ReservationKind {
        if self == Self::Remove { ReservationKind::Reserve } else { ReservationKind::Ordinary }
    }
}

/// An entry of a bulk load: a key and its value; or these two and the time at which the entry expires, if it does. A program
/// may implement it for its types.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use nofault::db::BulkEntry;
///
/// struct Session {
///     token: [u8; 16],
///     user: String,
///     ends: SystemTime,
/// }
///
/// impl BulkEntry for Session {
///     type Key = [u8; 16];
///     type Value = String;
///
///     fn into_parts(self) -> ([u8; 16], String, Option<SystemTime>) {
///         (self.token, self.user, Some(self.ends))
///     }
/// }
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// let sessions = db.create_table("sessions")?;
/// let ends = db.now() + Duration::from_secs(3600);
/// sessions.bulk_load((0..100).map(|number| Session { token: [number; 16], user: format!("user {number}"), ends }))?;
/// assert_eq!(sessions.expiry([7; 16])?.map(|end| end >= ends), Some(true));
/// # Ok::<(), nofault::Error>(())
/// ```
pub trait BulkEntry {
    /// The type of the key.
    type Key;
    /// The type of the value.
    type Value;

    /// Returns the key, the value, and the time at which the entry expires, if it does.
    fn into_parts(self) -> (Self::Key, Self::Value, Option<SystemTime>);
}

impl<K, V> BulkEntry for (K, V) {
    type Key = K;
    type Value = V;

    fn into_parts(self) -> (K, V, Option<SystemTime>) {
        (self.0, self.1, None)
    }
}

impl<K, V> BulkEntry for (K, V, Option<SystemTime>) {
    type Key = K;
    type Value = V;

    fn into_parts(self) -> Self {
        self
    }
}

/// The commit of a load that is filled, in its last step.
pub(in crate::db) struct LoadCommit {
    pub(in crate::db) commit: CommitSeq,
    /// Whether entries of the load expire.
    pub(in crate::db) expires: bool,
}

/// Fills `tree`, calls `checkpoint` to make this commit durable, and makes it visible. Returns the number of entries.
/// The entries are asked for the first time when no other commit can change the table any more. After the last of them `expires`
/// tells whether any of them is new and expires. Blocks.
///
/// # Errors
/// The first error in `entries`; `InvalidCall` for a table with entries where they are refused, or keys that do not
/// ascend; the errors of writing: then the table stays as it was, as it does when `entries` panics (the panic continues
/// afterwards). When `checkpoint` fails with `Poisoned`, it is unknown whether this commit is durable, and nothing is
/// committed any more.
pub(in crate::db) fn load<S: Store, L: CommitLog>(
    core: &Core<S, L>,
    tree: Tree,
    present: Present,
    entries: &mut dyn SortedEntries,
    expires: &std::cell::Cell<bool>,
    checkpoint: &dyn Fn(LoadCommit) -> Result<()>,
) -> Result<u64> {
    block_on(async {
        core.committer.check_call()?;
        let (mut section, _precedence) = loop {
            let precedence = core.commits.precedence().wait().await;
            let turn = core.commits.turn().acquire(1).await;
            if let Some(section) = core.commits.occupy_for(turn, None)? {
                break (section, precedence);
            }
        };
        let _loading = core.committer.loads.begin();
        core.tables.refusal(tree).map_or(Ok(()), Err)?;
        // The next durable and visible commit must follow everything before it.
        let position = core.commits.last().position;
        core.waits.durable(position).await?;
        let page_bytes = core.store.page_bytes();
        let builder = Builder::new(tree, page_bytes, spread_at_once_max(page_bytes, core.store.copy_frames_max()));
        let kind = present.reservation();
        let mut load =
            BulkLoad { core, tree, kind, builder, long: PageRuns::default(), count: 0, before: None, note: None };
        let is_empty = is_empty(core, tree).await?;
        if !is_empty && present == Present::Refuse {
            return Err(Error::new(ErrorKind::InvalidCall, "bulk load: another commit has just filled the table"));
        }
        let mut marked = None;
        let filled = match load.fill(&mut section, entries).await {
            Ok(()) => {
                load.note = expires.get().then(|| without_rows(tree.table, section.seq()));
                match load.append_marker(&mut section).await {
                    Ok(position) => {
                        marked = Some(position);
                        load.finish(&mut section, is_empty).await.map_err(StopCause::Failed)
                    }
                    Err(error) => Err(StopCause::Failed(error)),
                }
            }
            stopped => stopped,
        };
        if let Err(stopped) = filled {
            load.take_back(&mut section)?;
            end_without_effect(&mut section, marked);
            drop(section);
            match stopped {
                StopCause::Failed(error) => return Err(error),
                StopCause::Panicked(why) => resume_unwind(why),
            }
        }
        load.make_durable(&mut section, marked, checkpoint).await?;
        let position = marked.unwrap_or(position);
        // The load is durable by now, so it becomes visible without another wait.
        section.take_effect(Durability::Deferred, position, Some(tree.table));
        if load.note.is_some() {
            core.expiries.set_without_rows();
        }
        Ok(load.count)
    })
}

/// Ends a load that was taken back. Without a record in the log its number is used up, and nothing can fail. With the record that
/// announces it, it is a commit without changes, as it is after the next opening: those that follow the log wait for it.
fn end_without_effect<S: Store, L: CommitLog>(section: &mut Exclusive<S, L>, marked: Option<LogPosition>) {
    match marked {
        Some(position) => section.take_effect_unseen(Durability::Deferred, position),
        None => section.abandon(),
    }
}

/// Returns whether a tree has no entry, not even one that has expired.
///
/// # Errors
/// The errors of reading the root.
pub(in crate::db) async fn is_empty<S: Store, L: CommitLog>(core: &Core<S, L>, tree: Tree) -> Result<bool> {
    let look = || {
        let view = core.store.latest_published();
        let root = view.page(tree.root)?;
        let node = Node::open(tree.root, &root)?;
        Ok(node.level() == 0 && node.count() == 0)
    };
    core.reader.loader.attempt(look).await
}

/// A bulk load in progress.
struct BulkLoad<'c, S: Store, L: CommitLog> {
    core: &'c Core<S, L>,
    tree: Tree,
    kind: ReservationKind,
    builder: Builder,
    /// All overflow pages written for long values.
    long: PageRuns,
    count: u64,
    /// The tree with the content that the table had before; `None` where it had none, or has it still.
    before: Option<Tree>,
    /// The key of the note in the catalog that entries of the load have no rows in the index of expiry yet, if any expires.
    note: Option<Vec<u8>>,
}

impl<S: Store, L: CommitLog> BulkLoad<'_, S, L> {
    async fn fill(
        &mut self,
        section: &mut Exclusive<S, L>,
        entries: &mut dyn SortedEntries,
    ) -> std::result::Result<(), StopCause> {
        let (core, tree, kind) = (self.core, self.tree, self.kind);
        let inline_max = inline_value_bytes_max(core.store.page_bytes());
        let portion = (PORTION_BYTES / core.store.page_bytes()).min(core.store.copy_frames_max() / 2).max(1);
        advance(core, entries)?;
        let mut at: Option<LongRef> = None;
        let mut pins = PinBudget::default();
        loop {
            if let Some((_, value, _)) = entries.entry()
                && at.is_none()
                && value.len() > inline_max
                && !self.builder.spreads(value)
            {
                refuse_too_long(value)?;
                let mut writer = Writer::new(value);
                let pages = value.len() / data_bytes(core.store.page_bytes()) * 65 / 64 + 3;
                let _reservation = core.reservations.reserve(pages, kind).await?;
                let written = core.committer.large.write_long(section, tree, &mut writer).await;
                writer.pages().iter().for_each(|page| self.long.push(*page));
                at = written?;
            }
            let Self { builder, count, .. } = &mut *self;
            let reservation = core.reservations.reserve(portion + builder.frames_max(), kind).await?;
            let step = section.edit(|copies, _| {
                let mut fill = || -> Attempt<Step> {
                    builder.begin_portion(copies)?;
                    while let Some((key, value, expiry)) = entries.entry() {
                        let is_full = builder.portion().len() >= portion;
                        let cell = match &at {
                            _ if is_full && !builder.goes_on_with(key, value) => return Ok(Step::More),
                            Some(at) => at.cell(),
                            None if value.len() <= inline_max || builder.spreads(value) => Cell::Inline(value),
                            None => return Ok(Step::More),
                        };
                        builder.push_until(copies, key, cell, expiry)?;
                        *count += 1;
                        at = None;
                        // The caller's iterator may read a database, and wait there for frames or for permits.
                        pins.release();
                        if let Err(stopped) = copies.unpinned(|| advance(core, entries)) {
                            return Ok(Step::Stopped(stopped));
                        }
                    }
                    Ok(Step::Filled)
                };
                let step = fill().unwrap_or_else(Step::from);
                builder.end_portion(copies);
                Ok(step)
            });
            drop(reservation);
            core.store.write_soon(builder.portion());
            match step {
                Ok(Step::Filled) => return Ok(()),
                Ok(Step::Stopped(stopped)) => return Err(stopped),
                Ok(Step::More) => pins = PinBudget::default(),
                Ok(Step::Wait(wait)) | Err(wait) => {
                    self.refuse_small_cache(&wait, self.builder.frames_max())?;
                    // The filled pages are published: only the next pages must find free blocks, not all of them once more.
                    let wait = match wait {
                        Wait::Full { .. } => {
                            Wait::Full { frames: portion.min(RESUME_FREE_PAGES).max(self.builder.frames_max()) }
                        }
                        other => other,
                    };
                    core.reader.loader.load(&mut pins, &[wait]).await?;
                }
            }
        }
    }

    /// Appends the record that says that this commit is a load. Returns its end in the log. The checkpoint makes it durable
    /// before the load.
    async fn append_marker(&self, section: &mut Exclusive<S, L>) -> Result<LogPosition> {
        let key = load_marker(self.tree.table, section.seq());
        let mut record = Vec::new();
        Change::Delete { table: CATALOG.table, key: &key }.encode_head(&mut record);
        loop {
            match section.append(&record, Some(Durability::Deferred)) {
                Ok(position) => return Ok(position),
                Err(Wait::LogFull { len_bytes }) => self.core.waits.await_space(len_bytes).await?,
                Err(Wait::Failed(error)) => return Err(error),
                Err(other) => return Err(Error::new(ErrorKind::Bug, format!("the log met {other:?}"))),
            }
        }
    }

    /// Writes the last nodes and the root, which replaces the content that the table had.
    async fn finish(&mut self, section: &mut Exclusive<S, L>, is_empty: bool) -> Result<()> {
        let (core, tree) = (self.core, self.tree);
        let mut pins = PinBudget::default();
        loop {
            let Self { builder, kind, note, .. } = &mut *self;
            let notes = usize::from(!is_empty) + usize::from(note.is_some());
            let pages = builder.frames_max() + notes * CATALOG_PAGES;
            let reservation = core.reservations.reserve(pages, *kind).await?;
            let by = section.seq();
            let written = section.edit(|copies, _| {
                let before = if is_empty { None } else { Some(move_content(copies, tree, by)?) };
                if let Some(note) = note {
                    let value = encode_table(tree.table, tree.root, Compression::None);
                    CATALOG.put(copies, note, Cell::Inline(&value))?;
                }
                // The last step that can meet a wait: after one the builder is as it was, and these copies are dropped.
                builder.finish(copies).map(|()| before)
            });
            drop(reservation);
            match written {
                Ok(before) => {
                    self.before = before;
                    core.store.write_soon(self.builder.portion());
                    return Ok(());
                }
                Err(Wait::Failed(error)) => return Err(error),
                Err(wait) => {
                    let needed = if let Wait::Full { frames } = wait { frames } else { 0 };
                    self.refuse_small_cache(&wait, needed)?;
                    core.reader.loader.load(&mut pins, &[wait]).await?;
                }
            }
        }
    }

    /// Returns an error where one step of the load needs more page copies than a commit may have: no wait would help.
    fn refuse_small_cache(&self, wait: &Wait, needed: usize) -> Result<()> {
        if !matches!(wait, Wait::Full { .. }) || needed <= self.core.store.copy_frames_max() {
            return Ok(());
        }
        let levels = self.builder.height();
        let what = format!("`cache_bytes` is too small for a bulk load that makes a tree of {levels} levels: raise it");
        Err(Error::new(ErrorKind::InvalidCall, what))
    }

    /// Makes a filled tree durable. With an error other than `Poisoned` it is as before the load, and this commit does not
    /// take place.
    async fn make_durable(
        &self,
        section: &mut Exclusive<S, L>,
        marked: Option<LogPosition>,
        checkpoint: &dyn Fn(LoadCommit) -> Result<()>,
    ) -> Result<()> {
        let core = self.core;
        let as_before = || {
            let mut copies = core.store.copies();
            if let Some(note) = &self.note {
                CATALOG.delete(&mut copies, note)?;
            }
            match self.before {
                Some(before) => move_content_back(&mut copies, self.tree, before)?,
                None => self.tree.empty(&mut copies)?,
            }
            Ok(copies)
        };
        // The pages needed to take the load back are prepared before: later there may be neither a disk nor free blocks.
        let as_before = core.reader.loader.attempt(as_before).await;
        let mut as_before = as_before.map_err(|error| {
            let what = format!("a load could be neither made durable nor taken back ({error}); reopen the database");
            let error = Error::new(ErrorKind::Poisoned, what);
            core.commits.poison(&error);
            error
        })?;
        let filled = LoadCommit { commit: section.seq(), expires: self.note.is_some() };
        let made = as_before.unpinned(|| checkpoint(filled));
        if let Err(error) = &made {
            if error.kind() == ErrorKind::Poisoned {
                core.commits.poison(error);
            } else {
                self.pages().for_each(|page| as_before.free(page));
                core.store.publish(as_before, section.seq());
                end_without_effect(section, marked);
            }
        }
        made
    }

    /// Frees the pages of an abandoned load. Does no I/O, because a failed disk may be the reason.
    fn take_back(&self, section: &mut Exclusive<S, L>) -> Result<()> {
        let freed = section.edit(|copies, _| {
            self.pages().for_each(|page| copies.free(page));
            Ok(())
        });
        freed.map_err(|wait| Error::new(ErrorKind::Bug, format!("freeing pages met {wait:?}")))
    }

    /// Returns every page that was published, except the root.
    fn pages(&self) -> impl Iterator<Item = PageId> {
        self.builder.pages().chain(self.long.iter())
    }
}

/// Moves the root of a table to another page, with a note in the catalog that lets the tree below it be freed. The root's
/// own page keeps its content until it is rewritten.
fn move_content<E: PageCopies>(copies: &mut E, tree: Tree, by: CommitSeq) -> Attempt<Tree> {
    let root = copies.page(tree.root)?.to_vec();
    let (moved, body) = copies.allocate(tree.root)?;
    body.copy_from_slice(&root);
    let (key, note) = (replaced_to_be_freed(tree.table, moved), encode_replaced(tree.table, moved, by));
    CATALOG.put(copies, &key, Cell::Inline(&note))?;
    Ok(Tree { root: moved, ..tree })
}

/// Undoes [`move_content`], which moved the root to the one of `before`.
fn move_content_back<E: PageCopies>(copies: &mut E, tree: Tree, before: Tree) -> Attempt<()> {
    let root = copies.page(before.root)?.to_vec();
    copies.edit(tree.root)?.copy_from_slice(&root);
    copies.free(before.root);
    CATALOG.delete(copies, &replaced_to_be_freed(tree.table, before.root)).map(drop)
}

/// Moves to the caller's next entry. A panic of its iterator is caught, so that half-published pages can be freed first. The load was
/// registered before, so closing the database waits for no load that asks for an entry after the check.
fn advance<S: Store, L: CommitLog>(
    core: &Core<S, L>,
    entries: &mut dyn SortedEntries,
) -> std::result::Result<(), StopCause> {
    core.commits.check_open()?;
    // The closure changes no state of the load, and the caller's iterator is not used again.
    catch_unwind(AssertUnwindSafe(|| entries.advance())).map_err(StopCause::Panicked)??;
    Ok(())
}
