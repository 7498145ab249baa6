//! The statistics as text in the format that Prometheus and its like read.
//!
//! The names of the metrics are part of the interface: they are not changed. Each struct of statistics is taken apart without
//! `..`, so that a new field is an error of the compiler until it has a metric.

use std::fmt::{self, Write};

use nofault_io::disk::DiskInfo;

use super::stats::{CompactionStats, Histograms, OrderStats, PackingStats, Stats, TransactionStats};
use crate::buffer_pool::PoolStats;
use crate::histogram::Histogram;
use crate::wal::LogStats;

/// The limits of the buckets of times are powers of two of nanoseconds, less one: from a microsecond to a minute …
const TIME_BITS: std::ops::RangeInclusive<u32> = 10..=36;
/// … and the limits of counts are powers of two, less one.
const COUNT_BITS: std::ops::RangeInclusive<u32> = 1..=12;

impl Stats {
    /// Returns all of this as text in the format of Prometheus: counters, gauges, and the histograms with a bucket for each
    /// power of two. The names begin with `nofault_` and are not changed by later versions. [`write_prometheus`] writes
    /// several databases into one text.
    ///
    /// ```
    /// use axum::{Router, extract::State, routing::get};
    /// use nofault::Db;
    ///
    /// async fn metrics(State(db): State<Db>) -> String {
    ///     db.stats().to_prometheus()
    /// }
    ///
    /// fn routes(db: Db) -> Router {
    ///     Router::new().route("/metrics", get(metrics)).with_state(db)
    /// }
    /// ```
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write(&mut text, &[("", self)]);
        text
    }
}

/// Writes the statistics of several databases as one text in the format of Prometheus, as [`Stats::to_prometheus`] does for one:
/// the label `db` of each line is the name given with the statistics, and no two may be the same.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let shop = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let wiki = nofault::blocking::Db::create(folder.path().join("wiki"), &settings)?;
/// let mut text = String::new();
/// nofault::db::write_prometheus(&mut text, &[("shop", &shop.stats()), ("wiki", &wiki.stats())]).unwrap();
/// assert!(text.contains("nofault_checkpoints_total{db=\"wiki\"} "));
/// # Ok::<(), nofault::error::Error>(())
/// ```
///
/// # Errors
/// The error of `out`.
pub fn write_prometheus(out: &mut impl fmt::Write, databases: &[(&str, &Stats)]) -> fmt::Result {
    write(out, databases)
}

/// A metric of one database.
struct Metric<'s> {
    name: &'static str,
    help: &'static str,
    value: Value<'s>,
}

