//! The flags of the command line that change experiments, as data: the name and value of each, and the shared value of
//! the configuration that it sets. An experiment says with a [`Use`] that it has a parameter of a flag's meaning; a
//! flag that only one experiment has stands in that experiment's folder. The command line makes its arguments from
//! these.

use std::path::PathBuf;

use super::{Choice, Config, MemoryChoice};

/// A flag of the command line that changes experiments.
#[derive(Debug)]
pub struct Flag {
    /// The flag's name, without the dashes.
    pub name: &'static str,
    /// The placeholder of the flag's value in the help: `BYTES`.
    pub value_name: &'static str,
    /// The flag's effect, as a sentence of the help.
    pub help: &'static str,
    /// The heading of the help under which the flag is listed.
    pub heading: Heading,
    /// The kind of the flag's value.
    pub kind: Kind,
    /// The experiments whose parameters the flag changes.
    pub reach: Reach,
    /// Sets the value of the configuration that all experiments share; `None` where each experiment has its own
    /// parameter.
    pub shared: Option<fn(&mut Config, &Value)>,
}

/// A heading of the help, under which flags are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heading {
    /// Flags that choose the measurements.
    What,
    /// Flags that choose the place of the measurements: folder, devices, memory.
    Where,
    /// Flags that change the manner of the measurements.
    How,
}

impl Heading {
    /// The text of the heading in the help.
    pub fn title(self) -> &'static str {
        match self {
            Self::What => "What to measure",
            Self::Where => "Where",
            Self::How => "How",
        }
    }
}

/// The kind of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A length of time in seconds.
    Seconds,
    /// A number of bytes, as in `16GiB`.
    Bytes,
    /// One count.
    Count,
    /// Counts with commas between them.
    Counts,
    /// Numbers with commas between them.
    Numbers,
    /// `auto`, `require` or `off`.
    Choice,
    /// A way to limit memory: see [`MemoryChoice`].
    Memory,
    /// A path; the flag may be repeated.
    Paths,
    /// No value: the flag is given or not.
    Switch,
}

/// The experiments whose parameters a flag changes, and when the flag is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The chosen experiments only, because a count that suits one may be too large for another. Refused where no
    /// chosen experiment has such a parameter.
    Chosen,
    /// Every experiment. Refused where no chosen experiment has such a parameter.
    Every,
    /// Every experiment, and the run itself. Never refused.
    Run,
    /// The chosen experiments only, as [`Reach::Chosen`]; a run naming no experiments has those that take the flag.
    Takers,
}

/// The value given with a flag.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Value of a flag of [`Kind::Seconds`].
    Seconds(f64),
    /// Value of a flag of [`Kind::Bytes`].
    Bytes(u64),
    /// Value of a flag of [`Kind::Count`].
    Count(u32),
    /// Values of a flag of [`Kind::Counts`].
    Counts(Vec<u32>),
    /// Values of a flag of [`Kind::Numbers`].
    Numbers(Vec<u64>),
    /// Value of a flag of [`Kind::Choice`].
    Choice(Choice),
    /// Value of a flag of [`Kind::Memory`].
    Memory(MemoryChoice),
    /// Values of a flag of [`Kind::Paths`].
    Paths(Vec<PathBuf>),
    /// A flag of [`Kind::Switch`] was given.
    Switch,
}

impl Value {
    /// Returns whether the value requires a resource: `off` and `auto` do not, because any machine can satisfy them.
    pub fn asks(&self) -> bool {
        match self {
            Self::Choice(choice) => *choice == Choice::Require,
            Self::Memory(method) => *method != MemoryChoice::Auto,
            _ => true,
        }
    }

    /// Returns the count, if exactly one was given.
    pub fn one(&self) -> Option<u32> {
        match self {
            Self::Counts(counts) => match counts.as_slice() {
                [one] => Some(*one),
                _ => None,
            },
            Self::Count(one) => Some(*one),
            _ => None,
        }
    }

    /// Stores seconds in a parameter; another kind of value changes nothing.
    pub fn put_seconds(&self, to: &mut f64) {
        if let Self::Seconds(seconds) = self {
            *to = *seconds;
        }
    }

    /// Stores a size in a parameter; another kind of value changes nothing.
    pub fn put_bytes(&self, to: &mut u64) {
        if let Self::Bytes(bytes) = self {
            *to = *bytes;
        }
    }

    /// Stores a single count in a parameter; another kind of value, or several counts, change nothing.
    pub fn put_count(&self, to: &mut u32) {
        if let Some(one) = self.one() {
            *to = one;
        }
    }

