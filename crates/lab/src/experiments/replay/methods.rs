//! The methods of `replay`: the way in which each reads and writes.

use nofault_io::mapped::Advice;
use nofault_io::probe::{Ability, Probe};

use crate::methods::{Family, Method};
use crate::read_loops::sync::Means;

/// The way in which a method reaches the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Loads and stores in a shared map with this advice.
    Map(Advice),
    /// Read and write calls.
    Calls(Means),
    /// A ring past the page cache.
    Ring,
}

/// A method that can be planned.
pub(super) struct Replayer {
    pub(super) id: &'static str,
    pub(super) way: Way,
}

const ALL: [Replayer; 6] = [
    Replayer { id: "mmap-normal", way: Way::Map(Advice::Normal) },
    Replayer { id: "mmap-random", way: Way::Map(Advice::Random) },
    Replayer { id: "calls-buffered", way: Way::Calls(Means::Buffered) },
    Replayer { id: "calls-buffered-random", way: Way::Calls(Means::BufferedRandom) },
    Replayer { id: "calls-direct", way: Way::Calls(Means::Direct) },
    Replayer { id: "uring-direct", way: Way::Ring },
];

/// All methods, in the order of the plan.
pub(super) fn all() -> impl Iterator<Item = &'static Replayer> {
    ALL.iter()
}

/// The way of a method; `None` for an unknown one.
pub(super) fn way_of(id: &str) -> Option<Way> {
    all().find(|method| method.id == id).map(|method| method.way)
}

impl Replayer {
    /// Returns why the method cannot be measured here; `None` when it can.
    pub(super) fn refusal(&self, probe: &Probe) -> Option<String> {
        let needs: &[&Ability] = match self.way {
            Way::Map(_) | Way::Calls(Means::Buffered | Means::BufferedRandom | Means::DontCache) => &[],
            Way::Calls(Means::Direct) => &[&probe.direct_io],
            Way::Ring => &[&probe.direct_io, &probe.io_uring],
        };
        needs.iter().find_map(|ability| ability.reason().map(str::to_owned))
    }
}

/// The methods that only `replay` has.
pub(super) static METHODS: &[Method] = &[
    Method::new("calls-buffered", "pread/pwrite buffered", Family::Buffered),
    Method::new("calls-buffered-random", "pread/pwrite buffered, RANDOM hint", Family::Buffered),
    Method::new("calls-direct", "pread/pwrite O_DIRECT", Family::Direct),
];
