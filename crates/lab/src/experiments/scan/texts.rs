//! What the report shows of `scan` whatever the figures: question, method and limits, published figures; and its charts and tables.

use crate::experiment::Texts;
use crate::format::Unit;
use crate::methods;
use crate::show::literature::{LiteratureTable, PAPER, row};
use crate::summary::Metric;

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "How fast can a file be scanned, from one device and from several?",
    main_figure: "scan rate, mmap ÷ explicit I/O, file",
    procedure: "The data is read from front to back, again from the front until the time is over: maps and read calls by several threads, \
     each on its own part (128 MiB, as the paper's benchmark does), the ring and fio by one thread with large blocks and \
     many in flight. The ring, fio and the engine's pool run with buffers in huge pages and in 4 KiB pages, as scattered pages split large \
     requests; with a map, whose pages are small, only the latter are compared, with as many requests in flight as the map has threads. \
     Striped: consecutive stripes lie on consecutive files or devices. A word of each page is checked; fio checks nothing.",
    change: &[
        "More devices: explicit I/O can use them, mmap is bounded by page faults and by the one thread that evicts.",
        "Read-ahead: it decides how much mmap reads at a time.",
        "Buffers in small pages: large direct reads into scattered pages can be limited by the device's segment count.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[
    LiteratureTable {
        source: &PAPER,
        variant: "",
        devices: 1,
        title: "Sequential scan of one SSD, 20 threads, memory full",
        metric: Metric::BytesPerS,
        unit: Unit::BytesPerSecond,
        columns: &["bytes per second"],
        rows: &[
            row("fio O_DIRECT", &methods::FIO_URING, &[6.8e9], ""),
            row("mmap NORMAL", &methods::MMAP_NORMAL, &[2.5e9], "6.6 GB/s in the first 15 s"),
            row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[2.5e9], ""),
            row("mmap RANDOM", &methods::MMAP_RANDOM, &[1.0e9], "3.4 GB/s in the first 15 s"),
        ],
        remarks: &[],
    },
    LiteratureTable {
        source: &PAPER,
        variant: "",
        devices: 10,
        title: "Sequential scan of ten SSDs (RAID 0), 20 threads, memory full",
        metric: Metric::BytesPerS,
        unit: Unit::BytesPerSecond,
        columns: &["bytes per second"],
        rows: &[
            row("fio O_DIRECT", &methods::FIO_URING, &[60e9], ""),
            row("mmap SEQUENTIAL", &methods::MMAP_SEQUENTIAL, &[2.7e9], ""),
            row("mmap NORMAL", &methods::MMAP_NORMAL, &[2.4e9], ""),
            row(
                "mmap RANDOM",
                &methods::MMAP_RANDOM,
                &[0.5e9],
                "another reader used the array during part of this run",
            ),
        ],
        remarks: &[
            "In the published data the device moves 57 GB/s while the work of NORMAL and RANDOM is a few percent of that, up to second 140-150: another program read from the array. The SEQUENTIAL run is clean.",
        ],
    },
];
