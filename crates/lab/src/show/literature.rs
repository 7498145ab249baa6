//! The literature's figures as data, shown next to the reader's and never mixed with them: they come from another
//! machine at another scale.

use crate::format::Unit;
use crate::judge::best;
use crate::methods::Method;
use crate::record::{CacheState, ExperimentId};
use crate::summary::{Group, Metric, Summary, is_plain};

/// A publication with measurements.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The short form in which the publication is cited.
    pub(crate) cite: &'static str,
    /// Title of the publication.
    pub(crate) title: &'static str,
    /// The machine of the publication's measurements.
    pub(crate) machine: &'static str,
    /// How the publication measured.
    pub(crate) how: &'static str,
}

/// Figures from one publication next to an experiment's own, in one unit.
#[derive(Debug, PartialEq)]
pub(crate) struct LiteratureTable {
    /// The publication that the figures come from.
    pub(crate) source: &'static Source,
    /// The variant of the experiment that the figures belong to; empty for all variants.
    pub(crate) variant: &'static str,
    /// Number of devices that the publication used at once.
    pub(crate) devices: u32,
    /// The quantity measured, as a heading.
    pub(crate) title: &'static str,
    /// The lab's metric whose figures are shown next to the published ones.
    pub(crate) metric: Metric,
    /// Unit of the values.
    pub(crate) unit: Unit,
    /// Names of the values in a row: one, or `cold` and `warm`.
    pub(crate) columns: &'static [&'static str],
    /// The figures, a row for each method.
    pub(crate) rows: &'static [LiteratureRow],
    /// Remarks that a reader needs to interpret the figures.
    pub(crate) remarks: &'static [&'static str],
}

/// The published figures of one method.
#[derive(Debug, PartialEq)]
pub(crate) struct LiteratureRow {
    /// Name of the method in the publication.
    pub(crate) label: &'static str,
    /// Id of the lab's method that comes closest.
    pub(crate) method: &'static str,
    /// One value for each column, in the table's unit (seconds, operations a second, bytes a second).
    pub(crate) values: &'static [f64],
    /// A remark on this row; empty for none.
    pub(crate) note: &'static str,
}

/// Creates a row of a table.
pub(crate) const fn row(
    label: &'static str,
    method: &'static Method,
    values: &'static [f64],
    note: &'static str,
) -> LiteratureRow {
    LiteratureRow { label, method: method.id, values, note }
}

/// The paper "Are You Sure You Want to Use MMAP in Your Database Management System?".
pub(crate) static PAPER: Source = Source {
    cite: "Crotty, Leis, Pavlo, CIDR 2022",
    title: "Are You Sure You Want to Use MMAP in Your Database Management System?",
    machine: "AMD EPYC 7713 (128 hardware threads), Linux 5.11, 100 GB for the page cache, Samsung PM1733",
    how: "medians after 60 s, from the published data",
};

/// The blog post "Async hazard: mmap is secretly blocking IO".
pub(crate) static HAZARD: Source = Source {
    cite: "Huon Wilson, Async hazard, 2024",
    title: "Async hazard: mmap is secretly blocking IO",
    machine: "Apple M1 MacBook Pro, macOS",
    how: "8 files of 256 MiB summed sequentially, minimum of 100 runs",
};

/// The article "The performance of memory mapping vs. traditional read/write for database files on modern NVMe drives".
pub(crate) static NVME: Source = Source {
    cite: "Leonardo Benicio, 2022",
    title: "The performance of memory mapping vs. traditional read/write for database files on modern NVMe drives",
    machine: "Samsung 990 Pro, Linux 6.5 (as stated)",
    how: "one thread, 4 KiB, 64 GB file, as stated",
};

/// The benchmarks in the documentation of redb.
pub(crate) static REDB: Source = Source {
    cite: "redb 4, README",
    title: "redb: benchmarks",
    machine: "AMD Ryzen 9950X3D, Samsung 9100 PRO",
    how: "redb's own benchmark, 24-byte keys and 150-byte values, data in memory; times turned into rates",
};

/// Articles of practitioners for and against mmap, some in answer to the paper.
pub(crate) static REBUTTALS: Source = Source {
    cite: "WiredTiger (MongoDB), 2020; RavenDB's author, 2022; others",
    title: "articles for and against mmap, from those who ship databases",
    machine: "Machine not stated",
    how: "as stated there",
};

/// Two databases whose papers study mmap against a buffer pool, run as published on a present-day machine.
pub(crate) static SYSTEMS: Source = Source {
    cite: "vmcache (SIGMOD 2023) and LeanStore (ICDE 2018), run for this project",
    title: "Virtual-Memory Assisted Buffer Management; LeanStore: In-Memory Data Management beyond Main Memory",
    machine: "a virtual machine with 2 CPUs and 24 GiB, Linux 6.18",
    how: "the published programs, one thread, medians; no figures of the papers themselves",
};

/// The reader's own groups next to a row of a table: one for each column.
#[derive(Debug)]
pub(crate) struct Counterparts<'g, 'a> {
    /// A group for each column; `None` where these records have no such group.
    pub(crate) groups: Vec<Option<&'g Group<'a>>>,
    /// Whether all groups were measured on the file, the lab's usual target.
    pub(crate) on_file: bool,
}

/// Finds the groups of the method that a row names, at its best setting and on the file: one for each column of the
/// table.
pub(crate) fn on_the_file<'g, 'a>(
    experiment: ExperimentId,
    table: &LiteratureTable,
    row: &LiteratureRow,
    summary: &'g Summary<'a>,
) -> Counterparts<'g, 'a> {
    let states: &[CacheState] =
        if table.columns.len() > 1 { &[CacheState::Cold, CacheState::Warm] } else { &[CacheState::Cold] };
    let find = |cache: &CacheState| {
        let same = summary.of_experiment(experiment).filter(|group| {
            let spec = group.spec;
            spec.method == row.method
                && spec.variant == table.variant
                && spec.target.label == "file"
                && spec.cache == *cache
                && is_plain(&spec.params)
        });
        best(same, table.metric)
    };
    // Figures of ten devices are not compared with one file.
    let groups = if table.devices > 1 { vec![None; states.len()] } else { states.iter().map(find).collect() };
    Counterparts { groups, on_file: true }
}

/// Finds the group of the method that a row names in which `size` is largest, for experiments that measure several sizes.
pub(crate) fn of_largest<'g, 'a>(
    experiment: ExperimentId,
    (table, row): (&LiteratureTable, &LiteratureRow),
    summary: &'g Summary<'a>,
    size: impl Fn(&Group<'_>) -> f64,
) -> Counterparts<'g, 'a> {
    let same = |group: &&Group<'_>| group.spec.method == row.method && group.spec.variant == table.variant;
    let own = summary.of_experiment(experiment).filter(same).max_by(|a, b| size(a).total_cmp(&size(b)));
    Counterparts { groups: vec![own], on_file: true }
}
