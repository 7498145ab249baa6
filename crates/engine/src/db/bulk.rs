//! Filling an empty table from sorted input, past the log.
//!
//! The section is held from the first page to the end of the checkpoint that makes the pages durable: so no later commit
//! can become durable before this one. Its record in the log is empty. A crash before the checkpoint leaves the table empty.

use std::sync::Arc;

use super::core::Core;
use super::wait::{Held, Mode, attempt, load};
use crate::error::{Error, ErrorKind, Result};
use crate::format::PageId;
use crate::format::node::{Cell, Node, OverflowRef, inline_value_bytes_max};
use crate::gate::block_on;
use crate::pages::{CommitLog, Durability, Edits, LogPosition, Pages, Store, Wait};
use crate::tree::Tree;
use crate::tree::build::Builder;
use crate::tree::overflow::VALUE_BYTES_MAX;
use crate::txn::Exclusive;

/// Bytes of pages that are published together: few enough that they are still in a core's cache when they are summed up, and that the
/// first are on their way to the disk while the next are filled.
const PORTION_BYTES: usize = 1 << 20;
/// Pages that there must be room for when a load goes on after it found none.
const ROOM_PAGES: usize = 256;

/// Why a portion ended.
enum Step {
    /// There is more to do at once.
    More,
    /// There is more to do once this is there.
    Wait(Wait),
    /// The caller's entries are wrong, or a page could not be written.
    Refused(Error),
    /// The root is written.
    Done,
}

impl From<Wait> for Step {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Failed(error) => Self::Refused(error),
            wait => Self::Wait(wait),
        }
    }
}