    /// Stores counts in a parameter; another kind of value changes nothing.
    pub fn put_counts(&self, to: &mut Vec<u32>) {
        if let Self::Counts(counts) = self {
            to.clone_from(counts);
        }
    }

    /// Stores numbers in a parameter; another kind of value changes nothing.
    pub fn put_numbers(&self, to: &mut Vec<u64>) {
        if let Self::Numbers(numbers) = self {
            to.clone_from(numbers);
        }
    }

    fn put_choice(&self, to: &mut Choice) {
        if let Self::Choice(choice) = self {
            *to = *choice;
        }
    }

    /// Stores paths in a parameter; another kind of value changes nothing.
    pub fn put_paths(&self, to: &mut Vec<PathBuf>) {
        if let Self::Paths(paths) = self {
            to.clone_from(paths);
        }
    }
}

/// A flag given on the command line, with its value.
#[derive(Debug, Clone)]
pub struct FlagValue {
    /// The flag that was given.
    pub flag: &'static Flag,
    /// The value given with the flag.
    pub value: Value,
}

/// The meaning of a flag for an experiment with the parameters `P`.
pub struct Use<P> {
    pub(super) flag: &'static Flag,
    pub(super) put: fn(&mut P, &Value),
    pub(super) reaches: fn(&P, &Value) -> bool,
    pub(super) shares: bool,
    pub(super) nearest: Option<&'static str>,
    pub(super) note: &'static str,
}

impl<P> Clone for Use<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Use<P> {}

impl<P> Use<P> {
    /// Declares that the flag sets parameters of the experiment.
    pub const fn own(flag: &'static Flag, put: fn(&mut P, &Value)) -> Self {
        Self { flag, put, reaches: |_, _| true, shares: false, nearest: None, note: "" }
    }

    /// Declares that the flag sets a value shared by all experiments, which the experiment obeys.
    pub const fn shared(flag: &'static Flag) -> Self {
        Self { flag, put: |_, _| (), reaches: |_, _| true, shares: true, nearest: None, note: "" }
    }

    /// Declares that the flag also sets parameters of the experiment, besides the shared value.
    pub const fn and_own(self, put: fn(&mut P, &Value)) -> Self {
        Self { put, ..self }
    }

    /// Declares that the experiment has no such parameter; `nearest` names the closest alternative.
    pub const fn none(flag: &'static Flag, nearest: &'static str) -> Self {
        Self { flag, put: |_, _| (), reaches: |_, _| false, shares: false, nearest: Some(nearest), note: "" }
    }

    /// Declares that the flag applies only where `reaches` returns true for the parameters and the value; `nearest`
    /// names the alternative for the other cases.
    pub const fn only(self, reaches: fn(&P, &Value) -> bool, nearest: &'static str) -> Self {
        Self { reaches, nearest: Some(nearest), ..self }
    }

    /// Adds a note for this experiment to the flag's help, beginning with the sign that joins it to the flag's own
    /// sentence.
    pub const fn noted(self, note: &'static str) -> Self {
        Self { note, ..self }
    }
}

const fn flag(name: &'static str, value_name: &'static str, heading: Heading, kind: Kind, help: &'static str) -> Flag {
    Flag { name, value_name, help, heading, kind, reach: Reach::Chosen, shared: None }
}

/// The flag `--repeats`: how often each trial is measured.
pub static REPEATS: Flag = Flag {
    reach: Reach::Run,
    shared: Some(|config, value| value.put_count(&mut config.repeats)),
    ..flag("repeats", "COUNT", Heading::What, Kind::Count, "How often each trial is measured")
};

/// The flag for the length of a trial.
pub static SECONDS: Flag = Flag {
    reach: Reach::Every,
    ..flag(
        "seconds",
        "SECONDS",
        Heading::What,
        Kind::Seconds,
        "Length of a trial in seconds, in every experiment whose trials are timed",
    )
};

/// The flag for the size of the data.
pub static SIZE: Flag = Flag {
    shared: Some(|config, value| value.put_bytes(&mut config.data_bytes)),
    ..flag(
        "size",
        "SIZE",
        Heading::How,
        Kind::Bytes,
        "Size of the data that must not fit in memory, as in 16GiB: of the data file",
    )
};

/// The flag for the memory of the trials.
pub static MEMORY: Flag = Flag {
    shared: Some(|config, value| value.put_bytes(&mut config.memory_bytes)),
    ..flag(
        "memory",
        "SIZE",
        Heading::How,
        Kind::Bytes,
        "Memory that page cache and process may use together where the data must not fit",
    )
};

