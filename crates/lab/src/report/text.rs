//! Texts of the report around an experiment's own: the parameters of the measurement, and the terms of the findings.

use crate::experiment::Experiment;
use crate::format;
use crate::record::MemoryMethod;
use crate::record::file::RecordFile;
use crate::show::figures::settings;
use crate::summary::{Group, Summary};

/// Describes how an experiment was measured, with the parameters of these records.
pub(crate) fn method(experiment: &dyn Experiment, file: &RecordFile, summary: &Summary<'_>) -> Vec<String> {
    let mut lines: Vec<String> = vec![experiment.description().texts.procedure.into()];
    let groups: Vec<&Group<'_>> = summary.of_experiment(experiment.id()).collect();
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
        for trial in &group.good {
            add(&mut caches, trial.outcome.cache_method.clone());
        }
    }
    lines.push(format!("Data – {}. Blocks of {}.", targets.join("; "), blocks.join(", ")));
    lines.push(format!("Memory – {}.", limits.join("; ")));
    caches.retain(|method| !method.is_empty());
    if !caches.is_empty() {
        lines.push(format!("State of the caches – {}.", caches.join("; ")));
    }
    let settings = settings(&groups);
    if !settings.is_empty() {
        lines.push(format!("Settings – {}.", settings.join("; ")));
    }
    lines.push(format!(
        "Each method up to {} times, interleaved with the others; median and range are shown.",
        file.run.config.repeats.max(1)
    ));
    lines
}

/// Explains the terms in the findings, for a reader of the findings alone.
pub(crate) fn terms(file: &RecordFile, summary: &Summary<'_>, about_maps: bool) -> Vec<String> {
    if summary.groups.is_empty() {
        return Vec::new();
    }
    let has = |label: &str| summary.groups.iter().any(|group| group.spec.target.label == label);
    let machine = &file.run.machine;
    let mut terms = Vec::new();
    if about_maps {
        terms.push(
            "mmap: the file is mapped and the kernel loads and evicts its pages. Explicit I/O: read calls past the page cache \
         (O_DIRECT), one at a time on threads or many in flight (io_uring)."
                .to_owned(),
        );
    }
    if has("file") {
        terms.push(format!("The file lies on {} ({}).", machine.device, machine.file_system));
    }
    if has("ram") {
        terms.push(
            "The RAM-backed device is compressed memory (zram): faster than any disk, it shows what the software costs.".into(),
        );
    }
    terms.push(
        "Figures are medians over the repeats, in brackets the interval of a ratio, which misses the true one in one of twenty; undecided \
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