enum Value<'s> {
    Counter(u64),
    Gauge(u64),
    /// A gauge of a time in nanoseconds.
    Time(u64),
    Times(&'s Histogram),
    Counts(&'s Histogram),
    Disk(&'s DiskInfo),
}

/// Pushes a metric for each field of a struct.
macro_rules! push_fields {
    ($metrics:ident, $stats:expr, $kind:ident { $($field:ident: $value:ident $name:literal $help:literal,)* } $($other:ident),*) => {
        let $kind { $($field,)* $($other,)* } = $stats;
        $($metrics.push(Metric { name: concat!("nofault_", $name), help: $help, value: Value::$value((*$field).into()) });)*
    };
}

/// Writes the statistics of databases, each with a label `db` unless it is empty.
///
/// # Errors
/// The error of `out`.
pub(in crate::db) fn write(out: &mut dyn Write, databases: &[(&str, &Stats)]) -> fmt::Result {
    let all: Vec<(&str, Vec<Metric<'_>>)> = databases.iter().map(|(db, stats)| (*db, metrics(stats))).collect();
    let Some((_, first)) = all.first() else { return Ok(()) };
    for (index, Metric { name, help, value }) in first.iter().enumerate() {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", value.kind())?;
        for (db, metrics) in &all {
            metrics[index].write(out, db)?;
        }
    }
    Ok(())
}

fn metrics(stats: &Stats) -> Vec<Metric<'_>> {
    let mut all = Vec::new();
    push_fields!(all, stats, Stats {
        checkpoints: Counter "checkpoints_total" "Checkpoints made.",
        cache_bytes: Gauge "cache_bytes" "The setting cache_bytes.",
        memory_bytes: Gauge "memory_bytes" "Memory that the database takes for itself.",
        memory_over_bytes: Gauge "memory_over_bytes" "Bytes of memory above the setting.",
        recent_commits_bytes: Gauge "recent_commits_bytes" "Memory of the list of recent commits.",
        commits_refused_for_space: Counter "commits_refused_for_space_total" "Commits refused because the disk is full.",
        dropped_pages_unreadable: Counter "dropped_pages_unreadable_total" "Pages of dropped tables that could not be read.",
        leaves_merged: Counter "leaves_merged_total" "Leaves freed by merging them into neighbours.",
        expired_removed: Counter "expired_removed_total" "Entries removed after they had expired.",
        data_bytes_excess: Gauge "data_bytes_excess" "Bytes by which the data file could be shorter.",
    } pool, log, histograms, disk, transactions, compaction, packing, ordering, visible_commit, repairs);
    let one = |name, help, value| Metric { name, help, value };
    all.push(one("nofault_visible_commit", "The newest commit that readers see.", Value::Gauge(visible_commit.0)));
    all.push(one(
        "nofault_repairs",
        "Defects repaired when the database was opened.",
        Value::Gauge(repairs.len() as u64),
    ));
    all.push(one("nofault_disk_info", "The way in which the data file is read and written.", Value::Disk(disk)));
    let Histograms { commit_ns, group_commits, read_ns, frame_wait_ns } = histograms;
    all.extend([
        one("nofault_commit_seconds", "Time of durable commits.", Value::Times(commit_ns)),
        one("nofault_group_commits", "Commits in each write of the log.", Value::Counts(group_commits)),
        one("nofault_read_seconds", "Time of reads that an operation waits for.", Value::Times(read_ns)),
        one("nofault_frame_wait_seconds", "Time of waits for free frames.", Value::Times(frame_wait_ns)),
    ]);
    push_pool(&mut all, pool);
    push_fields!(all, log, LogStats {
        groups_written: Counter "log_groups_total" "Durable writes of commits to the log.",
        closing_groups_written: Counter "log_closing_groups_total" "Durable writes to the log without commits.",
        records_durable: Counter "commits_total" "Commits that became durable.",
        bytes_written: Counter "log_bytes_total" "Bytes written to the log.",
        live_bytes: Gauge "log_live_bytes" "Bytes of log since the last checkpoint.",
        file_bytes: Gauge "log_file_bytes" "Size of the log file.",
        waiting_bytes: Gauge "log_waiting_bytes" "Bytes appended to the log and not written yet.",
        space_waits: Counter "log_space_waits_total" "Waits of commits for space in the log.",
        commits_refused_for_space: Counter "log_commits_refused_total" "Commits refused because the log could not grow.",
    });
    push_fields!(all, transactions, TransactionStats {
        conflicts: Counter "conflicts_total" "Commits refused because data that they had read was changed.",
        retries: Counter "transaction_retries_total" "Runs of transactions after the first.",
        precedences: Counter "precedences_total" "Times that a transaction was given precedence.",
        precedences_lapsed: Counter "precedences_lapsed_total" "Times that precedence was taken away.",
        wait_ns_max: Time "precedence_wait_seconds_max" "Longest wait for another's precedence or large commit.",
    });
    push_fields!(all, compaction, CompactionStats {
        is_working: Gauge "shrinking" "Whether pages at the end of the data file are being moved.",
        passes: Counter "shrink_passes_total" "Passes over the end of the data file.",
        bytes_moved: Counter "shrink_moved_bytes_total" "Bytes of pages moved from the end of the data file.",
        bytes_given_back: Counter "shrink_given_back_bytes_total" "Bytes of the data file given back.",
    } last_ending);
    let _ = last_ending;
    push_fields!(all, packing, PackingStats {
        is_working: Gauge "packing" "Whether compressed pages are being packed.",
        passes: Counter "packing_passes_total" "Passes over the compressed pages.",
        pages_moved: Counter "packing_pages_total" "Compressed pages moved to other blocks.",
        blocks_saved: Counter "packing_blocks_saved_total" "Blocks saved by packing.",
    } last_ending);
    let _ = last_ending;
    push_fields!(all, ordering, OrderStats {
        is_working: Gauge "ordering" "Whether the pages of a table are being put in order.",
        tables: Counter "ordering_tables_total" "Tables put in order.",
        pages_moved: Counter "ordering_pages_total" "Pages moved next to their neighbours by ordering.",
        fragments_before: Counter "ordering_fragments_before_total" "Fragments before ordering.",
        fragments_after: Counter "ordering_fragments_after_total" "Fragments after ordering.",
    });
    all
}

fn push_pool(all: &mut Vec<Metric<'_>>, pool: &PoolStats) {
    push_fields!(all, pool, PoolStats {
        frames: Gauge "frames" "Frames of the pool.",
        frames_free: Gauge "frames_free" "Frames that contain no page.",
        hits: Counter "page_hits_total" "Pages looked up and found in memory.",
        misses: Counter "page_reads_total" "Reads started because a page was not in memory.",
        misses_for_scans: Counter "page_reads_for_scans_total" "Reads of pages for one scan alone.",
        misses_joined: Counter "page_reads_joined_total" "Requests that joined a read in progress.",
        evicted: Counter "pages_evicted_total" "Pages evicted from memory.",
        pages_dirty: Gauge "pages_dirty" "Pages in memory whose newest version is not on disk.",
        pages_written: Counter "pages_written_total" "Pages written to disk.",
        pages_moved: Counter "pages_moved_total" "Pages that compaction moved next to their neighbours.",
        pages_compressed: Gauge "pages_compressed" "Pages that lie compressed in the data file.",
        blocks_compressed: Gauge "blocks_compressed" "Blocks that compressed pages share.",
        blocks_loose: Gauge "blocks_loose" "Blocks that repacking compressed pages would save.",
        tier_blocks: Gauge "tier_blocks" "Blocks of compressed pages in memory.",
        tier_blocks_wanted: Gauge "tier_blocks_wanted" "Blocks of compressed pages that may be in memory.",
        tier_hits: Counter "tier_hits_total" "Pages restored from blocks in memory.",
        tier_added: Counter "tier_added_total" "Blocks that stayed in memory after a read.",
        tier_evicted: Counter "tier_evicted_total" "Blocks evicted from memory.",
        tier_forgotten: Counter "tier_forgotten_total" "Blocks that left memory because they became invalid.",
        checksum_retries: Counter "checksum_retries_total" "Reads repeated because a checksum was wrong.",
        frame_waits: Counter "frame_waits_total" "Requests that waited for free frames.",
        reads_in_flight: Gauge "reads_in_flight" "Reads queued or in progress.",
        snapshot_bytes: Gauge "snapshot_bytes" "Bytes of old page versions kept for readers.",
        pages_changed: Gauge "pages_changed" "Pages changed since the last checkpoint.",
        pages_placed_same: Counter "pages_placed_same_total" "Pages written into the block group of their old block.",
        pages_placed_near: Counter "pages_placed_near_total" "Pages written near their old block.",
        pages_placed_far: Counter "pages_placed_far_total" "Pages written far from their old block.",
        blocks_file: Gauge "blocks_file" "Blocks for which the data file has room.",
        blocks_used: Gauge "blocks_used" "Blocks of the data file in use.",
        blocks_deferred: Gauge "blocks_deferred" "Released blocks that are not free yet.",
        blocks_kept: Gauge "blocks_kept" "Blocks that only readers in other processes need.",
        blocks_free: Gauge "blocks_free" "Blocks that can be used before the data file must grow.",
        blocks_reserve: Gauge "blocks_reserve" "Free blocks that ordinary commits leave free.",
        memory_bytes: Gauge "pool_memory_bytes" "Memory of the pool.",
        memory_frames_bytes: Gauge "pool_memory_frames_bytes" "Memory of the frames.",
        memory_table_bytes: Gauge "pool_memory_table_bytes" "Memory of the page table.",
        memory_dictionaries_bytes: Gauge "pool_memory_dictionaries_bytes" "Memory of the dictionaries of compressed tables.",
        table_bytes: Gauge "page_table_bytes" "Memory that the whole page table would take.",
        table_leaves: Gauge "page_table_leaves" "Leaves of the page table.",
        table_leaves_in_memory: Gauge "page_table_leaves_in_memory" "Leaves of the page table in memory.",
        table_leaves_max: Gauge "page_table_leaves_max" "Leaves beyond which cold ones leave memory.",
    });
}

impl Value<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) | Self::Time(_) | Self::Disk(_) => "gauge",
            Self::Times(_) | Self::Counts(_) => "histogram",
        }
    }
}

