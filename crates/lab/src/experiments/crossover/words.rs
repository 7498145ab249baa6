//! The fixed texts of `crossover` in the report: question, method and limits, the same for all figures.

/// The question that `crossover` answers, in one line, as the report shows it.
pub(super) const QUESTION: &str = "From which miss rate on is a map slower than explicit I/O?";

/// The figure that answers the question in one row, the same in every run.
pub(super) const MAIN_FIGURE: &str = "miss rate above which mmap loses to the best other way, file";

/// How `crossover` measures, as the report explains it.
pub(super) const METHOD: &str = "Random 4 KiB reads of data from half of memory to eight times memory, uniform and zipfian (constant 0.99, popular pages \
     scattered over the data), one to many requests in flight, every method under the same memory limit. Before the clock starts, each method \
     reads by its own means: as many pages as fit, once, then in the trial's own order until a perfect cache would have replaced all its pages, with 64 requests in flight; so the pages in \
     memory are those that its own replacement keeps. The map is the faster of two: told RANDOM, and for zipfian reads NORMAL on a device whose \
     read-ahead is off. It stands against the fastest of buffered reads told RANDOM, direct reads (pread, and from two in flight io_uring), and \
     the engine's pool (threads where the data fits in the pool, tasks of one executor where it does not). The engine takes its memory as a \
     setting well below the limit, which the page cache uses up to its last byte. The miss rate is the share of accesses through the map \
     that are major faults: they wait for the device. A word of each page is checked against the expected content, while timed. \
     The variant hot-set reads a RAM-backed device of the lab's own: half of memory takes 95 % of the reads.";

/// Conditions under which the answer of `crossover` would differ, as the report lists them.
pub(super) const CHANGE: &[&str] = &[
    "A faster device: a miss then costs CPU time more than waiting, and the border moves to lower miss rates.",
    "More CPUs: a map's evictions interrupt every CPU that uses it.",
    "Larger reads: a call is then paid once for many pages, a fault for each or for each of a few.",
    "Batches: the methods here answer each request by itself; `batch` asks for many pages at once.",
    "A kernel before 6.3: reclaim then keeps pages of a RANDOM map that are in use.",
];
