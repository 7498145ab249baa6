//! The writing side of a shipper: the remote, the manifest that it has written last, and names that no other object has.

use std::collections::BTreeSet;
use std::time::SystemTime;

use crate::clock::{ClockMark, Reading, Step, forgetting_ms, judge};
use crate::error::{Error, ErrorKind, Result};
use crate::history::clock_step;
use crate::label::{Content, Label};
use crate::manifest::{Current, EpochName, Found, FoundStep, Manifest, refuse_lost, way_out};
use crate::names::{copy_name, parse_copy, random_id};
use crate::newest::{Age, age, orphans};
use crate::object::{ObjectWriter, commit_time, time_to_ms};
use crate::options::ShipOptions;
use crate::rebuild::recovered;
use crate::remote::{ListedObject, Remote};

/// Attempts to take a name over from a shipper that keeps advancing its manifest. Each takes two requests, as many as the other
/// one needs to advance.
const TAKEOVERS_MAX: u32 = 100;
/// Copies of the manifest that are kept.
const COPIES: usize = 8;

/// The writing side of a shipper.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) remote: Remote,
    pub(crate) options: ShipOptions,
    pub(crate) current: Current,
    /// The warnings for a person.
    pub(crate) warnings: Vec<String>,
    /// The number of this shipper, which no other has, in hexadecimal.
    id: String,
    /// Number of objects that it has named.
    objects: u64,
    /// The last look at the clock. The next manifest gets it.
    mark: ClockMark,
    /// Sequence numbers of the copies of the manifest that are there.
    copies: BTreeSet<u64>,
}

/// The manifest to go on with.
struct Start {
    current: Current,
    warnings: Vec<String>,
    /// Names of objects that the shippers before have left unnamed.
    orphans: Vec<String>,
}

impl Writer {
    /// Takes a name over for a database, in hexadecimal: from now on no other writer changes its manifest. Changes nothing when it is refused. Also
    /// returns the names of the objects that the writers before have left unnamed. They were there before the name was taken over, so these writers can name nothing
    /// that the manifest does not have.
    ///
    /// # Errors
    /// The errors of the store; `Fenced` when others take it over at the same time, again and again; `Corrupt` when the manifest is lost,
    /// damaged or set back and `begin_with_base` is not set; `AlreadyExists` when the name is another database's and `take_over` is not set.
    pub(crate) async fn begin(
        remote: Remote,
        options: ShipOptions,
        database: &str,
        now: SystemTime,
    ) -> Result<(Self, Vec<String>)> {
        let id = random_id();
        for _ in 0..TAKEOVERS_MAX {
            // First the objects and then the manifest: objects of a newer writer are not among them.
            let present = remote.list().await?;
            let Start { current, warnings, orphans } = find(&remote, &options, &present).await?;
            let manifest = &current.manifest;
            refuse_another_database(manifest, &options, database)?;
            let history = if manifest.history.is_empty() { random_id() } else { manifest.history.clone() };
            let newest_ms = manifest.epochs.last().map(|epoch| epoch.newest().1);
            let (mark, step) = judge(manifest.clock.as_ref(), newest_ms, Reading::of(now), options.is_clock_trusted);
            let of_history =
                |it: &ListedObject| parse_copy(&it.name).filter(|(_, of)| *of == history).map(|(it, _)| it);
            let copies = present.iter().filter_map(of_history).filter(|it| *it <= manifest.sequence).collect();
            let (remote, options) = (remote.clone(), options.clone());
            let mut writer = Self { remote, options, current, warnings, id: id.clone(), objects: 0, mark, copies };
            writer.warn_of_clock(now, step.is_some());
            let step = writer.found_step(step);
            let advanced = writer.advance(|manifest| {
                manifest.writer.clone_from(&id);
                manifest.history = history;
                manifest.database = Some(database.to_owned());
                step.into_iter().for_each(|step| manifest.add_clock_step(step));
            });
            match advanced.await {
                Ok(()) => {
                    writer.keep_copy().await?;
                    return Ok((writer, orphans));
                }
                // The shipper to be fenced was faster.
                Err(error) if error.kind() == ErrorKind::Fenced => {}
                Err(error) => return Err(error),
            }
        }
        let what = "other shippers advance the manifest of this name all the time: end them first";
        Err(Error::new(ErrorKind::Fenced, what))
    }

    /// Replaces the manifest. See [`Current::advance`].
    pub(crate) async fn advance(&mut self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        let mark = self.mark.clone();
        let with_clock = |manifest: &mut Manifest| {
            change(manifest);
            manifest.clock = Some(mark);
        };
        self.current.advance(&self.remote, self.options.single_writer, with_clock).await
    }

    /// Writes a copy of the manifest next to it, and removes older ones. Objects shipped between two copies are found again by the labels of
    /// its objects.
    pub(crate) async fn keep_copy(&mut self) -> Result<()> {
        let Manifest { sequence, history, .. } = &self.current.manifest;
        let (sequence, history) = (*sequence, history.clone());
        self.remote.put(&copy_name(sequence, &history), self.current.manifest.encode()?).await?;
        self.copies.insert(sequence);
        while self.copies.len() > COPIES
            && let Some(oldest) = self.copies.pop_first()
        {
            self.remote.delete(&copy_name(oldest, &history)).await?;
        }
        Ok(())
    }

