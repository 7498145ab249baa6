//! Words of the report that do not depend on figures: how each experiment measures, and what would change its answer.

use crate::format;
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, MemoryMethod};
use crate::summary::{Group, Summary};

/// How it was measured, with the parameters of these records.
pub(crate) fn method(id: ExperimentId, file: &RecordFile, summary: &Summary<'_>) -> Vec<String> {
    let mut lines: Vec<String> = vec![in_general(id).into()];
    let groups: Vec<&Group<'_>> = summary.of_experiment(id).collect();
    if groups.is_empty() {
        return lines;
    }
    let mut targets: Vec<String> = Vec::new();
    let mut limits: Vec<String> = Vec::new();
    let mut caches: Vec<String> = Vec::new();
    let mut blocks: Vec<String> = Vec::new();
    for group in &groups {
        let (spec, target) = (group.spec, &group.spec.target);
        let parts = if target.paths.len() > 1 { format!("{} × ", target.paths.len()) } else { String::new() };
        add(
            &mut targets,
            format!("{}: {parts}{}", crate::summary::target_title(&target.label), format::bytes(target.data_bytes)),
        );
        add(&mut limits, limit(spec.memory.method, spec.memory.bytes));
        add(&mut blocks, format::bytes(spec.params.block_bytes));
        for cell in &group.good {
            add(&mut caches, cell.outcome.cache_method.clone());
        }
    }
    lines.push(format!("Data – {}. Blocks of {}.", targets.join("; "), blocks.join(", ")));
    lines.push(format!("Memory – {}.", limits.join("; ")));
    caches.retain(|method| !method.is_empty());
    if !caches.is_empty() {
        lines.push(format!("State of the caches – {}.", caches.join("; ")));
    }
    let settings = super::figures::settings(&groups);
    if !settings.is_empty() {
        lines.push(format!("Settings – {}.", settings.join("; ")));
    }
    lines.push(format!(
        "Each contender up to {} times, interleaved with the others; median and range are shown.",
        file.run.config.repeats.max(1)
    ));
    lines
}

/// The words of the findings, for a reader who goes no further.
pub(crate) fn terms(file: &RecordFile, summary: &Summary<'_>) -> Vec<String> {
    if summary.groups.is_empty() {
        return Vec::new();
    }
    let has = |label: &str| summary.groups.iter().any(|group| group.spec.target.label == label);
    let machine = &file.run.machine;
    let mut terms = vec![
        "mmap: the file is mapped and the kernel loads and evicts its pages. Explicit I/O: read calls past the page cache \
         (O_DIRECT), one at a time on threads or many in flight (io_uring)."
            .to_owned(),
    ];
    if has("file") {
        terms.push(format!("The file lies on {} ({}).", machine.device, machine.file_system));
    }
    if has("ram") {
        terms.push(
            "The RAM-backed device is compressed memory (zram): faster than any disk, it shows what the software costs.".into(),
        );
    }
    terms.push(
        "Figures are medians over the repeats, in brackets the smallest and largest ratio that single repeats allow; undecided \
         means that the repeats do not tell the two apart."
            .into(),
    );
    terms
}

fn add(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}

fn limit(method: MemoryMethod, bytes: u64) -> String {
    let bytes = format::bytes(bytes);
    match method {
        MemoryMethod::None => "no limit".into(),
        MemoryMethod::CgroupV2 => {
            format!("{bytes} for process and page cache by a cgroup (v2): the faulting thread reclaims")
        }
        MemoryMethod::CgroupV1 => {
            format!("{bytes} for process and page cache by a cgroup (v1): the faulting thread reclaims")
        }
        MemoryMethod::Ballast => format!("{bytes} left to everyone by a ballast: kswapd reclaims"),
        MemoryMethod::LargeFile => "data larger than RAM: kswapd reclaims".into(),
    }
}

