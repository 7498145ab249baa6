//! What contenders, parameters and targets are called where people read: the same in tables, findings and figures.

use crate::record::{CellSpec, Params};

/// A contender's id in words. Ids that are not known are shown as they are.
pub fn contender_title(id: &str) -> String {
    let known = match id {
        "mmap-normal" => "mmap NORMAL",
        "mmap-random" => "mmap RANDOM",
        "mmap-sequential" => "mmap SEQUENTIAL",
        "pread-buffered" => "pread buffered",
        "pread-direct" => "pread O_DIRECT",
        "uring-direct" => "io_uring O_DIRECT",
        "mmap" => "mmap RANDOM",
        "pread-buffered-random" => "pread buffered, RANDOM hint",
        "pwrite-buffered" => "pwrite buffered",
        "pwrite-direct" => "pwrite O_DIRECT",
        "pwrite-dsync" => "pwrite O_DIRECT, RWF_DSYNC",
        "uring-dsync" => "io_uring O_DIRECT, RWF_DSYNC",
        "msync" => "mmap, msync",
        "fdatasync" => "pwrite buffered, fdatasync",
        "fdatasync-clean" => "fdatasync, nothing dirty",
        "dsync-direct" => "O_DIRECT, RWF_DSYNC",
        "dsync-buffered" => "buffered, RWF_DSYNC",
        "fio-uring" | "fio-uring-direct" => "fio io_uring",
        "fio-psync" | "fio-psync-direct" => "fio psync",
        "threads-mmap" => "threads, mmap",
        "threads-read" => "threads, read",
        "single-mmap" => "one thread, mmap",
        "single-read" => "one thread, read",
        "mmap-shared" => "mmap, shared",
        "one-map" => "one map of the file",
        "thousand-maps" => "a thousand maps",
        "grow-mapped" => "mapped file, growing",
        "map-private" => "mmap, private",
        "os-cow" => "os_cow (MMAPv1)",
        "user-cow" => "user_cow (in the map)",
        "user-cow-pwrite" => "user_cow (pwrite)",
        "mapped-log" => "mapped_log (map, engine's log)",
        "shadow" => "shadow (LMDB)",
        "shadow-writemap" => "shadow (LMDB, WRITEMAP)",
        "async-mmap" => "async mmap",
        "async-read" => "async read",
        "async-uring" => "async io_uring",
        "mmap-willneed" => "mmap, MADV_WILLNEED",
        "mmap-readahead" => "mmap, read-ahead calls",
        "mmap-populate-ahead" => "mmap, MADV_POPULATE_READ",
        "mmap-populate" => "mmap, populated first",
        "mmap-mlock" => "mmap, mlock",
        "mmap-helpers" => "mmap, helper threads",
        "mmap-mincore" => "mmap, mincore and helpers",
        "mmap-nowait" => "mmap, RWF_NOWAIT and helpers",
        "pool-frames" => "memory of its own",
        "engine-scan" => "engine, leaf scan",
        "engine-scan-noprefetch" => "engine, leaf scan without prefetch",
        "mmap-readonly" => "mmap, read-only",
        "mmap-guarded" => "mmap, guarded",
        "mmap-guarded-checked" => "mmap, guarded, checked at every access",
        "pread-direct-checked" => "pread O_DIRECT, checked at load",
        "engine-dirty" => "engine, changed page",
        "no-check" => "mmap, no check",
        "check-every-access" => "mmap, checked at every access",
        "check-every-load" => "own memory, checked at load",
        "lmdb" => "LMDB",
        "lmdb-readahead" => "LMDB, read-ahead",
        "sqlite" => "SQLite",
        "sqlite-mmap" => "SQLite, mmap",
        "rocksdb" => "RocksDB",
        "rocksdb-mmap" => "RocksDB, mmap",
        "rocksdb-direct" => "RocksDB, O_DIRECT",
        "async-mmap-yield" => "async mmap, yielding",
        "pread-dontcache" => "pread RWF_DONTCACHE",
        "mmap-in-place" => "mmap, in place",
        "mmap-copy" => "mmap, copied out",
        "mmap-call" => "mmap, touch, munmap",
        "mmap-call-one-page" => "mmap, touch one page, munmap",
        "mmap-private" => "private map, mapped anew",
        "mmap-commit" => "writable map, msync",
        "pwrite-fdatasync" => "pwrite, fdatasync",
        "pool" => "nofault pool",
        "pool-tasks" => "nofault pool, tasks",
        "pool-get-many" => "nofault pool, get_many",
        "async-pool" => "async nofault pool",
        "array" => "page-table array",
        "array-small" => "page-table array, small pages",
        "hash" => "hash table",
        "hash-pinned" => "hash table, locks and pins",
        "swizzled" => "swizzled pointers",
        "mapped" => "mapped file",
        "mapped-huge" => "mapped file, huge pages",
        "mmap-one-map" => "fault, one map",
        "mmap-own" => "fault, a map a thread",
        "pread-cached" => "pread, cached",
        "mmap-unmap-page" => "map and unmap a page",
        "mmap-unmap-batch" => "map and unmap 64 pages",
        other => return other.replace('-', " "),
    };
    known.into()
}