impl Metric<'_> {
    /// Writes the lines of this metric for one database.
    fn write(&self, out: &mut dyn Write, db: &str) -> fmt::Result {
        let name = self.name;
        match self.value {
            Value::Counter(value) | Value::Gauge(value) => writeln!(out, "{name}{} {value}", Labels(db, &[])),
            Value::Time(ns) => writeln!(out, "{name}{} {}", Labels(db, &[]), ns as f64 / 1e9),
            Value::Disk(DiskInfo { kind, direct, .. }) => {
                writeln!(out, "{name}{} 1", Labels(db, &[("kind", kind), ("direct", &direct.to_string())]))
            }
            Value::Times(histogram) => write_histogram(out, (name, db), histogram, TIME_BITS, |ns| ns as f64 / 1e9),
            Value::Counts(histogram) => write_histogram(out, (name, db), histogram, COUNT_BITS, |count| count as f64),
        }
    }
}

/// Writes a histogram with a bucket for each power of two: those that there are never straddle one.
fn write_histogram(
    out: &mut dyn Write,
    (name, db): (&str, &str),
    histogram: &Histogram,
    bits: std::ops::RangeInclusive<u32>,
    unit: impl Fn(u64) -> f64,
) -> fmt::Result {
    let (mut buckets, mut count) = (histogram.buckets().peekable(), 0);
    for bits in bits {
        let greatest = (1 << bits) - 1;
        while let Some(bucket) = buckets.next_if(|bucket| bucket.greatest <= greatest) {
            count += bucket.count;
        }
        writeln!(out, "{name}_bucket{} {count}", Labels(db, &[("le", &unit(greatest).to_string())]))?;
    }
    count += buckets.map(|bucket| bucket.count).sum::<u64>();
    writeln!(out, "{name}_bucket{} {count}", Labels(db, &[("le", "+Inf")]))?;
    writeln!(out, "{name}_sum{} {}", Labels(db, &[]), unit(histogram.sum()))?;
    writeln!(out, "{name}_count{} {count}", Labels(db, &[]))
}