fn in_general(id: ExperimentId) -> &'static str {
    match id {
        ExperimentId::Random => {
            "Threads read blocks at seeded random offsets, others in each cell, as what lies below this machine may cache, from data larger \
             than the memory they may use, from a cold start on; rates are those after memory was full, latencies those of the whole \
             cell. A cell of a map or of buffered reads goes on, for at most as long again, until memory was full for half of its time. The map loads one word of each page, as the paper's \
             benchmark loads one byte; read calls and the ring fetch the whole block. A word of each page is checked against what must \
             be there, while timed; fio checks nothing. The ring keeps its depth filled from one thread, with registered buffers in huge \
             pages."
        }
        ExperimentId::Scan => {
            "The data is read from front to back, again from the front until the time is over: maps and read calls by several threads, \
             each on a part of its own (128 MiB, as the paper's benchmark does), the ring and fio by one thread with large blocks and \
             many in flight. The ring and fio run with buffers in huge pages and in 4 KiB pages, as scattered pages split large requests. \
             Striped: consecutive stripes lie on consecutive files or devices. A word of each page is checked; fio checks nothing."
        }
        ExperimentId::Async => {
            "Eight files (or as many as set), a fixed amount of work: tasks on one single-threaded executor, a thread a file, or one \
             thread after another; over a map, with read calls (the executor hands them to its thread pool), or with direct reads \
             on a ring that the executor polls. A cell is one run; a dot each. `random-touch` makes seeded 4 KiB touches, the same in every file; \
             `sequential`, the source's, sums every 512th byte. A kernel timer of 1 ms on the executor's thread counts how late it is \
             served; a tick that never got its turn counts as late as it was. Sums are checked."
        }
        ExperimentId::Access => {
            "One thread, random 4 KiB blocks, data larger than memory. Reads: a map and buffered calls, both told that access is random, \
             direct calls, and a ring that submits a batch and waits for it. Overwrites: whole blocks, with what stands there already, and a sync \
             every so many writes (the settings below), or each write durable by itself. Sync-cost: one block made durable each time. \
             Open-loop: each contender first finds its closed-loop rate in the cell's first quarter, then is asked at a share of it, timed from when \
             each read was due."
        }
        ExperimentId::Safety => {
            "Sin: 64 pages are stored into a mapping that is locked in memory; nobody commits them. Another process syncs the file, or the \
             lab waits until the kernel has written them by itself (cachestat says when); then the file is read around the page cache. \
             Commits: the engine's B+tree over each way to keep half-done changes out of a mapped file, and over the engine's own pool; node format, \
             log and durability are the same. Writers commit two keys at a time, far apart, to pairs of their own; one reader reads random \
             keys and checks every value. All data fits in memory. Then a process of its own goes on committing, tells of each commit that was \
             acknowledged, and is killed in the midst of it by SIGKILL; the page cache is emptied of what it left, and it is opened: every pair is \
             read and compared with what was acknowledged. That is the end of a process, not of the power: what its system calls wrote the kernel \
             still has. Written bytes are those the store hands to its files; the file system's journal comes on top."
        }
        ExperimentId::Stalls => {
            "One thread accesses pages and times each access, the work-around's own calls included; what is timed apart is a wait with nothing \
             else left to do, and what is done once beforehand. Ahead: random 4 KiB pages of data larger than memory, in an order known so many \
             pages ahead as the depth says; hints, calls and helper threads get that knowledge, a ring has as many reads in flight and hands \
             them over in order. With mincore and RWF_NOWAIT the thread asks first and gives absent pages to helpers. Fits: a quarter of the \
             memory is touched at random while a second thread reads the rest of the file through the page cache. Leaf scan: the \
             engine walks its tree from a cold pool, with and without asking for the leaves to come. The map is told that access is random."
        }
        ExperimentId::Errors => {
            "Each fault is made for real and met by a process of its own: a file cut under an open store, a file system of the lab's own (FUSE) \
             that fails one page and later delivers it again, a bit flipped on disk, a bit flipped in memory through a pointer that points \
             where it should not. The process reads half of 256 pages, the fault comes, it reads all; then the repair, and all once more; \
             after a stray write it syncs, and another process reads what is on disk. What is right is judged by the lab, what was noticed by the \
             store alone. Plain mappings are used as they are; guarded ones turn SIGBUS into an error; checked ones also verify a page's \
             checksum at every access. Checksum-cost: one thread loads a word of random pages, all in memory."
        }
        ExperimentId::Engines => {
            "Each store is loaded with the same sorted entries (16-byte keys, values that do not compress), then runs YCSB's mixes in YCSB's \
             order A B C F D E, a scan, and durable commits of one entry each. Process and page cache together have the memory of one cgroup; \
             how much of it is a cache of the store's own follows its authors' advice and stands in the table of settings. Mixes: zipfian but for D, \
             each operation a request of its own that sees the newest commit; the first third of a cell warms up, unmeasured. Durability: mixes commit \
             deferred (visible at once, a power cut may lose the last commits), loads and commits are on the disk when they return. Every answer \
             is checked whole: its key, its bytes, and that no read shows what was overwritten before it began. Where all data is in memory every \
             entry is read once before the clock starts. Every repeat loads anew."
        }
        ExperimentId::Eviction => {
            "`faults` and `shootdowns` take a mechanism apart, over a file in memory: the CPU time of a fault of a cached page by threads, in one \
             map for all, in a map for each, and as a read call; and the time to fault a page in and take it out of the map again, alone and while \
             other CPUs run threads of the same process. The others start with memory full: a cgroup makes the faulting threads evict, a \
             ballast makes kswapd do it. `random` reads 4 KiB blocks, `scan` reads front to back; through a map, through the page cache without \
             one (evicted, but never shot down), and direct (never evicted). A control pins all threads to one CPU. Which bottleneck binds is an \
             estimate from these prices; its rule stands with it."
        }
        ExperimentId::Translate => {
            "Pages of 4 KiB that are all in memory, found in several ways: an array indexed by page id, a hash table (half full), pointers swizzled \
             into the parent, a mapped file in memory with small and with huge pages; as controls the array over frames in small pages, \
             and the hash table behind 64 locks with a pin on each page in use. All but the map look whether the page is resident. `access` \
             follows a random cycle through all pages, one cache line of each; `lookup` looks up random keys in a B+tree, the next one \
             known only when the last value is. Nothing is evicted, so no pool pays for its replacement strategy. Each tag that is read is checked."
        }
        ExperimentId::Claims => {
            "Small cells for what no other experiment decides; each claim names the cells it was judged by. Cached reads: one thread reads a file \
             that is in the page cache in units of one size, and adds up a word of each cache line, in the map, or in a buffer that it copied \
             or read into. Calls: threads map a part of 1 MiB of a cached file, touch it and unmap it, or read it. Private map: pages spread over it are \
             changed, then it is mapped anew, which is timed. Commits: whole pages of a file are changed and made durable. Long reader: \
             durable commits of 500 updates each, with and without a reader that stays from the first to the last; growth counts file and memory."
        }
    }
}

