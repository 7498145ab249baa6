//! The inside of a world: files, names, operations in flight, and the counter of events at which the power is cut.
//!
//! An event is: an operation pushed; an operation completed; a change or sync of names begun; the same finished. The
//! cut comes right after its event. Operations that completed before it were acknowledged and are still delivered;
//! all others in flight come back as `Stopped`, and each of their sectors may or may not have been written.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use super::file::{File, PendingChange, WriteSeq};
use super::names::{Change, FileId, Names};
use super::operation::{Operation, QueueId};
use super::options::{Call, Effect, Fault, SimOptions};
use super::stats::{SimStats, Trace};
use nofault_io::completion::Completion;
use nofault_io::disk::{check_truncate, describe_op, describe_truncate};
use nofault_io::error::{Error, ErrorKind, Result};

/// The operations and the change of names that the power cut interrupted.
#[derive(Clone, Default)]
struct Wreck {
    files: Vec<(FileId, PendingChange)>,
    change: Option<Change>,
}

pub(super) struct State {
    pub(super) options: SimOptions,
    /// Code that recreates this world, except for the calls of its user.
    story: String,
    pub(super) rng: fastrand::Rng,
    pub(super) files: BTreeMap<FileId, File>,
    pub(super) names: Names,
    last_file: FileId,
    pub(super) last_seq: WriteSeq,
    pub(super) last_queue: QueueId,
    pub(super) ready: BTreeMap<QueueId, VecDeque<Completion>>,
    pub(super) in_flight: Vec<Operation>,
    pub(super) events: u64,
    cut_at: Option<u64>,
    wreck: Option<Wreck>,
    faults: Vec<Fault>,
    pub(super) stats: SimStats,
    pub(super) trace: Trace,
}

impl State {
    pub(super) fn new(seed: u64, options: SimOptions, story: String) -> Self {
        Self {
            options,
            story,
            rng: fastrand::Rng::with_seed(seed),
            files: BTreeMap::new(),
            names: Names::default(),
            last_file: 0,
            last_seq: 0,
            last_queue: 0,
            ready: BTreeMap::new(),
            in_flight: Vec::new(),
            events: 0,
            cut_at: None,
            wreck: None,
            faults: Vec::new(),
            stats: SimStats::default(),
            trace: Trace::default(),
        }
    }

    // ---- power ----

    pub(super) fn cut_after(&mut self, event: u64) {
        self.cut_at = Some(event);
        if event <= self.events {
            self.stop(None);
        }
    }

