//! Methods, as data: the name of each for people, how it reaches its data, how its writes become durable, its colour.
//! Each experiment has a table of methods; shared ones are here. A method is looked up by its id, and no property
//! is derived from the id's letters.

use serde::Serialize;

/// The way in which a method reaches its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Through a mapping of the file.
    Mapped,
    /// Read and write calls through the page cache.
    Buffered,
    /// Synchronous O_DIRECT calls.
    Direct,
    /// Reads through an io_uring.
    Ring,
    /// A buffer pool, the engine's or one of its parts.
    Pool,
    /// An outside program (fio).
    Baseline,
    /// Unknown: a method of a newer nofault.
    Other,
}

impl Family {
    /// Whether methods of this family read around the page cache, by the lab's own code (not fio).
    pub fn is_explicit(self) -> bool {
        matches!(self, Self::Direct | Self::Ring)
    }

    /// The colour class of the family in the report.
    const fn tone(self) -> &'static str {
        match self {
            Self::Mapped => "t0",
            Self::Direct => "t3",
            Self::Ring => "t4",
            Self::Buffered => "t5",
            Self::Baseline | Self::Other => "t6",
            Self::Pool => "t7",
        }
    }
}

/// A way to do the work of an experiment: the unit of comparison.
#[derive(Debug, PartialEq, Eq)]
pub struct Method {
    /// Stable id in records and on the command line.
    pub id: &'static str,
    /// The method's name for people.
    pub title: &'static str,
    /// How the method reaches its data.
    pub family: Family,
    /// For an outside baseline: the family of the lab's own methods that make the same calls.
    pub baseline_of: Option<Family>,
    /// The method's colour class in the report.
    pub tone: &'static str,
    /// How the method's writes become durable.
    pub durability: Durability,
    /// The parameter by which the method has more requests at a time.
    pub axis: Axis,
    /// The design of a store, where a rule tells stores apart by it.
    pub design: Design,
    /// The pages of the memory through which the method reaches its data, unless a trial's parameters say otherwise.
    pub pages: Pages,
    /// How many requests one call of the method answers.
    pub calls: Calls,
    /// Where the method's data is when a warm trial starts.
    pub warm: Warmth,
    /// The requests that the method has to serve at a time.
    pub in_flight: InFlight,
}

/// The pages of the memory through which a method reaches its data: a map, the buffers of read calls, or the frames of
/// a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pages {
    /// Pages of 4 KiB.
    Small,
    /// Huge pages.
    Huge,
    /// The pages that a whole database chooses by itself: a part of what is compared, equal to any.
    Own,
}

/// How many requests one call of a method answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Calls {
    /// Each request is answered by itself.
    Single,
    /// A call waits for all requests in flight together.
    Batches,
}

/// Where a trial's data is when the trial starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmth {
    /// On the device only.
    Cold,
    /// In the page cache; the process has yet to map it.
    Cached,
    /// In the process's own memory or its page tables: the first access costs no more than a later one.
    Ready,
    /// In the page cache, by a method of calls, which keeps nothing in the process: both [`Self::Cached`] and
    /// [`Self::Ready`].
    Calls,
}

/// The number of requests that a method has to serve at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// The number of threads times the requests in flight of each.
    OfThreads,
    /// The value of this parameter of the trial: its tasks, whatever its threads.
    OfParameter(&'static str),
}

/// How the writes of a method become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Writes become durable by a later sync call, or never: the experiment decides.
    AfterSync,
    /// Each write is durable by itself when it returns.
    EachWrite,
}

/// The parameter by which a method has more requests at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Number of threads, each with one request.
    Threads,
    /// Number of requests in flight of one thread.
    Depth,
}

/// The design of a store, where a rule tells stores apart by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Design {
    /// Any design: no rule depends on it.
    Any,
    /// LMDB's design: a read-only map, copied pages, two meta pages.
    Shadow,
}

impl Method {
    /// Creates a method in the colour of its family.
    pub const fn new(id: &'static str, title: &'static str, family: Family) -> Self {
        let (durability, axis, design) = (Durability::AfterSync, Axis::Threads, Design::Any);
        let warm = match family {
            Family::Buffered => Warmth::Calls,
            Family::Pool => Warmth::Ready,
            _ => Warmth::Cached,
        };
        Self {
            id,
            title,
            family,
            baseline_of: None,
            tone: family.tone(),
            durability,
            axis,
            design,
            pages: Pages::Small,
            calls: Calls::Single,
            warm,
            in_flight: InFlight::OfThreads,
        }
    }

