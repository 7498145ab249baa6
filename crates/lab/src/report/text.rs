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
            "Threads read blocks at random offsets from data larger than the memory they may use, from a cold start until well \
             after memory is full. Every block is checked against what must be there."
        }
        ExperimentId::Scan => {
            "The data is read from front to back: mapped contenders with several threads, each on a stripe of its own, explicit \
             ones with few threads and deep queues. Every block is checked."
        }
        ExperimentId::Async => {
            "Several files, one task each, on a single-threaded executor, on threads, or one after another; over a mapping or with read calls. A \
             1 ms ticker runs beside them. Answers are checked by their sums."
        }
        ExperimentId::Access => {
            "One thread. Closed loops ask again after each answer; open loops ask at a fixed rate and time from when a \
             request was due. Overwrites are followed by syncs, which are timed on their own."
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
        ],
        ExperimentId::Access => &[
            "A device with a write cache that survives power loss: syncs become cheap, and overwrites are judged by their rate alone.",
            "Data in memory: then the page cache answers, and O_DIRECT is the slow one.",
            "A higher fixed rate: close to saturation, open-loop latency grows without bound while the closed loop looks the same.",
        ],
    }
}