/// Parameters that say how much work there is and how it is laid out: the same for all contenders, so no part of a name.
const SIZE_OF_WORK: [&str; 13] = [
    "files",
    "touches",
    "part_bytes",
    "stripe_bytes",
    "writes_per_sync",
    "cache_bytes",
    "fit",
    "durability",
    "memory",
    "keys",
    "value_bytes",
    "log_bytes",
    "updates",
];

/// Whether nothing but the size of the work is set besides threads, depth and block.
pub fn is_plain(params: &Params) -> bool {
    params.extra.keys().all(|name| SIZE_OF_WORK.contains(&name.as_str()))
}

/// Parameters in words; what is 1 or usual is left out.
pub fn parameters(params: &Params) -> String {
    let mut parts = Vec::new();
    if params.threads > 1 {
        parts.push(format!("{} threads", params.threads));
    }
    if params.depth > 1 {
        parts.push(format!("depth {}", params.depth));
    }
    let telling = params.extra.iter().filter(|(name, _)| !SIZE_OF_WORK.contains(&name.as_str()));
    parts.extend(telling.map(|(name, value)| match name.as_str() {
        "rate_per_s" => format!("at {value}/s"),
        "rate_share" => format!("rate ×{value}"),
        "buffers" => format!("{value} buffers"),
        "pin" => "on one CPU".into(),
        "working_set" => {
            value.parse().map_or_else(|_| value.clone(), |bytes| format!("{} of data", crate::format::bytes(bytes)))
        }
        // An id has no space in it.
        "unit" => format!("units of {}", value.replace("KiB", " KiB").replace("MiB", " MiB")),
        "copied_pages" => format!("{value} copied pages"),
        "commit_pages" => format!("{value} pages a commit"),
        "reader" if value == "none" => "no reader".into(),
        name => format!("{} {value}", name.replace('_', " ")),
    }));
    parts.join(", ")
}

/// What a store is called in a row of all its works: its contender, and the read-ahead where it was set for it.
pub fn store_title(spec: &CellSpec) -> String {
    let title = contender_title(&spec.contender);
    match spec.params.extra.get("read_ahead_kb") {
        Some(kib) => format!("{title}, read-ahead {kib} KiB"),
        None => title,
    }
}

/// What a target is called in headings.
pub fn target_title(label: &str) -> String {
    match label {
        "" => "the whole machine".into(),
        "file" => "file".into(),
        "ram" => "RAM-backed device".into(),
        "in-memory" => "all in memory".into(),
        "device" => "raw device".into(),
        other => match other.strip_prefix("device-") {
            Some(name) => format!("raw device {name}"),
            None => other.into(),
        },
    }
}
