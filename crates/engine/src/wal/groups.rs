//! Writing groups: takes the appended fragments, writes them in groups, and reports the groups durable in order.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{EndedQueue, Queue};
use nofault_io::error::Error as IoError;

use super::segments::FREE_TO_ASSIGN;
use super::waiting::{Goal, Leadership, Waiter};
use super::{Anchor, GROUP_BYTES_MAX, GROUPS_IN_FLIGHT, LogCore, LogOptions, LogState, Mark};
use crate::error::{Error, ErrorKind, Result};
use crate::events;
use crate::format::{
    CommitSeq, FRAGMENT_HEADER_BYTES, FragmentHeader, GROUP_HEADER_BYTES, GroupHeader, LOG_BLOCK_BYTES, Moment,
    encode_group,
};
use crate::pages::LogPosition;

/// Fewest pending bytes for which another group is sent while groups are in flight.
const PIPELINE_BYTES: usize = 16 << 10;

/// The state of writing that only the group-commit leader uses: the queue and the end of the chain of groups.
pub(super) struct Writer {
    queue: Box<dyn Queue>,
    last: Anchor,
    /// The number of this opening of the log, which every group carries.
    opening: u64,
    in_flight: VecDeque<GroupInFlight>,
    spare: Vec<IoBuf>,
    next_token: u64,
    options: LogOptions,
}

/// A group that is being written.
struct GroupInFlight {
    token: u64,
    anchor: Anchor,
    /// The position in the log behind this group.
    end_position: u64,
    /// Number of bytes of fragments up to the end of this group, on the scale of `LogPosition`.
    end: u64,
    /// The last commit whose record ends in this group.
    commit: Option<CommitSeq>,
    records: u64,
    /// Whether the group contains a fragment of a record.
    has_content: bool,
    /// The durable state that this group records: the sequence number of the last durable group, and its end on the
    /// scale of `LogPosition`.
    states: (u64, u64),
    /// The unused part of the buffer from which the group is written.
    tail: Option<IoBuf>,
    outcome: Option<std::result::Result<(), IoError>>,
}

impl Writer {
    pub(super) fn new(queue: Box<dyn Queue>, last: Anchor, opening: u64, options: LogOptions) -> Result<Self> {
        let group_bytes = GROUP_BYTES_MAX.min(options.segment_bytes as usize);
        let memory = IoBuf::zeroed(group_bytes * GROUPS_IN_FLIGHT, PageKind::Huge)
            .map_err(|error| Error::from_io("take memory for log buffers", error))?;
        let spare = memory.pieces(group_bytes);
        Ok(Self { queue, last, opening, in_flight: VecDeque::new(), spare, next_token: 0, options })
    }

    /// Ends the queue, with all that a thread which has panicked left in flight in it.
    pub(super) fn end(&mut self) {
        self.queue = Box::new(EndedQueue);
        self.in_flight.clear();
    }

    /// Builds the next group from the fragments pending in `state`. The group goes to `state.position`, in a segment
    /// that the file has space for.
    ///
    /// All bytes before `durable`, on the scale of `LogPosition`, are durable. `now` is the present moment.
    fn build(&mut self, state: &mut LogState, durable: u64, now: Moment, mut buffer: IoBuf) -> (IoBuf, GroupInFlight) {
        let segment_left = self.options.segment_bytes - state.position % self.options.segment_bytes;
        let space = buffer.len().min(segment_left as usize);
        let mut at = GROUP_HEADER_BYTES;
        let (mut starts, mut commit, mut records) = (None, None, 0);
        let mut taken = 0;
        while at + FRAGMENT_HEADER_BYTES < space
            && let Some(fragment) = state.pending.front_mut()
        {
            let rest = &fragment.bytes[fragment.written..];
            let part = rest.len().min(space - at - FRAGMENT_HEADER_BYTES);
            let first = fragment.first && fragment.written == 0;
            let ends = part == rest.len();
            let last = fragment.last && ends;
            let head = FragmentHeader { commit: fragment.commit, len_bytes: part as u32, first, last };
            buffer[at..at + FRAGMENT_HEADER_BYTES].copy_from_slice(&head.encode());
            at += FRAGMENT_HEADER_BYTES;
            buffer[at..at + part].copy_from_slice(&rest[..part]);
            at += part;
            taken += part;
            if first && !fragment.given_up {
                starts = Some(fragment.commit);
            }
            if last {
                commit = Some(fragment.commit);
                records += 1;
            }
            fragment.written += part;
            if ends {
                taken += FRAGMENT_HEADER_BYTES;
                state.pending.pop_front();
            }
        }
        state.pending_bytes -= taken;
        let len_bytes = at.next_multiple_of(LOG_BLOCK_BYTES);
        buffer[at..len_bytes].fill(0);
        let (mut block, tail) = buffer.split_at(len_bytes);
        let header = GroupHeader {
            sequence: self.last.sequence + 1,
            position: state.position,
            durable_sequence: state.durable_sequence,
            previous: self.last.checksum,
            slots: state.segments.slot_count(),
            opening: self.opening,
            time_ms: now.0,
            payload_bytes: (at - GROUP_HEADER_BYTES) as u32,
            checksum: 0,
        };
        let checksum = encode_group(self.options.file_id, &header, &mut block);
        let anchor = Anchor { position: header.position, sequence: header.sequence, checksum };
        state.marks.push_back(Mark { anchor, starts });
        state.position += len_bytes as u64;
        self.last = anchor;
        let end = state.appended - state.pending_bytes as u64;
        let tail = (!tail.is_empty()).then_some(tail);
        let token = self.next_token;
        self.next_token += 1;
        let (has_content, states) = (at > GROUP_HEADER_BYTES, (header.durable_sequence, durable));
        let end_position = state.position;
        let flight = GroupInFlight {
            token,
            anchor,
            end_position,
            end,
            commit,
            records,
            has_content,
            states,
            tail,
            outcome: None,
        };
        (block, flight)
    }

