//! Methods, as data: the name of each for people, how it reaches its data, how its writes become durable, its colour.
//!
//! A method is a constant: plans, claims, findings and published figures name the constant, so that a wrong name does not
//! compile. Its id stands in the constant's definition alone; records have ids, which [`find`] looks up, and no property is
//! derived from an id's letters. Methods of one experiment are defined in its folder, the others here.

use nofault_io::mapped::Advice;
use serde::Serialize;

use crate::measure::read_loops::fio::Engine;
use crate::measure::read_loops::pool;
use crate::measure::read_loops::sync::Means;
use crate::measure::stores;

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

/// The code path and settings by which a method reads blocks of a file or device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through a map with this advice to the kernel.
    Map(Advice),
    /// By `pread` on threads.
    Sync(Means),
    /// By an io_uring past the page cache.
    Ring,
    /// Through the engine's buffer pool.
    Pool(pool::Calls),
    /// By fio past the page cache, as the outside baseline.
    Fio(Engine),
}

impl Way {
    /// Whether reads bypass the page cache, so that the device reads exactly the requested bytes.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::Sync(Means::Direct) | Self::Ring | Self::Fio(_))
    }

    /// Whether the figures depend on the kernel's read-ahead.
    pub(crate) fn reads_ahead(self) -> bool {
        matches!(self, Self::Map(Advice::Normal | Advice::Sequential) | Self::Sync(Means::Buffered))
    }
}

/// A way to do the work of an experiment: the unit of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Stable id in records and on the command line.
    pub id: &'static str,
    /// The method's name for people.
    pub title: &'static str,
    /// How the method reaches its data.
    pub family: Family,
    /// How the method reads blocks, where experiments plan it by [`crate::read_trials`].
    pub(crate) way: Option<Way>,
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
            way: None,
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

    /// Returns the method with the way in which it reads blocks.
    const fn reads(self, way: Way) -> Self {
        Self { way: Some(way), ..self }
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

/// A record names a method by its id.
impl PartialEq<Method> for String {
    fn eq(&self, method: &Method) -> bool {
        self == method.id
    }
}

impl PartialEq<Method> for &str {
    fn eq(&self, method: &Method) -> bool {
        *self == method.id
    }
}

/// Defines methods: a constant for each, and the table of them in which ids are looked up.
macro_rules! methods {
    ($(#[$doc:meta])* $visibility:vis $table:ident: $($name:ident = $method:expr;)*) => {
        $($visibility const $name: Method = $method;)*

        $(#[$doc])*
        $visibility static $table: &[Method] = &[$($name),*];
    };
}

pub(crate) use methods;

methods! {
    /// The methods that several experiments share, or that [`Way`] reads for.
    pub(crate) SHARED:
    MMAP_NORMAL = Method::new("mmap-normal", "mmap NORMAL", Family::Mapped).toned("t1").reads(Way::Map(Advice::Normal));
    MMAP_RANDOM = Method::new("mmap-random", "mmap RANDOM", Family::Mapped).reads(Way::Map(Advice::Random));
    MMAP_SEQUENTIAL = Method::new("mmap-sequential", "mmap SEQUENTIAL", Family::Mapped).toned("t2").reads(Way::Map(Advice::Sequential));
    PREAD_BUFFERED = Method::new("pread-buffered", "pread buffered", Family::Buffered).reads(Way::Sync(Means::Buffered));
    PREAD_DIRECT = Method::new("pread-direct", "pread O_DIRECT", Family::Direct).reads(Way::Sync(Means::Direct));
    URING_DIRECT = Method::new("uring-direct", "io_uring O_DIRECT", Family::Ring).by_depth().reads(Way::Ring);
    MMAP = Method::new("mmap", "mmap RANDOM", Family::Mapped);
    PREAD_BUFFERED_RANDOM = Method::new("pread-buffered-random", "pread buffered, RANDOM hint", Family::Buffered).reads(Way::Sync(Means::BufferedRandom));
    FIO_URING = Method::new("fio-uring", "fio io_uring", Family::Baseline).baseline_of(Family::Ring).by_depth().reads(Way::Fio(Engine::Uring));
    FIO_URING_DIRECT = Method::new("fio-uring-direct", "fio io_uring", Family::Baseline).baseline_of(Family::Ring);
    FIO_PSYNC_DIRECT = Method::new("fio-psync-direct", "fio psync", Family::Baseline).baseline_of(Family::Direct);
    OS_COW = Method::new("os-cow", "OS copy-on-write, as MMAPv1 does it", Family::Mapped).database();
    USER_COW = Method::new("user-cow", "user copy-on-write, in the map", Family::Mapped).database();
    USER_COW_PWRITE = Method::new("user-cow-pwrite", "user copy-on-write, by pwrite", Family::Mapped).database();
    MAPPED_LOG = Method::new("mapped-log", "read-only map, the engine's log", Family::Mapped).database();
    SHADOW = Method::new("shadow", "shadow paging, as LMDB does it", Family::Mapped).shadow().database();
    SHADOW_WRITEMAP = Method::new("shadow-writemap", "shadow paging, WRITEMAP", Family::Mapped).shadow().database();
    LMDB = Method::new(stores::LMDB, "LMDB", Family::Mapped).shadow().database();
    SQLITE = Method::new(stores::SQLITE, "SQLite", Family::Buffered).database();
    POOL = Method::new("pool", "nofault pool", Family::Pool).reads(Way::Pool(pool::Calls::Threads));
    POOL_TASKS = Method::new("pool-tasks", "nofault pool, tasks", Family::Pool).by_depth().reads(Way::Pool(pool::Calls::Tasks));
    ENGINE = Method::new("engine", "engine", Family::Ring).database();
    NOFAULT = Method::new(stores::ENGINE, "nofault", Family::Pool).database();
    REDB = Method::new(stores::REDB, "redb", Family::Buffered).database();
    FJALL = Method::new(stores::FJALL, "fjall", Family::Buffered).database();
    LMDB_READAHEAD = Method::new(stores::LMDB_READ_AHEAD, "LMDB, read-ahead", Family::Mapped).shadow().database();
    ROCKSDB = Method::new(stores::ROCKSDB, "RocksDB", Family::Buffered).database();
    ROCKSDB_DIRECT = Method::new(stores::ROCKSDB_DIRECT, "RocksDB, O_DIRECT", Family::Direct).database();
    BF_TREE = Method::new(stores::BF_TREE, "Bf-Tree", Family::Buffered).database();
    PREAD_CACHED = Method::new("pread-cached", "pread, cached", Family::Buffered);
    FIO_PSYNC = Method::new("fio-psync", "fio psync", Family::Baseline).baseline_of(Family::Direct).reads(Way::Fio(Engine::Psync));
    POOL_GET_MANY = Method::new("pool-get-many", "nofault pool, get_many", Family::Pool).by_depth().batched().reads(Way::Pool(pool::Calls::Batches));
    PREAD_DONTCACHE = Method::new("pread-dontcache", "pread RWF_DONTCACHE", Family::Buffered).reads(Way::Sync(Means::DontCache));
}

/// Finds a method by its id: in the experiment's own table, otherwise in the shared one.
pub fn find(own: &'static [Method], id: &str) -> Option<&'static Method> {
    own.iter().chain(SHARED).find(|method| method.id == id)
}

/// A method's name for people. An unknown id is shown as it is.
pub fn title(method: Option<&Method>, id: &str) -> String {
    method.map_or_else(|| id.replace('-', " "), |method| method.title.to_owned())
}