impl<S: Store, L: CommitLog> Core<S, L> {
    /// Fills `tree`, makes it visible, and calls `checkpoint` to make it durable. Answers the number of entries. Blocks.
    ///
    /// # Errors
    /// `InvalidCall` for a table that is not empty, or keys that do not ascend; what writing fails with: then the table stays empty. What
    /// `checkpoint` fails with: then nothing is committed any more, as the next commit in the log would be durable before this one.
    pub(crate) fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self: &Arc<Self>,
        tree: Tree,
        entries: impl Iterator<Item = (K, V)>,
        checkpoint: impl FnOnce() -> Result<()>,
    ) -> Result<u64> {
        block_on(async {
            let turn = self.commits.turn().acquire(1).await;
            let mut section = self.commits.occupy(turn)?;
            self.tables.refusal(tree).map_or(Ok(()), Err)?;
            // What is visible next must follow everything before it.
            self.wait_durable(Mode::Blocking, self.commits.last().position).await?;
            // Before there are pages that only a record can make part of the database.
            self.wait_for_room(Mode::Blocking, 0).await?;
            self.refuse_unless_empty(tree).await?;
            let mut load = Load { builder: Builder::new(tree, self.store.page_bytes()), long: Vec::new(), count: 0 };
            if let Err(error) = self.fill(&mut section, tree, entries, &mut load).await {
                self.take_back(&mut section, load.builder.pages(), &load.long).await?;
                // Neither in the log nor in a checkpoint: there is nothing that could fail.
                section.give_up();
                return Err(error);
            }
            let position = self.append_nothing(&mut section).await?;
            section.settle(Durability::Deferred, position);
            self.wait_durable(Mode::Blocking, position).await?;
            checkpoint().inspect_err(|error| self.commits.poison(error))?;
            Ok(load.count)
        })
    }

    async fn refuse_unless_empty(&self, tree: Tree) -> Result<()> {
        let look = || {
            let view = self.store.tip();
            let root = view.page(tree.root)?;
            let node = Node::open(tree.root, &root)?;
            Ok(node.level() == 0 && node.count() == 0)
        };
        if attempt(&*self.store, &self.admission, Mode::Blocking, look).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidCall, "bulk load: the table is not empty"))
    }

    async fn fill<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        section: &mut Exclusive<S, L>,
        tree: Tree,
        mut entries: impl Iterator<Item = (K, V)>,
        state: &mut Load,
    ) -> Result<()> {
        let inline_max = inline_value_bytes_max(self.store.page_bytes());
        let portion = (PORTION_BYTES / self.store.page_bytes()).min(self.store.edit_frames_max() / 2).max(1);
        let mut next = entries.next();
        let mut at: Option<OverflowRef> = None;
        let mut held = Held::default();
        loop {
            if let Some((_, value)) = &next
                && at.is_none()
                && value.as_ref().len() > inline_max
            {
                refuse_too_long(value.as_ref())?;
                at = self.write_long(section, tree, value.as_ref()).await?;
                state.long.extend(at);
            }
            let Load { builder, count, .. } = &mut *state;
            let written_before = builder.pages().len();
            let step = section.edit(|edits, _| {
                let mut fill = || {
                    builder.begin_portion(edits)?;
                    while let Some((key, value)) = &next {
                        let (key, value) = (key.as_ref(), value.as_ref());
                        let is_full = builder.pages().len() - written_before >= portion;
                        let cell = match at {
                            _ if is_full && !builder.goes_on_with(key, value) => return Ok(Step::More),
                            Some(at) => Cell::Overflow(at),
                            None if value.len() <= inline_max => Cell::Inline(value),
                            None => return Ok(Step::More),
                        };
                        builder.push(edits, key, cell)?;
                        *count += 1;
                        at = None;
                        // They may come from a database, and wait for frames there.
                        next = edits.aside(|| entries.next());
                    }
                    builder.finish(edits).map(|()| Step::Done)
                };
                let step = fill().unwrap_or_else(Step::from);
                builder.end_portion(edits);
                Ok(step)
            });
            self.store.write_soon(&builder.pages()[written_before..]);
            match step {
                Ok(Step::Done) => return Ok(()),
                Ok(Step::Refused(error)) => return Err(error),
                Ok(Step::More) => held = Held::default(),
                Ok(Step::Wait(wait)) | Err(wait) => {
                    // What was filled is published: only what comes next must find room, not all of it once more.
                    let wait = match wait {
                        Wait::Full { .. } => Wait::Full { frames: portion.min(ROOM_PAGES).max(builder.frames_max()) },
                        other => other,
                    };
                    load(&*self.store, &self.admission, Mode::Blocking, &mut held, &[wait]).await?;
                }
            }
        }
    }

    /// Frees the pages of a load that was given up.
    async fn take_back(&self, section: &mut Exclusive<S, L>, pages: &[PageId], long: &[OverflowRef]) -> Result<()> {
        let mut all = pages.to_vec();
        for value in long {
            all.extend(self.pages_of(Mode::Blocking, *value).await?);
        }
        let freed = section.edit(|edits, _| {
            all.iter().for_each(|page| edits.free(*page));
            Ok(())
        });
        freed.map_err(|wait| Error::new(ErrorKind::Bug, format!("freeing pages met {wait:?}")))
    }

    async fn append_nothing(&self, section: &mut Exclusive<S, L>) -> Result<LogPosition> {
        loop {
            match section.append(&[], Some(Durability::Deferred)) {
                Ok(position) => return Ok(position),
                Err(Wait::LogFull { len_bytes }) => self.wait_for_room(Mode::Blocking, len_bytes).await?,
                Err(Wait::Failed(error)) => return Err(error),
                Err(wait) => return Err(Error::new(ErrorKind::Bug, format!("the log met {wait:?}"))),
            }
        }
    }
}

/// A load under way.
struct Load {
    builder: Builder,
    /// Long values that were written.
    long: Vec<OverflowRef>,
    count: u64,
}

pub(super) fn refuse_too_long(value: &[u8]) -> Result<()> {
    if value.len() as u64 <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("a value of {} bytes; {VALUE_BYTES_MAX} is the most", value.len());
    Err(Error::new(ErrorKind::InvalidCall, message))
}