    /// Returns Rust code that makes this world again, cut at the same event if its power was cut.
    pub(super) fn story(&self) -> String {
        match self.cut_at {
            Some(event) => format!("{}.cut_after({event})", self.story),
            None => self.story.clone(),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.wreck.is_some()
    }

    pub(super) fn check_running(&self, action: impl FnOnce() -> String) -> Result<()> {
        if self.is_stopped() { Err(stopped(action())) } else { Ok(()) }
    }

    pub(super) fn event(&mut self, what: &[u64], change: Option<&Change>) {
        self.events += 1;
        self.trace.add(what);
        if self.cut_at == Some(self.events) {
            self.stop(change);
        }
    }

    fn stop(&mut self, change: Option<&Change>) {
        if self.is_stopped() {
            return;
        }
        self.wreck = Some(self.wreck_now(change));
        for operation in std::mem::take(&mut self.in_flight) {
            let error = stopped(describe_op(&operation.op)).at(Path::new(&operation.name));
            self.deliver(operation.queue, Completion { op: operation.op, result: Err(error) });
        }
    }

    fn wreck_now(&self, change: Option<&Change>) -> Wreck {
        let files = self.in_flight.iter().filter_map(|operation| Some((operation.file, operation.begun()?))).collect();
        Wreck { files, change: change.cloned() }
    }

    /// Returns the state that a cut leaves: at the moment it came, or now if it has not come.
    pub(super) fn survive(&self, seed: u64, options: SimOptions) -> Self {
        let wreck = self.wreck.clone().unwrap_or_else(|| self.wreck_now(None));
        let mut after = Self::new(seed, options, format!("{}.restart({seed})", self.story()));
        let names = self.names.survive(wreck.change.as_ref(), &mut after.rng);
        for file in names.values() {
            let begun: Vec<&PendingChange> =
                wreck.files.iter().filter(|(id, _)| id == file).map(|(_, begun)| begun).collect();
            // A file with a creation under way has no bytes yet.
            let survivor = match self.files.get(file) {
                Some(before) => before.survive(&begun, &self.options, &mut after.rng),
                None => File::empty(self.options.sector_bytes),
            };
            after.files.insert(*file, survivor);
        }
        after.last_file = self.last_file + 1;
        after.names = Names::settled(names);
        after
    }

    // ---- faults ----

    pub(super) fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Returns the fault's effect on this call; of two faults that hit the same call the older takes effect.
    pub(super) fn effect_on(&mut self, call: Call, name: &str) -> Option<Effect> {
        let mut effect = None;
        for fault in &mut self.faults {
            let hit = fault.hits(call, name).then_some(fault.effect);
            effect = effect.or(hit);
        }
        self.faults.retain(|fault| fault.times > 0);
        effect.or_else(|| self.random_effect(call))
    }

    fn random_effect(&mut self, call: Call) -> Option<Effect> {
        let rates = self.options.rates;
        let eio = Effect::Errno(libc::EIO);
        let table: &[(f64, Effect)] = match call {
            Call::Read => &[
                (rates.read_error, eio),
                (rates.misdirected_read, Effect::Misdirected),
                (rates.flipped_read, Effect::FlippedBit),
            ],
            Call::Write => &[
                (rates.write_error, eio),
                (rates.lost_write, Effect::Lost),
                (rates.misdirected_write, Effect::Misdirected),
                (rates.flipped_write, Effect::FlippedBit),
                (rates.zeroed_write, Effect::ZeroedSector),
                (rates.garbage_write, Effect::GarbageSector),
            ],
            Call::Sync => &[(rates.sync_error, eio)],
            _ => &[],
        };
        table.iter().find(|(rate, _)| *rate > 0.0 && self.rng.f64() < *rate).map(|(_, effect)| *effect)
    }

    /// Returns the error that a fault gives to a call which changes nothing.
    pub(super) fn check_effect(&mut self, effect: Option<Effect>, action: &str) -> Result<()> {
        match effect {
            Some(Effect::Errno(errno)) => {
                self.stats.error_count += 1;
                Err(Error::from_errno(action, errno))
            }
            _ => Ok(()),
        }
    }

    // ---- names ----

    pub(super) fn create(&mut self) -> FileId {
        self.last_file += 1;
        self.files.insert(self.last_file, File::empty(self.options.sector_bytes));
        self.last_file
    }

    /// Executes a change of directory entries (a file is created, renamed or removed). The simulated power may be cut
    /// before it and after it.
    pub(super) fn change_names(&mut self, change: Change, effect: Option<Effect>, action: &str) -> Result<()> {
        self.event(&[10], Some(&change));
        self.check_running(|| action.to_owned())?;
        self.check_effect(effect, action)?;
        self.names.change(change);
        self.event(&[11], None);
        Ok(())
    }

    pub(super) fn sync_names(&mut self, effect: Option<Effect>) -> Result<()> {
        const ACTION: &str = "sync the directory";
        self.event(&[12], None);
        self.check_running(|| ACTION.to_owned())?;
        let failed = self.check_effect(effect, ACTION);
        match effect {
            Some(Effect::Errno(_)) => self.names.abandon(),
            Some(Effect::Lost) => {}
            _ => self.names.sync(),
        }
        failed?;
        self.forget_unreachable();
        self.event(&[13], None);
        Ok(())
    }

    /// Cuts a file between two events at which the power may be cut.
    pub(super) fn truncate(&mut self, file: FileId, name: &str, len: u64) -> Result<()> {
        let action = || describe_truncate(len);
        self.check_running(action)?;
        check_truncate(len, self.files.get(&file).map_or(0, File::len))?;
        self.stats.truncate_count += 1;
        let effect = self.effect_on(Call::Truncate, name);
        self.event(&[14, len], None);
        self.check_running(action)?;
        self.check_effect(effect, &action())?;
        self.last_seq += 1;
        let seq = self.last_seq;
        if let Some(file) = self.files.get_mut(&file).filter(|_| effect != Some(Effect::Lost)) {
            file.truncate(seq, len);
        }
        self.event(&[15], None);
        Ok(())
    }

    /// Drops the bytes of files that no name, handle or power cut can bring back.
    pub(super) fn forget_unreachable(&mut self) {
        let names = &self.names;
        let in_flight = &self.in_flight;
        self.files.retain(|id, file| {
            file.handles > 0 || names.may_hold(*id) || in_flight.iter().any(|operation| operation.file == *id)
        });
    }

    pub(super) fn hold(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.handles += 1;
        }
    }

    pub(super) fn release(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.handles -= 1;
        }
        self.forget_unreachable();
    }

    pub(super) fn bytes_used(&self) -> u64 {
        let named: std::collections::BTreeSet<FileId> = self.names.list().map(|(_, id)| *id).collect();
        let counts = |id: &FileId, file: &File| file.handles > 0 || named.contains(id);
        self.files.iter().filter(|(id, file)| counts(id, file)).map(|(_, file)| file.bytes_held()).sum()
    }
}

fn stopped(action: String) -> Error {
    Error::new(ErrorKind::Stopped, action, "the power of this simulated world was cut; go on with `restart`")
}
