//! What the report shows of `access` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::{PWRITE_BUFFERED, PWRITE_DIRECT};
use crate::experiment::Texts;
use crate::format::Unit;
use crate::methods;
use crate::show::literature::{LiteratureTable, NVME, row};
use crate::summary::Metric;

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "What does one thread get from each way to read, overwrite and sync?",
    main_figure: "reads of one thread, one at a time, mmap ÷ O_DIRECT, file",
    procedure: "One thread, random 4 KiB blocks, data larger than memory. Reads: a map and buffered calls, both advised that access is random, \
     direct calls, and a ring that submits a batch and waits for it. Overwrites: whole blocks, with their present content, and a sync \
     every so many writes (the settings below), or each write durable by itself. Sync-cost: one block made durable each time. \
     Open-loop: each method first finds its closed-loop rate in the trial's first quarter, then reads at a share of that rate, timed from \
     the moment when each read was due.",
    change: &[
        "A device with a write cache that survives power loss: syncs become cheap, and overwrites are judged by their rate alone.",
        "Data in memory: then the page cache answers, and O_DIRECT is the slow one.",
        "A higher fixed rate: close to saturation, open-loop latency grows without bound while the closed loop looks the same.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[
    LiteratureTable {
        source: &NVME,
        variant: "read",
        devices: 1,
        title: "Random 4 KiB reads, one thread",
        metric: Metric::OpsPerS,
        unit: Unit::PerSecond,
        columns: &["reads per second"],
        rows: &[
            row(
                "io_uring O_DIRECT (64)",
                &methods::URING_DIRECT,
                &[1.6e6],
                "stated latency 0.6 µs; 64 in flight at this rate are 40 µs each",
            ),
            row("mmap", &methods::MMAP, &[780e3], "1.28 µs a read cannot come from an SSD"),
            row("read O_DIRECT", &methods::PREAD_DIRECT, &[720e3], "1.39 µs a read, against the text's own 5-15 µs"),
            row(
                "read buffered",
                &methods::PREAD_BUFFERED,
                &[650e3],
                "the file was in memory, or this was not measured",
            ),
        ],
        remarks: NVME_REMARKS,
    },
    LiteratureTable {
        source: &NVME,
        variant: "overwrite",
        devices: 1,
        title: "Random 4 KiB overwrites, one thread",
        metric: Metric::OpsPerS,
        unit: Unit::PerSecond,
        columns: &["overwrites per second"],
        rows: &[
            row("io_uring O_DIRECT (64)", &methods::URING_DIRECT, &[1.1e6], ""),
            row("write O_DIRECT", &PWRITE_DIRECT, &[680e3], "1.47 µs a write, one at a time"),
            row("write buffered", &PWRITE_BUFFERED, &[520e3], ""),
            row("mmap", &methods::MMAP, &[480e3], "must read each page before it can change it"),
        ],
        remarks: NVME_REMARKS,
    },
];

/// Remarks on the parts of the NVMe study's table that contradict themselves: arithmetic that every reader can repeat.
static NVME_REMARKS: &[&str] = &[
    "Not reproducible: the table contradicts itself.",
    "Its latencies are no measurements: each is one second divided by the rate (780 K/s → 1.28 µs, 1.6 M/s → 0.625 µs).",
    "By Little's law 64 reads in flight at 1.6 M/s take 64 / 1.6 M = 40 µs each, not 0.6 µs; its p99 of 3.2 µs would be a twelfth of its mean.",
    "720 K synchronous O_DIRECT reads a second are 1.39 µs each. O_DIRECT cannot be served from memory, and the text gives the device 5 to 15 µs a read: at most 67 K to 200 K/s.",
    "mmap at 780 K/s \"since the file is larger than memory\" needs a miss rate under 20 % even with the fastest device it names: the file was in memory, or the figure was not measured.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_of_the_remarks_holds() {
        let read = &TABLES[0].rows;
        assert!((64.0 / read[0].values[0] - 40e-6).abs() < 1e-9, "Little's law");
        assert!((1.0 / read[1].values[0] - 1.28e-6).abs() < 0.01e-6);
        assert!((1.0 / read[2].values[0] - 1.39e-6).abs() < 0.01e-6);
    }
}