/// What would change the answer: how the reader can go on.
pub(crate) fn change(id: ExperimentId) -> &'static [&'static str] {
    match id {
        ExperimentId::Random => &[
            "A faster device: when the device is the limit, all contenders reach it, and only the CPU cost tells them apart.",
            "Data that fits into memory: then nothing is evicted and mmap needs no system call.",
            "Read-ahead: MADV_NORMAL and buffered reads depend on read_ahead_kb more than on anything else here.",
            "More CPUs: each shootdown interrupts every CPU that has used the mapping.",
            "Reclaim by kswapd (a ballast, as in the paper) instead of the faulting thread (a cgroup), or the other way round.",
        ],
        ExperimentId::Scan => &[
            "More devices: explicit I/O can use them, mmap is bounded by page faults and by the one thread that evicts.",
            "Read-ahead: it decides how much mmap reads at a time.",
            "Buffers in small pages: large direct reads into scattered pages can be limited by the device's segment count.",
        ],
        ExperimentId::Async => &[
            "Read-ahead that is larger than what a task reads at a time hides the wait in the sequential variant; random touches show it.",
            "Warm caches: without a page fault that waits, a mapping blocks nobody.",
            "A multi-threaded executor moves the problem: it has as many tasks at a time as threads.",
            "Another platform, the source's first open question: the lab runs on Linux alone; what the source found on macOS stands above.",
        ],
        ExperimentId::Access => &[
            "A device with a write cache that survives power loss: syncs become cheap, and overwrites are judged by their rate alone.",
            "Data in memory: then the page cache answers, and O_DIRECT is the slow one.",
            "A higher fixed rate: close to saturation, open-loop latency grows without bound while the closed loop looks the same.",
        ],
        ExperimentId::Safety => &[
            "A device without a write cache that survives power loss: a sync takes milliseconds, and what counts is how many commits share one. \
             Stores with a log share; shadow paging syncs twice a commit.",
            "Larger commits: shadow paging copies the path to each changed page once a commit, so its price a key falls.",
            "Data larger than memory: every mapped store then stalls in page faults under its locks.",
            "Long readers: they keep shadow paging's pages and the log of user_cow from being used again.",
        ],
        ExperimentId::Stalls => &[
            "An order that is not known ahead: then hints and helpers have nothing to work with, and only probing or reads in flight are left.",
            "More CPUs than helper threads: here they may compete with the thread they should help.",
            "Data that fits and no neighbour: then mlock, or nothing at all, is enough.",
            "A device with longer waits: hints that only start a read gain more, calls that wait lose more.",
        ],
        ExperimentId::Errors => &[
            "Pages that are read whole anyway: the checksum's bytes are then in the CPU's caches, and its price falls to the arithmetic.",
            "Data that does not fit in memory: where every access is a load, both ways check equally often.",
            "A file system with checksums of its own (btrfs, ZFS): it finds what flips on disk, and tells a mapping by SIGBUS.",
            "A read-only mapping: a stray write ends the process instead of the data.",
        ],
        ExperimentId::Engines => &[
            "More memory, or a slower disk: what is cached decides, and a store without a cache of its own leaves that to the kernel.",
            "Batches: stores that can load many keys at once (nofault's get_many, RocksDB's MultiGet) are asked one key at a time here.",
            "Longer runs: trees that merge in the background (RocksDB, fjall) push a part of the cost of writing behind the measured time.",
            "Larger commits: stores with one writer and two syncs a commit lose most with single entries.",
            "Threads: with one thread no store can have more than one read at the disk; sixteen, as here, hide a part of each wait.",
        ],
        ExperimentId::Eviction => &[
            "More CPUs: each shootdown then interrupts more of them, and more threads meet in one page table.",
            "Several NUMA nodes: each has a kswapd of its own.",
            "A faster device: what reclaim costs is hidden while threads wait for reads.",
            "Large folios: where read-ahead fills the cache with them, one eviction and one interrupt serve many pages.",
        ],
        ExperimentId::Translate => &[
            "Page ids that are not dense: an array needs room for each, and a hash table or swizzled pointers gain.",
            "Huge pages: the fewer misses of the TLB, the more of the time is the tree's own.",
            "Eviction: a pool must then also know which pages are in use; the contender with locks and pins shows the dearest way.",
            "More threads: pins of the root are writes that all threads share.",
        ],
        ExperimentId::Claims => &[
            "Another kernel: faults, mapping calls and uncached buffered reads change from release to release.",
            "Virtualization: a page fault in a nested guest costs several times that of the bare machine, a system call hardly more.",
            "Larger folios in the page cache: one fault then maps many pages, which favours maps of cached data.",
        ],
    }
}