/// Labels in braces: the name of the database, unless it is empty, and others.
struct Labels<'a>(&'a str, &'a [(&'a str, &'a str)]);

impl fmt::Display for Labels<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(db, others) = self;
        let of_db = (!db.is_empty()).then_some(("db", *db));
        for (index, (name, value)) in of_db.iter().chain(others.iter()).enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(out, "{}{name}=\"{value}\"", if index == 0 { '{' } else { ',' })?;
        }
        if of_db.is_some() || !others.is_empty() { out.write_char('}') } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::blocking::Db;
    use crate::settings::Settings;

    /// A family of metrics as a reader of the format takes it.
    #[derive(Debug, Default)]
    struct Family {
        kind: String,
        /// The samples: suffix of the name, labels, value.
        samples: Vec<(String, BTreeMap<String, String>, f64)>,
    }

    fn labels(mut text: &str) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        while !text.is_empty() {
            let (name, rest) = text.split_once("=\"").unwrap();
            let (mut value, mut rest) = (String::new(), rest.chars());
            loop {
                match rest.next().unwrap() {
                    '"' => break,
                    '\\' => value.push(match rest.next().unwrap() {
                        'n' => '\n',
                        other => other,
                    }),
                    other => value.push(other),
                }
            }
            text = rest.as_str();
            text = text.strip_prefix(',').unwrap_or(text);
            assert!(labels.insert(name.to_owned(), value).is_none(), "a label twice");
        }
        labels
    }

    /// Parses text in the format of Prometheus, and checks its rules.
    fn parse(text: &str) -> BTreeMap<String, Family> {
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current = String::new();
        let mut seen = BTreeSet::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                current = help.split_once(' ').unwrap().0.to_owned();
                assert!(current.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{current}");
                assert!(families.insert(current.clone(), Family::default()).is_none(), "{current} twice");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, current);
                families.get_mut(&current).unwrap().kind = kind.to_owned();
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            } else {
                assert!(seen.insert(line.rsplit_once(' ').unwrap().0.to_owned()), "{line}: twice");
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, inside) = series.split_once('{').unwrap_or((series, "}"));
                let family = families.get_mut(&current).unwrap();
                let suffix = name.strip_prefix(&current).unwrap_or_else(|| panic!("{name} is no part of {current}"));
                assert!(suffix.is_empty() || family.kind == "histogram", "{name}");
                let labels = labels(inside.strip_suffix('}').unwrap());
                family.samples.push((suffix.to_owned(), labels, value.parse().unwrap()));
            }
        }
        families
    }

    #[test]
    fn the_text_keeps_the_rules_of_the_format_and_says_what_the_statistics_say() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
        let db = Db::create(folder.path().join("db"), &settings).unwrap();
        let table = db.create_table("table").unwrap();
        (0..50_u32).for_each(|key| table.put(key.to_be_bytes(), "value").unwrap());
        let stats = db.stats();
        let families = parse(&stats.to_prometheus());
        let value = |name: &str| families[name].samples[0].2;
        assert_eq!(value("nofault_commits_total"), stats.log.records_durable as f64);
        assert_eq!(value("nofault_page_hits_total"), stats.pool.hits as f64);
        assert_eq!(value("nofault_cache_bytes"), settings.cache_bytes as f64);
        assert_eq!(families["nofault_disk_info"].samples[0].1["kind"], stats.disk.kind);
        for (name, histogram, unit) in [
            ("nofault_commit_seconds", &stats.histograms.commit_ns, 1e9),
            ("nofault_group_commits", &stats.histograms.group_commits, 1.0),
            ("nofault_read_seconds", &stats.histograms.read_ns, 1e9),
        ] {
            let Family { kind, samples } = &families[name];
            assert_eq!(kind, "histogram");
            let buckets: Vec<(f64, f64)> = samples
                .iter()
                .filter(|(suffix, ..)| suffix == "_bucket")
                .map(|(_, labels, value)| (labels["le"].parse().unwrap(), *value))
                .collect();
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}: {buckets:?}");
            let last = |wanted: &str| samples.iter().find(|(suffix, ..)| suffix == wanted).unwrap().2;
            assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, histogram.count() as f64));
            assert_eq!((last("_count"), last("_sum")), (histogram.count() as f64, histogram.sum() as f64 / unit));
            for (limit, count) in buckets {
                let below = histogram.buckets().filter(|bucket| bucket.greatest as f64 / unit <= limit);
                assert_eq!(below.map(|bucket| bucket.count).sum::<u64>() as f64, count, "{name} up to {limit}");
            }
        }
        // One commit made the table.
        assert_eq!(stats.histograms.commit_ns.count(), 51);
        assert_eq!(stats.histograms.group_commits.sum(), stats.log.records_durable);
    }

    #[test]
    fn several_databases_have_a_label_each_and_one_heading() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
        let db = Db::create(folder.path().join("db"), &settings).unwrap();
        let stats = db.stats();
        let (mut text, odd) = (String::new(), "a \"b\"\n\\c");
        write(&mut text, &[("shop", &stats), (odd, &stats)]).unwrap();
        for (name, family) in parse(&text) {
            let dbs: BTreeSet<&str> = family.samples.iter().map(|(_, labels, _)| &*labels["db"]).collect();
            assert_eq!(dbs, BTreeSet::from(["shop", odd]), "{name}");
        }
        text.clear();
        write(&mut text, &[]).unwrap();
        assert_eq!(text, "");
    }
}