    /// Writes a copy of the last manifest, so that a swap for an older one is evident. Everything is shipped: it makes one attempt, and its failure
    /// fails nothing.
    pub(crate) async fn keep_last_copy(&mut self) {
        if !self.copies.contains(&self.current.manifest.sequence) {
            self.remote = self.remote.with_attempts(Some(1));
            let _ = self.keep_copy().await;
        }
    }

    /// Looks at the clock, and returns the time up to which history may be forgotten, in milliseconds, and a step that the next manifest must get.
    pub(crate) fn look_at_clock(&mut self, now: SystemTime) -> (u64, Option<FoundStep>) {
        let (mark, step) = judge(Some(&self.mark), None, Reading::of(now), self.options.is_clock_trusted);
        self.mark = mark;
        (forgetting_ms(&self.mark, time_to_ms(now)), self.found_step(step))
    }

    /// Warns of a clock that is still ahead of the verified time, so that it is known why space is not freed.
    fn warn_of_clock(&mut self, now: SystemTime, is_step: bool) {
        if !is_step && let Some(expected_ms) = self.mark.expected_instead() {
            let [now, expected] = [time_to_ms(now), expected_ms].map(commit_time).map(humantime::format_rfc3339_millis);
            self.warnings.push(format!(
                "the clock is still ahead: it shows {now}, and {expected} is expected, by which history is forgotten; see docs/clocks.md, or \
                 vouch for the clock (`nofault ship --trust-clock`)"
            ));
        }
    }

    /// Returns a step of the clock with the place in the history where it was found, and warns of it.
    fn found_step(&mut self, step: Option<Step>) -> Option<FoundStep> {
        let (step, epoch) = (step?, self.current.manifest.epochs.last()?);
        let commit = epoch.newest().0;
        let Step { expected_ms, found_ms } = step;
        let found = FoundStep { epoch: epoch.id, commit, expected_ms, found_ms };
        self.warnings.push(format!("{}; see docs/clocks.md", clock_step(&found)));
        Some(found)
    }

    /// Returns the time believed to have come, in milliseconds.
    pub(crate) fn believed_ms(&self) -> u64 {
        self.mark.believed_ms
    }

    /// Returns the number of this shipper.
    pub(crate) fn id(&self) -> String {
        self.id.clone()
    }

    /// Makes a name for a piece of the log.
    pub(crate) fn log_name(&mut self, last: u64) -> String {
        self.objects += 1;
        format!("log/{last:020}-{}-{}", self.id, self.objects)
    }

    /// Makes a name for a base, which its parts go on from.
    pub(crate) fn base_name(&mut self) -> String {
        self.objects += 1;
        format!("base/{}-{}", self.id, self.objects)
    }

    /// Ends an object of an epoch with its label.
    pub(crate) fn labelled(&self, object: ObjectWriter, epoch: EpochName, content: Content) -> Result<Vec<u8>> {
        let Manifest { history, sequence, .. } = &self.current.manifest;
        let label = Label { history: history.clone(), sequence: *sequence, epoch, content };
        Ok(object.finish_with(&label.encode()?))
    }
}

/// Finds the manifest to go on with. One that is lost, damaged or set back is replaced by one that is rebuilt, if the whole database is shipped
/// next; then the lost commits are among the warnings.
async fn find(remote: &Remote, options: &ShipOptions, present: &[ListedObject]) -> Result<Start> {
    let found = Found::look(remote).await?;
    let mut left = Vec::new();
    let refused = match &found {
        Found::Sound(current, _) => match age(remote, present, &current.manifest).await? {
            Age::SetBack(error) => Some(error),
            Age::Newest | Age::Unsure(_) => match orphans(remote, present, current).await {
                Err(error) if error.kind() == ErrorKind::Corrupt => Some(error),
                orphans => {
                    left = orphans?;
                    None
                }
            },
        },
        Found::Damaged(damage) => Some(way_out(&damage.error)),
        Found::Missing => refuse_lost(present).err(),
    };
    match (refused, found) {
        (None, Found::Sound(current, _)) => Ok(Start { current: *current, warnings: Vec::new(), orphans: left }),
        (None, _) => Ok(Start { current: Current::new(), warnings: Vec::new(), orphans: left }),
        (Some(error), found) if options.begin_with_base => {
            let (current, mut warnings) = recovered(remote, present, found).await?;
            warnings.insert(0, error.to_string());
            // A rebuilt manifest spares all.
            Ok(Start { current, warnings, orphans: Vec::new() })
        }
        (Some(error), _) => Err(error),
    }
}

fn refuse_another_database(manifest: &Manifest, options: &ShipOptions, database: &str) -> Result<()> {
    match manifest.database() {
        Some(other) if other != database && !options.take_over => {
            let newest = manifest.epochs.last().map(|epoch| epoch.newest().0).unwrap_or_default();
            let what = format!(
                "'{}' has the history of another database, {other}, up to commit {newest}, and this one is {database}: ship to another name, or \
                 take this one over (`nofault ship --take-over`, `ShipOptions::take_over`)",
                options.name
            );
            Err(Error::new(ErrorKind::AlreadyExists, what))
        }
        _ => Ok(()),
    }
}