    /// Returns the method with its data in huge pages.
    pub const fn huge(self) -> Self {
        Self { pages: Pages::Huge, ..self }
    }

    /// Returns the method as a complete database, which chooses its pages by itself and is warmed through its own calls.
    pub const fn database(self) -> Self {
        Self { pages: Pages::Own, warm: Warmth::Ready, ..self }
    }

    /// Returns the method with calls waiting for all requests in flight together.
    pub const fn batched(self) -> Self {
        Self { calls: Calls::Batches, ..self }
    }

    /// Returns the method with warm data in the process itself.
    pub const fn ready(self) -> Self {
        Self { warm: Warmth::Ready, ..self }
    }

    /// Returns the method with as many requests at a time as a parameter of the trial says.
    pub const fn in_flight_of(self, parameter: &'static str) -> Self {
        Self { in_flight: InFlight::OfParameter(parameter), ..self }
    }

    /// Returns the method in another colour, to tell it from others of its family.
    pub const fn toned(self, tone: &'static str) -> Self {
        Self { tone, ..self }
    }

    /// Returns the method with writes that are durable by themselves.
    pub const fn durable(self) -> Self {
        Self { durability: Durability::EachWrite, ..self }
    }

    /// Returns the method with its parallelism counted in requests in flight instead of threads.
    pub const fn by_depth(self) -> Self {
        Self { axis: Axis::Depth, ..self }
    }

    /// Returns the method as a store of LMDB's design.
    pub const fn shadow(self) -> Self {
        Self { design: Design::Shadow, ..self }
    }

    /// Returns the method as the outside baseline of a family.
    pub const fn baseline_of(self, family: Family) -> Self {
        Self { baseline_of: Some(family), ..self }
    }
}

/// The methods that several experiments share.
pub static SHARED: &[Method] = &[
    Method::new("mmap-normal", "mmap NORMAL", Family::Mapped).toned("t1"),
    Method::new("mmap-random", "mmap RANDOM", Family::Mapped),
    Method::new("mmap-sequential", "mmap SEQUENTIAL", Family::Mapped).toned("t2"),
    Method::new("pread-buffered", "pread buffered", Family::Buffered),
    Method::new("pread-direct", "pread O_DIRECT", Family::Direct),
    Method::new("uring-direct", "io_uring O_DIRECT", Family::Ring).by_depth(),
    Method::new("mmap", "mmap RANDOM", Family::Mapped),
    Method::new("pread-buffered-random", "pread buffered, RANDOM hint", Family::Buffered),
    Method::new("fio-uring", "fio io_uring", Family::Baseline).baseline_of(Family::Ring).by_depth(),
    Method::new("fio-uring-direct", "fio io_uring", Family::Baseline).baseline_of(Family::Ring),
    Method::new("fio-psync-direct", "fio psync", Family::Baseline).baseline_of(Family::Direct),
    Method::new("os-cow", "OS copy-on-write, as MMAPv1 does it", Family::Mapped).database(),
    Method::new("user-cow", "user copy-on-write, in the map", Family::Mapped).database(),
    Method::new("user-cow-pwrite", "user copy-on-write, by pwrite", Family::Mapped).database(),
    Method::new("mapped-log", "read-only map, the engine's log", Family::Mapped).database(),
    Method::new("shadow", "shadow paging, as LMDB does it", Family::Mapped).shadow().database(),
    Method::new("shadow-writemap", "shadow paging, WRITEMAP", Family::Mapped).shadow().database(),
    Method::new("lmdb", "LMDB", Family::Mapped).shadow().database(),
    Method::new("sqlite", "SQLite", Family::Buffered).database(),
    Method::new("pool", "nofault pool", Family::Pool),
    Method::new("pool-tasks", "nofault pool, tasks", Family::Pool).by_depth(),
    Method::new("engine", "engine", Family::Ring).database(),
    Method::new("nofault", "nofault", Family::Pool).database(),
    Method::new("redb", "redb", Family::Buffered).database(),
];

/// Finds a method by its id: in the experiment's own table, otherwise in the shared one.
pub fn find(own: &'static [Method], id: &str) -> Option<&'static Method> {
    own.iter().chain(SHARED).find(|method| method.id == id)
}

/// A method's name for people. An unknown id is shown as it is.
pub fn title(method: Option<&Method>, id: &str) -> String {
    method.map_or_else(|| id.replace('-', " "), |method| method.title.to_owned())
}
