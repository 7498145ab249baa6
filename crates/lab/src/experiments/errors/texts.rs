//! What the report shows of `errors` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::rules::{fate, fault_title, outcome_of, short_fate, store_title};
use super::{FAULTS, ID};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::show::columns::Column;
use crate::show::figures::{Figure, Table};
use crate::show::literature::{LiteratureTable, PAPER};
use crate::summary::{Group, Metric, Summary};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "What happens when I/O fails, and what does it cost to notice?",
    main_figure: "end of a process with a plain map when a read fails",
    procedure: "Each fault is made for real and happens in a separate process: a file cut under an open store, a file system \
     of the lab's own (FUSE) that fails one page and later delivers it again, a bit flipped on disk, a bit flipped in \
     memory through a stray pointer. The process reads half of 256 pages; the fault is made, and the process reads \
     all pages; then the fault is repaired, and it reads all pages again. After a stray write the process syncs, and \
     another process reads the pages from disk. The lab judges which pages are right; only the store's own errors and \
     signals count as detection. Plain mappings are used as they are; guarded ones turn SIGBUS into an error; checked \
     ones also verify a page's checksum at every access. Checksum-cost: one thread loads a word of random pages, all \
     in memory.",
    change: &[
        "Pages that are read whole anyway: the checksum's bytes are then in the CPU's caches, and its cost falls to the arithmetic.",
        "Data that does not fit in memory: where every access is a load, both ways check equally often.",
        "A file system with its own checksums (btrfs, ZFS): it detects flipped bits on disk, and a mapping gets SIGBUS.",
        "A read-only mapping: a stray write ends the process instead of the data.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: "",
    devices: 1,
    title: "What the paper says of errors (§3.3)",
    metric: Metric::OpsPerS,
    unit: Unit::Count,
    columns: &[],
    rows: &[],
    remarks: &[
        "No figures, three statements. One: a mapped page has to be verified at every access, as the kernel may have evicted and read it again; \
             a pool verifies when it loads.",
        "Two: pointers gone astray in a memory-unsafe language can change mapped pages, which then go to disk unnoticed; a pool can check a page \
             before it writes it.",
        "Three: a failed read or write is a SIGBUS wherever the memory is touched, where a call would have returned an error at one place.",
    ],
}];

// Figures of `errors`: the outcome of each fault for each store, as tables, since outcomes are words; and the cost of
// checking.

/// Draws the tables of the faults: one of all outcomes, and one of each store's messages.
pub(super) fn faults(summary: &Summary<'_>) -> Vec<Figure> {
    let groups: Vec<&Group<'_>> =
        summary.of_experiment(ID).filter(|group| FAULTS.contains(&group.spec.variant.as_str())).collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let met: Vec<&str> =
        FAULTS.into_iter().filter(|fault| groups.iter().any(|group| group.spec.variant == *fault)).collect();
    let mut stores: Vec<&str> = Vec::new();
    for group in &groups {
        if !stores.contains(&group.spec.method.as_str()) {
            stores.push(&group.spec.method);
        }
    }
    let mut table = Table { headers: vec!["store".into()], rows: Vec::new() };
    table.headers.extend(met.iter().map(|fault| fault_title(fault).to_owned()));
    for store in stores {
        let mut row = vec![store_title(store)];
        row.extend(met.iter().map(|fault| {
            let group = groups.iter().find(|group| group.spec.variant == *fault && group.spec.method == store);
            group.and_then(|group| outcome_of(group)).map_or("–".to_owned(), fate)
        }));
        table.rows.push(row);
    }
    let words = |name: &str, group: &Group<'_>| {
        outcome_of(group).and_then(|outcome| outcome.texts.get(name).cloned()).unwrap_or_default()
    };
    let mut said = Table { headers: ["fault", "store", "ended", "said"].map(str::to_owned).to_vec(), rows: Vec::new() };
    for group in groups {
        let row = [
            fault_title(&group.spec.variant).to_owned(),
            store_title(&group.spec.method),
            words("ended", group),
            words("said", group),
        ];
        said.rows.push(row.to_vec());
    }
    let figure = |title: &str, lead: &str, table: Table| Figure {
        title: title.into(),
        lead: lead.into(),
        legend: Vec::new(),
        svg: String::new(),
        table,
        ..Figure::default()
    };
    vec![
        figure(
            "What each store made of each fault",
            "Each trial is one process that met one real fault, at one page of 256. “No word” means that wrong bytes were handed out as data.",
            table,
        ),
        figure("In their own words", "What the store said first, and how its process ended where it did.", said),
    ]
}

/// Builds the columns: the outcome of each fault for each store, in a word or two. The report says more.
pub(super) fn columns(summary: &Summary<'_>, target: &str, title: &str) -> Option<Vec<Column>> {
    let at = |fault: &str| summary.at(ID, fault, target);
    let mut stores: Vec<&str> = Vec::new();
    for group in FAULTS.into_iter().flat_map(at) {
        if !stores.contains(&group.spec.method.as_str()) {
            stores.push(&group.spec.method);
        }
    }
    let mut columns = vec![Column::new(title, stores.iter().map(|store| store_title(store)).collect())];
    for fault in FAULTS {
        let groups = at(fault);
        let fate_of = |store: &&str| {
            let group = groups.iter().find(|group| group.spec.method == **store)?;
            outcome_of(group).map(short_fate)
        };
        columns.push(Column::new(fault, stores.iter().map(|store| fate_of(store).unwrap_or_default()).collect()));
    }
    (!stores.is_empty()).then_some(columns)
}
