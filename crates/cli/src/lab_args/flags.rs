//! Which flag of a run reaches which experiments. Each is put where a chosen experiment has a parameter of its meaning; one
//! that none of them has is refused, because a run that ignores what was asked for is believed to have done it.
//!
//! What every experiment obeys (folder, seed, repeats, the workload) is not in question here.

use nofault_lab::config::{Config, ExperimentId, MemoryChoice};
use nofault_lab::error::{LabError, LabErrorKind, Result};

use super::{ChoiceName, MemoryName, RunArguments, set, some};

/// A flag that not every experiment has a parameter for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    Seconds,
    Size,
    Memory,
    MemoryMethod,
    /// Whether it names one count: some experiments take no more.
    Threads {
        one: bool,
    },
    Depths,
    RamDevice,
    RamSize,
    Device,
    StripeOver,
    Fio,
    Pool,
    ReadAhead,
}

impl Flag {
    fn name(self) -> &'static str {
        match self {
            Self::Seconds => "--seconds",
            Self::Size => "--size",
            Self::Memory => "--memory",
            Self::MemoryMethod => "--memory-method",
            Self::Threads { .. } => "--threads",
            Self::Depths => "--depths",
            Self::RamDevice => "--ram-device",
            Self::RamSize => "--ram-size",
            Self::Device => "--device",
            Self::StripeOver => "--stripe-over",
            Self::Fio => "--fio",
            Self::Pool => "--pool",
            Self::ReadAhead => "--read-ahead-kb",
        }
    }

    /// Whether an experiment, as it is configured, has a parameter of this meaning.
    fn reaches(self, id: ExperimentId, config: &Config) -> bool {
        use ExperimentId::{Access, Async, Claims, Engines, Errors, Eviction, Random, Scan, Stalls};
        let reads_uncached = id == Claims && config.claims.thorough;
        match self {
            Self::Seconds => id != Async,
            Self::Size => id.needs_file() || id == Engines || reads_uncached,
            Self::Memory => id.needs_limit() || id == Engines || reads_uncached,
            // `eviction` measures both ways itself.
            Self::MemoryMethod => (id.needs_limit() && id != Eviction) || id == Engines || reads_uncached,
            Self::Threads { one } => {
                !matches!(id, Async | Access | Stalls | Errors | Engines) || (id == Engines && one)
            }
            Self::Depths => matches!(id, Random | Scan | Access),
            Self::RamDevice | Self::RamSize => id.uses_ram_device() || (id == Async && config.async_.open_questions),
            Self::Device => matches!(id, Random | Scan | Access) || (id == Async && config.async_.open_questions),
            Self::StripeOver => id == Scan,
            Self::Fio => matches!(id, Random | Scan),
            Self::Pool => matches!(id, Random | Scan | Async | Stalls),
            Self::ReadAhead => matches!(id, Random | Scan | Async | Engines),
        }
    }

    /// What comes nearest in an experiment that it does not reach.
    fn instead(self, id: ExperimentId) -> Option<&'static str> {
        use ExperimentId::{Async, Claims, Engines, Safety, Stalls, Translate};
        Some(match (self, id) {
            (Self::Seconds, Async) => "--set async.touches=COUNT",
            (Self::Size, Async) => "--set async.file_bytes=BYTES",
            (Self::Size, Safety) => "--set safety.keys=COUNT",
            (Self::Size, Translate) => "--set translate.working_set_bytes=[BYTES]",
            (Self::Size | Self::Memory | Self::MemoryMethod, Claims) => "--set claims.thorough=true beside it",
            (Self::Threads { .. }, Engines) => "a single count for engines, as in --threads 16",
            (Self::Threads { .. }, Async) => "--set async.files=COUNT, each read by a task",
            (Self::Threads { .. }, Stalls) => "--set stalls.helpers=[COUNT]",
            (Self::Depths, Stalls) => "--set stalls.ahead=COUNT",
            (Self::RamDevice | Self::RamSize | Self::Device, Async) => "--set async.open_questions=true beside it",
            _ => return None,
        })
    }

    /// Why it is refused.
    fn refused(self, config: &Config) -> LabError {
        let names = |ids: &mut dyn Iterator<Item = ExperimentId>| {
            let names: Vec<&str> = ids.map(ExperimentId::name).collect();
            match names.as_slice() {
                [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
                names => names.join(""),
            }
        };
        let mut chosen = config.experiments.iter().copied();
        let mut takers = ExperimentId::ALL.into_iter().filter(|id| self.reaches(*id, config));
        let nearest: Vec<&str> = config.experiments.iter().filter_map(|id| self.instead(*id)).collect();
        let nearest = if nearest.is_empty() { String::new() } else { format!("; nearest: {}", nearest.join("; ")) };
        let message = format!(
            "{} changes nothing in {}: it is for {}{nearest}",
            self.name(),
            names(&mut chosen),
            names(&mut takers)
        );
        LabError::new(LabErrorKind::Usage, message)
    }
}