/// The flag for the way to limit memory.
pub static MEMORY_METHOD: Flag = Flag {
    shared: Some(|config, value| {
        if let Value::Memory(method) = value {
            config.memory_method = *method;
        }
    }),
    ..flag("memory-method", "METHOD", Heading::How, Kind::Memory, "How memory is limited")
};

/// The flag for thread counts.
pub static THREADS: Flag = flag(
    "threads",
    "COUNT",
    Heading::How,
    Kind::Counts,
    "Thread counts of the methods that use several threads, as in 1,16,100",
);

/// The flag for queue depths.
pub static DEPTHS: Flag =
    flag("depths", "DEPTH", Heading::How, Kind::Counts, "Queue depths of the ring methods, as in 1,32,128");

/// The flag for making a RAM-backed device.
pub static RAM_DEVICE: Flag = Flag {
    shared: Some(|config, value| value.put_choice(&mut config.ram_device)),
    ..flag(
        "ram-device",
        "CHOICE",
        Heading::Where,
        Kind::Choice,
        "Whether a RAM-backed device (zram; needs root) is a second target: there software is the limit, not the disk",
    )
};

/// The flag for the size of the data on the RAM-backed device.
pub static RAM_SIZE: Flag = Flag {
    shared: Some(|config, value| value.put_bytes(&mut config.ram_data_bytes)),
    ..flag("ram-size", "SIZE", Heading::Where, Kind::Bytes, "Size of the data on the RAM-backed device")
};

/// The flag for raw devices.
pub static DEVICE: Flag = Flag {
    shared: Some(|config, value| value.put_paths(&mut config.devices)),
    ..flag(
        "device",
        "DEVICE",
        Heading::Where,
        Kind::Paths,
        "A raw block device to read from as well; it must carry the lab's marker (see prepare-device)",
    )
};

/// The flag for a file of the user's.
pub static FILE: Flag = Flag {
    reach: Reach::Takers,
    shared: Some(|config, value| value.put_paths(&mut config.own_file)),
    ..flag(
        "file",
        "FILE",
        Heading::Where,
        Kind::Paths,
        "Read this file of yours in place of the lab's own data, with every method that only reads; it is opened for reading only and never \
         written, and its content cannot be verified",
    )
};

/// The flag for the recorded accesses of a program of the user's. Its help names the columns of [`crate::trace::COLUMNS`].
pub static TRACE: Flag = Flag {
    reach: Reach::Takers,
    shared: Some(|config, value| value.put_paths(&mut config.trace)),
    ..flag(
        "trace",
        "FILE",
        Heading::What,
        Kind::Paths,
        "Replay the recorded accesses of a program of yours by each method, over data of the lab's own: their reads, with each number of requests in \
         flight (random), and all of them, with the recorded threads, times, writes and syncs (replay). FILE is CSV, one access a line, as \
         `nofault lab record` writes it: offset,length,op,thread,time: offset and length in bytes; op is read (r), write (w) or sync (s, without \
         offset and length); thread is any name, and the accesses of one thread wait for each other; time is when the access began, in seconds from \
         any start. The last three columns may be left out, the first line may name the columns, and lines that begin with # are remarks. The data \
         has the size of the recorded file, up to the preset's, unless --size says otherwise",
    )
};

/// The flag for fio as a baseline.
pub static FIO: Flag = Flag {
    shared: Some(|config, value| value.put_choice(&mut config.fio)),
    ..flag("fio", "CHOICE", Heading::How, Kind::Choice, "Whether fio runs as an outside baseline")
};

/// The flag for the engine's pool.
pub static POOL: Flag = Flag {
    shared: Some(|config, value| value.put_choice(&mut config.pool)),
    ..flag(
        "pool",
        "CHOICE",
        Heading::How,
        Kind::Choice,
        "Whether the engine's own buffer pool is measured too (it needs a database of the size of the data)",
    )
};

/// The flag for the values of read-ahead.
pub static READ_AHEAD: Flag = Flag {
    shared: Some(|config, value| value.put_numbers(&mut config.read_ahead_kb)),
    ..flag(
        "read-ahead-kb",
        "KIB",
        Heading::How,
        Kind::Numbers,
        "Set the device's read-ahead to these values in turn (in KiB; needs root) for the trials that depend on it",
    )
};

/// The flags that several experiments have, in the order of the help.
pub static SHARED: [&Flag; 15] = [
    &REPEATS,
    &SECONDS,
    &SIZE,
    &MEMORY,
    &MEMORY_METHOD,
    &THREADS,
    &DEPTHS,
    &RAM_DEVICE,
    &RAM_SIZE,
    &DEVICE,
    &FILE,
    &TRACE,
    &FIO,
    &POOL,
    &READ_AHEAD,
];
