//! The protocol between the writer and readers in other processes, as a state machine. A test goes through every state that
//! one writer and one or two readers can reach, with crashes of either side at each step, and with limits of waiting that
//! pass at any moment.
//!
//! A checkpoint is one page and a log of two parts, and each of them says in its bytes of which checkpoint it is: so it is
//! plain whether a reader has taken the bytes of another one for its own.
//!
//! Each fault of [`Fault`] is the protocol without one of its parts: the search must find a wrong read for it.

use std::collections::HashSet;

/// Blocks of the data file: of the checkpoint in force, of one that is kept, and of one that is being written.
const BLOCKS: usize = 3;
const READERS: usize = 2;
/// The bytes of a part of the log that is being moved.
const TORN: u8 = 0;

/// A part of the protocol left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A reader does not read again which checkpoint is in force after it has registered.
    NoSecondLook,
    /// A reader looks at the record before it reads a block, and not afterwards.
    RecordBeforeRead,
    /// The writer lists the registered readers before its checkpoint is in force.
    AskedTooSoon,
    /// The writer does not list the registered readers.
    NoneAsked,
    /// The writer uses blocks again before the record says that they are not kept.
    RecordAfterUse,
    /// A writer that opens the database says nothing of the checkpoints before.
    SilentOpening,
    /// The log is used again although a reader reads it, and nothing says so.
    LogNotAwaited,
    /// A part of the log is moved while readers may begin to read it.
    MoveBesideReaders,
    /// A writer that could not keep readers from the log counts its change only afterwards.
    CountedAfterwards,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Closed,
    /// The database is being opened: 0 the record, 1 exclusion of readers of the log or a count, 2 and 3 a move in the log,
    /// 4 the end of the exclusion.
    Opening {
        step: u8,
        excludes: bool,
    },
    Idle,
    /// A checkpoint is being made in this block: 0 and 1 its log, 2 it comes into force.
    Writing {
        block: u8,
        step: u8,
    },
    /// The checkpoint is in force, and this block was of the one before.
    Named {
        old: u8,
    },
    /// Blocks are dealt with, the log of the checkpoint before is not.
    Recycling,
    /// The record says that blocks kept for checkpoints before this one are used again; they are not free yet.
    GivenUp {
        sequence: u8,
    },
    /// A part of the log is being moved, with readers excluded.
    Moving {
        step: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    /// Has not begun.
    Away,
    /// Has read which checkpoint is in force.
    Seen { sequence: u8 },
    /// Has registered it.
    Registered { sequence: u8, has_log: bool },
    /// Has found the same one in force, and knows the count of changes of the log.
    Sure { sequence: u8, changes: u8 },
    /// Has opened a checkpoint, the same or a later one, and read so many parts of its log.
    Log { sequence: u8, changes: u8, view: u8, parts: [u8; 2], read: u8 },
    /// Reads pages; `looked` is what the record said before, where a fault wants it so.
    Reading { sequence: u8, view: u8, looked: bool },
    /// Has read the bytes of a page, which are of this version, and has to look at the record.
    Read { sequence: u8, view: u8, version: u8, looked: bool },
    /// Has ended; `too_old` if it was given up.
    Ended { too_old: bool },
}

impl Reader {
    fn content(self) -> Option<u8> {
        match self {
            Self::Registered { sequence, .. }
            | Self::Sure { sequence, .. }
            | Self::Log { sequence, .. }
            | Self::Reading { sequence, .. }
            | Self::Read { sequence, .. } => Some(sequence),
            _ => None,
        }
    }