    fn land(&mut self, completion: Completion) {
        let token = completion.op.token;
        let outcome = completion.result.clone().map(drop);
        let Some(flight) = self.in_flight.iter_mut().find(|flight| flight.token == token) else { return };
        flight.outcome = Some(outcome);
        let tail = flight.tail.take();
        if let Some(buffer) = completion.into_buffer() {
            let whole = match tail {
                Some(tail) => buffer.join(tail),
                None => Ok(buffer),
            };
            // The two parts were cut from one buffer, so they join.
            self.spare.extend(whole);
        }
    }
}

impl Leadership<'_> {
    /// Writes pending fragments and reports them durable, until nothing is pending or `goal` is reached, and until
    /// every write that it began has ended. The waiters of the last groups are woken after the next leader.
    pub(super) fn lead(mut self, goal: Option<Goal>) {
        let core = self.core;
        let mut writer = core.lock_writer();
        let mut go_on = core.wants_more(&core.lock(), goal);
        while go_on || !writer.in_flight.is_empty() {
            let (mut groups, mut done) = (Vec::new(), Vec::new());
            while go_on && let Some(group) = core.next_group(&mut writer) {
                groups.push(group);
            }
            let written = match groups.len() {
                0 if writer.in_flight.is_empty() => break,
                0 if writer.queue.in_flight() == 0 => {
                    // A leader has panicked before these groups reached the device, and so the log has failed: none of them will end.
                    writer.in_flight.clear();
                    break;
                }
                // A single group, the common case, runs on this thread: see `Queue::run`.
                1 if writer.in_flight.len() == 1 => {
                    groups.pop().map_or(Ok(()), |group| writer.queue.run(group, &mut done))
                }
                _ => {
                    let refused = groups.into_iter().filter_map(|group| writer.queue.push(group).err());
                    done.extend(refused.map(|refused| Completion { op: refused.op, result: Err(refused.error) }));
                    writer.queue.reap(1, &mut done)
                }
            };
            done.into_iter().for_each(|completion| writer.land(completion));
            if let Err(error) = &written {
                core.poison(&Error::from_io("write to the log", error.clone()));
            }
            go_on = core.report(&mut writer, &mut self.wake, goal);
            if written.is_err() {
                break;
            }
            if go_on || !writer.in_flight.is_empty() {
                self.wake.drain(..).for_each(Waiter::wake);
                core.clear_up();
            }
        }
        // Released before `self`, because dropping `self` wakes the next leader, which needs it.
        drop(writer);
        drop(self);
        core.clear_up();
    }
}

impl Leadership<'_> {
    /// Writes one group of pending fragments and updates the state of the log. Returns false when the group did not
    /// become durable, or there was none to write.
    pub(super) fn write_one(&mut self, writer: &mut Writer) -> bool {
        let core = self.core;
        let Some(group) = core.next_group(writer) else { return false };
        let mut done = Vec::new();
        if let Err(error) = writer.queue.run(group, &mut done) {
            core.poison(&Error::from_io("write to the log", error));
        }
        done.into_iter().for_each(|completion| writer.land(completion));
        core.report(writer, &mut self.wake, None);
        core.lock().poisoned.is_none()
    }
}

impl LogCore {
    /// Returns whether a leader with this goal has more to write.
    fn wants_more(&self, state: &LogState, goal: Option<Goal>) -> bool {
        let there_yet = goal.is_some_and(|goal| self.reached(state, goal).is_some());
        state.has_work() && state.poisoned.is_none() && !there_yet
    }

    /// Wakes the tails and calls [`Host::write_ended`], for work after a write that no waiter needs.
    fn clear_up(&self) {
        self.wake_tails();
        if let Some(host) = self.host.get() {
            host.write_ended();
        }
    }

