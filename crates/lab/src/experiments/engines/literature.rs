//! Published figures on the question of `engines`.

use crate::format::Unit;
use crate::literature::{LiteratureTable, REDB, row};
use crate::methods;
use crate::summary::Metric;

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &REDB,
    variant: "commit",
    devices: 1,
    title: "Durable commits of one writer (\"individual writes\": 1,000 commits of one entry)",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["commits per second"],
    rows: &[
        row("redb", &methods::REDB, &[1000.0 / 0.920], "920 ms"),
        row("LMDB", &methods::LMDB, &[1000.0 / 1.598], "1,598 ms"),
        row("RocksDB", &methods::ROCKSDB, &[1000.0 / 2.432], "2,432 ms"),
        row("fjall", &methods::FJALL, &[1000.0 / 3.488], "3,488 ms"),
        row("SQLite", &methods::SQLITE, &[1000.0 / 7.040], "7,040 ms"),
    ],
    remarks: &[
        "A consumer drive without a capacitor: the cost of a sync decides, not the store.",
        "The paper's table 1 names databases that use or used mmap (MonetDB, LevelDB, LMDB, SQLite, MongoDB, SingleStore, InfluxDB, RavenDB, QuestDB and others) and has no figures.",
    ],
}];