    fn log(self) -> Option<u8> {
        match self {
            Self::Registered { sequence, has_log: true } | Self::Sure { sequence, .. } | Self::Log { sequence, .. } => {
                Some(sequence)
            }
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// On the disk: the checkpoint in force, the block of each checkpoint, the version in each block, two slots of the log.
    in_force: u8,
    block_of: Vec<u8>,
    version_in: [u8; BLOCKS],
    log: [[u8; 2]; 2],
    /// The record.
    kept_from: u8,
    log_changes: u8,
    writer: Writer,
    /// In the writer's memory: free blocks, kept ones with the checkpoint that gave them up, and whom it waits for no more.
    free: u8,
    kept: Vec<(u8, u8)>,
    log_from: u8,
    /// Whether the lock of the writer keeps readers of the log out.
    excluded: bool,
    /// The readers that the writer found when it asked too soon.
    heard: bool,
    readers: [Reader; READERS],
    crashes_left: u8,
}

struct Model {
    fault: Fault,
    checkpoints: u8,
    readers: usize,
    crashes: u8,
    limits_pass: bool,
}

/// A wrong read, in words.
type Wrong = String;

impl Model {
    fn first(&self) -> State {
        State {
            in_force: 1,
            block_of: vec![0, 0],
            version_in: [1, 0, 0],
            log: [[TORN; 2], [1; 2]],
            kept_from: 1,
            log_changes: 0,
            writer: Writer::Idle,
            free: 0b110,
            kept: Vec::new(),
            log_from: 0,
            excluded: false,
            heard: false,
            readers: [Reader::Away; READERS],
            crashes_left: self.crashes,
        }
    }

    fn registered(&self, state: &State, from: u8, to: u8) -> bool {
        self.fault != Fault::NoneAsked
            && state.readers.iter().any(|reader| reader.content().is_some_and(|number| (from..to).contains(&number)))
    }

    fn reads_log(&self, state: &State, to: u8) -> bool {
        let from = state.log_from;
        state.readers.iter().any(|reader| reader.log().is_some_and(|number| (from..to).contains(&number)))
    }

    /// Adds the states that follow by one step of the writer.
    fn writer_steps(&self, state: &State, next: &mut Vec<State>) {
        let mut to = |change: &dyn Fn(&mut State)| {
            let mut after = state.clone();
            change(&mut after);
            next.push(after);
        };
        let slot = |checkpoint: u8| usize::from(checkpoint % 2);
        if state.writer != Writer::Closed && state.crashes_left > 0 {
            to(&|after| {
                after.writer = Writer::Closed;
                (after.excluded, after.heard, after.free, after.log_from) = (false, false, 0, 0);
                after.kept.clear();
                // A move leaves a whole log at any step, for readers that begin then.
                after.log[slot(after.in_force)] = [after.in_force; 2];
                after.crashes_left -= 1;
            });
        }
        match state.writer {
            Writer::Closed => to(&|after| after.writer = Writer::Opening { step: 0, excludes: false }),
            Writer::Opening { step: 0, .. } => to(&|after| {
                if self.fault != Fault::SilentOpening {
                    after.kept_from = after.in_force;
                }
                after.log_changes = after.log_changes.next_multiple_of(2);
                after.writer = Writer::Opening { step: 1, excludes: false };
            }),
            Writer::Opening { step: 1, .. } => {
                if !self.reads_log(state, u8::MAX) {
                    to(&|after| {
                        after.excluded = true;
                        after.writer = Writer::Opening { step: 2, excludes: true };
                    });
                }
                if self.limits_pass {
                    to(&|after| {
                        after.log_changes += u8::from(self.fault != Fault::CountedAfterwards);
                        after.writer = Writer::Opening { step: 2, excludes: false };
                    });
                }
            }
            Writer::Opening { step: 2, excludes } => to(&|after| {
                after.log[slot(after.in_force)][0] = TORN;
                after.writer = Writer::Opening { step: 3, excludes };
            }),
            Writer::Opening { step: 3, excludes } => to(&|after| {
                after.log[slot(after.in_force)] = [after.in_force; 2];
                after.writer = Writer::Opening { step: 4, excludes };
            }),
            Writer::Opening { excludes, .. } => to(&|after| {
                after.excluded = false;
                after.log_changes += match (excludes, self.fault) {
                    (true, _) => 0,
                    (false, Fault::CountedAfterwards) => 2,
                    (false, _) => 1,
                };
                after.free = 0b111 & !(1 << after.block_of[usize::from(after.in_force)]);
                after.writer = Writer::Idle;
            }),
            Writer::Idle => {
                if state.in_force < self.checkpoints {
                    for block in (0..BLOCKS as u8).filter(|block| state.free >> block & 1 == 1) {
                        to(&|after| {
                            after.version_in[usize::from(block)] = after.in_force + 1;
                            after.free &= !(1 << block);
                            after.heard = self.registered(after, after.kept_from, after.in_force + 1);
                            after.writer = Writer::Writing { block, step: 0 };
                        });
                    }
                }
                if let Some((sequence, block)) = state.kept.first().copied() {
                    if !self.registered(state, state.kept_from.min(sequence), sequence) {
                        to(&|after| {
                            after.kept.remove(0);
                            after.free |= 1 << block;
                        });
                    }
                    if self.limits_pass {
                        to(&|after| {
                            if self.fault == Fault::RecordAfterUse {
                                after.version_in[usize::from(block)] = TORN;
                            }
                            after.writer = Writer::GivenUp { sequence };
                            if self.fault != Fault::RecordAfterUse {
                                after.kept_from = after.kept_from.max(sequence);
                            }
                        });
                    }
                }
                if self.fault == Fault::MoveBesideReaders || !self.reads_log(state, u8::MAX) {
                    to(&|after| {
                        after.excluded = self.fault != Fault::MoveBesideReaders;
                        after.log[slot(after.in_force)][0] = TORN;
                        after.writer = Writer::Moving { step: 0 };
                    });
                }
            }
            Writer::Moving { step: 0 } => to(&|after| {
                after.log[slot(after.in_force)][0] = after.in_force;
                after.writer = Writer::Moving { step: 1 };
            }),
            Writer::Moving { .. } => to(&|after| {
                after.excluded = false;
                after.writer = Writer::Idle;
            }),
            Writer::GivenUp { sequence } => to(&|after| {
                after.kept_from = after.kept_from.max(sequence);
                after.kept.retain(|(of, block)| {
                    let stays = *of > sequence;
                    after.free |= if stays { 0 } else { 1 << block };
                    stays
                });
                after.writer = Writer::Idle;
            }),
            Writer::Writing { block, step } if step < 2 => to(&|after| {
                after.log[slot(after.in_force + 1)][usize::from(step)] = after.in_force + 1;
                after.writer = Writer::Writing { block, step: step + 1 };
            }),
            Writer::Writing { block, .. } => to(&|after| {
                let old = after.block_of[usize::from(after.in_force)];
                after.in_force += 1;
                after.block_of.truncate(usize::from(after.in_force));
                after.block_of.push(block);
                after.writer = Writer::Named { old };
            }),
            Writer::Named { old } => {
                let is_used = match self.fault {
                    Fault::AskedTooSoon => state.heard,
                    _ => self.registered(state, state.kept_from, state.in_force),
                };
                to(&|after| {
                    match is_used {
                        true => after.kept.push((after.in_force, old)),
                        false => after.free |= 1 << old,
                    }
                    after.heard = false;
                    after.writer = Writer::Recycling;
                });
            }
            Writer::Recycling => {
                if self.fault == Fault::LogNotAwaited || !self.reads_log(state, state.in_force) {
                    to(&|after| after.writer = Writer::Idle);
                } else if self.limits_pass {
                    to(&|after| {
                        after.log_changes += 2;
                        after.log_from = after.in_force;
                        after.writer = Writer::Idle;
                    });
                }
            }
        }
    }

    /// Adds the states that follow by one step of a reader.
    fn reader_steps(&self, state: &State, at: usize, next: &mut Vec<State>) -> Result<(), Wrong> {
        let mut to = |reader: Reader| {
            let mut after = state.clone();
            after.readers[at] = reader;
            next.push(after);
        };
        let reader = state.readers[at];
        if !matches!(reader, Reader::Away | Reader::Ended { .. }) {
            // It crashes, or closes: the kernel ends its registrations.
            to(Reader::Ended { too_old: false });
        }
        let has_writer = state.writer != Writer::Closed;
        match reader {
            Reader::Away => to(Reader::Seen { sequence: state.in_force }),
            Reader::Seen { sequence } => to(Reader::Registered { sequence, has_log: false }),
            Reader::Registered { sequence, has_log: false } => match state.excluded {
                true => to(Reader::Seen { sequence: state.in_force }),
                false => to(Reader::Registered { sequence, has_log: true }),
            },
            Reader::Registered { sequence, has_log: true } => {
                let is_same = state.in_force == sequence || self.fault == Fault::NoSecondLook;
                let is_changing = state.log_changes % 2 == 1 && has_writer;
                let is_kept = state.kept_from <= sequence || self.fault == Fault::NoSecondLook;
                if is_same && is_kept && !is_changing {
                    to(Reader::Sure { sequence, changes: state.log_changes });
                } else if state.in_force != sequence {
                    to(Reader::Seen { sequence: state.in_force });
                }
            }
            Reader::Sure { sequence, changes } => {
                let view = if self.fault == Fault::NoSecondLook { sequence } else { state.in_force };
                to(Reader::Log { sequence, changes, view, parts: [TORN; 2], read: 0 });
            }
            Reader::Log { sequence, changes, view, mut parts, read } if read < 2 => {
                parts[usize::from(read)] = state.log[usize::from(view % 2)][usize::from(read)];
                to(Reader::Log { sequence, changes, view, parts, read: read + 1 });
            }
            Reader::Log { sequence, changes, view, parts, .. } => {
                if state.log_changes != changes {
                    // It begins again; how often says nothing more.
                    to(Reader::Ended { too_old: true });
                } else if parts != [view; 2] {
                    return Err(format!("reader {at} has the log {parts:?} for the one of checkpoint {view}"));
                } else {
                    to(Reader::Reading { sequence, view, looked: true });
                }
            }
            Reader::Reading { sequence, view, looked } => {
                if self.fault == Fault::RecordBeforeRead && !looked {
                    to(Reader::Reading { sequence, view, looked: state.kept_from <= sequence });
                }
                let version = state.version_in[usize::from(state.block_of_view(view))];
                to(Reader::Read { sequence, view, version, looked });
            }
            Reader::Read { sequence, view, version, looked } => {
                let is_kept = match self.fault {
                    Fault::RecordBeforeRead => looked,
                    _ => state.kept_from <= sequence,
                };
                if !is_kept {
                    to(Reader::Ended { too_old: true });
                } else if version != view {
                    return Err(format!("reader {at} has a page of version {version} for the one of {view}"));
                } else {
                    to(Reader::Reading { sequence, view, looked: self.fault != Fault::RecordBeforeRead });
                }
            }
            Reader::Ended { .. } => {}
        }
        Ok(())
    }

    /// Goes through all states. Returns how many there are, and whether a reader was given up in one of them.
    fn explore(&self) -> Result<(usize, bool), Wrong> {
        let first = self.first();
        let (mut seen, mut to_do) = (HashSet::from([first.clone()]), vec![first]);
        let mut has_given_up = false;
        while let Some(state) = to_do.pop() {
            has_given_up |= state.readers.contains(&Reader::Ended { too_old: true });
            let mut next = Vec::new();
            self.writer_steps(&state, &mut next);
            for at in 0..self.readers {
                self.reader_steps(&state, at, &mut next).map_err(|wrong| format!("{wrong}, after {state:?}"))?;
            }
            to_do.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
        }
        Ok((seen.len(), has_given_up))
    }
}

impl State {
    /// Returns the block that a reader of this checkpoint has read to be its page's. A checkpoint that a crash undid
    /// was never in force.
    fn block_of_view(&self, view: u8) -> u8 {
        self.block_of[usize::from(view)]
    }
}

fn model(fault: Fault) -> Model {
    Model { fault, checkpoints: 4, readers: 1, crashes: 2, limits_pass: true }
}

#[test]
fn no_interleaving_and_no_crash_lets_a_reader_take_another_version_for_its_own() {
    let one = Model { checkpoints: 3, ..model(Fault::None) };
    let two = Model { checkpoints: 3, readers: 2, crashes: 0, ..model(Fault::None) };
    explore_all([one, two]);
}

#[test]
#[ignore = "goes through four million states, which takes minutes without optimization"]
fn no_long_history_lets_a_reader_take_another_version_for_its_own() {
    let two = Model { checkpoints: 3, readers: 2, crashes: 1, ..model(Fault::None) };
    explore_all([model(Fault::None), two]);
}

fn explore_all(models: [Model; 2]) {
    for model in models {
        let (states, has_given_up) = model.explore().unwrap();
        println!("{states} states");
        assert!(states > 1000 && has_given_up);
    }
}

#[test]
fn no_reader_is_given_up_while_no_limit_passes_and_no_process_crashes() {
    let patient = Model { limits_pass: false, crashes: 0, checkpoints: 3, readers: 2, ..model(Fault::None) };
    let (states, has_given_up) = patient.explore().unwrap();
    println!("{states} states");
    assert!(!has_given_up);
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for fault in [
        Fault::NoSecondLook,
        Fault::RecordBeforeRead,
        Fault::AskedTooSoon,
        Fault::NoneAsked,
        Fault::RecordAfterUse,
        Fault::SilentOpening,
        Fault::LogNotAwaited,
        Fault::MoveBesideReaders,
        Fault::CountedAfterwards,
    ] {
        let found = model(fault).explore();
        assert!(found.is_err(), "{fault:?} was not noticed in {found:?} states");
    }
}