    /// Builds the next group of pending fragments, if it is large enough and fewer than [`GROUPS_IN_FLIGHT`] groups are
    /// in flight. There is a segment for it, because no fragment is appended unless the segments can hold it
    /// (`growth`).
    pub(super) fn next_group(&self, writer: &mut Writer) -> Option<Op> {
        let mut state = self.lock();
        // While a group is in flight, a small second one would only take commits from a larger group that follows it.
        let worth_it = writer.in_flight.is_empty() || state.pending_bytes >= PIPELINE_BYTES;
        if !state.has_work() || !worth_it || state.poisoned.is_some() {
            return None;
        }
        let is_closing = state.pending.is_empty();
        let (position, slots) = (state.position, state.slots);
        if state.segments.offset_of(position).is_none() {
            // A durable superblock always names the anchor, so the segments before it that no tail keeps may be used again.
            state.segments.extend_to(slots);
            state.recycle_segments(FREE_TO_ASSIGN);
            if !state.segments.assign(position) {
                let what = format!("the log was given more than its segments hold, at {}", state.position);
                drop(state);
                if is_closing {
                    // The log needs no closing group for the statement to be true.
                    self.lock().give_up_closing();
                    return None;
                }
                self.poison(&Error::new(ErrorKind::Bug, what));
                return None;
            }
        }
        let offset = state.segments.offset_of(position)?;
        let buffer = writer.spare.pop()?;
        let end = self.end_of(state.position, state.pending_bytes as u64);
        // Under the lock, so that no commit is dated before it was appended: a restore as of a time has none that began later.
        let now = self.host.get().map_or(Moment(0), |host| host.now());
        let (block, flight) = writer.build(&mut state, self.durable.load(Ordering::Relaxed), now, buffer);
        // The admission of records relies on this bound.
        debug_assert!(
            is_closing || self.end_of(state.position, state.pending_bytes as u64) <= end,
            "groups take more than was counted"
        );
        drop(state);
        let count = if flight.has_content { &self.counts.groups } else { &self.counts.closing_groups };
        count.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(block.len() as u64, Ordering::Relaxed);
        let token = flight.token;
        writer.in_flight.push_back(flight);
        Some(Op::new(token, offset, OpKind::write(block, true)))
    }

    /// Reports groups durable, in order, up to the first group that is still in flight or failed. Moves their waiters
    /// to `wake`. Returns whether there is more to write before `goal` is reached.
    fn report(&self, writer: &mut Writer, wake: &mut Vec<Waiter>, goal: Option<Goal>) -> bool {
        let (mut newest, mut end) = (None, None);
        while let Some(outcome) = writer.in_flight.front_mut().and_then(|flight| flight.outcome.take()) {
            let Some(flight) = writer.in_flight.pop_front() else { break };
            if let Err(error) = outcome {
                let action = format!("write log group {} at {}", flight.anchor.sequence, flight.anchor.position);
                self.poison(&Error::from_io(action, error));
            }
            let mut state = self.lock();
            if state.poisoned.is_some() {
                continue;
            }
            state.durable_sequence = flight.anchor.sequence;
            state.durable_end = flight.end_position;
            state.stated_sequence = state.stated_sequence.max(flight.states.0);
            state.stated = state.stated.max(flight.states.1);
            if flight.has_content {
                state.content_sequence = flight.anchor.sequence;
            }
            end = Some(flight.end);
            if let Some(commit) = flight.commit {
                state.durable_commit = commit;
                newest = Some(commit);
            }
            self.counts.records.fetch_add(flight.records, Ordering::Relaxed);
            if flight.has_content {
                self.counts.group_records.add(flight.records);
            }
        }
        if let Some(commit) = newest {
            // Called under the writer's lock, so that these calls come in order; not under the state's lock, so that they
            // may append.
            if let Some(host) = self.host.get() {
                host.commits_durable(commit);
            }
        }
        let mut state = self.lock();
        let durable = end.unwrap_or_else(|| self.durable.load(Ordering::Relaxed));
        self.take_durable(&mut state, LogPosition(durable), wake);
        state.writer_duties.note_written();
        // Stored last: a thread that reads it earlier would continue before its commit is visible, or while its
        // ticket is on the list.
        self.durable.store(durable, Ordering::Release);
        state.wants_closing &= !state.is_stated();
        if state.must_watch() {
            self.notifier.notify();
        }
        self.wants_more(&state, goal)
    }

    /// Makes an event of the failure that has poisoned the log, and calls [`Host::log_failed`], once. The caller holds no lock of the
    /// log.
    pub(super) fn tell_of_poison(&self) {
        let untold = {
            let mut state = self.lock();
            std::mem::take(&mut state.poison_untold).then(|| state.poisoned.clone()).flatten()
        };
        if let Some(error) = untold {
            events::poisoned(&error);
            self.wake_tails();
            if let Some(host) = self.host.get() {
                host.log_failed(&error);
            }
        }
    }

    /// Poisons the log: nothing more becomes durable from now on. Followed by [`LogCore::tell_of_poison`], once no lock is held.
    pub(super) fn poison(&self, cause: &Error) {
        let mut state = self.lock();
        if state.poisoned.is_none() {
            state.poison_untold = true;
            state.poisoned = Some(match cause.kind() {
                // A poisoned cause is kept: its message already says whether reads continue, which they do not after
                // a failed map.
                ErrorKind::Poisoned => cause.clone(),
                _ => {
                    let what = format!("the log failed ({cause}); reads go on, reopen the database to write again");
                    Error::new(ErrorKind::Poisoned, what)
                }
            });
        }
    }
}