impl RunArguments {
    /// Puts sizes and counts where the experiments that `seen` chose have them. What others have stays: a count that suits the
    /// chosen ones may be more than others take.
    pub(super) fn put_where_used(&self, config: &mut Config, seen: &Config) {
        let chosen = |id: ExperimentId| seen.experiments.contains(&id);
        let of_file =
            |flag: Flag| seen.experiments.iter().any(|id| *id != ExperimentId::Engines && flag.reaches(*id, seen));
        if of_file(Flag::Size) {
            set(&mut config.data_bytes, self.size);
        }
        if of_file(Flag::Memory) {
            set(&mut config.memory_bytes, self.memory);
        }
        if chosen(ExperimentId::Engines) {
            set(&mut config.engines.data_bytes, self.size);
            set(&mut config.engines.memory_bytes, self.memory);
        }
        if chosen(ExperimentId::Eviction) {
            set(&mut config.eviction.cgroup_bytes, self.memory);
            set(&mut config.eviction.kswapd_bytes, self.memory);
        }
        let (threads, depths) = (some(&self.threads), some(&self.depths));
        let one = match self.threads.as_slice() {
            [one] => Some(*one),
            _ => None,
        };
        for id in &seen.experiments {
            match id {
                ExperimentId::Random => {
                    set(&mut config.random.threads, threads.clone());
                    set(&mut config.random.ram_threads, threads.clone());
                    set(&mut config.random.depths, depths.clone());
                }
                ExperimentId::Scan => {
                    set(&mut config.scan.map_threads, threads.clone());
                    set(&mut config.scan.depths, depths.clone());
                }
                ExperimentId::Access => set(&mut config.access.batches, depths.clone()),
                ExperimentId::Safety => set(&mut config.safety.writers, threads.clone()),
                ExperimentId::Eviction => {
                    set(&mut config.eviction.threads, threads.clone());
                    set(&mut config.eviction.scan_threads, one);
                }
                ExperimentId::Translate => set(&mut config.translate.threads, threads.clone()),
                ExperimentId::Engines => {
                    set(&mut config.engines.threads, one);
                    set(&mut config.engines.fit_threads, one);
                }
                ExperimentId::Claims => set(&mut config.claims.map_threads, threads.clone()),
                ExperimentId::Async | ExperimentId::Stalls | ExperimentId::Errors => {}
            }
        }
    }

    /// Refuses a flag that none of the chosen experiments has a parameter for.
    ///
    /// # Errors
    /// `Usage`, with the experiments that have one and what comes nearest in the chosen ones.
    pub(super) fn refuse_unused(&self, config: &Config) -> Result<()> {
        let unused = |flag: &Flag| !config.experiments.iter().any(|id| flag.reaches(*id, config));
        match self.given().into_iter().find(unused) {
            Some(flag) => Err(flag.refused(config)),
            None => Ok(()),
        }
    }

    /// The flags that were given and ask for something: leaving out what is not there anyway is done.
    fn given(&self) -> Vec<Flag> {
        let required = |choice: Option<ChoiceName>| matches!(choice, Some(ChoiceName::Require));
        let method = self.memory_method.map(MemoryName::choice).is_some_and(|method| method != MemoryChoice::Auto);
        let flags = [
            (self.seconds.is_some(), Flag::Seconds),
            (self.size.is_some(), Flag::Size),
            (self.memory.is_some(), Flag::Memory),
            (method, Flag::MemoryMethod),
            (!self.threads.is_empty(), Flag::Threads { one: self.threads.len() == 1 }),
            (!self.depths.is_empty(), Flag::Depths),
            (required(self.ram_device), Flag::RamDevice),
            (self.ram_size.is_some(), Flag::RamSize),
            (!self.device.is_empty(), Flag::Device),
            (!self.stripe_over.is_empty(), Flag::StripeOver),
            (required(self.fio), Flag::Fio),
            (required(self.pool), Flag::Pool),
            (!self.read_ahead_kb.is_empty(), Flag::ReadAhead),
        ];
        flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag).collect()
    }
}
